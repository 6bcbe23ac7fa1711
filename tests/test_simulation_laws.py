"""Laws of the simulator: many steps at once equal one by one; nothing is lost, leaked or served out of turn."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooftop.simulation import (
    QUEUES,
    ROUTES,
    Autoscale,
    Fleet,
    Line,
    LinearSteps,
    Replica,
    Request,
    Scheduling,
    Simulation,
    Speculation,
)

#: Times are whole multiples of this, so that sums of floats are exact, in whatever order they are made.
TICK = 2.0**-20


class Kinked:
    """Steps whose seconds are a line in the context up to a kink, and a steeper one from there on."""

    kink = 300

    def seconds(self, tokens, pairs, batch, context, width=1):
        return TICK * (3000 + 40 * tokens + 30 * batch + context + 2 * max(0, context - self.kink))

    def decode_line(self, batch, context, width=1):
        base = TICK * (3000 + 30 * batch)
        if context <= self.kink:
            return Line(base, TICK, self.kink)
        return Line(base - TICK * 2 * self.kink, 3 * TICK, math.inf)


STEPS = (
    LinearSteps(overhead=1000 * TICK, weights=8000 * TICK, per_token=50 * TICK, per_context=2 * TICK),
    LinearSteps(per_token=700 * TICK, per_pair=TICK, per_sequence=5 * TICK),
    Kinked(),
)


@st.composite
def settings_of(draw, jump=True):
    prefill_first = draw(st.booleans())
    width = draw(st.sampled_from([0, 0, 3]))
    return {
        "max_batch": (batch := draw(st.integers(1, 6))),
        "max_tokens": draw(st.integers(batch * (width + 1), 60)),
        "first": "prefill" if prefill_first else "decode",
        "chunked": draw(st.booleans()),
        "block": draw(st.sampled_from([1, 4, 16])),
        "admit": draw(st.sampled_from(["prompt", "whole"])),
        "watermark": draw(st.sampled_from([0.0, 0.1])),
        "preempt": draw(st.sampled_from(["recompute", "swap"])),
        "queue": draw(st.sampled_from(sorted(QUEUES))),
        "prefix_cache": draw(st.booleans()),
        "speculation": Speculation(width, 0.6, 100 * TICK) if width else None,
    }


@st.composite
def workloads(draw):
    count = draw(st.integers(1, 25))
    gap = draw(st.sampled_from([0, 5000, 100_000]))
    now, rows = 0, []
    for n in range(count):
        now += draw(st.integers(0, gap))
        tokens = draw(st.integers(1, 80))
        parts = ()
        if draw(st.booleans()):
            parts = tuple((draw(st.sampled_from("abc")), end) for end in sorted({draw(st.integers(1, tokens)), tokens}))
        rows.append(
            (
                n,
                now * TICK,
                tokens,
                draw(st.integers(1, 60)),
                parts,
                draw(st.integers(0, 2)),
                draw(st.sampled_from("xyz")),
            )
        )
    return rows


@st.composite
def fleets(draw):
    replicas = draw(st.integers(1, 3))
    scale = draw(st.sampled_from([None, Autoscale(replicas + 2, 2.0, 2.0**-4, 2.0**-5, 2.0**-3)]))
    return Fleet(replicas, draw(st.integers(0, 2)), draw(st.sampled_from(sorted(ROUTES))), scale)


def replica_of(steps, kv_tokens=160):
    return Replica(
        steps, kv_tokens, kv_bytes_per_token=1.0, host_tokens=100, host_bandwidth=2.0**16, transfer_bandwidth=2.0**18,
        transfer_latency=500 * TICK,
    )  # fmt: skip


def check(engine):
    """The blocks of an engine are those of its requests and of its prefix cache, and fit."""
    memory = engine._memory
    running = [*engine._decoding, *engine._prefilling]
    own = sum(r.own for r in running)
    tree = memory.tree
    if not engine.prefill_only:  # there, requests in transfer hold blocks
        grown = 0
        for r in engine._decoding:
            steps = engine._step - r.start_step
            held = r.target + ([0, *r.drawn][steps] if r.drawn else steps)
            if not r.reserved:
                grown += -(-held // memory.block) - -(-r.target // memory.block)
        assert memory.used == own + grown + (tree.held if tree else 0)
    assert 0 <= memory.used <= memory.capacity
    if tree is None:
        return
    held = idle = 0
    nodes = [tree.root]
    while nodes:
        node = nodes.pop()
        for name, child in node.children.items():
            assert (child.name, child.parent, child.start) == (name, node, node.stop)
            assert node.parent is None or node.refs >= child.refs
            held += child.stop - child.start
            idle += 0 if child.refs else child.stop - child.start
            nodes.append(child)
    assert (held, idle) == (tree.held, tree.idle)


def run(rows, steps, options, fleet, *, checked=False, seed=0):
    done = []
    simulation = Simulation(
        replica_of(steps), Scheduling(**options), fleet, lambda r: done.append(r) or None, seed=seed
    )

    def source():
        for row in rows:
            yield Request(*row)
            if checked:
                for member in simulation.members:
                    check(member.engine)

    simulation.run(source())
    return simulation, done


@settings(max_examples=150, deadline=None)
@given(workloads(), st.sampled_from(STEPS), settings_of(), fleets())
def test_many_steps_at_once_are_the_steps_one_by_one(rows, steps, options, fleet):
    def row(r):
        return (r.id, r.admitted, r.first, r.finish, r.cached, r.preemptions, r.replica)

    fast, done = run(rows, steps, {**options, "jump": True}, fleet)
    slow, each = run(rows, steps, {**options, "jump": False}, fleet)
    assert sorted(map(row, done)) == sorted(map(row, each))
    assert [m.engine.steps_played for m in fast.members] == [m.engine.steps_played for m in slow.members]
    assert [m.engine.blocks_used for m in fast.members] == [m.engine.blocks_used for m in slow.members]


@settings(max_examples=150, deadline=None)
@given(workloads(), st.sampled_from(STEPS), settings_of(), fleets())
def test_every_request_is_served_once_and_no_block_is_lost(rows, steps, options, fleet):
    simulation, done = run(rows, steps, options, fleet, checked=True)
    assert sorted(r.id for r in done) == [row[0] for row in rows]
    for request in done:
        assert request.arrival <= request.admitted < request.first <= request.finish
        assert request.generated == request.output
        assert (request.first == request.finish) == (request.output == 1)
        assert 0 <= request.cached < request.input
    for member in simulation.members:
        check(member.engine)
        assert member.engine.outstanding == 0
        assert member.engine.blocks_used == member.engine.blocks_cached
        assert member.engine.end == math.inf
        assert member.engine._host_free == 100
        assert member.engine._held == 0


@settings(max_examples=100, deadline=None)
@given(workloads(), st.sampled_from(STEPS), settings_of(), st.sampled_from(["fcfs", "priority", "shortest"]))
def test_nothing_overtakes_against_the_policy(rows, steps, options, queue):
    """Of two requests that both waited, the one that the policy prefers is admitted first."""
    _, done = run(rows, steps, {**options, "queue": queue}, Fleet())
    key = {
        "fcfs": lambda r: (r.arrival, r.id),
        "priority": lambda r: (r.priority, r.arrival, r.id),
        "shortest": lambda r: (r.input, r.arrival, r.id),
    }[queue]
    for a in done:
        for b in done:
            if key(a) < key(b) and a.arrival < b.admitted:
                assert a.admitted <= b.admitted


@settings(max_examples=50, deadline=None)
@given(workloads(), st.sampled_from(STEPS), settings_of())
def test_the_same_seed_gives_the_same_answer(rows, steps, options):
    fleet = Fleet(2, 0, "two-choices")
    answers = [[(r.id, r.finish) for r in run(rows, steps, options, fleet, seed=s)[1]] for s in (3, 3)]
    assert answers[0] == answers[1]


@settings(max_examples=50, deadline=None)
@given(workloads(), settings_of())
def test_whole_admission_never_preempts(rows, options):
    simulation, _ = run(rows, STEPS[0], {**options, "admit": "whole"}, Fleet())
    assert sum(m.engine.preemptions for m in simulation.members) == 0


def test_a_crowded_engine_does_preempt():
    """The property tests would say little if memory never ran out."""
    rows = [(n, 0.0, 20, 60) for n in range(10)]
    for preempt in ("recompute", "swap"):
        simulation, done = run(
            rows, STEPS[0], {"max_batch": 8, "max_tokens": 64, "block": 4, "preempt": preempt}, Fleet()
        )
        assert simulation.members[0].engine.preemptions > 0
        assert len(done) == 10


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.8, 1.0])
def test_speculation_yields_as_many_tokens_as_the_formula_says(acceptance):
    """(1 - a^(n+1)) / (1 - a) tokens a step: Leviathan et al., 2023, equation 1."""
    n, output = 4, 20_000
    expected = (1 - acceptance ** (n + 1)) / (1 - acceptance) if acceptance < 1 else n + 1
    done = []
    simulation = Simulation(
        Replica(STEPS[0], 10**6),
        Scheduling(speculation=Speculation(n, acceptance)),
        Fleet(),
        lambda r: done.append(r) or None,
    )
    simulation.run(iter([Request(0, 0.0, 10, output)]))
    assert (output - 1) / (simulation.members[0].engine.steps_played - 1) == pytest.approx(expected, rel=0.02)


def test_closed_forms_of_growth():
    """Seconds, and the steps within a time, are inverse to each other."""
    from rooftop.simulation._growth import Steady

    random = np.random.default_rng(0)
    growth = Steady(16)
    for _ in range(200):
        base, slope, batch = (
            random.uniform(1e-4, 1),
            random.choice([0.0, random.uniform(0, 1e-3)]),
            int(random.integers(1, 300)),
        )
        steps = int(random.integers(1, 5000))
        seconds = growth.seconds(base, slope, batch, 0, steps)
        assert seconds == pytest.approx(sum(base + slope * batch * n for n in range(steps)))
        assert growth.steps_within(base, slope, batch, 0, seconds, 10**6) == steps
        assert growth.steps_within(base, slope, batch, 0, seconds * (1 + 1e-9), 10**6) == steps + 1
        assert growth.steps_within(base, slope, batch, 0, 0.0, 10**6) == 1
