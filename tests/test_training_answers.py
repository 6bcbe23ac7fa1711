"""Questions and their answers: named plans, refusals, no answer, runs, and golden plans."""

import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rooftop.errors import InputError, NoAnswer
from rooftop.hardware import slice_of
from rooftop.training import MESH_AXES, Choices, Limits, Question, explain_estimate, named_plan, plan, recipe, step_of
from rooftop.transformer import architecture
from rooftop.views._explain import explanation_text
from rooftop.views._plan import answer_json

GOLDENS = Path(__file__).parent / "goldens"
SMALL = "layers=4,d_model=1024,heads=8,kv_heads=2,d_ff=4096,vocab=32000"


def question(model="llama-3-8b", where="v5e:4x4", **options):
    return Question(architecture(model), slice_of(where), **options)


def test_a_named_plan_has_the_mesh_and_the_schedule_that_were_named():
    asked = question("llama-3-8b", "v5p:4x4x4", batch=1e6)
    named = named_plan(asked, {"fsdp": 16, "tensor": 4}, choices=Choices(zero=2, remat="selective"), microbatches=2)
    assert {a: w for a, w in named.mesh.items() if w > 1} == {"fsdp": 16, "tensor": 4}
    assert (named.choices.remat, named.choices.zero, named.microbatches, named.chips) == ("selective", 2, 2, 64)
    assert step_of(asked, named).best.batch_tokens == pytest.approx(1e6, rel=0.1)


def test_a_plan_found_is_the_plan_named():
    asked = question(SMALL, "v5e:2x4", batch=64 * 1024, seq=1024)
    best = plan(asked, keep=1).best
    named = named_plan(asked, best.plan.mesh, microbatches=best.plan.microbatches, choices=best.plan.choices)
    assert step_of(asked, named).best.seconds_per_token == pytest.approx(best.seconds_per_token, rel=1e-9)


@pytest.mark.parametrize(
    ("mesh", "part"),
    [
        ({"tensor": 12}, r"tensor=12 does not divide"),
        ({"tensro": 4}, r"unknown mesh axis 'tensro'.*did you mean tensor"),
        ({"fsdp": 4}, r"takes 4 chips of the 16"),
        ({"fsdp": 64}, r"takes 64 chips of the 16"),
        ({"fsdp": 0}, r"fsdp=0 is not a number of ways"),
        ({"pipeline": 64}, r"pipeline=64 does not divide"),
        ({"expert": 16}, r"expert=16"),
        ({"fsdp": 3}, r"fsdp=3 does not divide"),
        ({"fsdp": 10}, r"fsdp=10 does not divide"),
    ],
)
def test_meshes_that_are_refused(mesh, part):
    with pytest.raises(InputError, match=part) as refused:
        named_plan(question(), mesh)
    assert "\n" not in refused.value.message
    assert refused.value.field == "mesh"


@pytest.mark.parametrize(
    "options",
    [
        {"choices": Choices(remat="some")},
        {"choices": Choices(zero=4)},
        {"choices": Choices(zero=-1)},
        {"microbatches": 10**6},
    ],
)
def test_schedules_that_are_refused(options):
    with pytest.raises(InputError):
        named_plan(question(), {"fsdp": 16}, **options)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"batch": 0.0}, "batch"), ({"batch": 100.0}, "batch"), ({"seq": 0}, "seq"), ({"seq": 10**9}, "seq"), ({"batch_within": 1.0}, "batch_within"),
        ({"batch_within": -0.1}, "batch_within"), ({"headroom": 1.0}, "headroom"), ({"headroom": -1.0}, "headroom"),
        ({"tokens": 10.0}, "tokens"), ({"batch_within": math.nan}, "batch_within"), ({"batch": math.nan}, "batch"), ({"batch": math.inf}, "batch"), ({"headroom": math.nan}, "headroom"),
    ],
)  # fmt: skip
def test_questions_that_are_refused(options, field):
    with pytest.raises(InputError) as refused:
        plan(question(SMALL, "v5e:2x2", **{"batch": 2.0**20, **options}), keep=1)
    assert refused.value.field == field


def test_unknown_recipes_are_refused():
    with pytest.raises(InputError):
        plan(question(precision="bf17"))
    with pytest.raises(InputError):
        plan(question(optimizer_dtype="int3"))


def test_what_does_not_fit_is_told_with_what_would():
    asked = question("llama-3-70b", "v5p:2x2x1", batch=1e6)
    with pytest.raises(NoAnswer) as refused:
        plan(asked, keep=1)
    message = refused.value.message
    assert refused.value.exit_code == 1
    match = re.search(r"takes ([\d.]+) GB of ([\d.]+) GB per chip, ([\d.]+) GB too much", message)
    need, have, excess = map(float, match.groups())
    assert have == pytest.approx(slice_of("v5p").chip.hbm_bytes / 1e9, rel=1e-3)
    assert excess == pytest.approx(need - have, abs=0.11)
    assert need * 4 > 70.6 * (2 + 8)  # at least weights and two fp32 moments
    larger = re.search(r"a slice of (\d+) chips \((v5p:[\dx]+)\)", message)
    assert int(larger[1]) == slice_of(larger[2]).chips
    assert plan(replace(asked, slice=slice_of(larger[2])), keep=1).best.fits


