"""Simulate a workload on a fleet; several seeds; the highest rate that meets an SLO."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rooftop.errors import InputError, NoAnswer
from rooftop.shown import Shown
from rooftop.simulation._fleet import Fleet, Simulation
from rooftop.simulation._record import Record, Sink, Slo, Timeline
from rooftop.simulation._replica import Replica
from rooftop.simulation._request import Request
from rooftop.simulation._settings import Scheduling
from rooftop.simulation._workload import Workload


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated: replicas (and other ones for prefill, if they differ), their policies, the fleet, the SLO."""

    replica: Replica
    scheduling: Scheduling = field(default_factory=Scheduling)
    fleet: Fleet = field(default_factory=Fleet)
    slo: Slo = field(default_factory=Slo)
    prefill_replica: Replica | None = None


@dataclass(frozen=True)
class Outcome(Shown):
    """What came out of one simulation.

    usd: what the replicas cost while they were there, None where a price is not known. record: distributions of seconds and counts. timeline: integrals over time of all engines. span: seconds from the first
    arrival to the last token. replica_seconds, block_seconds: of all replicas and KV blocks together. wall_seconds: that simulating took.
    """

    setup: Setup
    workload: Workload
    seed: int
    record: Record
    timeline: Timeline
    span: float
    busy_seconds: float
    replica_seconds: float
    usd: float | None
    most_replicas: int
    block_seconds: float
    preemptions: int
    steps: int
    wall_seconds: float

    @property
    def requests_per_second(self) -> float:
        """Requests that were served, over the span."""
        return self.record.requests / self.span

    @property
    def tokens_per_second(self) -> float:
        """Tokens that were generated, over the span."""
        return self.record.output_tokens / self.span

    @property
    def goodput(self) -> float:
        """Requests a second that met the SLO; all do where there is none."""
        return self.record.good / self.span

    @property
    def attainment(self) -> float:
        """The part of the requests that met the SLO."""
        return self.record.good / self.record.requests

    @property
    def utilisation(self) -> float:
        """The part of the time of all replicas in which a step was being computed."""
        return self.busy_seconds / self.replica_seconds

    @property
    def backlog(self) -> float:
        """The part of all requests that waits when the last one comes; 0 where all come at once, as nothing can be made of it."""
        if self.record.last_arrival <= self.record.first_arrival:
            return 0.0
        waiting = self.timeline.series(self.record.last_finish)["waiting"]
        return (
            waiting[min(int(self.record.last_arrival / self.timeline.width), len(waiting) - 1)] / self.record.requests
        )

    @property
    def overloaded(self) -> bool:
        """Whether requests came faster than they were served: latencies then tell how long the workload is, not the engine."""
        return self.backlog > 0.1 and self.record.requests >= 100

    @property
    def kv_occupancy(self) -> float:
        """The mean part of the KV blocks that was taken, over the time of all replicas."""
        return self.timeline.total("blocks") / self.block_seconds


def simulate(setup: Setup, workload: Workload, *, seed: int = 0, sink: Sink | None = None) -> Outcome:
    """Serve a workload. The same seed gives the same answer.

    `sink` gets the row of each finished request. Raises NoAnswer for a request that can never be served.
    """
    started = time.perf_counter()
    record, timeline = Record(setup.slo, sink), Timeline()
    source = workload.requests(seed)

    def flush() -> None:
        record.flush()
        for member in simulation.members:
            timeline.add(member.engine.periods)
            member.engine.periods.clear()

    def finished(request: Request) -> Request | None:
        if record.finished(request):
            flush()
        return source.following(request)

    simulation = Simulation(
        setup.replica, setup.scheduling, setup.fleet, finished, seed=seed, prefill_replica=setup.prefill_replica
    )
    collecting = gc.isenabled()
    gc.disable()  # requests come and go without cycles; looking for some would take a tenth of the time
    try:
        simulation.run(iter(source))
    finally:
        if collecting:
            gc.enable()
    flush()
    end = record.last_finish
    spans = [(m.engine, (m.left if m.left == m.left else end) - m.since) for m in simulation.members]
    return Outcome(
        setup=setup,
        workload=workload,
        seed=seed,
        record=record,
        timeline=timeline,
        span=end - record.first_arrival,
        busy_seconds=math.fsum(m.engine.busy_seconds for m in simulation.members),
        replica_seconds=math.fsum(seconds for _, seconds in spans),
        usd=_usd([(engine.replica, seconds) for engine, seconds in spans]),
        most_replicas=simulation.most_members,
        block_seconds=math.fsum(seconds * engine.blocks for engine, seconds in spans),
        preemptions=sum(m.engine.preemptions for m in simulation.members),
        steps=sum(m.engine.steps_played for m in simulation.members),
        wall_seconds=time.perf_counter() - started,
    )


