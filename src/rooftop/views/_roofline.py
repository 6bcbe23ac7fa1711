"""One op, one sharded matmul, one collective: as tables and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.roofline import CollectiveTime, MatmulTime, OpRoofline, Placement
from rooftop.units import format_bandwidth, format_bytes, format_count, format_flops, format_flops_rate, format_seconds
from rooftop.views._terminal import bar, group, heading, table

if TYPE_CHECKING:
    from rich.console import RenderableType


def roofline_json(r: OpRoofline) -> dict[str, Any]:
    """The roofline of an op."""
    return {
        "chip": r.chip.name,
        "dtype": r.dtype,
        "unit": r.unit,
        "flops": r.flops,
        "bytes": r.bytes,
        "intensity": r.intensity,
        "ridge": r.ridge,
        "seconds": {
            "math": r.math, "hbm": r.hbm, "bound": r.bound, "sum": r.sum, "expected": r.expected, "vmem": r.vmem,
        },
        "fits_vmem": r.fits_vmem,
        "bottleneck": r.bottleneck,
        "critical": dict(r.critical),
        "assumptions": [f"expected: calibration of the {r.calibration.name}, {r.calibration.provenance}"],
    }  # fmt: skip


def roofline_text(r: OpRoofline) -> RenderableType:
    """The roofline of an op for a person."""
    top = max(float(r.math), float(r.hbm), float(r.vmem))
    unit = "matrix unit" if r.unit == "matrix" else "vector unit"
    rows = [
        ("arithmetic", format_flops(r.flops), format_seconds(r.math), bar(r.math, top), f"{r.dtype} on the {unit}"),
        ("HBM", format_bytes(r.bytes), format_seconds(r.hbm), bar(r.hbm, top), "inputs read, output written, once"),
        (f"from {r.chip.fast_memory.name}", format_bytes(r.bytes), format_seconds(r.vmem), bar(r.vmem, top),
         "if it were there already" + ("" if r.fits_vmem else "; it does not fit")),
    ]  # fmt: skip
    summary = [
        ("bound", f"{format_seconds(r.bound)} to {format_seconds(r.sum)} (perfect overlap to none), by {r.bottleneck}"),
        ("expected", f"{format_seconds(r.expected)} (calibration: {r.calibration.name})"),
        ("intensity", f"{r.intensity:.4g} FLOP/byte; the ridge of {r.chip.name} is {r.ridge:.4g}"),
        (
            "compute-bound from",
            ", ".join(f"{a} = {v:,.0f}" for a, v in r.critical.items() if v is not None) or "never, at any size",
        ),
    ]
    return group(
        heading(f"{r.expression} on {r.chip.title}"),
        table("", ("", ">amount", ">time", "", ""), rows),
        table("", ("", ""), summary),
    )


def collective_json(c: CollectiveTime) -> dict[str, Any]:
    """A collective on a slice."""
    return {
        "kind": c.kind,
        "axes": dict(c.axes),
        "slice": c.where.name,
        "bytes": c.bytes,
        "seconds": c.seconds,
        "seconds_bound": c.bound,
        "seconds_expected": c.expected,
        "regime": c.regime,
        "hops": c.hops,
        "bandwidth_bytes_per_second": c.bandwidth,
        "placement": None if c.placement is None else placement_json(c.placement),
    }


def placement_json(placement: Placement) -> list[dict[str, Any]]:
    """Which mesh axes lie on which dimension of the network."""
    return [
        {
            "network": d.network,
            "size": d.size,
            "wraps": d.wrap,
            "factors": {a: int(n) for a, n in f.items() if n > 1 and a != "(rest)"},
        }
        for d, f in zip(placement.dimensions, placement.factors, strict=True)
    ]


def placement_words(placement: Placement) -> str:
    """The same in a line."""
    words = []
    for d, f in zip(placement.dimensions, placement.factors, strict=True):
        inside = " x ".join(f"{a} {n}" for a, n in f.items() if n > 1 and a != "(rest)") or "-"
        words.append(f"{d.network}[{d.size}{', ring' if d.wrap else ''}]: {inside}")
    return "; ".join(words)


def collective_text(c: CollectiveTime) -> RenderableType:
    """A collective for a person."""
    rows = [
        ("time", f"{format_seconds(c.seconds)}, bound by {c.regime} (whole shards around the rings, as in the book)"),
        ("bound", f"{format_seconds(c.bound)}: no schedule moves (n-1)/n of the array faster"),
        ("expected", f"{format_seconds(c.expected)} as calibrated"),
        ("hops", str(c.hops)),
        ("effective bandwidth", format_bandwidth(c.bandwidth)),
    ]
    if c.placement is not None:
        rows.append(("placement", placement_words(c.placement)))
    axes = ", ".join(f"{a}={n}" for a, n in c.axes.items())
    return group(
        heading(f"{c.kind.replace('_', '-')} of {format_bytes(c.bytes)} over {axes} on {c.where.name}"),
        table("", ("", ""), rows),
    )


def matmul_json(m: MatmulTime) -> dict[str, Any]:
    """A sharded einsum on a slice."""
    return {
        "expression": str(m.expression),
        "slice": m.where.name,
        "mesh": dict(m.mesh),
        "placement": placement_json(m.placement),
        **_way_json(m.best),
        "alternatives": [_way_json(w) for w in m.ways[1:]],
    }


def _way_json(w: Any) -> dict[str, Any]:
    return {
        "collectives": [
            {
                "kind": c.kind, "array": c.array, "axes": list(c.axes), "bytes": t.bytes, "seconds": t.seconds,
                "seconds_bound": t.bound, "seconds_expected": t.expected,
            }
            for c, t in w.collectives
        ],
        "local": {"flops": w.flops, "bytes": w.bytes, "seconds": w.local},
        "seconds": {"bound": w.bound, "sum": w.sum, "expected": w.expected},
        "bottleneck": w.bottleneck,
    }  # fmt: skip


def matmul_text(m: MatmulTime) -> RenderableType:
    """A sharded einsum for a person: the fastest way, then the others."""
    best = m.best
    rows = [
        (str(c), format_bytes(t.bytes), t.regime, format_seconds(t.seconds), format_seconds(t.expected))
        for c, t in best.collectives
    ]
    local = best.way.local
    if local is not None:
        rate = best.flops / best.local if best.local > 0 else 0.0
        rows.append((f"local {local}", format_flops(best.flops), "compute" if best.math >= best.hbm else "hbm",
                     format_seconds(best.local), format_flops_rate(rate)))  # fmt: skip
    parts: list[RenderableType] = [
        heading(f"{m.expression} on {m.where.name}"),
        table("", ("step", ">amount", "bound by", ">time", ">expected / rate"), rows),
        table("", ("", ""), [
            ("bound", f"{format_seconds(best.bound)} to {format_seconds(best.sum)} (perfect overlap to none), by {best.bottleneck}"),
            ("communication", format_seconds(best.network) if best.collectives else "none"),
            ("placement", placement_words(m.placement)),
        ]),
    ]  # fmt: skip
    if len(m.ways) > 1:
        others = [
            (", ".join(str(c) for c, _ in w.collectives) or "no communication", format_seconds(w.network),
             format_flops(w.flops), format_seconds(w.local), format_seconds(w.sum))
            for w in m.ways[1:7]
        ]  # fmt: skip
        parts.append(
            table(
                f"Other ways ({len(m.ways) - 1})",
                ("collectives", ">network", ">FLOPs a chip", ">local", ">sum"),
                others,
            )
        )
    return group(*parts)


__all__ = [
    "collective_json", "collective_text", "format_count", "matmul_json", "matmul_text", "placement_json", "placement_words",
    "roofline_json", "roofline_text",
]  # fmt: skip
