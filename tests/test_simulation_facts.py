"""Facts small enough to be reckoned by hand, one policy at a time."""

import json
import math
import tracemalloc
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from rooftop.errors import NoAnswer
from rooftop.hardware import slice_of
from rooftop.inference import Scene
from rooftop.simulation import (
    Autoscale,
    Fleet,
    Line,
    LinearSteps,
    Replica,
    Request,
    Scheduling,
    Setup,
    Simulation,
    Slo,
    Typical,
    find_rate,
    modelled,
    simulate,
    workload,
)
from rooftop.simulation import _distribution as distribution_module
from rooftop.simulation._distribution import Distribution
from rooftop.transformer import architecture

#: A step takes a second, and a millisecond for each token in it.
CLOCK = Replica(LinearSteps(overhead=1.0, per_token=1e-3), 100_000, kv_bytes_per_token=1.0)


def serve(requests, scheduling=None, fleet=None, replica=CLOCK, prefill=None):
    done = {}
    simulation = Simulation(
        replica, scheduling or Scheduling(), fleet or Fleet(), lambda r: done.update({r.id: r}), prefill_replica=prefill
    )
    simulation.run(iter([Request(n, *row) for n, row in enumerate(requests)]))
    return done, simulation


def test_one_request():
    done, simulation = serve([(0.0, 100, 4)])
    assert (done[0].first, done[0].finish) == (pytest.approx(1.1), pytest.approx(1.1 + 3 * 1.001))
    assert simulation.members[0].engine.steps_played == 4


def test_decode_first_mixes_and_prefill_first_stalls():
    """A prompt of 100 comes while another request decodes."""
    rows = [(0.0, 100, 5), (1.5, 100, 2)]
    mixed, _ = serve(rows)
    # the first step ends at 1.1, the second at 2.101; the third has both
    assert mixed[1].first == pytest.approx(2.101 + 1.101)
    assert mixed[0].finish == pytest.approx(2.101 + 1.101 + 1.002 + 1.001)
    stalled, _ = serve(rows, Scheduling(first="prefill"))
    assert stalled[1].first == pytest.approx(2.101 + 1.1)
    assert stalled[0].finish == pytest.approx(2.101 + 1.1 + 1.002 + 2 * 1.001)


def test_prompts_are_cut_to_the_tokens_of_a_step():
    chunks, _ = serve([(0.0, 250, 1)], Scheduling(max_batch=10, max_tokens=100))
    assert chunks[0].first == pytest.approx(3 + 0.25)
    whole, _ = serve([(0.0, 250, 1)], Scheduling(max_batch=10, max_tokens=100, chunked=False))
    assert whole[0].first == pytest.approx(1.25)


def test_pairs_are_those_of_causal_attention():
    """However a prompt is cut, its tokens attend to n (n + 1) / 2 positions."""
    replica = Replica(LinearSteps(per_token=1e-9, per_pair=1.0), 100_000)
    for tokens in (100, 33, 10):
        done, _ = serve([(0.0, 100, 1)], Scheduling(max_batch=1, max_tokens=tokens), replica=replica)
        assert done[0].first == pytest.approx(100 * 101 / 2)


def test_context_is_what_decoding_attends_to():
    """The k-th generated token attends to the prompt and the k - 1 before it, and itself."""
    replica = Replica(LinearSteps(per_token=1e-9, per_context=1.0), 100_000)
    done, _ = serve([(0.0, 10, 5)], replica=replica)
    assert done[0].finish - done[0].first == pytest.approx(11 + 12 + 13 + 14)


def test_swapping_moves_what_was_held():
    """Two requests that outgrow the memory: the later one waits in the host, and is back without computing again."""
    replica = replace(CLOCK, kv_tokens=40, host_tokens=100, host_bandwidth=1.0)
    rows = [(0.0, 10, 25), (0.0, 10, 25)]
    scheduling = Scheduling(block=10, watermark=0.0, preempt="swap")
    done, simulation = serve(rows, scheduling, replica=replica)
    assert simulation.members[0].engine.preemptions == done[1].preemptions == 1
    # both hold 20 tokens after the first token and ten more; then 20 go to the host in 20 seconds, and come back in 20
    alone = 14 * 1.001
    assert done[0].finish == pytest.approx(1.02 + 10 * 1.002 + 20 + alone)
    assert done[1].finish == pytest.approx(done[0].finish + 20 + alone)
    again, _ = serve(rows, replace(scheduling, preempt="recompute"), replica=replica)
    # recomputing 21 tokens gives the next one
    assert again[1].finish == pytest.approx(again[0].finish + 1.021 + 13 * 1.001)


