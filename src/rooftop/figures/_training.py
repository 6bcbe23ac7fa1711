"""Figures of a training step: ops, the step over time, memory, where the time goes, the scaling curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rooftop.costing import PLACEMENT_ORDER
from rooftop.figures._figure import COLOURS, SERIES, Figure, axis, colour, log_axis
from rooftop.figures._roofline import Dot, roofline_chart
from rooftop.figures._topology import topology_chart
from rooftop.roofline import Placement
from rooftop.training import Answer, Curve, Estimate, step_kernels, timeline
from rooftop.units import format_bytes, format_seconds

_KINDS = {
    "forward": ("forward", "#3b78c2"), "recompute": ("recompute", "#1f8fa0"), "backward": ("backward", "#2a9163"), "weights": ("gradients of weights", "#7fb069"),
    "exposed": ("exposed communication and overhead", COLOURS["exposed"]), "wait": ("waiting (bubble)", COLOURS["bubble"]),
    "update": ("optimizer", "#a67c00"),
}  # fmt: skip
_MOST_STAGES = 8


def training_figures(answer: Answer) -> list[Figure]:
    """All that shows an answer of `plan` or `step`."""
    best = answer.best
    return [
        timeline_chart(best),
        roofline_of_step(best),
        memory_bars(answer),
        time_bars(answer),
        *network_of_step(best),
    ]


#: Axes whose collective is shown on the network, the first that the plan has.
_SHOWN_AXES = (("fsdp", "context"), ("fsdp",), ("tensor",), ("context",), ("expert",), ("data",))


def network_of_step(e: Estimate) -> list[Figure]:
    """The mesh on the network, with the gathering of weights (or what else the plan has) playing on it."""
    placement = Placement(e.problem.dimensions, e.plan.factors, PLACEMENT_ORDER)
    used = {axis for axis, ways in e.plan.mesh.items() if ways > 1}
    axes = next((axes for axes in _SHOWN_AXES if used.issuperset(axes)), None)
    if axes is None:
        return []
    kind = {"expert": "all_to_all", "data": "all_reduce"}.get(axes[0], "all_gather")
    return [topology_chart(placement, kind, axes, e.problem.slice.name)]


def roofline_of_step(e: Estimate) -> Figure:
    """Every kernel of the step under the roofs of its chip."""
    chip = e.problem.slice.chip
    dots = [
        Dot(k.name, f"{k.phase} {k.text}".strip(), k.count, k.flops, k.bytes, k.expected, k.bound, k.peak, k.binds)
        for k in step_kernels(e)
    ]
    roofs = [("matrix unit", e.peak), ("vector unit", float(chip.vector_flops))]
    caption = (
        f"Each kernel of a chip in a step; the larger, the more of its time. The roofs of {chip.title} meet at"
        f" {e.peak / chip.hbm_bandwidth:,.0f} FLOP/byte: left of it, memory binds."
    )
    return roofline_chart(dots, chip.hbm_bandwidth, roofs, "Roofline of the step", caption)


def timeline_chart(e: Estimate) -> Figure:
    """Pipeline stages over time, and beside them what each network axis carries."""
    drawn = timeline(e)
    count = len(drawn.stages)
    shown = list(range(count)) if count <= _MOST_STAGES else [0, 1, 2, count // 2, count - 2, count - 1]
    data: list[dict[str, Any]] = []
    rows: list[tuple[Any, ...]] = []
    scale = 1e3
    names = {n: f"stage {n}" if count > 1 else "chip" for n in shown}
    for kind, (title, shade) in _KINDS.items():
        events = [(names[n], x) for n in shown for x in drawn.stages[n] if x.kind == kind]
        if events:
            data.append(_bars(
                title, shade, [lane for lane, _ in events], [x.start * scale for _, x in events],
                [x.seconds * scale for _, x in events], [f"{x.name}: {format_seconds(x.seconds)}" for _, x in events],
            ))  # fmt: skip
        rows += [(lane, x.name, kind, x.start, x.seconds) for lane, x in events]
    traffic = sorted(drawn.traffic, key=lambda x: -x.busy)
    for t in traffic:
        lane = t.name.replace(": ", ":<br>")
        hidden = t.busy - t.exposed
        told = f"{t.name}: busy {format_seconds(t.busy)}, of which {format_seconds(t.exposed)} exposed"
        for name, shade, start, length, opacity in (
            ("exposed communication and overhead", COLOURS["exposed"], 0.0, t.exposed, 1.0),
            ("hidden communication", colour(t.name.split(":")[0]), t.exposed, hidden, 0.45),
        ):
            if length > 0:
                bar = _bars(name, shade, [lane], [start * scale], [length * scale], [told])
                data.append(
                    bar | {"opacity": opacity, "showlegend": name.startswith("hidden") and t is traffic[0], "legendgroup": name}
                )  # fmt: skip
        rows.append((t.name, "busy", "network", None, t.busy))
        rows.append((t.name, "exposed", "network", None, t.exposed))
    lanes = [*names.values(), *(t.name.replace(": ", ":<br>") for t in traffic)]
    exposed = sum(t.exposed for t in traffic)
    caption = (
        f"A step of {format_seconds(drawn.seconds)}. Below the {'stages' if count > 1 else 'chip'}, how long each network axis is"
        f" busy: what is exposed (red, {format_seconds(exposed)}) makes the step longer, what is hidden does not and has no fixed place."
    )
    layout = {
        "barmode": "overlay", "bargap": 0.25, "height": 150 + 44 * len(lanes), "xaxis": axis("milliseconds", rangemode="tozero"),
        "yaxis": {"automargin": True, "categoryorder": "array", "categoryarray": lanes[::-1], "type": "category"},
    }  # fmt: skip
    return Figure(
        "timeline",
        "The step over time",
        caption,
        ("lane", "event", "kind", "start_seconds", "seconds"),
        rows,
        data,
        layout,
    )


def _bars(
    name: str, shade: str, lanes: Sequence[str], starts: Sequence[float], lengths: Sequence[float], told: Sequence[str]
) -> dict[str, Any]:
    return {
        "type": "bar", "orientation": "h", "name": name, "y": list(lanes), "base": list(starts), "x": list(lengths),
        "text": list(told), "textposition": "none", "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": shade, "line": {"width": 0}},
    }  # fmt: skip


def _mesh(e: Estimate) -> str:
    return ", ".join(f"{a}={w}" for a, w in e.plan.mesh.items() if w > 1) or "one chip"


def _labels(answer: Answer) -> list[tuple[str, Estimate]]:
    """The best plan and the runners-up, each with a label of its own."""
    every = [answer.best, *answer.alternatives]
    return [(f"{n + 1}. {_mesh(e)}" if len(every) > 1 else _mesh(e), e) for n, e in enumerate(every)]


def memory_bars(answer: Answer) -> Figure:
    """Memory of a chip by part, for the best plan and its runners-up, and what the chip has."""
    plans = _labels(answer)
    capacity = float(answer.best.problem.capacity)
    names = list(dict.fromkeys(name for _, e in plans for name in e.step.memory))
    bytes = {(label, n): float(e.step.memory.get(n, 0.0)) for label, e in plans for n in names}
    caption = (
        f"The best plan holds {format_bytes(float(answer.best.step.memory_bytes))} of {format_bytes(capacity)} (dashed line) on the"
        " fullest chip."
    )
    return stacked_bytes("memory", "Memory per chip", caption, [label for label, _ in plans], names, bytes, capacity)


def stacked_bytes(
    name: str, title: str, caption: str, labels: Sequence[str], parts: Sequence[str], bytes: dict[tuple[str, str], float],
    capacity: float,
) -> Figure:  # fmt: skip
    """Stacked bars of gigabytes under a capacity line."""
    data = [
        _stack(part, SERIES[n % len(SERIES)], labels, [bytes[label, part] / 1e9 for label in labels],
               [f"{part}: {format_bytes(bytes[label, part])}" for label in labels])
        for n, part in enumerate(parts) if any(bytes[label, part] > 0 for label in labels)
    ]  # fmt: skip
    line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": capacity / 1e9, "x1": capacity / 1e9,
            "line": {"color": COLOURS["limit"], "dash": "dash", "width": 2}}  # fmt: skip
    note = {"yref": "paper", "y": 1, "x": capacity / 1e9, "text": "capacity", "showarrow": False, "xanchor": "right",
            "yanchor": "bottom", "font": {"size": 12}}  # fmt: skip
    layout = _stack_layout(labels, "GB per chip") | {"shapes": [line], "annotations": [note]}
    rows = [(label, part, bytes[label, part], capacity) for label in labels for part in parts]
    return Figure(name, title, caption, ("plan", "part", "bytes", "capacity_bytes"), rows, data, layout)


def time_bars(answer: Answer) -> Figure:
    """Where the step goes: exposed seconds by kind of work, for the best plan and its runners-up."""
    plans = _labels(answer)
    kinds = list(dict.fromkeys(p.kind for _, e in plans for p in e.step.parts))
    seconds = {
        (label, kind): sum(float(p.seconds - p.overlapped) for p in e.step.parts if p.kind == kind) / e.batch_tokens
        for label, e in plans for kind in kinds
    }  # fmt: skip
    labels = [label for label, _ in plans]
    scale = 1e9
    data = [
        _stack(kind, colour(kind, n), labels, [seconds[label, kind] * scale for label in labels],
               [f"{kind}: {seconds[label, kind] * scale:.4g} ns a token" for label in labels])
        for n, kind in enumerate(kinds) if any(seconds[label, kind] > 0 for label in labels)
    ]  # fmt: skip
    rows = [
        (label, p.name, p.kind, float(p.seconds), float(p.seconds - p.overlapped)) for label, e in plans for p in e.step.parts
    ]  # fmt: skip
    caption = "Exposed time per token of each plan, by what takes it; what hides under other work is not drawn."
    return Figure(
        "time", "Where the time goes", caption, ("plan", "part", "kind", "busy_seconds", "exposed_seconds"), rows, data,
        _stack_layout(labels, "nanoseconds per token"),
    )  # fmt: skip


def _stack(
    name: str, shade: str, labels: Sequence[str], values: Sequence[float], told: Sequence[str]
) -> dict[str, Any]:
    return {
        "type": "bar", "orientation": "h", "name": name, "y": list(labels), "x": list(values), "text": list(told),
        "textposition": "none", "hovertemplate": "%{text}<extra></extra>", "marker": {"color": shade},
    }  # fmt: skip


def _stack_layout(labels: Sequence[str], title: str) -> dict[str, Any]:
    return {
        "barmode": "stack", "bargap": 0.35, "height": 170 + 36 * len(labels), "xaxis": axis(title, rangemode="tozero"),
        "yaxis": {"automargin": True, "categoryorder": "array", "categoryarray": list(labels)[::-1], "type": "category"},
    }  # fmt: skip


def scaling_curve(curve: Curve) -> Figure:
    """Throughput over chips, beside that of the first point times the chips."""
    points = [p for p in curve.points if p.best is not None]
    chips = [p.where.chips for p in points]
    rates = [p.tokens_per_second for p in points]
    told = [
        f"{p.where.name}: {p.tokens_per_second:,.0f} tokens/s<br>MFU {p.best.mfu[1]:.1%}, bound by {p.best.bottleneck}<br>{_mesh(p.best)}"
        for p in points if p.best is not None
    ]  # fmt: skip
    data: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    if points:
        ideal = [rates[0] / chips[0] * n for n in chips]
        data = [
            {"type": "scatter", "mode": "lines", "name": "in proportion", "x": chips, "y": ideal, "hoverinfo": "skip",
             "line": {"dash": "dot", "color": COLOURS["muted"]}},
            {"type": "scatter", "mode": "lines+markers", "name": "best plan", "x": chips, "y": rates, "text": told,
             "hovertemplate": "%{text}<extra></extra>", "line": {"color": COLOURS["compute"], "width": 3}, "marker": {"size": 9}},
        ]  # fmt: skip
    if curve.bend is not None:
        notes.append({
            "x": math.log10(curve.bend.where.chips), "y": math.log10(curve.bend.tokens_per_second), "text": "bends here",
            "showarrow": True, "ax": 0, "ay": 36,
        })  # fmt: skip
    bend = "it does not bend" if curve.bend is None else f"it bends at {curve.bend.where.chips:,} chips: {curve.why}"
    rows = [
        (p.where.name, p.where.chips, p.tokens_per_second, None if p.best is None else float(p.best.step.expected),
         None if p.best is None else float(p.best.mfu[1]), p.reason if p.best is None else _mesh(p.best))
        for p in curve.points
    ]  # fmt: skip
    layout = {
        "xaxis": axis("chips", type="log"),
        "yaxis": log_axis("tokens per second"),
        "annotations": notes,
        "height": 440,
    }
    return Figure(
        "scaling", "The same batch on more chips", f"Strong scaling: {bend}.",
        ("slice", "chips", "tokens_per_second", "step_seconds", "mfu", "mesh"), rows, data, layout,
    )  # fmt: skip
