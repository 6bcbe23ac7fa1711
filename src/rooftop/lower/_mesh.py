"""A plan's mesh as JAX has it: device order from the placement, a PartitionSpec for every array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooftop.arrays import Sharding
from rooftop.costing import INNER_AXES, PLACEMENT_ORDER, TENSOR, inner_mesh
from rooftop.training import Plan, Problem

#: Mesh axes of a lowered program, major to minor.
AXES = ("pipeline", *(a for a in INNER_AXES if a != "pipeline"))


def ways_of(plan: Plan, kv_heads: int) -> dict[str, int]:
    """Ways of the inner mesh axes."""
    inner = inner_mesh(plan.mesh, kv_heads)
    return {a: int(inner[a]) for a in AXES}


def chip_order(problem: Problem, plan: Plan, kv_heads: int) -> NDArray[np.int64]:
    """For each place in the mesh (shape: ways of AXES), the coordinates of its chip: [..., dimensions of the network].

    Along each dimension of the network the mesh axes that share it are nested as the planner nests them, innermost first.
    """
    ways = ways_of(plan, kv_heads)
    shape = tuple(ways.values())
    places = np.indices(shape, dtype=np.int64).reshape(len(AXES), -1).T
    at: dict[str, NDArray[np.int64]] = {a: places[:, i] for i, a in enumerate(AXES)}
    at["tensor"] = at[TENSOR[0]] * ways[TENSOR[1]] + at[TENSOR[1]]
    left = {a: at[a].copy() for a in PLACEMENT_ORDER if a in at}
    coordinates = []
    for factors in plan.factors:
        coordinate, stride = np.zeros(len(places), dtype=np.int64), 1
        for axis in PLACEMENT_ORDER:
            n = factors.get(axis, 1)
            if n > 1:
                if axis in left:
                    coordinate += stride * (left[axis] % n)
                    left[axis] //= n
                stride *= n
        coordinates.append(coordinate)
    return np.stack(coordinates, axis=-1).reshape(*shape, len(plan.factors))


def numbered(order: NDArray[np.int64], problem: Problem) -> NDArray[np.int64]:
    """Coordinates as numbers of chips, the innermost dimension of the network fastest."""
    number, stride = np.zeros(order.shape[:-1], dtype=np.int64), 1
    for d, dimension in enumerate(problem.dimensions):
        number += order[..., d] * stride
        stride *= dimension.size
    return number


def device_mesh(devices: Sequence[Any], numbers: NDArray[np.int64]) -> Any:
    """A jax.sharding.Mesh of devices by their numbers."""
    from jax.sharding import Mesh

    grid = np.array(devices, dtype=object)[numbers.reshape(-1)].reshape(numbers.shape)
    return Mesh(grid, AXES)


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
