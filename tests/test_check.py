"""Plans beside their compiled programs. The compilers of TPUs and GPUs are extras; simulated devices stand for them here."""

from __future__ import annotations

import importlib.util
import json

import pytest

from rooftop.cli import run
from rooftop.hardware import slice_of
from rooftop.training import Choices, Question, estimate, ledger, named_plan, problem_of
from rooftop.transformer import architecture

pytest.importorskip("jax")

TINY = "layers=4,d_model=64,heads=8,kv_heads=4,d_ff=192,vocab=256"


def posed(mesh, remat="full", on="v5e:2x4", model=TINY, **more):
    question = Question(architecture(model), slice_of(on), batch=16 * 256, seq=256, **more)
    return problem_of(question), named_plan(question, mesh, choices=Choices(remat=remat))


def test_the_program_has_the_flops_of_the_plan(capsys):
    words = f"check {TINY} --on v5e:2x4 --mesh fsdp=2,tensor=4 --batch 32k --seq 2048 --remat full --json".split()
    assert run(words) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["agrees"]
    assert data["accepted"]
    assert abs(data["flops"]["difference"]) < 1e-6
    for part in data["flops"]["parts"]:
        assert abs(part["difference"]) < 1e-6, part
    assert {row["name"] for row in data["bytes"]} >= {"tensor"}
    assert data["memory"]["compiled"] > 0


@pytest.mark.parametrize("remat", ["none", "selective", "full"])
def test_a_ledger_adds_up_to_the_bound(remat):
    problem, plan = posed({"fsdp": 2, "tensor": 4}, remat)
    flops = sum(m.flops for m in ledger(problem, plan).multiplies)
    assert flops / problem.rates.peak == pytest.approx(
        float(estimate(problem, plan).step.resources["compute"]), rel=1e-9
    )


def test_what_is_gathered_again_for_a_recomputation_is_at_hand_for_its_gradient():
    problem, plan = posed({"tensor": 4}, on="v5e:2x2")
    moved = [c for c in ledger(problem, plan).collected if c.program == "block" and c.kind == "all_gather"]
    # forward: two inputs; backward: the same two and the gradients of two outputs
    assert sum(c.count for c in moved) == 6 * 4 * plan.microbatches


def test_what_cannot_be_checked_is_refused_in_a_line(capsys):
    for words, said in (
        (f"check {TINY} --on v5e:2x4", "check needs a plan"),
        (f"check {TINY} --mesh fsdp=8", "check needs --on SLICE"),
        (f"check {TINY} --on h100:8 --mesh fsdp=8 --batch 64k --with tpu", "not asked about h100"),
        (f"check {TINY} --on v5e:2x4 --mesh fsdp=8 --batch 64k --with gpu", "not asked about v5e"),
        (f"check {TINY} --on v5e:2x4 --mesh fsdp=4,pipeline=2 --batch 64k", "pipeline=1"),
        ("check mamba-2.8b --on v5e:2x4 --mesh fsdp=8 --batch 64k", "lowered to JAX"),
    ):
        assert run(words.split()) == 2, words
        assert said in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="the TPU compiler is installed")
def test_a_compiler_that_is_not_installed_says_what_to_install(capsys):
    assert run(f"check {TINY} --on v5e:2x4 --mesh fsdp=8 --batch 64k --with tpu".split()) == 2
    assert "rooftop[tpu]" in capsys.readouterr().err


def test_limits_stop_the_compiler(capsys):
    words = f"check {TINY} --on v5e:2x4 --mesh fsdp=8 --batch 64k --timeout 0.5s".split()
    assert run(words) == 1
    assert "--timeout" in capsys.readouterr().err
