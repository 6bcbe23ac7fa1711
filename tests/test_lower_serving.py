"""The served reference: prompts read and tokens generated from sharded caches give the logits of the whole sequence at once."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from rooftop.errors import InputError
from rooftop.inference import Layout
from rooftop.training import Choices
from rooftop.transformer import architecture

jax = pytest.importorskip("jax")

from test_lower_reference import F32, MODELS, mesh_of, weights_of  # noqa: E402

from rooftop.lower import list_hlo  # noqa: E402
from rooftop.lower._decoder import place  # noqa: E402
from rooftop.lower._reference import Reference  # noqa: E402
from rooftop.lower._serving import Serving  # noqa: E402

PROMPT, CAPACITY, BATCH = 40, 48, 8  # windows of the models are 32
LENGTHS = np.array([40, 37, 40, 1, 33, 8, 40, 12], np.int32)
TEXT = np.random.default_rng(1).integers(0, 256, (BATCH, CAPACITY), dtype=np.int32)


@functools.cache
def whole(name):
    """(weights, logits of all positions) by the forward pass of training on one device."""
    reference = Reference(MODELS[name], CAPACITY, Choices(), F32)
    weights = weights_of(reference)
    return weights, np.asarray(jax.jit(reference.logits)(weights, TEXT))


@pytest.mark.parametrize(
    ("name", "ways", "layout"),
    [
        ("dense", {"data": 2, "tensor_kv": 2, "tensor_q": 2}, Layout()),
        ("dense", {"fsdp": 2, "context": 2, "tensor_q": 2}, Layout(cache="sequence")),
        ("windows", {"fsdp": 2, "context": 2, "tensor_kv": 2}, Layout(weights="gathered")),
        ("windows", {"context": 4, "data": 2}, Layout()),
        ("experts", {"expert": 2, "data": 2, "tensor_kv": 2}, Layout()),
        ("experts", {"tensor_kv": 4, "fsdp": 2}, Layout(experts="whole")),
        ("latent", {"expert": 2, "tensor_kv": 2, "context": 2}, Layout(cache="sequence")),
    ],
)
def test_decoding_step_by_step_from_sharded_caches_is_attention_to_the_whole_sequence(name, ways, layout):
    weights, expected = whole(name)
    serving = Serving(MODELS[name], CAPACITY, layout, compute="fp32", mesh=mesh_of(**ways))
    params = place(weights, serving.shapes())
    logits, caches = jax.jit(serving.prefill)(params, TEXT[:, :PROMPT], LENGTHS)
    rows = np.arange(BATCH)
    near = {"rtol": 1e-4, "atol": 1e-4 * np.abs(expected).max()}
    np.testing.assert_allclose(logits, expected[rows, LENGTHS - 1], **near)
    like = serving.caches(BATCH)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), caches) == jax.tree.map(lambda a: (a.shape, a.dtype), like)
    for mine, home in zip(jax.tree.leaves(caches), jax.tree.leaves(like), strict=True):
        assert mine.sharding.is_equivalent_to(home.sharding, mine.ndim)
    step = jax.jit(serving.generate)
    for i in range(4):
        at = LENGTHS + i
        logits, caches = step(params, caches, TEXT[rows, at][:, None], at)
        np.testing.assert_allclose(logits[:, 0], expected[rows, at], **near)


def test_a_cache_that_is_split_along_the_sequence_stays_where_it_is():
    serving = Serving(
        MODELS["dense"], 1024, Layout(cache="sequence"), compute="fp32", mesh=mesh_of(context=2, tensor_q=4)
    )
    caches = serving.caches(2)
    tokens = jax.ShapeDtypeStruct((2, 1), np.int32)
    compiled = jax.jit(serving.generate).lower(serving.shapes(), caches, tokens, jax.ShapeDtypeStruct((2,), np.int32))
    moved = list_hlo(compiled.compile().as_text(), mesh=serving.mesh.shape).communicated()
    local = sum(a.size * 4 / 8 for a in jax.tree.leaves(caches))
    assert 0 < sum(bytes for _, bytes in moved.values()) < local / 10
    assert moved["all_reduce", ("tensor_q", "context")][0] == 3 * 2  # maximum, sum and values, in both layers


def test_a_draft_is_verified_in_one_step_even_where_windows_are_shorter():
    weights, expected = whole("windows")
    serving = Serving(MODELS["windows"], CAPACITY, tokens=3, compute="fp32")
    logits, caches = jax.jit(serving.prefill)(weights, TEXT[:, :PROMPT], LENGTHS)
    at = LENGTHS[:, None] + np.arange(3)
    logits, caches = jax.jit(serving.generate)(weights, caches, np.take_along_axis(TEXT, at, 1), LENGTHS)
    np.testing.assert_allclose(logits, expected[np.arange(BATCH)[:, None], at], rtol=1e-4, atol=1e-4)
    # two of the three are taken: what the third left in the ring is written over
    at += 2
    logits, caches = jax.jit(serving.generate)(weights, caches, np.take_along_axis(TEXT, at, 1), LENGTHS + 2)
    np.testing.assert_allclose(logits, expected[np.arange(BATCH)[:, None], at], rtol=1e-4, atol=1e-4)


def test_answers_are_the_likeliest_tokens_one_after_the_other():
    weights, _ = whole("dense")
    reference = Reference(MODELS["dense"], CAPACITY, Choices(), F32)
    serving = Serving(MODELS["dense"], CAPACITY, compute="fp32")
    found = jax.jit(serving.answer, static_argnums=3)(weights, TEXT[:2, :8], np.array([8, 5], np.int32), 4)
    text = np.array(TEXT[:2])
    for i in range(4):
        logits = np.asarray(jax.jit(reference.logits)(weights, text))
        at = np.array([8, 5]) + i
        text[[0, 1], at] = logits[[0, 1], at - 1].argmax(-1)
    assert found.tolist() == [text[0, 8:12].tolist(), text[1, 5:9].tolist()]


def test_what_is_not_served_is_refused_by_name():
    with pytest.raises(InputError, match="keeps state"):
        Serving(architecture("mamba-2.8b"), 16)
    with pytest.raises(InputError, match="not lowered"):
        Serving(architecture("t5-small"), 16)
    with pytest.raises(InputError, match="3 tokens"):
        Serving(MODELS["dense"], 2, tokens=3)
    serving = Serving(MODELS["dense"], 16)
    weights = serving.shapes()
    with pytest.raises(InputError, match="20 tokens"):
        jax.eval_shape(serving.prefill, weights, TEXT[:, :20], LENGTHS)
    with pytest.raises(InputError, match="9 more"):
        jax.eval_shape(lambda *a: serving.answer(*a, 9), weights, TEXT[:, :16], LENGTHS)
