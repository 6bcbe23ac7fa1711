"""Functions that look at shards (the book, section 10, problem 1), and need no communication."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from rooftop.gallery._mesh import all_devices, on_shards

_BOTH = PartitionSpec("X", "Y")


def means(a: Any, *, mesh: Mesh | None = None) -> Any:
    """The mean of each X shard of A[S_X, D_Y]: [X, D_Y]."""
    return on_shards(lambda a: a.mean(0, keepdims=True), (_BOTH,), _BOTH, mesh)(a)


def means_of_the_whole(a: Any, *, mesh: Mesh | None = None) -> Any:
    """The same as a function of the whole array, for jit: the compiler finds that nothing must move."""
    x = (mesh or all_devices()).shape["X"]
    return a.reshape(x, -1, a.shape[1]).mean(1)


def rolled(a: Any, shift: int = 1, *, mesh: Mesh | None = None) -> Any:
    """roll(A, shift) - A within each X shard of A[S_X, D_Y]."""
    return on_shards(lambda a: jnp.roll(a, shift, 0) - a, (_BOTH,), _BOTH, mesh)(a)
