"""JAX functions as listings of ops: counted by hand, in loops, branches, remat, shard_map; and what they take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rooftop.cli import run
from rooftop.errors import InputError
from rooftop.hardware import slice_of
from rooftop.lower import list_ops, load_function, parse_shapes, program_time, scope_of

jax = pytest.importorskip("jax")
jnp = jax.numpy
P = jax.sharding.PartitionSpec


def shape(*sizes, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(sizes, dtype)


def test_a_matmul_is_what_the_book_says_of_it():
    listing = list_ops(jnp.matmul, shape(512, 1024), shape(1024, 2048))
    (op,) = listing.ops
    assert (op.kind, op.flops, op.matmul) == ("matmul", 2 * 512 * 1024 * 2048, (512, 1024, 2048, 1))
    assert op.bytes == 2 * (512 * 1024 + 1024 * 2048 + 512 * 2048) == listing.inputs + listing.outputs
    result = program_time(listing, slice_of("v5e"))
    assert result.resources["compute"] == pytest.approx(op.flops / 197e12)
    assert result.bound <= result.op_by_op <= result.expected


def test_batched_contractions_and_convolutions_count_their_products():
    heads = list_ops(lambda q, k: jnp.einsum("btkgh,bskh->bkgts", q, k), shape(2, 8, 4, 3, 16), shape(2, 32, 4, 16))
    assert heads.flops == 2 * 2 * 8 * 4 * 3 * 16 * 32
    conv = list_ops(
        lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=2), shape(1, 4, 8, 8), shape(6, 2, 3, 3)
    )  # fmt: skip
    assert conv.flops == 2 * (6 * 8 * 8) * (2 * 3 * 3)


def test_neighbours_fuse_a_reduction_ends_a_kernel_and_broadcasts_are_not_stored():
    listing = list_ops(lambda x: jax.nn.softmax(x, axis=-1), shape(64, 4096, dtype=jnp.float32))
    whole, row = 64 * 4096 * 4, 64 * 4
    # the maximum; its difference, the exponential and their sum; the quotient
    assert [op.bytes for op in listing.ops] == [whole + row, 2 * whole + 2 * row, 2 * whole + row]
    scaled = list_ops(lambda x, b: jnp.exp(x * 2 + b), shape(64, 128), shape(128))
    (op,) = scaled.ops
    assert op.bytes == 2 * 64 * 128 * 2 + 128 * 2
    assert op.unfused > op.bytes


def test_loops_multiply_and_what_nobody_reads_is_not_computed():
    def layers(x, w):
        def body(x, w):
            return jnp.tanh(x @ w), (x @ w).sum()  # the sum is not used below

        return jax.lax.scan(body, x, w)[0]

    listing = list_ops(layers, shape(8, 32), shape(10, 32, 32))
    assert listing.flops == 10 * 2 * 8 * 32 * 32
    assert {op.times for op in listing.ops if op.kind == "matmul"} == {10.0}


def test_rematerialised_matmuls_count_twice_and_their_last_one_once():
    def loss(x, a, b):
        return jax.checkpoint(lambda x: jnp.tanh(x @ a) @ b)(x).astype(jnp.float32).sum()

    one = 2 * 8 * 32 * 32
    plain = list_ops(
        jax.grad(lambda x, a, b: (jnp.tanh(x @ a) @ b).astype(jnp.float32).sum(), (1, 2)),
        shape(8, 32),
        shape(32, 32),
        shape(32, 32),
    )
    again = list_ops(jax.grad(loss, (1, 2)), shape(8, 32), shape(32, 32), shape(32, 32))
    # backward: two weights' gradients and one activation's; forward: the first matmul, and the second only for its value
    assert plain.flops == 4 * one
    assert again.flops == plain.flops
    value = list_ops(jax.value_and_grad(loss, (1, 2)), shape(8, 32), shape(32, 32), shape(32, 32))
    assert value.flops == 6 * one  # both forward, three backward, the first one again


def test_branches_cost_what_the_dearest_costs_and_while_loops_are_told():
    listing = list_ops(
        lambda p, x: jax.lax.cond(p, lambda x: x @ x, lambda x: x, x), shape(dtype=jnp.bool_), shape(16, 16)
    )
    assert listing.flops == 2 * 16**3
    looped = list_ops(lambda x: jax.lax.while_loop(lambda x: x.sum() > 0, lambda x: x @ x, x), shape(16, 16))
    assert looped.flops == 2 * 16**3
    assert any("while loop" in note for note in looped.notes)


def test_collectives_inside_shard_map_are_those_of_one_device():
    mesh = jax.sharding.AbstractMesh((4, 2), ("x", "y"))

    def local(x, w):
        whole = jax.lax.all_gather(w, "x", tiled=True)
        return jax.lax.psum_scatter(jax.lax.psum(x @ whole, "y"), "x", tiled=True)

    f = jax.shard_map(local, mesh=mesh, in_specs=(P("x", None), P("x", "y")), out_specs=P("x", None), check_vma=False)
    listing = list_ops(f, shape(64, 128), shape(128, 256))
    assert listing.mesh == {"x": 4, "y": 2}
    assert listing.flops == 2 * 16 * 128 * 128
    moved = listing.communicated()
    assert moved["all_gather", ("x",)] == (1, 128 * 128 * 2)
    assert moved["all_reduce", ("y",)] == (1, 16 * 128 * 2)
    assert moved["reduce_scatter", ("x",)] == (1, 16 * 128 * 2)
    slow, fast = program_time(listing, slice_of("v5e:4x2")), program_time(listing, slice_of("v5p:2x2x2"))
    assert slow.resources["network x"] > fast.resources["network x"] > 0
    with pytest.raises(InputError, match="8 chips"):
        program_time(listing, slice_of("v5e:2x2"))


def test_pallas_kernels_are_taken_at_their_word_and_silent_ones_are_told():
    pl = pytest.importorskip("jax.experimental.pallas")

    def kernel(x, o):
        o[...] = x[...]

    def call(cost):
        out = jax.ShapeDtypeStruct((8, 128), jnp.float32)
        return lambda x: pl.pallas_call(kernel, out_shape=out, cost_estimate=cost)(x)

    told = pl.CostEstimate(flops=1000, bytes_accessed=2000, transcendentals=3)
    (op,) = list_ops(call(told), shape(8, 128, dtype=jnp.float32)).ops
    assert (op.flops, op.bytes, op.vector) == (1000, 2000, 3)
    silent = list_ops(call(None), shape(8, 128, dtype=jnp.float32))
    assert any("cost_estimate" in note for note in silent.notes)


def test_scopes_are_the_users_own_names_with_the_pass():
    def f(x):
        with jax.named_scope("block"), jax.named_scope("mlp"):
            return jnp.tanh(x @ x).astype(jnp.float32).sum()

    listing = list_ops(jax.jit(jax.value_and_grad(f)), shape(16, 16))
    assert {scope_of(op, 1) for op in listing.ops if op.kind == "matmul"} == {"block", "block, backward"}
    assert "block/mlp" in program_time(listing, slice_of("h100")).scopes(2)


FILE = """
import jax, jax.numpy as jnp

