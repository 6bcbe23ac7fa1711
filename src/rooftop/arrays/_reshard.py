"""The cheapest collectives that take an array from one sharding to another."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from rooftop.arrays._collective import Collective, link_bytes
from rooftop.arrays._notation import show
from rooftop.arrays._size import Size
from rooftop.arrays._types import Array, Mesh, Sharding, checked
from rooftop.errors import InputError

Cost = Callable[[Collective], float]

#: Of two ways that move the same bytes the one with fewer collectives is better: each weighs this part of the array.
_STEP = 1e-9


@dataclass(frozen=True, slots=True)
class _Step:
    kind: str
    before: Sharding
    after: Sharding


@dataclass(frozen=True)
class Space:
    """What is legal where: axis sizes (None: any mesh axis divides any axis) and mesh sizes.

    In a `structural` space the mesh sizes are only examples, so that two mesh axes of one size must not stand in for
    each other.
    """

    sizes: tuple[int, ...]
    mesh: tuple[tuple[str, int], ...]
    structural: bool = False

    def divides(self, axis: int, names: Iterable[str]) -> bool:
        if self.structural:
            return True
        ways = dict(self.mesh)
        return self.sizes[axis] % math.prod(ways[name] for name in names) == 0


def reshard(
    array: Array,
    start: Sharding,
    goal: Sharding,
    sizes: Mapping[str, int],
    mesh: Mesh,
    *,
    cost: Cost | None = None,
    structural: bool = False,
) -> tuple[Collective, ...]:
    """The cheapest collectives that take `array` from sharding `start` to `goal`; free slices are listed too.

    Mesh axes that `start` and `goal` share stay; the others go straight home or away, which keeps the search small.
    Steps: gather the minor mesh axes of an array axis, slice by a mesh axis that the array is replicated over, move
    the minor mesh axes of one array axis to be the minor ones of another (all-to-all), exchange blocks (permute), and
    sum over unreduced mesh axes in place (all-reduce) or into a split (reduce-scatter). `cost` of a collective is
    `link_bytes` unless given; slices are free. With `structural` the answer holds for all sizes, not just for those
    given.

    Raises InputError if `goal` is illegal or leaves unreduced what `start` has not so.
    """
    for sharding in (start, goal):
        checked(array, sharding, None if structural else sizes, mesh)
    extra = [name for name in goal.unreduced if name not in start.unreduced]
    if extra:
        raise InputError(
            f"{show(array, start)} cannot become {show(array, goal)}: it holds no partial sums over {', '.join(extra)};"
            " only a sum over an axis that is split can be left unreduced",
            field=array.name,
        )
    space = Space(tuple(sizes[axis] for axis in array.axes), tuple(mesh.sizes.items()), structural)
    if cost is None:
        return tuple(collective(array, step) for step in path(start, goal, space))
    direct = _direct(start, goal)
    if direct is not None:
        return tuple(collective(array, step) for step in direct)

    def price(step: _Step) -> float:
        return 0.0 if step.kind == "slice" else cost(collective(array, step))

    steps = _search(start, goal, space, price, 0.0)
    return tuple(collective(array, step) for step in steps)


def total_cost(collectives: Iterable[Collective], sizes: Mapping[str, int], mesh: Mesh, cost: Cost | None) -> float:
    """The sum of the costs of collectives: `cost` of each, or the bytes that a device sends. Slices are free."""
    known = mesh.sizes
    sent = (c for c in collectives if c.kind != "slice")
    return sum(float(link_bytes(c, sizes, known)) if cost is None else cost(c) for c in sent)


def collective(array: Array, step: _Step) -> Collective:
    """The step as a collective on `array`."""
    before, after = step.before, step.after
    left = [_beyond(b, a) for b, a in zip(before.axes, after.axes, strict=True)]
    added = [_beyond(a, b) for b, a in zip(before.axes, after.axes, strict=True)]
    named = list(zip(array.axes, left, added, strict=True))
    axis = ",".join(name for name, lost, got in named if (lost if step.kind != "slice" else got))
    to_axis = ""
    size = Size.of(array.axes, before.used)
    match step.kind:
        case "all_gather":
            axes = tuple(name for lost in left for name in lost)
            size = Size.of(array.axes, after.used)
        case "reduce_scatter" | "slice":
            axes = tuple(name for got in added for name in got)
            axis = ",".join(name for name, _, got in named if got)
        case "all_reduce":
            axes = tuple(name for name in before.unreduced if name not in after.unreduced)
        case "all_to_all":
            axes = next(lost for lost in left if lost)
            to_axis = next(name for name, _, got in named if got)
            size = size * Size.of((), axes).inverse()
        case _:
            changed = [(b, a) for b, a in zip(before.axes, after.axes, strict=True) if b != a]
            axes = tuple(dict.fromkeys(name for b, a in changed for name in (*b, *a)))
            axis = ",".join(name for name, b, a in zip(array.axes, before.axes, after.axes, strict=True) if b != a)
    return Collective(step.kind, array.name, axes, size, array.dtype, before, after, axis, to_axis)


def _beyond(longer: tuple[str, ...], shorter: tuple[str, ...]) -> tuple[str, ...]:
    return longer[len(shorter) :] if longer[: len(shorter)] == shorter else ()


@lru_cache(maxsize=1 << 16)
def path(start: Sharding, goal: Sharding, space: Space) -> tuple[_Step, ...]:
    """The steps of least bytes sent from `start` to `goal`."""
    if start == goal:
        return ()
    direct = _direct(start, goal)
    if direct is not None:
        return direct
    return _search(start, goal, space, lambda step: _elements(step, space), _STEP * math.prod(space.sizes))


@lru_cache(maxsize=1 << 16)
def path_elements(start: Sharding, goal: Sharding, space: Space) -> float:
    """Elements that a device sends on that path, with a little for every collective."""
    whole = float(math.prod(space.sizes))
    return sum(
        _elements(step, space) + (_STEP * whole if step.kind != "slice" else 0.0) for step in path(start, goal, space)
    )


def _elements(step: _Step, space: Space) -> float:
    ways = dict(space.mesh)
    whole = math.prod(space.sizes)
    before = whole / math.prod(ways[name] for name in step.before.used)
    after = whole / math.prod(ways[name] for name in step.after.used)
    match step.kind:
        case "slice":
            return 0.0
        case "permute":
            return before
        case "all_gather":
            return after - before
        case "reduce_scatter":
            return before - after
        case "all_reduce":
            n = math.prod(ways[name] for name in step.before.unreduced if name not in step.after.unreduced)
            return 2 * before * (n - 1) / n
    moved = [_beyond(b, a) for b, a in zip(step.before.axes, step.after.axes, strict=True)]
    n = math.prod(ways[name] for lost in moved for name in lost)
    return before * (n - 1) / n


def _direct(start: Sharding, goal: Sharding) -> tuple[_Step, ...] | None:
    """The path when no mesh axis changes places: shrink first (slice, sum), gather last; None if one does.

    It is a cheapest one: every mesh axis is sliced, summed or gathered once, and each of them when the block is
    smallest.
    """
    lost: list[tuple[str, ...]] = []
    got: list[tuple[str, ...]] = []
    for before, after in zip(start.axes, goal.axes, strict=True):
        shared = _common(before, after)
        lost.append(before[shared:])
        got.append(after[shared:])
        if lost[-1] and got[-1]:
            return None
    leaving = {name for names in lost for name in names}
    steps: list[_Step] = []
    state = start
    for wanted in ("slice", "reduce_scatter"):
        axes = list(state.axes)
        for i, names in enumerate(got):
            if leaving.intersection(names):
                return None
            sums = [name in start.unreduced for name in names]
            if sums != sorted(sums):
                return None
            axes[i] += tuple(n for n, s in zip(names, sums, strict=True) if s == (wanted == "reduce_scatter"))
        split = {name for names in axes for name in names}
        state = _add(steps, wanted, state, Sharding(tuple(axes), _without(state.unreduced, split)))
    state = _add(steps, "all_reduce", state, Sharding(state.axes, goal.unreduced))
    _add(steps, "all_gather", state, Sharding(goal.axes, goal.unreduced))
    return tuple(steps)


def _add(steps: list[_Step], kind: str, before: Sharding, after: Sharding) -> Sharding:
    if _same(before, after):
        return before
    steps.append(_Step(kind, before, after))
    return after


def _same(a: Sharding, b: Sharding) -> bool:
    return a.axes == b.axes and set(a.unreduced) == set(b.unreduced)


def _common(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _without(names: tuple[str, ...], gone: Iterable[str]) -> tuple[str, ...]:
    gone = set(gone)
    return tuple(name for name in names if name not in gone)


def _search(
    start: Sharding, goal: Sharding, space: Space, price: Callable[[_Step], float], per_step: float
) -> tuple[_Step, ...]:
    """Dijkstra's shortest path over shardings; what start and goal have in common stays where it is."""
    order = [name for name, _ in space.mesh]
    start = Sharding(start.axes, tuple(sorted(start.unreduced, key=order.index)))
    end = Sharding(goal.axes, tuple(sorted(goal.unreduced, key=order.index)))
    fixed = tuple(_common(a, b) for a, b in zip(start.axes, end.axes, strict=True))
    tick = itertools.count()
    queue: list[tuple[float, int, int, Sharding]] = [(0.0, 0, next(tick), start)]
    best: dict[Sharding, tuple[float, int]] = {start: (0.0, 0)}
    came: dict[Sharding, _Step] = {}
    settled: set[Sharding] = set()
    while queue:
        cost, count, _, state = heapq.heappop(queue)
        if state in settled:
            continue
        if state == end:
            return _merged(_trace(came, start, end))
        settled.add(state)
        for step in _steps(state, end, fixed, space):
            more = 0 if step.kind == "slice" else 1
            reached = (cost + price(step) + more * per_step, count + more)
            if reached < best.get(step.after, (math.inf, 0)):
                best[step.after] = reached
                came[step.after] = step
                heapq.heappush(queue, (*reached, next(tick), step.after))
    raise AssertionError(f"no path from {start} to {end}")


