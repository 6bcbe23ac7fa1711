"""Predictions beside published measurements, as a terminal page and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rooftop.measure import Errors, Prediction, Validation
from rooftop.units import format_seconds
from rooftop.views._plan import mesh_text
from rooftop.views._terminal import group, table

if TYPE_CHECKING:
    from rich.console import RenderableType


def validation_json(v: Validation) -> dict[str, Any]:
    """Every row with its prediction or the reason why there is none; errors by source and chip."""
    return {
        "rows": [_row_json(p) for p in v.predictions],
        "skipped": [{"id": s.row.id, "reason": s.reason} for s in v.skipped],
        "errors": {name: asdict(e) for name, e in v.by(lambda row: f"{row.family} {row.chip}").items()},
        "beating": [p.row.id for p in v.predictions if p.beats_bound],
    }


def _row_json(p: Prediction) -> dict[str, Any]:
    e = p.estimate
    return {
        "id": p.row.id,
        "source": p.row.source,
        "model": p.row.model,
        "slice": e.problem.slice.name,
        "mesh": {a: w for a, w in e.plan.mesh.items() if w > 1},
        "microbatches": e.plan.microbatches,
        "remat": e.plan.choices.remat,
        "step_seconds": {
            "bound": float(e.step.bound), "expected": float(e.step.expected), "measured": p.measured,
        },
        "error": p.error,
        "bottleneck": e.bottleneck,
        "beats_bound": p.beats_bound,
        "fits": e.fits,
        "readings": list(p.readings),
    }  # fmt: skip


def validation_text(v: Validation, *, rows: bool) -> RenderableType:
    """Errors by source and chip, rows that beat their bound, rows left out; every row where asked."""
    parts: list[RenderableType] = []
    if rows:
        parts.append(
            table(
                "Published measurements and their predictions",
                ("row", "model", "slice", "mesh", ">bound", ">expected", ">measured", ">error"),
                [_row_text(p) for p in v.predictions],
            )
        )
    groups = v.by(lambda row: f"{row.family} {row.chip}")
    parts.append(
        table(
            f"Errors of {len(v.predictions)} predictions: expected over measured, less 1",
            ("source and chip", ">rows", ">median", ">median of the size", ">largest", ">faster than the bound"),
            [_errors_text(name, e) for name, e in groups.items()],
            caption="below 0: the prediction is too fast; coefficients are not fitted to these rows",
        )
    )
    beating = [_row_text(p) for p in v.predictions if p.beats_bound]
    if beating:
        parts.append(
            table(
                "Faster than the bound: the model or the reading of these rows is wrong",
                ("row", "model", "slice", "mesh", ">bound", ">expected", ">measured", ">error"),
                beating,
            )
        )
    if v.skipped:
        reasons = Counter(s.reason for s in v.skipped).most_common()
        parts.append(table("Rows without a prediction", (">rows", "why"), [(str(n), why) for why, n in reasons]))
    return group(*parts)


def _row_text(p: Prediction) -> tuple[str, ...]:
    e = p.estimate
    return (
        p.row.id, p.row.model, e.problem.slice.name, mesh_text(e), format_seconds(e.step.bound),
        format_seconds(e.step.expected), format_seconds(p.measured), f"{p.error:+.0%}",
    )  # fmt: skip


def _errors_text(name: str, e: Errors) -> tuple[str, ...]:
    return name, str(e.count), f"{e.bias:+.0%}", f"{e.spread:.0%}", f"{e.worst:+.0%}", str(e.beating or "-")
