"""The plan search: exact over the space of `_space`, as NumPy arrays of many plans, through the formulas of one plan.

Meshes are taken in the order of a lower bound of their time per token: local work at its fastest, plus the transfers that
nothing hides on the best links that the network has. Once that bound passes the worst of the plans kept, no later
mesh can enter, and the search ends. Within a mesh every placement, microbatch count, ZeRO stage and remat policy is
evaluated. Nothing is left out by a guess.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooftop.formula import total
from rooftop.roofline import Group, Placement, collective_seconds, group, placements, single_placements
from rooftop.training import _space as space
from rooftop.training._estimate import local, moved
from rooftop.training._layouts import MESH_AXES, ZERO_STAGES
from rooftop.training._plan import PLACEMENT_ORDER, Plan, Problem, environment, links_of, part_of, rates_of
from rooftop.training._remat import POLICIES
from rooftop.training._step import Evaluated, step
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
    """What a search found: the best plans that fit, one for each mesh, best first; and how large the space was."""

    found: list[Found]
    closest: Found | None  # the plan that misses the memory by least, if none fits
    fastest_misfit: Found | None  # the fastest plan that does not fit
    plans: int
    evaluated: int
    seconds: float


_KEEP = 8
_CHUNK = 400_000  # (placement, microbatching) points at a time: some hundreds of MB at most


def search(problem: Problem, fixed: Mapping[str, int] | None = None, *, keep: int = _KEEP,
           limits: Limits | None = None, progress: Callable[[float], None] | None = None) -> Outcome:
    """The best plans of the space. fixed: ways of some mesh axes that the user demands."""
    started = time.perf_counter()
    fixed, limits = fixed or {}, limits or Limits()
    scene = Scene(problem)
    best: list[Found] = []
    outcome = Outcome(best, None, None, 0, 0, 0.0)
    everything = problem.slice.chips
    for used in space.used_sizes(problem.dimensions, limits.least_used):
        chips = int(np.prod(used, dtype=np.int64))
        threshold = best[-1].seconds_per_token if len(best) >= keep else np.inf
        if scene.least_seconds_per_token / chips >= threshold:
            break
        wanted = space.meshes(chips, scene.degrees, fixed, int(scene.most_sequences))
        wanted = wanted[scene.can_batch(wanted)]
        outcome.plans += len(wanted) * scene.columns * len(limits.zero) * len(limits.remat)
        if not len(wanted):
            continue
        lower = scene.lower_bound(wanted, used)
        order = np.argsort(lower, kind="stable")
        for part in _chunks(order, scene, 64):
            threshold = best[-1].seconds_per_token if len(best) >= keep else np.inf
            part = part[lower[part] < threshold]
            if not len(part):
                break
            _evaluate(scene, used, wanted[part], limits, keep, outcome)
        if progress is not None:
            progress(chips / everything)
    outcome.seconds = time.perf_counter() - started
    return outcome


def _chunks(order: NDArray[np.int64], scene: Scene, first: int) -> Iterator[NDArray[np.int64]]:
    """Small chunks first, so that a good incumbent prunes the rest; then larger ones."""
    start, size = 0, first
    while start < len(order):
        yield order[start : start + size]
        start += size
        size = min(size * 2, 1024)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the user restricts: ZeRO stages and remat policies to try, the part of the slice to use at least."""

    zero: tuple[int, ...] = ZERO_STAGES
    remat: tuple[str, ...] = POLICIES
    microbatches: int | None = None
    least_used: float = 0.5


