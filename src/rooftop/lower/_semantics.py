"""What each op of a program computes, in JAX: the arithmetic behind the names that `transformer` gives.

Einsums are what they say. Maps are known by the last word of their name; ops of a fused attention kernel are one call.
Positions are rotary with base 10,000 whatever a config says: it changes no FLOP and no byte.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rooftop.arrays import Array, Op, Program
from rooftop.errors import InputError
from rooftop.lower._attention import Mask
from rooftop.transformer import Attention, LatentAttention

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
DTYPES = {"bf16": jnp.bfloat16, "fp16": jnp.float16, "fp32": jnp.float32, "int32": jnp.int32}


def kind_of(array: Array, compute: str) -> Any:
    """The dtype of an array; what programs call bf16 is whatever the matmuls run in."""
    return DTYPES[compute if array.dtype == "bf16" else array.dtype]


def einsum(program: Program, op: Op, operands: Sequence[Any], compute: str) -> Any:
    """The sum of products over all axes that the output lacks; summed in f32, returned in the output's dtype."""
    output = program.array(op.output)
    letters: dict[str, str] = {}
    terms = []
    for name in op.inputs:
        terms.append("".join(letters.setdefault(a, _LETTERS[len(letters)]) for a in program.array(name).axes))
    text = f"{','.join(terms)}->{''.join(letters[a] for a in output.axes)}"
    kind = kind_of(output, compute)
    if len(operands) == 1:
        return jnp.einsum(text, operands[0])
    return jnp.einsum(text, *operands, preferred_element_type=kind)


def rotate(x: Any, positions: Any = None, size: int = 0) -> Any:
    """Rotary embedding of x [B, T, ..] over the last axis, or its last `size` elements (Su et al., 2021).

    positions: [B, T], or None where they begin at 0.
    """
    if size and size < x.shape[-1]:
        return jnp.concatenate([x[..., :-size], rotate(x[..., -size:], positions)], -1)
    half = x.shape[-1] // 2
    frequency = 10_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    places = jnp.arange(x.shape[1])[None] if positions is None else positions
    angle = places.astype(jnp.float32)[..., None] * frequency
    shape = (*places.shape, *(1,) * (x.ndim - 3), half)
    cos, sin = jnp.cos(angle).reshape(shape), jnp.sin(angle).reshape(shape)
    a, b = jnp.split(x.astype(jnp.float32)[..., : 2 * half], 2, -1)
    turned = jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1).astype(x.dtype)
    return turned if 2 * half == x.shape[-1] else jnp.concatenate([turned, x[..., 2 * half :]], -1)


def norm(x: Any, weights: Sequence[Any]) -> Any:
    """RMSNorm with a scale, LayerNorm with a scale and a shift, over the axes of the weights."""
    wide = x.astype(jnp.float32)
    axes = tuple(range(x.ndim - weights[0].ndim, x.ndim)) if weights else (-1,)
    if len(weights) > 1:
        wide = wide - wide.mean(axes, keepdims=True)
    wide = wide * jax.lax.rsqrt(jnp.square(wide).mean(axes, keepdims=True) + 1e-6)
    if weights:
        wide = wide * weights[0].astype(jnp.float32)
    if len(weights) > 1:
        wide = wide + weights[1].astype(jnp.float32)
    return wide.astype(x.dtype)


def _aligned(program: Program, op: Op, operands: Sequence[Any]) -> list[Any]:
    """Operands broadcast to the axes of the output; T and S are one axis where only one of them is in the output."""
    output = program.array(op.output).axes
    result = []
    for name, x in zip(op.inputs, operands, strict=True):
        axes = [("S" if a == "T" and "T" not in output else "T" if a == "S" and "S" not in output else a)
                for a in program.array(name).axes]  # fmt: skip
        order = [axes.index(a) for a in output if a in axes]
        if len(order) != len(axes):
            raise _unknown(program, op)
        result.append(jnp.transpose(x, order).reshape([x.shape[axes.index(a)] if a in axes else 1 for a in output]))
    return result


def _unknown(program: Program, op: Op) -> InputError:
    return InputError(
        f"the reference model cannot compute {op.name} of {program.name}: only softmax attention with grouped heads or a"
        " latent, MLPs and experts are lowered to JAX so far",
        field="model",
    )


def computed(
    program: Program, op: Op, operands: Sequence[Any], compute: str, *, active: int = 0, positions: Any = None
) -> Any:
    """The result of a map. active: experts of a token, for a router. positions: of tokens [B, T], where not from 0.

    Raises InputError for maps that are not known.
    """
    word = op.name.rsplit(".", 1)[-1]
    weights = [x for n, x in zip(op.inputs, operands, strict=True) if program.array(n).role == "weight"]
    others = [x for n, x in zip(op.inputs, operands, strict=True) if program.array(n).role != "weight"]
    if word.endswith("norm") and len(others) == 1:
        return norm(others[0], weights)
    if word in ("rotate_q", "rotate_k"):
        x = others[0]
        # of latent attention only the part is rotated whose key all heads share
        size = program.axes.get("R", 0)
        return rotate(norm(x, weights) if weights else x, positions, size if isinstance(size, int) else 0)
    if word == "join_k":
        parts = _heads_joined(others)
        return jnp.concatenate(parts, -1)
    if op.linear:
        return sum(_aligned(program, op, operands))
    if word == "activation":
        gate, *rest = _aligned(program, op, operands)
        made = jax.nn.silu(gate.astype(jnp.float32)).astype(gate.dtype)
        for x in rest:
            made = made * x.astype(made.dtype)
        return made
    if word == "choose" and active:
        values, chosen = jax.lax.top_k(jax.nn.softmax(others[0].astype(jnp.float32), -1), active)
        share = values / values.sum(-1, keepdims=True)
        spread = jnp.put_along_axis(jnp.zeros_like(others[0], jnp.float32), chosen, share, -1, inplace=False)
        return spread.astype(kind_of(program.array(op.output), compute))
    raise _unknown(program, op)