def _usd(spans: list[tuple[Replica, float]]) -> float | None:
    """What replicas cost over so many seconds each."""
    total = 0.0
    for replica, seconds in spans:
        if replica.usd_per_chip_hour is None:
            return None
        total += seconds / 3600 * replica.chips * replica.usd_per_chip_hour
    return total


#: 97.5% quantiles of Student's t for 1, 2, ... degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2; from memory).
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
      2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip


def confidence(values: Sequence[float]) -> tuple[float, float]:
    """The mean of independent values and the half-width of its 95% confidence interval."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.inf
    t = _T[len(values) - 2] if len(values) - 2 < len(_T) else 1.96
    return mean, t * statistics.stdev(values) / math.sqrt(len(values))


@dataclass(frozen=True)
class Rate(Shown):
    """The highest load that met the SLO, and what was tried: (requests a second that came, part that met the SLO)."""

    outcome: Outcome
    offered: float
    tried: tuple[tuple[float, float], ...]
    limited: bool  # whether a higher load was seen to miss it


def offered_rate(workload: Workload, seed: int) -> float:
    """Requests a second that come, on average."""
    count, last = 0, 0.0
    for request in workload.requests(seed):
        count, last = count + 1, request.arrival
    if count < 2 or last <= 0:
        raise InputError("the workload comes all at once, so it has no rate; give arrivals over time", field="workload")
    return (count - 1) / last


def find_rate(
    setup: Setup,
    workload: Workload,
    *,
    attain: float = 0.99,
    seed: int = 0,
    precision: float = 0.01,
    sink: Sink | None = None,
) -> Rate:
    """The highest rate at which a part `attain` of the requests meets the SLO, to within `precision`.

    The same requests come faster or slower, by doubling and then bisection. Raises NoAnswer where none is slow enough.
    """
    if not setup.slo:
        raise InputError("a rate is found under an SLO; give --ttft, --tpot or --e2e", field="slo")
    workload.scaled(1.0)
    base = offered_rate(workload, seed)
    tried: dict[float, Outcome] = {}

    def meets(factor: float) -> bool:
        tried[factor] = simulate(setup, workload.scaled(factor), seed=seed)
        return tried[factor].attainment >= attain

    low, high = 1.0, 1.0
    if meets(1.0):
        while meets(high := high * 2):
            low = high
            if high >= 2.0**20:
                break
    else:
        while not meets(low := low / 2):
            high = low
            if low < 2.0**-20:
                best = tried[low]
                raise NoAnswer(
                    f"no load meets the SLO: of requests that come at {base * low:.3g} a second, {best.attainment:.1%} do, and "
                    f"{attain:.1%} are wanted; allow more time or use a faster replica",
                    field="slo",
                )
    limited = not tried[high].attainment >= attain
    while limited and high / low > 1 + precision:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if meets(middle) else (low, middle)
    outcome = tried[low]
    if sink is not None:
        outcome = simulate(setup, workload.scaled(low), seed=seed, sink=sink)
    return Rate(outcome, base * low, tuple(sorted((base * f, o.attainment) for f, o in tried.items())), limited)


def seeds(setup: Setup, workload: Workload, count: int, *, seed: int = 0, sink: Sink | None = None) -> list[Outcome]:
    """Independent simulations, one for each seed from `seed` on; only the first one goes to the sink."""
    if (
        count > 1
        and not workload.random
        and setup.scheduling.speculation is None
        and setup.fleet.route != "two-choices"
    ):
        raise InputError(
            "a trace has nothing random, so that all seeds give one answer; give one seed or a synthetic workload",
            field="seeds",
        )
    return [simulate(setup, workload, seed=seed + n, sink=sink if n == 0 else None) for n in range(count)]