class Scene:
    """Everything about a problem that does not depend on the plan, evaluated once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.structures = {zero: structure(problem.model, problem.seq, zero, problem.recipe) for zero in ZERO_STAGES}
        self.any = self.structures[3]
        self.degrees = space.degrees(self.any)
        self.rates = rates_of(problem)
        self.target = problem.batch_tokens / problem.seq
        self.most_sequences = np.floor(self.target * (1 + problem.batch_within) + 1e-9)
        self.least_sequences = max(1.0, np.ceil(self.target * (1 - problem.batch_within) - 1e-9))
        self.columns = len(space.MICROBATCHES) + len(space.SEQUENCES)
        self._best_links: dict[tuple[tuple[int, ...], int], tuple[Group, Group]] = {}
        whole = self._ideal_work()
        self.least_seconds_per_token = whole

    def can_batch(self, meshes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Meshes whose data-parallel groups can share some batch within the tolerance evenly."""
        groups = meshes[:, 0] * meshes[:, 1] * meshes[:, 4]
        most = np.floor(self.most_sequences / groups)
        return np.asarray(most * groups >= self.least_sequences)

    def microbatching(self, meshes: NDArray[np.int64]) -> tuple[Array, Array, NDArray[np.bool_]]:
        """(microbatches, sequences in each, whether the batch is within the tolerance), each [meshes, columns]."""
        groups = (meshes[:, 0] * meshes[:, 1] * meshes[:, 4])[:, None].astype(np.float64)
        m_fixed = np.array(space.MICROBATCHES, dtype=np.float64)[None, :]
        b_fixed = np.array(space.SEQUENCES, dtype=np.float64)[None, :]
        b = np.maximum(1.0, np.rint(self.target / (groups * m_fixed)))
        m = np.maximum(1.0, np.rint(self.target / (groups * b_fixed)))
        microbatches = np.concatenate([np.broadcast_to(m_fixed, b.shape), m], axis=1)
        sequences = np.concatenate([b, np.broadcast_to(b_fixed, m.shape)], axis=1)
        batch = groups * microbatches * sequences
        return microbatches, sequences, (batch <= self.most_sequences) & (batch >= self.least_sequences)

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

    def lower_bound(self, meshes: NDArray[np.int64], used: tuple[int, ...]) -> Array:
        """Seconds per token below which no plan on these meshes can be; shape [meshes].

        Each op at its fastest rate on unpadded sizes at the largest batch, each critical transfer over the best links
        that its number of chips could have, divided evenly over stages, with the smallest possible bubble.
        """
        ways = {axis: meshes[:, i].astype(np.float64) for i, axis in enumerate(MESH_AXES)}
        groups = ways["data"] * ways["fsdp"] * ways["expert"]
        most = np.floor(self.most_sequences / groups)
        axes, inner = environment(ways, most, self.any.kv_heads, self.any.axes)
        work = self._work(axes, inner)
        links = self._links_at_best(meshes, used, inner)
        critical: Any = 0.0
        for compiled in self.any.programs:
            values = compiled.evaluate(axes, inner)
            for t in compiled.transfers:
                if t.overlap == "critical":
                    critical = critical + self.any.counts[compiled.name] * collective_seconds(
                        t.kind, total(values[i] for i in t.bytes), links[t.axes][1]
                    )
        hidden = self.problem.calibration.overlap["critical"]
        together = np.maximum(work, (1 - hidden) * work + critical) if hidden else work + critical
        stages = ways["pipeline"]
        seconds = together / stages * (1 + (stages - 1) / most)
        return np.asarray(seconds / (most * groups * self.problem.seq))

    def _links_at_best(
        self, meshes: NDArray[np.int64], used: tuple[int, ...], inner: Mapping[str, Any]
    ) -> dict[tuple[str, ...], tuple[Group, Group]]:
        result = {}
        for axes in self.any.groups:
            outer = list(dict.fromkeys("tensor" if a.startswith("tensor_") else a for a in axes))
            ways = np.prod([meshes[:, MESH_AXES.index(a)] for a in outer], axis=0)
            distinct, where_ = np.unique(ways, return_inverse=True)
            pairs = [self._best_group(used, int(n)) for n in distinct]
            pair = tuple(
                Group(*(np.array([getattr(p[k], f) for p in pairs], dtype=np.float64)[where_] for f in _GROUP_FIELDS))
                for k in (0, 1)
            )
            part = {a for a in axes if a.startswith("tensor_")}
            if len(part) == 1:
                others = inner["tensor_kv"] if "tensor_q" in part else inner["tensor_q"]
                pair = (part_of(pair[0], others), part_of(pair[1], others))
            result[axes] = (pair[0], pair[1])
        return result

    def _best_group(self, used: tuple[int, ...], ways: int) -> tuple[Group, Group]:
        """The best that any `ways` chips of the used part could do, placed as well as can be."""
        key = (used, ways)
        if key not in self._best_links:
            options = single_placements(used, ways)
            factors = tuple({"data": options[:, d]} for d in range(len(used)))
            placement = Placement(self.problem.dimensions, factors, ("data",))
            both = []
            for calibration in (None, self.problem.calibration):
                g = group(placement, ("data",), calibration)
                both.append(Group(*(float(np.min(getattr(g, f))) for f in _GROUP_FIELDS)))
            self._best_links[key] = (both[0], both[1])
        return self._best_links[key]


