"""Every training parallelism as sharding rules: which array axis lies over which mesh axis. There is nothing else.

| mesh axis | what it splits |
| --- | --- |
| data | the batch; weights and gradients are replicated over it, and optimizer states unless its own ZeRO stage is 1 |
| fsdp | the batch; and, by ZeRO stage, nothing else (0), optimizer states (1), gradients too (2), weights too (3) |
| tensor | heads, feed-forward and vocabulary; the sequence of the residual stream (sequence sharding) |
| tensor_transpose | of weights what tensor leaves whole, d_model; of activations what tensor splits, once more: with tensor a grid of two dimensions, in which sums go along one side and gathers along the other |
| context | the sequence everywhere; keys are passed around or gathered for attention, or tokens swapped for heads; a recurrence swaps it for channels or heads; states are split over it as over fsdp |
| expert | the batch outside of experts, the experts inside; beside it tensor and context may lie over whole experts; where asked, all else as over fsdp |
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
    zero, outer = choices.zero, ("data",) if choices.outer_zero else ()
    dense = (*SHARDED, "expert") if choices.expert_zero else SHARDED
    fold = choices.expert_fold.split(",")
    # whole experts on the chips of a tensor or of a context group (expert-tensor folding: Liu et al., 2025)
    homes = ("expert", *(TENSOR if "tensor" in fold else ()), *(("context",) if "context" in fold else ()))
    among = ("data", "fsdp", *(() if "context" in fold else ("context",)))
    rest = () if "tensor" in fold else TENSOR
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
        over = tuple(o for o in over if o not in homes)
        return {**split(over), "Le": over, "E": homes, "F": rest}

    def latent(over: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
        return {**wide, "Q": over, "L": over, "Lo": over, "Pl": over}

    def at(least: int, over: tuple[str, ...], more: tuple[str, ...] = ()) -> tuple[str, ...]:
        return (*(over if zero >= least else ()), *more)

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
            "slots": {"E": homes, "C": (*among, *rest, *rows)},
            "expert": {"E": homes, "C": among, "F": (*rest, *rows)},
            "weight": split(at(3, dense)),
            "weight_use": split(()),
            "gradient": split(at(2, dense)),
            "optimizer": split(at(1, dense, outer)),
            "expert_weight": expert(at(3, SHARDED)),
            "expert_weight_use": expert(()),
            "expert_gradient": expert(at(2, SHARDED)),
            "expert_optimizer": expert(at(1, SHARDED, outer)),
            "latent_weight": latent(at(3, dense)),
            "latent_weight_use": wide,
            "latent_gradient": latent(at(2, dense)),
            "latent_optimizer": latent(at(1, dense, outer)),
        },
        # ZeRO-1 adds up whole gradients locally and reduces once a step; data parallelism always does
        gradient_unreduced=("data", "expert") if zero >= 2 else ("data", "expert", *SHARDED),
    )
