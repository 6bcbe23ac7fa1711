"""The reference Transformer: the same loss and gradients sharded as unsharded, and the FLOPs that the planner counts."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from rooftop.errors import InputError
from rooftop.hardware import slice_of
from rooftop.training import Choices, Question, Recipe, named_plan, problem_of
from rooftop.transformer import architecture, flops_per_token, from_config, with_capacity

jax = pytest.importorskip("jax")

from rooftop.lower import list_ops  # noqa: E402
from rooftop.lower._attention import Mask, attention  # noqa: E402
from rooftop.lower._decoder import place  # noqa: E402
from rooftop.lower._mesh import AXES, chip_order, devices_at  # noqa: E402
from rooftop.lower._mesh import mesh_of as mesh_at  # noqa: E402
from rooftop.lower._reference import Reference  # noqa: E402

F32 = Recipe("fp32", "fp32", "fp32", "fp32")
SEQ = 64
_SMALL = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 256,
    "max_position_embeddings": 128, "tie_word_embeddings": False,
}  # fmt: skip
MODELS = {
    "dense": architecture("layers=2,d_model=64,heads=8,kv_heads=2,d_ff=96,vocab=256"),
    "deep": architecture("layers=4,d_model=32,heads=4,kv_heads=2,d_ff=64,vocab=256"),
    "experts": with_capacity(
        from_config(
            {**_SMALL, "model_type": "mixtral", "num_hidden_layers": 2, "num_local_experts": 4, "num_experts_per_tok": 2}, name="m"
        ), 4.0,
    ),
    "latent": with_capacity(
        from_config(
            {**_SMALL, "model_type": "deepseek_v2", "num_hidden_layers": 2, "moe_intermediate_size": 32, "n_routed_experts": 4,
             "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 32, "q_lora_rank": None,
             "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "num_key_value_heads": 8}, name="m"
        ), 4.0,
    ),
    "windows": from_config(
        {**_SMALL, "model_type": "gemma2", "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 32, "query_pre_attn_scalar": 16},
        name="m",
    ),
}  # fmt: skip


def tokens(sequences=8, microbatches=2):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (microbatches, sequences, SEQ), dtype=np.int32)


def weights_of(reference, seed=0):
    """Random weights from NumPy, which takes none of the compiler's time."""
    rng = np.random.default_rng(seed)

    def one(shape):
        values = rng.normal(1.0 if len(shape.shape) < 3 else 0.0, 1 / math.sqrt(shape.shape[-1]), shape.shape)
        return values.astype(shape.dtype)

    return jax.tree.map(one, reference.shapes("fp32"))


def gradients(model, choices, mesh):
    """(loss, gradients) of the same weights and tokens on a mesh, or on one device."""
    reference = Reference(model, SEQ, choices, F32, mesh)
    weights = place(weights_of(reference), reference.shapes("fp32"))
    text = tokens()
    loss, found = jax.jit(reference.gradients)(weights, text, text)
    return float(loss), jax.tree.map(np.asarray, found)


@functools.cache
def unsharded(name):
    return gradients(MODELS[name], Choices(), None)


def mesh_of(**ways):
    shape = [ways.get(axis, 1) for axis in AXES]
    return jax.sharding.Mesh(np.array(jax.devices()[: math.prod(shape)]).reshape(shape), AXES)


@pytest.mark.parametrize(
    ("name", "ways", "choices"),
    [
        ("dense", {"fsdp": 2, "tensor_kv": 2, "tensor_q": 2}, Choices(remat="none")),
        ("dense", {"fsdp": 4, "tensor_kv": 2}, Choices(remat="save:q,k,v,o,gate")),
        ("windows", {"data": 2, "fsdp": 2, "context": 2}, Choices(zero=1, remat="full")),
        ("experts", {"expert": 2, "fsdp": 2, "tensor_kv": 2}, Choices(zero=2, remat="selective")),
        ("experts", {"expert": 2, "fsdp": 2, "tensor_kv": 2}, Choices(expert_fold="tensor", expert_zero=1)),
        ("experts", {"expert": 2, "context": 2, "tensor_kv": 2}, Choices(expert_fold="context")),
        ("dense", {"fsdp": 2, "tensor_kv": 2, "transpose_kv": 2}, Choices(grid=True)),
        ("latent", {"fsdp": 2, "expert": 2, "tensor_kv": 2}, Choices(remat="full")),
        ("deep", {"pipeline": 2, "fsdp": 2, "tensor_kv": 2}, Choices(remat="full")),
        ("windows", {"pipeline": 2, "data": 2, "context": 2}, Choices(zero=1, remat="full")),
    ],
)
def test_a_sharded_step_has_the_loss_and_the_gradients_of_an_unsharded_one(name, ways, choices):
    loss, expected = unsharded(name)
    sharded, found = gradients(MODELS[name], choices, mesh_of(**ways))
    assert sharded == pytest.approx(loss, rel=1e-5)
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        assert np.abs(one - other).max() <= 2e-5 * np.abs(one).max() + 1e-8


