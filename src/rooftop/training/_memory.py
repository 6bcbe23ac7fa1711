"""Memory of a training step per chip, by live ranges: what must be there at the worst moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rooftop.formula import Number, maximum, named, total, where
from rooftop.training._schedule import Stage
from rooftop.training._structure import Compiled, Structure


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes per chip of one program: of one copy (block, embedding or head), one microbatch."""

    weights: Number
    gradients: Number
    optimizer: Number
    at_use: Number
    saved: Mapping[str, Number]
    working: Mapping[str, Number]


def held(compiled: Compiled, sizes: list[Number]) -> Held:
    """Evaluate the memory terms of a program."""
    stored = total(sizes[i] for i in compiled.weights)
    use = total(sizes[i] for i in compiled.weights_at_use)
    return Held(
        weights=named(stored, f"weights({compiled.name})", "B"),
        gradients=named(total(sizes[i] for i in compiled.gradients), f"gradients({compiled.name})", "B"),
        optimizer=named(total(sizes[i] for i in compiled.optimizer), f"optimizer({compiled.name})", "B"),
        at_use=where(use > stored * 1.0001, use, 0.0),
        saved={
            policy: named(total(sizes[i] for i in indices), f"saved({compiled.name}, {policy})", "B")
            for policy, indices in compiled.saved.items()
        },
        working={policy: _peak(moments, sizes) for policy, moments in compiled.working.items()},
    )


def _peak(moments: tuple[tuple[tuple[int, float], ...], ...], sizes: list[Number]) -> Number:
    """The largest of the sums over arrays that are alive together."""
    peaks = [total(sizes[i] if n == 1 else n * sizes[i] for i, n in moment) for moment in moments]
    return maximum(*peaks) if len(peaks) > 1 else (peaks[0] if peaks else 0.0)


def memory_parts(
    structure: Structure, values: Mapping[str, list[Number]], policy: str, stages: Sequence[Stage]
) -> dict[str, Number]:
    """Bytes per chip by part on the fullest stage.

    A stage holds the activations of the microbatches in flight on it; the one with the head also the logits of one
    microbatch. A chip that is two stages holds the weights and gradients of both, and the optimizer states of half of each.
    """
    blocks = [(structure.counts[c.name], held(c, values[c.name])) for c in structure.blocks]
    embed = held(structure.embed, values[structure.embed.name])
    head = held(structure.head, values[structure.head.name])
    result: dict[str, list[Number]] = {}
    for part in ("weights", "gradients", "optimizer"):
        body = total(n * getattr(h, part) for n, h in blocks)
        result[part] = [
            s.of(body, getattr(embed, part), getattr(head, part)) * (s.copies if part != "optimizer" else 1.0)
            for s in stages
        ]
    gathered = maximum(*(h.at_use for _, h in blocks)) if len(blocks) > 1 else blocks[0][1].at_use
    # two blocks' weights at once: the one in use and the one being prefetched
    two = 2 * gathered
    result["gathered weights"] = [
        maximum(two, where(s.embed > 0, embed.at_use, 0.0), where(s.head > 0, head.at_use, 0.0)) for s in stages
    ]
    body = total(n * h.saved[policy] for n, h in blocks)
    result["saved activations"] = [
        body * s.share * s.flight + where(s.head > 0, head.saved[policy], 0.0) for s in stages
    ]
    inside = [h.working[policy] for _, h in blocks]
    block_peak = maximum(*inside) if len(inside) > 1 else inside[0]
    result["working set"] = [maximum(block_peak, where(s.head > 0, head.working[policy], 0.0)) for s in stages]
    totals = [total(column[i] for column in result.values()) for i in range(len(stages))]
    fullest = {part: column[0] for part, column in result.items()}
    most = totals[0]
    for i in range(1, len(stages)):
        fullest = {part: where(most >= totals[i], fullest[part], column[i]) for part, column in result.items()}
        most = maximum(most, totals[i])
    return {part: named(bytes, part, "B", note="on the fullest pipeline stage") for part, bytes in fullest.items()}
