"""Figures of serving: latency against throughput, ops of a step, memory over batches, a simulation over time."""

from __future__ import annotations

from typing import Any

from rooftop.figures._figure import COLOURS, Figure, axis, colour, log_axis
from rooftop.figures._roofline import Dot, roofline_chart
from rooftop.figures._training import stacked_bytes
from rooftop.inference import Answer, Point, Scene
from rooftop.simulation import Outcome
from rooftop.units import format_bytes, format_seconds


def serving_figures(answer: Answer) -> list[Figure]:
    """All that shows an answer of `serve`."""
    return [frontier_chart(answer), roofline_of_generation(answer.best), memory_by_batch(answer)]


def _mesh(p: Point) -> str:
    return ", ".join(f"{a}={int(n)}" for a, n in p.at.mesh.items() if n > 1) or "one chip"


def frontier_chart(answer: Answer) -> Figure:
    """Every point by the time of a token and the tokens of a chip; the frontier as a line."""
    chips = answer.best.problem.slice.chips
    data: list[dict[str, Any]] = []
    front = sorted(answer.frontier, key=lambda p: float(p.generate.tpot[1]))

    def place(points: list[Point]) -> dict[str, Any]:
        return {
            "x": [float(p.generate.tpot[1]) * 1e3 for p in points], "y": [p.tokens_per_second / chips for p in points],
            "text": [_told(p) for p in points], "hovertemplate": "%{text}<extra></extra>",
            "customdata": [p.batch for p in points],
        }  # fmt: skip

    data.append({"type": "scatter", "mode": "lines", "name": "frontier", "line": {"color": COLOURS["muted"], "width": 2},
                 **place(front), "hoverinfo": "skip", "hovertemplate": None})  # fmt: skip
    for binds in dict.fromkeys(p.bottleneck for p in answer.points):
        some = [p for p in answer.points if p.bottleneck == binds]
        data.append({
            "type": "scatter", "mode": "markers", "name": f"bound by {binds}", **place(some),
            "marker": {
                "size": 12, "color": colour(binds), "symbol": ["circle" if p.fits else "x" for p in some],
                "opacity": [1.0 if p.fits else 0.5 for p in some],
            },
        })  # fmt: skip
    data.append({"type": "scatter", "mode": "markers", "name": "best", **place([answer.best]),
                 "marker": {"size": 20, "symbol": "circle-open", "color": COLOURS["exposed"], "line": {"width": 3}}})  # fmt: skip
    best = answer.best
    caption = (
        f"Up is cheaper, left is faster. Best within the limits: batch {best.batch:,}, a token every"
        f" {format_seconds(float(best.generate.tpot[1]))}, {best.tokens_per_second / chips:,.0f} tokens/s a chip. Crosses do not fit."
    )
    columns = ("batch", "mesh", "tpot_seconds", "tpot_bound_seconds", "ttft_seconds", "tokens_per_second_per_chip",
               "memory_bytes", "bottleneck", "fits", "usd_per_million_tokens")  # fmt: skip
    rows = [
        (p.batch, _mesh(p), float(p.generate.tpot[1]), float(p.generate.tpot[0]), float(p.prefill.expected),
         p.tokens_per_second / chips, float(p.generate.memory_bytes), p.bottleneck, p.fits, p.usd_output)
        for p in answer.points
    ]  # fmt: skip
    layout = {
        "xaxis": axis("milliseconds from token to token, expected", type="log"), "yaxis": log_axis("tokens/s per chip"),
        "height": 460, "dragmode": "select",
    }  # fmt: skip
    return Figure("frontier", "Latency against throughput", caption, columns, rows, data, layout)


def _told(p: Point) -> str:
    money = "" if p.usd_output is None else f"<br>{p.usd_output:.3g} USD per million tokens"
    return (
        f"<b>batch {p.batch:,}</b> on {_mesh(p)}<br>a token every {format_seconds(float(p.generate.tpot[1]))}, the first after"
        f" {format_seconds(float(p.prefill.expected))}<br>{p.tokens_per_second:,.0f} tokens/s, {format_bytes(float(p.generate.memory_bytes))}"
        f" a chip{money}"
    )


