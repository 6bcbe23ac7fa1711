"""The mesh that algorithms run on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec


def all_devices() -> Mesh:
    """All devices that JAX has along Y, one along X."""
    return Mesh(np.array(jax.devices()).reshape(1, -1), ("X", "Y"))


def on_shards(
    local: Callable[..., Any], inside: tuple[PartitionSpec, ...], outside: PartitionSpec, mesh: Mesh | None
) -> Callable[..., Any]:
    """A function of whole arrays from one of a device's shards."""
    return jax.shard_map(local, mesh=mesh or all_devices(), in_specs=inside, out_specs=outside, check_vma=False)  # type: ignore[no-any-return]


def ring(step: int = 1) -> list[tuple[int, int]]:
    """Who sends to whom along Y: to the neighbour `step` further."""
    n = jax.lax.axis_size("Y")
    return [(i, (i + step) % n) for i in range(n)]


def passed(x: Any, step: int = 1) -> Any:
    """What the neighbour `step` back along Y has."""
    return jax.lax.ppermute(x, "Y", ring(step))
