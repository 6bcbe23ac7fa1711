"""A step over time: what every pipeline stage does when, what each network carries, what a chip holds.

Drawn from the parts of an estimated step, whose sum the events keep: stages are as slow as the slowest one, and take passes in the
order of their schedule (`_order`); what they wait for in it is stretched or shrunk to the bubble of the estimate. Collectives that hide
are not placed: only how long they are busy is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rooftop.training._evaluate import Estimate
from rooftop.training._order import Done, Times, pieces_of, played
from rooftop.training._schedule import FILLED as DELAYED

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
    """Something that a stage does or waits for. kind: forward, recompute, backward, weights (their gradients, where the schedule
    puts them off), exposed, wait or update.
    """

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
    weights: float  # of the backward pass
    exposed: tuple[tuple[str, float], ...]
    bubble: float
    ends: tuple[tuple[str, float], ...]


def timeline(e: Estimate) -> Timeline:
    """The expected step of an estimate over time."""
    stages, microbatches = e.plan.mesh.get("pipeline", 1), e.plan.microbatches
    chosen = e.plan.choices
    pieces = pieces_of(chosen, stages, microbatches, _MOST_PIECES)
    work = _work(e)
    exposed = work.recompute + sum(s for _, s in work.exposed)
    times = Times(work.forward / pieces, (work.backward + exposed) / pieces, work.weights / pieces)
    orders = played(chosen, stages, pieces, times)
    span = max(order[-1].start + order[-1].seconds for order in orders)
    lanes = tuple(tuple(_lane(work, order, pieces * chosen.chunks, span)) for order in orders)
    traffic = tuple(
        Traffic(p.name, float(p.seconds), float(p.seconds - p.overlapped)) for p in e.step.parts if p.kind == "network"
    )
    return Timeline(float(e.step.expected), lanes, traffic, tuple(_memory(e, lanes[0])), pieces)  # the first holds most


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
    weights = min(float(e.step.weight_gradients), backward) if e.plan.choices.schedule in DELAYED else 0.0
    return _Work(
        forward, recompute, backward, weights, tuple((n, s) for n, s in exposed if s > 0), bubble,
        tuple((n, ends[n]) for n in _ENDS if ends.get(n, 0.0) > 0),
    )  # fmt: skip


def _lane(work: _Work, order: Sequence[Done], passes: int, span: float) -> Iterator[Event]:
    """Events of a stage: what it does in its order, with its waits, and the end of the step. span: seconds in which all stages are
    through with their orders.
    """
    clock, waited = 0.0, 0.0
    waits = [
        done.start - before for done, before in zip(order, [0.0, *(d.start + d.seconds for d in order)], strict=False)
    ]
    least = 1e-9 * (work.forward + work.backward) / passes
    waits = [wait if wait > least else 0.0 for wait in waits]
    idle = span - sum(done.seconds for done in order)
    scale = work.bubble / idle if idle > least else 0.0

    def event(name: str, kind: str, seconds: float) -> Iterator[Event]:
        nonlocal clock
        if seconds > 0:
            yield Event(name, kind, clock, seconds)
            clock += seconds

    for n, (done, wait) in enumerate(zip(order, waits, strict=True)):
        what = "the first microbatch" if n == 0 else f"a {done.task.kind} pass"
        yield from event(f"wait for {what}", "wait", wait * scale)
        waited += wait * scale
        if done.task.kind == "forward":
            yield from event("forward", "forward", work.forward / passes)
        elif done.task.kind == "weights":
            yield from event("gradients of weights", "weights", work.weights / passes)
        else:
            yield from event("recompute", "recompute", work.recompute / passes)
            yield from event("backward", "backward", (work.backward - work.weights) / passes)
            for name, seconds in work.exposed:
                yield from event(name, "exposed", seconds / passes)
    yield from event("wait for the last stages", "wait", max(0.0, work.bubble - waited))
    for name, seconds in work.ends:
        yield from event(name, "update" if name in ("optimizer", "orthogonalisation") else "exposed", seconds)


def _memory(e: Estimate, lane: tuple[Event, ...]) -> Iterator[Moment]:
    """Bytes over the step: states throughout, saved activations by the pieces in flight, the rest while pieces run."""
    parts = {name: float(b) for name, b in e.step.memory.items()}
    counts, flying = [], 0
    ends = "weights" if any(event.kind == "weights" for event in lane) else "backward"
    for event in lane:
        flying += event.kind == "forward"
        counts.append(flying)
        flying -= event.kind == ends
    most = max(counts, default=1) or 1
    for event, count in zip(lane, counts, strict=True):
        running = event.kind in ("forward", "recompute", "backward", "weights", "exposed") and count > 0
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
