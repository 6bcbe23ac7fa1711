"""Memory of a training step per chip, by live ranges: what must be there at the worst moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rooftop.formula import Number, maximum, minimum, named, total, where
from rooftop.training._choices import Choices
from rooftop.training._schedule import Stage
from rooftop.training._structure import Compiled, Structure


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes per chip of the states of one program: of one copy (block, embedding or head)."""

    weights: Number
    gradients: Number
    optimizer: Number
    at_use: Number


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes per chip of the activations of one microbatch in one program, under a remat policy."""

    saved: Number
    working: Number


def stored_of(structure: Structure, values: Mapping[str, list[Number]]) -> dict[str, Stored]:
    """The states of every program, which no choice but a layout changes."""
    return {c.name: _stored(c, values[c.name]) for c in structure.programs}


def _stored(compiled: Compiled, sizes: list[Number]) -> Stored:
    stored = total(sizes[i] for i in compiled.weights)
    use = total(sizes[i] for i in compiled.weights_at_use)
    return Stored(
        weights=named(stored, f"weights({compiled.name})", "B"),
        gradients=named(total(sizes[i] for i in compiled.gradients), f"gradients({compiled.name})", "B"),
        optimizer=named(total(sizes[i] for i in compiled.optimizer), f"optimizer({compiled.name})", "B"),
        at_use=where(use > stored * 1.0001, use, 0.0),
    )


def _kept(compiled: Compiled, sizes: list[Number], policy: str) -> Kept:
    return Kept(
        saved=named(total(sizes[i] for i in compiled.saved[policy]), f"saved({compiled.name}, {policy})", "B"),
        working=_peak(compiled.working[policy], sizes),
    )


def _peak(moments: tuple[tuple[tuple[int, float], ...], ...], sizes: list[Number]) -> Number:
    """The largest of the sums over arrays that are alive together."""
    peaks = [total(sizes[i] if n == 1 else n * sizes[i] for i, n in moment) for moment in moments]
    return maximum(*peaks) if len(peaks) > 1 else (peaks[0] if peaks else 0.0)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one chip by part: on the chip, and in its share of the memory of its host; each on the fullest stage."""

    chip: Mapping[str, Number]
    host: Mapping[str, Number]


def memory_parts(
    structure: Structure,
    values: Mapping[str, list[Number]],
    chosen: Choices,
    stages: Sequence[Stage],
    states: Mapping[str, Stored] | None = None,
) -> Memory:
    """Bytes per chip by part.

    A stage holds the activations of the microbatches in flight on it; the one with the head also the logits of one
    microbatch. A chip that is two stages holds the weights and gradients of both, and the optimizer states of half of each.
    Of what lies in host memory, buffers stay on the chip (see `_offload`), and no more than there is. states: from `stored_of`, if
    they are known.
    """
    policy, away = chosen.remat, chosen.offloads
    states = stored_of(structure, values) if states is None else states
    blocks = [(structure.counts[c.name], states[c.name]) for c in structure.blocks]
    embed, head = states[structure.embed.name], states[structure.head.name]
    result: dict[str, list[Number]] = {}
    host: dict[str, list[Number]] = {}
    for part in ("weights", "gradients", "optimizer"):
        body = total(n * getattr(h, part) for n, h in blocks)
        result[part] = [
            s.of(body, getattr(embed, part), getattr(head, part)) * (s.copies if part != "optimizer" else 1.0)
            for s in stages
        ]
    for part, name in (("weights", "params"), ("optimizer", "optimizer")):
        if name in away:
            two = 2 * _most(getattr(h, part) for _, h in blocks)
            ends = [
                (where(s.embed > 0, getattr(embed, part), 0.0), where(s.head > 0, getattr(head, part), 0.0))
                for s in stages
            ]
            host[part] = result[part]
            result[part] = [minimum(a, maximum(two, *e)) for a, e in zip(result[part], ends, strict=True)]
    gathered = _most(h.at_use for _, h in blocks)
    # two blocks' weights at once: the one in use and the one being prefetched
    two = 2 * gathered
    result["gathered weights"] = [
        maximum(two, where(s.embed > 0, embed.at_use, 0.0), where(s.head > 0, head.at_use, 0.0)) for s in stages
    ]
    passing = [(structure.counts[c.name], _kept(c, values[c.name], policy)) for c in structure.blocks]
    logits = _kept(structure.head, values[structure.head.name], policy)
    body = total(n * k.saved for n, k in passing)
    kept = [body * s.share * s.flight for s in stages]
    if "activations" in away:
        host["saved activations"] = kept
        two = 2 * _most(k.saved for _, k in passing)
        kept = [minimum(k, two) for k in kept]
    result["saved activations"] = [k + where(s.head > 0, logits.saved, 0.0) for k, s in zip(kept, stages, strict=True)]
    block_peak = _most(k.working for _, k in passing)
    result["working set"] = [maximum(block_peak, where(s.head > 0, logits.working, 0.0)) for s in stages]
    return Memory(_fullest(result), {part: named(b, f"host {part}", "B") for part, b in _fullest(host).items()})


def _most(values: Iterable[Number]) -> Number:
    every = list(values)
    return maximum(*every) if len(every) > 1 else every[0]


def _fullest(columns: Mapping[str, list[Number]]) -> dict[str, Number]:
    """By part, the bytes of the stage where all parts together are most."""
    stages = range(len(next(iter(columns.values()), ())))
    totals = [total(column[i] for column in columns.values()) for i in stages]
    fullest = {part: column[0] for part, column in columns.items()}
    for i in stages[1:]:
        fullest = {part: where(totals[0] >= totals[i], fullest[part], column[i]) for part, column in columns.items()}
        totals[0] = maximum(totals[0], totals[i])
    return {part: named(bytes, part, "B", note="on the fullest pipeline stage") for part, bytes in fullest.items()}
