"""Recipes of low precision: which matmuls run in it, what they read and keep, what the casts cost."""

from dataclasses import replace

import pytest

from rooftop.errors import InputError
from rooftop.hardware import slice_of
from rooftop.roofline import ideal
from rooftop.training import RECIPES, Choices, Limits, Question, estimate, named_plan, plan, problem_of
from rooftop.training._evaluate import evaluate
from rooftop.transformer import architecture

D, F, L, V, T = 4096, 16384, 4, 32000, 1024
MODEL = f"layers={L},d_model={D},heads=32,d_ff={F},vocab={V}"
LOW = [name for name, r in RECIPES.items() if r.matmul]


def of(precision, where="b200:8", mesh=None, **choices):
    question = Question(
        architecture(MODEL), slice_of(where), batch=32 * T, seq=T, calibration=ideal(), precision=precision
    )
    made = named_plan(question, mesh or {"fsdp": 8}, microbatches=1, choices=Choices(**choices))
    return problem_of(question), made


@pytest.mark.parametrize("precision", LOW)
def test_the_bound_runs_the_matmuls_of_blocks_at_the_low_rate(precision):
    """6 FLOPs for each parameter of a block and token at the low rate, of which int8 leaves the gradients of weights aside."""
    problem, made = of(precision)
    chip, e = problem.slice.chip, estimate(problem, made)
    rate = chip.flops[{"mxfp8": "fp8", "nvfp4": "fp4"}.get(precision, precision)]
    blocks = 2 * L * (4 * D * D + 3 * D * F) * 32 * T / 8
    low, high = (2, 1) if precision == "int8" else (3, 0)
    wide = estimate(*of("bf16-mixed"))
    saved = low * blocks * (1 / chip.flops["bf16"] - 1 / rate)
    assert wide.step.resources["compute"] - e.step.resources["compute"] == pytest.approx(saved, rel=1e-6)
    assert high * blocks / chip.flops["bf16"] < e.step.resources["compute"] < wide.step.resources["compute"]
    assert e.peak == rate
    assert e.mfu[0] <= 1


@pytest.mark.parametrize(("precision", "size"), [("fp8", 1), ("mxfp8", 1 + 1 / 32), ("nvfp4", 0.5 + 1 / 16)])
def test_casts_read_16_bits_and_write_twice(precision, size):
    problem, made = of(precision, "b200", {"data": 1})
    parts = {p.name: float(p.seconds) for p in estimate(problem, made).step.parts}
    tokens = 32 * T
    # in: the block's input, attention's output, the feed-forward input and its middle; all matrices
    there = tokens * (D + D + D + F) + 4 * D * D + 3 * D * F
    # gradients of q, k, v, of attention's output, of both halves of the feed-forward part and of its output
    back = tokens * (3 * D + D + 2 * F + D)
    bytes = L * (2 + 2 * size)
    hbm = problem.slice.chip.hbm_bandwidth
    assert parts["casts forward"] == pytest.approx(there * bytes / hbm, rel=0.02)
    assert parts["casts backward"] == pytest.approx(back * bytes / hbm, rel=0.02)


@pytest.mark.parametrize("precision", LOW)
def test_what_only_matmuls_read_is_kept_narrow(precision):
    wide, low = (estimate(*of(p, remat="none")).step.memory for p in ("bf16-mixed", precision))
    if precision == "int8":
        assert low == pytest.approx(wide)
        return
    assert low["saved activations"] < wide["saved activations"]
    assert {n: low[n] for n in ("weights", "gradients", "optimizer")} == pytest.approx(
        {n: wide[n] for n in ("weights", "gradients", "optimizer")}
    )


@pytest.mark.parametrize("precision", LOW)
def test_a_traced_step_and_the_search_say_the_same(precision):
    problem, made = of(precision)
    e = estimate(problem, made)
    assert float(evaluate(problem, made, traced=True).expected) == pytest.approx(e.step.expected, rel=1e-9)
    assert e.step.bound <= e.step.expected * (1 + 1e-9)
    question = Question(architecture(MODEL), slice_of("b200:8"), batch=32 * T, seq=T, precision=precision)
    answer = plan(question, limits=Limits({"zero": (3,)}))
    assert answer.outcome.found[0].seconds_per_token == pytest.approx(answer.best.seconds_per_token, rel=1e-9)


def test_fp8_is_faster_where_matmuls_bind_and_never_twice_as_fast():
    wide, low = (estimate(*of(p)).step.expected for p in ("bf16-mixed", "fp8"))
    assert 1 < wide / low < 2


@pytest.mark.parametrize(
    ("precision", "where"), [("mxfp8", "h100:8"), ("nvfp4", "h100:8"), ("fp8", "v5e:2x4"), ("int8", "b300:8")]
)
def test_a_chip_without_the_rate_is_refused(precision, where):
    with pytest.raises(InputError, match=f"which {precision} needs.*use --precision"):
        of(precision, where)


def test_recipes_are_replaced_field_by_field():
    assert replace(RECIPES["fp8"], matmul=None) == RECIPES["bf16-mixed"]
