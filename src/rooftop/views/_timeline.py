"""A step over time, as lines of characters and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rooftop.training import Estimate, Timeline
from rooftop.units import format_bytes, format_seconds
from rooftop.views._terminal import bar, group, table

if TYPE_CHECKING:
    from rich.console import RenderableType

_WIDTH = 64
_MOST_STAGES = 8
_LETTERS = {
    "forward": "F",
    "recompute": "R",
    "backward": "B",
    "weights": "W",
    "exposed": "x",
    "wait": ".",
    "update": "U",
}


def timeline_json(t: Timeline) -> dict[str, Any]:
    """Events by stage, traffic by network axis, bytes over time."""
    return {
        "seconds": t.seconds,
        "pieces": t.pieces,
        "stages": [[asdict(event) for event in stage] for stage in t.stages],
        "traffic": [{"name": x.name, "busy_seconds": x.busy, "exposed_seconds": x.exposed} for x in t.traffic],
        "memory": [{"start": m.start, "bytes": m.bytes, "parts": m.parts} for m in t.memory],
    }


def timeline_text(t: Timeline, e: Estimate) -> RenderableType:
    """Stages as rows of letters, network axes as bars, memory as a skyline."""
    count = len(t.stages)
    shown = range(count) if count <= _MOST_STAGES else [0, 1, 2, count // 2, count - 2, count - 1]
    rows = []
    for n in shown:
        letters = [_LETTERS[event.kind] for event in t.stages[n]]
        rows.append(
            (f"stage {n}" if count > 1 else "chip", _sampled(t.seconds, [x.start for x in t.stages[n]], letters))
        )
    capacity = float(e.problem.capacity)
    levels = " ▁▂▃▄▅▆▇█" if "utf" in (getattr(sys.stdout, "encoding", None) or "ascii").lower() else " .:-=+*#@"
    top = max(m.bytes for m in t.memory)
    skyline = [levels[round(8 * m.bytes / top)] for m in t.memory]
    rows.append(("memory", _sampled(t.seconds, [m.start for m in t.memory], skyline)))
    peak = max(t.memory, key=lambda m: m.bytes)
    least = min(m.bytes for m in t.memory)
    weights = ", W gradients of weights" if any(x.kind == "weights" for x in t.stages[0]) else ""
    pictures = table(
        f"The step over {format_seconds(t.seconds)}", ("", ""), rows,
        caption=f"F forward, R recompute, B backward{weights}, x exposed communication and overhead, U update, . waiting; memory from"
        f" {format_bytes(least)} to {format_bytes(peak.bytes)} (at {format_seconds(peak.start)}) of {format_bytes(capacity)}"
        + ("" if t.pieces == e.plan.microbatches else f"; {e.plan.microbatches} microbatches drawn as {t.pieces}"),
    )  # fmt: skip
    longest = max((x.busy for x in t.traffic), default=0.0)
    traffic = [
        (x.name, format_seconds(x.busy), format_seconds(x.exposed), bar(x.busy, longest), bar(x.exposed, longest))
        for x in sorted(t.traffic, key=lambda x: -x.busy)
    ]
    if not traffic:
        return pictures
    return group(
        pictures,
        table("Communication of a stage beside it", ("", ">busy", ">exposed", "busy", "exposed"), traffic),
    )


def _sampled(seconds: float, starts: Sequence[float], letters: Sequence[str]) -> str:
    """One character for each of equal pieces of time: that of what runs in the middle of it."""
    result, at = [], 0
    for column in range(_WIDTH):
        middle = (column + 0.5) / _WIDTH * seconds
        while at + 1 < len(starts) and starts[at + 1] <= middle:
            at += 1
        result.append(letters[at])
    return "".join(result)
