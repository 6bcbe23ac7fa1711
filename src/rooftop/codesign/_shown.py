"""Values of parameters and columns with their units, as names tell them."""

from __future__ import annotations

import math
from typing import Any

from rooftop.units import format_bytes, format_count, format_seconds


def shown(name: str, value: Any) -> str:
    """A value under its column's name, with its unit."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if ("seconds" in name and "per_second" not in name) or name.endswith(
        ("latency", "overhead", "ttft", "tpot", "e2e")
    ):
        return format_seconds(value)
    if name.startswith("mfu") or name in ("utilisation", "slo_attainment", "kv_occupancy"):
        return f"{value:.1%}"
    if name.endswith(("bandwidth",)):
        return format_bytes(value) + "/s"
    if "bytes" in name:
        return format_bytes(value)
    if isinstance(value, int) and abs(value) < 100_000:
        return str(value)
    return format_count(value) if abs(value) >= 1 else f"{value:.3g}"
