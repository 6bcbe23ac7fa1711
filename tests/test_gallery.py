"""Sharded algorithms: the plain computation's results, the collectives that were predicted, and what overlaps what."""

from __future__ import annotations

import numpy as np
import pytest

from rooftop.cli import run
from rooftop.hardware import slice_of

jax = pytest.importorskip("jax")

from rooftop import gallery  # noqa: E402
from rooftop.lower import function_time, list_hlo, list_ops, moved_bytes, parse_shapes  # noqa: E402

MESH = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("X", "Y"))
RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


A, W, V = normal(8, 16), normal(16, 32), normal(32, 16)
X, X_IN, X_OUT = normal(2, 16, 8), normal(8, 32), normal(32, 8)
Q, K, U = normal(2, 16, 4, 8), normal(2, 16, 4, 8), normal(2, 16, 4, 8)
LENGTHS = np.array([5, 16])
TOKENS, EXPERTS = normal(16, 8), normal(8, 8, 12)
CHOICE = np.concatenate([np.full((8, 2), 3), RNG.integers(0, 8, (8, 2))])  # half of all tokens want the same expert


def attention():
    scores = np.einsum("btnh,bsnh->bnts", Q, K) / np.sqrt(8)
    scores = np.exp(np.where(np.tril(np.ones((16, 16), bool)), scores, -np.inf))
    return np.einsum("bnts,bsnh->btnh", scores / scores.sum(-1, keepdims=True), U)


ROWS = np.arange(2)
CASES = {
    **{f"gather_matmul{way}": (A @ W, A, W) for way in ("", "_ring", "_both")},
    **{f"matmul_scatter{way}": (A @ W, A, W) for way in ("", "_ring", "_both")},
    **{f"matmul_reduce{way}": (A @ W, A, W) for way in ("", "_ring", "_both")},
    **{f"block{way}": (np.maximum(A @ W, 0) @ V, A, W, V) for way in ("", "_ring", "_both")},
    **{f"gather_tokens{way}": (X @ X_IN, X, X_IN) for way in ("", "_ring", "_both")},
    **{f"scatter_tokens{way}": (X @ X_IN @ X_OUT, X @ X_IN, X_OUT) for way in ("", "_ring", "_both")},
    **{f"mlp{way}": (np.maximum(X @ X_IN, 0) @ X_OUT, X, X_IN, X_OUT) for way in ("", "_both")},
    **{name: (attention(), Q, K, U) for name in ("gathered_attention", "ring_attention", "swapped_attention")},
    **{
        name: (attention()[ROWS, LENGTHS - 1], Q[ROWS, LENGTHS - 1], K, U, LENGTHS)
        for name in ("gathered_decoding", "flash_decoding")
    },
    **{
        name: (np.einsum("sd,skdf->skf", TOKENS, EXPERTS[CHOICE]).mean(1), TOKENS, EXPERTS, CHOICE)
        for name in ("gathered_experts", "exchanged_experts")
    },
    "all_reduce": (X[0, :4].sum(0), X[0, :4]),
    "gathered": (A[0], A[0]),
    "means": (A.reshape(2, 4, 16).mean(1), A),
    "means_of_the_whole": (A.reshape(2, 4, 16).mean(1), A),
    "rolled": (np.concatenate([np.roll(half, 1, 0) - half for half in np.split(A, 2)]), A),
}


@pytest.mark.parametrize("name", CASES)
def test_it_equals_the_plain_computation_and_moves_what_was_predicted(name):
    expected, *arguments = CASES[name]

    def function(*arguments):
        return getattr(gallery, name)(*arguments, mesh=MESH)

    compiled = jax.jit(function).lower(*arguments).compile()
    np.testing.assert_allclose(compiled(*arguments), expected, rtol=1e-4, atol=1e-4)
    predicted = list_ops(function, *arguments).communicated()
    found = list_hlo(compiled.as_text(), mesh=MESH.shape).communicated()
    # a compiler may send two arrays in one collective, and no fewer bytes
    assert {key: bytes for key, (_, bytes) in found.items()} == {key: bytes for key, (_, bytes) in predicted.items()}
    assert all(found[key][0] <= predicted[key][0] for key in found)


def test_rings_send_what_a_collective_does_at_least():
    """(n - 1)/n of the array from each chip, however it is cut (the book, section 3)."""

    def sent(name, *arguments):
        moved = list_ops(lambda *a: getattr(gallery, name)(*a, mesh=MESH), *arguments).communicated()
        return sum(moved_bytes(kind, bytes, 4) for (kind, _), (_, bytes) in moved.items())

    for name in ("gather_matmul", "matmul_scatter", "matmul_reduce", "gather_tokens"):
        _, *arguments = CASES[name]
        assert sent(name, *arguments) == sent(f"{name}_ring", *arguments) == sent(f"{name}_both", *arguments)
    # tokens swapped for heads: four arrays instead of two, and a chip's share of each instead of all of it
    assert sent("swapped_attention", Q, K, U) == sent("gathered_attention", Q, K, U) * 4 / 2 / 4


def test_experts_take_any_load_and_never_hold_a_token_times_all_experts():
    expected, *arguments = CASES["exchanged_experts"]
    for slots in (1, 5):
        found = jax.jit(lambda *a, s=slots: gallery.exchanged_experts(*a, slots=s, mesh=MESH))(*arguments)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    plain = jax.jit(gallery.experts)
    np.testing.assert_allclose(plain(*arguments), expected, rtol=1e-4, atol=1e-4)
    largest = 4096 * 8 * 12
    shapes = parse_shapes("fp32[4096,8]; fp32[8,8,12]; int32[4096,1]")
    for function in (gallery.experts, lambda *a: gallery.exchanged_experts(*a, mesh=MESH)):
        assert largest_array(jax.make_jaxpr(function)(*shapes).jaxpr) < largest


