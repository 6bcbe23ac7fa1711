"""Where the work of one op of a program lies: which mesh axes split which of its indices.

The table of shardings decides nearly all of it. A mesh axis that splits a weight (at use) splits that index of the
work, so that weights stay and activations move. Any other mesh axis splits the index that it splits in the output's
layout, or, where that is cheaper, an index that is summed and split in an input; else it splits nothing, and all
devices along it do the same work. Maps run where their output or one of their inputs lies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rooftop.arrays._notation import Term
from rooftop.arrays._resolve import orderings
from rooftop.arrays._size import Size
from rooftop.arrays._types import Array, Op, Program, Sharding

#: The shardings in which an array is at hand, and what it takes to bring it from one of them to a goal (elements).
Versions = Mapping[str, Sequence[Sharding]]
Price = Callable[[Array, Sharding, Sharding], float]
Split = dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Placement:
    """How the work of an op is split.

    `inputs` are the shardings in which it takes its inputs and `output` that in which the output comes out, unreduced
    over mesh axes that split a summed index. `split` are the mesh axes of every index of the work; `size` is the local
    size of its whole index space.
    """

    inputs: tuple[Sharding, ...]
    output: Sharding
    split: Mapping[str, tuple[str, ...]]

    @property
    def size(self) -> Size:
        """Points of the index space on one device."""
        return Size.of(self.split, self.used)

    @property
    def used(self) -> tuple[str, ...]:
        """Mesh axes that split the work."""
        return tuple(name for names in self.split.values() for name in names)

    def gradient(self, position: int) -> Sharding:
        """How the gradient of an input comes out: each device has summed over its own part of the work."""
        own = self.inputs[position]
        return Sharding(own.axes, tuple(name for name in self.used if name not in own.used))


def place(
    op: Op, program: Program, versions: Versions, wanted: Sharding, mesh: Sequence[str], price: Price
) -> Placement:
    """Choose where an op's work lies: the cheapest of the sensible placements, of equally cheap ones the most split."""
    inputs = [program.array(name) for name in op.inputs]
    output = program.array(op.output)
    if op.kind in ("einsum", "lookup"):
        candidates = _einsum(inputs, output, versions, wanted, mesh)
    elif op.kind == "route":
        candidates = iter([_route(inputs, output, versions, wanted, program)])
    else:
        candidates = _map(op, inputs, output, versions, wanted)

    def rank(placement: Placement) -> tuple[float, int]:
        cost = sum(
            min(price(array, version, goal) for version in versions[array.name])
            for array, goal in zip(inputs, placement.inputs, strict=True)
        )
        return cost + price(output, placement.output, wanted), -len(placement.used)

    return min(candidates, key=rank)


def _of(array: Array, split: Mapping[str, tuple[str, ...]]) -> Sharding:
    return Sharding(tuple(split[axis] for axis in array.axes))


def _einsum(
    inputs: Sequence[Array], output: Array, versions: Versions, wanted: Sharding, mesh: Sequence[str]
) -> Iterator[Placement]:
    indices = tuple(dict.fromkeys(axis for array in (*inputs, output) for axis in array.axes))
    terms = [Term(output, wanted), *(Term(array, version) for array in inputs for version in versions[array.name])]
    weights = [array for array in inputs if array.role == "weight"]
    weight_axes = {axis for weight in weights for axis in weight.axes}

    def where(name: str, term: Term) -> list[str]:
        return [axis for axis, names in zip(term.array.axes, term.sharding.axes, strict=True) if name in names]

    def choices(name: str) -> list[str | None]:
        held = [axis for term in terms if term.array in weights for axis in where(name, term)]
        if held:
            return list(dict.fromkeys(held))
        made = where(name, terms[0])
        summed = [
            axis
            for term in terms[1:]
            for axis in where(name, term)
            if axis not in output.axes and axis not in weight_axes
        ]
        return [*dict.fromkeys((*made, *summed)), *([] if made else [None])]

    for choice in itertools.product(*map(choices, mesh)):
        groups: dict[str, list[str]] = {}
        for name, index in zip(mesh, choice, strict=True):
            if index is not None:
                groups.setdefault(index, []).append(name)
        for order in itertools.product(*(orderings(index, names, terms) for index, names in groups.items())):
            split = dict.fromkeys(indices, ()) | dict(zip(groups, order, strict=True))
            yield _split(inputs, output, split)


