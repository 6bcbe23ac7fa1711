"""A layer of experts: each token times the matrices of the experts that it chose (the book, section 10, problem 2).

x[S_Y, D], w[E_Y, D, F] and choice[S_Y, k] give the mean over k of x[i] w[choice[i, j]]: [S_Y, F]. No array is as large as
[S, D, F] or [E, S, D]: tokens are sorted by expert, and multiplied group by group.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from rooftop.gallery._mesh import on_shards

_P = PartitionSpec
_SHARDS = (_P("Y", None), _P("Y", None, None), _P("Y", None)), _P("Y", None)


def experts(x: Any, w: Any, choice: Any) -> Any:
    """On one device: tokens [S, D], experts [E, D, F], choice [S, k]."""
    k = choice.shape[1]
    made = _sorted_products(jnp.repeat(x, k, 0), w, choice.reshape(-1))
    return made.reshape(x.shape[0], k, -1).mean(1)


def gathered_experts(x: Any, w: Any, choice: Any, *, mesh: Mesh | None = None) -> Any:
    """Every chip gathers all tokens over Y, computes those of its own experts, and a reduce-scatter adds them up."""

    def local(x: Any, w: Any, choice: Any) -> Any:
        k, mine = choice.shape[1], jax.lax.axis_index("Y")
        x, choice = (jax.lax.all_gather(a, "Y", axis=0, tiled=True) for a in (x, choice))
        own = choice.reshape(-1) - mine * w.shape[0]
        made = _sorted_products(jnp.repeat(x, k, 0), w, own).reshape(x.shape[0], k, -1).mean(1)
        return jax.lax.psum_scatter(made, "Y", scatter_dimension=0, tiled=True)

    return on_shards(local, *_SHARDS, mesh)(x, w, choice)


def exchanged_experts(x: Any, w: Any, choice: Any, *, slots: int = 0, mesh: Mesh | None = None) -> Any:
    """Tokens go to the chips of their experts by an all-to-all and come back by another, in as many rounds as the busiest needs.

    slots: tokens of one chip for another in a round (0: twice the mean). None is dropped, however uneven the choice.
    """

    def local(x: Any, w: Any, choice: Any) -> Any:
        n, k = jax.lax.axis_size("Y"), choice.shape[1]
        tokens = jnp.repeat(x, k, 0)
        size = slots or -(-2 * tokens.shape[0] // n)
        flat = choice.reshape(-1)
        home = flat // w.shape[0]
        # the place of a token among those of the same chip for the same home
        rank = (jnp.cumsum(jax.nn.one_hot(home, n, dtype=jnp.int32), 0) - 1)[jnp.arange(flat.size), home]
        rounds = jax.lax.pmax((rank // size).max() + 1, "Y")

        def exchange(a: Any) -> Any:
            return jax.lax.all_to_all(a, "Y", 0, 0, tiled=True)

        def one(carry: tuple[Any, Any]) -> tuple[Any, Any]:
            i, out = carry
            now = rank // size == i
            slot = jnp.where(now, home * size + rank % size, n * size)  # beyond the end: dropped by the scatter
            sent = jnp.zeros((n * size, x.shape[1]), x.dtype).at[slot].set(tokens, mode="drop")
            expert = jnp.full(n * size, -1).at[slot].set(flat % w.shape[0], mode="drop")
            made = exchange(_sorted_products(exchange(sent), w, exchange(expert)))
            back = made.at[slot].get(mode="fill", fill_value=0)
            return i + 1, out + back

        start = jnp.zeros(()).astype(jnp.int32), jnp.zeros((tokens.shape[0], w.shape[2]), x.dtype)
        _, out = jax.lax.while_loop(lambda carry: carry[0] < rounds, one, start)
        return out.reshape(x.shape[0], k, -1).mean(1)

    return on_shards(local, *_SHARDS, mesh)(x, w, choice)


def _sorted_products(x: Any, w: Any, expert: Any) -> Any:
    """x[i] w[expert[i]] for x[S, D], w[E, D, F]; 0 where there is no such expert."""
    known = (expert >= 0) & (expert < w.shape[0])
    group = jnp.where(known, expert, w.shape[0])
    order = jnp.argsort(group)
    sizes = jnp.bincount(group, length=w.shape[0] + 1)[:-1]
    made = jax.lax.ragged_dot(x[order], w, sizes.astype(jnp.int32))
    # rows behind the last group belong to nobody
    made = jnp.where((jnp.arange(x.shape[0]) < sizes.sum())[:, None], made, 0)
    return jnp.zeros_like(made).at[order].set(made)