def test_leaner_states_are_proposed_where_they_fit():
    for layers in range(8, 60, 4):
        model = f"layers={layers},d_model=4096,heads=32,kv_heads=8,d_ff=14336,vocab=32000"
        asked = question(model, "v5e:2x2", batch=16 * 512, seq=512)
        try:
            plan(asked, keep=1)
        except NoAnswer as error:
            if "--optimizer-dtype bf16" in error.message:
                assert plan(replace(asked, optimizer_dtype="bf16"), keep=1).best.fits
                return
    pytest.fail("no size between fitting and not fitting by the optimizer")


def test_a_plan_that_does_not_fit_can_be_looked_at():
    asked = question("llama-3-70b", "v5p:2x2x1", batch=1e6)
    best = step_of(asked, named_plan(asked, {"fsdp": 4})).best
    assert not best.fits


def test_the_best_plan_fits_and_leads():
    answer = plan(question("llama-3-8b", "v5p:4x4x4", batch=1e6), keep=4)
    ranked = [answer.best, *answer.alternatives]
    assert all(e.fits for e in ranked)
    per_token = [e.seconds_per_token for e in ranked]
    assert per_token == sorted(per_token)
    assert len(answer.reasons) == 3
    assert all("slower" in r for r in answer.reasons)


def test_fixed_axes_and_limits_are_kept():
    limits = Limits({"zero": (1,), "remat": ("full",)}, microbatches=2)
    answer = plan(question(SMALL, "v5e:2x4", batch=64 * 1024, seq=1024), fixed={"tensor": 2}, limits=limits, keep=5)
    for e in (answer.best, *answer.alternatives):
        assert (e.plan.mesh["tensor"], e.plan.choices.zero, e.plan.choices.remat, e.plan.microbatches) == (
            2,
            1,
            "full",
            2,
        )


def test_headroom_and_batches_are_kept():
    asked = question("llama-3-8b", "v5e:16x16", batch=1e6, headroom=0.3, batch_within=0.02)
    best = plan(asked, keep=1).best
    assert best.step.memory_bytes <= 0.7 * asked.slice.chip.hbm_bytes
    assert best.batch_tokens == pytest.approx(1e6, rel=0.02)


def test_a_run_costs_chips_times_hours_times_price():
    answer = plan(question("llama-3-8b", "v5p:4x4x4", batch=1e6, tokens=1e12, price=2.0), keep=1)
    run = answer.run
    assert run.steps == pytest.approx(1e12 / answer.best.batch_tokens)
    assert run.seconds == pytest.approx(run.steps * answer.best.step.expected)
    assert run.usd == pytest.approx(run.seconds / 3600 * 64 * 2)
    assert run.flops == pytest.approx(answer.best.flops_per_token * 1e12)


def test_a_one_chip_question_has_an_answer():
    answer = plan(question("gemma-3-1b", "h100", batch=8 * 1024, seq=1024))
    assert answer.best.plan.chips == 1
    assert answer.alternatives == ()
    assert set(answer.best.step.resources) >= {"compute", "hbm"}


def test_answers_say_what_they_assume():
    answer = plan(question(SMALL, "v5e:2x2", tokens=1e9), keep=1)
    text = " ".join(answer.assumptions)
    for part in ("calibration", "4M tokens", "4096", recipe("bf16").sentence(), "price"):
        assert part in text


def test_unknown_quantities_cannot_be_explained():
    best = plan(question(SMALL, "v5e:2x2", batch=64 * 1024, seq=1024), keep=1).best
    with pytest.raises(InputError, match="cannot explain"):
        explain_estimate(best, "speed")


def rounded(value):
    """Numbers to nine digits, so that sums may be taken in another order."""
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items() if k != "searched"}
    if isinstance(value, list | tuple):
        return [rounded(v) for v in value]
    if isinstance(value, str | bool) or value is None:
        return value
    number = float(value)
    return float(f"{number:.9g}") if math.isfinite(number) else None


def drawn(renderable):
    from rich.console import Console

    console = Console(width=120, record=True, file=open(os.devnull, "w"), color_system=None, legacy_windows=False)  # noqa: SIM115
    with console.file:
        console.print(renderable)
        return "\n".join(line.rstrip() for line in console.export_text().splitlines()) + "\n"


def golden(name, text):
    """Compare with the stored text; UPDATE_GOLDENS=1 stores it anew."""
    path = GOLDENS / name
    if os.environ.get("UPDATE_GOLDENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{name} differs; look at it, then run again with UPDATE_GOLDENS=1"


QUESTIONS = {
    "tpu": (
        question("llama-3-8b", "v5e:16x16", batch=1e6, tokens=1e12),
        {"fsdp": 64, "tensor": 4},
        Choices(remat="selective"),
    ),
    "gpu": (
        question("llama-3-70b", "h100:64", batch=1e6, seq=8192),
        {"fsdp": 4, "tensor": 8, "pipeline": 2},
        Choices(zero=1, remat="full"),
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_golden_steps(name):
    asked, mesh, chosen = QUESTIONS[name]
    answer = step_of(asked, named_plan(asked, mesh, choices=chosen))
    assert set(answer.best.plan.mesh) == set(MESH_AXES)
    golden(f"step-{name}.json", json.dumps(rounded(answer_json(answer)), indent=1) + "\n")


def test_golden_explanation():
    asked, mesh, chosen = QUESTIONS["tpu"]
    best = step_of(asked, named_plan(asked, mesh, choices=chosen)).best
    golden("explain-step.txt", drawn(explanation_text(explain_estimate(best, "step_seconds", 2))))
    golden("explain-memory.txt", drawn(explanation_text(explain_estimate(best, "memory", 1))))
