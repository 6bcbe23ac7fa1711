"""Matmuls on tokens that are split over Y, as tensor parallelism with a split sequence has them (Korthikanti et al., 2022).

In three ways, as in `matmuls`: the collective before or after the matmul; `_ring`, under it; `_both`, in both directions. Pieces
are rows, so that none of them is a part of a sum.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from rooftop.gallery._mesh import on_shards, passed

_P = PartitionSpec
_TOKENS, _WIDE = _P("X", "Y", None), _P("X", None, "Y")
_GATHER = (_TOKENS, _P(None, "Y")), _WIDE
_SCATTER = (_WIDE, _P("Y", None)), _TOKENS
_MLP = (_TOKENS, _P(None, "Y"), _P("Y", None)), _TOKENS


def gather_tokens(x: Any, w: Any, *, mesh: Mesh | None = None) -> Any:
    """X[B_X, T_Y, D] W[D, F_Y] -> [B_X, T, F_Y]: tokens are gathered over Y, then multiplied."""
    return on_shards(_gathered_first, *_GATHER, mesh)(x, w)


def gather_tokens_ring(x: Any, w: Any, *, mesh: Mesh | None = None) -> Any:
    """The same with each shard multiplied while the next one arrives."""
    return on_shards(lambda x, w: _gathered(x, w, (1,)), *_GATHER, mesh)(x, w)


def gather_tokens_both(x: Any, w: Any, *, mesh: Mesh | None = None) -> Any:
    """The same with halves of the shards in opposite directions."""
    return on_shards(lambda x, w: _gathered(x, w, (1, -1)), *_GATHER, mesh)(x, w)


def scatter_tokens(h: Any, w: Any, *, mesh: Mesh | None = None) -> Any:
    """H[B_X, T, F_Y] W[F_Y, D] -> [B_X, T_Y, D]: multiplied, then reduce-scattered over Y."""
    return on_shards(_scattered_last, *_SCATTER, mesh)(h, w)


def scatter_tokens_ring(h: Any, w: Any, *, mesh: Mesh | None = None) -> Any:
    """The same with sums that go around, to which each chip adds its product of their tokens."""
    return on_shards(lambda h, w: _scattered(h, w, (1,)), *_SCATTER, mesh)(h, w)


def scatter_tokens_both(h: Any, w: Any, *, mesh: Mesh | None = None) -> Any:
    """The same with halves of the tokens in opposite directions."""
    return on_shards(lambda h, w: _scattered(h, w, (1, -1)), *_SCATTER, mesh)(h, w)


def mlp(x: Any, w_in: Any, w_out: Any, *, mesh: Mesh | None = None) -> Any:
    """X[B_X, T_Y, D] W_in[D, F_Y], ReLU, W_out[F_Y, D] -> [B_X, T_Y, D]: an all-gather before, a reduce-scatter behind."""
    return on_shards(lambda x, a, b: _scattered_last(jax.nn.relu(_gathered_first(x, a)), b), *_MLP, mesh)(
        x, w_in, w_out
    )


def mlp_both(x: Any, w_in: Any, w_out: Any, *, mesh: Mesh | None = None) -> Any:
    """The same with both collectives under their matmuls, in both directions."""

    def local(x: Any, w_in: Any, w_out: Any) -> Any:
        return _scattered(jax.nn.relu(_gathered(x, w_in, (1, -1))), w_out, (1, -1))

    return on_shards(local, *_MLP, mesh)(x, w_in, w_out)


def _gathered_first(x: Any, w: Any) -> Any:
    return jax.lax.all_gather(x, "Y", axis=1, tiled=True) @ w


def _scattered_last(h: Any, w: Any) -> Any:
    return jax.lax.psum_scatter(h @ w, "Y", scatter_dimension=1, tiled=True)


def _gathered(x: Any, w: Any, directions: tuple[int, ...]) -> Any:
    """The tokens x[B, T/n, D] of all devices along Y, times w: parts of them go around, one part in each direction."""
    n, mine, length = jax.lax.axis_size("Y"), jax.lax.axis_index("Y"), x.shape[1]
    out = jnp.zeros((x.shape[0], n * length, w.shape[1]), x.dtype)
    parts = jnp.split(x, len(directions), 1)
    for i in range(n):
        following = [passed(p, d) for p, d in zip(parts, directions, strict=True)] if i < n - 1 else parts
        for place, (part, direction) in enumerate(zip(parts, directions, strict=True)):
            start = (mine - direction * i) % n * length + place * part.shape[1]
            out = jax.lax.dynamic_update_slice_in_dim(out, part @ w, start, 1)
        parts = following
    return out


def _scattered(h: Any, w: Any, directions: tuple[int, ...]) -> Any:
    """The tokens of this device of the sum of h[B, T, F/n] w over Y: sums of parts of them go around."""
    n, mine = jax.lax.axis_size("Y"), jax.lax.axis_index("Y")
    length = h.shape[1] // n
    size = length // len(directions)
    totals: list[Any] = [None] * len(directions)
    for i in range(n):
        for place, direction in enumerate(directions):
            # the sum that is here now ends n - 1 - i devices further
            start = (mine + direction * (n - 1 - i)) % n * length + place * size
            part = jax.lax.dynamic_slice_in_dim(h, start, size, 1) @ w
            totals[place] = part if totals[place] is None else passed(totals[place], direction) + part
    return jnp.concatenate(totals, 1) if len(totals) > 1 else totals[0]
