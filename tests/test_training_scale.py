"""Strong scaling: counts of chips, slices for them, and the curve."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rooftop.cli import run
from rooftop.errors import InputError, NoAnswer
from rooftop.hardware import slice_of, standard_slices
from rooftop.training import Question, Wish, chip_counts, choose, fewest, plan, scale, usd_per_token
from rooftop.training._scale import slices_of
from rooftop.transformer import architecture

SMALL = "layers=4,d_model=1024,heads=8,d_ff=4096,vocab=32000"


def test_counts() -> None:
    assert chip_counts("64..512") == [64, 128, 256, 512]
    assert chip_counts(" 3 .. 20 ") == [3, 6, 12]
    assert chip_counts("96,64, 64") == [64, 96]


@pytest.mark.parametrize("text", ["", "x", "0..8", "8..4", "1..999999999", "1;2", "-4..8", "4.5..9"])
def test_bad_counts(text: str) -> None:
    with pytest.raises(InputError, match="range of chips"):
        chip_counts(text)


def test_slices_are_standard_shapes_and_whole_pods() -> None:
    assert [s.name for s in slices_of("v5e", [16, 256, 1024])] == ["v5e:4x4", "v5e:16x16", "v5e:16x16*4"]
    assert [s.chips for s in slices_of("h100", [4, 8, 64])] == [4, 8, 64]
    with pytest.raises(InputError):
        list(slices_of("v5e", [17]))


def test_the_curve_rises_and_says_where_it_bends() -> None:
    question = Question(architecture(SMALL), slice_of("h100"), batch=64 * 1024, seq=1024)
    curve = scale(question, [1, 4, 16, 64])
    rates = [p.tokens_per_second for p in curve.points]
    assert rates == sorted(rates)
    per_chip = [p.tokens_per_second / p.where.chips for p in curve.points]
    assert curve.bend is not None
    position = curve.points.index(curve.bend)
    assert per_chip[position] < 0.8 * max(per_chip)
    assert all(rate >= 0.8 * max(per_chip) for rate in per_chip[per_chip.index(max(per_chip)) : position])
    assert "of the step" in curve.why


def test_a_point_without_a_plan_says_why() -> None:
    question = Question(architecture("llama-3-8b"), slice_of("h100"), batch=1e6)
    curve = scale(question, [1, 8])
    assert curve.points[0].best is None
    assert "does not fit" in curve.points[0].reason
    assert curve.points[1].best is not None


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", SMALL, "--on", "h100", "--batch", "64k", "--seq", "1024", "--scale", "4..16", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [p["chips"] for p in data["points"]] == [4, 8, 16]
    assert run(["plan", SMALL, "--on", "h100", "--batch", "64k", "--seq", "1024", "--scale", "4..16"]) == 0
    assert "bends" in capsys.readouterr().out.replace("does not bend", "bends")


def test_fewest_chips_for_a_deadline() -> None:
    question = Question(architecture("llama-3-8b"), slice_of("h100"), batch=1e6, tokens=1e11)
    answer = fewest(question, Wish(seconds=86400), keep=1)
    assert answer.run is not None
    assert answer.run.seconds <= 86400
    half = answer.question.slice.chips // 2
    smaller = plan(Question(architecture("llama-3-8b"), slice_of(f"h100:{half}"), batch=1e6, tokens=1e11), keep=1)
    assert smaller.run is not None
    assert smaller.run.seconds > 86400


def test_budgets_and_deadlines_that_cannot_be_met(unpriced: str) -> None:
    question = Question(architecture("llama-3-8b"), slice_of("h100"), batch=1e6, tokens=1e11)
    with pytest.raises(NoAnswer, match="USD are wanted"):
        fewest(question, Wish(usd=10), keep=1)
    with pytest.raises(InputError, match="--tokens"):
        fewest(Question(architecture("llama-3-8b"), slice_of("h100")), Wish(usd=10))
    with pytest.raises(InputError, match="--price"):
        fewest(Question(architecture("llama-3-8b"), slice_of(unpriced), tokens=1e12), Wish(usd=10))
    with pytest.raises(NoAnswer, match="h100:16 takes"):
        fewest(
            Question(architecture("llama-3-8b"), slice_of("h100:16"), batch=1e6, tokens=1e12),
            Wish(seconds=3600),
            keep=1,
        )


def test_chips_days_and_budget_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "llama-3-8b", "--on", "h100", "--batch", "1M", "--tokens", "100B"]
    assert run([*words, "--chips", "16", "--days", "30", "--budget", "2M", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["slice"] == "h100:16"
    assert data["run"]["usd"] <= 2e6
    assert run([*words, "--days", "1", "--scale", "4..8"]) == 2
    assert "--days would change nothing here" in capsys.readouterr().err
    assert run([*words, "--days", "soon"]) == 2
    assert "--days" in capsys.readouterr().err


def test_objectives_over_the_standard_slices() -> None:
    question = Question(architecture(SMALL), slice_of("v5e"), batch=64 * 1024, seq=1024, tokens=1e9)
    every = []
    for name in standard_slices("v5e"):
        try:
            every.append(plan(replace(question, slice=slice_of(name)), keep=1))
        except NoAnswer:
            continue
    fastest, cheapest = choose(question, "time", keep=1), choose(question, "cost", keep=1)
    assert fastest.best.seconds_per_token == min(a.best.seconds_per_token for a in every)
    assert usd_per_token(cheapest) == min(u for a in every if (u := usd_per_token(a)) is not None)
    # by algebra the same
    assert choose(question, "tokens-per-dollar", keep=1).best == cheapest.best
    assert choose(question, "chips", keep=1).best == every[0].best
    # a deadline holds whatever the objective
    assert fastest.run is not None
    assert cheapest.run is not None
    deadline = (fastest.run.seconds + cheapest.run.seconds) / 2
    hurried = choose(question, "cost", Wish(seconds=deadline), keep=1)
    assert hurried.run is not None
    assert hurried.run.seconds <= deadline
    meeting = [a.run.usd for a in every if a.run is not None and a.run.usd is not None and a.run.seconds <= deadline]
    assert hurried.run.usd == pytest.approx(min(meeting), rel=1e-12)


def test_objectives_that_cannot_be_asked_are_refused(unpriced: str) -> None:
    question = Question(architecture(SMALL), slice_of("v5e"), batch=64 * 1024, seq=1024)
    with pytest.raises(InputError, match="unknown objective"):
        choose(question, "speed")
    with pytest.raises(InputError, match="--price"):
        choose(replace(question, slice=slice_of(unpriced)), "cost")


def test_the_pareto_set_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", SMALL, "--on", "h100:8", "--batch", "64k", "--seq", "1024", "--pareto"]
    assert run([*arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    points = [(p["seconds_per_token"], p["memory_bytes"], p["chips"]) for p in answer["pareto"]]
    assert len(points) > 3
    assert all(not all(x <= y for x, y in zip(p, q, strict=True)) for p in points for q in points if p is not q)
    best = answer["best"]
    assert points[0][0] == pytest.approx(best["step_seconds"]["expected"] / best["batch_tokens"], rel=1e-9)
    assert answer["pareto"][0]["step_seconds"] / answer["pareto"][0]["batch_tokens"] == pytest.approx(points[0][0])
    assert run(arguments) == 0
    assert f"Pareto set: {len(points)} plans" in capsys.readouterr().out