def _trace(came: Mapping[Sharding, _Step], start: Sharding, end: Sharding) -> list[_Step]:
    steps: list[_Step] = []
    state = end
    while state != start:
        steps.append(came[state])
        state = came[state].before
    return steps[::-1]


def _merged(steps: list[_Step]) -> tuple[_Step, ...]:
    """Neighbours of one kind as one collective over all of their mesh axes."""
    merged: list[_Step] = []
    for step in steps:
        last = merged[-1] if merged else None
        if last and last.kind == step.kind and step.kind != "all_to_all":
            merged[-1] = _Step(step.kind, last.before, step.after)
        else:
            merged.append(step)
    return tuple(merged)


def _steps(state: Sharding, end: Sharding, fixed: tuple[int, ...], space: Space) -> Iterator[_Step]:
    """The steps from `state` towards `end`: no mesh axis goes anywhere but home or away."""

    def replaced(changes: Mapping[int, tuple[str, ...]], unreduced: tuple[str, ...] = state.unreduced) -> Sharding:
        return Sharding(tuple(changes.get(i, names) for i, names in enumerate(state.axes)), unreduced)

    home = {name: i for i, names in enumerate(end.axes) for name in names}
    for i, names in enumerate(state.axes):
        for cut in range(fixed[i], len(names)):
            kept, moved = names[:cut], names[cut:]
            yield _Step("all_gather", state, replaced({i: kept}))
            (j, *others) = {home.get(name) for name in moved}
            if j is not None and j != i and not others and space.divides(j, state.axes[j] + moved):
                yield _Step("all_to_all", state, replaced({i: kept, j: state.axes[j] + moved}))

    pending = _without(state.unreduced, end.unreduced)
    here = set(state.used)
    for j, goal in enumerate(end.axes):
        missing = [name for name in goal if name not in here and name not in pending]
        for name in missing:
            longer = (*state.axes[j], name)
            in_order = [n for n in longer if n in goal] == [n for n in goal if n in longer]
            if in_order and space.divides(j, longer):
                yield _Step("slice", state, replaced({j: longer}))

    if pending:
        stays = tuple(name for name in pending if name not in home)
        for group in dict.fromkeys((stays or pending, pending, *((name,) for name in pending))):
            yield _Step("all_reduce", state, replaced({}, _without(state.unreduced, group)))
        for i, goal in enumerate(end.axes):
            scattered = tuple(name for name in goal if name in pending)
            for names in dict.fromkeys((scattered, *((name,) for name in scattered)) if scattered else ()):
                if space.divides(i, state.axes[i] + names):
                    after = replaced({i: state.axes[i] + names}, _without(state.unreduced, names))
                    yield _Step("reduce_scatter", state, after)

    yield from (_Step("permute", state, after) for after in _permuted(state, end, fixed, space))


