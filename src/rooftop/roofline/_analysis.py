"""Questions about one op, one sharded matmul, one collective."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rooftop.arrays import Array, Collective, Expression, Mesh, Resolution, Way, resolve
from rooftop.errors import InputError, nearest
from rooftop.formula import Number
from rooftop.hardware import Chip, Slice, peak
from rooftop.roofline._calibration import Calibration, calibration_for
from rooftop.roofline._network import Group, Placement, group
from rooftop.roofline._ops import (
    collective_seconds,
    expected_op_seconds,
    intensity,
    math_seconds,
    memory_seconds,
    overlapped_seconds,
    padded,
    ridge,
    serial_seconds,
)
from rooftop.roofline._placements import placements_of
from rooftop.roofline._routes import memory_bandwidth
from rooftop.shown import Shown
from rooftop.units import dtype as canonical
from rooftop.units import dtype_bytes

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute", "broadcast")


@dataclass(frozen=True, slots=True)
class OpRoofline(Shown):
    """The roofline of one op on one chip. Seconds by resource; `bound` overlaps them, `sum` does not.

    vmem: the time if all operands were in the on-chip memory already, which they fit or not. critical: for each axis the
    size from which arithmetic takes longer than HBM, the others as they are; None where that never happens.
    """

    expression: Expression
    chip: Chip
    dtype: str
    unit: str  # matrix or vector
    flops: Number
    bytes: Number
    intensity: Number
    ridge: Number
    math: Number
    hbm: Number
    vmem: Number
    fits_vmem: bool
    bound: Number
    sum: Number
    expected: Number
    bottleneck: str
    critical: Mapping[str, float | None]
    calibration: Calibration
    shape: tuple[int, int, int] | None  # of a matmul: rows, contraction, columns


def arithmetic_dtype(arrays: tuple[Array, ...]) -> str:
    """The dtype that a chip multiplies in: the widest of the inputs (int8 weights times bf16 activations run in bf16)."""
    names = [canonical(a.dtype) for a in arrays]
    return max(names, key=lambda n: (dtype_bytes(n), not n.startswith("int")))


def op_roofline(
    expression: Expression, sizes: Mapping[str, int], chip: Chip, *, dtype: str | None = None, memory: str = "hbm"
) -> OpRoofline:
    """The roofline of an einsum (book, section 1): inputs are read once and the output is written once.

    memory: where the operands are: hbm, fast (already in VMEM or SMEM) or host (streamed over PCIe).
    Raises InputError for axes without a size, and for dtypes that the chip does not have.
    """
    known = sizes_of(expression, sizes)
    bandwidth = memory_bandwidth(chip, memory)
    arrays = [term.array for term in expression.inputs]
    output = expression.output.array
    compute = canonical(dtype) if dtype else arithmetic_dtype(tuple(arrays))
    every = expression.indices
    contracted = [i for i in every if i not in output.axes]
    first, last = arrays[0].axes, arrays[-1].axes
    rows = [i for i in every if i in first and i not in last and i in output.axes]
    columns = [i for i in every if i in last and i not in first and i in output.axes]
    products = float(math.prod(known[i] for i in every))
    outputs = float(math.prod(known[i] for i in output.axes))
    # n products are summed with n - 1 additions; the convention 2n is kept for matmuls, where it is what chips are rated by
    matrix = len(arrays) == 2 and bool(contracted) and bool(rows or columns)
    if matrix:
        flops = 2 * products
        rate = peak(chip, compute)
    else:
        flops = products * max(1, len(arrays) - 1) + (products - outputs if contracted else 0.0)
        rate = chip.vector_flops
    read = float(sum(math.prod(known[i] for i in a.axes) * dtype_bytes(a.dtype) for a in arrays))
    bytes = read + outputs * dtype_bytes(output.dtype)
    calibration = calibration_for(chip.name, chip.family)
    time_math, time_hbm = math_seconds(flops, rate), memory_seconds(bytes, bandwidth)
    padded_flops = flops
    shape = tuple(math.prod(known[i] for i in indices) for indices in (rows, contracted, columns))
    if matrix:
        for size, tile in zip(shape, chip.tile, strict=True):
            padded_flops = padded_flops * padded(size, tile) / size
    efficiency = calibration.matmul_fraction(compute) if matrix else calibration.vector
    return OpRoofline(
        expression=expression, chip=chip, dtype=compute, unit="matrix" if matrix else "vector", flops=flops, bytes=bytes,
        intensity=intensity(flops, bytes), ridge=ridge(rate, bandwidth), math=time_math, hbm=time_hbm,
        vmem=memory_seconds(bytes, chip.fast_memory.bandwidth), fits_vmem=bytes <= chip.fast_memory.bytes,
        bound=overlapped_seconds(time_math, time_hbm), sum=serial_seconds(time_math, time_hbm),
        expected=expected_op_seconds(
            padded_flops, bytes, rate * efficiency, bandwidth * calibration.hbm,
            calibration.matmul_overhead(compute) if matrix else calibration.op_overhead, calibration.unhidden,
        ),
        bottleneck="compute" if time_math >= time_hbm else memory,
        critical={
            axis: _critical(axis, known, flops, rate, [*arrays, output], bandwidth) for axis in every
        },
        calibration=calibration, shape=(shape[0], shape[1], shape[2]) if matrix else None,
    )  # fmt: skip


def _critical(
    axis: str, known: Mapping[str, int], flops: float, rate: float, arrays: list[Array], bandwidth: float
) -> float | None:
    """Where x·a = b + x·c for an axis of size x: FLOPs grow with it, bytes have a part that does and one that does not."""
    growing = fixed = 0.0
    for array in arrays:
        bytes = math.prod(known[i] for i in array.axes) * dtype_bytes(array.dtype)
        if axis in array.axes:
            growing += bytes / known[axis]
        else:
            fixed += bytes
    slope = flops / known[axis] / rate - growing / bandwidth
    return fixed / bandwidth / slope if slope > 0 else None


def sizes_of(expression: Expression, sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes of all axes: inline ones and those given. Raises InputError for what is missing, unknown or given twice."""
    for name in sizes:
        if name not in expression.indices:
            raise InputError(
                f"axis {name} is not in {expression}{nearest(name, expression.indices)}; its axes are {', '.join(expression.indices)}",
                field="sizes",
            )
        if expression.sizes.get(name, sizes[name]) != sizes[name]:
            raise InputError(
                f"axis {name} is {expression.sizes[name]} in the expression and {sizes[name]} in --sizes", field="sizes"
            )
    known = {**expression.sizes, **sizes}
    missing = [i for i in expression.indices if i not in known]
    if missing:
        raise InputError(
            f"no size for {', '.join(missing)}; give one inline ({missing[0]}=8192) or as --sizes {','.join(f'{m}=8192' for m in missing)}",
            field="sizes",
        )
    return {i: known[i] for i in expression.indices}


