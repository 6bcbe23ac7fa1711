"""Many plans of one problem as columns of numbers, through the formulas of one plan.

A row is a mesh with a microbatching. Its local work and its memory do not depend on where the mesh lies; its seconds need links:
those of a placement, or, for a lower bound, the best that groups of so many chips could have.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooftop.arrays import Size
from rooftop.costing import (
    BATCH,
    MESH_AXES,
    PLACEMENT_ORDER,
    Links,
    Rates,
    batch_groups,
    inner_mesh,
    narrowed,
    outer_axes,
)
from rooftop.formula import total
from rooftop.roofline import Group, Placement, group
from rooftop.training._choices import Choices, choices
from rooftop.training._estimate import Local, Moved, local, moved, pass_seconds
from rooftop.training._memory import Stored, memory_parts, stored_of
from rooftop.training._offload import Crossing, Crossings, crossings
from rooftop.training._plan import Plan, Problem, environment
from rooftop.training._remat import AUTO, POLICIES
from rooftop.training._schedule import Stage, stages_of
from rooftop.training._space import Batch, Limits, allows, microbatchings
from rooftop.training._step import Evaluated, states_of, step
from rooftop.training._structure import Compiled

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]
Values = Mapping[str, list[Any]]


class Scene:
    """Everything about a problem that does not depend on the plan."""

    def __init__(self, problem: Problem, limits: Limits) -> None:
        self.problem, self.limits, self.choices = problem, limits, limits.choices
        keep = tuple(dict.fromkeys(c.remat for c in self.choices if c.remat not in POLICIES))
        self.structures = {c: problem.structure(c, keep=keep) for c in limits.layouts}
        self.any = next(iter(self.structures.values()))
        #: one structure for each set of axes that must divide evenly
        self.divisibles = tuple({s.divisible: s for s in self.structures.values()}.values())
        self.groups = tuple(sorted({axes for s in self.structures.values() for axes in s.groups}))
        self.rates = problem.rates
        self.batch = Batch.within(
            problem.batch_tokens / problem.seq, problem.batch_within, problem.max_batch_tokens / problem.seq
        )
        #: combinations of choices by number, those with sets of arrays to keep as they are found
        self.numbered = [c for c in self.choices if c.remat != AUTO]
        self.capacity = np.inf if limits.ignore_memory else problem.capacity
        self.host_capacity = np.inf if limits.ignore_memory else problem.host_capacity

    def applies(self, chosen: Choices, meshes: IntArray, microbatches: Array) -> NDArray[np.bool_]:
        """Whether a combination of choices is one to try, for each row of meshes."""
        ways = {a: meshes[:, i] for i, a in enumerate(MESH_AXES)}
        model = self.structures[chosen.layout]
        found = self.limits.applies(chosen, model, ways, microbatches)
        if len(self.divisibles) > 1:
            found = found & allows(model, inner_mesh(ways, model.kv_heads))
        return np.broadcast_to(found, len(meshes))

    def about_meshes(self, chosen: Choices) -> object:
        """What of some choices decides which meshes they apply to."""
        about = tuple(getattr(chosen, f.name) for f in choices() if f.metadata["axis"] is not None)
        return about, self.structures[chosen.layout].divisible if len(self.divisibles) > 1 else None

    def under(self, layout: Choices) -> list[Choices]:
        """The combinations of one layout."""
        return [c for c in self.choices if c.layout == layout]

    def number(self, chosen: Choices) -> int:
        """The number of a combination of choices."""
        if chosen not in self.numbered:
            self.numbered.append(chosen)
        return self.numbered.index(chosen)

    @staticmethod
    def columns(meshes: IntArray, sequences: Array) -> dict[str, NDArray[Any]]:
        """What everything else follows from: ways by mesh axis, and sequences in a microbatch."""
        return {**{a: meshes[:, i] for i, a in enumerate(MESH_AXES)}, "sequences": sequences}

    def environment(self, meshes: IntArray, sequences: Array) -> tuple[dict[str, Any], dict[str, Any]]:
        """Sizes of array axes and of inner mesh axes; one row a mesh."""
        ways = {axis: meshes[:, i].astype(np.float64) for i, axis in enumerate(MESH_AXES)}
        return environment(ways, sequences, self.any.kv_heads, self.any.axes)

    def placement(self, factors: IntArray) -> Placement:
        """Placements as the network room has them; factors: [n, dimensions, mesh axes]."""
        each = tuple({a: factors[:, d, i] for i, a in enumerate(MESH_AXES)} for d in range(factors.shape[1]))
        return Placement(self.problem.dimensions, each, PLACEMENT_ORDER)

    def links(self, factors: IntArray, inner: Mapping[str, Any]) -> Mapping[tuple[str, ...], Group]:
        """What groups can do at placements, as calibrated; one row a placement."""
        placed = self.placement(factors)
        outer = {axes: outer_axes(axes) for axes in self.groups}
        copies = self.problem.copies
        whole = {a: group(placed, a, self.problem.calibration, copies=copies) for a in set(outer.values())}
        return {axes: narrowed(whole[outer[axes]], axes, inner) for axes in self.groups}


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rows with links: `row` of the rows, and what groups can do there. wanted: by choices, which of the pairs to time."""

    row: IntArray
    links: Mapping[tuple[str, ...], Group]
    wanted: Mapping[Choices, IntArray]


