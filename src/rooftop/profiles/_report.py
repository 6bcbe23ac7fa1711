"""What a profile says: results, as plain data. Seconds are of one device, averaged over the devices of the profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rooftop.profiles._categories import MATRIX
from rooftop.profiles._roof import Roof
from rooftop.shown import Shown


@dataclass(frozen=True, slots=True)
class OpRow:
    """One op, all runs together.

    seconds: how long its runs took; wall: the time that it alone accounts for, so that all rows and the idle time add up to
    the window. flops, bytes: of all runs, None where the profile does not tell. bound: the least time for them on the roof;
    binds: compute, hbm or network. collective, group: of a collective.
    """

    name: str
    category: str
    library: str
    part: str
    layer: str
    count: float
    seconds: float
    wall: float
    dtype: str = ""
    shape: str = ""
    flops: float | None = None
    bytes: float | None = None
    math: float | None = None
    hbm: float | None = None
    network: float | None = None
    binds: str = ""
    source: str = ""
    collective: str = ""
    group: int | None = None
    recomputed: bool = False

    @property
    def bound(self) -> float | None:
        """The roofline: the slower of its resources."""
        known = [x for x in (self.math, self.hbm, self.network) if x is not None]
        return max(known) if known else None

    @property
    def fraction(self) -> float | None:
        """The share of the roofline that it reached; above 1 where operands came from caches, or shapes were padded."""
        bound = self.bound
        return bound / self.seconds if bound is not None and self.seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Group:
    """Ops under one heading. known: seconds of wall time of ops with a roofline; bound: that roofline, over the same ops."""

    name: str
    seconds: float
    wall: float
    count: float
    flops: float
    bytes: float
    known: float
    bound: float


@dataclass(frozen=True, slots=True)
class Loss:
    """A share of the window: where it went, and what to do about it."""

    name: str
    seconds: float
    share: float
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """Steps of the profile: where their times come from, and the times in seconds."""

    source: str
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """One device: window, time by class. They add up: compute + communication + transfers + idle = window."""

    rank: int | None
    device: int
    window: float
    compute: float
    communication: float
    transfers: float
    idle: float


@dataclass(frozen=True, slots=True)
class Straggling:
    """Ranks that meet in the same collectives. waited: seconds that each spent in them beyond the rank that came last."""

    collectives: int
    waited: Mapping[str, float]
    compute: Mapping[str, float]
    slowest: str


@dataclass(frozen=True, slots=True)
class Holder:
    """Bytes that were allocated in one part of the model, in so many buffers (0: not known)."""

    name: str
    bytes: float
    buffers: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What an allocator had handed out over time: the peak in bytes, when (seconds), what ran, and (seconds, most bytes) since.

    held: the bytes of the peak by what allocated them, largest first; they add up to it.
    """

    peak: float
    at: float
    during: str
    series: Sequence[tuple[float, float]]
    held: Sequence[Holder] = ()


@dataclass(frozen=True, slots=True)
class Report(Shown):
    """A profile against its roofline. losses add up to the window."""

    paths: tuple[str, ...]
    format: str
    devices: tuple[DeviceTime, ...]
    device_name: str
    roof: Roof | None
    window: float
    steps: Step | None
    ops: Sequence[OpRow]
    parts: Sequence[Group]
    layers: Sequence[Group]
    categories: Sequence[Group]
    losses: Sequence[Loss]
    communication: float
    exposed: float
    straggling: Straggling | None = None
    memory: Mapping[str, Memory] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    @property
    def mfu(self) -> float | None:
        """Time at the peak rate over the window, recomputation left out; None without a roof, or where no FLOPs are known."""
        useful = [op.math for op in self.ops if op.math is not None and not op.recomputed]
        return sum(useful) / self.window if useful and self.window > 0 else None

    @property
    def unknown_matmuls(self) -> float:
        """Seconds in matmuls, attention and convolutions whose FLOPs the profile does not tell; the MFU lacks these."""
        return sum(op.seconds for op in self.ops if op.category in MATRIX and op.flops is None)

    @property
    def flops(self) -> float:
        """FLOPs of all ops whose work is known, of one device."""
        return sum(op.flops or 0.0 for op in self.ops)

    @property
    def known(self) -> float:
        """The share of busy time in ops that have a roofline."""
        busy = sum(op.wall for op in self.ops)
        return sum(op.wall for op in self.ops if op.bound is not None) / busy if busy > 0 else 0.0
