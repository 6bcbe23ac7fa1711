"""Optimised HLO: trip counts, replica groups in their spellings, what fusions read, against hand counts and the compiler."""

from __future__ import annotations

import json
import math

import pytest

from rooftop.cli import run
from rooftop.errors import InputError
from rooftop.lower import list_hlo, list_ops, parse_hlo, replica_groups

GROUPS = {
    "replica_groups={{0,1},{2,3}}": [[0, 1], [2, 3]],
    "replica_groups=[2,2]<=[4]": [[0, 1], [2, 3]],
    "replica_groups=[2,2]<=[2,2]T(1,0)": [[0, 2], [1, 3]],
    "replica_groups=[4,2]<=[2,2,2]T(2,1,0)": [[0, 4], [2, 6], [1, 5], [3, 7]],
    "replica_groups=mesh['a'=2,'b'=3] {'b'}": [[0, 1, 2], [3, 4, 5]],
    "replica_groups=mesh['a'=2,'b'=3] {'a'}": [[0, 3], [1, 4], [2, 5]],
    "replica_groups=mesh['a'=2,'b'=3], device_ids=([3,2]T(1,0)) {'b'}": [[0, 2, 4], [1, 3, 5]],
    "replica_groups=mesh['a'=8] {'a':(2)2}": [[0, 2], [1, 3], [4, 6], [5, 7]],
    "source_target_pairs={{0,1},{1,0}}": [[0, 1], [1, 0]],
    "channel_id=1": [],
}


@pytest.mark.parametrize("text", GROUPS)
def test_replica_groups_are_read_in_every_spelling(text):
    assert replica_groups(text) == GROUPS[text]


MODULE = """HloModule step, is_scheduled=true

%cond (p: (s32[], f32[8,8])) -> pred[] {
  %p = (s32[], f32[8,8]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %limit = s32[] constant(12)
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%body (p: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {
  %p = (s32[], f32[8,8]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8,8] get-tuple-element(%p), index=1
  %two = s32[] constant(2)
  %next = s32[] add(%i, %two)
  %y = f32[8,8] dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %r = f32[8,8] all-reduce(%y), replica_groups=[2,4]<=[8], to_apply=%sum
  ROOT %t = (s32[], f32[8,8]) tuple(%next, %r)
}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%slicing (a: f32[100,8], i: s32[]) -> f32[1,8] {
  %a = f32[100,8] parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %d = f32[1,8] dynamic-slice(%a, %i, %zero), dynamic_slice_sizes={1,8}
}

ENTRY %main (a: f32[8,8], b: f32[100,8]) -> f32[1,8] {
  %a = f32[8,8] parameter(0)
  %b = f32[100,8] parameter(1)
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,8]) tuple(%zero, %a)
  %loop = (s32[], f32[8,8]) while(%start), condition=%cond, body=%body
  %g = f32[16,8] all-gather(%a), replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}
  ROOT %f = f32[1,8] fusion(%b, %zero), kind=kLoop, calls=%slicing
}
"""


def test_loops_that_do_not_tell_are_counted_by_their_condition_and_step():
    listing = list_hlo(MODULE, mesh={"x": 2, "y": 4})
    assert listing.flops == 6 * 2 * 8**3  # from 0 to 12 in steps of two
    moved = listing.communicated()
    assert moved["all_reduce", ("y",)] == (6, 6 * 8 * 8 * 4)
    assert moved["all_gather", ("x",)] == (1, 16 * 8 * 4)
    (fusion,) = (op for op in listing.ops if op.kind == "fusion")
    assert fusion.bytes < 100  # a row, not the array that it is a row of


@pytest.mark.parametrize("text", ["", "hello", "HloModule x\n", MODULE[: len(MODULE) // 2].replace("ENTRY", "")])
def test_what_is_no_module_is_refused(text):
    with pytest.raises(InputError, match="ENTRY"):
        parse_hlo(text)


def test_a_broken_file_is_one_line(tmp_path, capsys):
    path = tmp_path / "x.hlo"
    path.write_bytes(b"\xff\xfe\x00")
    assert run(["hlo", str(path), "--on", "v5e"]) == 2
    assert "not text" in capsys.readouterr().err
    assert run(["hlo", str(tmp_path / "none"), "--on", "v5e"]) == 2
    assert "cannot read" in capsys.readouterr().err
    path.write_text(MODULE)
    assert run(["hlo", str(path), "--on", "v5e:2x4", "--mesh", "x=2,y=4", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["flops"] == 6 * 2 * 8**3
    assert data["resources"]["network y"] > 0


def test_the_compiler_and_the_trace_agree_on_a_sharded_loop():
    jax = pytest.importorskip("jax")
    jnp, shard = jax.numpy, jax.sharding
    mesh = shard.Mesh(jax.devices()[:8], ("x",))

    def layers(x, w):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0].sum()

    def put(spec, *sizes):
        return jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=shard.NamedSharding(mesh, shard.PartitionSpec(*spec)))

    x, w = put(("x", None), 64, 128), put((None, "x", None), 5, 128, 128)
    compiled = jax.jit(jax.value_and_grad(layers, 1)).lower(x, w).compile()
    listing = list_hlo(compiled.as_text(), mesh={"x": 8})
    assert listing.flops == list_ops(jax.value_and_grad(layers, 1), x, w).flops / 8
    kinds = {kind for kind, axes in listing.communicated() if axes == ("x",)}
    assert "all_gather" in kinds
    assert math.isclose(listing.inputs, (64 * 128 + 5 * 128 * 128) * 4 / 8)