def test_a_shared_prefix_is_computed_once():
    parts = (("system", 64),)
    rows = [(0.0, 80, 1, parts), (10.0, 90, 1, parts), (20.0, 64, 1, parts)]
    done, _ = serve(rows, Scheduling(prefix_cache=True))
    assert [done[n].cached for n in range(3)] == [
        0,
        64,
        48,
    ]  # of a prompt that is all there, the last block is computed
    assert done[1].first - 10 == pytest.approx(1.026)
    plain, _ = serve(rows)
    assert [plain[n].cached for n in range(3)] == [0, 0, 0]


def test_the_least_recently_used_prefix_is_evicted():
    replica = replace(CLOCK, kv_tokens=16 * 6)

    def row(at, name):
        return (at, 33, 1, ((name, 32),))

    order = ["a", "b", "a", "c", "a", "b"]  # each needs 3 blocks, of which 2 stay; c takes the last one of b
    done, _ = serve(
        [row(10.0 * n, name) for n, name in enumerate(order)],
        Scheduling(prefix_cache=True, block=16, watermark=0.0),
        replica=replica,
    )
    assert [done[n].cached for n in range(6)] == [0, 0, 32, 0, 32, 16]


def test_prefix_aware_routing_finds_what_is_cached():
    rows = [(float(10 * n), 100, 1, ((f"chat {n % 3}", 96),)) for n in range(12)]
    scheduling = Scheduling(prefix_cache=True)

    def hits(route):
        done, _ = serve(rows, scheduling, Fleet(4, 0, route))
        return sum(r.cached > 0 for r in done.values())

    assert hits("prefix-aware") == 9
    assert hits("round-robin") < 3


def test_prefill_replicas_transfer_the_cache():
    replica = replace(CLOCK, transfer_bandwidth=50.0, transfer_latency=0.5)
    done, _ = serve([(0.0, 100, 4)], fleet=Fleet(1, 1), replica=replica)
    assert done[0].first == pytest.approx(1.1)
    assert done[0].finish == pytest.approx(1.1 + 0.5 + 2.0 + 3 * 1.001)
    fast = replace(CLOCK, steps=LinearSteps(overhead=0.1, per_token=1e-3))
    other, _ = serve(
        [(0.0, 100, 4)], fleet=Fleet(1, 1), replica=replica, prefill=replace(fast, transfer_bandwidth=100.0)
    )
    assert other[0].finish == pytest.approx(0.2 + 1.0 + 3 * 1.001)


def test_priorities():
    rows = [(0.0, 10, 20, (), 0), *((0.5 + n / 10, 10, 1, (), 5 - n) for n in range(5))]
    done, _ = serve(rows, Scheduling(max_batch=1, queue="priority"))
    assert sorted(range(1, 6), key=lambda n: done[n].finish) == [5, 4, 3, 2, 1]


def test_fairness_serves_a_quiet_client_before_a_loud_one():
    """Ten requests of one client, then one of another: virtual token counters let it pass."""
    rows = [*((0.01 * n, 100, 10, (), 0, "loud") for n in range(10)), (0.5, 100, 10, (), 0, "quiet")]
    fair, _ = serve(rows, Scheduling(max_batch=1, queue="fair"))
    assert sorted(fair, key=lambda n: fair[n].finish).index(10) <= 2
    fcfs, _ = serve(rows, Scheduling(max_batch=1))
    assert sorted(fcfs, key=lambda n: fcfs[n].finish).index(10) == 10


def test_autoscaling_follows_the_load_up_and_down():
    """A burst needs four replicas; afterwards one is enough again."""
    rows = [*((n / 10, 100, 50) for n in range(400)), *((60.0 + 20 * n, 100, 5) for n in range(60))]
    scale = Autoscale(4, 40.0, interval=5.0, startup=10.0, patience=60.0)
    done, simulation = serve(rows, Scheduling(max_batch=64), Fleet(1, 0, "least-loaded", scale))
    assert len(done) == 460
    assert simulation.most_members == 4
    left = [m.left for m in simulation.members if m.left == m.left]
    assert len(left) == 3
    assert min(left) > 100
    assert all(m.engine.steps_played > 0 for m in simulation.members)
    first = {
        m.engine.number: min(r.admitted for r in done.values() if r.replica == m.engine.number)
        for m in simulation.members
    }
    assert all(first[m.engine.number] >= m.ready for m in simulation.members)


