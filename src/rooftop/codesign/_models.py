"""The numbers of a model that a study can change, and models with one of them changed."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from rooftop.errors import InputError, nearest
from rooftop.transformer import Architecture, Layer

#: Numbers of a layer's parts, and of parts within them.
_PARTS = (
    "heads", "kv_heads", "head_dim", "v_head_dim", "d_ff", "experts", "active", "shared_d_ff", "window", "q_rank", "kv_rank",
    "rope_dim", "nope_dim",
)  # fmt: skip
_WHOLE = ("d_model", "vocab", "layers")


def model_numbers(model: Architecture) -> dict[str, int]:
    """What `model.NAME` can name of a model, with its values: the largest where layers differ."""
    found: dict[str, int] = {"d_model": model.d_model, "vocab": model.vocab, "layers": model.layers}
    for layer in model.stack:
        for part in _parts(layer):
            for name in _PARTS:
                value = getattr(part, name, None)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    found[name] = max(found.get(name, 0), value)
    return found


def with_number(model: Architecture, name: str, value: int) -> Architecture:
    """The same model with one number changed in all layers that have it. Raises InputError.

    Layers that differ keep their pattern: of `layers`, every kind keeps its share; of other numbers, a layer whose number is
    smaller keeps its ratio to the largest.
    """
    known = model_numbers(model)
    if name not in known:
        raise InputError(
            f"{model.name} has no number {name[:40]!r}{nearest(name, known)}; it has {', '.join(known)}",
            field=f"model.{name[:40]}",
        )
    if not 1 <= value <= 10**8:
        raise InputError(f"model.{name} = {value} is out of range; give a whole number from 1 on", field=name)
    if value == known[name]:
        return model
    plain = replace(
        model, name=_renamed(model.name, name, value), published_parameters=0, published_active=0, aliases=()
    )
    if name == "d_model":
        return replace(plain, d_model=value)
    if name == "vocab":
        return replace(plain, vocab=value)
    if name == "layers":
        if value > 10_000:
            raise InputError(f"model.layers = {value} is out of range; give 1 to 10,000", field="model.layers")
        return replace(plain, stack=tuple(model.stack[i * model.layers // value] for i in range(value)))
    largest = known[name]

    def scaled(part: Any) -> Any:
        if part is None:
            return None
        changes: dict[str, Any] = {}
        for f in fields(part):
            held = getattr(part, f.name)
            if f.name == name and isinstance(held, int) and held > 0:
                changes[name] = max(1, round(held * value / largest))
            elif hasattr(held, "__dataclass_fields__"):
                changes[f.name] = scaled(held)
            elif isinstance(held, tuple) and held and all(hasattr(h, "__dataclass_fields__") for h in held):
                changes[f.name] = tuple(scaled(h) for h in held)
        return replace(part, **changes) if changes else part

    def of(layer: Layer) -> Layer:
        return replace(layer, mixer=scaled(layer.mixer), feed_forward=scaled(layer.feed_forward))

    once = {layer: of(layer) for layer in dict.fromkeys((*model.stack, *model.extra_heads))}
    return replace(
        plain, stack=tuple(once[one] for one in model.stack), extra_heads=tuple(once[one] for one in model.extra_heads)
    )


def _renamed(name: str, number: str, value: int) -> str:
    base, bracket, told = name.partition("[")
    kept = [t for t in told.removesuffix("]").split(", ") if t and not t.startswith(f"{number}=")] if bracket else []
    return f"{base}[{', '.join((*kept, f'{number}={value}'))}]"


def _parts(layer: Layer) -> list[Any]:
    found: list[Any] = []

    def walk(part: Any) -> None:
        if not hasattr(part, "__dataclass_fields__"):
            return
        found.append(part)
        for f in fields(part):
            held = getattr(part, f.name)
            for each in held if isinstance(held, tuple) else (held,):
                walk(each)

    walk(layer.mixer)
    walk(layer.feed_forward)
    return found


__all__ = ["model_numbers", "with_number"]
