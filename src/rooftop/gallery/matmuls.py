"""Matmuls that overlap their collectives piece by piece (Wang et al., 2023; the book, section 10, problems 3 and 4).

Each comes in three ways: the collective before or after the matmul; `_ring`, where pieces go around a ring while others are
multiplied; `_both`, where halves of the pieces go around in opposite directions, over both links of a torus. Axes of arrays are those of the
book, X and Y of the mesh; whole arrays in, whole arrays out.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from rooftop.gallery._mesh import on_shards, passed

_P = PartitionSpec
_GATHER = (_P("X", "Y"), _P(None, "Y")), _P("X", "Y")
_SCATTER = (_P("X", "Y"), _P("Y", None)), _P("X", "Y")
_REDUCE = (_P("X", "Y"), _P("Y", None)), _P("X", None)
_BLOCK = (_P("X", "Y"), _P(None, "Y"), _P("Y", None)), _P("X", "Y")


def gather_matmul(a: Any, w: Any, *, mesh: Mesh | None = None) -> Any:
    """A[B_X, D_Y] W[D, F_Y] -> [B_X, F_Y]: A is gathered over Y, then multiplied."""
    return on_shards(lambda a, w: jax.lax.all_gather(a, "Y", axis=1, tiled=True) @ w, *_GATHER, mesh)(a, w)


def gather_matmul_ring(a: Any, w: Any, *, mesh: Mesh | None = None) -> Any:
    """A[B_X, D_Y] W[D, F_Y] -> [B_X, F_Y]: each shard of A is multiplied while the next one arrives."""
    return on_shards(lambda a, w: _gathered(a, w, 1), *_GATHER, mesh)(a, w)


def gather_matmul_both(a: Any, w: Any, *, mesh: Mesh | None = None) -> Any:
    """A[B_X, D_Y] W[D, F_Y] -> [B_X, F_Y]: halves of the rows of A go around in opposite directions."""
    return on_shards(_gathered_both, *_GATHER, mesh)(a, w)


def matmul_scatter(h: Any, w: Any, *, mesh: Mesh | None = None) -> Any:
    """H[B_X, F_Y] W[F_Y, D] -> [B_X, D_Y]: multiplied, then reduce-scattered over Y."""
    return on_shards(
        lambda h, w: jax.lax.psum_scatter(h @ w, "Y", scatter_dimension=1, tiled=True), *_SCATTER, mesh
    )(h, w)  # fmt: skip


def matmul_scatter_ring(h: Any, w: Any, *, mesh: Mesh | None = None) -> Any:
    """H[B_X, F_Y] W[F_Y, D] -> [B_X, D_Y]: a sum goes around, and each chip adds its product when it comes by."""
    return on_shards(lambda h, w: _scattered(h, w, 1), *_SCATTER, mesh)(h, w)


def matmul_scatter_both(h: Any, w: Any, *, mesh: Mesh | None = None) -> Any:
    """H[B_X, F_Y] W[F_Y, D] -> [B_X, D_Y]: sums of halves of the rows go around in opposite directions."""
    return on_shards(_scattered_both, *_SCATTER, mesh)(h, w)


def matmul_reduce(a: Any, w: Any, *, mesh: Mesh | None = None) -> Any:
    """A[B_X, D_Y] W[D_Y, F] -> [B_X, F]: multiplied, then all-reduced over Y."""
    return on_shards(lambda a, w: jax.lax.psum(a @ w, "Y"), *_REDUCE, mesh)(a, w)


def matmul_reduce_ring(a: Any, w: Any, *, mesh: Mesh | None = None) -> Any:
    """A[B_X, D_Y] W[D_Y, F] -> [B_X, F]: sums of columns go around under the matmul, and around again when they are whole."""
    return on_shards(lambda a, w: jax.lax.all_gather(_scattered(a, w, 1), "Y", axis=1, tiled=True), *_REDUCE, mesh)(
        a, w
    )


def matmul_reduce_both(a: Any, w: Any, *, mesh: Mesh | None = None) -> Any:
    """A[B_X, D_Y] W[D_Y, F] -> [B_X, F]: the same with halves of the rows in opposite directions."""
    return on_shards(lambda a, w: jax.lax.all_gather(_scattered_both(a, w), "Y", axis=1, tiled=True), *_REDUCE, mesh)(
        a, w
    )


def block(x: Any, w_in: Any, w_out: Any, *, mesh: Mesh | None = None) -> Any:
    """In[B_X, D_Y] W_in[D, F_Y], ReLU, W_out[F_Y, D] -> [B_X, D_Y]: an all-gather before, a reduce-scatter behind."""

    def local(x: Any, w_in: Any, w_out: Any) -> Any:
        h = jax.nn.relu(jax.lax.all_gather(x, "Y", axis=1, tiled=True) @ w_in)
        return jax.lax.psum_scatter(h @ w_out, "Y", scatter_dimension=1, tiled=True)

    return on_shards(local, *_BLOCK, mesh)(x, w_in, w_out)


def block_ring(x: Any, w_in: Any, w_out: Any, *, mesh: Mesh | None = None) -> Any:
    """The same with both collectives under their matmuls."""
    return on_shards(lambda x, a, b: _scattered(jax.nn.relu(_gathered(x, a, 1)), b, 1), *_BLOCK, mesh)(x, w_in, w_out)


def block_both(x: Any, w_in: Any, w_out: Any, *, mesh: Mesh | None = None) -> Any:
    """The same in both directions."""
    return on_shards(lambda x, a, b: _scattered_both(jax.nn.relu(_gathered_both(x, a)), b), *_BLOCK, mesh)(
        x, w_in, w_out
    )


# as one device does it


def _gathered(a: Any, w: Any, step: int) -> Any:
    """a[B, D/n] of every device along Y, side by side, times w[D, F]."""
    n, mine, wide = jax.lax.axis_size("Y"), jax.lax.axis_index("Y"), a.shape[1]
    out: Any = 0.0
    for i in range(n):
        following = passed(a, step) if i < n - 1 else a  # on its way while its predecessor is multiplied
        rows = jax.lax.dynamic_slice_in_dim(w, (mine - step * i) % n * wide, wide)
        out = out + jnp.dot(a, rows, preferred_element_type=jnp.float32)
        a = following
    return out.astype(a.dtype)


def _scattered(h: Any, w: Any, step: int) -> Any:
    """The columns of this device of the sum of h[B, F/n] w[F/n, D] over Y."""
    n, mine, wide = jax.lax.axis_size("Y"), jax.lax.axis_index("Y"), w.shape[1] // jax.lax.axis_size("Y")
    total: Any = None
    for i in range(n):
        # the sum that is here now ends n - 1 - i devices further
        columns = jax.lax.dynamic_slice_in_dim(w, (mine + step * (n - 1 - i)) % n * wide, wide, 1)
        part = jnp.dot(h, columns, preferred_element_type=jnp.float32).astype(h.dtype)
        total = part if total is None else passed(total, step) + part
    return total


def _gathered_both(a: Any, w: Any) -> Any:
    up, down = jnp.split(a, 2)
    return jnp.concatenate([_gathered(up, w, 1), _gathered(down, w, -1)])


def _scattered_both(h: Any, w: Any) -> Any:
    up, down = jnp.split(h, 2)
    return jnp.concatenate([_scattered(up, w, 1), _scattered(down, w, -1)])
