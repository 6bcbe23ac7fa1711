"""Pipeline schedules against the formulas of their papers, on stages that are equal and links that cost nothing."""

from dataclasses import replace

import pytest

from rooftop.cli import run
from rooftop.errors import InputError
from rooftop.hardware import slice_of
from rooftop.roofline import ideal
from rooftop.training import Choices, Limits, Question, estimate, named_plan, plan, problem_of, values_of
from rooftop.training._schedule import split_of, stages_of
from rooftop.training._structure import structure
from rooftop.transformer import architecture

MODEL = "layers=16,d_model=4096,heads=32,d_ff=16384,vocab=64"
P = 4


def asked(**options):
    return Question(architecture(MODEL), slice_of("h100:4"), batch=16 * 1024, seq=1024, calibration=ideal(), **options)


def of(schedule, m=16, **more):
    question = asked()
    chosen = Choices(schedule=schedule, **more)
    made = named_plan(question, {"pipeline": P}, microbatches=16, choices=Choices())
    return estimate(problem_of(question), replace(made, microbatches=m, sequences=16 // m or 1, choices=chosen))


def passes():
    """(F, B, W) of a stage, all layers alike, from the parts of the plain schedule."""
    parts = {p.name: float(p.seconds) for p in of("1f1b").step.parts if p.kind == "compute"}
    forward = sum(s for n, s in parts.items() if n.endswith("forward")) / 16
    return forward, sum(parts.values()) / 16 - forward


@pytest.mark.parametrize(("more", "times"), [({}, 1.0), ({"chunks": 2}, 1 / 2), ({"chunks": 4}, 1 / 4)])
def test_the_bubble_of_chunks_is_that_of_the_paper(more, times):
    forward, backward = passes()
    assert float(of("1f1b", **more).step.bubble) == pytest.approx((P - 1) * (forward + backward) * times, rel=0.02)


@pytest.mark.parametrize(("schedule", "filled"), [("gpipe", 0), ("zb-h1", 2), ("zb-h2", 3)])
def test_gradients_of_weights_fill_the_bubble(schedule, filled):
    forward, backward = passes()
    whole = forward + backward
    expected = max(0.0, (P - 1) * (whole - filled * _weights()))
    # matmuls take a little longer than their FLOPs alone
    assert float(of(schedule).step.bubble) == pytest.approx(expected, abs=0.02 * (P - 1) * whole)


def _weights():
    """Seconds of a stage's gradients of weights: 2 FLOPs a parameter and token at the peak."""
    params = 16 / P * (4 * 4096**2 + 3 * 4096 * 16384)
    return 2 * params * 1024 / 9.89e14


def test_dualpipe_bubble_is_that_of_the_report():
    forward, backward = passes()
    expected = (P / 2 - 1) * (forward + backward + backward - 3 * _weights())
    assert float(of("dualpipe").step.bubble) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("chosen", "first", "last"),
    [
        (Choices(), 4, 1),
        (Choices(schedule="gpipe"), 12, 12),
        (Choices(chunks=2), 4 * (1 + 3 / 8), 2.5),
        (Choices(chunks=4), 4 * (1 + 3 / 16), 13 / 4),
        (Choices(schedule="zb-h1"), 4, 4),
        (Choices(schedule="zb-h2"), 7, 7),
        (Choices(schedule="dualpipe"), 5, 5),
    ],
)
def test_microbatches_in_flight(chosen, first, last):
    kinds = stages_of(16, 4, 12, chosen)
    assert [float(kinds[0].flight), float(kinds[-1].flight)] == pytest.approx([first, last])


def test_dualpipe_holds_weights_twice_and_optimizer_states_once():
    plain, both = of("1f1b").step.memory, of("dualpipe").step.memory
    assert both["weights"] == pytest.approx(2 * plain["weights"], rel=0.01)
    assert both["gradients"] == pytest.approx(2 * plain["gradients"], rel=0.01)
    assert both["optimizer"] == pytest.approx(plain["optimizer"], rel=0.01)
    assert both["saved activations"] == pytest.approx(5 / 4 * plain["saved activations"], rel=0.01)


def test_llama_3_405b_takes_a_layer_from_the_first_and_the_last_of_sixteen_stages():
    """Llama 3 report, section 3.3.2: 126 layers, so that the stages with the embedding and with the head have one fewer."""
    split = split_of(126, 16, Choices(embed_layers=1, head_layers=1))
    assert (split.first, split.full, split.last) == (7, 8, 7)
    plain = split_of(126, 16, Choices())
    assert (plain.first, plain.full, plain.last) == (8, 8, 6)


def test_a_head_that_counts_as_layers_balances_a_large_vocabulary():
    model = "layers=30,d_model=1024,heads=8,d_ff=4096,vocab=131072"
    question = Question(
        architecture(model), slice_of("h100:4"), batch=64 * 1024, seq=1024, calibration=ideal()
    )  # work alone, no overheads
    even, fewer = (
        named_plan(question, {"pipeline": 4}, microbatches=32, choices=Choices(head_layers=h)) for h in (0, 6)
    )
    problem = problem_of(question)
    assert estimate(problem, fewer).step.expected < 0.95 * estimate(problem, even).step.expected
    searched = plan(question, fixed={"pipeline": 4}, limits=Limits({"head_layers": values_of("head_layers")}))
    assert searched.best.plan.choices.head_layers > 0


def test_stage_layers_add_up_and_memory_is_of_the_fullest_stage():
    for e in (0, 1, 2):
        split = split_of(16, 4, Choices(embed_layers=e, head_layers=2 - e))
        assert split.first + split.last + 2 * split.full == 16
    # with no layer on the first stage, the second one is the fullest
    s = structure(architecture(MODEL), 1024, Choices(), problem_of(asked()).recipe)
    kinds = stages_of(s.layers, 4, 16, Choices(embed_layers=2))
    assert [float(k.share) for k in kinds] == pytest.approx([3 / 16, 5 / 16, 3 / 16])
    assert [float(k.flight) for k in kinds] == [4, 3, 1]


def test_what_a_mesh_cannot_have_is_refused(capsys):
    words = ["step", "llama-3-8b", "--on", "h100:8", "--batch", "512k"]
    assert run([*words, "--mesh", "fsdp=8", "--schedule", "zb-h1"]) == 2
    assert "means nothing without pipeline ways" in capsys.readouterr().err
    assert run([*words, "--mesh", "pipeline=8", "--chunks", "3"]) == 2
    assert "must divide the layers" in capsys.readouterr().err
    assert run([*words, "--mesh", "pipeline=8", "--chunks", "2", "--schedule", "gpipe"]) == 2
    assert "only 1f1b" in capsys.readouterr().err
    assert run([*words, "--mesh", "pipeline=8", "--schedule", "dualpipe", "--microbatches", "8"]) == 2
    assert "at least two microbatches" in capsys.readouterr().err
    with pytest.raises(InputError, match="without pipeline"):
        plan(asked(), fixed={"pipeline": 1}, limits=Limits({"schedule": ("zb-h1",)}))


def test_a_schedule_is_saved_read_and_drawn(tmp_path, capsys):
    file = tmp_path / "plan.json"
    words = ["--on", "h100:8", "--batch", "512k", "--chunks", "2", "--remat", "full", "--save", str(file)]
    assert run(["step", "llama-3-8b", *words, "--mesh", "pipeline=8", "--timeline"]) == 0
    capsys.readouterr()
    assert run(["step", "--plan", str(file)]) == 0
    assert "2 interleaved chunks" in capsys.readouterr().out
    file.write_text(file.read_text().replace('"chunks": 2', '"chunks": 7'))
    assert run(["step", "--plan", str(file)]) == 2
    assert "must divide the layers" in capsys.readouterr().err
