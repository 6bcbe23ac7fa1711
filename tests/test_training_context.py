"""Kinds of context parallelism: what crosses the network, what hides, how causal work is shared out."""

import pytest

from rooftop.cli import run
from rooftop.errors import InputError
from rooftop.hardware import slice_of
from rooftop.roofline import ideal
from rooftop.training import Choices, Question, estimate, named_plan, problem_of
from rooftop.training._evaluate import evaluate
from rooftop.transformer import architecture

D, HEADS, KV, SEQ, WAYS = 1024, 8, 4, 8192, 4
MODEL = f"layers=2,d_model={D},heads={HEADS},kv_heads={KV},d_ff=4096,vocab=512"


def of(model=MODEL, **choices):
    question = Question(architecture(model), slice_of("h100:4"), batch=4 * SEQ, seq=SEQ, calibration=ideal())
    plan = named_plan(question, {"context": WAYS}, microbatches=1, choices=Choices(remat="none", **choices))
    return estimate(problem_of(question), plan)


def exposed(e, title="context"):
    return sum(
        float(p.seconds - p.overlapped)
        for p in e.step.parts
        if p.name.startswith(title + ": ") and "weights" not in p.name
    )


def busy(e):
    return sum(float(p.seconds) for p in e.step.parts if p.name.startswith("context: ") and "weights" not in p.name)


def test_a_ring_and_a_gather_move_the_same_and_only_the_ring_hides():
    ring, gather = of(), of(context_kind="gather")
    assert busy(ring) == pytest.approx(busy(gather))
    assert exposed(gather) == pytest.approx(busy(gather))
    assert exposed(ring) < 0.01 * exposed(gather)


def test_ulysses_swaps_queries_keys_values_and_outputs():
    """Jacobs et al., 2023, section 3.2: each chip sends (n - 1)/n of its n-th of queries, keys, values and outputs."""
    e = of(context_kind="ulysses")
    token = 2 * 128 * (2 * HEADS + 2 * KV)  # bytes of q, o, k, v
    forward = 2 * 4 * SEQ * token / WAYS * (WAYS - 1) / WAYS / 4.5e11
    # backward the same gradients, and the outputs once more for the gradient of their projection
    again = 2 * 4 * SEQ * 2 * 128 * HEADS / WAYS * (WAYS - 1) / WAYS / 4.5e11
    assert busy(e) == pytest.approx(2 * forward + again, rel=0.02)
    assert exposed(e) == pytest.approx(busy(e))


def test_the_last_of_contiguous_chunks_has_most_to_attend_to():
    even, last = of(), of(causal="contiguous")
    parts = [{p.name: float(p.seconds) for p in e.step.parts} for e in (even, last)]
    points = 4 * SEQ * (SEQ + 1) / 2 / WAYS
    core = 2 * 2 * 2 * points * HEADS * 128 / 9.89e14  # two layers, scores and values
    grown = parts[1]["attention forward"] - parts[0]["attention forward"]
    assert grown == pytest.approx(core * ((2 * WAYS - 1) / WAYS - 1), rel=0.02)
    assert last.step.resources["compute"] > even.step.resources["compute"]
    assert last.step.memory == pytest.approx(even.step.memory)


def test_contiguous_tokens_mean_nothing_where_heads_are_shared_out():
    with pytest.raises(InputError, match="changes nothing"):
        of(context_kind="ulysses", causal="contiguous")


@pytest.mark.parametrize("kind", ["ring", "gather", "ulysses"])
@pytest.mark.parametrize("causal", ["balanced", "contiguous"])
def test_bounds_and_traces(kind, causal):
    if (kind, causal) == ("ulysses", "contiguous"):
        return
    e = of(context_kind=kind, causal=causal)
    assert e.step.bound <= e.step.expected * (1 + 1e-9)
    assert float(evaluate(e.problem, e.plan, traced=True).expected) == pytest.approx(e.step.expected, rel=1e-9)


@pytest.mark.parametrize("model", ["deepseek-v3", "gemma-3-1b", "qwen3-next-80b-a3b", "deepseek-v3.2"])
def test_every_kind_of_attention_can_swap(model):
    question = Question(architecture(model), slice_of("h100:64"), batch=64 * SEQ, seq=SEQ)
    ways = 1 if model.startswith("gemma") else 2
    mesh = {"fsdp": 64 // ways, "context": ways}
    for kind in ("gather", "ulysses") if ways > 1 else ():
        plan = named_plan(question, mesh, choices=Choices(remat="full", context_kind=kind))
        assert estimate(problem_of(question), plan).step.bound > 0


def test_more_ways_than_kv_heads_are_refused(capsys):
    words = ["step", "llama-3-8b", "--on", "h100:16", "--batch", "512k", "--mesh", "context=16"]
    assert run([*words, "--context-kind", "ulysses"]) == 2
    assert "KV heads" in capsys.readouterr().err
    assert run([*words[:-1], "fsdp=16", "--context-kind", "ulysses"]) == 2
    assert "without context ways" in capsys.readouterr().err
