"""Derivatives by every number of a question: those of the formulas themselves, beside differences of neighbouring questions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from rooftop import codesign, inference, training
from rooftop.codesign import Scenario, Settled, changed, current, elasticities, hardware_numbers
from rooftop.codesign._answers import serving_question, training_question
from rooftop.formula import ceil, given, gradient, maximum, minimum, total
from rooftop.hardware import slice_of
from rooftop.roofline import calibration_for
from rooftop.transformer import architecture

DENSE = Scenario(
    "step", architecture("llama-3-8b"), slice_of("h100:32"), {"batch": 512 * 1024}, {"fsdp": 8, "tensor": 4}
)
TORUS = Scenario(
    "step", architecture("llama-3-8b"), slice_of("v5p:4x4x4"), {"batch": 2**20}, {"fsdp": 8, "tensor": 4, "data": 2}
)
PIPED = Scenario("step", architecture("llama-3-8b"), slice_of("h100:64"), {"batch": 2**20, "microbatches": 16},
                 {"fsdp": 2, "tensor": 8, "pipeline": 4})  # fmt: skip
MOE = Scenario("step", architecture("mixtral-8x7b"), slice_of("h100:64"), {"batch": 2**20}, {"fsdp": 8, "expert": 8})


def test_gradients_of_operations() -> None:
    x, y = given(3.0, "x"), given(0.5, "y")
    of = {
        x * y - y / x: (0.5 + 0.5 / 9, 3.0 - 1 / 3),
        x**y: (0.5 * 3**-0.5, math.sqrt(3) * math.log(3)),
        2.0**y: (0.0, math.sqrt(2) * math.log(2)),
        maximum(x, y) + minimum(x * x, 10.0): (7.0, 0.0),
        total([x, x, y]): (2.0, 1.0),
        ceil(y): (0.0, 0.0),  # flat within a step
        ceil(x) * 2: (2.0, 0.0),  # at a whole number: the line through the steps
    }
    for quantity, expected in of.items():
        assert gradient(quantity, [x, y]) == pytest.approx(expected)


@examples(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.1, 10))
@settings(max_examples=50, deadline=None)
def test_gradients_are_slopes(a: float, b: float, c: float) -> None:
    def f(x: Any, y: Any, z: Any) -> Any:
        return maximum(x * y, z / x) + (x + z) ** 1.5 / (1 + minimum(y, 2 * z)) - total([x, y * z])

    traced = [given(v, n) for v, n in zip((a, b, c), "xyz", strict=True)]
    slopes = gradient(f(*traced), traced)
    for i, slope in enumerate(slopes):
        up, down = ([v * (1 + s) if i == k else v for k, v in enumerate((a, b, c))] for s in (1e-6, -1e-6))
        step = 2e-6 * (a, b, c)[i]
        near_tie = abs(a * b - c / a) < 1e-4 * a * b or abs(b - 2 * c) < 1e-4 * b
        assert near_tie or slope == pytest.approx((f(*up) - f(*down)) / step, rel=1e-4, abs=1e-6)


def _fixed(scenario: Scenario, plan: training.Plan) -> dict[str, float]:
    """Measures of a plan under the numbers of a scenario."""
    problem = training.problem_of(training_question(scenario))
    step = training.evaluate(problem, plan, with_parts=False)
    return {
        "step_seconds.expected": float(step.expected),
        "step_seconds.bound": float(step.bound),
        "memory.bytes": float(step.memory_bytes),
        "tokens_per_second": float(plan.batch_sequences * problem.seq / step.expected),
    }


def _measured(up: dict[str, float], down: dict[str, float], base: dict[str, float], share: float) -> dict[str, float]:
    return {n: (up[n] - down[n]) / (2 * share * base[n]) for n in base}


@pytest.mark.parametrize("scenario", [DENSE, TORUS, PIPED, MOE], ids=["dense", "torus", "pipeline", "experts"])
def test_of_training_by_hardware(scenario: Scenario) -> None:
    plan = codesign.planned(scenario)
    found, base = elasticities(scenario, Settled(plan)), _fixed(scenario, plan)
    for name in hardware_numbers(scenario):
        value = current(scenario, name)
        up, down = (_fixed(changed(scenario, {name: value * (1 + s)}), plan) for s in (1e-5, -1e-5))
        for measure, slope in _measured(up, down, base, 1e-5).items():
            assert found[name][measure] == pytest.approx(slope, abs=2e-6), (name, measure)


#: Steps that keep dimensions whole tiles on every chip.
_STEPS = {"model.d_model": 512, "model.d_ff": 1024, "model.vocab": 128, "model.layers": 4, "seq": 512}


@pytest.mark.parametrize(
    ("scenario", "names"),
    [(DENSE, ["model.d_model", "model.d_ff", "model.vocab", "model.layers"]), (TORUS, ["model.d_ff", "model.layers", "seq"]),
     (PIPED, ["model.d_ff", "model.layers"]), (MOE, ["model.d_ff", "model.layers", "model.vocab"])],
    ids=["dense", "torus", "pipeline", "experts"],
)  # fmt: skip
def test_of_training_by_the_model(scenario: Scenario, names: list[str]) -> None:
    # without waves: they make a saw of what is a line
    own = calibration_for(scenario.slice.chip.name, scenario.slice.chip.family)
    scenario = replace(scenario, calibration=replace(own, waves=0.0))
    plan = codesign.planned(scenario)
    found, base = elasticities(scenario, Settled(plan)), _fixed(scenario, plan)
    for name in names:
        value = current(scenario, name)
        step = _STEPS[name]
        up, down = (changed(scenario, {name: value + s}) for s in (step, -step))
        if name == "seq":  # as many tokens in fewer, longer sequences
            near = [
                _fixed(s, replace(plan, sequences=plan.sequences * value / (value + d)))
                for s, d in ((up, step), (down, -step))
            ]  # type: ignore[arg-type]
        else:
            near = [_fixed(s, plan) for s in (up, down)]
        for measure, slope in _measured(near[0], near[1], base, step / value).items():
            # differences over steps this long bend a little
            assert found[name][measure] == pytest.approx(slope, rel=0.02, abs=2e-3), (name, measure)


@pytest.mark.parametrize(
    ("model", "where", "options"),
    [("llama-3-8b", "h100:8", {"batch": 64}), ("mixtral-8x7b", "h100:8", {"batch": 4}), ("llama-3-8b", "v5e:2x4", {"batch": 128}),
     ("llama-3-70b", "h100:8", {"batch": 32, "offload": 0.9, "weights": "fp8"})],
)  # fmt: skip
def test_of_serving(model: str, where: str, options: dict[str, Any]) -> None:
    scenario = Scenario("serve", architecture(model), slice_of(where), options)
    question, limits = serving_question(scenario)
    best = inference.serve(question, limits, look_around=False).best
    found = elasticities(scenario, Settled(point=best))

    def at(here: Scenario) -> dict[str, float]:
        problem = inference.problem_of(serving_question(here)[0])
        p = inference.point(problem, best.at, best.batch)
        return {
            "tpot_seconds.expected": float(p.generate.tpot[1]), "tpot_seconds.bound": float(p.generate.tpot[0]),
            "ttft_seconds.expected": float(p.prefill.expected), "memory.bytes": float(p.generate.memory_bytes),
            "usd_per_million_tokens": float(p.usd_output or 0),
        }  # fmt: skip

    base = at(scenario)
    for name in hardware_numbers(scenario):
        value = current(scenario, name)
        up, down = (at(changed(scenario, {name: value * (1 + s)})) for s in (1e-5, -1e-5))
        for measure, slope in _measured(up, down, base, 1e-5).items():
            assert found[name][measure] == pytest.approx(slope, abs=5e-6), (name, measure)
    for name, step in (("model.layers", 4), ("model.d_ff", 2048), ("output", 32)):
        value = current(scenario, name)
        up, down = (at(changed(scenario, {name: value + s})) for s in (step, -step))
        for measure in ("tpot_seconds.bound", "memory.bytes"):
            slope = _measured(up, down, base, step / value)[measure]
            assert found[name][measure] == pytest.approx(slope, rel=0.02, abs=1e-3), (name, measure)


@pytest.mark.parametrize("scenario", [DENSE, TORUS, PIPED, MOE], ids=["dense", "torus", "pipeline", "experts"])
def test_shares_of_hardware_are_all_of_the_time(scenario: Scenario) -> None:
    """Twice all rates and half of all delays take half the time (Euler): so shares of all numbers add up to one."""
    own = calibration_for(scenario.slice.chip.name, scenario.slice.chip.family)
    quiet = replace(own, op_overhead=0.0, step_overhead=0.0, cast=0.0, attention_overhead=0.0, latencies={})
    found = elasticities(replace(scenario, calibration=quiet), Settled(codesign.planned(scenario)))
    for measure in ("step_seconds.expected", "step_seconds.bound"):
        each = [(name, found[name][measure] or 0.0) for name in hardware_numbers(scenario)]
        assert sum(e if name.endswith("latency") else -e for name, e in each) == pytest.approx(1.0, abs=1e-9)
        assert all(
            e >= 0 if name.endswith("latency") else e <= 0 for name, e in each
        )  # no step is slower on faster hardware


WINDOWED = Scenario(
    "step", architecture("gemma-3-27b"), slice_of("v5p:4x4x4"), {"batch": 2**21, "seq": 8192}, {"fsdp": 64}
)


@pytest.mark.parametrize(
    ("name", "low", "high"), [("model.window", 768, 1280), ("model.kv_heads", 8, 32), ("model.head_dim", 64, 192)]
)
def test_of_windows_and_heads(name: str, low: int, high: int) -> None:
    """What is no line: a window is a trapezium of the scores, heads of keys change their groups."""
    plan = codesign.planned(WINDOWED)
    found, base = elasticities(WINDOWED, Settled(plan)), _fixed(WINDOWED, plan)
    value = current(WINDOWED, name)
    less, more = (_fixed(changed(WINDOWED, {name: v}), plan)["step_seconds.bound"] for v in (low, high))
    slope = (more - less) / (high - low) * value / base["step_seconds.bound"]
    assert found[name]["step_seconds.bound"] == pytest.approx(slope, rel=0.05, abs=1e-4)
    assert slope > 0
