"""Figures of sweeps and inverse questions: lines, heat maps, what binds where, what no other point beats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rooftop.codesign import Solved, Swept, shown
from rooftop.figures._figure import COLOURS, SERIES, Figure, axis, colour, log_axis

#: The measure that is drawn, by question, and what is drawn against what where two things pull apart: (name, sign of better).
_DRAWN = {
    "plan": "tokens_per_second_per_chip",
    "step": "tokens_per_second_per_chip",
    "serve": "tokens_per_second",
    "simulate": "goodput",
}
_FRONTS: Mapping[str, tuple[tuple[str, int], tuple[str, int]]] = {
    "plan": (("step_seconds.expected", -1), ("usd_per_million_tokens", -1)),
    "step": (("step_seconds.expected", -1), ("memory.bytes", -1)),
    "serve": (("tpot_seconds.expected", -1), ("tokens_per_second_per_chip", 1)),
    "simulate": (("ttft_seconds.p99", -1), ("tokens_per_second", 1)),
}
_MOST = 4000  # points of a figure; of more, every so many
_MOST_CELLS = 200  # of each side of a map; of more, every so many
_MOST_LINES = 12
_MOST_MARKS = 240  # on the lines


def sweep_figures(found: Swept) -> list[Figure]:
    """Lines over the first parameter, a heat map and what binds where of two, and the front of what pulls apart."""
    measure = _DRAWN[found.scenario.ask]
    if measure not in found.columns or len(found) < 2:
        return []
    figures = []
    axes = [n for n in found.names if len(set(found.columns[n].tolist())) > 1]
    if len(axes) == 2:
        figures += [heat_map(found, axes, measure), binding_map(found, axes)]
    if 1 <= len(axes) <= 2:
        figures.append(lines_chart(found, axes, measure))
    return [f for f in (*figures, front_chart(found)) if f is not None]


def _words(name: str) -> str:
    for ending in ("expected", "bound", "p50", "p90", "p99"):
        name = name.replace(f".{ending}", f", {ending}")
    return name.replace("_", " ").replace(".", " ")


def _able(found: Swept, i: int) -> bool:
    """Whether a point has an answer that fits."""
    row = {n: found.columns[n][i : i + 1].tolist()[0] for n in ("error", "fits") if n in found.columns}
    return row.get("error") is None and row.get("fits", True) is not False


def _axis(name: str, values: Sequence[Any]) -> dict[str, Any]:
    """An axis over values of a parameter: in the logarithm where they span much, in categories where they are words."""
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        return axis(_words(name), type="category")
    low, high = min(values), max(values)
    if low <= 0 or high / low < 4:
        return axis(_words(name))
    return log_axis(_words(name)) if high / low >= 100 else axis(_words(name), type="log", exponentformat="SI")


def _column(found: Swept, name: str) -> list[Any]:
    values: list[Any] = found.columns[name].tolist()
    return [None if isinstance(v, float) and not math.isfinite(v) else v for v in values]


def lines_chart(found: Swept, axes: Sequence[str], measure: str) -> Figure:
    """The measure over one parameter, expected; a line for each value of the other; marks coloured by what binds."""
    over = axes[0]
    others = _sorted(_column(found, axes[1])) if len(axes) > 1 else [None]
    step = max(1, -(-len(others) // _MOST_LINES))
    x, y, binds = (_column(found, n) for n in (over, measure, "bottleneck"))
    rest = _column(found, axes[1]) if len(axes) > 1 else [None] * len(x)
    data: list[dict[str, Any]] = []
    rows: list[tuple[Any, ...]] = []
    for n, value in enumerate(others[::step]):
        line = _some([i for i in range(len(x)) if rest[i] == value and y[i] is not None], _MOST)
        data.append({
            "type": "scatter", "mode": "lines", "name": "" if value is None else f"{_words(axes[1])} {shown(axes[1], value)}",
            "x": [x[i] for i in line], "y": [y[i] for i in line], "line": {"width": 2, "color": colour("", n) if value is not None else COLOURS["muted"]},
            "showlegend": value is not None, "hoverinfo": "skip",
        })  # fmt: skip
        rows += [(x[i], value, y[i], binds[i], _able(found, i)) for i in line]
    marked = _some(rows, _MOST_MARKS)
    for resource in dict.fromkeys(r[3] for r in marked):
        some = [r for r in marked if r[3] == resource]
        data.append({
            "type": "scatter", "mode": "markers", "name": f"bound by {resource}", "x": [r[0] for r in some], "y": [r[2] for r in some],
            "marker": {"size": 9 if len(marked) < 100 else 6, "color": colour(str(resource)), "symbol": ["circle" if r[4] else "x" for r in some]},
            "hovertemplate": f"%{{x}}: %{{y:.4g}}, bound by {resource}<extra></extra>",
        })  # fmt: skip
    layout = {
        "xaxis": _axis(over, [v for v in x if v is not None]),
        "yaxis": axis(_words(measure), rangemode="tozero"),
        "height": 440,
    }
    caption = f"{_words(measure)} over {_words(over)}; marks are coloured by what binds there, crosses do not fit." + (
        f" Every {step}th line." if step > 1 else ""
    )
    columns = (over, axes[1] if len(axes) > 1 else "", measure, "bottleneck", "fits")
    return Figure("lines", f"{_words(measure)} over {_words(over)}", caption, columns, rows, data, layout)


def _some(values: list[Any], most: int) -> list[Any]:
    """At most so many of the values, evenly."""
    return values[:: max(1, -(-len(values) // most))]


def _sorted(values: Sequence[Any]) -> list[Any]:
    found = list(dict.fromkeys(values))
    return sorted(found) if all(isinstance(v, (int, float)) for v in found) else found


def _grid(found: Swept, axes: Sequence[str], values: Sequence[Any]) -> tuple[list[Any], list[Any], list[list[Any]]]:
    """(x, y, values by y and x) of two parameters."""
    first, second = (_column(found, n) for n in axes)
    x, y = (_some(list(dict.fromkeys(each)), _MOST_CELLS) for each in (first, second))
    at = {(a, b): v for a, b, v in zip(first, second, values, strict=True)}
    return x, y, [[at.get((a, b)) for a in x] for b in y]


def heat_map(found: Swept, axes: Sequence[str], measure: str) -> Figure:
    """The measure over two parameters; empty where there is no answer, or it does not fit."""
    held = _column(found, measure)
    x, y, z = _grid(found, axes, [v if _able(found, i) else None for i, v in enumerate(held)])
    data = [{
        "type": "heatmap", "x": x, "y": y, "z": z, "colorscale": "Viridis", "colorbar": {"title": {"text": _words(measure), "side": "right"}},
        "hovertemplate": f"{_words(axes[0])} %{{x}}<br>{_words(axes[1])} %{{y}}<br>{_words(measure)} %{{z:.4g}}<extra></extra>",
    }]  # fmt: skip
    layout = {"xaxis": _axis(axes[0], x), "yaxis": _axis(axes[1], y), "height": 480}
    caption = f"{_words(measure)} over {_words(axes[0])} and {_words(axes[1])}; empty where there is no answer or it does not fit."
    rows = [(a, b, z[j][i]) for j, b in enumerate(y) for i, a in enumerate(x)]
    title = f"{_words(measure)} over two parameters"
    return Figure("heatmap", title, caption, (*axes, measure), rows[:_MOST], data, layout)


def binding_map(found: Swept, axes: Sequence[str]) -> Figure:
    """The region of two parameters in which each resource binds."""
    held = [v if v is not None else "no answer" for v in _column(found, "bottleneck")]
    names = list(dict.fromkeys(held))
    place = {name: i for i, name in enumerate(names)}
    x, y, words = _grid(found, axes, held)
    shades: list[str] = []
    for i, name in enumerate(names):
        shade = COLOURS["muted"] if name == "no answer" else colour(name, i)
        shades.append(next((s for s in SERIES if s not in shades), shade) if shade in shades else shade)
    count = len(names)
    scale = [[p, shades[i]] for i in range(count) for p in (i / count, (i + 1) / count)]
    data: list[dict[str, Any]] = [{
        "type": "heatmap", "x": x, "y": y, "z": [[place.get(w) for w in line] for line in words], "text": words, "zmin": -0.5,
        "zmax": count - 0.5, "colorscale": scale, "showscale": False, "hovertemplate": "%{x}, %{y}: %{text}<extra></extra>",
    }]  # fmt: skip
    data += [
        {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "name": name, "marker": {"color": shade, "symbol": "square", "size": 12}}
        for name, shade in zip(names, shades, strict=True)
    ]  # fmt: skip
    layout = {"xaxis": _axis(axes[0], x), "yaxis": _axis(axes[1], y), "height": 480, "showlegend": True}
    counts = {n: held.count(n) for n in names}
    most = max(counts, key=lambda n: counts[n])
    caption = f"What binds at each point: {most} at {counts[most]:,} of {len(held):,}."
    rows = [(a, b, words[j][i]) for j, b in enumerate(y) for i, a in enumerate(x)]
    return Figure("binding", "What binds where", caption, (*axes, "bottleneck"), rows[:_MOST], data, layout)


def front_chart(found: Swept) -> Figure | None:
    """Points by two measures that pull apart, and the front of those that no other beats in both."""
    (first, sign_x), (second, sign_y) = _FRONTS[found.scenario.ask]
    if first not in found.columns or second not in found.columns:
        return None
    x, y, binds = (_column(found, n) for n in (first, second, "bottleneck"))
    able = [i for i in range(len(x)) if x[i] is not None and y[i] is not None and _able(found, i)]
    if len({x[i] for i in able}) < 2 or len({y[i] for i in able}) < 2:
        return None
    front: list[int] = []
    for i in sorted(able, key=lambda i: (-sign_x * x[i], -sign_y * y[i])):
        if not front or sign_y * y[i] > sign_y * y[front[-1]]:
            front.append(i)
    kept = sorted({*able[:: max(1, -(-len(able) // _MOST))], *front})
    where = {
        i: ", ".join(f"{_words(n)} {shown(n, found.columns[n][i : i + 1].tolist()[0])}" for n in found.names)
        for i in kept
    }
    data: list[dict[str, Any]] = [{
        "type": "scatter", "mode": "lines", "name": "front", "x": [x[i] for i in front], "y": [y[i] for i in front],
        "line": {"shape": "hv", "width": 2, "color": COLOURS["muted"]}, "hoverinfo": "skip",
    }]  # fmt: skip
    for resource in dict.fromkeys(binds[i] for i in kept):
        some = [i for i in kept if binds[i] == resource]
        data.append({
            "type": "scatter", "mode": "markers", "name": f"bound by {resource}", "x": [x[i] for i in some], "y": [y[i] for i in some],
            "text": [where[i] for i in some], "hovertemplate": "%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>",
            "marker": {"size": 10 if len(kept) < 400 else 5, "color": colour(str(resource))},
        })  # fmt: skip
    layout = {"xaxis": _axis(first, [x[i] for i in kept]), "yaxis": _axis(second, [y[i] for i in kept]), "height": 460}
    caption = f"{len(front):,} of {len(able):,} points are beaten by no other in both; left is better, {'up' if sign_y > 0 else 'down'} is better."
    columns = (*found.names, first, second, "bottleneck")
    rows = [(*(found.columns[n][i : i + 1].tolist()[0] for n in found.names), x[i], y[i], binds[i]) for i in front]
    title = f"{_words(first)} against {_words(second)}"
    return Figure("front", title, caption, columns, rows[:_MOST], data, layout)


def solved_figures(found: Solved) -> list[Figure]:
    """What is needed over the parameter: a curve for each goal that is a number, with its limit."""
    figures = []
    for need in found.needs:
        if need.relation == "=":
            continue
        name, measure = found.domain.name, need.column(found.at.row)
        points = [p for p in found.points if p.row.get(measure) is not None]
        data: list[dict[str, Any]] = [{
            "type": "scatter", "mode": "lines", "showlegend": False, "x": [p.value for p in points], "y": [p.row[measure] for p in points],
            "line": {"width": 2, "color": COLOURS["muted"]}, "hoverinfo": "skip",
        }]  # fmt: skip
        for resource in dict.fromkeys(p.row["bottleneck"] for p in points):
            some = [p for p in points if p.row["bottleneck"] == resource]
            data.append({
                "type": "scatter", "mode": "markers", "name": f"bound by {resource}", "x": [p.value for p in some],
                "y": [p.row[measure] for p in some], "hovertemplate": f"%{{x}}: %{{y:.4g}}, bound by {resource}<extra></extra>",
                "marker": {"size": 10, "color": colour(resource), "symbol": ["circle" if p.met else "x" for p in some]},
            })  # fmt: skip
        ends = [points[0].value, points[-1].value]
        data.append({"type": "scatter", "mode": "lines", "name": "what is needed", "x": ends, "y": [need.value] * 2,
                     "line": {"dash": "dash", "color": COLOURS["limit"]}, "hoverinfo": "skip"})  # fmt: skip
        data.append({"type": "scatter", "mode": "markers", "name": "the answer", "x": [found.at.value], "y": [found.at.row[measure]],
                     "marker": {"size": 20, "symbol": "circle-open", "color": COLOURS["exposed"], "line": {"width": 3}}})  # fmt: skip
        layout = {"xaxis": _axis(name, ends), "yaxis": axis(_words(measure), rangemode="tozero"), "height": 440}
        caption = (
            f"{_words(measure)} at the values of {_words(name)} that were tried; crosses miss what is needed, {need}."
        )
        rows = [(p.value, p.row[measure], p.row["bottleneck"], p.met) for p in points]
        columns = (name, measure, "bottleneck", "met")
        figures.append(
            Figure(f"solve-{measure}", f"{_words(measure)} over {_words(name)}", caption, columns, rows, data, layout)
        )
    return figures
