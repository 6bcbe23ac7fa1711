"""Compute-optimal training, checkpoints by bandwidth, chips in reserve."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooftop.cli import run
from rooftop.training import loss, optimum_of, six_nd, tokens_for
from rooftop.training._failures import availability
from rooftop.transformer import architecture, parameters


def answer(capsys, *words):
    assert run([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_chinchilla_itself():
    """70B parameters and 1.4T tokens took 5.76e23 FLOPs (Hoffmann et al., 2022, section 4)."""
    rule, third = optimum_of(5.76e23)
    assert rule.parameters == pytest.approx(70e9, rel=0.02)
    assert rule.tokens == pytest.approx(1.4e12, rel=0.02)
    # table 3 of the paper: approach 3 asks for about 40B parameters there
    assert third.parameters == pytest.approx(40e9, rel=0.25)


@given(st.floats(1e18, 1e27), st.floats(0.8, 1.25))
def test_approach_3_is_the_lowest_loss_of_a_budget(flops, factor):
    best = optimum_of(flops)[1]
    assert six_nd(best.parameters, best.tokens) == pytest.approx(flops)
    other = best.parameters * factor
    assert loss(best.parameters, best.tokens) <= loss(other, flops / 6 / other) * (1 + 1e-12)
    assert tokens_for(best.parameters)[1].tokens == pytest.approx(best.tokens)


@given(st.floats(0.01, 5000), st.integers(0, 60))
def test_more_in_reserve_is_never_less_available(failing, spares):
    found = availability(failing, spares)
    assert len(found) == spares + 1
    assert all(0 <= a <= b <= 1 for a, b in itertools.pairwise(found))


def test_availability_is_poisson():
    found = availability(2.0, 3)
    assert found == pytest.approx([math.exp(-2) * x for x in (1, 3, 5, 5 + 8 / 6)])
    assert availability(690.0, 700)[-1] == pytest.approx(availability(710.0, 720)[-1], abs=0.02)


PLAN = ("plan", "llama-3-8b", "--on", "h100:64", "--batch", "1M", "--alternatives", "0")


def test_tokens_of_chinchilla(capsys):
    told = answer(capsys, *PLAN, "--tokens", "chinchilla")
    count = parameters(architecture("llama-3-8b")).total
    assert told["run"]["tokens"] == 20 * count
    assert told["run"]["flops_6nd"] == pytest.approx(6 * count * 20 * count)
    assert told["run"]["flops_6nd"] == pytest.approx(told["run"]["flops"], rel=0.1)
    assert any("Hoffmann" in line for line in told["assumptions"])


def test_a_checkpoint_takes_its_size_over_the_bandwidth(capsys):
    words = [*PLAN, "--tokens", "1T", "--failures", "llama-3"]
    told = answer(capsys, *words, "--checkpoint-bandwidth", "2GB/s")
    # bf16 weights and two fp32 moments
    size = parameters(architecture("llama-3-8b")).total * 10
    assert told["run"]["goodput"]["checkpoint_seconds"] == pytest.approx(size / 2e9)
    faster = answer(capsys, *words, "--checkpoint-bandwidth", "200GB/s")
    assert faster["run"]["goodput"]["fraction"] > told["run"]["goodput"]["fraction"]


def test_chips_in_reserve_are_paid_and_buy_time(capsys):
    words = [*PLAN, "--tokens", "1T", "--failures", "2000", "--repair", "2d"]
    few, many = (answer(capsys, *words, "--spares", n)["run"] for n in ("2", "8"))
    assert many["goodput"]["fraction"] > few["goodput"]["fraction"]
    assert many["goodput"]["available_with_spares"][:3] == few["goodput"]["available_with_spares"]
    assert many["chip_hours"] * 3600 == pytest.approx(many["seconds"] * 72)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["scaling"], "give one of"),
        (["scaling", "llama-3-8b", "--flops", "1e24"], "give one of"),
        (["scaling", "--on", "h100:8", "--days", "3"], "all three"),
        (["scaling", "--on", "h100:8", "--days", "3", "--mfu", "1.5"], "utilisation"),
        (["scaling", "--flops", "1e300"], "is not a number"),
        ([*PLAN, "--tokens", "1T", "--spares", "3"], "--failures"),
        ([*PLAN, "--tokens", "1T", "--failures", "llama-3", "--repair", "3h"], "--spares"),
        ([*PLAN, "--tokens", "1T", "--failures", "100", "--spares", "0", "--repair", "9d"], "more --spares"),
        (
            [*PLAN, "--tokens", "1T", "--failures", "9", "--checkpoint-seconds", "3", "--checkpoint-bandwidth", "1GB"],
            "nothing",
        ),
    ],
)
def test_what_is_refused(capsys, words, says):
    assert run(words) == 2
    assert says in capsys.readouterr().err


def test_the_command(capsys):
    told = answer(capsys, "scaling", "--on", "h100:1024", "--days", "30", "--mfu", "0.4")
    assert told["optima"][0]["flops_6nd"] == pytest.approx(30 * 86400 * 1024 * 989e12 * 0.4)
    assert run(["scaling", "llama-3-8b"]) == 0
    assert "approach 3" in capsys.readouterr().out
