"""Shapes of a model: as tables, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rooftop.codesign import Shape, Shapes
from rooftop.units import format_bytes, format_count
from rooftop.views._terminal import group, heading, lines, table

if TYPE_CHECKING:
    from rich.console import RenderableType


def shapes_json(found: Shapes) -> dict[str, Any]:
    """All shapes, the fastest first, with the columns of a sweep under `answer`."""
    return {
        "of": found.scenario.ask,
        "model": found.scenario.model.name,
        "slice": found.scenario.slice.name,
        "equal": list(found.equal),
        "within": found.within,
        "given": _shape_json(found.given, found.given),
        "shapes": [_shape_json(s, found.given) for s in found.shapes],
        "friendly": [_shape_json(s, found.given) for s in found.friendly],
        "outside": found.outside,
        "seconds": found.seconds,
    }


def _shape_json(shape: Shape, given: Shape) -> dict[str, Any]:
    answered = shape.error is None
    return {
        "changes": dict(shape.changes),
        "error": shape.error,
        "tokens_per_second": {"bound": shape.bound, "expected": shape.expected} if answered else None,
        "gain": _gain(shape, given),
        "parameters": shape.amounts["parameters"],
        "active_parameters": shape.amounts["active"],
        "flops_per_token": shape.amounts["flops"],
        "kv_bytes_per_sequence": shape.amounts["kv"],
        "answer": {n: v for n, v in shape.row.items() if n != "error"},
    }


def _gain(shape: Shape, given: Shape) -> float | None:
    return shape.expected / given.expected - 1 if shape.error is None and given.error is None else None


def shapes_text(found: Shapes, top: int) -> RenderableType:
    """The fastest shapes beside the given one, and friendlier sizes of it."""
    scenario = found.scenario
    answered = [s for s in found.shapes if s.error is None]
    rows = answered[:top]
    if found.given.error is None and found.given not in rows:
        rows = [*rows, found.given]
    more = len(answered) - len(rows)
    told = [f"{found.outside} shapes of the grid have other budgets or are no model"] if found.outside else []
    failed = len(found.shapes) - len(answered)
    if failed:
        told.append(f"{failed} shapes have no answer, such as: {next(s.error for s in found.shapes if s.error)}")
    told.append(
        "equal budgets do not mean equal loss: that moves little with the shape over wide ranges, not without end"
    )
    parts: list[RenderableType] = [
        heading(
            f"{scenario.model.name} on {scenario.slice.name}: {len(found.shapes)} shapes of equal {', '.join(found.equal)}"
            f" (within {found.within:.3g}) for {scenario.ask}"
        ),
    ]  # fmt: skip
    if rows:
        parts.append(_table(rows, found, "The fastest expected first", f"{more} more, slower" if more > 0 else None))
    if found.friendly:
        title = f"Sizes that suit tiles of {max(scenario.slice.chip.tile[1:])} and mesh axes"
        parts.append(_table(list(found.friendly), found, title, None))
    else:
        told.insert(0, f"all sizes of {scenario.model.name} suit the tiles of {scenario.slice.chip.name} and mesh axes")
    parts.append(lines("Notes", told))
    return group(*parts)


def _table(rows: Sequence[Shape], found: Shapes, title: str, caption: str | None) -> RenderableType:
    cells = []
    for s in rows:
        gain = _gain(s, found.given)
        name = ", ".join(f"{n} {v}" for n, v in s.changes.items()) or "as given"
        if s.error is not None:
            cells.append([name, "-", "-", "-", "-", "-", "no answer"])
            continue
        cells.append([
            name, format_count(s.amounts["parameters"]), format_bytes(s.amounts["kv"]),
            format_count(s.bound), format_count(s.expected),
            "-" if gain is None else f"{gain:+.1%}", str(s.row["bottleneck"]),
        ])  # fmt: skip
    columns = ["shape", ">parameters", ">cache", ">tokens/s, bound", ">expected", ">gain", "binds"]
    return table(title, columns, cells, caption=caption)
