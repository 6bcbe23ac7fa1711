"""Figures of a profile: where the time went, its ops on the roofline, memory and tracks over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rooftop.figures._figure import COLOURS, SERIES, Figure, axis
from rooftop.figures._roofline import Dot, roofline_chart
from rooftop.profiles import Report, Trace, recognise, short_name
from rooftop.units import format_bytes, format_seconds

_MOST_EVENTS = 3000
_CATEGORIES = {
    "matmul": "#3b78c2", "attention": "#8a63c9", "convolution": "#1f8fa0", "collective": "#d9662b", "host transfer": "#cf4f86",
    "transfer wait": "#cf4f86", "elementwise": "#2a9163", "normalisation": "#7d8f1f", "copy and layout": "#a67c00",
    "reduction": "#4f9d69", "unknown": "#83888f",
}  # fmt: skip


def trace_figures(report: Report, traces: Sequence[Trace]) -> list[Figure]:
    """All that shows a profile; its tracks where they are at hand."""
    found = [losses_chart(report)]
    if report.roof is not None:
        found.append(trace_roofline(report))
    if traces:
        found.append(tracks_chart(traces))
    return found + ([memory_chart(report)] if report.memory else [])


def losses_chart(report: Report) -> Figure:
    """Each loss starts where the one before ends; together they are the window."""
    starts, done = [], 0.0
    for loss in report.losses:
        starts.append(done)
        done += loss.share
    names = [loss.name for loss in report.losses]
    shades = [
        COLOURS["compute"] if n == 0 else COLOURS["exposed"] if name.startswith("idle") else COLOURS["host"]
        for n, name in enumerate(names)
    ]
    data = [{
        "type": "bar", "orientation": "h", "y": names, "base": [100 * s for s in starts], "x": [100 * x.share for x in report.losses],
        "marker": {"color": shades}, "textposition": "none", "hovertemplate": "%{text}<extra></extra>",
        "text": [f"{_safe(x.name)}: {x.share:.1%}, {format_seconds(x.seconds)}<br>{_safe(x.advice)}" for x in report.losses],
    }]  # fmt: skip
    layout = {
        "height": 130 + 28 * len(names), "bargap": 0.25, "xaxis": axis("% of the window", range=[0, 100]),
        "yaxis": {"automargin": True, "categoryorder": "array", "categoryarray": names[::-1], "type": "category"},
        "showlegend": False,
    }  # fmt: skip
    rows = [(x.name, x.seconds, x.share, x.advice) for x in report.losses]
    caption = f"The window of {format_seconds(report.window)}, from the roofline (blue) to what was measured; hover for what to do."
    return Figure("losses", "Where the time went", caption, ("part", "seconds", "share", "advice"), rows, data, layout)


def trace_roofline(report: Report) -> Figure:
    """Ops whose FLOPs and bytes are known under the roofs of the chip."""
    assert report.roof is not None
    dots, roofs = [], {}
    for op in report.ops:
        if not (op.flops and op.bytes and op.seconds > 0 and op.math and op.bound is not None and op.count):
            continue
        roof = op.flops / op.math
        roofs[roof] = op.dtype or "peak"
        dots.append(Dot(
            _safe(short_name(op.name)), _safe(op.shape), op.count, op.flops / op.count, op.bytes / op.count,
            op.seconds / op.count, op.bound / op.count, roof, op.binds or "hbm",
        ))  # fmt: skip
    ordered = [(roofs[r], r) for r in sorted(roofs, reverse=True)] or [
        ("peak", max(report.roof.peak(d) or 0.0 for d in ("bf16", "fp16", "fp32")) or 1.0)
    ]
    caption = f"{len(dots):,} ops whose FLOPs and bytes the profile tells, by measured rate; the larger, the more of the time."
    return roofline_chart(dots, report.roof.bandwidth, ordered, "Roofline of what was measured", caption)


def tracks_chart(traces: Sequence[Trace]) -> Figure:
    """Tracks of devices, the longest events of each profile."""
    bars: dict[str, list[tuple[str, float, float, str]]] = {}
    rows: list[tuple[Any, ...]] = []
    lanes: list[str] = []
    left = 0
    for trace in traces:
        index = trace.events("device", "async")
        if not len(index):
            continue
        longest = set(index[trace.duration[index].argsort()[::-1][: _MOST_EVENTS // len(traces)]].tolist())
        left += len(index) - len(longest)
        first = int(trace.start[index].min())
        rank = "" if trace.rank is None else f"rank {trace.rank}, "
        for number, track in enumerate(trace.tracks):
            events = [i for i in index.tolist() if trace.track[i] == number and i in longest]
            if not events:
                continue
            lane = _safe(f"{rank}{track.process} {track.thread}"[:48])
            lanes.append(lane)
            for i in events:
                op = trace.ops[int(trace.op[i])]
                start, seconds = (int(trace.start[i]) - first) * 1e-12, int(trace.duration[i]) * 1e-12
                category = recognise(op).category
                told = f"{_safe(short_name(op.name))}: {format_seconds(seconds)}"
                bars.setdefault(category, []).append((lane, start * 1e3, seconds * 1e3, told))
                rows.append((lane, short_name(op.name), category, start, seconds))
    data = [
        {"type": "bar", "orientation": "h", "name": name, "y": [e[0] for e in events], "base": [e[1] for e in events],
         "x": [e[2] for e in events], "text": [e[3] for e in events], "textposition": "none",
         "hovertemplate": "%{text}<extra></extra>",
         "marker": {"color": _CATEGORIES.get(name, SERIES[n % len(SERIES)]), "line": {"width": 0}}}
        for n, (name, events) in enumerate(bars.items())
    ]  # fmt: skip
    layout = {
        "barmode": "overlay", "bargap": 0.2, "height": 170 + 40 * len(set(lanes)), "xaxis": axis("milliseconds", rangemode="tozero"),
        "yaxis": {"automargin": True, "categoryorder": "array", "categoryarray": lanes[::-1], "type": "category"},
    }  # fmt: skip
    note = f" {left:,} short events are not drawn." if left else ""
    return Figure(
        "tracks", "Timeline", f"What ran on each track of the devices.{note}", ("track", "op", "category", "start_seconds", "seconds"),
        rows, data, layout,
    )  # fmt: skip


def memory_chart(report: Report) -> Figure:
    """Allocated bytes over time."""
    data = [
        {"type": "scatter", "mode": "lines", "name": _safe(name), "x": [t for t, _ in m.series], "y": [b / 1e9 for _, b in m.series],
         "line": {"shape": "hv", "color": SERIES[n % len(SERIES)]}, "fill": "tozeroy"}
        for n, (name, m) in enumerate(report.memory.items())
    ]  # fmt: skip
    told = "; ".join(
        f"{name}: peak {format_bytes(m.peak)} at {format_seconds(m.at)}" for name, m in report.memory.items()
    )
    rows = [(name, t, b) for name, m in report.memory.items() for t, b in m.series]
    layout = {"xaxis": axis("seconds"), "yaxis": axis("GB", rangemode="tozero"), "height": 320}
    return Figure("memory", "Memory", told, ("allocator", "seconds", "bytes"), rows, data, layout)


def _safe(text: str) -> str:
    """A text of a profile inside what Plotly reads as markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
