"""Every training parallelism as sharding rules: which array axis lies over which mesh axis. There is nothing else.

| mesh axis | what it splits |
| --- | --- |
| data | the batch; weights and gradients are replicated over it, and optimizer states unless its own ZeRO stage is 1 |
| fsdp | the batch; and, by ZeRO stage, nothing else (0), optimizer states (1), gradients too (2), weights too (3) |
| tensor | heads, feed-forward and vocabulary; the sequence of the residual stream (sequence sharding) |
| tensor_transpose | of weights what tensor leaves whole, d_model; of activations what tensor splits, once more: with tensor a grid of two dimensions, in which sums go along one side and gathers along the other |
| context | the sequence everywhere; keys are passed around or gathered for attention, or tokens swapped for heads; a recurrence swaps it for channels or heads; states are split over it as over fsdp |
| expert | the batch outside of experts, the experts inside |
| pipeline | the layers |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rooftop.arrays import Rules
from rooftop.costing import BATCH, TENSOR, TRANSPOSE
from rooftop.training._choices import Choices

SHARDED = ("fsdp", "context")


@dataclass(frozen=True, slots=True)
class Layouts:
    """Sharding rules of a training step, and the mesh axes over which gradients stay unreduced until its end."""

    rules: Rules
    gradient_unreduced: tuple[str, ...]


def layouts(choices: Choices) -> Layouts:
    """The rules for a plan's choices: ZeRO stage 1, 2 or 3 on the fsdp axis (Rajbhandari et al., 2020, section 5); 0 replicates
    as data does. Optimizer states may be split over data as well, where fsdp splits more within it.
    """
    zero = choices.zero
    states = (*(SHARDED if zero else ()), *(("data",) if choices.outer_zero else ()))
    model: Mapping[str, tuple[str, ...]] = {
        "F": TENSOR, "Fs": TENSOR, "Fm": TENSOR, "K": ("tensor_kv",), "G": ("tensor_q",), "G2": TENSOR, "V": TENSOR, "E": ("expert",),
    }  # fmt: skip

    def split(over: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
        return {**model, "D": (*rows, *over)}

    # activations are split by both sides of the grid, and so are weights that have nothing else for its second side
    rows = TRANSPOSE if choices.grid else ()
    second = dict(zip(TENSOR, rows, strict=False))
    wide = {axis: (*ways, *(second[w] for w in ways if w in second)) for axis, ways in model.items()}

    # weights without D: experts that work in a projection (Le), matrices out of or into a low rank (Q, L, Lo),
    # and embeddings of tokens for each layer (Pl)
    def expert(over: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
        return {**split(over), "Le": over}

    def latent(over: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
        return {**wide, "Q": over, "L": over, "Lo": over, "Pl": over}

    weights = SHARDED if zero == 3 else ()
    gradients = SHARDED if zero >= 2 else ()
    inner = {**wide, "B": BATCH, "T": ("context",), "S": ("context",), "C": (*BATCH, "context")}
    return Layouts(
        rules={
            # around the attention kernel: heads instead of tokens, where context ways swap them (Jacobs et al., 2023)
            "heads": {**inner, "T": (), "S": (), "N": (), "K": (*wide["K"], "context")},
            "residual": {"B": BATCH, "T": ("context", *TENSOR, *rows)},
            "inner": inner,
            # around a recurrence the sequence is whole, and its channels or heads (or heads of a group) are split instead
            "scan": {**inner, "T": (), "Fm": (*wide["Fm"], "context"), "K": (*wide["K"], "context")},
            "scan_groups": {**inner, "T": (), "G": (*wide["G"], "context"), "G2": (*wide["G2"], "context")},
            # tokens on their way to experts and back, and inside of them
            "slots": {"E": ("expert",), "C": ("data", "fsdp", "context", *TENSOR, *rows)},
            "expert": {"E": ("expert",), "C": ("data", "fsdp", "context"), "F": wide["F"]},
            "weight": split(weights),
            "weight_use": split(()),
            "gradient": split(gradients),
            "optimizer": split(states),
            "expert_weight": expert(weights),
            "expert_gradient": expert(gradients),
            "expert_optimizer": expert(states),
            "latent_weight": latent(weights),
            "latent_weight_use": wide,
            "latent_gradient": latent(gradients),
            "latent_optimizer": latent(states),
        },
        # ZeRO-1 adds up whole gradients locally and reduces once a step; data parallelism always does
        gradient_unreduced=("data", "expert") if zero >= 2 else ("data", "expert", *SHARDED),
    )
