"""Answers on serving: the search, limits, drafts, prefixes, chunks, pools, caches; and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import rooftop as rt
from rooftop.cli import run
from rooftop.errors import InputError, NoAnswer
from rooftop.hardware import slice_of
from rooftop.inference import (
    Configuration,
    Layout,
    Limits,
    Question,
    Scene,
    disaggregate,
    explain_point,
    fewest,
    point,
    pool_ratio,
    problem_of,
    search,
    serve,
    smallest_slice,
    tokens_per_step,
)
from rooftop.inference._search import configuration, configurations
from rooftop.roofline import ideal
from rooftop.transformer import architecture, kv_cache_bytes, parameters, weight_bytes

TP8 = Configuration({"tensor": 8}, ({"tensor": 8},), Layout())


def asks(model="llama-3-70b", on="h100:8", **options):
    return Question(architecture(model), slice_of(on), **options)


def scene(at=TP8, **options):
    return Scene(problem_of(asks(**options)), at)


def test_the_search_finds_the_best_of_all():
    of = problem_of(asks("mixtral-8x7b", "v5e:4x4", weights="int8", prompt=1000, output=100))
    limits = Limits(tpot=0.05)
    found = search(of, (1, 16, 64), limits)
    every = [
        configuration(layout, m, f) for layout, mesh, factors in configurations(of, limits)
        for m, f in zip(mesh, factors, strict=True)
    ]  # fmt: skip
    assert found.configurations == len(every) > 100
    for batch in (1, 16, 64):
        points = (Scene(of, at).generate(batch, detail=False) for at in every)
        best = min(float(g.tpot[1]) for g in points if g.memory_bytes <= of.capacity and g.tpot[1] <= 0.05)
        assert found.by_batch[batch].tpot == pytest.approx(best, rel=1e-9)


def test_the_caches_that_fit_are_those_that_fit():
    question = asks("llama-3-8b", "h100", prompt=4096, output=512)
    answer = serve(question)
    of = answer.best.problem
    at = answer.best.at
    assert Scene(of, at).generate(answer.caches).memory_bytes <= of.capacity
    assert Scene(of, at).generate(answer.caches + 1).memory_bytes > of.capacity
    assert answer.points[-1].batch == answer.caches


def test_memory_on_one_chip_is_weights_and_caches():
    of = problem_of(asks("llama-3-8b", "h100", prompt=1000, output=24, block=16))
    memory = Scene(of, Configuration({}, ({},), Layout())).generate(10).memory
    model = of.model
    assert memory["weights"] == pytest.approx(sum(weight_bytes(model).values()))
    assert memory["kv cache"] == 10 * kv_cache_bytes(model, 1024)


def test_pages_round_up_and_reservations_hold_their_length():
    def cache(**options):
        return scene(output=1, **options).generate(1).memory["kv cache"]

    assert cache(prompt=100, block=16) == cache(prompt=111, block=16)
    assert cache(prompt=112, block=16) > cache(prompt=111, block=16)
    assert cache(prompt=100, block=1) < cache(prompt=100, block=64)
    assert cache(prompt=100, reserve=4096) == cache(prompt=4000, reserve=4096)


def test_latent_caches_are_repeated_over_heads_or_split_along_the_sequence():
    question = asks("deepseek-v3", "h200:8", prompt=8192, output=64)
    whole = kv_cache_bytes(question.model, 8256)

    def cache(layout):
        return Scene(problem_of(question), replace(TP8, layout=layout)).generate(1).memory["kv cache"]

    assert cache(Layout(cache="heads")) == pytest.approx(whole)
    assert cache(Layout(cache="sequence")) == pytest.approx(whole / 8)


def test_tensor_ways_beyond_kv_heads():
    question = asks("llama-3-70b", "h100:16", prompt=8192, output=64)
    at = Configuration({"tensor": 16}, ({"tensor": 8}, {"tensor": 2}), Layout())
    repeated = Scene(problem_of(question), at).generate(1).memory["kv cache"]
    split = Scene(problem_of(question), replace(at, layout=Layout(cache="sequence"))).generate(1).memory["kv cache"]
    assert repeated == pytest.approx(kv_cache_bytes(question.model, 8256) / 8)
    assert split == pytest.approx(repeated / 2)


def test_a_prefix_that_is_cached_is_not_read_again():
    full, half = scene(prompt=4096).prefill(), scene(prompt=4096, prefix_hits=0.5).prefill()
    linear = scene(prompt=2048).prefill()
    assert linear.resources["compute"] < half.resources["compute"] < full.resources["compute"]


def test_chunks_read_the_weights_again():
    whole, chunks = scene(prompt=8192).prefill(), scene(prompt=8192, chunk=512).prefill()
    assert chunks.resources["compute"] == pytest.approx(whole.resources["compute"], rel=0.01)
    assert chunks.resources["hbm"] > 12 * whole.resources["hbm"]
    assert chunks.expected > whole.expected
    assert scene(prompt=8192, chunk=8192).prefill().expected == pytest.approx(whole.expected)


def test_tokens_that_a_draft_yields():
    assert tokens_per_step(0.8, 0) == 1
    assert tokens_per_step(1.0, 4) == 5
    assert tokens_per_step(0.8, 4) == pytest.approx((1 - 0.8**5) / (1 - 0.8))  # Leviathan et al., equation 1


def test_a_draft_costs_its_steps_and_verification():
    draft = architecture("llama-3-8b")
    plain, drafted = scene().generate(4), scene(draft=draft, draft_tokens=3, acceptance=0.7).generate(4)
    small = scene(model="llama-3-8b").generate(4)
    assert drafted.step.expected > plain.step.expected + 2.5 * (small.step.expected - 1e-3)
    assert drafted.tpot[1] == pytest.approx(drafted.step.expected / tokens_per_step(0.7, 3))
    assert drafted.memory["weights"] == pytest.approx(plain.memory["weights"] + small.memory["weights"])
    assert drafted.tpot[1] < plain.tpot[1]


def test_extra_heads_draft_for_their_model():
    ep = Configuration({"expert": 8}, ({"expert": 8},), Layout())
    plain = scene(ep, model="deepseek-v3", on="h200:8").generate(8)
    drafted = scene(ep, model="deepseek-v3", on="h200:8", draft="mtp", draft_tokens=1, acceptance=0.85).generate(8)
    assert drafted.memory["weights"] > plain.memory["weights"]
    assert plain.tpot[1] > drafted.tpot[1] > plain.tpot[1] / 1.85


def test_offloaded_caches_cross_pcie():
    # without KV heads to repeat: 8 chips hold an eighth each
    g = scene(prompt=8192, output=64, context=8192, offload=0.5, calibration=ideal()).generate(16)
    held = 16 * kv_cache_bytes(architecture("llama-3-70b"), 8192) / 8
    assert g.step.resources["host"] == pytest.approx(0.5 * held / slice_of("h100").chip.pcie_bandwidth)
    assert g.memory["kv cache"] == pytest.approx(g.host_bytes)


def test_host_memory_is_not_endless():
    of = problem_of(asks("llama-3-8b", "h100", prompt=100000, output=64, offload=1.0, chunk=2048))
    p = point(of, Configuration({}, ({},), Layout()), 1000)
    assert p.generate.memory_bytes < of.capacity
    assert not p.fits


def test_lower_precision_reads_less_and_multiplies_faster():
    def resources(**options):
        return scene(prompt=512, output=64, **options).generate(64).step.resources

    plain, weights, both = resources(), resources(weights="fp8"), resources(weights="fp8", activations="fp8")
    assert weights["hbm"] < plain["hbm"]
    assert weights["compute"] == plain["compute"]
    assert both["compute"] < 0.6 * plain["compute"]
    assert resources(kv="fp8")["hbm"] < plain["hbm"]
    four = scene(weights="mxfp4").generate(1).memory["weights"]
    assert four / scene(weights="bf16").generate(1).memory["weights"] == pytest.approx(4.25 / 16, rel=0.01)


def test_quantised_checkpoints_are_served_as_they_are():
    of = problem_of(asks("gpt-oss-120b", "h100"))
    memory = Scene(of, Configuration({}, ({},), Layout())).generate(1).memory
    assert memory["weights"] == pytest.approx(sum(weight_bytes(of.model).values()), rel=0.01)


def test_few_tokens_meet_few_experts():
    one = Configuration({}, ({},), Layout())
    few = scene(
        one, model="mixtral-8x7b", on="h200", weights="fp8", prompt=16, output=16, calibration=ideal()
    ).generate(1)
    of = architecture("mixtral-8x7b")
    # a token meets two of eight experts
    assert few.step.bound * slice_of("h200").chip.hbm_bandwidth == pytest.approx(parameters(of).active, rel=0.02)


def test_limits_are_kept():
    answer = serve(asks(weights="fp8"), Limits(tpot=0.015, ttft=0.2))
    assert all(p.generate.tpot[1] <= 0.015 and p.prefill.expected <= 0.2 for p in answer.points)
    assert answer.best.tokens_per_second == max(p.tokens_per_second for p in answer.points)
    cheap = serve(asks(weights="fp8"), Limits(usd=5.0))
    assert all(p.usd_output <= 5.0 for p in cheap.points)


def test_the_frontier_has_no_point_that_another_beats():
    answer = serve(asks("llama-3-8b", "v5e:2x4"))
    for p in answer.frontier:
        assert not any(
            q.generate.tpot[1] < p.generate.tpot[1] and q.tokens_per_second > p.tokens_per_second for q in answer.points
        )


def test_smallest_and_fewest():
    assert smallest_slice(asks("llama-3-70b", "h100")) == "h100:2"
    assert smallest_slice(asks("llama-3-70b", "h100", weights="int4")) == "h100:1"
    answer = fewest(asks("llama-3-8b", "h100"), 20.0, Limits(tpot=0.03))
    assert answer.best.requests_per_second >= 20
    smaller = answer.best.problem.slice.chips // 2
    with pytest.raises(NoAnswer):
        serve(asks("llama-3-8b", f"h100:{smaller}"), Limits(tpot=0.03), load=20.0)


def test_what_binds_is_what_binds():
    answer = serve(asks("llama-3-8b", "v5e:4x4"))
    at = Scene(answer.best.problem, answer.best.at)
    for name, batch in answer.binds_from.items():
        resources = at.generate(batch).step.resources
        assert max(resources, key=resources.get).split()[0] == name
        if batch > 1:
            before = at.generate(batch - 1).step.resources
            assert max(before, key=before.get).split()[0] != name


def test_pools():
    found = disaggregate(asks(weights="fp8", prompt=4096), slice_of("h100:4"), Limits(tpot=0.02), most=16)
    reads = found.prefill.prefill.prompts / found.prefill.prefill.expected
    ends = found.generate.tokens_per_second / 512
    assert found.requests_per_second == pytest.approx(min(found.prefill_pools * reads, found.generate_pools * ends))
    assert found.ratio == pytest.approx(ends / reads)
    assert found.transfer_bytes == kv_cache_bytes(architecture("llama-3-70b"), 4096)
    assert found.transfer_seconds[0] == pytest.approx(found.transfer_bytes / (4 * 50e9))
    assert found.ttft[0] <= found.ttft[1]
    assert pool_ratio(0.91, 1, 32, 0.019, 512) == pytest.approx(3.0, rel=0.01)  # the book, section 8


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"prompt": 0}, "prompt"), ({"prefix_hits": 1.0}, "prefix_hits"), ({"prefix_hits": float("nan")}, "prefix_hits"),
        ({"batches": (0,)}, "batch"), ({"weights": "int32"}, "weights"), ({"kv": "bool"}, "kv"), ({"activations": "fp4"}, "activations"),
        ({"draft_tokens": 3}, "draft"), ({"draft": "mtp", "draft_tokens": 1}, "draft"), ({"offload": 2.0}, "offload"),
        ({"context": 0}, "context"), ({"block": 0}, "block"),
    ],
)  # fmt: skip
def test_refused(options, field):
    with pytest.raises(InputError) as caught:
        problem_of(asks(**options))
    assert caught.value.field == field


def test_models_that_cannot_generate_are_refused():
    with pytest.raises(InputError, match="cannot generate"):
        problem_of(asks("bert-base"))
    with pytest.raises(InputError, match="vocabulary"):
        problem_of(asks(draft=architecture("gpt2"), draft_tokens=2))


def test_nothing_fits_says_what_would():
    with pytest.raises(NoAnswer, match=r"too much .*it fits on h100:2"):
        serve(asks("llama-3-70b", "h100"))
    with pytest.raises(NoAnswer, match=r"limit 1\.00 ms"):
        serve(asks(), Limits(tpot=1e-3))
    with pytest.raises(InputError, match="pipeline"):
        serve(asks(), Limits(fixed={"pipeline": 2}))
    with pytest.raises(InputError, match="tensor=3"):
        serve(asks(), Limits(fixed={"tensor": 3}))


def test_explanations_name_what_there_is():
    p = point(problem_of(asks()), TP8, 8)
    assert "T(block)" in explain_point(p, "tpot").inputs[0].formula or "T(block)" in explain_point(p, "tpot").formula
    of = problem_of(asks("llama-3-8b", "h100", prompt=4096, output=512))
    one = point(of, Configuration({}, ({},), Layout()), 8)
    assert explain_point(one, "kv_caches").value == search(of, (1,)).caches
    with pytest.raises(InputError, match="choose one of"):
        explain_point(p, "speed")


def test_the_command_line(capsys):
    assert run(["serve", "llama-3-8b", "--on", "h100", "--batch", "1,8", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [p["batch"] for p in answer["points"]] == [1, 8]
    for p in answer["points"]:
        assert p["step_seconds"]["bound"] <= p["step_seconds"]["expected"]
        assert {"context", "tokens_per_second", "memory_bytes", "bottleneck", "fits", "usd_per_million_tokens"} <= set(
            p
        )
    assert answer["prefill"]["seconds"]["bound"] <= answer["prefill"]["seconds"]["expected"]
    assert answer["best"]["batch"] == 8
    assert answer["frontier"]
    assert run(["serve", "llama-3-70b", "--on", "h100"]) == 1
    assert run(["serve", "llama-3-8b", "--on", "h100", "--prompt", "-1"]) == 2
    capsys.readouterr()
    assert run(["serve", "llama-3-8b", "--on", "h100", "--explain", "usd"]) == 0
    assert "usd_per_million_tokens" in capsys.readouterr().out
    assert run(["serve", "llama-3-8b", "--on", "h100", "--prefill-on", "h100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ratio"] > 0


def test_a_batch_that_does_not_fit_is_shown(capsys, unpriced):
    assert run(["serve", "llama-3-8b", "--on", "h100", "--batch", "8,4096", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [p["fits"] for p in answer["points"]] == [True, False]
    assert answer["best"]["batch"] == 8
    assert len(answer["frontier"]) == 1
    assert run(["serve", "llama-3-8b", "--on", unpriced, "--usd", "1"]) == 2
    assert "price" in capsys.readouterr().err


def test_chunks_of_a_prompt_can_be_timed_alone():
    s = scene(prompt=2048)
    assert s.read(2048).expected == s.prefill().expected
    assert s.read(512, 1536).resources["compute"] > s.read(512).resources["compute"]
    assert s.read(512, prompts=4).resources["compute"] == pytest.approx(4 * s.read(512).resources["compute"], rel=1e-6)


def test_python_asks_the_same():
    answer = rt.serve("llama-3-8b", on="h100", batches=(1, 8))
    assert answer.best.batch == 8
    assert answer.best.fits
