"""Critical batches and best splits of the book's two-matrix MLP, from the collectives that its shardings force.

In[B, D] x W_in[D, F] x W_out[F, D]: the book (section 5) takes these for the whole Transformer. The program is resolved under
the layouts of a strategy, and its collectives are weighed against its matmuls. Nothing below has a formula for any strategy.
Sizes are those of whole arrays, as in the book: the share (n-1)/n is taken as 1, its limit for many chips.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from rooftop.arrays import Array, Move, Op, Program, Rules, Size, resolve_program
from rooftop.errors import InputError, nearest
from rooftop.formula import Number, formula, total
from rooftop.hardware import Chip, Slice, Torus, peak
from rooftop.training._solve import lowest, root

STRATEGIES = ("dp", "fsdp", "tp", "fsdp_tp")

#: Bytes through the links for each byte of a collective's array: an all-reduce is a reduce-scatter and an all-gather.
_PASSES = {"all_gather": 1.0, "reduce_scatter": 1.0, "all_reduce": 2.0}


def two_matrix_mlp() -> Program:
    """The MLP; B counts tokens."""
    inner = "inner"
    return Program(
        "mlp",
        {"D": 1024, "F": 4096},
        (
            Array("x", ("B", "D"), "bf16", "input", "residual"),
            Array("w_in", ("D", "F"), "bf16", "weight", "w_in"),
            Array("h", ("B", "F"), "bf16", "activation", inner),
            Array("w_out", ("F", "D"), "bf16", "weight", "w_out"),
            Array("x_out", ("B", "D"), "bf16", "activation", "residual"),
        ),
        (
            Op("in", "einsum", ("x", "w_in"), "h", part="mlp"),
            Op("out", "einsum", ("h", "w_out"), "x_out", part="mlp"),
        ),
    )


def rules_of(strategy: str) -> Rules:
    """The book's shardings (section 5): X splits the batch, Y the feed-forward axis."""
    x: tuple[str, ...] = ("X",) if strategy in ("dp", "fsdp", "fsdp_tp") else ()
    y: tuple[str, ...] = ("Y",) if strategy in ("tp", "fsdp_tp") else ()
    stored: tuple[str, ...] = ("X",) if strategy in ("fsdp", "fsdp_tp") else ()
    weight = {"D": stored, "F": y}
    use: dict[str, tuple[str, ...]] = {"D": (), "F": y}
    return {
        "residual": {"B": x, "D": y},
        "inner": {"B": x, "F": y},
        "w_in": weight, "w_out": weight, "weight_use": use, "gradient": weight, "optimizer": weight,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a strategy communicates and computes per layer: bytes of collectives by pass and mesh axis, FLOPs of a chip."""

    bytes: Mapping[str, Mapping[str, tuple[Size, ...]]]
    flops: Mapping[str, tuple[Size, ...]]


@functools.cache
def traffic(strategy: str) -> Traffic:
    """Resolve the MLP under a strategy: dp, fsdp, tp or fsdp_tp."""
    if strategy not in STRATEGIES:
        raise InputError(
            f"unknown strategy {strategy!r}{nearest(strategy, STRATEGIES)}; use one of {', '.join(STRATEGIES)}",
            field="strategy",
        )
    resolved = resolve_program(
        two_matrix_mlp(), rules_of(strategy), {"B": 2**20, "D": 1024, "F": 4096}, {"X": 4, "Y": 4}
    )
    bytes: dict[str, dict[str, list[Size]]] = {}
    flops: dict[str, list[Size]] = {}
    for phase, steps in (("forward", resolved.forward), ("backward", resolved.backward)):
        for step in steps:
            if isinstance(step, Move):
                by_axis = bytes.setdefault(phase, {})
                axis = "".join(step.collective.axes)
                by_axis.setdefault(axis, []).append(step.collective.bytes * _PASSES[step.collective.kind])
            elif step.flops is not None:
                flops.setdefault(phase, []).append(step.flops)
    return Traffic(
        {p: {a: tuple(s) for a, s in t.items()} for p, t in bytes.items()}, {p: tuple(s) for p, s in flops.items()}
    )


def communicated_bytes(strategy: str, phase: str, sizes: Mapping[str, Number], mesh: Mapping[str, Number]) -> Number:
    """Bytes that collectives of a pass move per layer; an all-reduce counts twice. Takes numbers, arrays, symbols."""
    return total(s(sizes, mesh) for by in traffic(strategy).bytes.get(phase, {}).values() for s in by)


@formula("alpha", "FLOP/byte", "book, section 5: alpha = C / W_ici")
def network_intensity(peak_flops: Number, bandwidth: Number) -> Number:
    """FLOPs that a chip does while one byte crosses its links; with one axis also the tokens per chip of DP and FSDP."""
    return peak_flops / bandwidth


def times(
    strategy: str, tokens: Number, d_model: Number, d_ff: Number, mesh: Mapping[str, Number], chip: Chip,
    bandwidths: Mapping[str, Number], *, phase: str = "forward", dtype: str = "bf16",
) -> tuple[Number, Number]:  # fmt: skip
    """(seconds of matmuls, seconds of communication) of a layer; X and Y traffic do not overlap each other (section 5)."""
    sizes = {"B": tokens, "D": d_model, "F": d_ff}
    t = traffic(strategy)
    work = total(s(sizes, mesh) for s in t.flops[phase]) / peak(chip, dtype)
    moved = total(total(s(sizes, mesh) for s in by) / bandwidths[axis] for axis, by in t.bytes.get(phase, {}).items())
    return work, moved


def critical_batch(
    strategy: str, chip: Chip, bandwidths: Mapping[str, float], *, chips: int = 4096, d_model: int = 8192, d_ff: int = 32768,
    phase: str = "forward",
) -> float:  # fmt: skip
    """Tokens per chip from which the matmuls of a layer take longer than its communication.

    bandwidths: bytes/s of X and of Y. fsdp_tp takes the best split of the chips at each batch (book, section 5).
    """

    def surplus(tokens: float) -> float:
        mesh = {"X": float(chips), "Y": 1.0}
        if strategy == "fsdp_tp":
            x = best_split(tokens, d_model, d_ff, chips, bandwidths)
            mesh = {"X": x, "Y": chips / x}
        work, moved = times(strategy, tokens, d_model, d_ff, mesh, chip, bandwidths, phase=phase)
        return float(work - moved)

    return root(surplus, 1.0, 2.0**60) / chips


def tensor_limit(chip: Chip, bandwidth: float, d_ff: int, *, d_model: int = 8192, tokens: int = 2**20) -> float:
    """Ways of tensor parallelism up to which the matmuls of a layer take longer than its communication; any batch."""

    def surplus(ways: float) -> float:
        mesh = {"X": 1.0, "Y": 1 / ways}  # rises with its argument
        work, moved = times("tp", tokens, d_model, d_ff, mesh, chip, {"Y": bandwidth})
        return float(work - moved)

    return 1 / root(surplus, 1e-9, 1e3)


def best_split(tokens: float, d_model: int, d_ff: int, chips: int, bandwidths: Mapping[str, float]) -> float:
    """FSDP ways X (of `chips`, the rest tensor) that communicate least, as a real number (book, section 5)."""
    sizes = {"B": tokens, "D": d_model, "F": d_ff}

    def seconds(log_x: float) -> float:
        x = math.exp(log_x)
        mesh = {"X": x, "Y": chips / x}
        by_axis = traffic("fsdp_tp").bytes["forward"]
        return float(total(total(s(sizes, mesh) for s in by) / bandwidths[axis] for axis, by in by_axis.items()))

    # the sum of a rising and a falling exponential in log X: one minimum
    return math.exp(lowest(seconds, math.log(1e-3), math.log(chips * 1e3)))


def slice_critical_batch(where: Slice, *, d_model: int = 8192, d_ff: int = 32768) -> float:
    """Tokens per slice above which data parallelism between slices hides under the backward pass (book, section 5).

    Every chip reduces its own part of the gradients with its peers in the other slices.
    """
    outer = where.levels[-1]
    if isinstance(outer, Torus) or len(where.levels) < 2:
        raise InputError(f"{where.name} is one slice; ask about several, such as {where.name}*2", field="on")
    chips = where.chips // outer.size

    def surplus(tokens: float) -> float:
        # within a slice the weights are split over its chips, between slices X is data parallelism
        work, moved = times(
            "dp", tokens, d_model, d_ff, {"X": 1.0, "Y": 1.0}, where.chip, {"X": outer.bandwidth}, phase="backward"
        )
        return float(work - moved) / chips

    return root(surplus, 1.0, 2.0**60)
