"""The network of a slice drawn, its mesh axes coloured, and a collective on it, step by step along the links.

Chips are numbered with the innermost dimension first. A collective goes over the sides of the network that its axes take, one side
after the other; on each, every group of chips passes pieces to its neighbours: both ways round a ring that is closed, along a
line otherwise, and straight to each other through a switch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rooftop.figures._figure import AXES, COLOURS, SERIES, Figure
from rooftop.formula import Number
from rooftop.roofline import CollectiveTime, Dimension, MatmulTime, Placement

#: Chips that are drawn at most; of a larger slice, a part that is like the others.
MOST_CHIPS = 512
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


@dataclass(frozen=True, slots=True)
class Hop:
    """A piece on its way over one step, from chip to chip along a path; a piece is named by the chip whose it is."""

    source: int
    target: int
    piece: int
    path: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """One dimension of the network as it is drawn: its size, and how its chips form groups of the collective.

    members: chips of a group, `stride` apart; closed: they form a ring.
    """

    size: int
    torus: bool
    closed: bool
    members: int
    stride: int


def sides_of(placement: Placement, axes: Sequence[str]) -> list[Side]:
    """The dimensions of a placement, and the part of each that the axes take."""
    result = []
    for d, factors in zip(placement.dimensions, placement.factors, strict=True):
        stride, members, inside = 1, 1, False
        for axis in placement.order:
            ways = int(factors.get(axis, 1))
            if axis in axes:
                members, inside = members * ways, True
            elif not inside:
                stride *= ways
        result.append(Side(d.size, d.torus, d.torus and d.wrap and members * stride == d.size, members, stride))
    return result


def exchange(kind: str, sides: Sequence[Side]) -> list[list[Hop]]:
    """The steps of a collective on chips of all sides.

    all_gather: every chip of a group ends with the pieces of all. reduce_scatter is its mirror: pieces are sums on their way
    home. all_reduce is one after the other; all_to_all gives every pair of chips of a group a piece of its own.
    """
    if kind == "all_reduce":
        return [*exchange("reduce_scatter", sides), *exchange("all_gather", sides)]
    if kind == "reduce_scatter":  # time runs backwards, and so do the pieces
        return [
            [Hop(h.target, h.source, h.piece, h.path[::-1]) for h in hops]
            for hops in reversed(exchange("all_gather", sides))
        ]
    strides = _strides(sides)
    chips = math.prod(side.size for side in sides)
    steps: list[list[Hop]] = []
    held = {chip: [chip] for chip in range(chips)}
    for side, unit in zip(sides, strides, strict=True):
        if side.members == 1:
            continue
        found = _rounds(kind, side)
        for moves in found:
            step = []
            for chip in range(chips):
                place = chip // unit % side.size
                for source, target, owner, route in moves:
                    if place == source:
                        base = chip - place * unit
                        pieces = held[base + owner * unit] if kind == "all_gather" else [base + owner * unit]
                        path = tuple(base + p * unit for p in route)
                        step += [Hop(chip, base + target * unit, piece, path) for piece in pieces]
            steps.append(step)
        if kind == "all_gather":
            held = {
                chip: [
                    piece
                    for member in _group(side, chip // unit % side.size)
                    for piece in held[chip + (member - chip // unit % side.size) * unit]
                ]
                for chip in range(chips)
            }
    return steps


def _strides(sides: Sequence[Side]) -> list[int]:
    return [math.prod(side.size for side in sides[:n]) for n in range(len(sides))]


def _group(side: Side, place: int) -> list[int]:
    """Places of the group that a place is in, in order."""
    first = place // (side.members * side.stride) * (side.members * side.stride) + place % side.stride
    return [first + k * side.stride for k in range(side.members)]


def _rounds(kind: str, side: Side) -> list[list[tuple[int, int, int, tuple[int, ...]]]]:
    """For each step (source, target, whose piece, route) of all places of one side."""
    groups = {tuple(_group(side, place)) for place in range(side.size)}
    n = side.members
    rounds: list[list[tuple[int, int, int, tuple[int, ...]]]] = []
    for group in sorted(groups):
        for number, moves in enumerate(_group_rounds(kind, side, n)):
            if number == len(rounds):
                rounds.append([])
            rounds[number] += [
                (group[a], group[b], group[owner], _route(side, group[a], group[b])) for a, b, owner in moves
            ]
    return rounds


def _group_rounds(kind: str, side: Side, n: int) -> Iterator[list[tuple[int, int, int]]]:
    """For each step (source, target, whose piece) by rank in a group of n."""
    if not side.torus:  # straight through the switch, each to another partner
        for k in range(1, n):
            yield [(i, (i + k) % n, i) for i in range(n)]
        return
    if kind == "all_to_all":  # a piece for the chip k further on goes k hops; drawn as one journey
        for k in range(1, n):
            yield [(i, j, i) for i in range(n) for j in [(i + k) % n if side.closed else i + k] if j < n] + (
                [] if side.closed else [(i, i - k, i) for i in range(n) if i - k >= 0]
            )
        return
    if side.closed:  # both ways round: n // 2 steps
        for k in range(1, n // 2 + 1):
            right = [(i, (i + 1) % n, (i - k + 1) % n) for i in range(n)]
            left = [(i, (i - 1) % n, (i + k - 1) % n) for i in range(n)]
            yield right + (left if 2 * k < n or n % 2 else [])
        return
    for k in range(1, n):  # along the line: the ends are n - 1 apart
        right = [(i, i + 1, i - k + 1) for i in range(n - 1) if i - k + 1 >= 0]
        left = [(i, i - 1, i + k - 1) for i in range(1, n) if i + k - 1 < n]
        yield right + left


def _route(side: Side, a: int, b: int) -> tuple[int, ...]:
    """Places on the way from a to b along the side; through a switch there are none between."""
    if not side.torus or abs(a - b) <= 1:
        return (a, b)
    ahead, back = (b - a) % side.size, (a - b) % side.size
    if side.closed and min(ahead, back) < abs(b - a):
        sign, hops = (1, ahead) if ahead <= back else (-1, back)
        return tuple((a + sign * k) % side.size for k in range(hops + 1))
    sign = 1 if b > a else -1
    return tuple(range(a, b + sign, sign))


def topology_chart(placement: Placement, kind: str, axes: Sequence[str], name: str) -> Figure:
    """The slice with its mesh axes in colours, and the collective over some of them as a scene that plays."""
    drawn, left = _part(placement, axes)
    sides = sides_of(drawn, axes)
    chips = math.prod(side.size for side in sides) if sides else 1
    steps = exchange(kind, sides) if kind in KINDS else []
    nodes, shape = _places(drawn.dimensions)
    links = list(_links(drawn))
    used = [
        a
        for a in dict.fromkeys(a for f in drawn.factors for a in f)
        if any(int(f.get(a, 1)) > 1 for f in drawn.factors)
    ]
    shades = {a: _shade(a, n) for n, a in enumerate(u for u in used if u != "(rest)")} | {"(rest)": COLOURS["muted"]}
    part = (
        f" {chips:,} chips of it are drawn, and the collective on them alone; the other {left - 1:,} parts are alike."
        if left > 1
        else ""
    )
    what = kind.replace("_", "-")
    told = {
        "all_gather": "every chip passes on what it has until all chips of its group have all pieces",
        "reduce_scatter": "partial sums travel home and are added on the way; every chip ends with the sum of its own piece",
        "all_reduce": "a reduce-scatter, then an all-gather",
        "all_to_all": "every chip sends a different piece to every other chip of its group",
    }.get(kind, "one block goes to a neighbour")
    caption = f"Chips and links of {name}, coloured by mesh axis. {what} over {', '.join(axes)}: {told}, in {len(steps)} steps.{part}"
    scene = {
        "nodes": nodes, "shape": shape, "links": [{"a": a, "b": b, "axis": axis} for a, b, axis in links],
        "radius": 6 if sum(d.size > 1 for d in drawn.dimensions) > 2 else 9, "shades": shades, "axes": list(axes),
        "steps": [[[list(h.path), h.piece] for h in _shown(hops)] for hops in steps],
        "groups": _group_names(sides, chips), "kind": what,
    }  # fmt: skip
    rows = [
        (n + 1, len(hops), len({h.source for h in hops}), max(len(h.path) - 1 for h in hops))
        for n, hops in enumerate(steps)
    ]
    return Figure(
        "topology", f"{what} on {name}", caption, ("step", "pieces_on_the_way", "senders", "longest_way_in_hops"),
        rows or [(0, 0, 0, 0)], scene=scene,
    )  # fmt: skip


def _shown(hops: Sequence[Hop]) -> list[Hop]:
    """One of the pieces that go the same way at once."""
    return list({h.path: h for h in hops}.values())


def _shade(axis: str, position: int) -> str:
    return AXES.get(axis, SERIES[position % len(SERIES)])


def _part(placement: Placement, axes: Sequence[str]) -> tuple[Placement, int]:
    """The placement cut to what can be drawn: dimensions without the axes shrink to one; (part, how many parts there are)."""
    sizes = [d.size for d in placement.dimensions]
    keep = [any(int(f.get(a, 1)) > 1 for a in axes) for f in placement.factors]
    for n in reversed(range(len(sizes))):
        if math.prod(sizes) > MOST_CHIPS and not keep[n]:
            sizes[n] = 1
    for n in reversed(range(len(sizes))):
        if math.prod(sizes) > MOST_CHIPS and sum(size > 1 for size in sizes) > 1:
            sizes[n] = 1
    chosen = [n for n, size in enumerate(sizes) if size > 1]
    if math.prod(sizes) > MOST_CHIPS:
        chosen = []
    left = math.prod(d.size for d in placement.dimensions) // max(1, math.prod(sizes[n] for n in chosen))
    return Placement(
        tuple(placement.dimensions[n] for n in chosen), tuple(placement.factors[n] for n in chosen), placement.order
    ), left


def _places(dimensions: Sequence[Dimension]) -> tuple[list[list[float]], str]:
    """Where chips are drawn. Sides of a torus are rows, columns and planes behind each other; a switch is a circle."""
    tori = [d for d in dimensions if d.torus]
    sizes = [d.size for d in dimensions]
    places: list[list[float]] = []
    across = [max(1, d.size) for d in tori[:1]] or [1]
    for index in itertools.product(*(range(size) for size in reversed(sizes))):
        where = list(reversed(index))
        x = y = 0.0
        torus = [n for n, d in enumerate(dimensions) if d.torus]
        for order, n in enumerate(torus):
            if order == 0:
                x += where[n]
            elif order == 1:
                y += where[n]
            else:  # planes behind each other
                x += 0.42 * where[n]
                y -= 0.31 * where[n]
        for order, n in enumerate(n for n, d in enumerate(dimensions) if not d.torus):
            if torus:  # slices beside each other
                x += where[n] * (across[0] + 1.5)
            elif order == 0:
                radius = max(1.1, sizes[n] / 5.5)
                angle = 2 * math.pi * where[n] / sizes[n] - math.pi / 2
                x, y = radius * math.cos(angle), radius * math.sin(angle)
            else:  # domains in rows
                inner = max(1.1, sizes[0] / 5.5) * 2 + 1.4
                columns = math.ceil(math.sqrt(sizes[n] * 1.8))
                x += (where[n] % columns) * inner
                y += (where[n] // columns) * inner
        places.append([round(x, 3), round(y, 3)])
    return places or [[0.0, 0.0]], "torus" if tori else "switch"


def _links(placement: Placement) -> Iterator[tuple[int, int, str]]:
    """Links of the torus, by the mesh axis whose neighbours they join; through a switch, those of chips next in a group."""
    sizes = [d.size for d in placement.dimensions]
    for n, (d, factors) in enumerate(zip(placement.dimensions, placement.factors, strict=True)):
        unit = math.prod(sizes[:n])
        if not d.torus and not any(int(factors.get(a, 1)) > 1 for a in placement.order if a != "(rest)"):
            continue  # a switch that the mesh does not use joins nothing here
        for chip in range(math.prod(sizes)):
            place = chip // unit % d.size
            if place + 1 < d.size:
                yield chip, chip + unit, _crossed(placement.order, factors, place, d.size)
            elif d.size > 2 and (d.wrap or not d.torus):
                yield chip, chip - place * unit, _crossed(placement.order, factors, place, d.size)


def _crossed(order: Sequence[str], factors: Mapping[str, Number], place: int, size: int) -> str:
    """The outermost mesh axis whose coordinate changes from a place to the next."""
    result = "(rest)"
    following = (place + 1) % size
    for axis in order:
        ways = int(factors.get(axis, 1))
        if place % ways != following % ways:
            result = axis
        place, following = place // ways, following // ways
    return result


def _group_names(sides: Sequence[Side], chips: int) -> list[int]:
    """The number of the group that each chip is in."""
    result: list[int] = []
    known: dict[tuple[int, ...], int] = {}
    strides = _strides(sides)
    for chip in range(chips):
        key = tuple(_group(side, chip // unit % side.size)[0] for side, unit in zip(sides, strides, strict=True))
        result.append(known.setdefault(key, len(known)))
    return result


def collective_figures(c: CollectiveTime) -> list[Figure]:
    """All that shows a collective."""
    return [] if c.placement is None else [topology_chart(c.placement, c.kind, tuple(c.axes), c.where.name)]


def matmul_figures(m: MatmulTime) -> list[Figure]:
    """The collectives of the fastest way, each on the slice."""
    return [topology_chart(m.placement, c.kind, c.axes, f"{m.where.name}: {c.array}") for c, _ in m.best.collectives]
