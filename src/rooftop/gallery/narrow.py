"""Collectives whose numbers cross the network in 8 bits (ZeRO++; Wang et al., 2023: blocks with a scale each)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from rooftop.gallery._mesh import on_shards

_P = PartitionSpec
#: Numbers that share a scale.
BLOCK = 256


def all_reduce(x: Any, *, mesh: Mesh | None = None) -> Any:
    """The sum over Y of x[Y, N], one row a chip: [N] on each."""
    return on_shards(lambda x: jax.lax.psum(x[0], "Y"), (_P("Y", None),), _P(None), mesh)(x)


def all_reduce_int8(x: Any, *, block: int = BLOCK, mesh: Mesh | None = None) -> Any:
    """The same in int8: parts are swapped by an all-to-all, added in fp32, and gathered.

    Every number is rounded twice, to 1/254 of the largest of its block at most: before it is sent, and when it is summed.
    """

    def local(x: Any) -> Any:
        parts = x.reshape(jax.lax.axis_size("Y"), -1)
        values, scales = quantised(parts, block)
        values, scales = (jax.lax.all_to_all(a, "Y", 0, 0, tiled=True) for a in (values, scales))
        total = widened(values, scales).sum(0)
        values, scales = (jax.lax.all_gather(a, "Y", axis=0, tiled=True) for a in quantised(total, block))
        return widened(values, scales).astype(x.dtype)

    return on_shards(local, (_P("Y", None),), _P(None), mesh)(x)


def gathered(x: Any, *, mesh: Mesh | None = None) -> Any:
    """x[N_Y] -> [N]: weights before they are used."""
    return on_shards(lambda x: jax.lax.all_gather(x, "Y", tiled=True), (_P("Y"),), _P(None), mesh)(x)


def gathered_int8(x: Any, *, block: int = BLOCK, mesh: Mesh | None = None) -> Any:
    """The same in int8."""

    def local(x: Any) -> Any:
        values, scales = (jax.lax.all_gather(a, "Y", axis=0, tiled=True) for a in quantised(x, block))
        return widened(values, scales).astype(x.dtype)

    return on_shards(local, (_P("Y"),), _P(None), mesh)(x)


def quantised(x: Any, block: int = BLOCK) -> tuple[Any, Any]:
    """x[.., N] as (int8 [.., N], fp32 scales [.., N / block]); a number is its int8 times the scale of its block."""
    blocks = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, block)
    scale = jnp.abs(blocks).max(-1) / 127
    values = jnp.round(blocks / jnp.where(scale > 0, scale, 1)[..., None]).astype(jnp.int8)
    return values.reshape(x.shape), scale


def widened(values: Any, scales: Any) -> Any:
    """fp32 numbers of what `quantised` made."""
    blocks = values.astype(jnp.float32).reshape(*scales.shape, -1)
    return (blocks * scales[..., None]).reshape(values.shape)
