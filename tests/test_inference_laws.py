"""Laws of serving: bounds, bandwidth, precision, windows, and one function for one configuration or many."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rooftop.hardware import slice_of
from rooftop.inference import Limits, Question, Scene, explain_point, point, problem_of
from rooftop.inference._search import arrays, configuration, configurations
from rooftop.roofline import ideal
from rooftop.transformer import architecture

SMALL = "layers=5,d_model=512,heads=8,kv_heads=2,d_ff=1536,vocab=32000"
MODELS = (SMALL, "llama-3-8b", "gemma-3-1b", "gpt-oss-20b", "mixtral-8x7b")
SLICES = ("v5e:4x4", "h100:8", "v5p:2x2x4", "h100", "h100:16")
DRAFTS = (0, 3)
_ROWS: dict = {}


def law(examples=25):
    return settings(max_examples=examples, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])


def rows_of(model, where):
    if (model, where) not in _ROWS:
        of = problem_of(Question(architecture(model), slice_of(where), prompt=256, output=64))
        _ROWS[model, where] = [
            configuration(layout, m, f) for layout, mesh, factors in configurations(of, Limits())
            for m, f in zip(mesh[:: max(1, len(mesh) // 9)], factors[:: max(1, len(mesh) // 9)], strict=True)
        ]  # fmt: skip
    return _ROWS[model, where]


@st.composite
def scenes(draw, models=MODELS):
    """A problem and one of its configurations."""
    model, where = draw(st.sampled_from(models)), draw(st.sampled_from(SLICES))
    drafted = draw(st.sampled_from(DRAFTS))
    question = Question(
        architecture(model), slice_of(where), prompt=draw(st.sampled_from((16, 256, 1000))), output=64,
        weights=draw(st.sampled_from((None, "fp8", "int4"))), kv=draw(st.sampled_from((None, "int8"))),
        chunk=draw(st.sampled_from((0, 128))), prefix_hits=draw(st.sampled_from((0.0, 0.5))),
        draft=architecture(model) if drafted else None, draft_tokens=drafted, acceptance=0.6,
        calibration=ideal() if draw(st.booleans()) else None,
    )  # fmt: skip
    return problem_of(question), draw(st.sampled_from(rows_of(model, where))), draw(st.sampled_from((1, 3, 16, 200)))


@law(60)
@given(scenes())
def test_nothing_is_faster_than_its_bound(drawn):
    of, at, batch = drawn
    p = point(of, at, batch)
    step = p.generate.step
    assert 0 < step.bound <= step.expected * (1 + 1e-9)
    assert step.bound == pytest.approx(max(step.resources.values()), rel=1e-12)
    assert 0 < p.prefill.bound <= p.prefill.expected * (1 + 1e-9)
    assert p.generate.memory_bytes == pytest.approx(sum(p.generate.memory.values()))


@law()
@given(scenes())
def test_parts_add_up_to_the_step(drawn):
    of, at, batch = drawn
    step = point(of, at, batch).generate.step
    assert sum(x.seconds - x.overlapped for x in step.parts) == pytest.approx(step.expected, rel=1e-6)


@law()
@given(scenes())
def test_more_bandwidth_never_slows_a_step(drawn):
    of, at, batch = drawn
    chip = of.slice.chip
    fast = replace(of, slice=replace(of.slice, chip=replace(chip, hbm_bandwidth=2 * chip.hbm_bandwidth)))
    slow, quick = Scene(of, at), Scene(fast, at)
    assert quick.generate(batch).step.expected <= slow.generate(batch).step.expected * (1 + 1e-12)
    assert quick.prefill().expected <= slow.prefill().expected * (1 + 1e-12)


@law()
@given(scenes())
def test_fewer_bits_never_need_more_memory(drawn):
    of, at, batch = drawn

    def memory(**change):
        return Scene(problem_of(replace(of.question, **change)), at).generate(batch).memory_bytes

    assert memory(weights="fp8") <= memory(weights="bf16")
    assert memory(weights="int4") <= memory(weights="fp8")
    assert memory(kv="int8") <= memory(kv="bf16")


@law()
@given(scenes(), st.integers(1, 6))
def test_larger_batches_take_longer_and_more(drawn, times):
    of, at, batch = drawn
    small, large = Scene(of, at).generate(batch), Scene(of, at).generate(batch * times)
    assert small.step.expected <= large.step.expected * (1 + 1e-12)
    assert small.memory_bytes <= large.memory_bytes * (1 + 1e-12)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("where", ["v5e:4x4", "h100:8"])
def test_many_at_once_are_those_one_by_one(model, where):
    of = problem_of(Question(architecture(model), slice_of(where), prompt=300, output=50))
    batches = np.array([[1.0, 7.0, 64.0]])
    for layout, mesh, factors in configurations(of, Limits()):
        many = Scene(of, arrays(layout, mesh, factors))
        generated, prefilled = many.generate(batches, detail=False), many.prefill(detail=False)
        for row in range(0, len(mesh), max(1, len(mesh) // 5)):
            one = Scene(of, configuration(layout, mesh[row], factors[row]))
            shape = (len(mesh), 3)
            assert np.broadcast_to(prefilled.expected, (len(mesh), 1))[row, 0] == pytest.approx(
                one.prefill().expected, rel=1e-9
            )
            for column, batch in enumerate(batches[0].astype(int).tolist()):
                each = one.generate(batch)
                assert np.broadcast_to(generated.step.expected, shape)[row, column] == pytest.approx(
                    each.step.expected, rel=1e-9
                )
                assert np.broadcast_to(generated.memory_bytes, shape)[row, column] == pytest.approx(
                    each.memory_bytes, rel=1e-9
                )


@law(10)
@given(scenes(models=(SMALL, "mixtral-8x7b")))
def test_explanations_are_of_the_same_numbers(drawn):
    of, at, batch = drawn
    p = point(of, at, batch)
    for quantity, value in (
        ("tpot", p.generate.tpot[1]), ("step_seconds.bound", p.generate.step.bound), ("ttft", p.prefill.expected),
        ("memory", p.generate.memory_bytes), ("usd", p.usd_output), ("usd.input", p.usd_input),
        ("tokens_per_second", p.tokens_per_second),
    ):  # fmt: skip
        assert explain_point(p, quantity).value == pytest.approx(value, rel=1e-9)


def test_a_window_caps_the_cache():
    windowed = architecture("gemma-3-1b")
    at = rows_of("gemma-3-1b", "h100")[0]

    def cache(prompt):
        of = problem_of(Question(windowed, slice_of("h100"), prompt=prompt, output=16))
        return Scene(of, at).generate(1).memory["kv cache"]

    local = [layer for layer in windowed.stack if layer.mixer.window]
    grown = cache(20000) - cache(10000)
    # only layers without a window keep the further 10,000 positions: 4 global ones of 26, 1 KV head of 256
    assert grown == 10000 * 2 * 2 * 256 * (len(windowed.stack) - len(local))
