"""Chips and slices as tables and as JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rooftop.hardware import Chip, Slice, Torus
from rooftop.units import format_bandwidth, format_bytes, format_count, format_flops_rate, format_seconds
from rooftop.views._terminal import group, heading, table

if TYPE_CHECKING:
    from rich.console import RenderableType


def chip_json(chip: Chip) -> dict[str, Any]:
    """All figures of a chip, with their sources."""
    return {
        "name": chip.name,
        "title": chip.title,
        "aliases": list(chip.aliases),
        "family": chip.family,
        "flops_per_second": dict(chip.flops),
        "vector_flops_per_second": chip.vector_flops,
        "hbm_bytes": chip.hbm_bytes,
        "hbm_bandwidth_bytes_per_second": chip.hbm_bandwidth,
        "fast_memory": {
            "name": chip.fast_memory.name,
            "bytes": chip.fast_memory.bytes,
            "bandwidth_bytes_per_second": chip.fast_memory.bandwidth,
        },
        "tile": list(chip.tile),
        "cores": chip.cores,
        "clock_hz": chip.clock_hz,
        "pcie_bandwidth_bytes_per_second": chip.pcie_bandwidth,
        "chips_per_host": chip.chips_per_host,
        "host_memory_bytes": chip.host_memory_bytes,
        "power_watts": chip.power_watts,
        "price": None
        if chip.price is None
        else {
            "usd_per_hour": chip.price.usd_per_hour,
            "region": chip.price.region,
            "date": chip.price.date,
            "terms": chip.price.terms,
            "source": chip.price.source,
        },
        "units": dict(chip.units),
        "ridge_flops_per_byte": {d: rate / chip.hbm_bandwidth for d, rate in chip.flops.items()},
        "sources": {key: source.text for key, source in chip.sources.items()},
    }


def chips_text(chips: list[Chip]) -> RenderableType:
    """All chips, a line each."""
    rows = [
        (c.name, c.title, format_flops_rate(max(c.flops.get(d, 0.0) for d in ("bf16", "fp16", "fp32"))),
         format_flops_rate(c.flops["fp8"]) if "fp8" in c.flops else (format_flops_rate(c.flops["int8"]) + " int8" if "int8" in c.flops else "-"),
         format_bytes(c.hbm_bytes), format_bandwidth(c.hbm_bandwidth), "-" if c.price is None else f"{c.price.usd_per_hour:g}")
        for c in chips
    ]  # fmt: skip
    return table("Chips", ("name", "", ">16-bit, dense", ">8-bit, dense", ">HBM", ">bandwidth", ">USD/h"), rows)


def chip_text(chip: Chip) -> RenderableType:
    """One chip: every figure with its source."""

    def source(key: str) -> str:
        found = chip.sources.get(key) or chip.sources.get("default")
        return found.text if found else ""

    rows = [(f"{d} peak, dense", format_flops_rate(rate), source("flops")) for d, rate in chip.flops.items()]
    rows += [
        ("vector peak", format_flops_rate(chip.vector_flops), source("vector_flops")),
        ("HBM", format_bytes(chip.hbm_bytes), source("hbm_bytes")),
        ("HBM bandwidth", format_bandwidth(chip.hbm_bandwidth), source("hbm_bandwidth")),
        (chip.fast_memory.name, format_bytes(chip.fast_memory.bytes), source("fast_memory")),
        (f"{chip.fast_memory.name} bandwidth", format_bandwidth(chip.fast_memory.bandwidth),
         source("fast_memory_bandwidth") if "fast_memory_bandwidth" in chip.sources else source("fast_memory")),
        ("matmul tile", "x".join(map(str, chip.tile)), source("tile")),
        ("cores", str(chip.cores), source("cores")),
        ("clock", f"{chip.clock_hz / 1e9:g} GHz", source("clock_hz")),
        ("PCIe, one way", format_bandwidth(chip.pcie_bandwidth), source("pcie_bandwidth")),
        ("chips a host", str(chip.chips_per_host), source("chips_per_host")),
        ("host memory", format_bytes(chip.host_memory_bytes), source("host_memory_bytes")),
        ("power", f"{chip.power_watts:g} W", source("power_watts")),
    ]  # fmt: skip
    if chip.price is not None:
        p = chip.price
        rows.append(("price", f"{p.usd_per_hour:g} USD/h", f"{p.source}; {p.terms}, {p.region}, {p.date}"))
    rows += [
        (name, format_count(v) if isinstance(v, (int, float)) and v > 1e4 else str(v), source(name))
        for name, v in chip.units.items()
    ]
    rows += [
        (
            f"ridge, {d}",
            f"{rate / chip.hbm_bandwidth:.0f} FLOP/byte",
            "derived: peak / HBM bandwidth; for bf16 the critical token batch",
        )
        for d, rate in chip.flops.items()
    ]
    return group(
        heading(f"{chip.title} ({', '.join((chip.name, *chip.aliases))})"),
        table("", ("figure", ">value", "source"), rows),
    )


def slice_json(where: Slice) -> dict[str, Any]:
    """Totals and networks of a slice."""
    chip = where.chip
    return {
        "name": where.name,
        "chip": chip.name,
        "chips": where.chips,
        "hosts": where.hosts,
        "cores": where.chips * chip.cores,
        "flops_per_second": {d: rate * where.chips for d, rate in chip.flops.items()},
        "hbm_bytes": chip.hbm_bytes * where.chips,
        "hbm_bandwidth_bytes_per_second": chip.hbm_bandwidth * where.chips,
        "levels": [_level_json(level) for level in where.levels],
        "bisection_bytes_per_second": bisection(where),
        "usd_per_hour": None if chip.price is None else chip.price.usd_per_hour * where.chips,
    }


def _level_json(level: Any) -> dict[str, Any]:
    if isinstance(level, Torus):
        return {
            "kind": "torus",
            "name": level.name,
            "dims": list(level.dims),
            "wrap": list(level.wrap),
            "link_bandwidth_bytes_per_second": level.link_bandwidth,
            "hop_latency_seconds": level.hop_latency,
        }
    return {
        "kind": "switch",
        "name": level.name,
        "size": level.size,
        "bandwidth_bytes_per_second_per_chip": level.bandwidth,
        "latency_seconds": level.latency,
        "reduces": level.reduces,
    }


def bisection(where: Slice) -> float | None:
    """Bytes per second, one way, across the narrowest cut through the middle of the outermost level."""
    if not where.levels:
        return None
    level = where.levels[-1]
    if isinstance(level, Torus):
        cuts = [
            level.size / n * level.link_bandwidth * (2 if wrap else 1)
            for n, wrap in zip(level.dims, level.wrap, strict=True)
            if n > 1
        ]
        return min(cuts) if cuts else None
    inner = math.prod(x.size for x in where.levels[:-1])
    return level.size // 2 * inner * level.bandwidth


def slice_text(where: Slice) -> RenderableType:
    """One slice."""
    chip = where.chip
    rows = [
        ("chips", f"{where.chips:,} x {chip.title}"),
        ("hosts", f"{where.hosts:,}"),
        ("cores", f"{where.chips * chip.cores:,}"),
        *((f"{d} peak, dense", format_flops_rate(rate * where.chips)) for d, rate in chip.flops.items()),
        ("HBM", format_bytes(chip.hbm_bytes * where.chips)),
        ("HBM bandwidth", format_bandwidth(chip.hbm_bandwidth * where.chips)),
    ]
    cut = bisection(where)
    if cut is not None:
        rows.append(("bisection, one way", format_bandwidth(cut)))
    if chip.price is not None:
        rows.append(("price", f"{chip.price.usd_per_hour * where.chips:,.2f} USD/h"))
    levels = []
    for level in where.levels:
        if isinstance(level, Torus):
            shape = " x ".join(
                f"{n}{' (ring)' if wrap else ''}" for n, wrap in zip(level.dims, level.wrap, strict=True)
            )
            levels.append(
                (
                    level.name,
                    f"torus {shape}",
                    f"{format_bandwidth(level.link_bandwidth)} a link, one way",
                    format_seconds(level.hop_latency) + " a hop",
                )
            )
        else:
            adds = ", adds up in the network" if level.reduces else ""
            levels.append(
                (
                    level.name,
                    f"switch of {level.size}{adds}",
                    f"{format_bandwidth(level.bandwidth)} a chip, one way",
                    format_seconds(level.latency),
                )
            )
    parts: list[RenderableType] = [heading(where.name), table("", ("", ""), rows)]
    if levels:
        parts.append(table("Networks, innermost first", ("name", "shape", ">bandwidth", ">latency"), levels))
    return group(*parts)