def _permuted(state: Sharding, end: Sharding, fixed: tuple[int, ...], space: Space) -> Iterator[Sharding]:
    """Shardings with blocks of the same shape, so that each device takes the block of one other.

    Either the end itself; or one array axis in another order, those that stay first as the end has them, those that
    leave last and by where they go; or one mesh axis in place of another one of the same size.
    """
    ways = dict(space.mesh)

    def shape(names: tuple[str, ...]) -> object:
        return sorted(names) if space.structural else math.prod(ways[name] for name in names)

    same = all(shape(a) == shape(b) for a, b in zip(state.axes, end.axes, strict=True))
    if same and state.unreduced == end.unreduced and state.axes != end.axes:
        yield end
    home = {name: j for j, names in enumerate(end.axes) for name in names}
    for i, names in enumerate(state.axes):
        goal = end.axes[i]
        stay = tuple(name for name in goal if name in names)
        leave = sorted((name for name in names if name not in goal), key=lambda name: home.get(name, -1))
        orders = [stay + tuple(leave), stay + tuple(reversed(leave))]
        if not space.structural and len(names) <= len(goal):
            free = [(a, b) for a, b in zip(names, goal, strict=False) if a != b and b not in state.used]
            for a, b in free:
                if ways[a] == ways[b] and a not in goal and b not in state.unreduced:
                    orders.append(tuple(b if name == a else name for name in names))
        for order in dict.fromkeys(orders):
            if order != names:
                yield Sharding((*state.axes[:i], order, *state.axes[i + 1 :]), state.unreduced)
