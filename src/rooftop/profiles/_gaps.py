"""Why a device was idle: the host was late, waited, fed no input; or nothing tells."""

from __future__ import annotations

import bisect
import re
from collections import defaultdict

import numpy as np

from rooftop.profiles._events import Ints, Trace
from rooftop.profiles._intervals import Segment, overlap, union

#: A queued kernel follows the last one within microseconds.
_LONG = 100_000_000
_INPUT = re.compile(r"dataloader|iteratorgetnext|data_?iter|infeedenqueue|next_batch|load_batch", re.IGNORECASE)
_WAITS = re.compile(
    r"synchronize|aten::item|_local_scalar_dense|streamwaitevent|block_until_ready|await", re.IGNORECASE
)


def gaps_of(trace: Trace, device: int, segments: list[Segment], first: int, last: int) -> dict[str, int]:
    """Idle picoseconds of a device by reason; they add up to the window less the segments."""
    reasons: dict[str, int] = defaultdict(int)
    gaps = []
    now = first
    for start, end, event in segments:
        if start > now:
            gaps.append((now, start, event))
        now = max(now, end)
    if last > now:
        gaps.append((now, last, -1))
    modules = trace.events("module", device=device)
    programs = union(zip(trace.start[modules].tolist(), (trace.start + trace.duration)[modules].tolist(), strict=True))
    host = trace.events("host")
    names = [op.name for op in trace.ops]
    inputs = _times(trace, host, [bool(_INPUT.search(n)) for n in names])
    waits = _times(trace, host, [bool(_WAITS.search(n)) for n in names])
    for start, end, event in gaps:
        launched = int(trace.launched[event]) if event >= 0 else -1
        if programs:
            inside = _within(programs, start, end)
            reasons["idle: within programs"] += inside
            reasons["idle: between programs"] += end - start - inside
        elif launched > start:
            late = min(launched, end)
            loading = _within(inputs, start, late)
            waiting = min(_within(waits, start, late), late - start - loading)
            reasons["idle: input"] += loading
            reasons["idle: the host waited for the device"] += waiting
            reasons["idle: the host launched too late"] += late - start - loading - waiting
            reasons[_between(end - late)] += end - late
        else:
            reasons[_between(end - start)] += end - start
    return {name: time for name, time in reasons.items() if time}


def _between(pause: int) -> str:
    """What to call a time before a kernel that the host had launched already, or of whose launch nothing is known."""
    return "idle: pauses that the profile does not explain" if pause > _LONG else "idle: gaps between kernels"


def _times(trace: Trace, host: Ints, wanted: list[bool]) -> list[tuple[int, int]]:
    chosen = host[np.asarray(wanted, dtype=bool)[trace.op[host]]] if len(host) else host
    return union(zip(trace.start[chosen].tolist(), (trace.start + trace.duration)[chosen].tolist(), strict=True))


def _within(times: list[tuple[int, int]], start: int, end: int) -> int:
    """The time of a union between two instants; bisection, since there are many gaps."""
    left = max(0, bisect.bisect_right(times, (start, 1 << 62)) - 1)
    right = bisect.bisect_left(times, (end, 0))
    return overlap(times[left:right], [(start, end)])
