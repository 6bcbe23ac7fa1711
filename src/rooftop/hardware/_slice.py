"""Slices: `v5p:16x20x28`, `v5p:8x8x16*4`, `h100:1024`, a chip alone, a chip file."""

from __future__ import annotations

import math
import re

from rooftop.errors import InputError
from rooftop.hardware._load import SwitchPlan, TorusPlan, Wiring, load
from rooftop.hardware._types import Chip, Level, Slice, Switch, Torus
from rooftop.units import dtype

_SHAPE = re.compile(r"(\d{1,9}(?:x\d{1,9}){0,3})(?:\*(\d{1,6}))?\Z")


def slice_of(text: str) -> Slice:
    """The slice that a text names. A chip alone is one chip. Raises InputError for what cannot be wired."""
    if len(text) > 1000:
        raise InputError(f"a slice of {len(text)} characters; write a chip and a shape, such as v5e:4x8", field="on")
    name, colon, shape = text.rpartition(":") if ":" in text else (text, "", "")
    if not colon:
        name = text
    if not name.strip():
        raise InputError(f"{text!r} names no chip; write a chip and a shape, such as v5e:4x8", field="on")
    chip, wiring = load(name)
    shape = shape.strip().lower() or wiring.shape
    if not shape:
        if colon:
            raise InputError(
                f"{text!r} has no shape after the colon; write one such as {_example(wiring, chip)}", field="on"
            )
        return Slice(chip.name, chip, ())
    match = _SHAPE.match(shape)
    if match is None:
        raise InputError(
            f"{shape[:40]!r} is not the shape of a slice; write one such as {_example(wiring, chip)}", field="on"
        )
    sides = tuple(int(n) for n in match[1].split("x"))
    slices = int(match[2]) if match[2] else 1
    if min(sides) < 1 or slices < 1:
        raise InputError(f"{text!r} has a side of 0; every side must be 1 or more", field="on")
    if wiring.torus is not None:
        return _torus(chip, wiring, wiring.torus, sides, slices)
    if len(sides) > 1:
        raise InputError(
            f"{chip.name} is wired by switches, so a slice is a number of chips, not {match[1]}; write {chip.name}:{math.prod(sides)}",
            field="on",
        )
    return _switched(chip, wiring, sides[0] * slices)


def _example(wiring: Wiring, chip: Chip) -> str:
    if wiring.torus is None:
        return f"{chip.name}:1024"
    return f"{chip.name}:{'x'.join(['4'] * len(wiring.torus.largest))}"


def wraps(torus: TorusPlan, sides: tuple[int, ...]) -> tuple[bool, ...]:
    """Which sides of a slice close to a ring (book, section 2)."""
    if torus.wrap == "always":
        return tuple(n > 2 for n in sides)
    if torus.wrap == "cubes":
        cubes = all(n % 4 == 0 for n in sides)
        return tuple(cubes for _ in sides)
    if torus.wrap == "sixteen":
        return tuple(n == 16 for n in sides)
    if torus.wrap == "full":
        return tuple(n == most for n, most in zip(sides, torus.largest, strict=True))
    return tuple(False for _ in sides)


def _torus(chip: Chip, wiring: Wiring, torus: TorusPlan, sides: tuple[int, ...], slices: int) -> Slice:
    largest = "x".join(map(str, torus.largest))
    if len(sides) == 1 and len(torus.largest) > 1:
        shapes = [s for s in standard_shapes(torus, chip.chips_per_host) if math.prod(s) == sides[0]]
        if not shapes:
            sizes = sorted({math.prod(s) for s in standard_shapes(torus, chip.chips_per_host)})
            near = sorted(sizes, key=lambda n: abs(math.log(n / sides[0])))[:3]
            raise InputError(
                f"no standard slice of {chip.name} has {sides[0]} chips; use {', '.join(map(str, sorted(near)))} or a shape such as"
                f" {_example(wiring, chip)}",
                field="on",
            )
        sides = shapes[0]
    if len(sides) != len(torus.largest):
        raise InputError(
            f"{chip.name} is a torus of {len(torus.largest)} dimensions, so {'x'.join(map(str, sides))} is not a slice of it; write"
            f" {_example(wiring, chip)}, at most {largest}",
            field="on",
        )
    if any(n > most for n, most in zip(sorted(sides), sorted(torus.largest), strict=True)):
        raise InputError(
            f"{chip.name}:{'x'.join(map(str, sides))} is larger than a pod ({largest}); for more chips use several slices, such as"
            f" {chip.name}:{largest}*2",
            field="on",
        )
    if math.prod(sides) > 2 and any(n > 2 and n % 2 for n in sides):
        raise InputError(
            f"{chip.name}:{'x'.join(map(str, sides))} has an odd side; sides are 1, 2 or even numbers, such as {_example(wiring, chip)}",
            field="on",
        )
    name = f"{chip.name}:{'x'.join(map(str, sides))}" + (f"*{slices}" if slices > 1 else "")
    levels: list[Level] = [Torus(torus.name, sides, wraps(torus, sides), torus.link_bandwidth, torus.hop_latency)]
    if slices > 1:
        if not wiring.switches:
            raise InputError(f"{chip.name} has no network between slices; ask for one slice", field="on")
        levels.append(_level(wiring.switches[0], slices))
    return Slice(name, chip, tuple(levels))


