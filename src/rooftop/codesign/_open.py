"""Structures whose numbers are traced, so that what is computed from them has derivatives by numbers of the model.

A structure says how often programs run and how large their arrays and kernels are for one sequence on one chip. Such a size follows from
a number of the model as a polynomial of the second degree, perhaps over a power of it (a triangle of its square, heads of their groups);
which, is read off structures of models that differ in that number alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rooftop.codesign._answers import Row
from rooftop.errors import RooftopError
from rooftop.formula import Traced, given, gradient

#: What structures of training and of serving have in common, for whoever reads their numbers.
Structures = Sequence[Any]
Numbers = dict[tuple[str, ...], float]
#: By number of a question, its value and the structures at another value.
Neighbours = Mapping[str, tuple[int, Callable[[int], Structures]]]
#: Where neighbours of a number are looked at: multiples of it, steps from it; the first that are well formed.
_NEAR: Sequence[Callable[[int], tuple[float, float, float]]] = (
    lambda v: (2 * v, 3 * v, 4 * v),
    lambda v: (v + 1, v + 2, v + 3),
    lambda v: (2 * v, v / 2, v / 4),
    lambda v: (v / 2, v / 3, v / 4),
    lambda v: (v / 2, v / 4, v / 8),
)


@dataclass(slots=True)
class Leaves:
    """Traced numbers, and how fast each of them moves with each number of a question.

    rough: numbers that move something in steps, or that change what is done: they have no derivative.
    """

    values: dict[str, float] = field(default_factory=dict)
    slopes: dict[str, list[tuple[Traced, float]]] = field(default_factory=dict)
    rough: set[str] = field(default_factory=set)

    def add(self, name: str, value: float, leaf: Traced, slope: float = 1.0) -> None:
        """A number of the question moves a traced one."""
        self.values[name] = value
        self.slopes.setdefault(name, []).append((leaf, slope))

    def elasticities(self, row: Row, measures: Sequence[str]) -> dict[str, dict[str, float | None]]:
        """By number and measure, the per cent that the measure moves for one per cent of the number."""
        leaves = {id(leaf): leaf for moved in self.slopes.values() for leaf, _ in moved}
        result: dict[str, dict[str, float | None]] = {name: {} for name in self.values}
        for measure in measures:
            of = row.get(measure)
            if of is None or float(of) == 0:
                continue
            found = dict(zip(leaves, gradient(of, list(leaves.values())), strict=True))
            for name, value in self.values.items():
                slope = math.fsum(found[id(leaf)] * slope for leaf, slope in self.slopes.get(name, ()))
                result[name][measure] = None if name in self.rough else slope * value / float(of)
        return result

    def open(self, base: Structures, neighbours: Neighbours) -> list[Any]:
        """The structures with numbers that are traced where a number of the question moves them."""
        numbers = [_numbers(s) for s in base]
        leaves: list[dict[tuple[str, ...], Traced]] = [{} for _ in base]
        for name, (value, of) in neighbours.items():
            self.values[name] = float(value)
            slopes = _slopes(base, numbers, value, of)
            if slopes is None:
                self.rough.add(name)
                continue
            for mine, known, each in zip(leaves, numbers, slopes, strict=True):
                for key, slope in each.items():
                    if key not in mine:
                        mine[key] = given(known[key], key[-1])
                    self.add(name, float(value), mine[key], slope)
        return [_with_numbers(s, mine) for s, mine in zip(base, leaves, strict=True)]


def _slopes(
    base: Structures, numbers: Sequence[Numbers], value: int, of: Callable[[int], Structures]
) -> list[Numbers] | None:
    """How fast the numbers of structures move with one of the model where they move at all; None where they jump."""
    shapes = [_shape(s) for s in base]
    for near in _NEAR:
        places = near(value)
        if any(place != int(place) for place in places):
            continue
        try:
            others = [of(int(place)) for place in places]
        except RooftopError:
            continue
        if any([_shape(s) for s in some] != shapes for some in others):
            continue
        found: list[Numbers] = []
        for i, known in enumerate(numbers):
            there = [_numbers(some[i]) for some in others]
            slopes = {key: _slope((value, *places), (known[key], *(t[key] for t in there))) for key in known}
            if any(slope is None for slope in slopes.values()):
                break
            found.append({key: slope for key, slope in slopes.items() if slope})
        else:
            return found
    return None


def _slope(x: Sequence[float], y: Sequence[float]) -> float | None:
    """At the first of four points, of a polynomial of the second degree over a power that goes through all; None where none does."""
    if all(v == y[0] for v in y):
        return 0.0
    for power in range(3):
        z = [v * at**power for v, at in zip(y, x, strict=True)]
        first, second = (z[1] - z[0]) / (x[1] - x[0]), (z[2] - z[1]) / (x[2] - x[1])
        bend = (second - first) / (x[2] - x[0])
        fourth = z[0] + (x[3] - x[0]) * (first + bend * (x[3] - x[1]))
        if math.isclose(fourth, z[3], rel_tol=1e-11):
            slope = first + bend * (x[0] - x[1])
            return (slope * x[0] - power * z[0]) / x[0] ** (power + 1)
    return None


def _open_axes(structure: Any, c: Any) -> list[tuple[tuple[tuple[str, int], ...], float]]:
    """Of each size of a program: the axes that no model settles, with their powers, and the product of all else."""
    known = {**getattr(structure, "axes", {}), **c.own}
    return [
        (
            tuple((axis, power) for axis, power in size.axes if axis not in known),
            float(size.coefficient)
            * math.prod(float(known[axis]) ** power for axis, power in size.axes if axis in known),
        )
        for size in c.sizes
    ]


def _shape(structure: Any) -> tuple[Any, ...]:
    """What must be the same of two structures for their numbers to be those of one formula."""
    return tuple(
        (
            c.name,
            tuple((w.name, w.bytes, w.flops, w.vector, w.matmul) for w in c.works),
            tuple((t.title, t.bytes) for t in c.transfers),
            tuple((axes, size.mesh) for (axes, _), size in zip(_open_axes(structure, c), c.sizes, strict=True)),
        )
        for c in structure.programs
    )


def _numbers(structure: Any) -> Numbers:
    found: Numbers = {("count", name): float(count) for name, count in structure.counts.items()}
    for c in structure.programs:
        found |= {("size", c.name, str(i)): factor for i, (_, factor) in enumerate(_open_axes(structure, c))}
    for key in ("layers", "experts", "active", "tokens"):
        if hasattr(structure, key):
            found[("whole", key)] = float(getattr(structure, key))
    return found


def _with_numbers(structure: Any, leaves: dict[tuple[str, ...], Traced]) -> Any:
    def program(c: Any) -> Any:
        sizes = tuple(
            replace(size, coefficient=leaves.get(("size", c.name, str(i)), factor), axes=axes)
            for i, (size, (axes, factor)) in enumerate(zip(c.sizes, _open_axes(structure, c), strict=True))
        )
        return replace(c, sizes=sizes)

    counts = {name: leaves.get(("count", name), count) for name, count in structure.counts.items()}
    changes: dict[str, Any] = {"counts": counts}
    changes |= {key[1]: leaf for key, leaf in leaves.items() if key[0] == "whole"}
    if hasattr(structure, "embed"):
        changes |= {"embed": program(structure.embed), "head": program(structure.head)}
        changes["blocks"] = tuple(map(program, structure.blocks))
    else:
        changes["programs"] = tuple(map(program, structure.programs))
    return replace(structure, **changes)
