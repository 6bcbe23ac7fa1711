"""The roofline chart: every op by its intensity and its rate, under the roofs of the chip."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rooftop.figures._figure import COLOURS, Figure, log_axis
from rooftop.roofline import OpRoofline, ridge
from rooftop.units import format_bytes, format_flops, format_flops_rate, format_seconds


@dataclass(frozen=True, slots=True)
class Dot:
    """One op on the chart; seconds and FLOPs of one run, of which there are `count`. roof: the FLOP/s that it could reach."""

    name: str
    told: str  # phase, shape: what else to say of it
    count: float
    flops: float
    bytes: float
    seconds: float
    bound: float
    roof: float
    binds: str

    @property
    def whole(self) -> float:
        """Seconds of all runs."""
        return self.count * self.seconds


def roofline_chart(
    dots: Sequence[Dot], bandwidth: float, roofs: Sequence[tuple[str, float]], title: str, caption: str
) -> Figure:
    """Ops as points; roofs: (name, FLOP/s). Ops without FLOPs or bytes are in the rows only."""
    drawn = [d for d in dots if d.flops > 0 and d.bytes > 0 and d.seconds > 0]
    whole = sum(d.whole for d in dots) or 1.0
    low = min([d.flops / d.bytes for d in drawn] + [0.1]) / 2
    high = max([d.flops / d.bytes for d in drawn] + [10 * ridge(r, bandwidth) for _, r in roofs]) * 2
    data: list[dict[str, Any]] = []
    for name, roof in roofs:
        corner = ridge(roof, bandwidth)
        data.append({
            "type": "scatter", "mode": "lines", "name": name, "x": [low, corner, high], "y": [low * bandwidth, roof, roof],
            "line": {"width": 2, "color": COLOURS["muted"], "dash": "solid" if roof == roofs[0][1] else "dot"}, "hoverinfo": "skip",
            "showlegend": False,
        })  # fmt: skip
    for binds in dict.fromkeys(d.binds for d in drawn):
        some = [d for d in drawn if d.binds == binds]
        data.append({
            "type": "scatter", "mode": "markers", "name": f"bound by {binds}",
            "x": [d.flops / d.bytes for d in some], "y": [d.flops / d.seconds for d in some],
            "marker": {
                "size": [7 + 30 * math.sqrt(d.whole / whole) for d in some], "color": COLOURS.get(binds, COLOURS["network"]),
                "opacity": 0.72, "line": {"width": 1, "color": "#ffffff"},
            },
            "text": [_hover(d, whole) for d in some], "hovertemplate": "%{text}<extra></extra>",
        })  # fmt: skip
    notes = [
        {"x": math.log10(high), "y": math.log10(roof), "text": f"{name}: {format_flops_rate(roof)}", "showarrow": False,
         "xanchor": "right", "yanchor": "bottom", "font": {"size": 12}}
        for name, roof in roofs
    ]  # fmt: skip
    at = math.sqrt(low * ridge(roofs[0][1], bandwidth))
    notes.append({
        "x": math.log10(at), "y": math.log10(at * bandwidth), "text": f"HBM: {format_bytes(bandwidth)}/s", "showarrow": False,
        "xanchor": "right", "yanchor": "bottom", "font": {"size": 12}, "xshift": -6,
    })  # fmt: skip
    rows = [
        (d.name, d.told, d.count, d.flops, d.bytes, d.flops / d.bytes if d.bytes else None, d.seconds, d.bound,
         d.whole / whole, d.binds)
        for d in sorted(dots, key=lambda d: -d.whole)
    ]  # fmt: skip
    columns = ("op", "shape", "runs", "flops", "bytes", "intensity", "seconds", "bound_seconds", "share", "binds")
    layout = {
        "xaxis": log_axis("intensity, FLOP per byte"),
        "yaxis": log_axis("expected rate, FLOP/s"),
        "annotations": notes,
        "height": 460,
    }
    return Figure("roofline", title, caption, columns, rows, data, layout)


def _hover(d: Dot, whole: float) -> str:
    lines = [
        f"<b>{d.name}</b>" + (f" {d.told}" if d.told else ""),
        f"{format_seconds(d.seconds)} expected, {format_seconds(d.bound)} bound by {d.binds}",
        f"{format_flops(d.flops)}, {format_bytes(d.bytes)}, {d.flops / d.bytes:,.3g} FLOP/byte",
        f"{d.flops / d.seconds / d.roof:.0%} of {format_flops_rate(d.roof)}",
    ]
    if d.count != 1:
        lines.append(f"{d.count:,.0f} runs: {format_seconds(d.whole)}, {d.whole / whole:.1%} of all")
    return "<br>".join(lines)


def op_chart(r: OpRoofline) -> Figure:
    """One op under the roof of a chip."""
    roof = r.flops / r.math
    dot = Dot(str(r.expression).replace("<", ""), "", 1, r.flops, r.bytes, r.expected, r.bound, roof, r.bottleneck)
    caption = f"Left of {r.ridge:,.0f} FLOP/byte, where the roofs meet, an op is bound by memory; this one has {r.intensity:,.3g}."
    return roofline_chart(
        [dot], r.chip.hbm_bandwidth, [("peak", roof)], f"Roofline of one op on {r.chip.title}", caption
    )