def _split(inputs: Sequence[Array], output: Array, split: Split) -> Placement:
    summed = tuple(name for axis, names in split.items() if axis not in output.axes for name in names)
    return Placement(tuple(_of(array, split) for array in inputs), Sharding(_of(output, split).axes, summed), split)


def _map(op: Op, inputs: Sequence[Array], output: Array, versions: Versions, wanted: Sharding) -> Iterator[Placement]:
    """A map runs where its output or an input lies. Its indices are called as in the output."""
    renamed = [Array(a.name, renaming(a, output), a.dtype, a.role, a.layout) for a in inputs]
    indices = tuple(dict.fromkeys(axis for array in (output, *renamed) for axis in array.axes))
    known = dict(zip(output.axes, wanted.axes, strict=True))
    leads: list[Split] = [] if op.kind == "loss" else [known]
    for array in renamed[:1] if op.kind == "loss" else renamed:
        if array.role != "weight":
            leads += [dict(zip(array.axes, version.axes, strict=True)) for version in versions[array.name]]
    for lead in leads:
        used = {name for names in lead.values() for name in names}
        split = {
            axis: lead[axis] if axis in lead else tuple(n for n in known.get(axis, ()) if n not in used)
            for axis in indices
        }
        yield _split(renamed, output, split)


def renaming(array: Array, output: Array) -> tuple[str, ...]:
    """The axes of an input of a map by their names in the output.

    Equal names match; if as many are left over on both sides they match in order (`T` of a key becomes `S`), else those
    of the input are summed.
    """
    left = [axis for axis in array.axes if axis not in output.axes]
    free = [axis for axis in output.axes if axis not in array.axes]
    names = dict(zip(left, free, strict=True)) if len(left) == len(free) else {}
    return tuple(names.get(axis, axis) for axis in array.axes)


def _route(inputs: Sequence[Array], output: Array, versions: Versions, wanted: Sharding, program: Program) -> Placement:
    """Elements move between axes on the device that has them: tokens [B, T] into slots [E, C] of experts, or back.

    Slots have no order, so that the mesh axes of the tokens split the slot axis (the one whose size depends on the
    number of tokens) in any order; those wanted elsewhere go last, where an all-to-all can take them.
    """
    source = inputs[0]
    have = versions[source.name][0]
    gone = [axis for axis in source.axes if axis not in output.axes]
    new = [axis for axis in output.axes if axis not in source.axes]
    into_slots = _slot(new, program) is not None
    slot = _slot(new, program) or _slot(gone, program) or (new or gone or [""])[-1]
    held = Term(source, have) if into_slots else Term(output, wanted)
    slots = Term(output, wanted) if into_slots else Term(source, have)
    tokens = gone if into_slots else new
    spread = [name for axis in tokens for name in held.sharding.of_axis(held.array, axis)]
    home = list(slots.sharding.of_axis(slots.array, slot)) if slot in slots.array.axes else []
    elsewhere = [name for name in slots.sharding.used if name not in home]
    order = [
        *(name for name in home if name in spread),
        *(name for name in spread if name not in home and name not in elsewhere),
        *(name for name in elsewhere if name in spread),
    ]
    split: Split = {}
    for axis in dict.fromkeys((*source.axes, *output.axes)):
        if axis in tokens or (axis in held.array.axes and axis in slots.array.axes):
            split[axis] = held.sharding.of_axis(held.array, axis)
        else:
            split[axis] = tuple(order) if axis == slot else ()
    # Devices that have all tokens, but only some experts, take what those experts get; back from there, where a token is the
    # sum over its experts, they have parts of it.
    own: list[str] = []
    for axis in new if into_slots else gone:
        if axis != slot and axis in slots.array.axes:
            mine = tuple(n for n in slots.sharding.of_axis(slots.array, axis) if n not in spread)
            split[axis] = (*mine, *split.get(axis, ()))
            own += mine
    takes = [_of(array, {axis: split.get(axis, ()) for axis in array.axes}) for array in inputs]
    work = {axis: names for axis, names in split.items() if axis in held.array.axes or set(names) & set(own)}
    made = _of(output, split)
    return Placement(tuple(takes), made if into_slots else Sharding(made.axes, tuple(own)), work)


def _slot(axes: Sequence[str], program: Program) -> str | None:
    return next((axis for axis in axes if isinstance(program.axes.get(axis), Size)), None)
