"""Sizes, rates, durations and money: from what people type to SI base units, and back. Dtypes and their bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from rooftop.errors import InputError, nearest

DECIMAL: Mapping[str, float] = {
    "": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12, "p": 1e15, "e": 1e18,
}  # fmt: skip
BINARY: Mapping[str, float] = {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40, "pi": 2.0**50}
DURATIONS: Mapping[str, float] = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0,
    "w": 7 * 86400.0, "y": 365.25 * 86400.0,
}  # fmt: skip

#: Bits of each dtype under its canonical name.
DTYPE_BITS: Mapping[str, float] = {
    "fp64": 64, "fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "fp6": 6, "int4": 4, "fp4": 4,
    "mxfp4": 4 + 8 / 32, "nvfp4": 4 + 8 / 16, "mxfp8": 8 + 8 / 32,  # with a scale of 8 bits for 32 or 16 values
    "int64": 64, "int32": 32, "int16": 16, "bool": 8,
}  # fmt: skip
_ALIASES: Mapping[str, str] = {
    "f64": "fp64", "float64": "fp64", "f32": "fp32", "float32": "fp32", "float": "fp32", "bfloat16": "bf16",
    "f16": "fp16", "float16": "fp16", "half": "fp16", "f8": "fp8", "float8": "fp8", "f8e4m3": "fp8", "f8e5m2": "fp8",
    "e4m3": "fp8", "e5m2": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "s8": "int8", "u8": "int8",
    "uint8": "int8", "i8": "int8", "s4": "int4", "u4": "int4", "i4": "int4", "f4": "fp4", "e2m1": "fp4",
    "i32": "int32", "s32": "int32", "i64": "int64", "s64": "int64",
}  # fmt: skip

_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d]*?)\s*\Z", re.ASCII)
_LARGEST = 1e30


def _parse(text: str, units: Mapping[str, float], what: str, example: str, field: str | None) -> float:
    if isinstance(text, (int, float)):
        text = repr(text)
    problem = InputError(f"{str(text)[:60]!r} is not {what}; write {example}", field=field)
    if len(text) > 64:
        raise problem
    match = _NUMBER.match(text)
    if match is None:
        raise problem
    unit = match[2]
    scale = units.get(unit, units.get(unit.lower()))
    if scale is None:
        raise problem
    value = float(match[1].replace("_", "").replace(",", "")) * scale
    if not math.isfinite(value) or value < 0 or value > _LARGEST:
        raise problem
    return value


def parse_count(text: str, field: str | None = None) -> float:
    """A number of things: `4096`, `4M`, `15T`, `2.5k`, `1e9`. k, M, G or B, T, P are powers of ten; Ki, Mi, ... of two."""
    return _parse(text, {**DECIMAL, **BINARY}, "a number", "a number such as 4096, 4M or 15T", field)


def parse_integer(text: str, field: str | None = None) -> int:
    """A whole number, prefixes as in parse_count."""
    value = parse_count(text, field)
    if value != int(value):
        raise InputError(f"{str(text)[:60]!r} is not a whole number; write a number such as 4096", field=field)
    return int(value)


def parse_bytes(text: str, field: str | None = None) -> float:
    """Bytes: `512`, `34MB`, `1.5TB` (powers of ten), `16GiB` (of two)."""
    units = (
        {f"{p}b": f for p, f in {**DECIMAL, **BINARY}.items() if p != "b"} | dict(DECIMAL) | {"b": 1.0} | dict(BINARY)
    )
    return _parse(text, units, "a number of bytes", "bytes such as 512, 34MB or 16GiB", field)


def parse_seconds(text: str, field: str | None = None) -> float:
    """A duration: `90d`, `3h`, `15ms`, `2us`, `30` (seconds)."""
    return _parse(text, DURATIONS, "a duration", "a duration such as 90d, 3h or 15ms", field)


def parse_usd(text: str, field: str | None = None) -> float:
    """US dollars: `2M`, `$1500`, `1.2`."""
    bare = re.sub(r"\$|usd", "", str(text), flags=re.IGNORECASE)
    return _parse(bare, DECIMAL, "an amount of USD", "an amount such as 2M or 1500", field)


def parse_usd_per_hour(text: str, field: str | None = None) -> float:
    """A price per chip-hour: `1.2`, `1.2 $/h`, `4.2 USD/h`."""
    bare = re.sub(r"\$|usd|(?:/|\bper\b)?\s*(?:hours?|h)\b", "", str(text), flags=re.IGNORECASE)
    return _parse(bare, DECIMAL, "a price per chip-hour", "USD per hour, such as 1.2", field)


def parse_sizes(text: str, field: str | None = None) -> dict[str, int]:
    """Sizes by name: `I=8192,J=8k` gives {'I': 8192, 'J': 8000}."""
    result: dict[str, int] = {}
    if len(text) > 4096:
        raise InputError(
            f"{field or 'sizes'} has {len(text)} characters; write a short list such as X=4,Y=8", field=field
        )
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = item.partition("=")
        name = name.strip()
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z_0-9]*", name):
            raise InputError(f"{item[:60]!r} is not NAME=SIZE; write a list such as X=4,Y=8", field=field)
        if name in result:
            raise InputError(f"{name} is given twice in {text[:60]!r}; give each name once", field=field)
        result[name] = parse_integer(value, field or name)
        if result[name] < 1:
            raise InputError(f"{name}={value.strip()} is not a size; give 1 or more", field=field)
        if result[name] > 10**15:
            raise InputError(f"{name}={value.strip()[:40]} is too large; give a size of at most 1e15", field=field)
    if not result:
        raise InputError(f"{text[:60]!r} names no sizes; write a list such as X=4,Y=8", field=field)
    return result


def dtype(name: str) -> str:
    """The canonical name of a dtype. Raises InputError with the nearest names for an unknown one."""
    low = name.strip().lower().removeprefix("torch.")
    if low in DTYPE_BITS:
        return low
    if low in _ALIASES:
        return _ALIASES[low]
    known = [*DTYPE_BITS, *_ALIASES]
    raise InputError(
        f"unknown dtype {name[:40]!r}{nearest(low, known)}; use one of {', '.join(DTYPE_BITS)}", field="dtype"
    )


def dtype_bytes(name: str) -> float:
    """Bytes of one element: 2 for bf16, 0.5 for int4."""
    bits = DTYPE_BITS.get(name)
    return (DTYPE_BITS[dtype(name)] if bits is None else bits) / 8


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    for scale, unit in steps:
        if abs(value) >= scale * 0.9995:
            return f"{_three(value / scale)}{unit}"
    scale, unit = steps[-1]
    return f"{_three(value / scale)}{unit}"


def _three(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(float(f"{abs(value):.3g}")) + 1e-9))
    return f"{value:,.{min(digits, 6)}f}"


def format_count(value: float) -> str:
    """70553706496 -> 70.6B."""
    return _scaled(float(value), ((1e15, "P"), (1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"), (1.0, "")))


def format_bytes(value: float) -> str:
    """Decimal bytes: 96e9 -> 96.0 GB."""
    return _scaled(float(value), ((1e15, " PB"), (1e12, " TB"), (1e9, " GB"), (1e6, " MB"), (1e3, " kB"), (1.0, " B")))


def format_seconds(value: float) -> str:
    """A duration in the unit that suits it: 188 us, 0.68 s -> 679 ms, 29.4 d."""
    seconds = float(value)
    if seconds == 0:
        return "0 s"
    return _scaled(
        seconds,
        ((86400.0, " d"), (3600.0, " h"), (60.0, " min"), (1.0, " s"), (1e-3, " ms"), (1e-6, " us"), (1e-9, " ns")),
    )


def format_flops_rate(value: float) -> str:
    """FLOP/s: 459e12 -> 459 TFLOP/s."""
    return _scaled(
        float(value), ((1e18, " EFLOP/s"), (1e15, " PFLOP/s"), (1e12, " TFLOP/s"), (1e9, " GFLOP/s"), (1.0, " FLOP/s"))
    )


def format_flops(value: float) -> str:
    """FLOPs: 6.3e24 -> 6.3e+24 FLOPs, 4.8e11 -> 480 GFLOPs."""
    if value >= 1e21:
        return f"{value:.3g} FLOPs"
    return _scaled(
        float(value),
        ((1e18, " EFLOPs"), (1e15, " PFLOPs"), (1e12, " TFLOPs"), (1e9, " GFLOPs"), (1e6, " MFLOPs"), (1.0, " FLOPs")),
    )


def format_bandwidth(value: float) -> str:
    """Bytes per second: 2.77e12 -> 2.77 TB/s."""
    return format_bytes(value) + "/s"


def format_usd(value: float) -> str:
    """USD: 26541664 -> 26.5M USD."""
    return f"{_three(value)} USD" if value < 1e4 else f"{format_count(value)} USD"
