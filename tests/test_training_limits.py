"""How far each mesh axis goes: critical batches and largest useful degrees of a plan."""

import json
import math

import pytest

from rooftop.cli import run
from rooftop.hardware import slice_of
from rooftop.training import Choices, Question, critical_batches, named_plan, plan, reach, step_of
from rooftop.transformer import architecture


def named(batch, mesh, where="v5p:4x4x4", **choices):
    asked = Question(architecture("llama-3-8b"), slice_of(where), batch=batch, seq=2048)
    return step_of(asked, named_plan(asked, mesh, microbatches=1, choices=Choices(**choices))).best


def test_below_the_critical_batch_the_network_binds_and_above_it_does_not():
    one = named(2**20, {"fsdp": 64})
    (c,) = critical_batches(one)
    assert c.network == "network fsdp"
    assert 0 < c.bound < math.inf
    assert c.hidden >= c.bound * 0.99
    for factor, binds in ((0.5, True), (2, False)):
        sequences = max(64, round(c.bound * factor * 64 / 2048 / 64) * 64)
        tokens = sequences * 2048
        if (tokens / 64 < c.bound) != binds:
            continue  # whole sequences cannot be that few
        other = named(tokens, {"fsdp": 64})
        assert (other.step.resources["network fsdp"] > other.step.resources["compute"]) == binds


def test_the_critical_batch_of_fsdp_is_about_the_book_s():
    """alpha / X axes: 459e12 / 1.8e11 = 2,550 tokens per chip over one torus axis, a third over three (book, section 5)."""
    (c,) = critical_batches(named(2**20, {"fsdp": 64}))
    assert c.bound == pytest.approx(2550 / 3, rel=0.25)


def test_a_batch_does_not_help_tensor_parallelism():
    found = {c.network: c for c in critical_batches(named(2**20, {"fsdp": 8, "tensor": 8}))}
    # but for latency, which only tiny batches feel
    assert found["network tensor"].bound < 50
    assert found["network tensor"].hidden == math.inf


def test_degrees_are_what_the_search_says():
    asked = Question(architecture("llama-3-8b"), slice_of("v5e:4x4"), batch=2**18, seq=2048)
    best = plan(asked, keep=1).best
    r = reach(asked, best)
    assert r.tokens_per_chip == best.batch_tokens / best.plan.chips
    for d in r.degrees:
        assert d.useful >= d.ways == best.plan.mesh[d.axis]
        if d.beyond is not None:
            assert d.slower > 0.05
            assert d.why
        if d.useful > d.ways:
            other = plan(asked, fixed={d.axis: d.useful}, keep=1).best
            assert other.seconds_per_token <= best.seconds_per_token * 1.05


def test_the_command_tells_both(capsys):
    words = ["plan", "llama-3-8b", "--on", "v5e:4x4", "--batch", "256k", "--limits"]
    assert run([*words, "--json"]) == 0
    limits = json.loads(capsys.readouterr().out)["limits"]
    assert limits["critical_tokens_per_chip"]
    assert {d["axis"] for d in limits["degrees"]} >= {"tensor", "fsdp"}
    assert run(words) == 0
    assert "largest useful" in capsys.readouterr().out
