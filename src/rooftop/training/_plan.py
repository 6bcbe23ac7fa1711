"""A plan, the problem that it solves, and the environment in which its formulas are evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from rooftop.formula import Number, where
from rooftop.hardware import Slice, peak
from rooftop.roofline import Calibration, Dimension, Group, Placement, dimensions, group
from rooftop.training._estimate import Rates
from rooftop.training._layouts import MESH_AXES
from rooftop.training._recipe import Recipe

#: Mesh axes that share a network dimension, innermost first: those that communicate most often get the closest chips.
PLACEMENT_ORDER = ("tensor", "context", "expert", "fsdp", "data", "pipeline")


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to train: a mesh with its place on the network, and a schedule.

    mesh: ways by mesh axis. factors: for each dimension of the slice's network, ways by mesh axis (their product is the
    part of the dimension that is used). microbatches: per step. sequences: in one microbatch of one data-parallel group.
    """

    mesh: Mapping[str, int]
    factors: tuple[Mapping[str, int], ...]
    microbatches: int
    sequences: int
    remat: str = "none"
    zero: int = 3

    @property
    def chips(self) -> int:
        """Chips used."""
        result = 1
        for ways in self.mesh.values():
            result *= ways
        return result

    @property
    def groups(self) -> int:
        """Groups of chips that see different sequences."""
        return self.mesh.get("data", 1) * self.mesh.get("fsdp", 1) * self.mesh.get("expert", 1)

    @property
    def batch_sequences(self) -> int:
        """Sequences in a step."""
        return self.groups * self.microbatches * self.sequences


@dataclass(frozen=True, slots=True)
class Problem:
    """What to train, on what, and the rules of the search."""

    model: Any  # transformer.Architecture
    slice: Slice
    seq: int
    batch_tokens: float
    batch_within: float
    recipe: Recipe
    calibration: Calibration
    headroom: float = 0.0  # part of HBM that must stay free

    @property
    def capacity(self) -> float:
        """Bytes of HBM that a plan may use on each chip."""
        return self.slice.chip.hbm_bytes * (1 - self.headroom)

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The dimensions of the network, innermost first."""
        return dimensions(self.slice.levels)


def rates_of(problem: Problem) -> Rates:
    """Peak and achieved rates of the problem's chip for the recipe's dtype."""
    chip, calibration = problem.slice.chip, problem.calibration
    top = peak(chip, problem.recipe.compute)
    return Rates(
        peak=top,
        hbm=chip.hbm_bandwidth,
        vector=chip.vector_flops,
        matmul_expected=top * calibration.matmul,
        attention_expected=top * calibration.attention,
        hbm_expected=chip.hbm_bandwidth * calibration.hbm,
        vector_expected=chip.vector_flops * calibration.vector,
        op_overhead=calibration.op_overhead,
        tile=chip.tile,
    )


def inner_mesh(mesh: Mapping[str, Number], kv_heads: int) -> dict[str, Number]:
    """The mesh as the sharding algebra sees it: tensor ways split into those over KV heads and those within a group."""
    tensor = mesh.get("tensor", 1)
    if isinstance(tensor, int):
        kv: Number = gcd(tensor, kv_heads)
    else:
        kv = common_divisor(tensor, kv_heads)
    result = {axis: mesh.get(axis, 1) for axis in MESH_AXES if axis != "tensor"}
    return {**result, "tensor_kv": kv, "tensor_q": tensor / kv}


def common_divisor(tensor: Number, kv_heads: int) -> Number:
    """gcd in whatever arithmetic `tensor` has."""
    if hasattr(tensor, "value"):
        return type(tensor)(float(gcd(int(tensor.value), kv_heads)), name="gcd(tensor, K)")
    import numpy as np

    return np.gcd(np.asarray(tensor, dtype=np.int64), kv_heads)


def environment(
    mesh: Mapping[str, Number], sequences: Number, kv_heads: int, axes: Mapping[str, int]
) -> tuple[dict[str, Number], dict[str, Number]]:
    """(sizes of array axes, sizes of inner mesh axes) of one microbatch; B counts sequences over all groups."""
    inner = inner_mesh(mesh, kv_heads)
    return {**axes, "B": sequences * inner["data"] * inner["fsdp"] * inner["expert"]}, inner


def links_of(
    placement: Placement, inner: Mapping[str, Number], groups: Sequence[tuple[str, ...]], calibration: Calibration
) -> dict[tuple[str, ...], tuple[Group, Group]]:
    """For each group of inner mesh axes: what it can do by physics, and as calibrated."""
    result = {}
    for axes in groups:
        whole = [("tensor" if a.startswith("tensor_") else a) for a in axes]
        outer = list(dict.fromkeys(whole))
        pair = (group(placement, outer), group(placement, outer, calibration))
        part = {a for a in axes if a.startswith("tensor_")}
        if len(part) == 1:
            others = inner["tensor_kv"] if "tensor_q" in part else inner["tensor_q"]
            pair = (part_of(pair[0], others), part_of(pair[1], others))
        result[axes] = pair
    return result


def part_of(whole: Group, others: Number) -> Group:
    """A group that leaves out `others` ways of a mesh axis: the same links, a smaller share to move."""
    n = whole.size / others
    share = (1 - 1 / n) / where(whole.size > 1, 1 - 1 / whole.size, 1.0)
    some = where(n > 1, 1.0, 0.0)
    return replace(
        whole,
        size=n,
        gather_rate=whole.gather_rate * share,
        all_reduce_rate=whole.all_reduce_rate * share,
        all_to_all_rate=whole.all_to_all_rate * share,
        gather_latency=whole.gather_latency * some,
        all_reduce_latency=whole.all_reduce_latency * some,
    )
