"""What callers may write as a command line does: names for models and slices, `"4M"` for a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rooftop import units
from rooftop.errors import InputError
from rooftop.hardware import Slice, slice_of
from rooftop.transformer import Architecture, architecture

#: Options that may be text, and how that is read.
_READERS: Mapping[str, Callable[[str, str | None], Any]] = {
    "batch": units.parse_count, "max_batch": units.parse_count, "tokens": units.parse_count, "seq": units.parse_integer,
    "price": units.parse_usd_per_hour, "ttft": units.parse_seconds, "tpot": units.parse_seconds, "usd": units.parse_usd,
    "bytes": units.parse_bytes, "budget": units.parse_usd, "flops": units.parse_count, "load": units.parse_count,
    "transfer_bandwidth": units.parse_bytes,
}  # fmt: skip


def numbers(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with their texts read as numbers. Raises InputError, naming the option, for what is none."""
    return {name: number(name, value) for name, value in options.items()}


def number(name: str, value: Any) -> Any:
    """One option, perhaps a text."""
    if not isinstance(value, str) or name not in _READERS:
        return value
    try:
        return _READERS[name](value, name)
    except InputError as error:
        raise InputError(f"{name}: {error.message}", field=name) from None


def model_of(model: str | Architecture) -> Architecture:
    """The model that is meant."""
    return architecture(model) if isinstance(model, str) else model


def where_of(on: str | Slice) -> Slice:
    """The slice that is meant."""
    return slice_of(on) if isinstance(on, str) else on