class Rows:
    """Meshes with all their microbatchings. `of`: the mesh of each row; rows of one mesh are neighbours."""

    def __init__(self, scene: Scene, meshes: IntArray) -> None:
        self.scene, self.meshes = scene, meshes
        groups = batch_groups(dict(zip(MESH_AXES, meshes.T, strict=True)))
        self.of, self.microbatches, self.sequences = microbatchings(groups, scene.batch, scene.limits.microbatches)
        self.chips = meshes.prod(axis=1)[self.of]
        self.tokens = self.microbatches * self.sequences * groups[self.of] * scene.problem.seq
        self.axes, self.inner = scene.environment(meshes[self.of], self.sequences)
        self.stages = self.inner["pipeline"]
        self._columns = scene.columns(meshes[self.of], self.sequences)
        self.picked: Callable[[Group], Group] = lambda group: group  # what groups can do, of these rows
        self._works: dict[object, Local] = {}
        self._values: dict[Choices, Values] = {}
        self._sizes: dict[object, Any] = {}
        self._stored: dict[Choices, dict[str, Stored]] = {}
        self._kinds: dict[Choices, tuple[Stage, ...]] = {}
        self._applies: dict[object, NDArray[np.bool_]] = {}

    def __len__(self) -> int:
        return len(self.of)

    def take(self, some: IntArray) -> Rows:
        """Some of the rows."""
        result, pick = copy.copy(self), _Pick(some)
        for name in ("of", "microbatches", "sequences", "chips", "tokens", "stages"):
            setattr(result, name, pick(getattr(self, name)))
        result.axes, result.inner, result._columns = (
            {n: pick(v) for n, v in table.items()} for table in (self.axes, self.inner, self._columns)
        )
        result._works, result._values, result._sizes, result.picked = {}, {}, {}, pick.group
        result._stored, result._kinds, result._applies = {}, {}, {}
        return result

    def values(self, layout: Choices) -> Values:
        """The sizes of every program that cross the network or take memory."""
        if layout not in self._values:
            programs = self.scene.structures[layout].programs
            self._values[layout] = {c.name: self._evaluate(c, c.moving | c.held) for c in programs}
        return self._values[layout]

    def _evaluate(self, compiled: Compiled, only: frozenset[int]) -> list[Any]:
        """Sizes of a program, each computed once for all layouts and programs that have it."""
        own = tuple(compiled.own.items())
        result: list[Any] = [0.0] * len(compiled.sizes)
        for i in only:
            key = compiled.sizes[i], own
            if key not in self._sizes:
                self._sizes[key] = compiled.sizes[i]({**self.axes, **compiled.own}, self.inner)
            result[i] = self._sizes[key]
        return result

    def applies(self, chosen: Choices) -> NDArray[np.bool_]:
        """Which rows a combination of choices is to be tried on."""
        key = self.scene.about_meshes(chosen)
        if key not in self._applies:
            self._applies[key] = self.scene.applies(chosen, self.meshes[self.of], self.microbatches)
        return self._applies[key]

    def memory(self, chosen: Choices) -> tuple[Array, Array]:
        """Bytes of each chip, and in its share of host memory."""
        layout = chosen.layout
        structure, values, split = self.scene.structures[layout], self.values(layout), chosen.of_axis("pipeline")
        if layout not in self._stored:
            self._stored[layout] = stored_of(structure, values)
        if split not in self._kinds:
            self._kinds[split] = stages_of(structure.layers, self.stages, self.microbatches, split)
        parts = memory_parts(structure, values, chosen, self._kinds[split], self._stored[layout])
        on_chip, on_host = (np.broadcast_to(total(p.values()), len(self)) for p in (parts.chip, parts.host))
        return on_chip, on_host

    def through(self, chosen: Choices, links: Mapping[tuple[str, ...], Group]) -> Callable[[str], Array]:
        """Seconds of a microbatch through all blocks under a remat policy, forward and backward; links by row."""
        compiled, values = self.scene.structures[chosen.layout], self.values(chosen.layout)
        both: Links = {axes: (g, g) for axes, g in links.items()}
        transfers = {c.name: moved(c, values[c.name], both, detail=False) for c in compiled.blocks}
        works = {c.name: self._work(c) for c in compiled.blocks}
        rate, overlap = self.scene.rates.host_expected, self.scene.problem.calibration.overlap

        def seconds(policy: str) -> Array:
            crossed = crossings(compiled, values, replace(chosen, remat=policy))
            each = total(
                compiled.counts[n] * pass_seconds(
                    works[n], transfers[n], policy, overlap, beside=chosen.schedule == "dualpipe",
                    host=crossed[n].seconds(rate) if n in crossed else None,
                ).seconds
                for n in works
            )  # fmt: skip
            return np.broadcast_to(each, len(self))

        return seconds

    def seconds(self, layout: Choices, pairs: Pairs) -> dict[Choices, Array]:
        """Expected seconds per token of the pairs wanted, for all choices that have this layout."""
        scene, calibration = self.scene, self.scene.problem.calibration
        compiled, values = scene.structures[layout], self.values(layout)
        links: Links = {axes: (g, g) for axes, g in pairs.links.items()}
        of_pairs = _Pick(pairs.row)
        moving = {c.name: of_pairs.some(values[c.name], c.moving) for c in compiled.programs}
        transfers = {c.name: moved(c, moving[c.name], links, detail=False) for c in compiled.programs}
        works = {c.name: self._work(c) for c in compiled.programs}
        result = {}
        states: dict[Choices, Any] = {}
        for chosen, some in pairs.wanted.items():
            split = chosen.of_axis("pipeline")
            if split not in states:
                states[split] = states_of(compiled, values, split, self.stages)
            row, pick = pairs.row[some], _Pick(some)
            of_rows = _Pick(row)
            evaluated = Evaluated(
                compiled,
                {c.name: pick.some(moving[c.name], c.moving_late) for c in compiled.programs},
                {name: work.take(of_rows, chosen.remat) for name, work in works.items()},
                {name: _picked(each, pick, chosen.remat) for name, each in transfers.items()},
                _crossed(crossings(compiled, values, chosen), of_rows),
            )
            late = {axes: pick.group(links[axes][0]) for axes in compiled.late}
            seconds = step(
                evaluated, scene.rates, {a: (g, g) for a, g in late.items()}, calibration.overlap,
                calibration.step_overhead, chosen, self.microbatches[row], self.stages[row], None,
                {name: of_rows(bytes) for name, bytes in states[split].items()}, detail=False,
            ).expected  # fmt: skip
            result[chosen] = np.broadcast_to(seconds, len(row)) / self.tokens[row]
        return result

    def plan(self, row: int, chosen: Choices, factors: IntArray | None = None) -> Plan:
        """The plan of a row, at a placement [dimensions, mesh axes]."""
        mesh = self.meshes[self.of[row]]
        placed = () if factors is None else factors
        return Plan(
            mesh={a: int(mesh[i]) for i, a in enumerate(MESH_AXES)},
            factors=tuple({a: int(each[i]) for i, a in enumerate(MESH_AXES) if each[i] > 1} for each in placed),
            microbatches=int(self.microbatches[row]),
            sequences=int(self.sequences[row]),
            choices=chosen,
        )

    def _work(self, compiled: Compiled) -> Local:
        """Local work of a program, computed once for rows that it cannot tell apart and for layouts that share it."""
        key = compiled.works, tuple(compiled.sizes[i] for i in sorted(compiled.computing))
        if key not in self._works:
            self._works[key] = local_of(compiled, self.axes, self.inner, self._columns, self.scene.rates)
        return self._works[key]


