"""A matmul in two dtypes, and a feed-forward layer over eight chips: what `rooftop jax` is asked about in the guide."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec


def plain(x: jax.Array, weights: jax.Array) -> jax.Array:
    """A matmul in the dtype of its arguments."""
    return x @ weights


def quantised(x: jax.Array, weights: jax.Array) -> jax.Array:
    """The same in int8, with a scale for each row and column; both operands are cast each time."""

    def cast(a: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
        scale = jnp.abs(a).max(axis, keepdims=True) / 127
        return jnp.round(a / scale).astype(jnp.int8), scale

    (narrow, rows), (narrow_weights, columns) = cast(x, 1), cast(weights, 0)
    product = jax.lax.dot(narrow, narrow_weights, preferred_element_type=jnp.int32)
    return (product * rows * columns).astype(x.dtype)


def tensor_parallel(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """A feed-forward layer whose inner axis lies over eight chips, as the program of one chip: x is gathered, the output scattered."""
    mesh = Mesh(jax.devices()[:8], ("tensor",))
    split = PartitionSpec("tensor")

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(split, PartitionSpec(None, "tensor"), split), out_specs=split
    )
    def layer(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        whole = jax.lax.all_gather(x, "tensor", tiled=True)
        return jax.lax.psum_scatter(jax.nn.gelu(whole @ up) @ down, "tensor", tiled=True)

    return layer(x, up, down)
