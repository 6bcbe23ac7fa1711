"""Sweeps and what-ifs: as tables, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rooftop.codesign import Swept, binding, shown
from rooftop.units import format_seconds
from rooftop.views._terminal import bar, group, heading, lines, table

if TYPE_CHECKING:
    from rich.console import RenderableType

_SHOWN = 40  # rows on a terminal
#: Columns of a sweep that a person wants first, by question.
_FIRST = {
    "plan": ("step_seconds.bound", "step_seconds.expected", "mfu.expected", "bottleneck", "fits", "mesh"),
    "step": ("step_seconds.bound", "step_seconds.expected", "mfu.expected", "bottleneck", "fits"),
    "serve": ("batch_sequences", "tpot_seconds.expected", "tokens_per_second", "bottleneck", "fits", "mesh"),
    "simulate": ("ttft_seconds.p99", "tpot_seconds.p50", "tokens_per_second", "goodput", "bottleneck", "overloaded"),
}
_BEST = {"plan": "tokens_per_second_per_chip", "step": "tokens_per_second_per_chip", "serve": "tokens_per_second_per_chip",
         "simulate": "goodput"}  # fmt: skip
_MOST_JSON = 100_000


def _title(name: str) -> str:
    return name.replace("_seconds", "").replace("_", " ")


def swept_json(found: Swept) -> dict[str, Any]:
    """Points as rows under the keys of their command; of very large sweeps the first ones, the rest is in the file."""
    rows = [dict(zip(found.columns, values, strict=True)) for values in zip(
        *(_finite(c[:_MOST_JSON].tolist()) for c in found.columns.values()), strict=True)]  # fmt: skip
    return {
        "of": found.scenario.ask,
        "model": found.scenario.model.name,
        "slice": found.scenario.slice.name,
        "varied": list(found.names),
        "points": rows,
        "count": len(found),
        "binds": binding(found.columns),
        "answered": found.answered,
        "reused": found.reused,
        "duplicates": found.duplicates,
        "seconds": found.seconds,
    }


def _finite(values: list[Any]) -> list[Any]:
    return [None if isinstance(v, float) and not np.isfinite(v) else v for v in values]


def swept_text(found: Swept, out: str | None) -> RenderableType:
    """A table of the points, and which resource binds where."""
    ask = found.scenario.ask
    columns = [*found.names, *(c for c in _FIRST[ask] if c in found.columns)]
    total, failed = len(found), "error" in found.columns and any(e is not None for e in found.columns["error"].tolist())
    step = max(1, -(-total // _SHOWN))
    picked = list(range(0, total, step))
    rows = [[shown(n, found.columns[n][i : i + 1].tolist()[0]) for n in columns] for i in picked]
    caption = f"1 in {step} of {total:,} points" if step > 1 else None
    parts: list[RenderableType] = [
        heading(f"{found.scenario.model.name} on {found.scenario.slice.name}: {total:,} points of {ask}"),
        table("", [c if c in ("bottleneck", "mesh") else f">{_title(c)}" for c in columns], rows, caption=caption),
    ]
    counts = binding(found.columns)
    most = max(counts.values())
    parts.append(table("What binds", ["", ">points", ""], [[n, f"{k:,}", bar(k, most)] for n, k in counts.items()]))
    told = []
    best = _BEST[ask]
    if best in found.columns:
        fits = found.columns["fits"].tolist() if "fits" in found.columns else [True] * total
        able = zip(found.columns[best].tolist(), fits, strict=True)
        values = np.array([float(v) if v is not None and fit else np.nan for v, fit in able])
        if not np.all(np.isnan(values)):
            i = int(np.nanargmax(values))
            where = ", ".join(f"{n} {shown(n, found.columns[n][i : i + 1].tolist()[0])}" for n in found.names)
            told.append(f"highest {_title(best)}: {shown(best, float(values[i]))} at {where}")
    if failed:
        errors = [e for e in found.columns["error"].tolist() if e is not None]
        told.append(
            f"{len(errors):,} of the points {'has' if len(errors) == 1 else 'have'} no answer; the first: {errors[0]}"
        )
    told.append(
        f"{found.answered:,} answered in {format_seconds(found.seconds)}"
        + (f", {found.reused:,} taken from before" if found.reused else "")
        + (f", {found.duplicates:,} repeated ones left out" if found.duplicates else "")
    )
    if out:
        told.append(f"all points are in {out}")
    parts.append(lines("", told))
    return group(*parts)
