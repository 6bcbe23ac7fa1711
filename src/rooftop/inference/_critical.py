"""Where one resource gives way to another: critical batches, limits of tensor parallelism, one and two dimensions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rooftop.arrays import Move, Program, resolve_program
from rooftop.costing import INNER_AXES, TENSOR, axis_bandwidth
from rooftop.formula import Number, formula, maximum, named, total
from rooftop.hardware import Slice
from rooftop.inference._evaluate import Scene
from rooftop.inference._layouts import Layout, layouts
from rooftop.inference._times import Evaluated
from rooftop.transformer import Builder


@formula("B_crit", "sequences", "book, section 7: where reading the weights takes as long as multiplying with them")
def critical_sequences(weight_seconds: Number, flops_seconds: Number) -> Number:
    """Batch from which matmuls with weights are bound by arithmetic: seconds of HBM over seconds of FLOPs of a sequence."""
    return weight_seconds / flops_seconds


@formula(
    "T_token", "s", "book, section 7: attention is bound by HBM; the rest is the slower of reading weights and FLOPs"
)
def token_seconds(
    batch: Number, kv_bytes: Number, weight_bytes: Number, parameters: Number, flops_rate: Number, bandwidth: Number
) -> Number:
    """The book's estimate of a generate step without communication: rates of all chips together, bytes of one cache."""
    return batch * kv_bytes / bandwidth + maximum(weight_bytes / bandwidth, 2 * batch * parameters / flops_rate)


@formula("FLOPs_per_USD", "FLOP/USD", "peak rate of an hour over its price")
def flops_per_usd(peak: Number, usd_per_hour: Number) -> Number:
    """FLOPs that a dollar buys at the peak rate."""
    return peak * 3600 / usd_per_hour


def weight_seconds(scene: Scene, part: str = "") -> Number:
    """Seconds to read all weights (of a part) out of HBM once, each chip its share; all experts."""
    return _weights_and_flops(scene, part)[0]


def critical_batch(scene: Scene, part: str = "") -> Number:
    """The critical batch of a configuration's matmuls with weights (of a part of the model), all experts in use."""
    return critical_sequences(*_weights_and_flops(scene, part))


def _weights_and_flops(scene: Scene, part: str) -> tuple[Number, Number]:
    p = scene.problem
    s = scene.structure(p.model, "generate", p.question.draft_tokens + 1, p.context)
    inner, _ = scene.environment(s)
    evaluated = Evaluated.of(s, 1.0, s.experts, inner)
    bytes: list[Number] = []
    flops: list[Number] = []
    for c in s.programs:
        n = s.counts.get(c.name, 0)
        if n:
            values = evaluated.values[c.name]
            bytes += [n * evaluated.sum(c, indices) for name, indices in c.read.items() if not part or name == part]
            flops += [
                n * total(values[i] for i in w.flops) / scene.rates.matmul(w.weight).peak
                for w in c.works
                if w.weight and (not part or w.part == part)
            ]
    return (
        named(total(bytes) / scene.rates.hbm, "T_weights", "s", note="weights out of HBM once"),
        named(total(flops), "T_sequence", "s", note="matmuls with weights for one sequence"),
    )


def binds_from(scene: Scene, resource: str, most: int = 2**20) -> int | None:
    """The smallest batch, up to `most`, from which a resource ("network", "compute", "host") bounds a generate step."""

    def leads(batches: Any) -> Any:
        resources = scene.generate(batches, detail=False).step.resources
        mine = [s for n, s in resources.items() if n.split()[0] == resource]
        others = [s for n, s in resources.items() if n.split()[0] != resource]
        lead = np.asarray(maximum(*mine, 0.0)) > np.asarray(maximum(*others, 0.0))
        return np.broadcast_to(lead, np.shape(batches))

    grid = np.unique(np.rint(np.geomspace(1, most, 161)))
    led = np.nonzero(leads(grid))[0]
    if not len(led):
        return None
    first = int(led[0])
    if first == 0:
        return 1
    inside = np.arange(grid[first - 1] + 1, grid[first] + 1)
    return int(inside[np.nonzero(leads(inside))[0][0]])


def tensor_limit(where: Slice, d_ff: int, batch: int, *, axes: int = 1, bits: int = 16) -> float:
    """Ways of tensor parallelism up to which reading the weights of an MLP takes longer than its communication.

    Below the critical batch, more ways read faster, and the all-reduce does not (book, section 7): over so many torus axes
    at F·W_ici/(B·W_hbm) ways in bf16.
    """
    moved, read = _mlp_seconds(where, d_ff, batch, {"tensor": 1.0}, {"tensor": axes}, bits)
    return float(read / moved)  # reading falls with the number of ways, communication does not


def two_dimensional_from(where: Slice, d_model: int, d_ff: int, *, axes: int = 3) -> float:
    """Chips from which an MLP that keeps its weights communicates less in two dimensions than in one (book, section 7).

    One dimension: tensor over all torus axes. Two: fsdp over one of them and tensor over the others, at the best split.
    Shares (n-1)/n are taken as 1, as in the book.
    """
    one, _ = _mlp_seconds(where, d_ff, 1, {"tensor": 1.0}, {"tensor": axes}, 16, d_model)

    def two(chips: float) -> float:
        split = np.geomspace(1, chips, 4001)
        mesh = {"fsdp": split, "tensor": chips / split}
        moved, _ = _mlp_seconds(where, d_ff, 1, mesh, {"fsdp": 1, "tensor": axes - 1}, 16, d_model)
        return float(np.min(moved))

    low, high = 1.0, 2.0**24
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if two(middle) > one else (low, middle)
    return high


def _mlp(d_model: int, d_ff: int) -> Program:
    """The book's two-matrix MLP; one token a sequence."""
    b = Builder({"T": 1, "D": d_model, "F": d_ff})
    x = b.input("x", "B", "T", "D", layout="residual")
    h = b.matmul("up", x, b.weight("w_up", "D", "F"), "h", ("F",), "mlp")
    b.einsum("down", (h, b.weight("w_down", "F", "D")), b.residual("x_out"), "mlp")
    return b.program("mlp")


_PASSES = {"all_gather": 1.0, "reduce_scatter": 1.0, "all_reduce": 2.0}


def _mlp_seconds(
    where: Slice, d_ff: int, batch: int, mesh: dict[str, Any], axes: dict[str, int], bits: int, d_model: int = 8192
) -> tuple[Any, Any]:
    """(communication, reading of weights) of the MLP under the stationary layout, by mesh axis over so many torus axes."""
    program = _mlp(d_model, d_ff)
    sizes = {"T": 128, "B": 128, "D": 1024, "F": 4096}
    resolved = resolve_program(
        program, layouts(Layout(), "generate"), sizes, dict.fromkeys(INNER_AXES, 2), forward_only=True
    )
    real = {"T": 1.0, "B": float(batch), "D": float(d_model), "F": float(d_ff)}
    inner = dict.fromkeys(INNER_AXES, 1.0) | {"fsdp": mesh.get("fsdp", 1.0), "tensor_kv": mesh["tensor"]}
    moved: Any = 0.0
    for step in resolved.forward:
        if isinstance(step, Move):
            c = step.collective
            axis = "tensor" if set(c.axes) <= set(TENSOR) else c.axes[0]
            if axis in axes:
                moved = moved + _PASSES[c.kind] * c.bytes(real, inner) / axis_bandwidth(where, axes[axis])
    weights = 2 * d_model * d_ff * bits / 8 / (inner["fsdp"] * inner["tensor_kv"])
    return moved, weights / where.chip.hbm_bandwidth