@dataclass(frozen=True, slots=True)
class CollectiveTime(Shown):
    """One collective on a slice.

    seconds: the schedule of the book (whole shards around rings, one hop at a time when messages are small); bound: what no
    schedule can beat; expected: as calibrated.
    """

    kind: str
    axes: Mapping[str, int]
    bytes: float
    seconds: float
    bound: float
    expected: float
    regime: str
    hops: int
    group: Group
    placement: Placement | None
    where: Slice

    @property
    def bandwidth(self) -> float:
        """Bytes of the array over the time."""
        return self.bytes / self.seconds if self.seconds > 0 else math.inf


def collective_time(
    kind: str, bytes: float, axes: Mapping[str, int], where: Slice, *, one_way: bool = False
) -> CollectiveTime:
    """Time of a collective of an array of `bytes` over mesh axes of the given sizes, placed on whole sides if possible.

    one_way: rings use one of their two directions only.
    """
    name = _kind(kind)
    if not axes:
        raise InputError("a collective needs mesh axes; give them as --axes X=16", field="axes")
    placement = natural_placement(axes, where)
    return _timed(name, bytes, axes, where, placement, one_way=one_way)


def _kind(kind: str) -> str:
    flat = "".join(c for c in kind.lower() if c.isalpha())
    known = {c.replace("_", ""): c for c in COLLECTIVES} | {"collectivepermute": "permute", "ppermute": "permute"}
    if flat not in known:
        raise InputError(
            f"unknown collective {kind[:40]!r}{nearest(flat, known)}; use one of {', '.join(c.replace('_', '-') for c in COLLECTIVES)}",
            field="kind",
        )
    return known[flat]


def _timed(
    kind: str, bytes: float, axes: Mapping[str, int], where: Slice, placement: Placement, *, one_way: bool = False
) -> CollectiveTime:
    names = tuple(axes)
    whole = group(placement, names, whole_shards=True, one_way=one_way)
    calibration = calibration_for(where.chip.name, where.chip.family)
    seconds = float(collective_seconds(kind, bytes, whole))
    bandwidth_only = float(collective_seconds(kind, bytes, _without_latency(whole)))
    return CollectiveTime(
        kind, dict(axes), bytes, seconds,
        float(collective_seconds(kind, bytes, group(placement, names, one_way=one_way))),
        float(collective_seconds(kind, bytes, group(placement, names, calibration, one_way=one_way))),
        "bandwidth" if bandwidth_only >= seconds else "latency",
        int(whole.hops), whole, placement, where,
    )  # fmt: skip


