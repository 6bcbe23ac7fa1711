"""Pipeline schedules: how layers lie on stages, how long a step takes, how many microbatches a stage holds.

| schedule | bubble of equal stages | microbatches held by the first stage | source |
| --- | --- | --- | --- |
| gpipe | (p-1)·(F+B) | m | Huang et al., 2019, section 2.3 |
| 1f1b | (p-1)·(F+B) | p | Narayanan et al., 2021, section 2.2 |
| 1f1b, v chunks | (p-1)·(F+B)/v | p·(1 + (p-1)/(p·v)) | Narayanan et al., 2021, section 2.2; Korthikanti et al., 2022, section 4.2.3 |
| zb-h1 | (p-1)·(F+B-2W) | p | Qi et al., 2023, table 2 |
| zb-h2 | (p-1)·(F+B-3W) | 2p-1 | Qi et al., 2023, table 2 |
| dualpipe | (p/2-1)·(F&B+B-3W) | p+1, and weights twice | DeepSeek-V3 report, 2024, table 2 |

F and B are the forward and the whole backward pass of a microbatch on a stage, W the part of B that makes the gradients of weights,
F&B both passes of two microbatches beside each other, p the stages and m the microbatches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rooftop.formula import Number, ceil, formula, maximum, minimum, where
from rooftop.training._choices import Choices

#: How often the gradients of weights of a stage fit into the bubble.
FILLED = {"zb-h1": 2.0, "zb-h2": 3.0}


@dataclass(frozen=True, slots=True)
class Stage:
    """What a microbatch meets on one kind of pipeline stage: a share of all layers, embedding and head (0 or 1; halves where it
    meets one of two). flight: microbatches whose activations are held at once; copies: stages that a chip is.
    """

    share: Number
    embed: Number
    head: Number
    flight: Number
    copies: float = 1.0

    def of(self, blocks: Number, embed: Number, head: Number) -> Number:
        """A quantity of a microbatch on this stage, from that of all layers, of the embedding and of the head."""
        return _times(self.share, blocks) + _times(self.embed, embed) + _times(self.head, head)


def _times(share: Number, quantity: Number) -> Number:
    """share · quantity, without a trace of what is whole or absent."""
    if isinstance(share, float) and share in (0.0, 1.0):
        return quantity if share else 0.0
    return share * quantity


@dataclass(frozen=True, slots=True)
class Split:
    """How layers lie on pipeline stages: `full` on every one, fewer on the first and on the last."""

    layers: Number
    stages: Number
    first: Number
    full: Number
    last: Number


def split_of(layers: int, stages: Number, chosen: Choices) -> Split:
    """ceil((layers + those that embedding and head count as) / stages) on every stage; the last one has what is left."""
    full = ceil((layers + chosen.embed_layers + chosen.head_layers) / stages)
    first = full - chosen.embed_layers
    return Split(layers, stages, first, full, layers - first - full * (stages - 2))


@formula("layers_share", "", note="a stage's part of all layers")
def share_of(layers: Number, of: Number) -> Number:
    """A number of layers as a part of all."""
    return layers / of


def stages_of(layers: int, stages: Number, microbatches: Number, chosen: Choices) -> tuple[Stage, ...]:
    """The kinds of stages, of which one is the slowest and one the fullest. One stage alone holds everything."""
    split = split_of(layers, stages, chosen)
    single = stages == 1
    if single is True:
        return (Stage(1.0, 1.0, 1.0, 1.0),)
    one, none = where(single, 1.0, 0.0), where(single, 0.0, 1.0)

    def flight(after: Number) -> Number:
        return where(single, 1.0, in_flight(chosen, microbatches, stages, after))

    if chosen.schedule == "dualpipe":
        # a chip is stage s from the one end and stage p - 1 - s from the other; a microbatch meets one of the two
        ends = share_of(split.first + split.last, split.layers) / 2
        inner = where(stages > 2, share_of(split.full, split.layers), 0.0)
        held = flight(0)
        return (
            Stage(where(single, 1.0, ends), 0.5 * none + one, 0.5 * none + one, held, 2.0),
            Stage(inner, 0.0, 0.0, held, 2.0),
        )
    first = Stage(where(single, 1.0, share_of(split.first, split.layers)), 1.0, one, flight(stages - 1))
    last = Stage(where(single, 1.0, share_of(split.last, split.layers)), one, 1.0, flight(0))
    if not chosen.embed_layers:
        return first, last  # no stage between them holds more than the first one
    second = Stage(where(stages > 2, share_of(split.full, split.layers), 0.0), 0.0, 0.0, flight(stages - 2))
    return first, second, last


@formula("in_flight", "microbatches", "see the table of schedules: at most so many, and no more than there are")
def in_flight(chosen: Choices, microbatches: Number, stages: Number, after: Number) -> Number:
    """Microbatches whose activations a stage holds at once; after: how many stages come after it."""
    v = chosen.chunks
    most = {
        "gpipe": microbatches,
        "1f1b": after + 1 if v == 1 else (2 * after + (v - 1) * stages + 1) / v,
        "zb-h1": stages,
        "zb-h2": 2 * stages - 1,
        "dualpipe": stages + 1,
    }
    return minimum(microbatches, most[chosen.schedule])


def rules(chosen: Choices, layers: int, ways: Mapping[str, Any], microbatches: Any) -> Iterator[tuple[Any, str]]:
    """(whether it holds, what it is) of every rule that a pipeline must keep; ways and microbatches may be arrays."""
    p = ways["pipeline"]
    single = p == 1
    split = split_of(layers, p, chosen)
    yield (
        single | ((split.last >= (0 if chosen.head_layers else 1)) & (split.first >= 0)),
        "every stage needs a layer (the first and the last one may have none if embedding and head count as layers)",
    )
    if chosen.chunks > 1:
        slots = layers + chosen.embed_layers + chosen.head_layers
        yield chosen.schedule == "1f1b", "only 1f1b interleaves chunks"
        yield (
            single | (slots % (p * chosen.chunks) == 0),
            "interleaved chunks must be equal: stages times chunks must divide the layers",
        )
        yield (
            single | (microbatches % p == 0),
            "interleaved chunks need a number of microbatches that the stages divide",
        )
    if chosen.schedule == "dualpipe":
        yield (
            single | ((p % 2 == 0) & (microbatches % 2 == 0)),
            "dualpipe needs even numbers of stages and of microbatches",
        )
        yield single | (microbatches >= 2 * p), "dualpipe needs at least two microbatches for each stage"


def holds(pairs: Iterable[tuple[Any, str]]) -> Any:
    """Whether all rules hold."""
    result: Any = True
    for ok, _ in pairs:
        result = result & ok
    return result


@formula("T_step", "s", "Narayanan et al., 2021, section 2.2: m microbatches through p stages of v chunks")
def interleaved_seconds(
    microbatches: Number, slowest_stage: Number, all_stages: Number, ends: Number, chunks: float
) -> Number:
    """A step of GPipe, 1F1B (one chunk) or interleaved 1F1B: the slowest stage works through all microbatches, and waits while one
    chunk passes all other stages.

    With p equal stages of t seconds this is (m + (p - 1)/v)·t + ends: a bubble of (p - 1)/(v·m).
    """
    return (microbatches - 1 / chunks) * slowest_stage + all_stages / chunks + ends


@formula(
    "T_step", "s", "Qi et al., 2023 (Zero Bubble Pipeline Parallelism), table 2: gradients of weights fill the bubble"
)
def zero_bubble_seconds(
    microbatches: Number, slowest_stage: Number, all_stages: Number, ends: Number, stages: Number,
    weights: Number, filled: float,
) -> Number:  # fmt: skip
    """As 1F1B, with `filled` times the gradients of weights of all other stages (`weights` s in all layers) in the bubble."""
    rest = all_stages - filled * weights * (1 - 1 / stages)
    return (microbatches - 1) * slowest_stage + maximum(slowest_stage, rest) + ends


@formula("T_step", "s", "DeepSeek-V3 report, 2024, table 2: bubble of (p/2 - 1)·(F&B + B - 3W)")
def dualpipe_seconds(
    microbatches: Number, slowest_stage: Number, all_stages: Number, ends: Number, stages: Number,
    weights: Number, backward: Number,
) -> Number:  # fmt: skip
    """slowest and all stages with both passes beside each other; backward alone and gradients of weights of all layers, in s."""
    bubble = (stages / 2 - 1) / stages * (all_stages + backward - 3 * weights)
    return microbatches * slowest_stage + where(stages == 1, 0.0, maximum(0.0, bubble)) + ends


@formula("T_bound", "s", "book, section 1: no resource can do its work in less; 1F1B adds its bubble")
def bound_seconds(
    microbatches: Number, slowest_stage: Number, all_stages: Number, ends: Number, waits: float
) -> Number:
    """The slowest stage's share of one resource that is never kept waiting, and the part of the other stages' work that no
    schedule of this kind can fill: all with 1f1b, one chunk of v if interleaved, none where gradients of weights may fill it.
    """
    return (microbatches - waits) * slowest_stage + waits * all_stages + ends
