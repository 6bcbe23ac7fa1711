"""Attention over a sequence that is split: keys gathered, around a ring, tokens for heads; one query over a split cache."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from rooftop.gallery._mesh import on_shards, passed

_P = PartitionSpec
_TOKENS = _P("X", "Y", None, None)
_SEQUENCE = (_TOKENS, _TOKENS, _TOKENS), _TOKENS
_CACHE = (_P("X", None, None), _TOKENS, _TOKENS, _P("X")), _P("X", None, None)


def gathered_attention(q: Any, k: Any, v: Any, *, mesh: Mesh | None = None) -> Any:
    """Causal attention for q, k, v [B_X, T_Y, N, H]: keys and values are gathered over Y."""

    def local(q: Any, k: Any, v: Any) -> Any:
        start = jax.lax.axis_index("Y") * q.shape[1]
        k, v = (jax.lax.all_gather(x, "Y", axis=1, tiled=True) for x in (k, v))
        return _finished(_attended(q, k, v, start, 0), q.dtype)

    return on_shards(local, *_SEQUENCE, mesh)(q, k, v)


def ring_attention(q: Any, k: Any, v: Any, *, mesh: Mesh | None = None) -> Any:
    """The same with blocks of keys and values going around a ring while others are attended to (Liu et al., 2023).

    A chip holds two blocks at a time, whatever the length of the sequence. Blocks of later tokens are masked, not left out.
    """

    def local(q: Any, k: Any, v: Any) -> Any:
        n, mine, length = jax.lax.axis_size("Y"), jax.lax.axis_index("Y"), q.shape[1]
        found = _attended(q, k, v, mine * length, mine * length)
        k, v = passed(k), passed(v)
        for i in range(1, n):
            following = (passed(k), passed(v)) if i < n - 1 else (k, v)
            found = _merged(found, _attended(q, k, v, mine * length, (mine - i) % n * length))
            k, v = following
        return _finished(found, q.dtype)

    return on_shards(local, *_SEQUENCE, mesh)(q, k, v)


def swapped_attention(q: Any, k: Any, v: Any, *, mesh: Mesh | None = None) -> Any:
    """The same with tokens swapped for heads by all-to-alls, and back (DeepSpeed-Ulysses; Jacobs et al., 2023)."""

    def local(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (jax.lax.all_to_all(x, "Y", 2, 1, tiled=True) for x in (q, k, v))
        return jax.lax.all_to_all(_finished(_attended(q, k, v, 0, 0), q.dtype), "Y", 1, 2, tiled=True)

    return on_shards(local, *_SEQUENCE, mesh)(q, k, v)


def gathered_decoding(q: Any, k: Any, v: Any, lengths: Any, *, mesh: Mesh | None = None) -> Any:
    """One query a sequence, q[B_X, N, H], over its cache k, v [B_X, S_Y, N, H] of lengths[B_X]: the cache is gathered over Y."""

    def local(q: Any, k: Any, v: Any, lengths: Any) -> Any:
        k, v = (jax.lax.all_gather(x, "Y", axis=1, tiled=True) for x in (k, v))
        return _finished(_attended(q[:, None], k, v, lengths[:, None] - 1, 0), q.dtype)[:, 0]

    return on_shards(local, *_CACHE, mesh)(q, k, v, lengths)


def flash_decoding(q: Any, k: Any, v: Any, lengths: Any, *, mesh: Mesh | None = None) -> Any:
    """The same with every chip attending to its part of the cache; three small all-reduces put the parts together."""

    def local(q: Any, k: Any, v: Any, lengths: Any) -> Any:
        start = jax.lax.axis_index("Y") * k.shape[1]
        top, total, out = _attended(q[:, None], k, v, lengths[:, None] - 1, start)
        highest = jax.lax.pmax(top, "Y")
        scale = jnp.exp(top - highest)
        parts = highest, jax.lax.psum(total * scale, "Y"), jax.lax.psum(out * scale[..., None], "Y")
        return _finished(parts, q.dtype)[:, 0]

    return on_shards(local, *_CACHE, mesh)(q, k, v, lengths)


def _attended(q: Any, k: Any, v: Any, first_query: Any, first_key: Any) -> tuple[Any, Any, Any]:
    """(highest score, sum of exponentials, values times exponentials) [B, N, T, ..] of q[B, T, N, H] over k, v[B, S, N, H]."""
    queries = jnp.broadcast_to(jnp.asarray(first_query), (q.shape[0], 1)) + jnp.arange(q.shape[1])
    keys = first_key + jnp.arange(k.shape[1])
    s = jnp.einsum("btnh,bsnh->bnts", q, k, preferred_element_type=jnp.float32) / math.sqrt(q.shape[-1])
    seen = (queries[:, :, None] >= keys)[:, None]
    s = jnp.where(seen, s, -1e30)
    top = s.max(-1)
    p = jnp.where(seen, jnp.exp(s - top[..., None]), 0.0)
    out = jnp.einsum("bnts,bsnh->bnth", p.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return top, p.sum(-1), out


def _merged(a: tuple[Any, Any, Any], b: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Attention to two sets of keys together."""
    top = jnp.maximum(a[0], b[0])
    left, right = jnp.exp(a[0] - top), jnp.exp(b[0] - top)
    return top, a[1] * left + b[1] * right, a[2] * left[..., None] + b[2] * right[..., None]


def _finished(parts: tuple[Any, Any, Any], kind: Any) -> Any:
    _, total, out = parts
    return jnp.moveaxis(out / total[..., None], 1, 2).astype(kind)
