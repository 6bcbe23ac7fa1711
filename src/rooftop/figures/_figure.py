"""A figure as data: what Plotly draws, the numbers behind it as rows, and words for who does not see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: One colour for one meaning, wherever it is drawn. Each has a contrast of at least 3 to white and to the dark page.
COLOURS = {
    "compute": "#3b78c2", "hbm": "#8a63c9", "network": "#d9662b", "bubble": "#83888f", "host": "#a67c00",
    "vector": "#1f8fa0", "exposed": "#d4483f", "good": "#2a9163", "limit": "#d4483f", "muted": "#83888f",
}  # fmt: skip
#: Mesh axes, and what is anything else in turn.
AXES = {
    "data": "#2a9163", "fsdp": "#d9662b", "tensor": "#3b78c2", "tensor_transpose": "#a67c00", "context": "#8a63c9", "expert": "#cf4f86", "pipeline": "#1f8fa0",
}  # fmt: skip
SERIES = ("#3b78c2", "#d9662b", "#2a9163", "#8a63c9", "#cf4f86", "#1f8fa0", "#a67c00", "#83888f")


@dataclass(frozen=True, slots=True)
class Figure:
    """data, layout: as Plotly takes them, without fonts, backgrounds and grids, which the theme of a page sets.

    scene: what `scene.js` animates instead, if anything. caption: what to see in it. columns, rows: the numbers drawn.
    """

    name: str
    title: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    data: Sequence[Mapping[str, Any]] = ()
    layout: Mapping[str, Any] = field(default_factory=dict)
    scene: Mapping[str, Any] | None = None

    def _repr_html_(self) -> str | None:
        from rooftop.figures._embed import notebook_html

        return notebook_html([self])


def figure_json(figure: Figure) -> dict[str, Any]:
    """What the page and the reports read."""
    return {
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "columns": list(figure.columns),
        "rows": [list(row) for row in figure.rows],
        "data": [dict(trace) for trace in figure.data],
        "layout": dict(figure.layout),
        "scene": figure.scene,
    }


def colour(name: str, position: int = 0) -> str:
    """The colour of a resource or of a mesh axis (of the first of several), else one of the series."""
    if name in COLOURS:
        return COLOURS[name]
    axis = name.removeprefix("network ").split("+")[0]
    return AXES.get(axis) or (COLOURS["network"] if name.startswith("network") else SERIES[position % len(SERIES)])


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with a title."""
    return {"title": {"text": title}, "automargin": True, **more}


def log_axis(title: str, **more: Any) -> dict[str, Any]:
    """A logarithmic axis whose decades alone are labelled."""
    return axis(title, type="log", dtick=1, exponentformat="power", **more)
