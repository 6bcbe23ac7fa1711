"""A step over time: what every pipeline stage does when, what each network carries, what a chip holds.

Drawn from the parts of an estimated step, whose sum the events keep: stages are as slow as the slowest one, warm up with as many
forward passes as the schedule holds microbatches in flight, and alternate then as 1F1B does (Narayanan et al., 2021, section 2.2). Collectives that hide are not placed: only how long they are busy is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rooftop.training._evaluate import Estimate
from rooftop.training._schedule import in_flight

#: Pieces into which the microbatches of a stage are drawn at most.
_MOST_PIECES = 64
#: Parts that come once, at the end of a step, in this order.
_ENDS = (
    "hand-over between stages",
    "gradient reduction",
    "exchange of momenta",
    "orthogonalisation",
    "optimizer",
    "host memory: update",
    "updated weights",
    "step overhead",
)
_STATES = ("weights", "gradients", "optimizer")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a stage does or waits for. kind: forward, recompute, backward, exposed, wait or update."""

    name: str
    kind: str
    start: float  # seconds from the start of the step
    seconds: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one network axis carries in a step: seconds busy, and how many of them nothing hides."""

    name: str
    busy: float
    exposed: float


@dataclass(frozen=True, slots=True)
class Moment:
    """What a chip of the fullest stage holds from a moment on, in bytes by part."""

    start: float
    parts: dict[str, float]

    @property
    def bytes(self) -> float:
        """All parts."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class Timeline:
    """A step. stages: the events of every pipeline stage, without gaps. pieces: how many the microbatches are drawn as."""

    seconds: float
    stages: tuple[tuple[Event, ...], ...]
    traffic: tuple[Traffic, ...]
    memory: tuple[Moment, ...]
    pieces: int


@dataclass(frozen=True, slots=True)
class _Work:
    """Seconds of all microbatches on a stage: forward, recompute, backward, what is exposed by name; waiting; ends."""

    forward: float
    recompute: float
    backward: float
    exposed: tuple[tuple[str, float], ...]
    bubble: float
    ends: tuple[tuple[str, float], ...]


def timeline(e: Estimate) -> Timeline:
    """The expected step of an estimate over time."""
    stages, microbatches = e.plan.mesh.get("pipeline", 1), e.plan.microbatches
    pieces = min(microbatches, _MOST_PIECES)
    work = _work(e)
    flying = [float(in_flight(e.plan.choices, microbatches, stages, stages - 1 - s)) for s in range(stages)]
    lanes = tuple(tuple(_lane(work, s, flying[s], stages, microbatches, pieces)) for s in range(stages))
    traffic = tuple(
        Traffic(p.name, float(p.seconds), float(p.seconds - p.overlapped)) for p in e.step.parts if p.kind == "network"
    )
    return Timeline(float(e.step.expected), lanes, traffic, tuple(_memory(e, lanes[0])), pieces)


def _work(e: Estimate) -> _Work:
    forward = recompute = backward = bubble = 0.0
    exposed: list[tuple[str, float]] = []
    ends: dict[str, float] = {}
    for part in e.step.parts:
        seconds = float(part.seconds - part.overlapped)
        if part.name in _ENDS:
            ends[part.name] = seconds
        elif part.kind == "bubble":
            bubble += seconds
        elif part.kind in ("network", "host"):
            exposed.append((part.name, seconds))
        elif part.name == "recompute":
            recompute += seconds
        elif part.name.endswith("backward"):
            backward += seconds
        else:
            forward += seconds
    return _Work(
        forward, recompute, backward, tuple((n, s) for n, s in exposed if s > 0), bubble,
        tuple((n, ends[n]) for n in _ENDS if ends.get(n, 0.0) > 0),
    )  # fmt: skip


def _lane(work: _Work, stage: int, flying: float, stages: int, microbatches: int, pieces: int) -> Iterator[Event]:
    """Events of a stage: it waits for its first piece, warms up with forward passes, alternates, and drains."""
    clock = 0.0

    def event(name: str, kind: str, seconds: float) -> Iterator[Event]:
        nonlocal clock
        if seconds > 0:
            yield Event(name, kind, clock, seconds)
            clock += seconds

    back = work.recompute + work.backward + sum(s for _, s in work.exposed)
    forward_share = work.forward / (work.forward + back)
    warm = max(1, min(pieces, math.ceil(flying * pieces / microbatches)))
    # of (p - 1) waits, a stage has as many before its first piece as there are stages before it
    before = stage / (stages - 1) * work.bubble if stages > 1 else 0.0
    after = work.bubble - before

    def backward() -> Iterator[Event]:
        yield from event("recompute", "recompute", work.recompute / pieces)
        yield from event("backward", "backward", work.backward / pieces)
        for name, seconds in work.exposed:
            yield from event(name, "exposed", seconds / pieces)

    yield from event("wait for the first microbatch", "wait", before * forward_share)
    for _ in range(warm):
        yield from event("forward", "forward", work.forward / pieces)
    yield from event("wait for the first backward pass", "wait", after * (1 - forward_share))
    for _ in range(pieces - warm):
        yield from backward()
        yield from event("forward", "forward", work.forward / pieces)
    for n in range(warm):
        yield from backward()
        if n < warm - 1 or warm == 1:
            yield from event("wait for a backward pass", "wait", after * forward_share / max(1, warm - 1))
    yield from event("wait for the last stages", "wait", before * (1 - forward_share))
    for name, seconds in work.ends:
        yield from event(name, "update" if name in ("optimizer", "orthogonalisation") else "exposed", seconds)


def _memory(e: Estimate, lane: tuple[Event, ...]) -> Iterator[Moment]:
    """Bytes over the step: states throughout, saved activations by the pieces in flight, the rest while pieces run."""
    parts = {name: float(b) for name, b in e.step.memory.items()}
    counts, flying = [], 0
    for event in lane:
        flying += event.kind == "forward"
        counts.append(flying)
        flying -= event.kind == "backward"
    most = max(counts, default=1) or 1
    for event, count in zip(lane, counts, strict=True):
        running = event.kind in ("forward", "recompute", "backward", "exposed") and count > 0
        yield Moment(
            event.start,
            {
                name: size
                if name in _STATES
                else size * count / most
                if name == "saved activations"
                else size * running
                for name, size in parts.items()
            },
        )
