"""Seconds of compiled terms: kernels at the rates of a chip, transfers over its links, and what hides under what.

Every function here takes numbers, NumPy arrays (many plans at once) or traced quantities, and knows three classes of transfer:

- prefetch: gathers of weights and reductions of gradients, which hide under other layers' work;
- ring: keys and values over the context axis, which hide under attention;
- critical: activations between two matmuls that need them, which nothing hides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rooftop.costing._axes import Links
from rooftop.costing._terms import Terms, Transfer, Work
from rooftop.formula import Number, Traced, ceil, formula, maximum, minimum, named, normal_maximum, total
from rooftop.hardware import Chip, peak
from rooftop.roofline import Calibration, collective_seconds, expected_op_seconds, padded, wave_factor
from rooftop.units import dtype_bytes


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of one chip, bound and achieved (FLOP/s, bytes/s, seconds)."""

    peak: Number
    hbm: Number
    vector: Number
    matmuls: Matmuls
    attention_expected: Number
    hbm_expected: Number
    vector_expected: Number
    elementwise: Number  # bytes/s
    experts: Number  # part of the matmul rate
    op_overhead: Number
    attention_overhead: Number
    tile: tuple[int, int, int]
    cores: int
    unhidden: Number = 0.0
    waves: Number = 0.0
    #: bytes/s between host memory and the chip, one way while the other way is as busy
    host: Number = 0.0
    host_expected: Number = 0.0
    #: matmuls by the dtype of their weights, where they differ from those above
    by_weight: Mapping[str, Matmuls] = field(default_factory=dict)

    def matmul(self, weight: str) -> Matmuls:
        """What matmuls with weights of a dtype run at."""
        return self.by_weight.get(weight, self.matmuls)


@dataclass(frozen=True, slots=True)
class Matmuls:
    """Rates of matmuls of one dtype: peak and achieved FLOP/s, seconds of a kernel on top."""

    peak: Number
    expected: Number
    overhead: Number


def matmuls_of(
    top: float, dtype: str, calibration: Calibration, *, sustained: bool = False, op: float | None = None
) -> Matmuls:
    """Matmuls of a dtype with a peak; sustained: in a run that is long enough for clocks to fall. op: seconds of a kernel."""
    kept = calibration.sustained if sustained else 1.0
    if sustained:  # a training step has its casts as kernels of their own
        overhead = calibration.op_overhead
    else:
        overhead = calibration.matmul_overhead(dtype) + (0.0 if op is None else op - calibration.op_overhead)
    return Matmuls(top, top * calibration.matmul_fraction(dtype) * kept, overhead)


def rates_of(chip: Chip, dtype: str, calibration: Calibration, *, sustained: bool = False) -> Rates:
    """Peak and achieved rates of a chip for matmuls of a dtype. Attention stays in 16 bits where that is narrower."""
    top = peak(chip, dtype)
    wide = dtype if dtype_bytes(dtype) >= 2 else next((d for d in ("bf16", "fp16") if d in chip.flops), dtype)
    kept = calibration.sustained if sustained else 1.0
    return Rates(
        peak=top,
        hbm=chip.hbm_bandwidth,
        vector=chip.vector_flops,
        matmuls=matmuls_of(top, dtype, calibration, sustained=sustained),
        attention_expected=peak(chip, wide) * calibration.attention * kept,
        hbm_expected=chip.hbm_bandwidth * calibration.hbm,
        vector_expected=chip.vector_flops * calibration.vector,
        elementwise=chip.hbm_bandwidth * calibration.hbm * calibration.elementwise,
        experts=calibration.experts if sustained else 1.0,  # of training, with its dispatch
        op_overhead=calibration.op_overhead,
        attention_overhead=calibration.attention_overhead,
        tile=chip.tile,
        cores=chip.cores,
        unhidden=calibration.unhidden,
        waves=calibration.waves,
        host=chip.pcie_bandwidth,
        host_expected=chip.pcie_bandwidth * calibration.network_efficiency("pcie"),
    )


def work_seconds(terms: Terms, sizes: Sequence[Number], rates: Rates) -> list[Number]:
    """Expected seconds of every kernel of a program whose distinct sizes have been evaluated, in its order."""
    padding: dict[tuple[int, int], Number] = {}

    def pad(index: int, tile: int) -> Number:
        key = (index, tile)
        if key not in padding:
            padding[key] = padded(sizes[index], tile)
        return padding[key]

    filling: dict[tuple[int, int, int], Number] = {}

    def waves(rows: int, columns: int, rest: int) -> Number:
        key = rows, columns, rest
        if key not in filling:
            tiles = ceil(sizes[rows] / rates.tile[0]) * ceil(sizes[columns] / rates.tile[2]) * sizes[rest]
            filling[key] = wave_factor(tiles, rates.cores, rates.waves)
        return filling[key]

    return [named(_kernel_seconds(w, sizes, rates, pad, waves), f"T({w.name}, {w.phase})", "s") for w in terms.works]