def local_of(
    compiled: Compiled,
    axes: Mapping[str, Any],
    inner: Mapping[str, Any],
    columns: Mapping[str, NDArray[Any]],
    rates: Rates,
) -> Local:
    """Local work of a program, computed once for all rows that it cannot tell apart.

    columns: ways by mesh axis and `sequences`, from which axes and inner follow.
    """
    names = _depends(compiled.sizes[i] for i in compiled.computing)
    first, which = _distinct([columns[n] for n in names], len(columns["sequences"]))
    some = _Pick(first)
    known, mesh = ({n: some(v) for n, v in table.items()} for table in (axes, inner))
    return local(compiled, compiled.evaluate(known, mesh, compiled.computing), rates).take(_Pick(which))


class _Pick:
    """Selects rows of whatever has them."""

    def __init__(self, rows: IntArray) -> None:
        self.rows = rows

    def __call__(self, value: Any) -> Any:
        return value[self.rows] if isinstance(value, np.ndarray) and value.ndim else value

    def some(self, values: Sequence[Any], used: frozenset[int]) -> list[Any]:
        """The values at the indices used, zero elsewhere."""
        return [self(v) if i in used else 0.0 for i, v in enumerate(values)]

    def group(self, whole: Group) -> Group:
        """What groups can do, of some rows."""
        return replace(whole, **{name: self(getattr(whole, name)) for name in GROUP_FIELDS})


