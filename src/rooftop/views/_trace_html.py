"""A profile as one self-contained page: loss waterfall, roofline, timeline, and the tables of the terminal. No scripts, no requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from rooftop.profiles import Memory, Report, Trace, recognise, short_name
from rooftop.units import format_bandwidth, format_bytes, format_flops_rate, format_seconds
from rooftop.views._terminal import html_page
from rooftop.views._trace import trace_text

_WIDTH = 1000
_MOST_EVENTS = 3000
_COLOURS = {
    "matmul": "#3b6fb6", "attention": "#7a4fb0", "convolution": "#2f8f9d", "collective": "#d1662a", "host transfer": "#b83b5e",
    "transfer wait": "#b83b5e", "elementwise": "#6aa84f", "normalisation": "#9bb13c", "copy and layout": "#c9a227",
    "reduction": "#4f9d69", "unknown": "#888888",
}  # fmt: skip
_STYLE = (
    "body{font:14px system-ui,sans-serif;margin:2em;max-width:1040px;color:#222;background:#fff}h2{font-size:1.1em;margin:1.6em 0 .4em}"
    "svg{display:block;max-width:100%;height:auto}text{font:12px system-ui,sans-serif;fill:#222}pre{font-size:12px;overflow-x:auto}"
    ".legend span{display:inline-block;margin-right:1em}.legend i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}"
)


def trace_page(report: Report, traces: Sequence[Trace], top: int) -> str:
    """The page. All text of the profile is escaped."""
    body = html_page(trace_text(report, top))
    tables = body[body.index("<pre") : body.rindex("</pre>") + 6]
    title = f"{escape(report.format)}: {escape(', '.join(report.paths))}"
    sections = [f"<h1>{title}</h1>", "<h2>Where the time went</h2>", _waterfall(report)]
    if report.roof is not None:
        sections += ["<h2>Roofline: each op by its intensity and rate</h2>", _scatter(report)]
    if report.memory:
        sections += ["<h2>Memory</h2>", *(_memory(name, m) for name, m in report.memory.items())]
    sections += ["<h2>Timeline</h2>", _timeline(traces), _legend(), "<h2>Tables</h2>", tables]
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head><body>'
        + "".join(sections)
        + "</body></html>"
    )


def _colour(category: str) -> str:
    return _COLOURS.get(category, "#a0a0a0")


def _svg(height: float, inside: list[str], label: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">{"".join(inside)}</svg>'


def _waterfall(report: Report) -> str:
    """Each loss starts where the last one ended; together they are the window."""
    shapes, done = [], 0.0
    for row, loss in enumerate(report.losses):
        x, width, y = 420 + 560 * done, 560 * loss.share, 26 * row
        colour = "#3b6fb6" if row == 0 else "#b83b5e" if loss.name.startswith("idle") else "#d1a12a"
        shapes.append(
            f'<rect x="{x:.1f}" y="{y + 3}" width="{max(width, 0.5):.1f}" height="18" fill="{colour}"/>'
            f'<text x="410" y="{y + 17}" text-anchor="end">{escape(loss.name)} {loss.share:.1%}</text>'
            f"<title>{escape(loss.advice)}</title>"
        )
        done += loss.share
    return _svg(26 * len(report.losses) + 4, [f"<g>{s}</g>" for s in shapes], "where the time went")


def _scatter(report: Report) -> str:
    assert report.roof is not None
    points = [
        (op.flops / op.bytes, op.flops / op.seconds, op)
        for op in report.ops
        if op.flops and op.bytes and op.seconds > 0 and op.math is not None
    ]
    if not points:
        return "<p>No op of this profile has both FLOPs and bytes.</p>"
    peak = max(report.roof.peak(op.dtype) or 0.0 for _, _, op in points)
    bandwidth = report.roof.bandwidth
    low_x = math.floor(math.log10(min(p[0] for p in points)))
    high_x = math.ceil(math.log10(max(peak / bandwidth * 10, *(p[0] for p in points))))
    high_y = math.ceil(math.log10(max(peak, *(p[1] for p in points))))
    low_y = math.floor(math.log10(min(p[1] for p in points)))

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            60 + 920 * (math.log10(x) - low_x) / max(1, high_x - low_x),
            360 - 340 * (math.log10(y) - low_y) / max(1, high_y - low_y),
        )

    start = max(10.0**low_x, 10.0**low_y / bandwidth)
    roof = [place(start, start * bandwidth), place(peak / bandwidth, peak), place(10.0**high_x, peak)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in roof)
    shapes = [f'<polyline points="{path}" fill="none" stroke="#222"/>']
    for decade in range(low_x, high_x + 1):
        x, _ = place(10.0**decade, 10.0**low_y)
        shapes.append(f'<text x="{x:.0f}" y="378" text-anchor="middle">{10.0**decade:g}</text>')
    for decade in range(low_y, high_y + 1):
        _, y = place(10.0**low_x, 10.0**decade)
        shapes.append(f'<text x="2" y="{y + 4:.0f}">{format_flops_rate(10.0**decade)}</text>')
    for x, y, op in points:
        at_x, at_y = place(x, y)
        size = 3 + 12 * math.sqrt(op.wall / report.window)
        told = f"{short_name(op.name)} {op.shape}: {format_flops_rate(y)}, {format_seconds(op.wall)}"
        shapes.append(
            f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="{size:.1f}" fill="{_colour(op.category)}" fill-opacity=".6"><title>{escape(told)}</title></circle>'
        )
    note = f"<p>FLOP/byte; the roof: {format_flops_rate(peak)} and {format_bandwidth(bandwidth)}</p>"
    return _svg(384, shapes, "roofline") + note


def _memory(name: str, m: Memory) -> str:
    """Allocated bytes over time."""
    first = m.series[0][0]
    span = max(m.series[-1][0] - first, 1e-12)
    points = " ".join(
        f"{_WIDTH * (t - first) / span:.1f},{130 - 120 * used / max(m.peak, 1):.1f}" for t, used in m.series
    )
    told = f"{name}: peak {format_bytes(m.peak)} at {format_seconds(m.at)}"
    line = f'<polyline points="0,130 {points} {_WIDTH},130" fill="#3b6fb6" fill-opacity=".3" stroke="#3b6fb6"/>'
    return f"<p>{escape(told)}</p>" + _svg(132, [line], told)


def _timeline(traces: Sequence[Trace]) -> str:
    """Tracks of devices, the longest events of each profile."""
    shapes: list[str] = []
    y, left = 0, 0
    for trace in traces:
        index = trace.events("device", "async")
        if not len(index):
            continue
        longest = set(index[trace.duration[index].argsort()[::-1][: _MOST_EVENTS // len(traces)]].tolist())
        left += len(index) - len(longest)
        first = int(trace.start[index].min())
        span = max(1, int((trace.start + trace.duration)[index].max()) - first)
        rank = "" if trace.rank is None else f"rank {trace.rank}, "
        for number, track in enumerate(trace.tracks):
            events = [i for i in index.tolist() if trace.track[i] == number and i in longest]
            if not events:
                continue
            shapes.append(f'<text x="0" y="{y + 12}">{escape(f"{rank}{track.process} {track.thread}"[:80])}</text>')
            for i in events:
                op = trace.ops[int(trace.op[i])]
                x = _WIDTH * (int(trace.start[i]) - first) / span
                width = max(0.3, _WIDTH * int(trace.duration[i]) / span)
                told = f"{short_name(op.name)}: {format_seconds(int(trace.duration[i]) * 1e-12)}"
                shapes.append(
                    f'<rect x="{x:.2f}" y="{y + 16}" width="{width:.2f}" height="14" fill="{_colour(recognise(op).category)}"><title>{escape(told)}</title></rect>'
                )
            y += 38
    note = f"<p>{left:,} short events are not drawn.</p>" if left else ""
    return _svg(max(y, 1), shapes, "timeline") + note


def _legend() -> str:
    entries = "".join(f'<span><i style="background:{c}"></i>{escape(n)}</span>' for n, c in _COLOURS.items())
    return f'<p class="legend">{entries}</p>'
