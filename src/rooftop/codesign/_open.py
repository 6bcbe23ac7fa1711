"""Structures whose numbers are traced, so that what is computed from them has derivatives by numbers of the model.

A structure says how often programs run and how long their axes are. Such a number follows from one of the model in a line, as a
power, or in a line over it; which is read off structures of models that differ in that number alone.
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
#: Multiples of a number, and steps from it, at which neighbours are looked at: the first that are well formed.
_PAIRS: Sequence[tuple[Callable[[int], float], Callable[[int], float]]] = (
    (lambda v: 2 * v, lambda v: 3 * v),
    (lambda v: v + 1, lambda v: v + 2),
    (lambda v: v / 2, lambda v: v / 4),
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
    for first, second in _PAIRS:
        places = first(value), second(value)
        if any(place != int(place) for place in places):
            continue
        try:
            near = [of(int(place)) for place in places]
        except RooftopError:
            continue
        if any([_shape(s) for s in some] != shapes for some in near):
            continue
        found: list[Numbers] = []
        for i, known in enumerate(numbers):
            here, there = (_numbers(some[i]) for some in near)
            slopes = {key: _slope(value, known[key], (places[0], here[key]), (places[1], there[key])) for key in known}
            if any(slope is None for slope in slopes.values()):
                break
            found.append({key: slope for key, slope in slopes.items() if slope})
        else:
            return found
    return None


def _slope(value: float, known: float, first: tuple[float, float], second: tuple[float, float]) -> float | None:
    """Of a line, a power or a line over the number through three points; None where none goes through all."""
    (x1, y1), (x2, y2) = first, second
    if y1 == known == y2:
        return 0.0
    line = (y1 - known) / (x1 - value)
    if math.isclose(known + line * (x2 - value), y2, rel_tol=1e-12):
        return line
    if min(known, y1, y2) > 0:
        power = round(math.log(y1 / known) / math.log(x1 / value))
        if all(math.isclose(known * (x / value) ** power, y, rel_tol=1e-12) for x, y in (first, second)):
            return power * known / value
    line = (y1 * x1 - known * value) / (x1 - value)  # a + b/x, as a triangle is of its square
    if math.isclose(known * value + line * (x2 - value), y2 * x2, rel_tol=1e-12):
        return (line - known) / value
    return None


def _shape(structure: Any) -> tuple[Any, ...]:
    """What must be the same of two structures for their numbers to be those of one formula."""
    return tuple((c.name, c.works, c.transfers, tuple((s.axes, s.mesh) for s in c.sizes)) for c in structure.programs)


def _numbers(structure: Any) -> Numbers:
    found: Numbers = {("count", name): float(count) for name, count in structure.counts.items()}
    axes = getattr(structure, "axes", {})
    for c in structure.programs:
        found |= {("axis", c.name, axis): float(size) for axis, size in {**axes, **c.own}.items()}
        found |= {("size", c.name, str(i)): float(size.coefficient) for i, size in enumerate(c.sizes)}
    for key in ("layers", "experts", "active", "tokens"):
        if hasattr(structure, key):
            found[("whole", key)] = float(getattr(structure, key))
    return found


def _with_numbers(structure: Any, leaves: dict[tuple[str, ...], Traced]) -> Any:
    axes = getattr(structure, "axes", {})

    def program(c: Any) -> Any:
        own = {axis: leaves.get(("axis", c.name, axis), size) for axis, size in {**axes, **c.own}.items()}
        sizes = tuple(
            replace(size, coefficient=leaves.get(("size", c.name, str(i)), size.coefficient))
            for i, size in enumerate(c.sizes)
        )
        return replace(c, own=own, sizes=sizes)

    counts = {name: leaves.get(("count", name), count) for name, count in structure.counts.items()}
    changes: dict[str, Any] = {"counts": counts}
    changes |= {key[1]: leaf for key, leaf in leaves.items() if key[0] == "whole"}
    if hasattr(structure, "embed"):
        changes |= {"embed": program(structure.embed), "head": program(structure.head)}
        changes["blocks"] = tuple(map(program, structure.blocks))
    else:
        changes["programs"] = tuple(map(program, structure.programs))
    return replace(structure, **changes)
