"""A plan's mesh as JAX has it: device order from the placement, a PartitionSpec for every array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooftop.arrays import Sharding
from rooftop.costing import INNER_AXES, PLACEMENT_ORDER, TENSOR, TRANSPOSE, inner_mesh
from rooftop.errors import InputError
from rooftop.hardware import Slice, Torus
from rooftop.training import Plan

#: Mesh axes of a lowered program, major to minor.
AXES = ("pipeline", *(a for a in INNER_AXES if a != "pipeline"))


def ways_of(plan: Plan, kv_heads: int) -> dict[str, int]:
    """Ways of the inner mesh axes."""
    return _inner(plan.mesh, kv_heads)


def _inner(mesh: Mapping[str, Any], kv_heads: int) -> dict[str, int]:
    inner = inner_mesh(mesh, kv_heads)
    return {a: int(inner[a]) for a in AXES}


def chip_order(mesh: Mapping[str, Any], factors: Sequence[Mapping[str, Any]], kv_heads: int) -> NDArray[np.int64]:
    """For each place in the mesh (shape: ways of AXES), the coordinates of its chip: [..., dimensions of the network].

    mesh, factors: of a plan. Along each dimension of the network the mesh axes that share it are nested as the planner nests
    them, innermost first.
    """
    ways = _inner({a: int(n) for a, n in mesh.items()}, kv_heads)
    shape = tuple(ways.values())
    places = np.indices(shape, dtype=np.int64).reshape(len(AXES), -1).T
    at: dict[str, NDArray[np.int64]] = {a: places[:, i] for i, a in enumerate(AXES)}
    for axis, (first, second) in (("tensor", TENSOR), ("tensor_transpose", TRANSPOSE)):
        at[axis] = at[first] * ways[second] + at[second]
    left = {a: at[a].copy() for a in PLACEMENT_ORDER if a in at}
    coordinates = []
    for shared in factors:
        coordinate, stride = np.zeros(len(places), dtype=np.int64), 1
        for axis in PLACEMENT_ORDER:
            n = int(shared.get(axis, 1))
            if n > 1:
                if axis in left:
                    coordinate += stride * (left[axis] % n)
                    left[axis] //= n
                stride *= n
        coordinates.append(coordinate)
    return np.stack(coordinates, axis=-1).reshape(*shape, len(factors))


def devices_at(coordinates: NDArray[np.int64], where: Slice, devices: Sequence[Any]) -> list[Any]:
    """The devices at coordinates [n, dimensions of the network], innermost first, of all devices of a slice.

    TPUs say where they are (along the torus, and in which slice); other devices are numbered along the network, the innermost
    dimension fastest, as hosts start them. Raises InputError where JAX has other devices than the slice.
    """
    places = [tuple(map(int, place)) for place in coordinates]
    if all(hasattr(d, "coords") for d in devices):
        sides = next((len(level.dims) for level in where.levels if isinstance(level, Torus)), 2)
        at = {(*d.coords[:sides], getattr(d, "slice_index", 0) or 0): d for d in devices}
        keys = [(*place[:sides], place[sides] if len(place) > sides else 0) for place in places]
    else:
        sizes = [n for level in where.levels for n in (level.dims if isinstance(level, Torus) else (level.size,))]
        strides = np.cumprod([1, *sizes[:-1]]) if sizes else np.ones(0, np.int64)
        at = {(number,): device for number, device in enumerate(devices)}
        keys = [(int(np.array(place) @ strides),) for place in places]
    missing = next((key for key in keys if key not in at), None)
    if missing is not None:
        raise InputError(
            f"JAX has {len(devices)} devices, and none is {missing} of {where.name}; run the plan on the slice that it was made for, or on"
            f" simulated devices with XLA_FLAGS=--xla_force_host_platform_device_count={where.chips}",
            field="on",
        )
    return [at[key] for key in keys]


def spec(sharding: Sharding, mesh: Mapping[str, int], lead: Sequence[Any] = ()) -> Any:
    """The PartitionSpec of a sharding; axes of one way are left out; lead: what splits axes in front."""
    from jax.sharding import PartitionSpec

    parts = [tuple(a for a in names if mesh.get(a, 1) > 1) for names in sharding.axes]
    return PartitionSpec(*lead, *(p[0] if len(p) == 1 else p or None for p in parts))


def mesh_of(devices: Sequence[Any], order: NDArray[np.int64]) -> Any:
    """A jax.sharding.Mesh of devices that are in the order of `chip_order`."""
    from jax.sharding import Mesh

    grid = np.empty(len(devices), dtype=object)
    grid[:] = devices
    return Mesh(grid.reshape(order.shape[:-1]), AXES)
