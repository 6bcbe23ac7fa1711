"""What a sharding forces: an einsum under shardings becomes collectives on its inputs, a local einsum, collectives after.

The local einsum gives every mesh axis to at most one index, to none (every chip of the axis does the same work) or lets
an input that is not yet summed over it pass through. Inputs are resharded to that, the output comes out split over
what its indices have and unreduced over what contracted indices have, and is resharded to what is wanted. The book
(section 3) tells four cases of this; all legal ways are enumerated here, and the cheapest is taken.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rooftop.arrays._collective import Collective
from rooftop.arrays._size import Size
from rooftop.arrays._types import Array, Sharding, checked
from rooftop.errors import InputError
from rooftop.units import dtype_bytes

@dataclass(frozen=True, slots=True)
class LocalEinsum:
    """The einsum that each chip does on its blocks; sizes are local."""

    inputs: tuple[Array, ...]
    output: Array
    shardings: tuple[Sharding, ...]
    out: Sharding
    flops: Size
    read: tuple[Size, ...]  # bytes of each input block
    written: Size  # bytes of the output block


@dataclass(frozen=True, slots=True)
class Way:
    """One legal way to do an einsum: collectives on inputs, the local einsum, collectives on the output."""

    before: tuple[Collective, ...]
    local: LocalEinsum
    after: tuple[Collective, ...]
    cost: float

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """All collectives that move something, in order."""
        return tuple(c for c in (*self.before, *self.after) if c.kind != "slice")


@dataclass(frozen=True, slots=True)
class Resolution:
    """All legal ways, cheapest first."""

    ways: tuple[Way, ...]

    @property
    def best(self) -> Way:
        """The cheapest way."""
        return self.ways[0]


#: Cost of a collective, given its kind, its bytes (as in Collective.bytes) and its mesh axes.
Cost = Callable[[str, float, tuple[str, ...]], float]


def moved_bytes(mesh: Mapping[str, int]) -> Cost:
    """The default cost: bytes through the links of one chip (an all-reduce moves everything twice)."""

    def cost(kind: str, bytes: float, axes: tuple[str, ...]) -> float:
        n = math.prod(mesh[a] for a in axes)
        share = (n - 1) / n
        factor = {"all_gather": share, "reduce_scatter": share, "all_reduce": 2 * share, "all_to_all": share / n}
        return bytes * factor.get(kind, 1.0)

    return cost


def reshard(
    array: Array,
    start: Sharding,
    goal: Sharding,
    sizes: Mapping[str, int],
    mesh: Mapping[str, int],
    cost: Cost | None = None,
) -> tuple[Collective, ...]:
    """The cheapest collectives that take an array from one sharding to another.

    Steps: all-gather of the minor mesh axes of an array axis, slice, all-to-all, permutation of blocks, reduce-scatter
    and all-reduce of what is unreduced. Raises InputError where the goal is not a legal sharding.
    """
    if start == goal:
        return ()
    checked(array, goal)
    missing = set(goal.unreduced) - set(start.unreduced)
    for step in _steps(array, start, goal, sizes, mesh):
        if step.after == goal:  # no detour is cheaper than one collective
            return (step,)
    price = cost or moved_bytes(mesh)
    queue: list[tuple[float, int, int, Sharding, tuple[Collective, ...]]] = [(0.0, 0, 0, start, ())]
    done: set[Sharding] = set()
    counter = itertools.count(1)
    while queue:
        spent, _, _, here, path = heapq.heappop(queue)
        if here.axes == goal.axes:
            left = set(here.unreduced) - set(goal.unreduced)
            # an array that is whole on every chip of an axis counts as unreduced over it once all but one are zeroed
            if not left and missing.isdisjoint(here.used):
                return path
        if here in done:
            continue
        done.add(here)
        for step in _steps(array, here, goal, sizes, mesh):
            if step.after not in done:
                extra = 0.0 if step.kind == "slice" else price(step.kind, step.bytes(sizes, mesh), step.axes) + 1e-6
                heapq.heappush(queue, (spent + extra, len(path), next(counter), step.after, (*path, step)))
    raise InputError(
        f"{array.name} cannot go from {start.axes} to {goal.axes}: no collective leads there", field=array.name
    )


@functools.lru_cache(maxsize=4096)
def _local(axes: tuple[str, ...], mesh: tuple[str, ...]) -> Size:
    return Size.of(axes, mesh)


@functools.lru_cache(maxsize=4096)
def _without(size: Size, mesh: tuple[str, ...]) -> Size:
    return size / Size.of((), mesh)


def _steps(
    array: Array, here: Sharding, goal: Sharding, sizes: Mapping[str, int], mesh: Mapping[str, int]
) -> Iterator[Collective]:
    local = _local(array.axes, here.used)

    def put(i: int, axes: tuple[str, ...], base: tuple[tuple[str, ...], ...] = here.axes) -> tuple[tuple[str, ...], ...]:
        return (*base[:i], axes, *base[i + 1 :])

    def fits(i: int, axes: tuple[str, ...]) -> bool:
        return sizes[array.axes[i]] % math.prod(mesh[a] for a in axes) == 0

    open_axes = [a for a in here.unreduced if a not in goal.unreduced]
    for i, name in enumerate(array.axes):
        current, wanted = here.axes[i], goal.axes[i]
        for k in range(1, len(current) + 1):
            suffix = current[-k:]
            after = Sharding(put(i, current[:-k]), here.unreduced)
            whole = _without(local, suffix)
            yield Collective("all_gather", array.name, suffix, whole, array.dtype, here, after, name)
            for j, other in enumerate(array.axes):
                if j != i and goal.axes[j][: len(here.axes[j]) + k] == here.axes[j] + suffix and fits(j, here.axes[j] + suffix):
                    after = Sharding(put(j, here.axes[j] + suffix, put(i, current[:-k])), here.unreduced)
                    yield Collective(
                        "all_to_all", array.name, suffix, whole, array.dtype, here, after, name, other
                    )
        if wanted[: len(current)] == current and len(wanted) > len(current):
            for k in range(1, len(wanted) - len(current) + 1):
                group = wanted[len(current) : len(current) + k]
                if not fits(i, current + group):
                    continue
                after_axes = put(i, current + group)
                if all(a in open_axes for a in group):
                    rest = tuple(a for a in here.unreduced if a not in group)
                    yield Collective(
                        "reduce_scatter", array.name, group, local, array.dtype, here, Sharding(after_axes, rest), name
                    )
                elif not any(a in here.used or a in here.unreduced for a in group):
                    yield Collective(
                        "slice", array.name, group, local, array.dtype, here, Sharding(after_axes, here.unreduced), name
                    )
        aligned = tuple(a for a in wanted if a in current)
        for order in {aligned + tuple(a for a in current if a not in aligned)}:
            if order != current:
                after = Sharding(put(i, order), here.unreduced)
                yield Collective("permute", array.name, order, local, array.dtype, here, after, name)
        if current != wanted and current and len(current) == len(wanted):
            same = sorted(mesh[a] for a in current) == sorted(mesh[a] for a in wanted)
            foreign = [a for a in wanted if a not in current]
            free = all(a not in here.used and a not in here.unreduced for a in foreign)
            if same and free and (not foreign or math.prod(mesh[a] for a in current) == math.prod(mesh[a] for a in wanted)):
                axes = tuple(dict.fromkeys((*current, *wanted)))
                yield Collective(
                    "permute", array.name, axes, local, array.dtype, here,
                    Sharding(put(i, wanted), here.unreduced), name,
                )  # fmt: skip
    for k in range(1, len(open_axes) + 1):
        for group in itertools.combinations(open_axes, k):
            rest = tuple(a for a in here.unreduced if a not in group)
            yield Collective("all_reduce", array.name, group, local, array.dtype, here, Sharding(here.axes, rest))


def resolve(
    inputs: Sequence[Array],
    shardings: Sequence[Sharding | Sequence[Sharding]],
    output: Array,
    wanted: Sharding | None,
    sizes: Mapping[str, int],
    mesh: Mapping[str, int],
    cost: Cost | None = None,
    *,
    fraction: float = 1.0,
) -> Resolution:
    """All legal ways to compute `output` from `inputs` by einsum, cheapest first (ties: fewer FLOPs, fewer collectives).

    An input may be at hand in several shardings. `wanted=None` leaves the output as the cheapest local einsum makes it.
    Raises InputError for illegal shardings, by name.
    """
    price = cost or moved_bytes(mesh)
    at_hand = [(s,) if isinstance(s, Sharding) else tuple(s) for s in shardings]
    for array, options in zip(inputs, at_hand, strict=True):
        for sharding in options:
            checked(array, sharding)
    if wanted is not None:
        checked(output, wanted)
    indices = list(dict.fromkeys(axis for array in (*inputs, output) for axis in array.axes))
    choices = _choices(inputs, at_hand, output, wanted)
    paths: dict[tuple[int, Sharding], tuple[float, tuple[Collective, ...]] | None] = {}

    def reach(position: int, goal: Sharding) -> tuple[float, tuple[Collective, ...]] | None:
        key = (position, goal)
        if key not in paths:
            best: tuple[float, tuple[Collective, ...]] | None = None
            for start in at_hand[position]:
                try:
                    steps = reshard(inputs[position], start, goal, sizes, mesh, price)
                except InputError:
                    continue
                spent = _price(steps, price, sizes, mesh)
                if best is None or spent < best[0]:
                    best = (spent, steps)
            paths[key] = best
        return paths[key]

    ways: dict[tuple[str, ...], Way] = {}
    names = list(choices)
    for picks in itertools.product(*choices.values()):
        assigned: dict[str, list[str]] = {index: [] for index in indices}
        passing: dict[int, list[str]] = {}
        for name, pick in zip(names, picks, strict=True):
            if isinstance(pick, str):
                assigned[pick].append(name)
            elif isinstance(pick, int):
                passing.setdefault(pick, []).append(name)
        split = {index: _ordered(index, axes, inputs, at_hand, output, wanted) for index, axes in assigned.items()}
        if any(sizes[i] % math.prod(mesh[a] for a in axes) for i, axes in split.items()):
            continue
        before: list[Collective] = []
        local_shardings: list[Sharding] = []
        spent = 0.0
        for position, array in enumerate(inputs):
            goal = Sharding(tuple(split[a] for a in array.axes), tuple(passing.get(position, ())))
            found = reach(position, goal)
            if found is None:
                break
            spent += found[0]
            before += found[1]
            local_shardings.append(goal)
        else:
            contracted = [i for i in indices if i not in output.axes]
            unreduced = tuple(a for i in contracted for a in split[i]) + tuple(a for v in passing.values() for a in v)
            out = Sharding(tuple(split[a] for a in output.axes), unreduced)
            try:
                after = () if wanted is None else reshard(output, out, wanted, sizes, mesh, price)
            except InputError:
                continue
            spent += _price(after, price, sizes, mesh)
            used = tuple(a for axes in split.values() for a in axes)
            local = LocalEinsum(
                tuple(inputs), output, tuple(local_shardings), out,
                Size.of(indices, used, 2.0 * fraction),
                tuple(
                    Size.of(a.axes, s.used, dtype_bytes(a.dtype)) for a, s in zip(inputs, local_shardings, strict=True)
                ),
                Size.of(output.axes, out.used, dtype_bytes(output.dtype)),
            )  # fmt: skip
            way = Way(tuple(before), local, tuple(after), spent)
            key = tuple(sorted(str(c) for c in way.collectives))
            if key not in ways or _rank(way, sizes, mesh) < _rank(ways[key], sizes, mesh):
                ways[key] = way
    if not ways:
        raise InputError(f"{output.name} cannot be computed under these shardings: no axis sizes divide", field=output.name)
    return Resolution(tuple(sorted(ways.values(), key=lambda w: _rank(w, sizes, mesh))))


def _rank(way: Way, sizes: Mapping[str, int], mesh: Mapping[str, int]) -> tuple[float, float, int]:
    return (way.cost, way.local.flops(sizes, mesh), len(way.collectives))


def _price(steps: Sequence[Collective], price: Cost, sizes: Mapping[str, int], mesh: Mapping[str, int]) -> float:
    return sum(price(s.kind, s.bytes(sizes, mesh), s.axes) for s in steps if s.kind != "slice")


def _choices(
    inputs: Sequence[Array], at_hand: Sequence[Sequence[Sharding]], output: Array, wanted: Sharding | None
) -> dict[str, list[str | int | None]]:
    """For each mesh axis the indices it may split in the local einsum, None, or the position of the input that passes."""
    choices: dict[str, list[str | int | None]] = {}

    def add(name: str, choice: str | int | None) -> None:
        options = choices.setdefault(name, [None])
        if choice not in options:
            options.append(choice)

    for position, (array, options) in enumerate(zip(inputs, at_hand, strict=True)):
        for sharding in options:
            for index, axes in zip(array.axes, sharding.axes, strict=True):
                for name in axes:
                    add(name, index)
            for name in sharding.unreduced:
                add(name, position)
    if wanted is not None:
        for index, axes in zip(output.axes, wanted.axes, strict=True):
            for name in axes:
                add(name, index)
    everywhere = [(a, o) for a, o in zip(inputs, at_hand, strict=True)]
    if wanted is not None:
        everywhere.append((output, (wanted,)))
    for name, options in choices.items():
        split = [o for o in options if isinstance(o, str)]
        if len(options) == 2 and len(split) == 1 and all(
            split[0] not in array.axes or name in s.of_axis(array, split[0]) for array, have in everywhere for s in have
        ):
            choices[name] = [split[0]]  # all arrays with this index have it there already: nothing is cheaper
    return choices


def _ordered(
    index: str,
    axes: Sequence[str],
    inputs: Sequence[Array],
    at_hand: Sequence[Sequence[Sharding]],
    output: Array,
    wanted: Sharding | None,
) -> tuple[str, ...]:
    """Mesh axes of an index in the order that most arrays already have."""
    if len(axes) < 2:
        return tuple(axes)
    seen: list[tuple[str, ...]] = []
    if wanted is not None and index in output.axes:
        seen.append(wanted.of_axis(output, index))
    for array, options in zip(inputs, at_hand, strict=True):
        if index in array.axes:
            seen += [s.of_axis(array, index) for s in options]
    seen.sort(key=lambda t: -sum(a in axes for a in t))
    order = [a for t in seen for a in t if a in axes]
    return tuple(dict.fromkeys((*order, *axes)))