def _kernel_seconds(
    work: Work, sizes: Sequence[Number], rates: Rates, pad: Callable[[int, int], Number],
    waves: Callable[[int, int, int], Number],
) -> Number:  # fmt: skip
    bytes = total(sizes[i] for i in work.bytes)
    if work.matmul is not None:
        rows, contraction, columns, rest = work.matmul
        flops = (
            work.scale
            * sizes[rest]
            * pad(rows, rates.tile[0])
            * pad(contraction, rates.tile[1])
            * pad(columns, rates.tile[2])
        )
        if isinstance(rates.waves, Traced) or rates.waves:
            flops = flops * waves(rows, columns, rest)
        of = rates.matmul(work.weight)
        rate = of.expected * rates.experts if work.part == "experts" else of.expected
        return expected_op_seconds(flops, bytes, rate, rates.hbm_expected, of.overhead, rates.unhidden)
    if work.flops:
        flops = total(sizes[i] for i in work.flops)
        if work.uneven is not None:
            flops = flops * slowest_share(
                work.uneven.spread, work.uneven.most, sizes[work.uneven.tokens], sizes[work.uneven.chips]
            )
        overhead = rates.op_overhead + rates.attention_overhead
        return expected_op_seconds(flops, bytes, rates.attention_expected, rates.hbm_expected, overhead, rates.unhidden)
    if not work.vector:
        return bytes / rates.elementwise
    flops = total(sizes[i] for i in work.vector)
    return expected_op_seconds(
        flops, bytes, rates.vector_expected, rates.elementwise, rates.op_overhead, rates.unhidden
    )


def transfer_seconds(transfer: Transfer, sizes: Sequence[Number], links: Links, *, bound: bool = False) -> Number:
    """Seconds of a transfer: expected, or its bound by physics."""
    physics, achieved = links[transfer.axes]
    bytes = total(sizes[i] for i in transfer.bytes)
    if bound:
        return collective_seconds(transfer.kind, bytes, physics)
    return named(collective_seconds(transfer.kind, bytes, achieved), f"T({transfer.title}, {transfer.phase})", "s")


@formula("slowest over mean", "", "the largest of n normal variables (Blom, 1958), none beyond the most there can be")
def slowest_share(spread: Number, most: Number, tokens: Number, chips: Number) -> Number:
    """Work of the slowest of some chips over the mean, where chance shares it out: that of t tokens has a standard deviation of
    spread/sqrt(t) of its mean.
    """
    return minimum(most, 1 + spread * normal_maximum(chips) / tokens**0.5)


@formula("T_exposed", "s", note="what does not hide under the work that it may hide under")
def exposed_seconds(transfer: Number, room: Number) -> Number:
    """Seconds of a transfer left over when `room` seconds of work can hide it."""
    return maximum(0.0, transfer - room)


@dataclass(frozen=True, slots=True)
class Direction:
    """One microbatch through one program in one direction: work, what it takes with communication, what room is left."""

    work: Number
    seconds: Number
    critical: Number
    ring: Number  # exposed
    prefetch: Number  # exposed
    room: Number  # seconds under which no collective hides yet
    host: Number = 0.0  # exposed, of what crosses PCIe

    def beside_host(self, seconds: Number, overlap: Mapping[str, Number]) -> Direction:
        """The same with so many seconds of traffic to the host, which has links of its own and hides under all of it."""
        left = exposed_seconds(seconds, overlap["prefetch"] * self.seconds)
        # while a pass waits for its host, collectives may run
        return replace(self, seconds=self.seconds + left, room=self.room + left, host=left)


def direction(
    work: Number, attention: Number, critical: Number, ring: Number, prefetch: Number, overlap: Mapping[str, Number]
) -> Direction:
    """Lay transfers beside work: keys and values hide under attention, prefetched ones under what is left of the work.

    No second of work hides two transfers, so that no link can be busier than the step is long.
    """
    share = overlap["prefetch"]
    under = minimum(critical, overlap["critical"] * work)
    critical = named(exposed_seconds(critical, overlap["critical"] * work), "T_critical", "s")
    hidden = minimum(ring, share * attention)
    room = maximum(0.0, share * work - under - hidden)
    ring_left = exposed_seconds(ring, share * attention)
    prefetch_left = exposed_seconds(prefetch, room)
    return Direction(
        work=work,
        seconds=work + critical + ring_left + prefetch_left,
        critical=critical,
        ring=ring_left,
        prefetch=prefetch_left,
        room=maximum(0.0, room - prefetch),
    )
