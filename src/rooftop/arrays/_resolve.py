"""An einsum on sharded arrays as one local einsum and the collectives before and after it.

One rule yields every case: in the local einsum each mesh axis splits at most one index. The inputs are brought to
that assignment; where it splits an index that is summed, the output comes out unreduced over it; then the output is
brought to the sharding that is wanted. The ways differ in the assignment.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rooftop.arrays._collective import Collective
from rooftop.arrays._notation import Expression, Term, show
from rooftop.arrays._reshard import Cost, reshard, total_cost
from rooftop.arrays._size import Size
from rooftop.arrays._types import Array, Mesh, Sharding, checked
from rooftop.errors import InputError
from rooftop.units import dtype_bytes

#: Most assignments of mesh axes that are looked at for one einsum.
MAX_WAYS = 20_000
#: Most ways that are listed.
MAX_LISTED = 64


@dataclass(frozen=True, slots=True)
class LocalEinsum:
    """The einsum that each device computes on its blocks.

    `flops` counts n operations (n - 1 products and a sum) per point of the index space for n inputs, 2 for a matmul.
    `bytes` are those of each input block and of the output block. `batch`, `rows`, `contraction` and `columns` are
    the local sizes of the matmul that it amounts to (see `groups`).
    """

    inputs: tuple[Array, ...]
    output: Array
    shardings: tuple[Sharding, ...]
    output_sharding: Sharding
    flops: Size
    bytes: tuple[Size, ...]
    batch: Size
    rows: Size
    contraction: Size
    columns: Size

    def __str__(self) -> str:
        left = " * ".join(show(array, sharding) for array, sharding in zip(self.inputs, self.shardings, strict=True))
        return f"{left} -> {show(self.output, self.output_sharding)}"


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute an einsum: collectives on the inputs, the local einsum, collectives on the output.

    `cost` is the sum over the collectives, in bytes that a device sends or in the unit of the given cost. `local` is
    None where an array is only resharded.
    """

    before: tuple[Collective, ...]
    local: LocalEinsum | None
    after: tuple[Collective, ...]
    cost: float

    @property
    def steps(self) -> tuple[Collective, ...]:
        """All collectives with the free slices."""
        return (*self.before, *self.after)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """What is sent: all collectives without the free slices."""
        return tuple(step for step in self.steps if step.kind != "slice")

    def __str__(self) -> str:
        return ", ".join(map(str, self.collectives)) or "no communication"


