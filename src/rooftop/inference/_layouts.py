"""Every way to split a served model as sharding rules: which array axis lies over which mesh axis. There is nothing else.

| mesh axis | what it splits |
| --- | --- |
| data | the batch; weights are replicated over it |
| fsdp | weights along d_model. `stationary`: activations move to them (with tensor: 2D). `gathered`: weights are gathered for each layer, and the batch is split |
| tensor | heads, feed-forward and vocabulary (1D); weights stay, activations are summed |
| context | the sequence: keys and values of the cache, positions of a prompt; weights are replicated over it |
| expert | the batch outside of experts, the experts inside |

The cache is split by KV heads over tensor and by sequences over stationary fsdp ways, and more tensor ways than KV heads
repeat them (`heads`); or it is split along the sequence over all ways that KV heads do not take (`sequence`).
Tensor ways split every expert along its width (`width`), or share the experts out (`whole`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rooftop.arrays import Rules
from rooftop.costing import TENSOR

#: The mesh axes of serving; the order of a mesh.
SERVING_AXES = ("data", "fsdp", "tensor", "context", "expert")
WEIGHTS = ("stationary", "gathered")
CACHES = ("heads", "sequence")
EXPERTS = ("width", "whole")


@dataclass(frozen=True, slots=True)
class Layout:
    """A row of the table above: how fsdp treats weights, how the cache is split, and experts over tensor."""

    weights: str = "stationary"
    cache: str = "heads"
    experts: str = "width"

    @property
    def groups(self) -> tuple[str, ...]:
        """Mesh axes whose groups of chips see different sequences."""
        return ("data", "fsdp", "expert") if self.weights == "gathered" else ("data", "expert")

    @property
    def spread(self) -> tuple[str, ...]:
        """Mesh axes over which the sequences of a generate step are split while their caches are read."""
        return self.groups if self.weights == "gathered" or self.cache == "sequence" else (*self.groups, "fsdp")


def layouts(layout: Layout, phase: str, *, latent: bool = False, positions: tuple[str, ...] = ("S",)) -> Rules:
    """The rules of a phase, "generate" or "prefill". latent: caches have no KV heads, so that all tensor ways are spare.
    positions: axes that count positions of the cache, or entries that stand for several.

    Two-dimensional weight-stationary sharding and batch-split attention: Pope et al., 2022, sections 3.2 and 3.3; the book,
    section 7, has both.
    """
    gathered = layout.weights == "gathered"
    model: Mapping[str, tuple[str, ...]] = {
        "F": TENSOR, "Fs": TENSOR, "Fm": TENSOR, "K": ("tensor_kv",), "G": ("tensor_q",), "G2": TENSOR, "V": TENSOR, "E": ("expert",),
    }  # fmt: skip
    rows = ("fsdp",)
    stored = {**model, "D": rows}
    latent_stored = {**model, "Q": rows, "L": rows, "Lo": rows, "Pl": rows}
    expert_stored = {**stored, "Le": rows}
    homes: tuple[str, ...] = ("expert",)
    inside: tuple[str, ...] = TENSOR  # what splits the width of an expert
    if layout.experts == "whole":
        homes, inside = (*TENSOR, "expert"), ()
        expert_stored |= {"E": homes, "F": ()}
    expert_model = {**model, "E": homes, "F": inside}
    spare: tuple[str, ...] = ()
    if layout.cache == "sequence":
        spare = (*(() if gathered else rows), *(TENSOR if latent else ("tensor_q",)))
    groups = layout.groups
    if phase == "generate":
        along: tuple[str, ...] = ("context", *spare)
        # where the cache is split along the sequence, every part of it meets all queries
        inner = {**model, "B": layout.spread, **dict.fromkeys(positions, along)}
        inner |= {axis: tuple(m for m in model[axis] if m not in spare) for axis in ("K", "G")}
        cache = {"B": layout.spread, "K": ("tensor_kv",), **dict.fromkeys(positions, along)}
        residual: dict[str, tuple[str, ...]] = {"B": groups} if gathered else {"B": groups, "D": rows}
        scan, scan_groups = inner, inner
        slots: dict[str, tuple[str, ...]] = {"E": homes, "C": layout.groups}
        experts = {**slots, "F": inside}
    else:
        along = ("context",) if gathered else ("context", "fsdp")
        inner = {**model, "B": groups, "T": along, "S": along}
        # a recurrence has the sequence whole
        scan = {**inner, "T": (), "Fm": (*TENSOR, *along), "K": ("tensor_kv", *along)}
        scan_groups = {**inner, "T": (), "G": ("tensor_q", *along), "G2": (*TENSOR, *along)}
        cache = {"B": groups, "K": ("tensor_kv",), **dict.fromkeys(positions, along)}
        residual = (
            {"B": groups, "T": ("context", *TENSOR)}
            if gathered
            else {"B": groups, "T": ("context", *TENSOR), "D": rows}
        )
        among = (*(g for g in groups if g != "expert"), "context")
        slots = {"E": homes, "C": (*among, *(t for t in TENSOR if t not in homes))}
        experts = {"E": homes, "C": among, "F": inside}
    rules: dict[str, Mapping[str, tuple[str, ...]]] = {
        "residual": residual, "inner": inner, "cache": cache, "slots": slots, "expert": experts,
        "scan": scan, "scan_groups": scan_groups,
        "weight": stored, "latent_weight": latent_stored, "expert_weight": expert_stored,
    }  # fmt: skip
    if gathered:
        rules |= {"weight_use": model, "latent_weight_use": model, "expert_weight_use": expert_model}
    return rules