_GROUP_FIELDS = tuple(f.name for f in fields(Group))


def _evaluate(
    scene: Scene, used: tuple[int, ...], meshes: NDArray[np.int64], limits: Limits, keep: int, outcome: Outcome
) -> None:
    problem = scene.problem
    index, factors = placements(used, meshes)
    if not len(index):
        return
    index, factors = _distinct(scene, meshes, index, factors)
    microbatches, sequences, valid = scene.microbatching(meshes)
    if limits.microbatches is not None:
        valid &= microbatches == limits.microbatches
    columns = valid.any(axis=0)
    microbatches, sequences, valid = microbatches[:, columns], sequences[:, columns], valid[:, columns]
    ways = {axis: meshes[:, i : i + 1].astype(np.float64) for i, axis in enumerate(MESH_AXES)}
    axes, inner = environment(ways, sequences, scene.any.kv_heads, scene.any.axes)
    # local work depends on the mesh only; transfers depend on the placement, too
    works = {
        c.name: local(c, c.evaluate(axes, inner), scene.rates) for c in scene.any.programs
    }
    take = index
    placed = Placement(
        problem.dimensions,
        tuple({a: factors[:, d, i : i + 1] for i, a in enumerate(MESH_AXES)} for d in range(len(used))),
        PLACEMENT_ORDER,
    )
    inner_placed = {a: _rows(v, take) for a, v in inner.items()}
    axes_placed = {a: _rows(v, take) for a, v in axes.items()}
    links = links_of(placed, inner_placed, scene.any.groups, problem.calibration)
    local_placed = {n: w.take(take) for n, w in works.items()}
    m, s, ok = microbatches[take], sequences[take], valid[take]
    tokens = m * s * (inner_placed["data"] * inner_placed["fsdp"] * inner_placed["expert"]) * problem.seq
    stages = inner_placed["pipeline"]
    layers = scene.any.layers
    full = np.ceil(layers / stages)
    ok = ok & (layers - full * (stages - 1) >= 1)
    best_time = np.full(len(take), np.inf)
    best_choice: list[tuple[int, int, str] | None] = [None] * len(take)
    best_memory = np.zeros(len(take))
    for zero in limits.zero:
        compiled = scene.structures[zero]
        values = {c.name: c.evaluate(axes_placed, inner_placed) for c in compiled.programs}
        evaluated = Evaluated(compiled, values, local_placed,
                              {c.name: moved(c, values[c.name], links, detail=False) for c in compiled.programs})
        for policy in limits.remat:
            result = step(evaluated, scene.rates, links, problem.calibration.overlap,
                          problem.calibration.step_overhead, policy, m, stages, detail=False)
            outcome.evaluated += int(ok.sum())
            per_token = np.where(ok, result.expected / tokens, np.inf)
            memory = np.broadcast_to(result.memory_bytes, per_token.shape)
            fits = memory <= problem.capacity
            timed = np.where(fits, per_token, np.inf)
            column = np.argmin(timed, axis=1)
            rows = np.arange(len(take))
            value = timed[rows, column]
            better = value < best_time
            for row in np.nonzero(better)[0]:
                best_choice[row] = (int(column[row]), zero, policy)
            best_time = np.where(better, value, best_time)
            best_memory = np.where(better, memory[rows, column], best_memory)
            _misfits(outcome, per_token, memory, fits, ok, lambda row, col, z=zero, p=policy: _plan(
                meshes[take[row]], factors[row], m[row, col], s[row, col], p, z))
    for mesh in np.unique(take):
        rows = np.nonzero(take == mesh)[0]
        row = rows[np.argmin(best_time[rows])]
        choice = best_choice[row]
        if choice is None:
            continue
        column, zero, policy = choice
        plan = _plan(meshes[mesh], factors[row], m[row, column], s[row, column], policy, zero)
        outcome.found.append(Found(plan, float(best_time[row]), float(best_memory[row])))
    outcome.found.sort(key=lambda f: f.seconds_per_token)
    del outcome.found[keep:]