@dataclass(frozen=True, slots=True)
class Resolution:
    """The ways to compute an einsum under its shardings, the cheapest first."""

    expression: Expression
    ways: tuple[Way, ...]

    @property
    def best(self) -> Way:
        """The cheapest way."""
        return self.ways[0]


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which mesh axes split which index of a local einsum, and which ones an input carries through as unreduced."""

    index: Mapping[str, tuple[str, ...]]
    through: Mapping[str, int]

    def input(self, array: Array, position: int) -> Sharding:
        """The sharding in which the input at `position` is needed."""
        carried = tuple(name for name, at in self.through.items() if at == position)
        return Sharding(tuple(self.index.get(axis, ()) for axis in array.axes), carried)

    def output(self, array: Array, order: Sequence[str]) -> Sharding:
        """The sharding in which the output comes out, unreduced axes in the order given."""
        summed = {n for axis, names in self.index.items() if axis not in array.axes for n in names}
        unreduced = tuple(name for name in order if name in summed or name in self.through)
        return Sharding(tuple(self.index.get(axis, ()) for axis in array.axes), unreduced)

    @property
    def used(self) -> tuple[str, ...]:
        """Mesh axes that split the work."""
        return tuple(name for names in self.index.values() for name in names)


def resolve(expression: Expression, sizes: Mapping[str, int], mesh: Mesh, *, cost: Cost | None = None) -> Resolution:
    """All sensible ways to compute `expression` on `mesh`, the cheapest first.

    `sizes` gives array axes their sizes, on top of those in the expression. `cost` prices a collective (for instance
    seconds on a topology); without it, the bytes that a device sends over its links (`link_bytes`). Of equally dear
    ways that with fewer local FLOPs comes first, then that with fewer collectives. Ways with the same collectives are
    listed once, and the cheapest 64 at most.

    Raises InputError for an illegal sharding, an unknown mesh axis or size, a mesh axis that does not divide, and for
    an output that is to be left unreduced where nothing is summed.
    """
    sizes = {**sizes, **expression.sizes}
    for axis in expression.indices:
        if axis not in sizes:
            raise InputError(f"axis {axis} has no size; give one, as in {axis}=8192", field=axis)
        if not isinstance(sizes[axis], int) or sizes[axis] < 1:
            raise InputError(f"axis {axis} has size {sizes[axis]!r}; give a whole number from 1 on", field=axis)
    for term in expression.terms:
        checked(term.array, term.sharding, sizes, mesh)
    if expression.resharding:
        (term,) = expression.inputs
        steps = reshard(term.array, term.sharding, expression.output.sharding, sizes, mesh, cost=cost)
        return Resolution(expression, (Way(steps, None, (), total_cost(steps, sizes, mesh, cost)),))
    ways = _ways(expression, sizes, mesh, cost)
    if not ways:
        unreduced = ", ".join(expression.output.sharding.unreduced)
        raise InputError(
            f"{expression.output} cannot be left unreduced over {unreduced}:"
            " no index that is summed can be split over it",
            field=expression.output.array.name,
        )
    return Resolution(expression, ways)


Path = tuple[tuple[Collective, ...], float]


def _ways(expression: Expression, sizes: Mapping[str, int], mesh: Mesh, cost: Cost | None) -> tuple[Way, ...]:
    order = [axis.name for axis in mesh.axes]
    output = expression.output
    paths: dict[tuple[str, Sharding, Sharding], Path] = {}

    def bring(array: Array, start: Sharding, goal: Sharding) -> Path:
        key = (array.name, start, goal)
        if key not in paths:
            steps = reshard(array, start, goal, sizes, mesh, cost=cost)
            paths[key] = steps, total_cost(steps, sizes, mesh, cost)
        return paths[key]

    found: list[tuple[tuple[float, float, int], list[Path], Assignment]] = []
    for assignment in assignments(expression, sizes, mesh):
        made = assignment.output(output.array, order)
        if not set(output.sharding.unreduced) <= set(made.unreduced):
            continue
        route = [
            bring(term.array, term.sharding, assignment.input(term.array, i))
            for i, term in enumerate(expression.inputs)
        ]
        route.append(bring(output.array, made, output.sharding))
        # Bytes that differ in rounding only are equal.
        total = float(f"{sum(price for _, price in route):.9g}")
        repeated = 1 / math.prod(mesh.sizes[name] for name in assignment.used)
        found.append(((total, repeated, sum(len(steps) for steps, _ in route)), route, assignment))

    ways: dict[frozenset[tuple[str, str, frozenset[str], str, str]], Way] = {}
    arrays = [term.array for term in expression.inputs]
    for _, route, assignment in sorted(found, key=lambda candidate: candidate[0]):
        before = tuple(step for steps, _ in route[:-1] for step in steps)
        after = route[-1][0]
        key = frozenset(
            (c.kind, c.array, frozenset(c.axes), c.axis, c.to_axis) for c in (*before, *after) if c.kind != "slice"
        )
        if key not in ways and len(ways) < MAX_LISTED:
            needed = [assignment.input(array, i) for i, array in enumerate(arrays)]
            local = local_einsum(arrays, output.array, needed, assignment.output(output.array, order))
            ways[key] = Way(before, local, after, sum(price for _, price in route))
    return tuple(ways.values())


def assignments(expression: Expression, sizes: Mapping[str, int], mesh: Mesh) -> Iterator[Assignment]:
    """Every legal assignment that can be part of a cheapest way, for every mesh axis that occurs.

    A mesh axis may split an index that it splits in an input or in the wanted output, or (if the output is wanted
    unreduced over it) any index that is summed, or none; or stay unreduced in an input. Where it already splits the
    same index everywhere, any other choice would only add communication.
    """
    names = [axis.name for axis in mesh.axes if axis.name in expression.mesh_axes]
    choices = [_choices(expression, name) for name in names]
    if math.prod(map(len, choices)) > MAX_WAYS:
        raise InputError(
            f"the {len(names)} mesh axes of this expression can be assigned in more than {MAX_WAYS} ways;"
            " use fewer mesh axes"
        )
    for choice in itertools.product(*choices):
        split = {name: index for name, index in zip(names, choice, strict=True) if isinstance(index, str)}
        through = {name: index for name, index in zip(names, choice, strict=True) if isinstance(index, int)}
        by_index: dict[str, list[str]] = {}
        for name, index in split.items():
            by_index.setdefault(index, []).append(name)
        if any(sizes[index] % math.prod(mesh.sizes[n] for n in group) for index, group in by_index.items()):
            continue
        orders = [orderings(index, group, expression.terms) for index, group in by_index.items()]
        for order in itertools.product(*orders):
            yield Assignment(dict(zip(by_index, order, strict=True)), through)


def _choices(expression: Expression, name: str) -> list[str | int | None]:
    """What a mesh axis may do: split an index, stay unreduced in an input (its position), or nothing."""
    indices: dict[str, None] = {}
    settled = True
    for term in expression.terms:
        for axis, names in zip(term.array.axes, term.sharding.axes, strict=True):
            if name in names:
                indices[axis] = None
    for term in expression.terms:
        here = {axis for axis, names in zip(term.array.axes, term.sharding.axes, strict=True) if name in names}
        settled &= name not in term.sharding.unreduced and here == set(indices) & set(term.array.axes)
    if settled and len(indices) == 1:
        return [*indices]
    if name in expression.output.sharding.unreduced:
        indices.update({axis: None for axis in expression.indices if axis not in expression.output.array.axes})
    carriers = [i for i, term in enumerate(expression.inputs) if name in term.sharding.unreduced]
    return [*indices, *carriers, None]


def orderings(index: str, names: Sequence[str], terms: Iterable[Term]) -> list[tuple[str, ...]]:
    """The orders of mesh axes on an index that suit at least one array: its own ones first, as it has them."""
    found: dict[tuple[str, ...], None] = {}
    for term in terms:
        if index in term.array.axes:
            own = [name for name in term.sharding.of_axis(term.array, index) if name in names]
            found[(*own, *(name for name in names if name not in own))] = None
    return list(found)


def local_einsum(inputs: Sequence[Array], output: Array, shardings: Sequence[Sharding], made: Sharding) -> LocalEinsum:
    """The einsum of one device, given the shardings of its inputs and of the output that comes out."""
    split: dict[str, tuple[str, ...]] = {}
    for array, sharding in (*zip(inputs, shardings, strict=True), (output, made)):
        split.update(zip(array.axes, sharding.axes, strict=True))
    size = {axis: Size.of((axis,), names) for axis, names in split.items()}
    summed = any(axis not in output.axes for axis in split)
    flops = Size(float(len(inputs)) if summed or len(inputs) > 1 else 0.0)
    for factor in size.values():
        flops = flops * factor
    arrays = (*zip(inputs, shardings, strict=True), (output, made))
    batch, rows, contraction, columns = groups([array.axes for array in inputs], output.axes, size)
    return LocalEinsum(
        tuple(inputs),
        output,
        tuple(shardings),
        made,
        flops,
        tuple(Size.of(array.axes, sharding.used) * dtype_bytes(array.dtype) for array, sharding in arrays),
        batch,
        rows,
        contraction,
        columns,
    )


def groups(
    inputs: Sequence[tuple[str, ...]], output: tuple[str, ...], size: Mapping[str, Size]
) -> tuple[Size, Size, Size, Size]:
    """The einsum as a batched matmul: sizes of (batch, rows, contraction, columns).

    Batch: indices of both inputs and the output; rows: of the first input and the output; columns: of the second
    input and the output; contraction: all that are summed. More than two inputs count as the first and the rest.
    """
    first = set(inputs[0])
    rest = {axis for axes in inputs[1:] for axis in axes}
    batch = rows = contraction = columns = Size()
    for axis, factor in size.items():
        if axis not in output:
            contraction = contraction * factor
        elif axis in first and axis in rest:
            batch = batch * factor
        elif axis in first:
            rows = rows * factor
        else:
            columns = columns * factor
    return batch, rows, contraction, columns
