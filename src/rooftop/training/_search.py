"""The plan search: exact over the space of `_space`, as NumPy arrays of many plans, through the formulas of one plan.

Meshes are taken in the order of a lower bound of their time per token: local work at its fastest, plus the transfers that
nothing hides on the best links that the network has. Once that bound passes the worst of the plans kept, no later
mesh can enter, and the search ends. Within a mesh every placement, microbatch count, ZeRO stage and remat policy is
evaluated. Nothing is left out by a guess.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooftop.costing import MESH_AXES, PLACEMENT_ORDER, batch_groups, links_of, narrowed, outer_axes
from rooftop.formula import total
from rooftop.roofline import Group, Placement, collective_seconds, group, placements, single_placements
from rooftop.training import _space as space
from rooftop.training._choices import Choices, combinations
from rooftop.training._estimate import Local, local, moved
from rooftop.training._plan import Plan, Problem, environment
from rooftop.training._step import Evaluated, memory_of, states_of, step
from rooftop.training._structure import structure

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Found:
    """A plan with what the search knows of it."""

    plan: Plan
    seconds_per_token: float
    memory_bytes: float


@dataclass(slots=True)
class Outcome:
    """What a search found: the best plans that fit, one for each mesh, best first; and how large the space was.

    plans: those of the space that are settled, evaluated or proven to be slower or too large; placements of meshes that
    were ruled out before they were placed are not counted. timed: plans whose time was computed, equal placements once.
    """

    found: list[Found]
    closest: Found | None  # the plan that needs the least memory
    plans: int
    timed: int
    seconds: float


_KEEP = 6
_FIRST = 128
_CHUNK = 1024  # meshes at a time
_ROWS = 2048  # placements at a time: arrays of some hundred kB stay in the cache


def search(
    problem: Problem,
    fixed: Mapping[str, int] | None = None,
    *,
    keep: int = _KEEP,
    limits: Limits | None = None,
    progress: Callable[[float], None] | None = None,
) -> Outcome:
    """The best plans of the space. fixed: ways of some mesh axes that the user demands."""
    started = time.perf_counter()
    fixed, limits = fixed or {}, limits or Limits()
    scene = Scene(problem, limits)
    best: list[Found] = []
    outcome = Outcome(best, None, 0, 0, 0.0)

    def threshold() -> float:
        return best[-1].seconds_per_token if len(best) >= keep else np.inf

    todo = _Todo.collect(scene, fixed, space.used_sizes(problem.dimensions, limits.least_used), limits, threshold)
    for meshes in todo:
        outcome.plans += scene.count_plans(meshes.rows, limits)
        for some in meshes.by_bound(_FIRST if len(best) < keep else _CHUNK, threshold):
            _evaluate(scene, some, limits, keep, outcome)
            if progress is not None:
                progress(meshes.done)
    outcome.seconds = time.perf_counter() - started
    return outcome


@dataclass(frozen=True, slots=True)
class Limits:
    """What the user restricts: values of choices to try (all, where none is named), the part of the slice to use at least."""

    allowed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    microbatches: int | None = None
    least_used: float = 0.5
    ignore_memory: bool = False

    @property
    def choices(self) -> tuple[Choices, ...]:
        """Every combination to try."""
        return tuple(combinations(self.allowed))

    @property
    def layouts(self) -> tuple[Choices, ...]:
        """Their distinct layouts."""
        return tuple(dict.fromkeys(c.layout for c in self.choices))

    def under(self, layout: Choices) -> tuple[Choices, ...]:
        """The combinations of one layout."""
        return tuple(c for c in self.choices if c.layout == layout)


@dataclass(slots=True)
class _Todo:
    """Meshes still to be evaluated, of several used parts of the slice, with the lower bounds of their time per token."""

    parts: list[tuple[int, ...]]
    part: NDArray[np.int64]  # of each mesh, the part that it uses
    rows: NDArray[np.int64]
    lower: Array
    done: float = 0.0

    @staticmethod
    def collect(
        scene: Scene,
        fixed: Mapping[str, int],
        used: Iterator[tuple[int, ...]],
        limits: Limits,
        threshold: Callable[[], float],
    ) -> Iterator[_Todo]:
        """First the largest part that has meshes at all, then all others that are not too small to win."""
        batch: list[tuple[tuple[int, ...], NDArray[np.int64]]] = []
        first = True
        for sizes in used:
            chips = math.prod(sizes)
            if scene.least_seconds_per_token / chips >= threshold():
                break
            meshes = space.meshes(chips, scene.any, fixed, int(scene.most_sequences))
            meshes = meshes[scene.can_batch(meshes)]
            if len(meshes):
                batch.append((sizes, meshes))
                if first:
                    yield _Todo.of(scene, batch)
                    batch, first = [], False
        if batch:
            yield _Todo.of(scene, batch)

    @staticmethod
    def of(scene: Scene, batch: list[tuple[tuple[int, ...], NDArray[np.int64]]]) -> _Todo:
        """With bounds."""
        parts = [sizes for sizes, _ in batch]
        part = np.repeat(np.arange(len(batch)), [len(m) for _, m in batch])
        rows = np.concatenate([m for _, m in batch])
        return _Todo(parts, part, rows, scene.lower_bound(rows, parts, part))

    def by_bound(
        self, first: int, threshold: Callable[[], float]
    ) -> Iterator[list[tuple[tuple[int, ...], NDArray[np.int64]]]]:
        """Chunks in the order of their bounds, until no later mesh can be among the best: a small chunk, then large ones."""
        order = np.argsort(self.lower, kind="stable")
        start, size = 0, first
        while start < len(order) and self.lower[order[start]] < threshold():
            chunk = order[start : start + size]
            chunk = np.sort(chunk[self.lower[chunk] < threshold()])
            self.done = min(1.0, (start + size) / len(order))
            yield [
                (self.parts[p], self.rows[chunk[self.part[chunk] == p]]) for p in np.unique(self.part[chunk]).tolist()
            ]
            start, size = start + size, _CHUNK


class Scene:
    """Everything about a problem that does not depend on the plan, evaluated once."""

    def __init__(self, problem: Problem, limits: Limits) -> None:
        self.problem = problem
        layouts = limits.layouts
        self.structures = {c: structure(problem.model, problem.seq, c, problem.recipe) for c in layouts}
        self.any = self.structures[layouts[0]]
        self.groups = tuple(sorted({axes for s in self.structures.values() for axes in s.groups}))
        self.rates = problem.rates
        self.target = problem.batch_tokens / problem.seq
        self.most_sequences = np.floor(self.target * (1 + problem.batch_within) + 1e-9)
        self.least_sequences = max(1.0, np.ceil(self.target * (1 - problem.batch_within) - 1e-9))
        self.columns = len(space.MICROBATCHES) + len(space.SEQUENCES)
        whole = self._ideal_work()
        self.least_seconds_per_token = whole

    def can_batch(self, meshes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Meshes whose data-parallel groups can share some batch within the tolerance evenly."""
        groups = _groups(meshes)
        most = np.floor(self.most_sequences / groups)
        return np.asarray(most * groups >= self.least_sequences)

    def count_plans(self, meshes: NDArray[np.int64], limits: Limits) -> int:
        """Plans on these meshes, each placement counted once."""
        return int(self.microbatching(meshes, limits)[2].sum()) * len(limits.choices)

    def microbatching(self, meshes: NDArray[np.int64], limits: Limits) -> tuple[Array, Array, NDArray[np.bool_]]:
        """(microbatches, sequences in each, whether this is an option), each [meshes, most options of a mesh].

        Options are distinct and give a batch within the tolerance.
        """
        groups = _groups(meshes)[:, None].astype(np.float64)
        m_fixed = np.array(space.MICROBATCHES, dtype=np.float64)[None, :]
        b_fixed = np.array(space.SEQUENCES, dtype=np.float64)[None, :]
        b = np.maximum(1.0, np.rint(self.target / (groups * m_fixed)))
        m = np.maximum(1.0, np.rint(self.target / (groups * b_fixed)))
        microbatches = np.concatenate([np.broadcast_to(m_fixed, b.shape), m], axis=1)
        sequences = np.concatenate([b, np.broadcast_to(b_fixed, m.shape)], axis=1)
        batch = groups * microbatches * sequences
        valid = (batch <= self.most_sequences) & (batch >= self.least_sequences)
        if limits.microbatches is not None:
            valid &= microbatches == limits.microbatches
        # options in order, each once: by number of microbatches, then of sequences
        key = np.where(valid, microbatches * 1e6 + sequences, np.inf)
        order = np.argsort(key, axis=1, kind="stable")
        key = np.take_along_axis(key, order, axis=1)
        key[:, 1:][key[:, 1:] == key[:, :-1]] = np.inf
        order = np.take_along_axis(order, np.argsort(key, axis=1, kind="stable"), axis=1)
        key.sort(axis=1)
        width = max(1, int(np.isfinite(key).sum(axis=1).max()))
        order = order[:, :width]
        return (
            np.take_along_axis(microbatches, order, axis=1),
            np.take_along_axis(sequences, order, axis=1),
            np.isfinite(key[:, :width]),
        )

    def _ideal_work(self) -> float:
        """Chip-seconds per token of the local work alone, with no padding, overhead or recomputation."""
        axes, mesh = environment({}, float(self.most_sequences), self.any.kv_heads, self.any.axes)
        work = self._work(axes, mesh)
        return float(work / (self.most_sequences * self.problem.seq))

    def _work(self, axes: Mapping[str, Any], mesh: Mapping[str, Any]) -> Any:
        plain = replace(self.rates, tile=(1, 1, 1), op_overhead=0.0)
        result: Any = 0.0
        for compiled in self.any.programs:
            each = local(compiled, compiled.evaluate(axes, mesh), plain)
            result = result + self.any.counts[compiled.name] * (each.forward + each.backward)
        return result

    def lower_bound(self, meshes: NDArray[np.int64], parts: list[tuple[int, ...]], part: NDArray[np.int64]) -> Array:
        """Seconds per token below which no plan on these meshes can be; shape [meshes].

        Each op at its fastest rate on unpadded sizes at the largest batch, each critical transfer over the best links
        that its number of chips could have, divided evenly over stages, with the smallest possible bubble.
        """
        ways = {axis: meshes[:, i].astype(np.float64) for i, axis in enumerate(MESH_AXES)}
        groups = batch_groups(ways)
        most = np.floor(self.most_sequences / groups)
        axes, inner = environment(ways, most, self.any.kv_heads, self.any.axes)
        work = self._work(axes, inner)
        links = self._links_at_best(meshes, parts, part, inner)
        critical: Any = 0.0
        for compiled in self.any.programs:
            values = compiled.evaluate(axes, inner)
            for t in compiled.transfers:
                if t.overlap == "critical":
                    critical = critical + self.any.counts[compiled.name] * collective_seconds(
                        t.kind, total(values[i] for i in t.bytes), links[t.axes]
                    )
        hidden = self.problem.calibration.overlap["critical"]
        together = np.maximum(work, (1 - hidden) * work + critical) if hidden else work + critical
        stages = ways["pipeline"]
        seconds = together / stages * (1 + (stages - 1) / most)
        return np.asarray(seconds / (most * groups * self.problem.seq))

    def _links_at_best(
        self, meshes: NDArray[np.int64], parts: list[tuple[int, ...]], part: NDArray[np.int64], inner: Mapping[str, Any]
    ) -> dict[tuple[str, ...], Group]:
        """For the groups that critical transfers use: the best that so many chips could do, placed as well as can be."""
        result = {}
        for axes in sorted({t.axes for c in self.any.programs for t in c.transfers if t.overlap == "critical"}):
            outer = outer_axes(axes)
            ways = np.prod([meshes[:, MESH_AXES.index(a)] for a in outer], axis=0)
            distinct, of_mesh = np.unique(np.stack([part, ways], axis=1), axis=0, return_inverse=True)
            options = [single_placements(parts[p], n) for p, n in distinct.tolist()]
            rows = np.concatenate(options)
            factors = tuple({"data": rows[:, d]} for d in range(rows.shape[1]))
            placement = Placement(self.problem.dimensions, factors, ("data",))
            possible = group(placement, ("data",), self.problem.calibration)
            starts = np.concatenate([[0], np.cumsum([len(o) for o in options])[:-1]])

            def fastest(
                name: str, g: Group = possible, starts: Any = starts, of: Any = of_mesh, n: int = len(rows)
            ) -> Any:
                values = np.broadcast_to(np.asarray(getattr(g, name), dtype=np.float64), n)
                return np.minimum.reduceat(values, starts)[np.ravel(of)]

            result[axes] = narrowed(Group(*(fastest(name) for name in _GROUP_FIELDS)), axes, inner)
        return result


