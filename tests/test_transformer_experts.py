"""Mixtures of experts: empty slots, stored bytes against published checkpoints, the plan's words about both."""

from __future__ import annotations

import pytest

from rooftop.errors import InputError
from rooftop.hardware import slice_of
from rooftop.training import Question, plan
from rooftop.transformer import (
    architecture,
    flops_per_token,
    models,
    parameters,
    programs,
    training_flops_per_token,
    weight_bytes,
    with_capacity,
)

EXPERTS = [name for name in models() if architecture(name).experts]


@pytest.mark.parametrize("name", EXPERTS)
def test_empty_slots_are_no_use_to_a_token(name):
    model = architecture(name)
    wide = with_capacity(model, 1.5)
    assert parameters(wide) == parameters(model)
    assert flops_per_token(wide, 2048).parts == pytest.approx(flops_per_token(model, 2048).parts)
    assert training_flops_per_token(wide, 2048) == pytest.approx(training_flops_per_token(model, 2048))
    slots = [
        (a.program.axes["C"].coefficient, b.program.axes["C"].coefficient)
        for a, b in zip(programs(model, 2048).blocks, programs(wide, 2048).blocks, strict=True)
        if "C" in a.program.axes
    ]
    assert slots
    assert all(wide == pytest.approx(1.5 * even) for even, wide in slots)


@pytest.mark.parametrize("factor", [0, -1, float("nan"), 1e9])
def test_odd_capacity_factors_are_refused(factor):
    with pytest.raises(InputError, match="capacity factor"):
        with_capacity(architecture("mixtral-8x7b"), factor)


def test_a_dense_model_has_no_capacity_factor():
    with pytest.raises(InputError, match="no experts"):
        with_capacity(architecture("llama-3-8b"), 1.25)


def test_more_slots_make_a_step_slower_and_its_mfu_smaller():
    where = slice_of("h100:16")
    times, mfus = [], []
    for factor in (1.0, 2.0):
        answer = plan(Question(with_capacity(architecture("mixtral-8x7b"), factor), where, batch=2**18), keep=1)
        times.append(float(answer.best.step.expected) / answer.best.batch_tokens)
        mfus.append(answer.best.mfu[1])
        assert any(line.startswith("experts:") for line in answer.assumptions)
    assert times[0] < times[1] < 2.5 * times[0]
    assert mfus[0] > mfus[1] > 0.4 * mfus[0]


def test_stored_bytes_are_those_of_published_checkpoints():
    """Sizes of the safetensors files of the repositories; DeepSeek-V3 stores copies of the embedding and the head."""
    deepseek = architecture("deepseek-v3")
    copies = 2 * 2 * deepseek.vocab * deepseek.d_model
    assert sum(weight_bytes(deepseek).values()) + copies == pytest.approx(688_586_727_753, rel=1e-4)


def test_a_quantised_checkpoint_counts_its_scales():
    """MiniMax-M2.5 holds 228,703,644,928 numbers, a scale for each 128 x 128 of its matrices among them."""
    model = architecture("minimax-m2.5")
    count = parameters(model)
    blocks = sum(n for part, n in count.parts.items() if part in dict(model.formats)) / 128**2
    assert not count.beside
    assert any("not in the published checkpoint" in note for note in model.notes)
    assert count.total + blocks == pytest.approx(228_703_644_928, abs=100)