def test_the_rate_found_is_where_theory_has_it():
    """M/D/1 with service 1 s: P(wait > 0) = load, so that 80% start at once at a load of 0.2."""
    setup = Setup(
        Replica(LinearSteps(per_token=1e-3), 10**6), Scheduling(max_batch=1, max_tokens=10_000), slo=Slo(ttft=1.000001)
    )
    found = find_rate(setup, workload("poisson:rate=1,requests=6000,input=1000,output=1"), attain=0.8)
    assert found.limited
    assert found.offered == pytest.approx(0.2, rel=0.05)
    with pytest.raises(NoAnswer, match="no load"):
        find_rate(replace(setup, slo=Slo(ttft=0.5)), workload("poisson:rate=1,requests=50,input=1000,output=1"))


@pytest.mark.parametrize(("load", "overloaded"), [(0.5, False), (0.8, False), (2.0, True)])
def test_overload_is_said_where_the_queue_grows(load, overloaded):
    """A batch of one whose requests take 1.01 s each."""
    replica = Replica(LinearSteps(overhead=1.0, per_token=1e-3), 100_000)
    work = workload(f"constant:rate={load / 1.01},requests=400,input=10,output=1")
    outcome = simulate(Setup(replica, Scheduling(max_batch=1)), work)
    assert outcome.overloaded is overloaded
    if overloaded:  # half of all are served while they come
        assert outcome.backlog == pytest.approx(0.5, abs=0.02)


def test_quantiles_from_bins_are_within_a_thousandth(monkeypatch):
    values = np.random.default_rng(0).lognormal(-3, 2, 50_000)
    exact, binned = Distribution(), Distribution()
    exact.add(values)
    monkeypatch.setattr(distribution_module, "_EXACT", 1000)
    for part in np.split(values, 50):
        binned.add(part)
    for q in (0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0):
        assert binned.quantile(q) == pytest.approx(exact.quantile(q), rel=2e-3)
    assert binned.mean == pytest.approx(exact.mean)
    assert Distribution().quantile(0.5) is None


def test_memory_does_not_grow_with_the_trace(monkeypatch):
    monkeypatch.setattr(distribution_module, "_EXACT", 1000)
    monkeypatch.setattr("rooftop.simulation._record._ROWS", 512)

    class Nowhere:
        def write(self, table):
            pass

    def peak(count):
        setup = Setup(replace(CLOCK, kv_tokens=8000), Scheduling(max_batch=64, prefix_cache=True))
        tracemalloc.start()
        simulate(
            setup,
            workload(f"poisson:rate=5,requests={count},input=50,output=4,prefixes=9,prefix_tokens=40"),
            sink=Nowhere(),
        )
        seen = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return seen

    assert peak(8_000) < 1.1 * peak(2_000)


class Constant:
    """60 ms for prompts and 15 ms for decoding, whatever they are."""

    def seconds(self, tokens, pairs, batch, context, width=1):
        return (0.060 if tokens else 0.0) + (0.015 if batch else 0.0)

    def decode_line(self, batch, context, width=1):
        return Line(0.015, 0.0, math.inf)


#: What NVIDIA's aisimulate 0.13.0.dev202610270000000085 gave for the same trace: `timing: {type: fixed, prefill_ms: 60,
#: decode_ms: 15}`, vLLM scheduling with 8,192 tokens and 256 sequences, 20,000 KV blocks, one worker. In ms.
PEER = {
    "ttft": {"mean": 93.915, 0.5: 86.0, 0.99: 148.0},
    "tpot": {"mean": 22.478, 0.99: 35.0},
    "e2e": {"mean": 4503.281, 0.99: 9254.0},
}


