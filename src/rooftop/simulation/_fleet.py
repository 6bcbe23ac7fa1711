"""A fleet of engines: arrivals are routed, finished prompts are transferred, replicas come and go."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from rooftop.errors import InputError, nearest
from rooftop.simulation._engine import Engine
from rooftop.simulation._replica import Replica
from rooftop.simulation._request import Request
from rooftop.simulation._settings import Scheduling


@dataclass(frozen=True, slots=True)
class Autoscale:
    """Replicas are added up to `most` so that each has about `target` requests, and drained when fewer would do.

    Every `interval` seconds the wanted number is ceil(requests / target), within the fleet's replicas and `most`. A new
    replica serves after `startup` seconds; fewer are wanted only when that has been so for `patience` seconds.
    """

    most: int
    target: float
    interval: float = 10.0
    startup: float = 60.0
    patience: float = 300.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """How many engines there are, and who gets which request.

    replicas: engines that decode (and, unless there are prefill_replicas, compute prompts). prefill_replicas: engines that
    compute prompts only and then transfer the KV cache. route: a key of ROUTES.
    """

    replicas: int = 1
    prefill_replicas: int = 0
    route: str = "round-robin"
    autoscale: Autoscale | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.replicas <= 10_000 or not 0 <= self.prefill_replicas <= 10_000:
            raise InputError("a fleet has 1 to 10,000 replicas, and at most as many for prefill", field="replicas")
        if self.route not in ROUTES:
            raise InputError(
                f"unknown route {self.route[:40]!r}{nearest(self.route, ROUTES)}; use {' or '.join(ROUTES)}",
                field="route",
            )
        scale = self.autoscale
        if scale is not None:
            if not self.replicas <= scale.most <= 10_000:
                raise InputError(
                    f"autoscaling up to {scale.most} is not from the {self.replicas} replicas to 10,000",
                    field="autoscale",
                )
            if not (scale.target > 0 and scale.interval > 0 and scale.startup >= 0 and scale.patience >= 0):
                raise InputError(
                    "autoscaling needs a target and an interval above 0, times of 0 or more", field="autoscale"
                )


class Router:
    """Chooses an engine for each request."""

    def __init__(self, route: str, seed: int) -> None:
        self._choose = ROUTES[route]
        self.turn = 0
        self.random = np.random.default_rng(seed)

    def __call__(self, engines: list[Engine], request: Request) -> Engine:
        """The engine for a request."""
        return engines[0] if len(engines) == 1 else self._choose(self, engines, request)


def _round_robin(router: Router, engines: list[Engine], request: Request) -> Engine:
    router.turn += 1
    return engines[(router.turn - 1) % len(engines)]


def _least_loaded(router: Router, engines: list[Engine], request: Request) -> Engine:
    return min(engines, key=lambda e: (e.outstanding, e.number))


def _two_choices(router: Router, engines: list[Engine], request: Request) -> Engine:
    """The less loaded of two engines taken at random (Mitzenmacher, 2001)."""
    first, second = router.random.choice(len(engines), 2, replace=False)
    return _least_loaded(router, [engines[first], engines[second]], request)


def _prefix_aware(router: Router, engines: list[Engine], request: Request) -> Engine:
    """The engine that has most of the prompt cached, unless it is much busier than the least loaded one."""
    least = _least_loaded(router, engines, request)
    best = max(engines, key=lambda e: (e.cached_tokens(request), -e.outstanding, -e.number))
    return least if best.outstanding > 2 * least.outstanding + 8 else best


Route = Callable[[Router, list[Engine], Request], Engine]

#: Policy -> which of the engines gets a request.
ROUTES: dict[str, Route] = {
    "round-robin": _round_robin,
    "least-loaded": _least_loaded,
    "two-choices": _two_choices,
    "prefix-aware": _prefix_aware,
}


class Member:
    """An engine of the fleet, when it came and when it left."""

    __slots__ = ("draining", "engine", "left", "ready", "since")

    def __init__(self, engine: Engine, since: float, ready: float) -> None:
        self.engine = engine
        self.since = since
        self.ready = ready
        self.draining = False
        self.left = math.nan


#: What happens at one time happens in this order: a request that comes when a step ends is in time for the next one.
_ARRIVES, _ARRIVED_KV, _SCALES, _RUN_ENDS = range(4)


class Simulation:
    """Drives the engines of a fleet through the requests of a source, in the order of time.

    `source` gives requests in the order of arrival; `finished(request)` is called for each that is done, and returns the
    request that its user sends next, if users wait for answers.
    """

    def __init__(
        self, replica: Replica, scheduling: Scheduling, fleet: Fleet, finished: Callable[[Request], Request | None], *,
        seed: int = 0, prefill_replica: Replica | None = None,
    ) -> None:  # fmt: skip
        self.fleet = fleet
        self.replica = replica
        self.now = 0.0
        self.members: list[Member] = []
        self.most_members = fleet.replicas + fleet.prefill_replicas  # at one time
        self._scheduling = scheduling
        self._finished = finished
        self._seed = seed
        self._events: list[tuple[float, int, int, int, Request | Engine | None]] = []  # time, kind, order, run, what
        self._order = 0
        self._router = Router(fleet.route, seed)
        self._decode_router = Router(fleet.route if fleet.route != "prefix-aware" else "least-loaded", seed)
        self._prefill = [
            self._new(prefill_replica or replica, prefill_only=True).engine for _ in range(fleet.prefill_replicas)
        ]
        self._serving: list[Engine] = []
        for _ in range(fleet.replicas):
            self._serving.append(self._new(replica).engine)
        self._first_serving = fleet.prefill_replicas
        self._sources: dict[Request, Engine] = {}  # where the blocks of a request in transfer are
        self._outstanding = 0
        self._calm_since = 0.0

    def run(self, source: Iterator[Request]) -> None:
        """Serve all requests."""
        events = self._events
        if self.fleet.autoscale is not None:
            self._push(self.fleet.autoscale.interval, _SCALES, None)
        coming = next(source, None)
        infinity = math.inf
        arrival = coming.arrival if coming is not None else infinity
        pop = heapq.heappop
        while True:
            if coming is not None and (not events or arrival <= events[0][0]):
                self.now = arrival
                self._arrive(coming)
                coming = next(source, None)
                arrival = coming.arrival if coming is not None else infinity
                continue
            if not events:
                return
            time, kind, _, run, what = pop(events)
            if kind == _RUN_ENDS:
                assert isinstance(what, Engine)
                if what.runs == run:
                    self.now = time
                    what.advance()
                    self._watch(what)
            elif kind == _ARRIVES:
                assert isinstance(what, Request)
                self.now = time
                self._arrive(what)
            elif kind == _ARRIVED_KV:
                assert isinstance(what, Request)
                self.now = time
                self._transferred(what)
            elif coming is not None or self._outstanding or events:
                self.now = time
                self._scale(time)

    def _push(self, time: float, kind: int, what: Request | Engine | None, run: int = 0) -> None:
        self._order += 1
        heapq.heappush(self._events, (time, kind, self._order, run, what))

    def _watch(self, engine: Engine) -> None:
        """Await the end of the run that an engine is in."""
        if engine.end < math.inf:
            self._order += 1
            heapq.heappush(self._events, (engine.end, _RUN_ENDS, self._order, engine.runs, engine))

    def _new(self, replica: Replica, *, prefill_only: bool = False, since: float = 0.0, ready: float = 0.0) -> Member:
        number = len(self.members)
        engine = Engine(
            replica, self._scheduling, self._left, number=number, seed=self._seed + number, prefill_only=prefill_only
        )
        self.members.append(Member(engine, since, ready))
        return self.members[-1]

    def _arrive(self, request: Request) -> None:
        self._outstanding += 1
        engine = self._router(self._prefill or self._serving, request)
        before = engine.runs
        engine.submit(request, self.now)
        if engine.runs != before:
            self._watch(engine)

    def _left(self, request: Request, engine: Engine) -> None:
        """A request has left an engine: for good, or for a decode replica."""
        if engine.prefill_only and request.generated < request.output:
            self._sources[request] = engine
            self._push(engine.now + engine.replica.transfer_seconds(request.input), _ARRIVED_KV, request)
            return
        self._outstanding -= 1
        following = self._finished(request)
        if following is not None:
            self._push(following.arrival, _ARRIVES, following)

    def _transferred(self, request: Request) -> None:
        source = self._sources.pop(request)
        before = source.runs
        source.release(request, self.now)
        if source.runs != before:
            self._watch(source)
        engine = self._decode_router(self._serving, request)
        before = engine.runs
        engine.submit(request, self.now)
        if engine.runs != before:
            self._watch(engine)

    # -- autoscaling

    def _scale(self, now: float) -> None:
        scale = self.fleet.autoscale
        assert scale is not None
        members = [m for m in self.members[self._first_serving :] if m.left != m.left]
        for member in members:
            if member.draining and not member.engine.outstanding:
                member.left = now
        staying = [m for m in members if not m.draining]
        wanted = min(scale.most, max(self.fleet.replicas, math.ceil(self._outstanding / scale.target)))
        if wanted >= len(staying):
            self._calm_since = now
        if wanted > len(staying):
            for member in members:  # a replica that drains is the quickest to have back
                if member.draining and member.left != member.left and wanted > len(staying):
                    member.draining = False
                    staying.append(member)
            for _ in range(wanted - len(staying)):
                staying.append(self._new(self.replica, since=now, ready=now + scale.startup))
        elif wanted < len(staying) and now - self._calm_since >= scale.patience:
            for member in sorted(staying, key=lambda m: (m.engine.outstanding, -m.engine.number))[
                : len(staying) - wanted
            ]:
                member.draining = True
            staying = [m for m in staying if not m.draining]
        self.most_members = max(self.most_members, sum(m.left != m.left for m in self.members))
        self._serving = [m.engine for m in staying if m.ready <= now] or [staying[0].engine]
        self._push(now + scale.interval, _SCALES, None)