def _heads_joined(parts: Sequence[Any]) -> list[Any]:
    """Parts of a key [B, S, K, n] and a part [B, S, m] that all heads share, all with heads."""
    heads = next(x.shape[2] for x in parts if x.ndim == 4)
    return [x if x.ndim == 4 else jnp.broadcast_to(x[:, :, None], (*x.shape[:2], heads, x.shape[-1])) for x in parts]


def loss(logits: Any, targets: Any) -> Any:
    """Cross entropy of each position [B, T], in f32; the vocabulary may be split."""
    wide = logits.astype(jnp.float32)
    total = jax.nn.logsumexp(wide, -1)
    here = jax.lax.broadcasted_iota(jnp.int32, wide.shape, 2) == targets[..., None]
    return total - jnp.where(here, wide, 0.0).sum(-1)


def mask_of(mixer: Any) -> Mask:
    """What queries of an attention layer see."""
    if not isinstance(mixer, Attention):
        return Mask()
    return Mask(mixer.causal, mixer.window, mixer.chunk)


def softmax(scores: Sequence[Any], size: int, positions: Any, mask: Mask, sinks: Any = None) -> Any:
    """Softmax over keys of the sum of scores [B, K, G, T, S], heads of `size`, for queries at positions [B, T] and a cache.

    sinks: None, or a logit [K, G] of each head that takes part and has no value.
    """
    total = sum(s.astype(jnp.float32) for s in scores) / math.sqrt(size)
    held = held_positions(positions, total.shape[-1])
    seen = mask.of(positions, held) & (held >= 0)[:, None, :]
    total = jnp.where(seen[:, None, None], total, -1e30)
    top = total.max(-1, keepdims=True)
    rest = jnp.zeros(())
    if sinks is not None:
        logit = sinks.astype(jnp.float32)[None, :, :, None, None]
        top = jnp.maximum(top, logit)
        rest = jnp.exp(logit - top)
    weights = jnp.exp(total - top)
    return (weights / (weights.sum(-1, keepdims=True) + rest)).astype(scores[0].dtype)


def score_size(mixer: Any) -> int:
    """The size of a head, by whose root scores are divided."""
    return int(mixer.nope_dim + mixer.rope_dim if isinstance(mixer, LatentAttention) else mixer.head_dim)


def held_positions(positions: Any, slots: int) -> Any:
    """Which position each slot of a cache holds [B, S] once those of `positions` [B, T] are in it; below 0: none.

    Position p lies in slot p mod S, so that a cache that is shorter than its sequence holds its last S positions.
    """
    last = positions[:, -1:]
    return last - (last - jnp.arange(slots)[None]) % slots


def kept(cache: Any, new: Any, positions: Any) -> Any:
    """A cache [B, S, ..] with the entries new [B, T, ..] of positions [B, T], which follow each other."""
    which = held_positions(positions, cache.shape[1]) - positions[:, :1]
    return chosen(new, which, cache)


def chosen(entries: Any, which: Any, otherwise: Any) -> Any:
    """entries[b, which[b, s]] of [B, T, ..] for each slot; where there is none of that number, what lies in `otherwise`."""
    shape = (*which.shape, *(1,) * (entries.ndim - 2))
    index = jnp.clip(which, 0, entries.shape[1] - 1).reshape(shape)
    found = jnp.take_along_axis(entries, index, 1)
    return jnp.where(
        ((which >= 0) & (which < entries.shape[1])).reshape(shape), found.astype(otherwise.dtype), otherwise
    )


def weight(program: Program, name: str, weights: Mapping[str, Any]) -> Any:
    """A weight by its name in a program; latent attention in its absorbed form has its queries' matrix in two parts."""
    if name == "w_q_rotated" and name not in weights:
        return weights["w_q"][..., -int(program.axes["R"]) :]  # type: ignore[arg-type]
    if name == "w_q" and any(w.name == "w_q_rotated" for w in program.weights) and "w_q_rotated" not in weights:
        return weights["w_q"][..., : int(program.axes["Hn"])]  # type: ignore[arg-type]
    return weights[name]


def slots(weights: Any, capacity: int) -> tuple[Any, Any]:
    """Which token fills which slot: (token [E, C], share [E, C]) for weights [N, E]; a share of 0 is an empty slot.

    An expert takes its tokens in their order and drops those beyond its capacity.
    """
    taken = weights.T > 0  # [E, N]
    order = jnp.argsort(~taken, axis=1, stable=True)[:, :capacity]
    full = jnp.take_along_axis(taken, order, 1)
    return order, jnp.where(full, jnp.take_along_axis(weights.T, order, 1), 0.0)


def scale_of(fan_in: float) -> float:
    """Standard deviation of a new weight."""
    return 1 / math.sqrt(max(1.0, fan_in))
