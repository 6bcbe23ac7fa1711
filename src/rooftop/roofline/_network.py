"""Mesh axes on a physical network: what a group of chips can move, and how fast.

A network is a list of dimensions, innermost first: every side of a torus is one, every switched level is one. A
`Placement` factors each dimension over the mesh axes. From it follows, for every group of mesh axes, the seconds per
byte and the latency of each kind of collective. Factors may be numbers (one plan) or NumPy arrays (many plans).

Conventions. V is the whole array of one group. Bounds use the exact share (n-1)/n that must cross the links of a
chip; the book (section 3) drops it on wrapped rings, since a ring that moves whole shards in n/2 steps takes V/W:
`whole_shards=True` gives that time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rooftop.formula import Number, floor, maximum, minimum, where
from rooftop.hardware._types import Level, Torus
from rooftop.roofline._calibration import Calibration


@dataclass(frozen=True, slots=True)
class Dimension:
    """One side of a torus, or one switched level."""

    level: int
    network: str
    size: int
    torus: bool
    wrap: bool
    bandwidth: float  # torus: one link one way; switch: one chip one way
    latency: float  # torus: per hop; switch: chip to chip
    reduces: bool = False


def dimensions(levels: Sequence[Level]) -> tuple[Dimension, ...]:
    """The dimensions of a network, innermost first."""
    result: list[Dimension] = []
    for index, level in enumerate(levels):
        if isinstance(level, Torus):
            for size, wrap in zip(level.dims, level.wrap, strict=True):
                result.append(Dimension(index, level.name, size, True, wrap, level.link_bandwidth, level.hop_latency))
        else:
            result.append(
                Dimension(index, level.name, level.size, False, False, level.bandwidth, level.latency, level.reduces)
            )
    return tuple(result)


@dataclass(frozen=True, slots=True)
class Placement:
    """For each dimension of the network, how many ways each mesh axis splits it, and how much of it is used.

    `order` lists the mesh axes that share a dimension, innermost (nearest neighbours) first; `factors[d][axis]` defaults
    to 1.
    """

    dimensions: tuple[Dimension, ...]
    factors: tuple[Mapping[str, Number], ...]
    order: tuple[str, ...]

    def size(self, axes: Sequence[str]) -> Number:
        """Ways of a group of mesh axes together."""
        result: Number = 1
        for factors in self.factors:
            for axis in axes:
                result = result * factors.get(axis, 1)
        return result


@dataclass(frozen=True, slots=True)
class Group:
    """What one group of chips (all that differ only in some mesh axes) can do.

    `*_rate` is seconds per byte: of the whole array V for gather, reduce, all_reduce, all_to_all and dispatch; of one block for
    permute. `*_latency` is the time of an empty message.
    """

    size: Number
    gather_rate: Number
    all_reduce_rate: Number
    all_to_all_rate: Number
    dispatch_rate: Number
    permute_rate: Number
    gather_latency: Number
    all_reduce_latency: Number
    permute_latency: Number
    hops: Number
    unhidden: Number = 0.0  # part of the smaller of bandwidth and latency regimes that comes on top


def group(
    placement: Placement,
    axes: Sequence[str],
    calibration: Calibration | None = None,
    *,
    whole_shards: bool = False,
    one_way: bool = False,
    copies: int = 1,
) -> Group:
    """The abilities of the group over `axes`: physics alone, or as a calibration says that they are achieved.

    Torus (book, section 3): a group with n chips along a wrapped side has both directions of its ring, 2 links, along
    an unwrapped one the end chip has 1 link; several sides add up. A group whose chips stand `stride` apart shares
    its links with `stride` other groups; one_way: rings send in one direction only. Switches (book, section 12): each chip sends at its own bandwidth, and a
    group that owns k chips of an inner domain has k of them: V·(m-1)/m/(k·W). Levels overlap: the slowest counts.

    A dispatch is an all-to-all of tokens of which V holds `copies` each, for as many chips at random. It is the faster of two ways:
    every copy straight to its chip, or one to each domain that has a chip for it, where it is passed on (DeepSeek-V3 report, 2024,
    section 3.2.2).
    """
    every = set(axes)
    chips: Number = 1  # of the group, in the levels passed so far
    whole = placement.size(axes)
    gather: Number = 0.0
    reduce_: Number = 0.0
    all_to_all: Number = 0.0
    passed_on: Number = 0.0
    permute: Number = 0.0
    gather_latency: Number = 0.0
    sheet_latency: Number = 0.0
    permute_latency: Number = 0.0
    hops: Number = 0
    levels = sorted({d.level for d in placement.dimensions})
    for level in levels:
        bandwidth: Number = 0.0
        ways: Number = 1
        share: Number = 0.0
        reduces = False
        level_hops: Number = 0
        busiest: Number = 0.0  # torus: loads of its links in an all-to-all among all chips of the level
        network = ""
        latency = 0.0
        for dimension, factors in zip(placement.dimensions, placement.factors, strict=True):
            if dimension.level != level:
                continue
            network, latency, reduces = dimension.network, dimension.latency, dimension.reduces
            n, stride = _piece(factors, placement.order, every)
            link = dimension.bandwidth * (calibration.network_efficiency(network) if calibration else 1.0)
            active = n > 1
            ways = ways * n
            if dimension.torus:
                ring = (stride * n == dimension.size) if dimension.wrap else False
                both = 1.0 if one_way else where(ring, 2.0, 1.0)
                bandwidth = bandwidth + where(active, link * both / stride, 0.0)
                quarter = floor(n * n / 4)
                load = stride * quarter / (n * link) / both
                if one_way:  # n - 1 hops to the farthest, (n - 1)/2 on average
                    load = where(ring, stride * (n - 1) / 2 / link, load)
                busiest = maximum(busiest, load)
                permute = maximum(permute, where(active, stride / link, 0.0))
                steps = n - 1 if one_way else where(ring, floor(n / 2), n - 1)
                level_hops = level_hops + steps * stride
                share = where(active & (both > 1), 1.0, share)
            else:
                bandwidth = link * chips
                all_to_all = maximum(all_to_all, (chips * n - chips) / (whole * whole * link))
                met = (1 - (1 - chips / whole) ** copies) / (copies * chips)
                passed_on = maximum(passed_on, met * (n - 1) / n / link)
                permute = maximum(permute, where(active, 1.0 / link, 0.0))
                level_hops = where(active, 1, 0)
        all_to_all = maximum(all_to_all, busiest * ways / (whole * whole))
        passed_on = maximum(passed_on, busiest / whole)
        active = ways > 1
        fraction = (ways - 1) / ways
        if whole_shards:
            # a wrapped ring moves whole shards in n/2 steps, one each way: n/2·2/n = 1 for even n
            fraction = where((share > 0) & active, 2 * floor(ways / 2) / ways, fraction)
        rate = where(active, fraction / maximum(bandwidth, 1e-30), 0.0)
        gather = maximum(gather, rate)
        reduce_ = maximum(
            reduce_,
            _added_up(rate, where(active, 1.0 / maximum(bandwidth, 1e-30), 0.0), calibration) if reduces else 2 * rate,
        )
        extra = calibration.network_latency(network) if calibration else 0.0
        hop = level_hops * (latency + extra)
        sheet_latency = sheet_latency + level_hops * latency
        hops = hops + level_hops
        gather_latency = gather_latency + hop
        permute_latency = maximum(permute_latency, where(active, latency + extra, 0.0))
        chips = chips * ways
    kept = calibration.all_to_all if calibration else 1.0
    return Group(
        size=whole,
        gather_rate=gather,
        all_reduce_rate=reduce_,
        all_to_all_rate=all_to_all / kept,
        dispatch_rate=(all_to_all if copies == 1 else minimum(all_to_all, passed_on)) / kept,
        permute_rate=permute,
        gather_latency=gather_latency,
        all_reduce_latency=2 * gather_latency
        if calibration is None
        else maximum(calibration.reduction_latency * gather_latency, 2 * sheet_latency),
        permute_latency=permute_latency,
        hops=hops,
        unhidden=calibration.messages if calibration else 0.0,
    )


def _added_up(rate: Number, once: Number, calibration: Calibration | None) -> Number:
    """Seconds per byte of an all-reduce whose switches add: the array goes up and down once; a calibration tells how much of
    that gain over two passes is achieved.
    """
    return minimum(once, 2 * rate) if calibration is None else maximum(once, 2 * rate / calibration.reduction_gain)


def _piece(factors: Mapping[str, Number], order: Sequence[str], axes: set[str]) -> tuple[Number, Number]:
    """(ways of the group along a dimension, distance between its chips)."""
    ways: Number = 1
    stride: Number = 1
    for axis in order:
        factor = factors.get(axis, 1)
        if axis in axes:
            ways = ways * factor
        else:
            stride = where(ways > 1, stride, stride * factor)
    return ways, stride
