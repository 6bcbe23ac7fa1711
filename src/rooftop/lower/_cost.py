"""A listing of ops on a chip or a slice: the roofline of each op, of each scope, of the whole."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from rooftop.errors import InputError
from rooftop.hardware import Slice
from rooftop.lower._listing import Listing, Op
from rooftop.roofline import (
    Calibration,
    Placement,
    calibration_for,
    collective_seconds,
    expected_op_seconds,
    group,
    math_seconds,
    memory_seconds,
    natural_placement,
    padded,
)
from rooftop.shown import Shown
from rooftop.units import dtype_bytes


@dataclass(frozen=True, slots=True)
class OpTime:
    """One op of a program, all of its times together, in seconds. bound: the slowest resource of the op alone."""

    op: Op
    math: float
    vector: float
    hbm: float
    network: float
    bound: float
    expected: float

    @property
    def binds(self) -> str:
        """The resource that takes longest."""
        times = {"compute": self.math, "vector": self.vector, "hbm": self.hbm, "network": self.network}
        return max(times, key=lambda k: times[k])


@dataclass(frozen=True, slots=True)
class Overlap:
    """Seconds of a program each of whose ops begins as soon as what it reads is there and its resource (the chip, links of a
    mesh axis in one direction) is free: each op at its roofline, and as calibrated.
    """

    bound: float
    expected: float


@dataclass(frozen=True, slots=True)
class ProgramTime(Shown):
    """A program on one device of a slice.

    resources: seconds that each resource is busy; hbm counts arguments and results only, once each, which no fusion can
    avoid. bound: the slowest of them: everything fuses and overlaps. op_by_op: each op at its own bound, one after the other.
    expected: the same as calibrated, with padding and overheads. overlap: with transfers beside work that does not wait for
    them, where what waits for what is known.
    """

    listing: Listing
    where: Slice
    ops: tuple[OpTime, ...]
    resources: Mapping[str, float]
    notes: tuple[str, ...]
    calibration: Calibration
    overlap: Overlap | None = None

    @property
    def bound(self) -> float:
        """No schedule of these ops is faster."""
        return max(self.resources.values())

    @property
    def bottleneck(self) -> str:
        """What the bound is made of."""
        return max(self.resources, key=lambda k: self.resources[k])

    @property
    def op_by_op(self) -> float:
        """Every op at its roofline, none beside another."""
        return sum(o.bound for o in self.ops)

    @property
    def expected(self) -> float:
        """Every op as calibrated, none beside another."""
        return sum(o.expected for o in self.ops)

    def scopes(self, depth: int = 1) -> dict[str, tuple[OpTime, ...]]:
        """Ops by the first names of their scope (`jax.named_scope`), in the order of their expected time."""
        found: dict[str, list[OpTime]] = {}
        for time in self.ops:
            found.setdefault(scope_of(time.op, depth), []).append(time)
        order = sorted(found.items(), key=lambda item: -sum(o.expected for o in item[1]))
        return {name: tuple(times) for name, times in order}


#: Names that transformations put around and between those of the user.
_WRAPPER = re.compile(r"[A-Za-z_]+\(([^()]*)\)")
_TECHNICAL = frozenset(
    {"remat", "checkpoint", "rematted_computation", "while", "body", "cond", "closed_call", "shard_map"}
)


def scope_of(op: Op, depth: int) -> str:
    """The first `depth` names of an op's scope as the user wrote them, with the pass that it belongs to."""
    text = op.scope
    backward = "transpose(" in text
    while True:
        plain = _WRAPPER.sub(lambda m: "" if m[0].startswith("jit(") else m[1], text)
        if plain == text:
            break
        text = plain
    names = [n for n in text.split("/") if n and n not in _TECHNICAL]
    title = "/".join(names[:depth]) or "(no scope)"
    return f"{title}, backward" if backward else title


