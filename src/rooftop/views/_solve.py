"""Answers to inverse questions: as tables, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.codesign import Solved, Tried, assumed, shown
from rooftop.views._terminal import group, heading, lines, table

if TYPE_CHECKING:
    from rich.console import RenderableType

_SHOWN = 24  # values on a terminal


def solved_json(found: Solved) -> dict[str, Any]:
    """at and fails are the value asked for and its neighbour that misses the goal, each with its row."""
    return {
        "of": found.scenario.ask,
        "model": found.scenario.model.name,
        "slice": found.scenario.slice.name,
        "needs": [{"name": n.column(found.at.row), "relation": n.relation, "value": n.value} for n in found.needs],
        "solve": found.domain.name,
        "now": found.now,
        "value": found.at.value,
        "at": _tried_json(found.at),
        "fails": None if found.fails is None else _tried_json(found.fails),
        "regions": [
            {
                "from": r.low.value,
                "to": r.high.value,
                "from_is_an_edge": r.below is not None,
                "to_is_an_edge": r.above is not None,
            }
            for r in found.regions
        ],
        "points": [_tried_json(p) for p in found.points],
        "assumptions": list(assumed(found.domain)),
    }


def _tried_json(tried: Tried) -> dict[str, Any]:
    error = tried.row.get("error")
    return {"value": tried.value, "met": tried.met, "row": None if error else tried.row, "error": error}


def solved_text(found: Solved) -> RenderableType:
    """The value, what it gives, the neighbour that misses it; then all values that were tried."""
    name, at = found.domain.name, found.at
    goal = " and ".join(str(n) for n in found.needs)
    rows = [[f"{name} {_edge(found)}", shown(name, at.value), _given(found, at)]]
    if found.fails is not None:
        rows.append(["the next value misses it", shown(name, found.fails.value), _given(found, found.fails)])
    if found.now is not None:
        rows.append(["now", shown(name, found.now), ""])
    parts: list[RenderableType] = [
        heading(f"{found.scenario.model.name} on {found.scenario.slice.name}: {goal}, by {name}"),
        table("", ["", ">", ""], rows),
    ]
    if len(found.regions) > 1:
        ranges = [f"{shown(name, r.low.value)} to {shown(name, r.high.value)}" for r in found.regions]
        parts.append(lines("The goal comes and goes; it is met from", ranges))
    columns = [
        *dict.fromkeys(n.column(at.row) for n in found.needs),
        *(c for c in ("bottleneck", "mesh") if c in at.row),
    ]
    columns = list(dict.fromkeys(columns))
    points = [p for i, p in enumerate(found.points) if i % max(1, -(-len(found.points) // _SHOWN)) == 0 or p in (at, found.fails)]  # fmt: skip
    cells = [
        [shown(name, p.value), *(shown(c, p.row.get(c)) for c in columns), "yes" if p.met else _why_not(p)]
        for p in points
    ]
    head = [c if c in ("bottleneck", "mesh") else f">{c.replace('_', ' ')}" for c in columns]
    parts.append(table("", [f">{name}", *head, "met"], cells))
    parts.append(lines("Assumptions", assumed(found.domain)))
    return group(*parts)


def _edge(found: Solved) -> str:
    """What the value is, in words."""
    if found.fails is None:
        end = found.regions[0].low is found.at
        return f"is the {'smallest' if end else 'largest'} that was tried"
    above = found.fails.value < found.at.value
    return f"at {'least' if above else 'most'}"


def _given(found: Solved, tried: Tried) -> str:
    if tried.row.get("error") or tried.row.get("fits") is False:
        return _why_not(tried)
    names = [n.column(tried.row) for n in found.needs]
    told = [f"{c.replace('_', ' ')} {shown(c, tried.row[c])}" for c in names]
    return ", ".join(told) + ("" if "bottleneck" in names else f", bound by {tried.row['bottleneck']}")


def _why_not(tried: Tried) -> str:
    if tried.row.get("error"):
        return f"no answer: {str(tried.row['error'])[:60]}"
    return "does not fit" if tried.row.get("fits") is False else "no"