def _rows(value: Any, take: NDArray[np.int64]) -> Any:
    return value[take] if isinstance(value, np.ndarray) and value.ndim == 2 else value


def _plan(mesh: Any, factors: Any, microbatches: float, sequences: float, policy: str, zero: int) -> Plan:
    return Plan(
        mesh={a: int(mesh[i]) for i, a in enumerate(MESH_AXES)},
        factors=tuple({a: int(row[i]) for i, a in enumerate(MESH_AXES) if row[i] > 1} for row in factors),
        microbatches=int(microbatches),
        sequences=int(sequences),
        remat=policy,
        zero=zero,
    )


def _misfits(outcome: Outcome, per_token: Array, memory: Array, fits: Any, ok: Any, plan: Callable[[int, int], Plan]) -> None:
    """Remember the plan that misses by least, and the fastest one that misses."""
    miss = np.where(ok & ~fits, memory, np.inf)
    if np.isfinite(miss).any():
        row, col = np.unravel_index(np.argmin(miss), miss.shape)
        if outcome.closest is None or miss[row, col] < outcome.closest.memory_bytes:
            outcome.closest = Found(plan(int(row), int(col)), float(per_token[row, col]), float(miss[row, col]))
        timed = np.where(ok & ~fits, per_token, np.inf)
        row, col = np.unravel_index(np.argmin(timed), timed.shape)
        if outcome.fastest_misfit is None or timed[row, col] < outcome.fastest_misfit.seconds_per_token:
            outcome.fastest_misfit = Found(plan(int(row), int(col)), float(timed[row, col]), float(memory[row, col]))


def _distinct(
    scene: Scene, meshes: NDArray[np.int64], index: NDArray[np.int64], factors: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Leave out placements that no collective can tell from another one of the same mesh."""
    placed = Placement(
        scene.problem.dimensions,
        tuple({a: factors[:, d, i] for i, a in enumerate(MESH_AXES)} for d in range(factors.shape[1])),
        PLACEMENT_ORDER,
    )
    columns: list[Any] = [index]
    outer = {tuple(dict.fromkeys("tensor" if a.startswith("tensor_") else a for a in axes)) for axes in scene.any.groups}
    for axes in sorted(outer):
        g = group(placed, axes)
        columns += [g.gather_rate, g.all_reduce_rate, g.all_to_all_rate, g.permute_rate, g.gather_latency]
    table = np.stack([np.broadcast_to(np.asarray(c, dtype=np.float64), index.shape) for c in columns], axis=1)
    scale = np.abs(table).max(axis=0)
    rounded = np.rint(table / np.where(scale > 0, scale, 1.0) * 1e9).astype(np.int64)
    _, first = np.unique(rounded, axis=0, return_index=True)
    first.sort()
    return index[first], factors[first]
