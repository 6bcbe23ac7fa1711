"""Chips, networks and slices as plain data. Rates are dense peaks in FLOP/s, bandwidths one way in bytes/s."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from rooftop.shown import Shown


@dataclass(frozen=True, slots=True)
class Source:
    """Where a figure comes from, and when it was read or published."""

    text: str
    date: str = ""


@dataclass(frozen=True, slots=True)
class Memory:
    """An on-chip memory that software or the compiler fills (VMEM, SMEM + L2)."""

    name: str
    bytes: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Price:
    """USD per chip-hour, on demand unless `terms` says otherwise."""

    usd_per_hour: float
    region: str
    date: str
    terms: str
    source: str


@dataclass(frozen=True, slots=True)
class Chip(Shown):
    """One accelerator as the data sheet gives it."""

    name: str
    title: str
    family: str  # "tpu", "gpu" or "cpu"
    flops: Mapping[str, float]  # dense matmul peak by dtype: bf16, fp16, fp32, int8, fp8, fp4 ...
    vector_flops: float  # elementwise peak, f32
    hbm_bytes: float
    hbm_bandwidth: float
    fast_memory: Memory
    tile: tuple[int, int, int]  # (rows, contraction, columns) to which a matmul is padded
    cores: int
    clock_hz: float
    pcie_bandwidth: float  # host to chip, one way
    chips_per_host: int
    host_memory_bytes: float
    power_watts: float
    price: Price | None
    units: Mapping[str, float] = field(
        default_factory=dict
    )  # anything else worth showing: sms, tensor_cores, l2_bytes ...
    sources: Mapping[str, Source] = field(default_factory=dict)  # by field name; "" is the default
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Torus:
    """One network level wired as a torus: each chip has two links (one in each direction) along every dimension."""

    name: str
    dims: tuple[int, ...]
    wrap: tuple[bool, ...]
    link_bandwidth: float  # one link, one way
    hop_latency: float  # seconds

    @property
    def size(self) -> int:
        return math.prod(self.dims)


@dataclass(frozen=True, slots=True)
class Switch:
    """One network level where every member reaches every other through switches."""

    name: str
    size: int  # members (a member is one whole inner domain)
    bandwidth: float  # one way per chip, what a chip gets when all of its domain send out at once
    latency: float  # seconds from chip to chip
    reduces: bool = False  # the switches can add up (SHARP)


Level = Torus | Switch


@dataclass(frozen=True, slots=True)
class Slice(Shown):
    """Chips and the network between them, innermost level first."""

    name: str
    chip: Chip
    levels: tuple[Level, ...]

    @property
    def chips(self) -> int:
        return math.prod(level.size for level in self.levels)

    @property
    def hosts(self) -> int:
        return max(1, math.ceil(self.chips / self.chip.chips_per_host))