def largest_array(jaxpr):
    """Elements of the largest array anywhere in a program."""
    inner = [largest_array(getattr(p, "jaxpr", p)) for e in jaxpr.eqns for p in e.params.values()
             if hasattr(getattr(p, "jaxpr", p), "eqns")]  # fmt: skip
    return max([v.aval.size for e in jaxpr.eqns for v in e.outvars if hasattr(v.aval, "size")] + inner, default=0)


def test_a_compiler_that_is_left_alone_gathers_for_experts():
    """The book's question what jit does of it: more bytes than either of the ways by hand."""
    where = [jax.sharding.NamedSharding(MESH, jax.sharding.PartitionSpec("Y"))] * 3
    shapes = parse_shapes("fp32[1024,64]; fp32[8,64,64]; int32[1024,1]")
    text = jax.jit(gallery.experts, in_shardings=where, out_shardings=where[0]).lower(*shapes).compile().as_text()
    moved = list_hlo(text, mesh=MESH.shape).communicated()
    alone = sum(moved_bytes(kind, bytes, 4) for (kind, _), (_, bytes) in moved.items())
    by_hand = list_ops(lambda *a: gallery.exchanged_experts(*a, mesh=MESH), *shapes).communicated()
    assert alone > sum(moved_bytes(kind, bytes, 4) for (kind, _), (_, bytes) in by_hand.items())


def test_eight_bits_cost_two_roundings_at_most():
    x = normal(4, 256) * np.exp(normal(4, 256))
    found = jax.jit(lambda x: gallery.all_reduce_int8(x, block=16, mesh=MESH))(x)
    sent = np.abs(x.reshape(4, -1, 16)).max(-1).sum(0) / 254
    total = sent + (np.abs(x.sum(0).reshape(-1, 16)).max(-1) + sent) / 254
    assert (np.abs(found - x.sum(0)).reshape(-1, 16) <= total[:, None] * (1 + 1e-5)).all()
    gathered = jax.jit(lambda x: gallery.gathered_int8(x, block=16, mesh=MESH))(x[0])
    bound = np.abs(x[0].reshape(-1, 16)).max(-1) / 254
    assert (np.abs(gathered - x[0]).reshape(-1, 16) <= bound[:, None] * (1 + 1e-5)).all()
    assert np.asarray(gallery.all_reduce_int8(np.zeros((4, 64), np.float32), block=16, mesh=MESH)).sum() == 0
    for plain, narrow, shape in (("all_reduce", "all_reduce_int8", (4, 4096)), ("gathered", "gathered_int8", (4096,))):
        shapes = (jax.ShapeDtypeStruct(shape, np.float32),)
        wide, thin = (
            sum(
                moved_bytes(kind, bytes, 4)
                for (kind, _), (_, bytes) in list_ops(lambda x, n=n: getattr(gallery, n)(x, mesh=MESH), *shapes)
                .communicated()
                .items()
            )
            for n in (plain, narrow)
        )
        assert thin == pytest.approx(wide * (1 + 4 / gallery.narrow.BLOCK) / 4)


def test_no_overlap_is_below_the_bound_or_above_one_after_the_other():
    where = slice_of("v5p:8x4x4")
    for name, (_, *arguments) in CASES.items():
        time = function_time(getattr(gallery, name), *big(arguments), where=where)
        assert time.overlap is not None
        assert time.overlap.bound <= time.op_by_op * (1 + 1e-9), name
        assert time.overlap.bound >= max(v for k, v in time.resources.items() if k != "hbm") * (1 - 1e-9), name
        assert time.overlap.expected <= time.expected * (1 + 1e-9), name


def big(arguments):
    """The same numbers of dimensions, sizes that eight devices divide."""
    return [jax.ShapeDtypeStruct(tuple(8 * n for n in a.shape), a.dtype) for a in arguments]


def test_what_hides_under_matmuls_is_gone_from_the_time():
    where, shapes = slice_of("v5p:8x4x4"), parse_shapes("bf16[1,8192,8192]; bf16[8192,65536]")
    plain, ring = (function_time(f, *shapes, where=where) for f in (gallery.gather_tokens, gallery.gather_tokens_ring))
    assert plain.overlap.bound == pytest.approx(plain.resources["compute"] + plain.resources["network Y"], rel=0.01)
    assert ring.overlap.bound == pytest.approx(ring.resources["compute"], rel=0.05)
    # a ring in one direction has one link where the collective has two
    assert ring.resources["network Y"] == pytest.approx(2 * plain.resources["network Y"])
    both = function_time(gallery.gather_tokens_both, *shapes, where=where)
    assert both.resources["network Y"] == pytest.approx(plain.resources["network Y"])
    # a chip on a switch has one way out
    one, two = (
        function_time(f, *shapes, where=slice_of("h100:8"))
        for f in (gallery.gather_tokens_ring, gallery.gather_tokens_both)
    )
    assert two.resources["network Y"] == pytest.approx(one.resources["network Y"])


def test_two_ways_stand_side_by_side(capsys):
    words = ["jax", "rooftop.gallery:gathered_decoding", "--versus", "rooftop.gallery:flash_decoding", "--on", "v5p:8x4x4",
             "--shapes", "bf16[8,32,128]; bf16[8,65536,32,128]; bf16[8,65536,32,128]; int32[8]"]  # fmt: skip
    assert run(words) == 0
    printed = capsys.readouterr().out
    assert "flash_decoding is" in printed
    assert "overlapped" in printed