#: What the seconds of a collective depend on.
GROUP_FIELDS = (
    "gather_rate", "all_reduce_rate", "all_to_all_rate", "dispatch_rate", "permute_rate", "gather_latency", "all_reduce_latency",
    "permute_latency",
)  # fmt: skip


def _picked(each: Moved, pick: _Pick, policy: str) -> Moved:
    """Transfers of some rows under one remat policy."""
    names = ("forward", "backward", f"recompute.{policy}")
    critical, ring, prefetch = (
        {name: pick(table[name]) for name in names} for table in (each.critical, each.ring, each.prefetch)
    )
    return Moved(critical, ring, prefetch, {}, {})


def _crossed(every: Mapping[str, Crossings], pick: _Pick) -> dict[str, Crossings]:
    """What crosses PCIe, of some rows."""
    return {
        name: Crossings(*(Crossing(pick(x.into), pick(x.out)) for x in (c.forward, c.backward)))
        for name, c in every.items()
    }


def _depends(sizes: Iterable[Size]) -> list[str]:
    """Mesh axes, and `sequences`, on which the values of sizes depend: B counts sequences of all groups."""
    names: set[str] = set()
    for size in sizes:
        powers = dict(size.mesh)
        batch = dict(size.axes).get("B", 0)
        for axis in BATCH if batch else ():
            powers[axis] = powers.get(axis, 0) + batch
        names |= {outer_axes((axis,))[0] for axis, power in powers.items() if power}
        names |= {"sequences"} if batch else set()
    return sorted(names)


def _distinct(columns: Sequence[NDArray[Any]], rows: int) -> tuple[IntArray, IntArray]:
    """(a row for each combination of values that occurs, the combination of each row)."""
    code = np.zeros(rows, dtype=np.int64)
    for column in columns:
        values, which = np.unique(column, return_inverse=True)
        code = code * len(values) + np.ravel(which)
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    return first, np.ravel(which)
