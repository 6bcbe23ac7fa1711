"""Tokens to the slots of their experts and back, as one device of a mesh does it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from rooftop.lower import _semantics as semantics


def route(
    word: str, capacity: int, split: tuple[str, ...], homes: tuple[str, ...], ways: Mapping[str, int]
) -> Callable[..., Any]:
    """The function of a route: "dispatch" (tokens [B, T, D] and shares [B, T, E] to [E, C, D]), "weights" (shares to
    [E, C]) or "combine" ([E, C, D] and shares to tokens).

    capacity: slots of an expert for the tokens of one device. split: mesh axes that split tokens; homes: those over which
    experts are shared out. Along axes in both an all-to-all swaps experts for slots; along homes that hold the same
    tokens each device takes its own experts, and their results are summed.
    """
    swapped = tuple(a for a in homes if a in split)
    own = tuple(a for a in homes if a not in split)
    if homes != (*own, *swapped):
        raise AssertionError(f"experts lie over {homes}, tokens over {split}")
    devices = math.prod(ways[a] for a in own)

    def to_experts(x: Any) -> Any:
        if own:
            mine = x.shape[0] // devices
            x = jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(own) * mine, mine)
        return jax.lax.all_to_all(x, swapped, 0, 1, tiled=True) if swapped else x

    def from_experts(x: Any) -> Any:
        return jax.lax.all_to_all(x, swapped, 1, 0, tiled=True) if swapped else x

    def filled(share: Any) -> tuple[Any, Any]:
        return semantics.slots(share.reshape(-1, share.shape[-1]), capacity)

    def dispatch(x: Any, share: Any) -> Any:
        return to_experts(x.reshape(-1, x.shape[-1])[filled(share)[0]])

    def shares(share: Any) -> Any:
        return to_experts(filled(share)[1])

    def combine(made: Any, share: Any) -> Any:
        token, kept = filled(share)
        made = from_experts(made)
        if own:
            start = jax.lax.axis_index(own) * made.shape[0]
            token, kept = (jax.lax.dynamic_slice_in_dim(a, start, made.shape[0]) for a in (token, kept))
        flat = jnp.zeros((share.shape[0] * share.shape[1], made.shape[-1]), made.dtype)
        back = jnp.where(kept[..., None] > 0, made, 0)
        flat = flat.at[token.reshape(-1)].add(back.reshape(-1, made.shape[-1]))
        summed = jax.lax.psum(flat, own) if own else flat
        return summed.reshape(*share.shape[:2], -1)

    functions: dict[str, Callable[..., Any]] = {"dispatch": dispatch, "weights": shares, "combine": combine}
    return functions[word]