def test_it_learns():
    reference = Reference(MODELS["dense"], SEQ, Choices(), F32)
    state, step = reference.start(), jax.jit(reference.step)
    text = tokens(microbatches=1)
    losses = []
    for _ in range(8):
        state, loss = step(state, text, np.roll(text, -1, axis=-1))
        losses.append(float(loss))
    assert losses[0] == pytest.approx(math.log(256), rel=0.1)
    assert losses[-1] < losses[0] - 0.05


@pytest.mark.parametrize("name", ["dense", "windows"])
def test_its_matmuls_are_those_that_the_planner_counts(name):
    """Masked blocks of attention are computed here; its backward pass makes the scores again: five products for two."""
    model = MODELS[name]
    reference = Reference(model, SEQ, Choices(), F32)
    text = jax.ShapeDtypeStruct((1, 8, SEQ), np.int32)
    counted = list_ops(reference.gradients, reference.shapes("fp32"), text, text).flops
    whole = 4 * SEQ * sum(layer.mixer.heads * layer.mixer.head_dim for layer in model.stack)  # the book's, not halved
    assert counted == 8 * SEQ * (3 * flops_per_token(model, SEQ).matmul + 3.5 * whole)


@pytest.mark.parametrize("mask", [Mask(), Mask(causal=False), Mask(window=8), Mask(chunk=16)])
def test_attention_in_blocks_is_softmax_attention(mask):
    jnp = jax.numpy
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, 32, 2, *group, 8)).astype(np.float32) for group in ((3,), (), ()))
    sinks = rng.normal(size=(2, 3)).astype(np.float32)

    def plain(q, k, v, sinks):
        s = jnp.einsum("btkgh,bskh->bkgts", q, k) / math.sqrt(8)
        s = jnp.where(mask.of(jnp.arange(32), jnp.arange(32)), s, -1e30)
        s = jnp.concatenate([s, jnp.broadcast_to(sinks[None, :, :, None, None], (*s.shape[:-1], 1))], -1)
        return jnp.einsum("bkgts,bskh->btkgh", jax.nn.softmax(s, -1)[..., :-1], v)

    def loss(f):
        return lambda *args: (f(*args) ** 2).sum()

    ours = jax.value_and_grad(loss(lambda *a: attention(*a, mask, 8)), (0, 1, 2, 3))(q, k, v, sinks)
    theirs = jax.value_and_grad(loss(plain), (0, 1, 2, 3))(q, k, v, sinks)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


def test_every_chip_has_one_place_and_groups_of_a_mesh_axis_lie_close_together():
    question = Question(architecture("llama-3-8b"), slice_of("v5e:4x8"), batch=1e6, seq=4096)
    problem, plan = problem_of(question), named_plan(question, {"fsdp": 8, "tensor": 4})
    order = chip_order(plan.mesh, plan.factors, 8)
    assert order.shape == (1, 1, 8, 4, 1, 1, 1, 1, 1, 2)
    numbers = devices_at(order.reshape(-1, 2), problem.slice, range(32))
    assert sorted(numbers) == list(range(32))
    assert mesh_at(numbers, order).shape["fsdp"] == 8
    for group in order[0, 0, :, :, 0, 0, 0, 0, 0]:  # four chips of a tensor group fill a box of four
        assert np.prod(group.max(axis=0) - group.min(axis=0) + 1) == 4
    with pytest.raises(InputError, match="JAX has 8 devices"):
        devices_at(order.reshape(-1, 2), problem.slice, jax.devices()[:8])


def test_tpus_are_taken_by_their_coordinates():
    where = slice_of("v5p:2x2x2*2")
    chips = [SimpleNamespace(coords=place[:3], slice_index=place[3]) for place in np.ndindex(2, 2, 2, 2)]
    places = np.array([[1, 0, 1, 0], [0, 1, 1, 1]])
    assert [(*c.coords, c.slice_index) for c in devices_at(places, where, chips)] == [(1, 0, 1, 0), (0, 1, 1, 1)]


def test_what_is_not_lowered_is_refused_by_name():
    reference = Reference(architecture("mamba-2.8b"), SEQ, Choices(), F32)
    with pytest.raises(InputError, match="lowered to JAX"):
        jax.eval_shape(reference.loss, reference.shapes("fp32"), tokens()[0], tokens()[0])
    with pytest.raises(InputError, match="not lowered"):
        Reference(architecture("t5-small"), SEQ, Choices(), F32)