def test_with_the_same_step_times_another_simulator_agrees(tmp_path):
    """4,000 requests at 6/s, as a Mooncake trace that both read; the other one rounds times to milliseconds."""
    random = Random(1)
    time, hashes, rows = 0.0, 0, []
    for _ in range(4000):
        time += random.expovariate(6) * 1000
        tokens, output = random.randint(200, 1800), random.randint(2, 400)
        count = -(-tokens // 512)
        ids = list(range(hashes, hashes + count))
        hashes += count
        rows.append({"timestamp": int(time), "input_length": tokens, "output_length": output, "hash_ids": ids})
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    setup = Setup(Replica(Constant(), 20_000 * 16), Scheduling(prefix_cache=True))
    outcome = simulate(setup, workload(str(path)))
    for name, figures in PEER.items():
        seen = getattr(outcome.record, name)
        for which, milliseconds in figures.items():
            ours = 1e3 * (seen.mean if which == "mean" else seen.quantile(which))
            assert ours == pytest.approx(milliseconds, rel=0.005, abs=1.1), (name, which)
    assert outcome.requests_per_second == pytest.approx(6.01413, rel=1e-4)


@pytest.fixture(scope="module")
def eight():
    return modelled(
        architecture("llama-3-8b"),
        slice_of("h100:2"),
        Scheduling(max_batch=64, max_tokens=2048),
        Typical(1000, 200),
    )


def test_a_replica_is_deployed_for_its_load():
    """Little load: all chips on one token. More than any configuration takes: the highest throughput. A limit: within it."""
    model, where, scheduling = architecture("llama-3-70b"), slice_of("h100:8"), Scheduling()
    seconds = []
    for requests in (
        Typical(1000, 200, rate=1.0),
        Typical(1000, 200, users=1),
        Typical(1000, 200, rate=1e5),
        Typical(1000, 200),
    ):
        replica = modelled(model, where, scheduling, requests, weights="fp8")
        seconds.append(replica.steps.seconds(0, 0, 16, 16 * 1100))
    calm, alone, flooded, unknown = seconds
    assert calm == alone < flooded == unknown
    shared = modelled(model, where, scheduling, Typical(1000, 200, rate=1e5), replicas=10**5, weights="fp8")
    assert shared.steps.seconds(0, 0, 16, 16 * 1100) == calm
    within = modelled(model, where, scheduling, Typical(1000, 200), within=Slo(tpot=0.03), weights="fp8")
    assert within.steps.seconds(0, 0, 16, 16 * 1100) < flooded


def test_modelled_steps_are_those_of_the_serving_model(eight):
    steps = eight.steps
    scene: Scene = steps.scene
    for batch, position in ((1, 128), (16, 1024), (64, 8192), (7, 1500)):
        line = steps.decode_line(batch, batch * position)
        expected = scene.generate(float(batch), position, detail=False).step.expected
        assert line.base + line.slope * batch * position == pytest.approx(float(expected), rel=0.01)
        assert steps.seconds(0, 0, batch, batch * position) == line.base + line.slope * batch * position
    for tokens in (64, 1024, 2048):
        structure = scene.structure(scene.problem.model, "prefill", tokens, 0)
        expected = scene.run(structure, 1.0, 1.0, detail=False, rates=scene.prompt_rates).expected
        assert steps.seconds(tokens, tokens * (tokens + 1) // 2, 0, 0) == pytest.approx(float(expected), rel=0.01)


def test_prompts_longer_than_the_tables_go_on_along_the_last_line(eight):
    a, b, c = (eight.steps.seconds(n, 0, 0, 0) for n in (4096, 8192, 16384))
    assert c - b == pytest.approx(2 * (b - a))
    assert b > 1.8 * a  # kernels and messages have a part that does not grow


def test_modelled_steps_grow_with_the_work(eight):
    seconds = eight.steps.seconds
    for batch in (1, 8, 63):
        assert seconds(0, 0, batch, 500 * batch) <= seconds(0, 0, batch, 900 * batch)
        assert seconds(0, 0, batch, 500 * batch) <= seconds(0, 0, batch + 1, 500 * (batch + 1))
        for tokens in (16, 500, 1900):
            mixed = seconds(tokens, tokens * 500, batch, 500 * batch)
            assert mixed >= seconds(0, 0, batch, 500 * batch) * 0.98
            assert mixed >= seconds(tokens, tokens * 500, 0, 0)
            assert mixed <= seconds(tokens + 100, (tokens + 100) * 500, batch, 500 * batch)


def test_bounds_never_exceed_what_is_expected(eight):
    bound = replace(eight.steps, bound=True, _decode={}, _lines={}, _tokens=[], _prompts=[])
    for tokens, batch in ((0, 1), (0, 64), (100, 0), (2000, 8), (1, 64)):
        assert bound.seconds(tokens, tokens * 100, batch, 700 * batch) <= eight.steps.seconds(
            tokens, tokens * 100, batch, 700 * batch
        )


def test_the_cache_fills_the_memory_that_weights_leave(eight):
    """Llama-3-8B: 128 KiB of keys and values a token in bf16, 16.06 GB of weights, on two chips of 80 GB."""
    assert eight.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2
    most = (2 * 80e9 * 0.9 - 2 * 8.03e9) / eight.kv_bytes_per_token
    assert 0.97 * most < eight.kv_tokens < most
    assert eight.chips == 2
    assert math.isfinite(eight.transfer_bandwidth)


def test_users_who_think_do_not_stop_the_scaling():
    """Between two turns nobody is there; the fleet still shrinks and grows."""
    scale = Autoscale(3, 1.0, interval=1.0, startup=0.0, patience=2.0)
    setup = Setup(CLOCK, Scheduling(max_batch=4, max_tokens=1000), Fleet(1, 0, "least-loaded", scale))
    outcome = simulate(setup, workload("closed:users=6,think=20,requests=60,input=10,output=5"))
    assert outcome.record.requests == 60
    assert outcome.most_replicas == 3
    assert outcome.replica_seconds < 2.9 * outcome.span
