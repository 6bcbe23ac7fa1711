"""The plan search: exact over the space of `_space`, as NumPy arrays of many plans, through the formulas of one plan.

Meshes are taken in the order of a lower bound of their time per token. Memory, then a lower bound of each microbatching under each
combination of choices wherever it lies (`_bounds`), tell which plans may be worth keeping (`_keep`); only those are placed
and timed, those of the best bounds first. Nothing is left out by a guess.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooftop.costing import MESH_AXES, batch_groups, outer_axes
from rooftop.roofline import Group, count_placements, group, placements
from rooftop.training import _space as space
from rooftop.training._auto import best_sets
from rooftop.training._bounds import best_links, least_seconds, mesh_bound
from rooftop.training._choices import Choices
from rooftop.training._keep import Fastest, Found, Front, Keeper, Timed
from rooftop.training._plan import Problem
from rooftop.training._remat import AUTO, POLICIES
from rooftop.training._scene import GROUP_FIELDS, Array, IntArray, Pairs, Rows, Scene
from rooftop.training._space import Limits

__all__ = ["Found", "Limits", "Outcome", "Scene", "search"]

_KEEP = 6
_MESHES = 2048  # at a time; fewer at first, until some plans are known
_FIRST = 128
_PAIRS = 1 << 16  # plans with their placements at a time


@dataclass(slots=True)
class Outcome:
    """What a search found: the plans kept, fastest first; and how large the space was.

    plans: all of the space that are settled, each placement once: timed, too large, or proven not to be worth keeping.
    bounded: plans, wherever they lie, whose lower bound was computed. timed: plans whose time was computed, placements that no
    collective can tell apart once.
    """

    found: list[Found] = field(default_factory=list)
    closest: Found | None = None  # the plan that needs the least memory, of those that host memory has room for
    least_host: float = math.inf  # bytes in host memory, of the plan with something there that needs the least
    plans: int = 0
    bounded: int = 0
    timed: int = 0
    seconds: float = 0.0


def search(
    problem: Problem,
    fixed: Mapping[str, int] | None = None,
    *,
    keep: int = _KEEP,
    limits: Limits | None = None,
    front: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Outcome:
    """The best plans of the space, one for each mesh; with `front`, all that no other beats in time, memory and chips at once.

    fixed: ways of some mesh axes that the user demands.
    """
    started = time.perf_counter()
    scene = Scene(problem, (limits or Limits()).on(fixed or {}))
    keeper: Keeper = Front() if front else Fastest(keep)
    outcome = Outcome()
    for todo in _todo(scene, fixed or {}, keeper):
        outcome.plans += todo.count(scene)
        for some in todo.by_bound(keeper):
            _settle(scene, some, keeper, outcome)
            if progress is not None:
                progress(some.done)
    outcome.found = keeper.found
    outcome.seconds = time.perf_counter() - started
    return outcome


@dataclass(frozen=True, slots=True)
class _Meshes:
    """Meshes of several used parts of the slice, with lower bounds of their time per token. done: share of those to do."""

    used: list[tuple[int, ...]]
    part: IntArray  # of each mesh, the part that it uses
    rows: IntArray
    lower: Array
    counts: IntArray  # of placements
    done: float = 0.0

    def by_bound(self, keeper: Keeper) -> Iterator[_Meshes]:
        """Chunks in the order of their bounds, without meshes that cannot be worth keeping."""
        order, chips = np.argsort(self.lower, kind="stable"), self.rows.prod(axis=1)
        start = 0
        while start < len(order):
            chunk = order[start : start + (_MESHES if keeper.found else _FIRST)]
            start += len(chunk)
            chunk = chunk[keeper.admits(self.lower[chunk], 0.0, chips[chunk])]
            if len(chunk):
                done = start / len(order)
                yield _Meshes(
                    self.used, self.part[chunk], self.rows[chunk], self.lower[chunk], self.counts[chunk], done
                )

    def count(self, scene: Scene) -> int:
        """Plans on these meshes, with all their placements."""
        groups = batch_groups(dict(zip(MESH_AXES, self.rows.T, strict=True)))
        of, microbatches, _ = space.microbatchings(groups, scene.batch, scene.limits.microbatches)
        alike: dict[object, list[Choices]] = {}
        for chosen in scene.choices:
            alike.setdefault(scene.about_meshes(chosen), []).append(chosen)
        rows, counts = self.rows[of], self.counts[of]
        return sum(len(some) * int(counts[scene.applies(some[0], rows, microbatches)].sum()) for some in alike.values())

    def placed(self, scene: Scene, meshes: IntArray) -> tuple[IntArray, IntArray]:
        """All placements of some meshes that a collective can tell apart: (mesh, ascending; factors)."""
        index, factors = [], []
        for p in np.unique(self.part[meshes]).tolist():
            mine = meshes[self.part[meshes] == p]
            i, f = placements(self.used[p], self.rows[mine])
            index.append(mine[i])
            factors.append(f)
        mesh, placed = np.concatenate(index), np.concatenate(factors)
        order = np.argsort(mesh, kind="stable")
        return _distinct(scene, mesh[order], placed[order])


def _todo(scene: Scene, fixed: Mapping[str, int], keeper: Keeper) -> Iterator[_Meshes]:
    """Meshes of the largest part of the slice that has any, then those of all other parts that may be worth using."""
    batch: list[tuple[tuple[int, ...], IntArray]] = []
    least, first = least_seconds(scene), True

    def meshes() -> _Meshes:
        part = np.repeat(np.arange(len(batch)), [len(m) for _, m in batch])
        used, rows = [sizes for sizes, _ in batch], np.concatenate([m for _, m in batch])
        counts = np.concatenate([count_placements(sizes, m) for sizes, m in batch])
        return _Meshes(used, part, rows, mesh_bound(scene, rows, used, part), counts)

    for sizes in space.used_sizes(scene.problem.dimensions, scene.limits.least_used):
        chips = math.prod(sizes)
        if not keeper.admits(least / chips, 0.0, chips).any():
            continue
        each = [
            space.meshes(chips, model, fixed, int(scene.batch.most), scene.limits.opened) for model in scene.divisibles
        ]
        rows = each[0] if len(each) == 1 else np.unique(np.concatenate(each), axis=0)
        rows = rows[scene.batch.splits(batch_groups(dict(zip(MESH_AXES, rows.T, strict=True))))]
        if len(rows):
            batch.append((sizes, rows))
            if first or sum(len(m) for _, m in batch) > 64 * _MESHES:
                yield meshes()
                batch, first = [], False
    if batch:
        yield meshes()


@dataclass(frozen=True, slots=True)
class _Plans:
    """Rows under combinations of choices that fit, wherever they lie, with lower bounds of their seconds per token."""

    row: IntArray
    choice: IntArray
    lower: Array
    bytes: Array

    def take(self, some: NDArray[np.bool_]) -> _Plans:
        return _Plans(self.row[some], self.choice[some], self.lower[some], self.bytes[some])


def _settle(scene: Scene, meshes: _Meshes, keeper: Keeper, outcome: Outcome) -> None:
    """Bound all plans on some meshes, and time those that may be worth keeping, meshes with the best bounds first."""
    rows = Rows(scene, meshes.rows)
    if not len(rows):
        return
    plans = _bounded(scene, rows, meshes, keeper, outcome)
    pairs = 8192  # a few at first: the best plans that they hold rule others out
    while True:
        plans = plans.take(keeper.admits(plans.lower, plans.bytes, rows.chips[plans.row]))
        if not len(plans.row):
            return
        mesh = rows.of[plans.row]
        best = np.full(len(meshes.rows), np.inf)
        np.minimum.at(best, mesh, plans.lower)
        order = np.argsort(best, kind="stable")[: np.count_nonzero(np.isfinite(best))]
        weight = meshes.counts[order] * np.bincount(mesh, minlength=len(best))[order]
        order = order[: max(1, int(np.searchsorted(np.cumsum(weight), pairs)))]
        now = np.isin(mesh, order)
        _time(scene, rows, plans.take(now), *meshes.placed(scene, order), keeper, outcome)
        plans = plans.take(~now)
        pairs = min(4 * pairs, _PAIRS)


def _bounded(scene: Scene, rows: Rows, meshes: _Meshes, keeper: Keeper, outcome: Outcome) -> _Plans:
    """All plans on some meshes that fit, with their bounds. Where the fastest are looked for, a plan that does more than another
    one which fits too is left out.
    """
    _, inner = scene.environment(meshes.rows, np.ones(len(meshes.rows)))
    links = best_links(scene, meshes.rows, meshes.used, meshes.part, inner)
    at_best = {axes: _of(g, rows.of) for axes, g in links.items()}
    result: list[_Plans] = []
    for layout in scene.structures:
        fits: dict[Choices, NDArray[np.bool_]] = {}
        wanted: dict[Choices, IntArray] = {}
        memory: dict[Choices, Array] = {}
        for chosen in scene.under(layout):
            if chosen.remat == AUTO:
                continue
            tried = rows.applies(chosen)
            if not tried.any():
                continue
            on_chip, on_host = rows.memory(chosen)
            if chosen.offloads:
                outcome.least_host = min(outcome.least_host, float(np.where(tried, on_host, np.inf).min()))
                tried = tried & (on_host <= scene.host_capacity)
                if not tried.any():
                    continue
            memory[chosen] = np.where(tried, on_chip, np.inf)
            _remember_closest(outcome, rows, chosen, memory[chosen])
            fits[chosen] = tried & (memory[chosen] <= scene.capacity)
            open_ = fits[chosen].copy()
            for other, fitting in fits.items():
                if keeper.fastest and chosen.never_faster_than(other):
                    open_ &= ~fitting
            if open_.any():
                wanted[chosen] = np.nonzero(open_)[0]
        for chosen in scene.under(layout):
            if chosen.remat == AUTO:
                for found, row in best_sets(rows, _open(rows, chosen, fits, at_best, keeper), chosen, at_best).items():
                    wanted[found], memory[found] = row, rows.memory(found)[0]
        if not wanted:
            continue
        for chosen, lower in rows.seconds(layout, _paired(wanted, at_best)).items():
            row = wanted[chosen]
            outcome.bounded += len(row)
            choice = np.full(len(row), scene.number(chosen))
            result.append(_Plans(row, choice, lower * (1 - 1e-12), memory[chosen][row]))  # the last digits may differ
    if not result:
        return _Plans(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))
    return _Plans(*(np.concatenate([getattr(r, name) for r in result]) for name in ("row", "choice", "lower", "bytes")))


def _paired(wanted: Mapping[Choices, IntArray], links: Mapping[tuple[str, ...], Group]) -> Pairs:
    """The rows that are wanted under some choices, with their links by row."""
    row = np.unique(np.concatenate(list(wanted.values())))
    at = {chosen: np.searchsorted(row, some) for chosen, some in wanted.items()}
    return Pairs(row, {axes: _of(g, row) for axes, g in links.items()}, at)


def _open(
    rows: Rows, chosen: Choices, fits: Mapping[Choices, NDArray[np.bool_]], links: Mapping[tuple[str, ...], Group], keeper: Keeper
) -> IntArray:  # fmt: skip
    """Rows for which a set of arrays to keep may be worth looking for: recomputing nothing does not fit, but would be fast enough."""
    result = rows.applies(chosen).copy()
    most = replace(chosen, remat=POLICIES[0])
    if "activations" in chosen.offloads or not result.any():  # what is kept takes time, too
        return np.nonzero(result)[0]
    if keeper.fastest and most in fits:
        result &= ~fits[most]
    row = np.nonzero(result)[0]
    lower = rows.seconds(chosen.layout, _paired({most: row}, links))[most] * (1 - 1e-12)
    return row[keeper.admits(lower, 0.0, rows.chips[row])]


def _time(
    scene: Scene, rows: Rows, plans: _Plans, places: IntArray, factors: IntArray, keeper: Keeper, outcome: Outcome
) -> None:
    """Time plans at all placements of their meshes, and offer each at its best to the keeper."""
    inner = {axis: np.asarray(v) for axis, v in scene.environment(rows.meshes[places], np.ones(len(places)))[1].items()}
    links = scene.links(factors, inner)
    start = np.searchsorted(places, np.arange(len(rows.meshes)))
    count = np.bincount(places, minlength=len(rows.meshes))
    done: list[tuple[IntArray, IntArray, Array, Array, IntArray]] = []
    for layout in scene.structures:
        of_layout = {i: c for i, c in enumerate(scene.numbered) if c.layout == layout}
        mine = plans.take(np.isin(plans.choice, list(of_layout)))
        if not len(mine.row):
            continue
        row = np.unique(mine.row)
        each = count[rows.of[row]]
        first = np.cumsum(each) - each
        pair_row = np.repeat(row, each)
        place = np.arange(len(pair_row)) - np.repeat(first, each) + np.repeat(start[rows.of[row]], each)
        wanted, parts = {}, {}
        for i in np.unique(mine.choice).tolist():
            part = parts[i] = mine.take(mine.choice == i)
            here = np.zeros(len(rows), dtype=np.bool_)
            here[part.row] = True
            wanted[of_layout[i]] = np.nonzero(here[pair_row])[0]
        pairs = Pairs(pair_row, {axes: _of(g, place) for axes, g in links.items()}, wanted)
        for part, (chosen, seconds) in zip(parts.values(), rows.seconds(layout, pairs).items(), strict=True):
            outcome.timed += len(seconds)
            order = np.argsort(part.row, kind="stable")
            part = _Plans(part.row[order], part.choice[order], part.lower[order], part.bytes[order])
            segments = count[rows.of[part.row]]
            begin = np.cumsum(segments) - segments
            best = np.minimum.reduceat(seconds, begin)
            at = np.nonzero(seconds == np.repeat(best, segments))[0]
            at = at[np.searchsorted(at, begin)]
            done.append((part.row, part.choice, best, part.bytes, place[wanted[chosen][at]]))
    row, choice, seconds, bytes, at = (np.concatenate(column) for column in zip(*done, strict=True))
    keeper.add(
        Timed(
            rows.of[row], seconds, bytes, rows.chips[row],
            lambda i: rows.plan(int(row[i]), scene.numbered[int(choice[i])], factors[at[i]]),
        )
    )  # fmt: skip


def _of(whole: Group, index: IntArray) -> Group:
    """What groups can do, row by row as an index says."""
    abilities = {name: np.asarray(getattr(whole, name), dtype=np.float64) for name in GROUP_FIELDS}
    picked = {name: value[index] if value.ndim else value for name, value in abilities.items()}
    return Group(size=0, hops=0, unhidden=whole.unhidden, **picked)


def _remember_closest(outcome: Outcome, rows: Rows, chosen: Choices, bytes: Array) -> None:
    """Remember the plan that needs the least memory."""
    row = int(np.argmin(bytes))
    if outcome.closest is None or bytes[row] < outcome.closest.memory_bytes:
        outcome.closest = Found(rows.plan(row, chosen), np.inf, float(bytes[row]))


def _distinct(scene: Scene, index: IntArray, factors: IntArray) -> tuple[IntArray, IntArray]:
    """Leave out placements that no collective can tell from another one of the same mesh."""
    placed = scene.placement(factors)
    columns: list[Any] = [index]
    for axes in sorted({outer_axes(axes) for axes in scene.groups}):
        g = group(placed, axes, copies=scene.problem.copies)
        columns += [
            g.gather_rate,
            g.all_reduce_rate,
            g.all_to_all_rate,
            g.dispatch_rate,
            g.permute_rate,
            g.gather_latency,
        ]
    table = np.stack([np.broadcast_to(np.asarray(c, dtype=np.float64), index.shape) for c in columns], axis=1)
    scale = np.abs(table).max(axis=0)
    rounded = np.rint(table / np.where(scale > 0, scale, 1.0) * 1e9).astype(np.int64)
    _, first = np.unique(rounded, axis=0, return_index=True)
    first.sort()
    return index[first], factors[first]
