"""The chip's own clock. XLA's profiler moves events of a TPU to the host's clock, which can stretch and shorten them by much.

Ops carry both times. Their own are those of the chip; what carries only the host's (programs, asynchronous transfers, steps) is moved
by what the ops beside it were moved.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable


class Clock:
    """From the host's clock to the chip's, by the ops that have both: (start, chip's start, chip's end), picoseconds.

    The first op stays where it is.
    """

    def __init__(self, ops: Iterable[tuple[int, int, int]]) -> None:
        rows = sorted(ops)
        self._shift = rows[0][0] - rows[0][1] if rows else 0
        self._starts = [row[0] for row in rows]
        self._rows = [(start + self._shift, end + self._shift) for _, start, end in rows]

    def place(self, kind: str, start: int, duration: int, own: tuple[int, int] | None) -> tuple[int, int]:
        """Where an event of a track of some kind is; `own` are start and duration on the chip's clock, of ops."""
        if own is not None:
            return own[0] + self._shift, own[1]
        if kind == "module":
            return self._program(start, duration)
        before = bisect.bisect_right(self._starts, start)
        return (start + self._rows[before - 1][0] - self._starts[before - 1] if before else start), duration

    def _program(self, start: int, duration: int) -> tuple[int, int]:
        """A program lasts as long as the ops that began in it."""
        first = bisect.bisect_left(self._starts, start)
        last = bisect.bisect_left(self._starts, start + duration)
        if first < last:
            begins = self._rows[first][0]
            return begins, max(end for _, end in self._rows[first:last]) - begins
        if first:
            return start + self._rows[first - 1][0] - self._starts[first - 1], duration
        return start, duration