def naive(q, k, v):
    with jax.named_scope("scores"):
        s = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k).astype(jnp.float32))
    return jnp.einsum("bqk,bkd->bqd", s.astype(v.dtype), v)

def linear(q, k, v):
    return jnp.einsum("bqd,bde->bqe", q, jnp.einsum("bkd,bke->bde", k, v))

NUMBER = 3
"""


def test_the_command_shows_a_function_and_lays_two_beside_each_other(tmp_path: Path, capsys):
    path = tmp_path / "attention.py"
    path.write_text(FILE)
    shapes = "bf16[8,2048,128]; bf16[8,2048,128]; bf16[8,2048,128]"
    words = ["jax", f"{path}:naive", "--shapes", shapes, "--on", "h100"]
    assert run([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["flops"] == 2 * 2 * 8 * 2048 * 2048 * 128
    assert data["seconds"]["bound"] <= data["seconds"]["op_by_op"] <= data["seconds"]["expected"]
    assert sum(s["seconds"]["expected"] for s in data["scopes"]) == pytest.approx(data["seconds"]["expected"])
    assert run([*words, "--versus", f"{path}:linear", "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert both["ratio"]["expected"] > 1
    assert both["second"]["flops"] == 2 * 2 * 8 * 2048 * 128 * 128
    for command in (words, [*words, "--versus", f"{path}:linear"]):
        assert run(command) == 0
        assert "expected" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("function", "shapes", "says"),
    [
        ("nothing", "", "names no function"),
        ("no_such_module:f", "", "importing no_such_module failed"),
        ("FILE:nothing", "", "has no nothing"),
        ("FILE:NUMBER", "", "is not a function"),
        ("FILE:naive", "bf16[2", "is not a shape"),
        ("FILE:naive", "bf17[2]", "unknown dtype"),
        ("FILE:naive", "bf16[2,2]", "cannot be traced"),
    ],
)
def test_what_cannot_be_asked_is_one_line(function, shapes, says, tmp_path: Path, capsys):
    path = tmp_path / "attention.py"
    path.write_text(FILE)
    assert run(["jax", function.replace("FILE", str(path)), "--shapes", shapes, "--on", "h100"]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_shapes_and_functions_are_parsed():
    first, second = parse_shapes("bf16[2, 3]; fp32[]")
    assert (first.shape, first.dtype, second.shape, second.dtype) == ((2, 3), jnp.bfloat16, (), jnp.float32)
    assert load_function("jax.numpy:matmul") is jnp.matmul
