"""Proven lower bounds of the time of many plans: what the search may leave out.

Two bounds. That of a plan wherever it lies is the step itself, by its own formula, on links that are each the best that
groups of so many chips could have: no step gets slower on faster links. That of a mesh, whatever the microbatching and the
choices, is the local work on unpadded sizes at the largest batch with the critical transfers on such links, spread evenly over the
stages without a bubble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rooftop.costing import MESH_AXES, batch_groups, narrowed, outer_axes
from rooftop.formula import total
from rooftop.roofline import Group, Placement, collective_seconds, group, single_placements
from rooftop.training._estimate import beside_overlap
from rooftop.training._scene import GROUP_FIELDS, Array, IntArray, Scene, local_of
from rooftop.training._structure import Structure

Links = Mapping[tuple[str, ...], Group]


def best_links(
    scene: Scene, meshes: IntArray, used: Sequence[tuple[int, ...]], part: IntArray, inner: Mapping[str, Any]
) -> Links:
    """For each group of mesh axes, one row a mesh: the best that so many chips could do on the used part of the slice."""
    result = {}
    best: dict[tuple[str, ...], Group] = {}
    for axes in scene.groups:
        outer = outer_axes(axes)
        if outer not in best:
            ways = np.prod([meshes[:, MESH_AXES.index(a)] for a in outer], axis=0)
            best[outer] = _best_group(scene, ways, used, part)
        result[axes] = narrowed(best[outer], axes, inner)
    return result


def _best_group(scene: Scene, ways: IntArray, used: Sequence[tuple[int, ...]], part: IntArray) -> Group:
    """Each ability at its best over all ways to place groups of so many chips next to each other."""
    code, of_mesh = np.unique(part * (int(ways.max()) + 1) + ways, return_inverse=True)
    options = [single_placements(used[int(c) // (int(ways.max()) + 1)], int(c) % (int(ways.max()) + 1)) for c in code]
    rows = np.concatenate(options)
    factors = tuple({"data": rows[:, d]} for d in range(rows.shape[1]))
    placed = Placement(scene.problem.dimensions, factors, ("data",))
    possible = group(placed, ("data",), scene.problem.calibration, copies=scene.problem.copies)
    starts = np.cumsum([0, *(len(o) for o in options[:-1])])

    def fastest(name: str) -> Array:
        values = np.broadcast_to(np.asarray(getattr(possible, name), dtype=np.float64), len(rows))
        return np.asarray(np.minimum.reduceat(values, starts)[np.ravel(of_mesh)])

    return replace(possible, size=ways.astype(np.float64), hops=0, **{name: fastest(name) for name in GROUP_FIELDS})


def least_seconds(scene: Scene) -> float:
    """Chip-seconds per token that no plan can be below: the local work alone, unpadded."""
    one = np.ones((1, len(MESH_AXES)), dtype=np.int64)
    works = [_Ideal(scene, one, np.array([scene.batch.most])).work(s) for s in _kinds(scene)]
    return float(min(w[0] for w in works) / (scene.batch.most * scene.problem.seq))


def mesh_bound(scene: Scene, meshes: IntArray, used: Sequence[tuple[int, ...]], part: IntArray) -> Array:
    """Seconds per token below which no plan on these meshes can be; shape [meshes]."""
    groups = batch_groups(dict(zip(MESH_AXES, meshes.T, strict=True)))
    most = np.floor(scene.batch.most / groups)
    ideal = _Ideal(scene, meshes, most)
    links = best_links(scene, meshes, used, part, ideal.inner)
    overlap = scene.problem.calibration.overlap
    beside = any(c.schedule == "dualpipe" for c in scene.choices)
    hidden = beside_overlap(overlap)["critical"] if beside else overlap["critical"]
    bounds = []
    for structure in _kinds(scene):
        work, critical = ideal.work(structure), ideal.critical(structure, links)
        bounds.append(np.maximum(work, (1 - hidden) * work + critical) if hidden else work + critical)
    seconds = np.minimum.reduce(bounds) / ideal.inner["pipeline"]
    return np.asarray(seconds / (most * groups * scene.problem.seq))


class _Ideal:
    """One microbatch on some meshes at its best, through all layers."""

    def __init__(self, scene: Scene, meshes: IntArray, sequences: Array) -> None:
        self.columns = scene.columns(meshes, sequences)
        self.axes, self.inner = scene.environment(meshes, sequences)
        self.rates = replace(scene.rates, tile=(1, 1, 1), op_overhead=0.0)

    def work(self, structure: Structure) -> Array:
        """Seconds of local work, unpadded and without overheads; shape [meshes]."""
        result: Any = 0.0
        for c in structure.programs:
            each = local_of(c, self.axes, self.inner, self.columns, self.rates)
            result = result + structure.counts[c.name] * (each.forward + each.backward)
        return np.broadcast_to(result, len(self.columns["sequences"]))

    def critical(self, structure: Structure, links: Links) -> Any:
        """Seconds of the transfers that only work of their own direction may hide."""
        result: Any = 0.0
        for c in structure.programs:
            transfers = [t for t in c.transfers if t.overlap == "critical"]
            values = c.evaluate(self.axes, self.inner, frozenset(i for t in transfers for i in t.bytes))
            result = result + structure.counts[c.name] * total(
                collective_seconds(t.kind, total(values[i] for i in t.bytes), links[t.axes]) for t in transfers
            )
        return result


def _kinds(scene: Scene) -> list[Structure]:
    """One structure of each kind of work and critical transfers: ZeRO stages, for one, differ in neither."""
    kinds: dict[object, Structure] = {}
    for structure in scene.structures.values():
        key = tuple(
            (
                c.works,
                tuple(c.sizes[i] for i in sorted(c.computing)),
                tuple((t.kind, t.axes, *(c.sizes[i] for i in t.bytes)) for t in c.transfers if t.overlap == "critical"),
            )
            for c in structure.programs
        )
        kinds.setdefault(key, structure)
    return list(kinds.values())
