"""The other direction of `architecture`: the words that name a model which is given as numbers."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from rooftop.errors import InputError
from rooftop.transformer._architecture import Architecture, with_capacity
from rooftop.transformer._catalogue import aliases, architecture, models
from rooftop.transformer._layers import MLP, Attention, MoE


def numbers_of(arch: Architecture) -> dict[str, Any] | None:
    """The numbers that `architecture` reads as this model; None where they do not say all of it.

    Slots of experts (`capacity_factor`) are an option of their own and not among them.
    """
    layer = arch.stack[0]
    mixer, part = layer.mixer, layer.feed_forward
    if not isinstance(mixer, Attention) or not isinstance(part, (MLP, MoE)):
        return None
    numbers: dict[str, Any] = {
        "layers": len(arch.stack), "d_model": arch.d_model, "heads": mixer.heads, "kv_heads": mixer.kv_heads,
        "head_dim": mixer.head_dim, "d_ff": part.d_ff, "vocab": arch.vocab,
    }  # fmt: skip
    more: dict[str, Any] = {
        "gated": part.gated, "tied": arch.tied, "qkv_bias": "qkv" in mixer.bias, "out_bias": "o" in mixer.bias,
        "mlp_bias": part.bias, "qk_norm": bool(mixer.qk_norm), "norm_weights": arch.norm_weights,
        "positions": arch.positions, "parallel": bool(layer.parallel), "post_norms": layer.norms == "both",
        **_windows(arch),
    }  # fmt: skip
    if isinstance(part, MoE):
        more |= {"experts": part.experts, "active": part.active, "shared_d_ff": part.shared_d_ff}
    usual = {"gated": True, "norm_weights": 1, "window_every": 1, "active": 1}
    numbers |= {key: value for key, value in more.items() if value != usual.get(key, 0)}
    try:
        return numbers if _bare(architecture(words_of_numbers(numbers))) == _bare(arch) else None
    except InputError:
        return None


def words_of_numbers(numbers: dict[str, Any]) -> str:
    """`layers=32,d_model=4096,...`, as `architecture` reads it."""
    return ",".join(f"{key}={str(value).lower()}" for key, value in numbers.items())


def words_of(arch: Architecture) -> str | None:
    """The shortest text that `architecture` reads as this model: its name in the catalogue, or its numbers."""
    found = _names().get(_bare(arch))
    if found is not None:
        return found
    numbers = numbers_of(arch)
    return None if numbers is None else words_of_numbers(numbers)


def catalogue_name(text: str) -> str | None:
    """The model of the catalogue whose name or alias has the same letters and digits; None if there is none."""
    return _spelt().get(_letters(text))


@functools.cache
def _spelt() -> dict[str, str]:
    every = {_letters(alias): name for alias, name in aliases().items()}
    return every | {_letters(name): name for name in models()}


def _letters(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalnum())


@functools.cache
def _names() -> dict[Architecture, str]:
    """Catalogue models by their arithmetic; of several that are alike, the first."""
    result: dict[Architecture, str] = {}
    for name in models():
        result.setdefault(_bare(architecture(name)), name)
    return result


def _bare(arch: Architecture) -> Architecture:
    """Nothing but what decides the arithmetic."""
    if arch.experts is not None:
        arch = with_capacity(arch, 1.0)
    return replace(
        arch, name="", family="", source="", date="", published_parameters=0, published_active=0, aliases=(), notes=(),
        warning="", max_seq=0,
    )  # fmt: skip


def _windows(arch: Architecture) -> dict[str, int]:
    every = arch.windows
    if not every:
        return {}
    full = [i for i, window in enumerate(every) if not window]
    return {"window": max(every), "window_every": full[0] + 1 if full else 1}
