"""Sweeps: every combination of the values of some parameters, each answered once.

Numbers of hardware and calibration leave a plan of `step` what it is. They go through the formulas of that plan as arrays, a
block of points at a time; everything else is a scenario of its own, answered by whichever engine is asked.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import rooftop
from rooftop.codesign._answers import Row, answer_or_why, planned, trained
from rooftop.codesign._engine import Engine
from rooftop.codesign._scenario import Scenario, changed, resolved, smooth
from rooftop.codesign._table import Columns, Journal, check_path, column, write_table
from rooftop.codesign._values import Value, Vary
from rooftop.errors import InputError, RooftopError
from rooftop.shown import Shown

MOST = 20_000_000  # points
_MOST_ANSWERS = 1_000_000  # of those, scenarios that are answered one by one
_BLOCK = 1 << 15  # points that go through the formulas together

Point = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Swept(Shown):
    """Points in the order of the grid, the last parameter fastest: columns of what was varied and of what came out.

    answered: points that were computed; reused: those that an interrupted sweep had done; duplicates: combinations that say the
    same as another one, which are left out.
    """

    scenario: Scenario
    names: tuple[str, ...]
    columns: Columns
    answered: int
    reused: int
    duplicates: int
    seconds: float

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def rows(self) -> Iterator[Row]:
        """The points one by one."""
        each = [c.tolist() for c in self.columns.values()]
        for values in zip(*each, strict=True):
            yield dict(zip(self.columns, values, strict=True))


def sweep(
    scenario: Scenario,
    varies: Sequence[Vary],
    *,
    out: Path | None = None,
    engine: Engine | None = None,
    progress: Callable[[float], None] = lambda done: None,
) -> Swept:
    """Answer a scenario at every combination of values.

    out: a table of all points (.csv, .json, .parquet); until it is complete, what is done stands beside it in a file
    `.partial`, from which the same call goes on. Raises InputError for what is not well formed.
    """
    started = time.perf_counter()
    names = tuple(name for vary in varies for name in vary.names)
    _check(names, varies)
    if out is not None:
        check_path(out)
    by_arrays = scenario.ask == "step"
    outer = [v for v in varies if not (by_arrays and all(smooth(n) for n in v.names))]
    inner = [v for v in varies if v not in outer]
    if math.prod(len(v.values) for v in outer) > _MOST_ANSWERS:
        raise InputError(
            f"{math.prod(len(v.values) for v in outer):,} scenarios are too many to answer one by one; give at most {_MOST_ANSWERS:,},"
            " or vary only numbers of hardware of one plan (--of step)",
            field="vary",
        )
    points, duplicates = _points(scenario, outer)
    answered = reused = 0
    engine = engine or Engine()
    if by_arrays:
        pieces = 1 if not inner else -(-engine.workers // len(points))
        tasks = [_Grid(scenario, p, tuple(inner), k, pieces) for p in points for k in range(pieces)]
        done: dict[int, tuple[Columns, int]] = {}
        for i, result in engine.run(_by_arrays, tasks):
            done[i] = result
            progress(len(done) / len(tasks))
        tables = [done[i][0] for i in range(len(tasks)) if done[i][0]]
        duplicates += sum(same for _, same in done.values())
        answered = sum(len(next(iter(table.values()))) for table in tables)
        columns = _joined(tables)
    else:
        rows, reused = _answered(scenario, points, out, engine, progress)
        answered = len(points) - reused
        keys = dict.fromkeys(key for row in rows for key in row)
        columns = {n: column([p[n] for p in points]) for n in names} | {
            key: column([row.get(key) for row in rows]) for key in keys
        }
    columns = {n: columns[n] for n in names} | {n: c for n, c in columns.items() if n not in names}
    if out is not None:
        write_table(out, columns)
        _journal_path(out).unlink(missing_ok=True)
    return Swept(scenario, names, columns, answered, reused, duplicates, time.perf_counter() - started)


def _check(names: tuple[str, ...], varies: Sequence[Vary]) -> None:
    if not names:
        raise InputError("nothing varies; give --vary NAME=VALUES, such as --vary batch=1M..64M:x2", field="vary")
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name} is varied twice; give all its values at once", field="vary")
    if {"on", "chips"} <= {*names}:
        raise InputError("on and chips both say the slice; vary one of them", field="vary")
    count = math.prod(len(v.values) for v in varies)
    if count > MOST:
        raise InputError(f"{count:,} points are too many; give at most {MOST:,}", field="vary")


def _combinations(varies: Sequence[Vary]) -> Iterator[list[tuple[str, Value]]]:
    for values in itertools.product(*(v.values for v in varies)):
        yield [(name, value) for vary, value in zip(varies, values, strict=True) for name in vary.names]


def _points(scenario: Scenario, varies: Sequence[Vary]) -> tuple[list[Point], int]:
    """Distinct points with their values as numbers and words, and how many were left out."""
    found: dict[tuple[Any, ...], Point] = {}
    count = 0
    for values in _combinations(varies):
        count += 1
        point = _resolved(scenario, values)
        found.setdefault(tuple(point.values()), point)
    return list(found.values()), count - len(found)


def _resolved(scenario: Scenario, values: Sequence[tuple[str, Value]]) -> Point:
    base = scenario
    first = {n: v.value for n, v in values if n in ("model", "on", "chips") and not v.relative}
    if first and any(v.relative for _, v in values):
        base = changed(scenario, first)  # multiples are of what the model or the slice of this point has
    return {name: resolved(base, name, value) for name, value in values}


@dataclass(frozen=True, slots=True)
class _Grid:
    """One plan on a part of the grid of numbers that leave it what it is: the `piece`th of so many."""

    scenario: Scenario
    point: Point
    inner: tuple[Vary, ...]
    piece: int
    pieces: int


def _by_arrays(task: _Grid) -> tuple[Columns, int]:
    """The rows of a part of a grid, and how many combinations say the same as others. The plan is that of the numbers as they are."""
    scenario, point, inner = task.scenario, task.point, task.inner
    try:
        here = changed(scenario, point)
        plan = planned(here)
    except RooftopError as error:
        if task.piece:
            return {}, 0
        missing = {n: column([None]) for vary in inner for n in vary.names}
        return {**{n: column([v]) for n, v in point.items()}, **missing, "error": column([error.message])}, 0
    axes: list[list[tuple[Any, ...]]] = []
    same = 1
    for vary in inner:
        each = [tuple(float(resolved(here, n, v)) for n in vary.names) for v in vary.values]
        axes.append(list(dict.fromkeys(each)))
        same *= len(each)
    count = math.prod(len(a) for a in axes)
    first, last = (count * (task.piece + k) // task.pieces for k in (0, 1))
    tables: list[Columns] = []
    for start in range(first, last, _BLOCK):
        index = np.arange(start, min(start + _BLOCK, last))
        values = _grid(inner, axes, index)
        row = trained(changed(here, values), plan)
        wide = {
            n: np.broadcast_to(np.asarray(v, dtype=object if v is None else None), index.shape) for n, v in row.items()
        }
        fixed = {n: np.full(index.shape, v, dtype=object if isinstance(v, str) else None) for n, v in point.items()}
        tables.append({**fixed, **values, **wide})
    return (_joined(tables) if tables else {}), 0 if task.piece else same - count


def _grid(varies: Sequence[Vary], axes: Sequence[Sequence[tuple[Any, ...]]], index: NDArray[Any]) -> dict[str, Any]:
    """Values of a block of the grid, the last parameter fastest."""
    places = np.unravel_index(index, [len(a) for a in axes]) if axes else ()
    result: dict[str, Any] = {}
    for vary, axis, place in zip(varies, axes, places, strict=True):
        for i, name in enumerate(vary.names):
            result[name] = np.array([v[i] for v in axis])[place]
    return result


def _joined(tables: Sequence[Columns]) -> Columns:
    """Tables below each other; what one lacks is missing there."""
    if len(tables) == 1:
        return tables[0]
    names = dict.fromkeys(n for t in tables for n in t)
    lengths = [len(next(iter(t.values()))) for t in tables]

    def of(table: Columns, name: str, length: int) -> NDArray[Any]:
        return table[name] if name in table else np.full(length, None, dtype=object)

    return {n: np.concatenate([of(t, n, k) for t, k in zip(tables, lengths, strict=True)]) for n in names}


@dataclass(frozen=True, slots=True)
class Task:
    """Points of one scenario."""

    scenario: Scenario
    points: tuple[Point, ...]


def work(task: Task) -> list[Row]:
    """Answer some points of one scenario; runs in whichever process."""
    rows = []
    for point in task.points:
        try:
            here = changed(task.scenario, point)
        except RooftopError as error:
            rows.append({"error": error.message})
            continue
        rows.append(answer_or_why(here))
    return rows


def _answered(
    scenario: Scenario, points: Sequence[Point], out: Path | None, engine: Engine, progress: Callable[[float], None]
) -> tuple[list[Row], int]:
    """Rows in the order of the points, and how many were there already."""
    journal = None if out is None else Journal(out)
    base = repr((rooftop.__version__, scenario))
    keys = [hashlib.sha256(f"{base}{sorted(p.items())!r}".encode()).hexdigest()[:32] for p in points]
    rows: dict[int, Row] = {}
    if journal is not None:
        rows = {i: journal.rows[k] for i, k in enumerate(keys) if k in journal.rows}
    reused = len(rows)
    left = [i for i in range(len(points)) if i not in rows]
    size = max(1, min(64, len(left) // (8 * engine.workers)))
    chunks = [left[i : i + size] for i in range(0, len(left), size)]
    tasks = [Task(scenario, tuple(points[i] for i in chunk)) for chunk in chunks]
    try:
        for chunk, found in engine.run(work, tasks):
            for i, row in zip(chunks[chunk], found, strict=True):
                rows[i] = row
                if journal is not None:
                    journal.add(keys[i], row)
            if journal is not None:
                journal.flush()
            progress(len(rows) / len(points))
    finally:
        if journal is not None:
            journal.close(done=False)
    return [rows[i] for i in range(len(points))], reused


def _journal_path(out: Path) -> Path:
    return out.with_name(f"{out.name}.partial")


def binding(columns: Mapping[str, NDArray[Any]]) -> dict[str, int]:
    """How many points each resource binds, most first; points without an answer under "no answer"."""
    held = columns.get("bottleneck")
    if held is None:
        return {"no answer": len(next(iter(columns.values())))}
    words, counts = np.unique(
        np.array([v if v is not None else "no answer" for v in held.tolist()]), return_counts=True
    )
    return dict(sorted(zip(words.tolist(), counts.tolist(), strict=True), key=lambda pair: -pair[1]))