def _without_latency(g: Group) -> Group:
    return replace(g, gather_latency=0.0, all_reduce_latency=0.0, permute_latency=0.0)


def natural_placement(axes: Mapping[str, int], where: Slice) -> Placement:
    """Where a person would put these mesh axes: on as few sides as possible, on whole ones, then where they are fastest."""
    options = placements_of(axes, where)

    def rank(placement: Placement) -> tuple[float, ...]:
        pieces = whole = 0
        for dimension, factors in zip(placement.dimensions, placement.factors, strict=True):
            for name in axes:
                if factors.get(name, 1) > 1:
                    pieces += 1
                    whole += factors[name] == dimension.size
        rates = sum(float(group(placement, (name,)).gather_rate) for name in axes)
        return (pieces, -whole, rates)

    return min(options, key=rank)


@dataclass(frozen=True, slots=True)
class MatmulTime(Shown):
    """A sharded einsum on a slice: the cheapest way, the others, and their times."""

    expression: Expression
    where: Slice
    mesh: Mapping[str, int]
    placement: Placement
    ways: tuple[WayTime, ...]

    @property
    def best(self) -> WayTime:
        """The fastest way."""
        return self.ways[0]


@dataclass(frozen=True, slots=True)
class WayTime:
    """One way to do a sharded einsum: its collectives with their times, and the local work of each chip.

    bound: local work and communication overlap perfectly; sum: they do not; expected: as calibrated, not overlapped.
    """

    way: Way
    collectives: tuple[tuple[Collective, CollectiveTime], ...]
    flops: float
    bytes: float
    math: float
    hbm: float
    expected_local: float

    @property
    def local(self) -> float:
        """Seconds of the local einsum at the roofline."""
        return max(self.math, self.hbm)

    @property
    def network(self) -> float:
        """Seconds of all collectives, by the book's schedule."""
        return sum(t.seconds for _, t in self.collectives)

    @property
    def bound(self) -> float:
        """Perfect overlap, and no schedule faster."""
        return max(self.local, sum(t.bound for _, t in self.collectives))

    @property
    def sum(self) -> float:
        """No overlap."""
        return self.local + self.network

    @property
    def expected(self) -> float:
        """As calibrated, not overlapped."""
        return self.expected_local + sum(t.expected for _, t in self.collectives)

    @property
    def bottleneck(self) -> str:
        """What takes longest: compute, hbm or network."""
        times = {"compute": self.math, "hbm": self.hbm, "network": self.network}
        return max(times, key=lambda k: times[k])


def matmul_time(expression: Expression, sizes: Mapping[str, int], mesh: Mapping[str, int], where: Slice) -> MatmulTime:
    """Resolve a sharded einsum on a slice, by time: the collectives that its shardings force, and the alternatives."""
    known = sizes_of(expression, sizes)
    for name in expression.mesh_axes:
        if name not in mesh:
            raise InputError(
                f"mesh axis {name} has no size{nearest(name, mesh)}; give it as --mesh {name}=4", field="mesh"
            )
    placement = natural_placement(mesh, where)

    def cost(collective: Collective) -> float:
        bytes = float(collective.bytes(known, mesh))
        return float(collective_seconds(collective.kind, bytes, group(placement, collective.axes, whole_shards=True)))

    resolution: Resolution = resolve(expression, known, Mesh.of(mesh), cost=cost)
    compute = arithmetic_dtype(tuple(t.array for t in expression.inputs))
    rate = peak(where.chip, compute)
    calibration = calibration_for(where.chip.name, where.chip.family)
    ways = []
    for way in resolution.ways:
        local = way.local
        flops = 0.0 if local is None else float(local.flops(known, mesh))
        bytes = 0.0 if local is None else float(sum(b(known, mesh) for b in local.bytes))
        times = tuple(
            (c, _timed(c.kind, float(c.bytes(known, mesh)), {a: mesh[a] for a in c.axes}, where, placement))
            for c in way.collectives
        )
        ways.append(
            WayTime(
                way, times, flops, bytes, flops / rate, bytes / where.chip.hbm_bandwidth,
                0.0 if local is None else float(expected_op_seconds(
                    flops, bytes, rate * calibration.matmul_fraction(compute), where.chip.hbm_bandwidth * calibration.hbm,
                    calibration.matmul_overhead(compute), calibration.unhidden,
                )),
            )
        )  # fmt: skip
    ways.sort(key=lambda w: (w.sum, len(w.collectives)))
    return MatmulTime(expression, where, dict(mesh), placement, tuple(ways))
