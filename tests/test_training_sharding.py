"""Where states lie: ZeRO stages of fsdp and of data, and what crosses the network for it."""

import pytest

from rooftop.cli import run
from rooftop.hardware import slice_of
from rooftop.roofline import ideal
from rooftop.training import Choices, Limits, Question, estimate, named_plan, plan, problem_of
from rooftop.transformer import architecture, parameters

MODEL = "layers=4,d_model=1024,heads=8,d_ff=4096,vocab=512"
COUNT = parameters(architecture(MODEL)).total


def of(mesh, where="v5p:4x4x4*2", **choices):
    question = Question(architecture(MODEL), slice_of(where), batch=128 * 1024, seq=1024, calibration=ideal())
    return estimate(problem_of(question), named_plan(question, mesh, microbatches=1, choices=Choices(**choices)))


def test_stage_0_replicates_as_data_does():
    fsdp, data = of({"fsdp": 128}, zero=0), of({"data": 128})
    assert fsdp.step.expected == pytest.approx(data.step.expected, rel=1e-9)
    assert fsdp.step.memory == pytest.approx(data.step.memory, rel=1e-9)
    assert fsdp.step.memory["optimizer"] == pytest.approx(8 * COUNT, rel=1e-9)


@pytest.mark.parametrize(("outer", "ways"), [(0, 64), (1, 128)])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_hybrid_sharding_splits_within_a_slice_and_perhaps_states_across(zero, outer, ways):
    e = of({"data": 2, "fsdp": 64}, zero=zero, outer_zero=outer)
    assert e.step.memory["optimizer"] == pytest.approx(8 * COUNT / ways, rel=1e-3)
    assert e.step.memory["weights"] == pytest.approx(2 * COUNT / (64 if zero == 3 else 1), rel=1e-3)


def test_splitting_states_over_data_moves_no_more():
    """A reduce-scatter and a gather of what an all-reduce moves."""
    data, states = (of({"data": 128}, outer_zero=z).step.resources["network data"] for z in (0, 1))
    assert states == pytest.approx(data, rel=0.05)


def test_states_split_over_data_too_alone():
    e = of({"data": 128}, outer_zero=1)
    assert e.step.memory["optimizer"] == pytest.approx(8 * COUNT / 128, rel=1e-3)
    assert e.step.memory["weights"] == pytest.approx(2 * COUNT, rel=1e-9)


def test_a_search_is_told_which_stages_to_try():
    question = Question(architecture("llama-3-8b"), slice_of("h100:16"), batch=512 * 1024, seq=1024)
    found = plan(question, fixed={"data": 2}, limits=Limits({"outer_zero": (1,), "zero": (3, 0)})).best.plan
    assert found.choices.outer_zero == 1


def test_dots_keep_attention():
    plain, dots, selective = (of({"fsdp": 128}, remat=r) for r in ("none", "dots", "selective"))
    parts = [{p.name: float(p.seconds) for p in e.step.parts} for e in (dots, selective)]
    assert parts[0]["recompute"] < parts[1]["recompute"]
    saved = [e.step.memory["saved activations"] for e in (plain, dots, selective)]
    assert saved[0] > saved[1] > saved[2]
    # attention's output, B·T·D in bf16 for each layer
    assert saved[1] - saved[2] == pytest.approx(4 * 1024 * 1024 * 2, rel=0.01)


def test_what_means_nothing_is_refused(capsys):
    words = ["step", "llama-3-8b", "--on", "h100:8", "--batch", "512k", "--mesh", "fsdp=8", "--outer-zero", "1"]
    assert run(words) == 2
    assert "without data ways" in capsys.readouterr().err
