"""Two profiles of the same work: what changed, in seconds of a step and in percent of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rooftop.profiles._report import Group, OpRow, Report
from rooftop.shown import Shown


@dataclass(frozen=True, slots=True)
class Change:
    """One heading before and after, seconds of a step; None where it is in one of the two only. share: of the step before."""

    name: str
    before: float | None
    after: float | None
    share: float

    @property
    def seconds(self) -> float:
        """What was added; negative is saved."""
        return (self.after or 0.0) - (self.before or 0.0)


@dataclass(frozen=True, slots=True)
class Versus(Shown):
    """A step before and after; each list of changes adds up to the change of the step, but for `ops`, which lack idle time."""

    before: Report
    after: Report
    steps: tuple[int, int]
    step_before: float
    step_after: float
    losses: Sequence[Change]
    parts: Sequence[Change]
    categories: Sequence[Change]
    ops: Sequence[Change]
    notes: tuple[str, ...]

    @property
    def speedup(self) -> float:
        """Time before over time after."""
        return self.step_before / self.step_after if self.step_after > 0 else float("inf")


def compare(before: Report, after: Report) -> Versus:
    """What changed from one profile to the other.

    Both are divided by their number of steps, where both tell it; else the whole windows are compared, and a note says so.
    """
    known = before.steps is not None and after.steps is not None
    counts = (len(before.steps.seconds), len(after.steps.seconds)) if before.steps and after.steps else (1, 1)
    notes = [] if known else ["not both profiles tell their steps, so the whole windows are compared"]
    if before.roof is not None and after.roof is not None and before.roof.name != after.roof.name:
        notes.append(f"the chips differ: {before.roof.name} before, {after.roof.name} after")
    window = before.window / counts[0]

    def changes(pairs: Callable[[Report], Iterable[tuple[str, float]]]) -> list[Change]:
        sums: list[dict[str, float]] = []
        for report, count in zip((before, after), counts, strict=True):
            found: dict[str, float] = {}
            for name, seconds in pairs(report):
                found[name] = found.get(name, 0.0) + seconds / count
            sums.append(found)
        rows = [
            Change(
                name, sums[0].get(name), sums[1].get(name), (sums[1].get(name, 0.0) - sums[0].get(name, 0.0)) / window
            )
            for name in dict.fromkeys((*sums[0], *sums[1]))
        ]
        return sorted(rows, key=lambda c: (-abs(c.seconds), c.name))

    return Versus(
        before, after, counts, window, after.window / counts[1],
        changes(lambda r: ((x.name, x.seconds) for x in r.losses)),
        changes(lambda r: (*_walls(r.parts), _idle(r))),
        changes(lambda r: (*_walls(r.categories), _idle(r))),
        changes(lambda r: ((_op_name(op), op.wall) for op in r.ops)),
        tuple(notes),
    )  # fmt: skip


def _walls(groups: Iterable[Group]) -> Iterable[tuple[str, float]]:
    return ((g.name, g.wall) for g in groups)


def _idle(report: Report) -> tuple[str, float]:
    return "(idle)", report.window - sum(op.wall for op in report.ops)


def _op_name(op: OpRow) -> str:
    from rooftop.profiles._recognise import short_name

    return " ".join(filter(None, (short_name(op.name)[:60], op.shape, f"in {op.part}" if op.part else "")))
