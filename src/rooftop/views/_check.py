"""A plan beside its compiled program, as a terminal page and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rooftop.units import format_bytes, format_flops
from rooftop.views._terminal import group, heading, lines, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rooftop.lower import Check, CheckRow


def check_json(check: Check) -> dict[str, Any]:
    """Everything that is compared; FLOPs and bytes of one chip in one step."""
    best, compiled = check.estimate, check.compiled
    return {
        "model": best.problem.model.name,
        "slice": best.problem.slice.name,
        "mesh": {a: n for a, n in best.plan.mesh.items() if n > 1},
        "compiler": compiled.target.kind,
        "accepted": compiled.accepted,
        "message": compiled.message or None,
        "agrees": check.agrees,
        "differing": list(check.differing),
        "compile_seconds": compiled.seconds,
        "flops": {**_row(check.total), "parts": [_row(r) for r in check.flops]},
        "bytes": [_row(r) for r in check.bytes],
        "collectives": [
            {**_row(r), "count": {"predicted": r.counts[0], "compiled": r.counts[1]}} for r in check.kinds
        ],
        "memory": {**_row(check.memory), "parts": {k: float(v) for k, v in best.step.memory.items()}},
        "notes": list(check.listing.notes) if check.listing else [],
    }  # fmt: skip


def _row(row: CheckRow) -> dict[str, Any]:
    return {
        "name": row.name, "predicted": row.predicted, "known": row.known, "compiled": row.compiled,
        "difference": row.difference if math.isfinite(row.difference) else None, "asynchronous": row.asynchronous, "why": list(row.why),
    }  # fmt: skip


def check_text(check: Check) -> RenderableType:
    """The page that `rooftop check` prints."""
    best, compiled = check.estimate, check.compiled
    mesh = ", ".join(f"{a}={n}" for a, n in best.plan.mesh.items() if n > 1) or "one chip"
    title = f"{best.problem.model.name} on {best.problem.slice.name}, {mesh}: {compiled.target.title}"
    if not compiled.accepted:
        return group(heading(f"{title} refuses the plan"), lines("The compiler says", (compiled.message,)))
    verdict = "agrees with the plan" if check.agrees else f"differs in {', '.join(check.differing)}"
    parts: list[RenderableType] = [heading(f"{title} {verdict}")]
    parts.append(_table("FLOPs of a chip in a step", format_flops, (*check.flops, check.total)))
    if check.bytes:
        parts.append(_table("Bytes that a chip sends, by mesh axis", format_bytes, check.bytes))
    if check.kinds:
        parts.append(
            table(
                "Collectives", ("axis: kind", ">planned", ">bytes sent", ">compiled", ">bytes sent", ">beside work"),
                [(r.name, f"{r.counts[0]:,.0f}", format_bytes(r.predicted), f"{r.counts[1]:,.0f}", format_bytes(r.compiled),
                  f"{r.asynchronous:.0%}" if r.compiled else "") for r in check.kinds],
            )
        )  # fmt: skip
    parts.append(_table("Memory of a chip", format_bytes, (check.memory,)))
    reasons = dict.fromkeys(f"{r.name}: {text}" for r in (*check.flops, *check.bytes, check.memory) for text in r.why)
    if reasons:
        parts.append(lines("Why", tuple(reasons)))
    if check.listing and check.listing.notes:
        parts.append(lines("Notes", check.listing.notes))
    return group(*parts)


def _table(title: str, show: Callable[[float], str], rows: tuple[CheckRow, ...]) -> RenderableType:
    known = any(r.known for r in rows)
    columns = ("", ">planned", *((">known extra",) if known else ()), ">compiled", ">difference")

    def cells(r: CheckRow) -> tuple[str, ...]:
        extra = (show(r.known) if r.known else "",) if known else ()
        difference = f"{r.difference:+.1%}" if math.isfinite(r.difference) else "not planned"
        return (r.name, show(r.predicted), *extra, show(r.compiled), difference)

    return table(title, columns, [cells(r) for r in rows])
