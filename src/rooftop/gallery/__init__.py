"""Sharded algorithms in JAX, each beside the plain one: functions of whole arrays, on a mesh with the axes X and Y.

Needs rooftop[jax]. `mesh`: where they run; all devices that JAX has along Y unless given. `rooftop jax rooftop.gallery:NAME --versus
rooftop.gallery:OTHER` shows two of them on a chip.
"""

from __future__ import annotations

from rooftop.lower._jax import jax as _needed

_needed()

from rooftop.gallery._mesh import all_devices  # noqa: E402
from rooftop.gallery.attention import (  # noqa: E402
    flash_decoding,
    gathered_attention,
    gathered_decoding,
    ring_attention,
    swapped_attention,
)
from rooftop.gallery.experts import exchanged_experts, experts, gathered_experts  # noqa: E402
from rooftop.gallery.matmuls import (  # noqa: E402
    block,
    block_both,
    block_ring,
    gather_matmul,
    gather_matmul_both,
    gather_matmul_ring,
    matmul_reduce,
    matmul_reduce_both,
    matmul_reduce_ring,
    matmul_scatter,
    matmul_scatter_both,
    matmul_scatter_ring,
)
from rooftop.gallery.narrow import all_reduce, all_reduce_int8, gathered, gathered_int8  # noqa: E402
from rooftop.gallery.shards import means, means_of_the_whole, rolled  # noqa: E402
from rooftop.gallery.tokens import (  # noqa: E402
    gather_tokens,
    gather_tokens_both,
    gather_tokens_ring,
    mlp,
    mlp_both,
    scatter_tokens,
    scatter_tokens_both,
    scatter_tokens_ring,
)

__all__ = [
    "all_devices",
    "all_reduce",
    "all_reduce_int8",
    "block",
    "block_both",
    "block_ring",
    "exchanged_experts",
    "experts",
    "flash_decoding",
    "gather_matmul",
    "gather_matmul_both",
    "gather_matmul_ring",
    "gather_tokens",
    "gather_tokens_both",
    "gather_tokens_ring",
    "gathered",
    "gathered_attention",
    "gathered_decoding",
    "gathered_experts",
    "gathered_int8",
    "matmul_reduce",
    "matmul_reduce_both",
    "matmul_reduce_ring",
    "matmul_scatter",
    "matmul_scatter_both",
    "matmul_scatter_ring",
    "means",
    "means_of_the_whole",
    "mlp",
    "mlp_both",
    "ring_attention",
    "rolled",
    "scatter_tokens",
    "scatter_tokens_both",
    "scatter_tokens_ring",
    "swapped_attention",
]
