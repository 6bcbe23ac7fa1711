"""Ways side by side: as tables, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.codesign import Alternative, Comparison, shown
from rooftop.codesign._compare import FARTHEST
from rooftop.units import format_bytes, format_count, format_seconds
from rooftop.views._terminal import group, heading, lines, table

if TYPE_CHECKING:
    from rich.console import RenderableType


def compared_json(found: Comparison) -> dict[str, Any]:
    """Ways, the fastest first, with the columns of a sweep under `answer`."""
    return {
        "of": found.scenario.ask,
        "model": found.scenario.model.name,
        "slice": found.scenario.slice.name,
        "over": list(found.over),
        "alternatives": [_alternative_json(a, found.best) for a in found.alternatives],
    }


def _alternative_json(a: Alternative, best: Alternative) -> dict[str, Any]:
    answered = a.error is None
    return {
        "name": a.name,
        "error": a.error,
        "tokens_per_second": {"bound": a.bound, "expected": a.expected} if answered else None,
        "of_best": a.expected / best.expected if answered else None,
        "model": a.scenario.model.name,
        "parameters": a.parameters,
        "kv_bytes_per_sequence": a.kv_bytes,
        "answer": {n: v for n, v in a.row.items() if n != "error"},
        "overtakes": [
            {"parameter": o.parameter, "now": o.now, "below": o.below, "above": o.above} for o in a.overtakes
        ],
    }


def compared_text(found: Comparison) -> RenderableType:
    """A table of the ways, and one of what each would need."""
    scenario, best = found.scenario, found.best
    models = len({a.scenario.model for a in found.alternatives}) > 1
    unit = "token" if scenario.ask == "serve" else "step"
    answered = [a for a in found.alternatives if a.error is None]
    columns = ["way", ">bound", ">expected", ">tokens/s", ">of best", ">memory", "binds"]
    parts: list[RenderableType] = [
        heading(f"{scenario.model.name} on {scenario.slice.name}: {len(found.alternatives)} ways of {scenario.ask}"),
        table(f"The fastest expected first, by the time of a {unit}", columns, [_times(a, best) for a in answered]),
    ]
    how, models = ["way", "mesh"], len({a.scenario.model for a in answered}) > 1
    how += [">sequences", ">USD/M tokens"] * (unit == "token") + [">parameters", ">cache of a sequence"] * models
    parts.append(table("What each does", how, [_what(a, models) for a in answered]))
    rest = [a for a in found.alternatives[1:] if a.overtakes]
    if rest:
        names = [name for name in found.over if any(_wins(a, name) for a in rest)]
        cells = [[a.name, *(_wins(a, name) or "-" for name in names)] for a in rest if any(_wins(a, n) for n in names)]
        if cells:
            parts.append(
                table(
                    f"Where a way overtakes {best.name}",
                    ["way", *(f">{n.removeprefix('chip.').removeprefix('network.')}" for n in names)],
                    cells,
                    caption=f"one number at a time, each way keeping its plan; up to {FARTHEST:g}x as much or as little",
                )
            )
        never = [a.name for a in rest if not any(_wins(a, n) for n in names)]
        if never:
            parts.append(lines("Never faster on any of these", never))
    failed = [f"{a.name}: {a.error}" for a in found.alternatives if a.error is not None]
    if failed:
        parts.append(lines("No answer", failed))
    return group(*parts)


def _times(a: Alternative, best: Alternative) -> list[str]:
    row = a.row
    kind = "tpot_seconds" if "tpot_seconds.bound" in row else "step_seconds"
    return [
        a.name,
        format_seconds(row[f"{kind}.bound"]),
        format_seconds(row[f"{kind}.expected"]),
        format_count(a.expected),
        f"{a.expected / best.expected:.3f}",
        format_bytes(row["memory.bytes"]),
        str(row["bottleneck"]),
    ]


def _what(a: Alternative, models: bool) -> list[str]:
    sequences: list[str] = []
    if "batch_sequences" in a.row:
        price = a.row["usd_per_million_tokens"]
        sequences = [str(a.row["batch_sequences"]), "-" if price is None else f"{price:.3g}"]
    return [
        a.name, str(a.row["mesh"]), *sequences,
        *([format_count(a.parameters), format_bytes(a.kv_bytes)] if models else []),
    ]  # fmt: skip


def _wins(a: Alternative, name: str) -> str:
    """Where a way wins as one parameter moves; empty: nowhere."""
    o = next((o for o in a.overtakes if o.parameter == name), None)
    if o is None:
        return ""
    ends = (("<", o.below, o.below_x), (">", o.above, o.above_x))
    return ", ".join(f"{sign} {shown(name, value)} ({x:.2g}x)" for sign, value, x in ends if value is not None and x)
