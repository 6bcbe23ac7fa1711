"""Who had the time. At each instant one event has it, so that no time is counted twice and none is lost."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

Segment = tuple[int, int, int]


def winners(events: Iterable[tuple[int, int, int, int]]) -> list[Segment]:
    """Segments (start, end, event) of events (start, end, event, class), in order of time and without overlap.

    Of the events that run at an instant, the one of the lowest class has it; of these, the one that started last, so a
    nested event takes its time from the one around it. The segments together are exactly the union of the events.
    """
    ordered = sorted(e for e in events if e[1] > e[0])
    result: list[Segment] = []
    active: list[tuple[int, int, int, int]] = []  # (class, -start, end, event)
    position, now = 0, 0
    while position < len(ordered) or active:
        while active and active[0][2] <= now:
            heapq.heappop(active)
        if not active:
            if position == len(ordered):
                break
            now = max(now, ordered[position][0])
        while position < len(ordered) and ordered[position][0] <= now:
            start, end, event, rank = ordered[position]
            heapq.heappush(active, (rank, -start, end, event))
            position += 1
        while active and active[0][2] <= now:
            heapq.heappop(active)
        if not active:
            continue
        _, _, end, event = active[0]
        until = min(end, ordered[position][0]) if position < len(ordered) else end
        if result and result[-1][2] == event and result[-1][1] == now:
            result[-1] = (result[-1][0], until, event)
        else:
            result.append((now, until, event))
        now = until
    return result


def union(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The union of intervals, in order, without overlap."""
    result: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((start, end))
    return result


def overlap(first: Sequence[tuple[int, int]], second: Sequence[tuple[int, int]]) -> int:
    """The time that two unions share."""
    total = i = j = 0
    while i < len(first) and j < len(second):
        total += max(0, min(first[i][1], second[j][1]) - max(first[i][0], second[j][0]))
        if first[i][1] <= second[j][1]:
            i += 1
        else:
            j += 1
    return total