def _switched(chip: Chip, wiring: Wiring, chips: int) -> Slice:
    if chips == 1:
        return Slice(f"{chip.name}:1", chip, ())
    if not wiring.switches:
        raise InputError(f"{chip.name} has no network, so a slice has one chip; ask for {chip.name}", field="on")
    if chips > wiring.switches[-1].largest:
        raise InputError(
            f"{chip.name}:{chips} is larger than its network allows ({wiring.switches[-1].largest:,} chips)", field="on"
        )
    levels: list[Level] = []
    left = chips
    for position, switch in enumerate(wiring.switches):
        outermost = position == len(wiring.switches) - 1
        size = left if outermost or switch.size == 0 else min(left, switch.size)
        if left % size:
            domain = math.prod(level.size for level in levels) * switch.size
            below, above = chips // domain * domain, (chips // domain + 1) * domain
            raise InputError(
                f"{chip.name}:{chips} does not fill whole {switch.name} domains of {domain}; use {below} or {above} chips",
                field="on",
            )
        if size > 1:
            levels.append(_level(switch, size))
        left //= size
        if left == 1:
            break
    return Slice(f"{chip.name}:{chips}", chip, tuple(levels))


def outer_switch(chip_name: str) -> Switch | None:
    """The outermost switched network of a chip, two members of it; None for a chip that has none or comes from a file."""
    try:
        _, wiring = load(chip_name)
    except InputError:
        return None
    return _level(wiring.switches[-1], 2) if wiring.switches else None


def _level(plan: SwitchPlan, size: int) -> Switch:
    return Switch(plan.name, size, plan.bandwidth, plan.latency, plan.reduces)


def standard_shapes(torus: TorusPlan, chips_per_host: int) -> list[tuple[int, ...]]:
    """The shapes in which slices are commonly offered: sides double in turn, up to the pod; smallest first.

    Written as the vendor does, short sides first and sides of 1 last: 2x2x1, 2x2x4, 4x4x8.
    """
    sides = [1] * len(torus.largest)
    ordered = sorted(torus.largest)
    shapes: list[tuple[int, ...]] = [tuple(sides)]
    while True:
        doubled = [i for i in range(len(sides)) if sides[i] * 2 <= ordered[i]]
        if not doubled:
            break
        side = min(doubled, key=lambda i: (sides[i], -i))
        sides[side] *= 2
        shapes.append(tuple([n for n in sides if n > 1] + [1] * sides.count(1)))
    if torus.largest not in shapes:
        shapes.append(torus.largest)
    whole = min(4, chips_per_host)
    return [s for s in shapes if math.prod(s) < 4 or math.prod(s) % whole == 0]


def standard_slices(chip_name: str) -> list[str]:
    """Common slices of a chip, smallest first."""
    chip, wiring = load(chip_name)
    if wiring.torus is not None:
        shapes = standard_shapes(wiring.torus, chip.chips_per_host)
        return [f"{chip_name}:{'x'.join(map(str, s))}" for s in shapes]
    result, n = [], 1
    domain = wiring.switches[0].size if wiring.switches else 1
    while n < max(domain, 1):
        result.append(n)
        n *= 2
    n = max(domain, 1)
    most = min(wiring.switches[-1].largest, 131072) if wiring.switches else 1
    while n <= most:
        result.append(n)
        n *= 2
    return [f"{chip_name}:{n}" for n in result]


def peak(chip: Chip, name: str) -> float:
    """Dense peak in FLOP/s for a dtype. Raises InputError naming the dtypes of the chip."""
    wanted = dtype(name)
    if wanted in chip.flops:
        return chip.flops[wanted]
    raise InputError(f"{chip.name} has no {wanted} rate; its dtypes are {', '.join(chip.flops)}", field="dtype")
