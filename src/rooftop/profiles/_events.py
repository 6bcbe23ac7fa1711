"""One model of a profile, whatever wrote it: tracks, ops, and events in columns. Times are whole picoseconds.

Picoseconds fit 64 bits for a hundred days and are what XLA records; whole numbers make sums of times exact.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Kinds of tracks. "device": ops that occupy the device one after the other; "async": transfers beside them; "module": whole
#: programs on the device; "step": steps as the profiler has them; "span": annotations on the device; "host": host threads.
KINDS = ("device", "async", "module", "step", "span", "host")

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Track:
    """A line of the profile: a stream of a device, or a thread of the host."""

    kind: str
    process: str
    thread: str
    device: int | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """What is known of an op beside when it ran; equal for all its runs. None and "" mean that the profile does not say.

    category: as the profiler has it (hlo_category, or Kineto's cat). flops, bytes: of one run on one device. scope: where in
    the model, from the outside in, divided by "/". inputs: recorded (shape, dtype) of the operands of the framework's op
    `caller` that launched a kernel. group: members of a collective. text: the HLO, where there is one. values: of a convolution,
    its recorded operands that are no arrays, as JSON.
    """

    name: str
    category: str = ""
    flops: float | None = None
    bytes: float | None = None
    scope: str = ""
    source: str = ""
    caller: str = ""
    inputs: tuple[tuple[tuple[int, ...], str], ...] = ()
    group: int | None = None
    text: str = ""
    recomputed: bool = False
    values: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """What a profile says of a device. Rates in FLOP/s and bytes/s."""

    name: str = ""
    flops: float | None = None
    bandwidth: float | None = None
    memory_bytes: float | None = None


class Allocation(NamedTuple):
    """An allocator after it gave or took memory. change: bytes of the buffer, negative where it was freed. by: who, if known."""

    time: int
    used: int
    address: int
    change: int
    by: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """A profile of one process. Event i ran op `ops[op[i]]` on `tracks[track[i]]` from start[i], for duration[i] (ps).

    launched: when the host began to launch a device event, -1 where that is not known. memory: by allocator.
    """

    path: str
    format: str
    tracks: Sequence[Track]
    ops: Sequence[Op]
    track: Ints
    op: Ints
    start: Ints
    duration: Ints
    launched: Ints
    devices: Mapping[int, Device] = field(default_factory=dict)
    rank: int | None = None
    world: int | None = None
    memory: Mapping[str, Sequence[Allocation]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def events(self, *kinds: str, device: int | None = None) -> Ints:
        """Indices of the events on tracks of these kinds (and of one device), by start; longer ones first at the same start."""
        wanted = [i for i, t in enumerate(self.tracks) if t.kind in kinds and (device is None or t.device == device)]
        index = np.flatnonzero(np.isin(self.track, wanted))
        return index[np.lexsort((-self.duration[index], self.start[index]))]


class Builder:
    """Collects a trace, each track and op once."""

    def __init__(self) -> None:
        self.tracks: dict[Track, int] = {}
        self.ops: dict[Op, int] = {}
        self._track, self._op = array("q"), array("q")
        self._start, self._duration, self._launched = array("q"), array("q"), array("q")

    def track(self, track: Track) -> int:
        """The number of a track."""
        return self.tracks.setdefault(track, len(self.tracks))

    def op(self, op: Op) -> int:
        """The number of an op."""
        return self.ops.setdefault(op, len(self.ops))

    def add(self, track: int, op: int, start: int, duration: int, launched: int = -1) -> None:
        """One event, in picoseconds. A negative duration is that of a clock that jumped, and becomes 0."""
        self._track.append(track)
        self._op.append(op)
        self._start.append(start)
        self._duration.append(max(0, duration))
        self._launched.append(launched)

    def extend(self, track: list[int], op: list[int], start: list[int], duration: list[int]) -> None:
        """Many events at once."""
        self._track.extend(track)
        self._op.extend(op)
        self._start.extend(start)
        self._duration.extend(duration if min(duration, default=0) >= 0 else [max(0, d) for d in duration])
        self._launched.extend([-1] * len(track))

    def relabel(self, event: int, op: int, launched: int) -> None:
        """Tell the op of an event that was added before it was known, and when it was launched."""
        self._op[event] = op
        self._launched[event] = launched

    def __len__(self) -> int:
        return len(self._start)

    def build(self, path: str, format: str, **rest: Any) -> Trace:
        """The trace, its first event at 0."""
        columns = [
            np.frombuffer(c, dtype=np.int64).copy() if c else np.empty(0, np.int64)
            for c in (self._track, self._op, self._start, self._duration, self._launched)
        ]
        track, op, start, duration, launched = columns
        first = int(start.min()) if len(start) else 0
        launched = np.where(launched >= 0, launched - first, -1)
        memory = {
            allocator: [a._replace(time=a.time - first) for a in samples]
            for allocator, samples in rest.pop("memory", {}).items()
        }
        return Trace(
            path, format, tuple(self.tracks), tuple(self.ops), track, op, start - first, duration, launched,
            memory=memory, **rest,
        )  # fmt: skip


def kind_of(process: str, thread: str) -> str:
    """The kind of a line of XLA's profiler, from the names of its plane and of the line."""
    if not process.startswith("/device:"):
        return "host"
    low = thread.lower()
    if low == "xla modules":
        return "module"
    if low == "steps":
        return "step"
    if low == "async xla ops":
        return "async"
    if low.startswith("xla ops") or low.startswith("stream") or low == "sparsecore ops":
        return "device"
    return "span"


def device_of(process: str) -> int | None:
    """The number of a device plane: 3 for `/device:TPU:3 ...`."""
    if not process.startswith("/device:"):
        return None
    digits = process.split(" ")[0].rpartition(":")[2]
    return int(digits) if digits.isdigit() and len(digits) < 10 else 0
