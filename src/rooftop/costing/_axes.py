"""Mesh axes: as users name them, as the sharding algebra sees them, and what a group of chips along them can do.

`tensor` is two mesh axes inside: `tensor_kv` splits KV heads, `tensor_q` the query heads that share one KV head, so that
more tensor ways than KV heads means what it does in practice: KV heads are repeated. So is `tensor_transpose`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd

from rooftop.errors import InputError
from rooftop.formula import Number, where
from rooftop.hardware import Slice, Torus
from rooftop.roofline import Calibration, Group, Placement, group

#: The mesh axes as users name them.
MESH_AXES = ("data", "fsdp", "tensor", "tensor_transpose", "context", "expert", "pipeline")
#: The same as the sharding algebra sees them.
INNER_AXES = ("data", "fsdp", "tensor_kv", "tensor_q", "transpose_kv", "transpose_q", "context", "expert", "pipeline")
#: Mesh axes that share a network dimension, innermost first: those that communicate most often get the closest chips.
PLACEMENT_ORDER = ("tensor", "tensor_transpose", "context", "expert", "fsdp", "data", "pipeline")

#: Mesh axes that a search leaves at one way unless it is told to try them.
ASKED_AXES = ("tensor_transpose",)

TENSOR = ("tensor_kv", "tensor_q")
TRANSPOSE = ("transpose_kv", "transpose_q")
_PARTS = {"tensor": TENSOR, "tensor_transpose": TRANSPOSE}
_OUTER = {part: outer for outer, parts in _PARTS.items() for part in parts}
#: Mesh axes whose groups of chips see different sequences.
BATCH = ("data", "fsdp", "expert")

#: Mesh axes -> what their group can do: (by physics, as calibrated).
Links = Mapping[tuple[str, ...], tuple[Group, Group]]


def outer_axes(axes: Sequence[str]) -> tuple[str, ...]:
    """Inner mesh axes as users name them, each once: ('tensor_kv', 'tensor_q') is ('tensor',)."""
    return tuple(dict.fromkeys(_OUTER.get(axis, axis) for axis in axes))


def outer_name(axes: Sequence[str]) -> str:
    """The user's name of a group of inner mesh axes."""
    return "+".join(outer_axes(axes))


def batch_groups(mesh: Mapping[str, Number]) -> Number:
    """Groups of chips that see different sequences; ways by mesh axis, in any arithmetic."""
    result = mesh.get(BATCH[0], 1)
    for axis in BATCH[1:]:
        result = result * mesh.get(axis, 1)
    return result


def inner_mesh(mesh: Mapping[str, Number], kv_heads: int) -> dict[str, Number]:
    """The mesh as the sharding algebra sees it: tensor ways split into those over KV heads and those within a group; then those
    of tensor_transpose, over what is left of the KV heads.
    """
    result = {axis: mesh.get(axis, 1) for axis in MESH_AXES if axis not in _PARTS}
    left: Number = kv_heads
    for axis, (of_heads, within) in _PARTS.items():
        ways = mesh.get(axis, 1)
        kv = common_divisor(ways, left)
        result |= {of_heads: kv, within: ways / kv}
        left = _divided(left, kv)
    return result


def _divided(heads: Number, ways: Number) -> Number:
    return heads // ways if isinstance(ways, int) or hasattr(ways, "dtype") else heads // int(ways.value)


def common_divisor(ways: Number, heads: Number) -> Number:
    """gcd in whatever arithmetic `ways` has; heads: numbers."""
    if hasattr(ways, "value"):
        return type(ways)(float(gcd(int(ways.value), heads)), name=f"gcd({ways.name or 'ways'}, {heads})")
    if isinstance(ways, int) and isinstance(heads, int):
        return gcd(ways, heads)
    import numpy as np

    return np.gcd(np.asarray(ways, dtype=np.int64), heads)


def links_of(
    placement: Placement,
    inner: Mapping[str, Number],
    groups: Sequence[tuple[str, ...]],
    calibration: Calibration,
    copies: int = 1,
) -> dict[tuple[str, ...], tuple[Group, Group]]:
    """For each group of inner mesh axes: what it can do by physics, and as calibrated. copies: of a token in a dispatch."""
    result = {}
    for axes in groups:
        outer = outer_axes(axes)
        physics, achieved = (group(placement, outer, c, copies=copies) for c in (None, calibration))
        result[axes] = narrowed(physics, axes, inner), narrowed(achieved, axes, inner)
    return result


def narrowed(whole: Group, axes: Sequence[str], inner: Mapping[str, Number]) -> Group:
    """What inner axes can do, from what their outer ones can: half of `tensor` is a part of its group."""
    for parts in _PARTS.values():
        some = [axis for axis in axes if axis in parts]
        if len(some) == 1:
            (other,) = (axis for axis in parts if axis not in some)
            whole = part_of(whole, inner[other])
    return whole


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
        dispatch_rate=whole.dispatch_rate * share,
        gather_latency=whole.gather_latency * some,
        all_reduce_latency=whole.all_reduce_latency * some,
    )


def axis_bandwidth(of: Slice, axes: int = 1) -> float:
    """Bytes per second of a chip over some wrapped sides of its torus, both directions (book, section 3)."""
    level = of.levels[0] if of.levels else None
    if not isinstance(level, Torus) or not 1 <= axes <= len(level.dims):
        raise InputError(f"{of.name} has no {axes} torus axes", field="axes")
    return 2 * level.link_bandwidth * axes
