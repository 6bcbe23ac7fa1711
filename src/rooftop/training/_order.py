"""The order of passes on pipeline stages, for a drawing: what every stage does when, with equal stages and free hand-overs.

GPipe, 1F1B, interleaved 1F1B and the zero-bubble schedules have an order of their own on every stage (Huang et al., 2019; Narayanan et
al., 2021, section 2.2; Qi et al., 2023, section 2). DualPipe is played: a chip takes what is ready from either end, forward and
backward passes in turn (DeepSeek-V3 report, 2024, section 3.2.1).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from rooftop.training._choices import Choices


@dataclass(frozen=True, slots=True)
class Task:
    """One pass of one piece on one of the places that it goes through: forward, backward or weights."""

    kind: str
    piece: int
    place: int  # of stages times chunks, in the order of the forward pass


@dataclass(frozen=True, slots=True)
class Done:
    """A task with its time."""

    task: Task
    start: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a piece on a stage: the forward pass, the backward pass, and the part of it that makes gradients of weights."""

    forward: float
    backward: float
    weights: float


def pieces_of(chosen: Choices, stages: int, microbatches: int, most: int) -> int:
    """How many pieces the microbatches are drawn as: all, or as many as `most` allows and the schedule can have."""
    step = stages if chosen.chunks > 1 else 2 if chosen.schedule == "dualpipe" else 1
    return microbatches if microbatches <= most else max(step, most // step * step)


def played(chosen: Choices, stages: int, pieces: int, times: Times) -> tuple[tuple[Done, ...], ...]:
    """What every stage does, in its order."""
    if stages > 1 and chosen.schedule == "dualpipe":
        return _from_both_ends(stages, pieces, times)
    every = [list(_order(chosen, stages, pieces, stage)) for stage in range(stages)]
    split = times.weights if chosen.schedule in _LAG and stages > 1 else 0.0
    seconds = {"forward": times.forward, "backward": times.backward - split, "weights": times.weights}
    return _in_order(every, stages * chosen.chunks, {kind: s / chosen.chunks for kind, s in seconds.items()})


#: Zero-bubble schedules: by how many pieces a stage puts gradients of weights off, for each stage before it.
_LAG = {"zb-h1": 1, "zb-h2": 2}


def _order(chosen: Choices, stages: int, pieces: int, stage: int) -> Iterator[Task]:
    chunks, schedule = chosen.chunks, chosen.schedule
    there = list(_passes(stages, pieces, chunks, stage, range(chunks), "forward"))
    back = list(_passes(stages, pieces, chunks, stage, range(chunks - 1, -1, -1), "backward"))
    after = stages - 1 - stage
    warm = {"gpipe": len(there), "zb-h2": 2 * after + 1}.get(schedule, after + 1)
    warm = min(warm if chunks == 1 else 2 * after + (chunks - 1) * stages + 1, len(there))
    lag = _LAG[schedule] * stage if schedule in _LAG and stages > 1 else None
    yield from there[:warm]
    for n, task in enumerate(back):
        yield task
        if lag is not None and n >= lag:
            yield replace(back[n - lag], kind="weights")
        if warm + n < len(there):
            yield there[warm + n]
    if lag:
        yield from (replace(task, kind="weights") for task in back[-lag:])


def _passes(stages: int, pieces: int, chunks: int, stage: int, order: range, kind: str) -> Iterator[Task]:
    """Pieces go through one chunk of a stage in groups as large as there are stages, then through the next chunk."""
    group = stages if chunks > 1 else pieces
    for first in range(0, pieces, group):
        for chunk in order:
            for piece in range(first, min(first + group, pieces)):
                yield Task(kind, piece, chunk * stages + stage)


def _needs(task: Task, places: int) -> Task | None:
    """What must be done before a task."""
    if task.kind == "weights":
        return Task("backward", task.piece, task.place)
    if task.kind == "forward":
        return Task("forward", task.piece, task.place - 1) if task.place else None
    last = task.place == places - 1
    return Task("forward", task.piece, task.place) if last else Task("backward", task.piece, task.place + 1)


def _in_order(every: list[list[Task]], places: int, seconds: Mapping[str, float]) -> tuple[tuple[Done, ...], ...]:
    ends: dict[Task, float] = {}
    clocks, at = [0.0] * len(every), [0] * len(every)
    lanes: list[list[Done]] = [[] for _ in every]
    while any(i < len(order) for i, order in zip(at, every, strict=True)):
        for n, order in enumerate(every):
            while at[n] < len(order):
                task = order[at[n]]
                before = _needs(task, places)
                if before is not None and before not in ends:
                    break
                start = max(clocks[n], 0.0 if before is None else ends[before])
                clocks[n] = ends[task] = start + seconds[task.kind]
                lanes[n].append(Done(task, start, seconds[task.kind]))
                at[n] += 1
    return tuple(map(tuple, lanes))


def _from_both_ends(stages: int, pieces: int, times: Times) -> tuple[tuple[Done, ...], ...]:
    """DualPipe: every second piece comes from the other end. A chip takes passes forward and backward in turn where both are
    ready, and from either end has no more pieces in flight than 1F1B would have there.
    """
    seconds = {"forward": times.forward, "backward": times.backward}
    ends: dict[Task, float] = {}
    clocks = [0.0] * stages
    lanes: list[list[Done]] = [[] for _ in range(stages)]
    of = [[p for p in range(pieces) if p % 2 == d] for d in (0, 1)]
    place = [(n, stages - 1 - n) for n in range(stages)]
    done = [{(kind, d): 0 for kind in seconds for d in (0, 1)} for _ in range(stages)]

    def able(n: int, kind: str, d: int) -> Task | None:
        count = done[n]
        if count[kind, d] == len(of[d]):
            return None
        if kind == "forward" and count[kind, d] - count["backward", d] >= stages - place[n][d]:
            return None
        task = Task(kind, of[d][count[kind, d]], place[n][d])
        before = _needs(task, stages)
        return task if before is None or ends.get(before, math.inf) <= clocks[n] + 1e-9 * times.forward else None

    def start(n: int) -> bool:
        last = lanes[n][-1].task.kind if lanes[n] else "backward"
        kinds = sorted(seconds, key=lambda kind: kind == last)
        ready = [t for kind in kinds for d in (0, 1) if (t := able(n, kind, d)) is not None]
        if not ready:
            return False
        task = min(ready, key=lambda t: (kinds.index(t.kind), t.piece))
        lanes[n].append(Done(task, clocks[n], seconds[task.kind]))
        clocks[n] = ends[task] = clocks[n] + seconds[task.kind]
        done[n][task.kind, task.piece % 2] += 1
        return True

    turns = itertools.count()
    waiting = [(0.0, next(turns), n) for n in range(stages)]
    while any(len(lane) < 2 * pieces for lane in lanes):
        now, _, n = heapq.heappop(waiting)
        clocks[n] = max(clocks[n], now)
        again = clocks[n]
        if not start(n):  # until another chip is done with something
            again = min((clock for clock in clocks if clock > now), default=now)
        heapq.heappush(waiting, (max(again, clocks[n]), next(turns), n))
    return tuple(map(tuple, lanes))
