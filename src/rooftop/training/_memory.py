"""Memory of a training step per chip, by live ranges: what must be there at the worst moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rooftop.formula import Number, formula, maximum, minimum, named, total, where
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


@formula("in_flight", "microbatches", "1F1B holds at most p microbatches on the first stage (Narayanan et al., 2021)")
def in_flight(microbatches: Number, stages: Number) -> Number:
    """Microbatches whose activations the first stage holds at once."""
    return minimum(microbatches, stages)


def memory_parts(
    structure: Structure,
    values: Mapping[str, list[Number]],
    policy: str,
    stage_blocks: Mapping[str, Number],
    microbatches: Number,
    stages: Number,
) -> dict[str, Number]:
    """Bytes per chip by part on the fullest stage.

    The first stage holds the embedding and, in flight, the activations of `stages` microbatches; the last one the head,
    the logits and one microbatch. A step on one stage holds everything.
    """
    single = stages == 1
    blocks = [(c, held(c, values[c.name]), stage_blocks[c.name]) for c in structure.blocks]
    embed = held(structure.embed, values[structure.embed.name])
    head = held(structure.head, values[structure.head.name])

    def split(first: Number, last: Number) -> tuple[Number, Number]:
        return where(single, first + last, first), where(single, first + last, last)

    result: dict[str, list[Number]] = {}
    for part in ("weights", "gradients", "optimizer"):
        body = total(getattr(h, part) * n for _, h, n in blocks)
        first, last = split(getattr(embed, part), getattr(head, part))
        result[part] = [body + first, body + last]
    gathered = maximum(*(h.at_use for _, h, _ in blocks)) if len(blocks) > 1 else blocks[0][1].at_use
    # two blocks' weights at once: the one in use and the one being prefetched
    two = 2 * gathered
    result["gathered weights"] = [maximum(two, embed.at_use), maximum(two, head.at_use)]
    body = total(h.saved[policy] * n for _, h, n in blocks)
    many = in_flight(microbatches, stages)
    result["saved activations"] = [
        body * many + where(single, head.saved[policy], 0.0),
        body + head.saved[policy],
    ]
    inside = [h.working[policy] for _, h, _ in blocks]
    block_peak = maximum(*inside) if len(inside) > 1 else inside[0]
    head_peak = head.working[policy]
    result["working set"] = [
        where(single, maximum(block_peak, head_peak), block_peak),
        maximum(block_peak, head_peak),
    ]
    first_total = total(column[0] for column in result.values())
    last_total = total(column[1] for column in result.values())
    fuller = first_total >= last_total
    return {
        part: named(where(fuller, column[0], column[1]), part, "B", note="on the fullest pipeline stage")
        for part, column in result.items()
    }