def _groups(meshes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Groups that see different sequences, of each mesh."""
    return np.asarray(batch_groups({axis: meshes[:, i] for i, axis in enumerate(MESH_AXES)}))


_GROUP_FIELDS = tuple(f.name for f in fields(Group))


def _evaluate(
    scene: Scene, some: list[tuple[tuple[int, ...], NDArray[np.int64]]], limits: Limits, keep: int, outcome: Outcome
) -> None:
    """Evaluate all plans on meshes of used parts of the slice.

    Memory and local work depend on the mesh alone and come first: only meshes of which some plan fits are placed. A plan
    that recomputes is never faster than the same plan without, so where the latter fits, the former is not timed.
    """
    if not some:
        return
    meshes = np.concatenate([m for _, m in some])
    microbatches, sequences, valid = scene.microbatching(meshes, limits)
    ways = {axis: meshes[:, i : i + 1].astype(np.float64) for i, axis in enumerate(MESH_AXES)}
    axes, inner = environment(ways, sequences, scene.any.kv_heads, scene.any.axes)
    timed: dict[Choices, NDArray[np.bool_]] = {}
    memory: dict[Choices, dict[str, Any]] = {}
    values: dict[Choices, dict[str, list[Any]]] = {}
    for layout, compiled in scene.structures.items():
        values[layout] = {c.name: c.evaluate(axes, inner) for c in compiled.programs}
        states = states_of(compiled, values[layout], ways["pipeline"])
        fits: dict[Choices, NDArray[np.bool_]] = {}
        for chosen in limits.under(layout):
            parts = memory_of(compiled, values[layout], chosen.remat, microbatches, ways["pipeline"])
            bytes = total(parts.values())
            fits[chosen] = valid & (bytes <= (np.inf if limits.ignore_memory else scene.problem.capacity))
            better = [f for other, f in fits.items() if chosen.never_faster_than(other)]
            timed[chosen] = fits[chosen] & ~np.logical_or.reduce(better) if better else fits[chosen]
            memory[chosen] = {**states, "bytes": bytes}
            _closest(outcome, meshes, microbatches, sequences, valid, bytes, chosen)
    useful = np.logical_or.reduce([t.any(axis=1) for t in timed.values()])
    # number meshes of which some plan fits, and place them
    index: list[NDArray[np.int64]] = []
    factors: list[NDArray[np.int64]] = []
    start = 0
    for used, rows in some:
        mine = np.nonzero(useful[start : start + len(rows)])[0]
        i, f = placements(used, rows[mine])
        index.append(mine[i] + start)
        factors.append(f)
        start += len(rows)
    raw = np.concatenate(index)
    if not len(raw):
        return
    outcome.plans += len(limits.choices) * int(valid.sum(axis=1)[raw].sum() - valid[np.unique(raw)].sum())
    places, where_ = _distinct(scene, raw, np.concatenate(factors))
    works = {c.name: local(c, next(iter(values.values()))[c.name], scene.rates) for c in scene.any.programs}
    moving = {layout: {c.name: c.moving for c in s.programs} for layout, s in scene.structures.items()}
    edges = np.searchsorted(places, np.unique(places))
    first = 0
    while first < len(places):
        later = edges[edges >= first + _ROWS]  # whole meshes at a time
        last = int(later[0]) if len(later) else len(places)
        rows = places[first:last]
        view = _View(rows)
        _time(
            scene, keep, outcome, meshes, rows, where_[first:last],
            {n: w.take(view) for n, w in works.items()},
            {k: {n: view.some(vs, moving[k][n]) for n, vs in per.items()} for k, per in values.items()},
            {a: view(v) for a, v in inner.items()}, microbatches[rows], sequences[rows],
            {k: t[rows] for k, t in timed.items()},
            {k: {part: view(b) for part, b in m.items()} for k, m in memory.items()},
        )  # fmt: skip
        first = last


class _View:
    """Selects rows of whatever has them."""

    def __init__(self, rows: NDArray[np.int64]) -> None:
        self.rows = rows

    def __call__(self, value: Any) -> Any:
        return value[self.rows] if isinstance(value, np.ndarray) and value.ndim == 2 else value

    def some(self, values: list[Any], used: frozenset[int]) -> list[Any]:
        """The values at the indices used, zero elsewhere."""
        return [self(v) if i in used else 0.0 for i, v in enumerate(values)]


def _time(
    scene: Scene,
    keep: int,
    outcome: Outcome,
    meshes: NDArray[np.int64],
    rows: NDArray[np.int64],
    factors: NDArray[np.int64],
    works: dict[str, Local],
    values: dict[Choices, dict[str, list[Any]]],
    inner: dict[str, Any],
    microbatches: Array,
    sequences: Array,
    timed: dict[Choices, NDArray[np.bool_]],
    memory: dict[Choices, dict[str, Any]],
) -> None:
    """Time placed plans and keep the best of each mesh; rows: the mesh of each placement."""
    problem = scene.problem
    placed = Placement(
        problem.dimensions,
        tuple({a: factors[:, d, i : i + 1] for i, a in enumerate(MESH_AXES)} for d in range(factors.shape[1])),
        PLACEMENT_ORDER,
    )
    links = links_of(placed, inner, scene.groups, problem.calibration)
    tokens = microbatches * sequences * batch_groups(inner) * problem.seq
    every = np.arange(len(rows))
    best = np.full(len(rows), np.inf)
    choice = np.zeros((len(rows), 2), dtype=np.int64)
    tried = tuple(timed)
    for layout, compiled in scene.structures.items():
        open_ = [c for c in tried if c.layout == layout and timed[c].any()]
        if not open_:
            continue
        transfers = {c.name: moved(c, values[layout][c.name], links, detail=False) for c in compiled.programs}
        evaluated = Evaluated(compiled, values[layout], works, transfers)
        for chosen in open_:
            seconds = step(
                evaluated, scene.rates, links, problem.calibration.overlap, problem.calibration.step_overhead,
                chosen.remat, microbatches, inner["pipeline"], memory[chosen], memory[chosen], detail=False,
            ).expected  # fmt: skip
            outcome.timed += int(timed[chosen].sum())
            per_token = np.where(timed[chosen], seconds / tokens, np.inf)
            column = np.argmin(per_token, axis=1)
            value = per_token[every, column]
            better = value < best
            best = np.where(better, value, best)
            choice[better] = np.stack([column, np.full_like(column, tried.index(chosen))], axis=1)[better]
    starts = np.nonzero(np.diff(rows, prepend=-1))[0]
    for begin, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        row = int(begin + np.argmin(best[begin:end]))
        worst = outcome.found[-1].seconds_per_token if len(outcome.found) >= keep else np.inf
        if best[row] < worst:
            column, chosen = choice[row, 0], tried[choice[row, 1]]
            plan = _plan(meshes[rows[row]], factors[row], microbatches[row, column], sequences[row, column], chosen)
            bytes = float(np.broadcast_to(memory[chosen]["bytes"], microbatches.shape)[row, column])
            outcome.found.append(Found(plan, float(best[row]), bytes))
            outcome.found.sort(key=lambda f: f.seconds_per_token)
            del outcome.found[keep:]


def _plan(mesh: Any, factors: Any, microbatches: float, sequences: float, chosen: Choices) -> Plan:
    return Plan(
        mesh={a: int(mesh[i]) for i, a in enumerate(MESH_AXES)},
        factors=tuple({a: int(row[i]) for i, a in enumerate(MESH_AXES) if row[i] > 1} for row in factors),
        microbatches=int(microbatches),
        sequences=int(sequences),
        choices=chosen,
    )


def _closest(
    outcome: Outcome,
    meshes: NDArray[np.int64],
    microbatches: Array,
    sequences: Array,
    valid: NDArray[np.bool_],
    bytes: Any,
    chosen: Choices,
) -> None:
    """Remember the plan that needs the least memory."""
    needed = np.where(valid, bytes, np.inf)
    row, column = np.unravel_index(np.argmin(needed), needed.shape)
    if outcome.closest is None or needed[row, column] < outcome.closest.memory_bytes:
        plan = _plan(meshes[row], (), microbatches[row, column], sequences[row, column], chosen)
        outcome.closest = Found(plan, np.inf, float(needed[row, column]))


def _distinct(
    scene: Scene, index: NDArray[np.int64], factors: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Leave out placements that no collective can tell from another one of the same mesh."""
    placed = Placement(
        scene.problem.dimensions,
        tuple({a: factors[:, d, i] for i, a in enumerate(MESH_AXES)} for d in range(factors.shape[1])),
        PLACEMENT_ORDER,
    )
    columns: list[Any] = [index]
    outer = {outer_axes(axes) for axes in scene.groups}
    for axes in sorted(outer):
        g = group(placed, axes)
        columns += [g.gather_rate, g.all_reduce_rate, g.all_to_all_rate, g.permute_rate, g.gather_latency]
    table = np.stack([np.broadcast_to(np.asarray(c, dtype=np.float64), index.shape) for c in columns], axis=1)
    scale = np.abs(table).max(axis=0)
    rounded = np.rint(table / np.where(scale > 0, scale, 1.0) * 1e9).astype(np.int64)
    _, first = np.unique(rounded, axis=0, return_index=True)
    first.sort()
    return index[first], factors[first]