def program_time(listing: Listing, where: Slice, *, mesh: Mapping[str, int] | None = None) -> ProgramTime:
    """The roofline of a listing on a slice. mesh: ways of the mesh axes of its collectives, if the listing has none.

    Raises InputError where the mesh does not fit on the slice.
    """
    chip = where.chip
    calibration = calibration_for(chip.name, chip.family)
    ways = {**listing.mesh, **(mesh or {})}
    used = {a: n for a, n in ways.items() if any(op.transfer and a in op.transfer.axes for op in listing.ops)}
    placement = _placed(used, where)
    notes = dict.fromkeys(listing.notes)
    ops = []
    network: dict[str, float] = {}
    arithmetic = vector = 0.0
    for op in listing.ops:
        rate = _rate(op, where, notes)
        math_ = op.times * math_seconds(op.flops, rate) if op.flops else 0.0
        elementwise = op.times * op.vector / chip.vector_flops
        hbm = op.times * memory_seconds(op.bytes, chip.hbm_bandwidth)
        moved = expected_moved = 0.0
        if op.transfer is not None and placement is not None:
            axes = tuple(a for a in op.transfer.axes if ways.get(a, 1) > 1)
            if axes:
                t = op.transfer
                moved = op.times * float(collective_seconds(t.kind, t.bytes, group(placement, axes)))
                expected_moved = op.times * float(
                    collective_seconds(t.kind, t.bytes, group(placement, axes, calibration))
                )
                name = f"network {'+'.join(axes)}"
                network[name] = network.get(name, 0.0) + moved
        expected = expected_moved + op.times * _expected(op, rate, where, calibration)
        ops.append(OpTime(op, math_, elementwise, hbm, moved, max(math_, elementwise, hbm, moved), expected))
        arithmetic += math_
        vector += elementwise
    resources = {
        "compute": arithmetic, "vector": vector,
        "hbm": memory_seconds(listing.inputs + listing.outputs, chip.hbm_bandwidth), **network,
    }  # fmt: skip
    ops.sort(key=lambda o: -o.expected)
    return ProgramTime(listing, where, tuple(ops), resources, tuple(notes), calibration)


def _placed(mesh: Mapping[str, int], where: Slice) -> Placement | None:
    if math.prod(mesh.values()) <= 1:
        return None
    if math.prod(mesh.values()) > where.chips:
        shown = ", ".join(f"{a}={n}" for a, n in mesh.items())
        raise InputError(
            f"the program's mesh {shown} takes {math.prod(mesh.values())} chips of the {where.chips} of {where.name}; name a"
            " slice that has as many",
            field="on",
        )
    return natural_placement(mesh, where)


def _rate(op: Op, where: Slice, notes: dict[str, None]) -> float:
    """FLOP/s of the matrix unit for an op's dtype, or for the dtype that the chip uses instead."""
    chip = where.chip
    if not op.flops or op.dtype in chip.flops:
        return chip.flops.get(op.dtype, 1.0)
    wide = [n for n in chip.flops if dtype_bytes(n) >= 2] or list(chip.flops)
    instead = max(wide, key=lambda n: chip.flops[n])
    notes[f"{chip.name} has no {op.dtype} rate for matmuls: they are counted at its {instead} rate, as one pass"] = None
    return chip.flops[instead]


def _expected(op: Op, rate: float, where: Slice, calibration: Calibration) -> float:
    chip = where.chip
    hbm = chip.hbm_bandwidth * calibration.hbm
    if op.kind == "network":
        return 0.0
    if op.flops:
        flops = op.flops
        if op.matmul is not None:
            rows, contraction, columns, batch = op.matmul
            tiles = zip((rows, contraction, columns), chip.tile, strict=True)
            flops = 2.0 * batch * math.prod(float(padded(size, tile)) for size, tile in tiles)
        achieved = rate * calibration.matmul_fraction(op.dtype)
        overhead = calibration.matmul_overhead(op.dtype)
        return float(expected_op_seconds(flops, op.bytes, achieved, hbm, overhead, calibration.unhidden))
    top = chip.vector_flops * calibration.vector
    return float(expected_op_seconds(op.vector, op.bytes, top, hbm, calibration.op_overhead, calibration.unhidden))