def roofline_of_generation(p: Point) -> Figure:
    """Every kernel of a generate step under the roofs of its chip."""
    chip = p.problem.slice.chip
    found = Scene(p.problem, p.at).kernels(p.batch)
    dots = [Dot(k.name, k.text, k.count, k.flops, k.bytes, k.expected, k.bound, k.peak, k.binds) for k in found]
    peaks = sorted({k.peak for k in found if k.unit == "matrix"}, reverse=True)
    roofs = [*(("matrix unit", r) for r in peaks), ("vector unit", float(chip.vector_flops))]
    caption = f"Each kernel of a chip in a generate step of batch {p.batch:,}; the larger, the more of its time."
    return roofline_chart(dots, chip.hbm_bandwidth, roofs, "Roofline of a generate step", caption)


def memory_by_batch(answer: Answer) -> Figure:
    """Memory of a chip by part at every batch."""
    labels = [f"batch {p.batch:,}" for p in answer.points]
    parts = list(dict.fromkeys(part for p in answer.points for part in p.generate.memory))
    bytes = {
        (label, part): float(p.generate.memory.get(part, 0.0))
        for label, p in zip(labels, answer.points, strict=True) for part in parts
    }  # fmt: skip
    capacity = float(answer.best.problem.capacity)
    caption = f"{answer.caches:,} caches fit beside the weights in {format_bytes(capacity)} a chip (dashed line)."
    return stacked_bytes("memory", "Memory per chip by batch", caption, labels, parts, bytes, capacity)


_PANELS = (("running", "running", "compute"), ("waiting", "waiting", "exposed"), ("blocks", "KV blocks", "hbm"))


def simulation_figures(outcome: Outcome) -> list[Figure]:
    """All that shows a simulation."""
    return [simulation_chart(outcome), latency_chart(outcome)]


def simulation_chart(outcome: Outcome) -> Figure:
    """Requests that run and wait, and blocks of the cache, over time."""
    series = outcome.timeline.series(outcome.record.last_finish)
    data = [
        {"type": "scatter", "mode": "lines", "name": title, "x": list(series["seconds"]), "y": list(series[name]),
         "line": {"shape": "hv", "color": COLOURS[shade], "width": 2}, "yaxis": f"y{n + 1}" if n else "y"}
        for n, (name, title, shade) in enumerate(_PANELS)
    ]  # fmt: skip
    layout: dict[str, Any] = {"xaxis": axis("seconds", anchor="y3"), "height": 520, "showlegend": False}
    for n, (_, title, _) in enumerate(_PANELS):
        top = 1 - n * 0.35
        layout[f"yaxis{n + 1}" if n else "yaxis"] = axis(title, domain=[top - 0.3, top], rangemode="tozero")
    rows = list(zip(series["seconds"], *(series[name] for name, _, _ in _PANELS), strict=True))
    caption = (
        f"{outcome.record.requests:,} requests: {outcome.requests_per_second:,.3g} a second, a step runs"
        f" {outcome.utilisation:.0%} of the time."
    )
    return Figure(
        "simulation", "Load over time", caption, ("seconds", "running", "waiting", "kv_blocks"), rows, data, layout
    )


_LATENCIES = (("ttft", "first token"), ("tpot", "per token"), ("queue", "queueing"), ("e2e", "end to end"))


def latency_chart(outcome: Outcome) -> Figure:
    """Quantiles of the latencies."""
    parts = [0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999]
    data, rows = [], []
    for n, (name, title) in enumerate(_LATENCIES):
        seen = getattr(outcome.record, name)
        found = [(q, seen.quantile(q)) for q in parts]
        known = [(q, float(v)) for q, v in found if v is not None]
        rows += [(title, q, v) for q, v in known]
        data.append({
            "type": "scatter", "mode": "lines+markers", "name": title, "x": [v * 1e3 for _, v in known],
            "y": [q * 100 for q, _ in known], "line": {"color": colour("", n), "width": 2},
            "text": [f"{title}: {q:.1%} within {format_seconds(v)}" for q, v in known], "hovertemplate": "%{text}<extra></extra>",
        })  # fmt: skip
    layout = {"xaxis": axis("milliseconds", type="log"), "yaxis": axis("% of requests", range=[0, 101]), "height": 420}
    return Figure(
        "latency", "Latencies", "The share of requests that are within a time; further left is faster.",
        ("latency", "quantile", "seconds"), rows, data, layout,
    )  # fmt: skip
