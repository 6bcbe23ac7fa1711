"""The simulator against queueing theory, where its engine is a server that theory knows."""

import math

import numpy as np
import pytest

from rooftop.simulation import Fleet, LinearSteps, Replica, Scheduling, Setup, confidence, simulate, workload

#: One request at a time, one token each: the service time is that of its prompt.
SINGLE = Scheduling(max_batch=1, max_tokens=100_000, block=1)
SEEDS = range(8)


def interval(setup, text, of):
    """The mean over seeds, and twice the half-width of its 95% confidence interval."""
    mean, half = confidence([of(simulate(setup, workload(text), seed=s)) for s in SEEDS])
    return mean, 2 * half


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_deterministic_service_waits_as_pollaczek_and_khinchine_say(load):
    """M/D/1: mean wait = load * s / (2 (1 - load))."""
    setup = Setup(Replica(LinearSteps(per_token=1e-3), 10**6), SINGLE)
    wait, within = interval(
        setup, f"poisson:rate={load},requests=8000,input=1000,output=1", lambda o: o.record.queue.mean
    )
    assert wait == pytest.approx(load / (2 * (1 - load)), abs=within)
    assert within < 0.2 * wait


def test_general_service_waits_as_pollaczek_and_khinchine_say():
    """M/G/1: mean wait = rate * E[s^2] / (2 (1 - load)), here with uniform service."""
    setup = Setup(Replica(LinearSteps(per_token=1e-3), 10**6), SINGLE)
    wait, within = interval(
        setup, "poisson:rate=0.6,requests=8000,input=200..1800,output=1", lambda o: o.record.queue.mean
    )
    lengths = np.arange(200, 1801) * 1e-3
    second = (lengths**2).mean()
    assert wait == pytest.approx(0.6 * second / (2 * (1 - 0.6 * lengths.mean())), abs=within)
    assert within < 0.2 * wait


def test_decoding_counts_as_service_too():
    """M/D/1 whose service is a prompt and 9 steps of decoding, though many of them are one event."""
    steps = LinearSteps(overhead=0.05, per_token=5e-4)
    service = (0.05 + 100 * 5e-4) + 9 * (0.05 + 5e-4)
    setup = Setup(Replica(steps, 10**6), SINGLE)
    load = 0.6
    wait, within = interval(
        setup, f"poisson:rate={load / service},requests=8000,input=100,output=10", lambda o: o.record.queue.mean
    )
    assert wait == pytest.approx(load * service / (2 * (1 - load)), abs=within)


def test_replicas_in_turn_get_erlang_arrivals():
    """Round robin over two engines: each sees every second arrival, E_2/D/1, which waits less than M/D/1 at its load."""
    setup = Setup(Replica(LinearSteps(per_token=1e-3), 10**6), SINGLE, Fleet(2))
    text = "poisson:rate=1.4,requests=8000,input=1000,output=1"
    wait, within = interval(setup, text, lambda o: o.record.queue.mean)
    single = 0.7 / (2 * 0.3)
    # Kraemer and Langenbach-Belz (1976) for a squared coefficient of variation of 1/2
    factor = math.exp(-2 * 0.3 * 0.5**2 / (3 * 0.7 * 0.5))
    assert wait == pytest.approx(single * 0.5 * factor, abs=within + 0.03 * single)


def test_the_least_loaded_replica_is_better_than_the_next_where_service_varies():
    setup = Setup(Replica(LinearSteps(per_token=1e-3), 10**6), SINGLE, Fleet(2))
    text = "poisson:rate=1.4,requests=8000,input=1000~exp,output=1"
    wait, within = interval(setup, text, lambda o: o.record.queue.mean)
    spread = Setup(Replica(LinearSteps(per_token=1e-3), 10**6), SINGLE, Fleet(2, 0, "least-loaded"))
    assert interval(spread, text, lambda o: o.record.queue.mean)[0] < wait - within


def test_batches_saturate_where_arithmetic_says():
    """With more to do than can be done, an engine yields batch / step time tokens a second (batch-service limit)."""
    steps = LinearSteps(overhead=0.01, per_sequence=1e-4, per_context=1e-8)
    setup = Setup(Replica(steps, 10**6), Scheduling(max_batch=32, max_tokens=100_000))
    o = simulate(setup, workload("poisson:rate=1000,requests=640,input=1,output=500"))
    # prompts of one token cost as good as nothing, and come 32 at a time
    step = 0.01 + 32 * 1e-4 + 32 * 250 * 1e-8
    assert o.tokens_per_second == pytest.approx(32 / step, rel=0.01)
    assert o.utilisation > 0.999


def test_little_holds():
    """Requests in the system = rate x time in it, from two independent measurements."""
    setup = Setup(Replica(LinearSteps(overhead=0.01, per_token=1e-5), 10**6))
    o = simulate(setup, workload("poisson:rate=4,requests=8000,input=500~0.5,output=200~exp"))
    inside = o.timeline.total("running") + o.timeline.total("waiting")
    assert inside / o.span == pytest.approx(o.requests_per_second * o.record.e2e.mean, rel=0.03)


@pytest.mark.parametrize(
    ("text", "squared"),
    [
        ("poisson:rate=5", 1.0),
        ("gamma:rate=5,cv=2", 4.0),
        ("constant:rate=5", 0.0),
        ("bursty:rate=5,burst=3,on=2", None),
    ],
)
def test_arrivals_have_the_rate_and_the_variation_asked_for(text, squared):
    work = workload(f"{text},requests=200000,input=1,output=1")
    times = np.array([r.arrival for r in work.requests(0)])
    gaps = np.diff(times)
    assert 1 / gaps.mean() == pytest.approx(5, rel=0.05)
    if squared is None:  # in bursts three times the rate
        assert 1 / np.median(gaps) == pytest.approx(15 / math.log(2), rel=0.1)
        assert gaps.var() / gaps.mean() ** 2 > 2
    else:
        assert gaps.var() / gaps.mean() ** 2 == pytest.approx(squared, rel=0.05, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "mean", "cv"), [("700", 700, 0), ("500..1500", 1000, 0.2888), ("800~0.5", 800, 0.5), ("90~exp", 90, 1)]
)
def test_lengths_have_the_mean_and_the_variation_asked_for(text, mean, cv):
    drawn = np.array([r.input for r in workload(f"poisson:rate=1,requests=50000,input={text},output=1").requests(0)])
    assert drawn.mean() == pytest.approx(mean, rel=0.02)
    assert drawn.std() / drawn.mean() == pytest.approx(cv, rel=0.03, abs=1e-9)


def test_users_who_wait_are_served_as_the_response_time_law_says():
    """Closed loop: throughput = users / (response time + thinking time)."""
    setup = Setup(Replica(LinearSteps(overhead=0.02, per_token=1e-5), 10**6))
    o = simulate(setup, workload("closed:users=40,think=3,requests=6000,input=200,output=100"))
    assert o.record.requests == 6000
    assert o.requests_per_second == pytest.approx(40 / (o.record.e2e.mean + 3), rel=0.03)
