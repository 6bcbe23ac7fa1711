"""Softmax attention that never stores its scores, as one differentiable JAX function (Dao et al., 2022, algorithms 1 and 2).

Axes: B sequences, T query positions, S key positions, K KV heads, G query heads of one KV head, H head size, Hv value size.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

#: The name under which a checkpoint policy can keep what the backward pass reads beside its inputs.
SAVED = "attention kernel"


@dataclass(frozen=True)
class Mask:
    """Which keys a query sees. window: so many, itself included; chunk: those of its own chunk; 0 for no limit."""

    causal: bool = True
    window: int = 0
    chunk: int = 0

    def of(self, queries: Any, keys: Any) -> Any:
        """Booleans [.., T, S] for positions [.., T] and [.., S]."""
        distance = queries[..., :, None] - keys[..., None, :]
        seen = jnp.ones(distance.shape, bool)
        if self.causal:
            seen &= distance >= 0
        if self.window:
            seen &= jnp.abs(distance) < self.window if self.causal else jnp.abs(distance) <= self.window
        if self.chunk:
            seen &= queries[..., :, None] // self.chunk == keys[..., None, :] // self.chunk
        return seen


#: Keys that are worked on at a time.
BLOCK = 1024


def block_of(length: int, block: int = BLOCK) -> int:
    """The largest block that divides a number of keys and the block that is wished."""
    return math.gcd(length, block) if length % block else block


def computed_share(mask: Mask, length: int, block: int = BLOCK, split: bool = False) -> float:
    """The part of all length x length points that `attention` computes. split: positions are shards of several devices."""
    return 1.0


def attention(q: Any, k: Any, v: Any, sinks: Any, mask: Mask, block: int = BLOCK) -> Any:
    """softmax(q k / sqrt(H)) v for q[B, T, K, G, H], k[B, S, K, H], v[B, S, K, Hv]; returns [B, T, K, G, Hv].

    sinks: None, or a logit [K, G] of each head that takes part in the softmax and has no value. block: keys at a time.
    """
    size = block_of(k.shape[1], block)
    return _flash(q, k, v, jnp.zeros((0,)) if sinks is None else sinks, mask, size)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _flash(q: Any, k: Any, v: Any, sinks: Any, mask: Mask, block: int) -> Any:
    return _forward(q, k, v, sinks, mask, block)[0]


def _blocks(x: Any, block: int) -> Any:
    """[B, S, ...] as [blocks, B, block, ...]."""
    return jnp.moveaxis(x.reshape(x.shape[0], -1, block, *x.shape[2:]), 1, 0)


def _scores(q: Any, k: Any, positions: Any, mask: Mask) -> Any:
    s = jnp.einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=jnp.float32) / math.sqrt(q.shape[-1])
    return jnp.where(mask.of(jnp.arange(q.shape[1]), positions), s, -1e30)


def _forward(q: Any, k: Any, v: Any, sinks: Any, mask: Mask, block: int) -> tuple[Any, tuple[Any, ...]]:
    b, t, heads, group, _ = q.shape
    top = jnp.full((b, heads, group, t), -1e30, jnp.float32)
    total = jnp.zeros_like(top)
    if sinks.size:
        top = jnp.broadcast_to(sinks.astype(jnp.float32)[None, :, :, None], top.shape)
        total = jnp.ones_like(top)

    def body(carry: Any, part: Any) -> tuple[Any, None]:
        top, total, out = carry
        k_, v_, positions = part
        s = _scores(q, k_, positions, mask)
        higher = jnp.maximum(top, s.max(-1))
        p = jnp.exp(s - higher[..., None])
        scale = jnp.exp(top - higher)
        add = jnp.einsum("bkgts,bskh->btkgh", p.astype(v.dtype), v_, preferred_element_type=jnp.float32)
        out = out * jnp.moveaxis(scale, -1, 1)[..., None] + add
        return (higher, total * scale + p.sum(-1), out), None

    positions = jnp.arange(k.shape[1]).reshape(-1, block)
    start = (top, total, jnp.zeros((b, t, heads, group, v.shape[-1]), jnp.float32))
    (top, total, out), _ = jax.lax.scan(body, start, (_blocks(k, block), _blocks(v, block), positions))
    out = (out / jnp.moveaxis(total, -1, 1)[..., None]).astype(v.dtype)
    out, log_total = checkpoint_name(out, SAVED), checkpoint_name(top + jnp.log(total), SAVED)
    return out, (q, k, v, sinks, out, log_total)


def _backward(mask: Mask, block: int, kept: tuple[Any, ...], d_out: Any) -> tuple[Any, ...]:
    q, k, v, sinks, out, log_total = kept
    scale = 1 / math.sqrt(q.shape[-1])
    delta = jnp.moveaxis((d_out.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1), 1, -1)

    def body(d_q: Any, part: Any) -> tuple[Any, tuple[Any, Any]]:
        k_, v_, positions = part
        p = jnp.exp(_scores(q, k_, positions, mask) - log_total[..., None])
        d_v = jnp.einsum("bkgts,btkgh->bskh", p.astype(v.dtype), d_out, preferred_element_type=jnp.float32)
        d_p = jnp.einsum("btkgh,bskh->bkgts", d_out, v_, preferred_element_type=jnp.float32)
        d_s = (p * (d_p - delta[..., None]) * scale).astype(q.dtype)
        d_q = d_q + jnp.einsum("bkgts,bskh->btkgh", d_s, k_, preferred_element_type=jnp.float32)
        d_k = jnp.einsum("bkgts,btkgh->bskh", d_s, q, preferred_element_type=jnp.float32)
        return d_q, (d_k.astype(k.dtype), d_v.astype(v.dtype))

    positions = jnp.arange(k.shape[1]).reshape(-1, block)
    start = jnp.zeros(q.shape, jnp.float32)
    d_q, (d_k, d_v) = jax.lax.scan(body, start, (_blocks(k, block), _blocks(v, block), positions))
    d_k, d_v = (jnp.moveaxis(x, 0, 1).reshape(y.shape) for x, y in ((d_k, k), (d_v, v)))
    d_sinks = sinks
    if sinks.size:
        p = jnp.exp(sinks.astype(jnp.float32)[None, :, :, None] - log_total)
        d_sinks = -(p * delta).sum((0, 3)).astype(sinks.dtype)
    return d_q.astype(q.dtype), d_k, d_v, d_sinks


_flash.defvjp(_forward, _backward)
