"""Predictions beside published measurements, as a terminal page and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rooftop.measure import GROUPS, Errors, Prediction, Validation
from rooftop.units import format_seconds
from rooftop.views._terminal import group, table

if TYPE_CHECKING:
    from rich.console import RenderableType

_ROW = ("row", "model", "slice", "quantity", ">bound", ">expected", ">measured", ">error")


def validation_json(v: Validation) -> dict[str, Any]:
    """Every row with its prediction or the reason why there is none; errors by kind, source, hardware and model."""
    return {
        "rows": [_row_json(p) for p in v.predictions]
        + [
            {
                "id": r.id, "table": r.table, "source": r.source, "model": r.model, "measured": None, "bound": None,
                "expected": None, "error": None, "refused": r.reason,
            }
            for r in v.refused
        ],
        "aggregates": {
            by: [{"name": name, "quantity": quantity, **asdict(e)} for (name, quantity), e in v.by(key).items()]
            for by, key in GROUPS.items()
        },
        "beating": list(dict.fromkeys(p.id for p in v.predictions if p.beats_bound)),
    }  # fmt: skip


def _row_json(p: Prediction) -> dict[str, Any]:
    return {
        "id": p.id,
        "table": p.table,
        "kind": p.kind,
        "source": p.source,
        "model": p.model,
        "hardware": p.hardware,
        "slice": p.slice,
        "quantity": p.quantity,
        "measured": p.measured,
        "bound": p.bound,
        "expected": p.expected,
        "error": p.error,
        "beats_bound": p.beats_bound,
        "refused": None,
        **p.how,
        "readings": list(p.readings),
    }


def validation_text(v: Validation, *, rows: bool, by: str = "kind") -> RenderableType:
    """Errors by group, rows that beat their bound, rows refused; every row where asked."""
    parts: list[RenderableType] = []
    if rows:
        title = "Published measurements and their predictions"
        parts.append(table(title, _ROW, [_row_text(p) for p in v.predictions]))
    for each in dict.fromkeys(("kind", by)):
        parts.append(
            table(
                f"Errors of {len(v.predictions)} predictions by {each}: expected over measured, less 1",
                (each, "quantity", ">rows", ">bias", ">median size", ">90 %", ">largest", ">beyond the bound"),
                [_errors_text(*name, e) for name, e in v.by(GROUPS[each]).items()],
                caption="bias: the median; sizes without their sign; 90 %: nine of ten are smaller",
            )
        )
    beating = [_row_text(p) for p in v.predictions if p.beats_bound]
    if beating:
        parts.append(
            table(
                "Faster than the bound: the model, the reading or the measurement of these rows is wrong", _ROW, beating
            )
        )
    if v.refused:
        reasons = Counter(r.reason for r in v.refused).most_common()
        parts.append(table("Rows without a prediction", (">rows", "why"), [(str(n), why) for why, n in reasons]))
    return group(*parts)


def _row_text(p: Prediction) -> tuple[str, ...]:
    def shown(value: float) -> str:
        return format_seconds(value) if p.quantity.endswith("seconds") else f"{value:.4g}"

    return (
        p.id, p.model, p.slice, p.quantity, shown(p.bound), shown(p.expected), shown(p.measured), f"{p.error:+.0%}",
    )  # fmt: skip


def _errors_text(name: str, quantity: str, e: Errors) -> tuple[str, ...]:
    return (
        name, quantity, str(e.count), f"{e.bias:+.1%}", f"{e.median:.1%}", f"{e.p90:.0%}", f"{e.worst:+.0%}",
        str(e.beating or "-"),
    )  # fmt: skip
