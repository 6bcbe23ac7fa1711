"""Every kind of layer on several devices gives what it gives on one: forward, and the gradient of its input."""

from __future__ import annotations

import numpy as np
import pytest

from rooftop import plan
from rooftop.arrays import LocalOp, Mesh, Program, Sharding, resolve_program, shard
from rooftop.arrays._emulate import ProgramRun
from rooftop.costing import INNER_AXES
from rooftop.training import Choices, explain_estimate
from rooftop.training._layouts import layouts
from rooftop.training._recipe import Recipe
from rooftop.training._structure import structure
from rooftop.transformer import (
    MLP,
    Architecture,
    Attention,
    CompressedAttention,
    DeltaNet,
    Indexer,
    LatentAttention,
    Layer,
    Mamba1,
    Mamba2,
    MoE,
    architecture,
    models,
    programs,
)

FFN = MLP(8)
#: Kinds that the emulator of programs can carry out: it knows no maps that sum over an axis, and no two ways to split the
#: parts of one gradient.
KINDS = {
    "grouped": Layer(Attention(4, 2, 2, qk_norm="head", bias="qkvo", sinks=True, gate="full"), MLP(8, bias=True)),
    "values are keys": Layer(Attention(4, 2, 2, values="keys", qk_norm="full", gate="head"), FFN, norms="both"),
    "parallel": Layer(Attention(4, 2, 2), FFN, parallel="two"),
    "absorbed": Layer(LatentAttention(4, 8, 8, 2, 2, 2, absorbed=True, gate="full"), FFN),
    "without keys of its own": Layer(Attention(4, 2, 2, keys="shared"), None),
    "one part": Layer(None, FFN),
    "looks back": Layer(Attention(4, 2, 2), FFN, look_back=True),
}
MESHES = (
    {"data": 2, "fsdp": 2, "tensor_kv": 2},
    {"fsdp": 2, "context": 2, "tensor_kv": 2},
    {"tensor_kv": 2, "data": 2, "expert": 2},
    {"tensor_q": 2, "fsdp": 2},
    {"context": 4, "fsdp": 2},
    {"tensor_kv": 2, "transpose_q": 2},
    {"transpose_kv": 2, "tensor_q": 2, "data": 2},
    {"transpose_kv": 2, "fsdp": 2, "context": 2},
)


def small(layer: Layer, norm_weights: int = 1) -> Program:
    model = Architecture("small", 8, 16, (layer,), norm_weights=norm_weights)
    return programs(model, 8).blocks[0].program


def carried_out(program: Program, mesh: dict[str, int], seed: int = 0) -> tuple[np.ndarray, ...]:
    """The output, and the gradients of the input and of all weights, on a mesh."""
    sizes = {"B": 16, **{n: s for n, s in program.axes.items() if isinstance(s, int)}}
    rules = layouts(Choices(grid=any(axis.startswith("transpose") for axis in mesh)))
    full = Mesh.of(dict.fromkeys(INNER_AXES, 1) | mesh)
    result = resolve_program(program, rules.rules, sizes, full, gradient_unreduced=rules.gradient_unreduced)
    random = np.random.default_rng(seed)
    made = {op.output for op in program.ops}
    arrays = {a.name: random.integers(-2, 3, [sizes[n] for n in a.axes]) for a in program.arrays if a.name not in made}
    run = ProgramRun(result, rules.rules, full, arrays)
    run.forward()
    out = program.array("x_out")
    found = [run.get("x_out", shard(out, rules.rules))]
    run.put("d_x_out", random.integers(-2, 3, [sizes[n] for n in out.axes]))
    run.backward()
    found.append(run.get("d_x", shard(program.array("x"), rules.rules)))
    found += [run.get(f"d_{w.name}", result.gradients[w.name]) for w in program.weights]
    return tuple(found)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_sharded_layers_compute_the_same(kind, mesh):
    # integers wrap around alike everywhere, so that equality is exact
    program = small(KINDS[kind], norm_weights=2 if kind == "grouped" else 1)
    if max(mesh.get("tensor_q", 1), mesh.get("transpose_q", 1)) > program.axes.get("G", 2):
        pytest.skip("one query head for each key head")
    for one, many in zip(carried_out(program, {}), carried_out(program, mesh), strict=True):
        np.testing.assert_array_equal(one, many)


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize(
    "layer",
    [
        Layer(Attention(4, 2, 2), MoE(4, 2, 8, shared_d_ff=8, shared_gate=True, router_weights=1)),
        Layer(None, MoE(8, 2, 8, latent=4, gated=False)),
        Layer(Attention(4, 2, 2), MoE(4, 2, 8, dense=MLP(8), router_inputs=1), norms="both"),
        Layer(CompressedAttention(4, 2, 4, 2, 4, 4, 2, Indexer(2, 2, 2)), MoE(4, 1, 8, bias=True), streams=4),
    ],
    ids=["shared", "latent", "beside a dense part", "compressed"],
)
def test_experts_are_split_over_their_axis_and_fetch_their_tokens(layer, zero):
    model = Architecture("small", 8, 16, (layer,) * 2)
    block = structure(model, 8, Choices(zero=zero), Recipe()).blocks[0]
    kinds = {(t.kind, t.axes) for t in block.transfers}
    assert ("all_to_all", ("expert",)) in kinds
    gathered = any(t.kind == "all_gather" and "fsdp" in t.axes and t.overlap == "prefetch" for t in block.transfers)
    assert gathered == (zero == 3)


@pytest.mark.parametrize(
    "mixer",
    [DeltaNet(8, 16, 4, 4), DeltaNet(8, 8, 4, 4, decay="channel", gate_rank=4), Mamba1(32, 4, 2), Mamba2(16, 4, 8, 2)],
    ids=["delta net", "kimi delta attention", "mamba", "mamba-2"],
)
def test_a_recurrence_over_a_split_sequence_swaps_it_for_channels_or_heads(mixer):
    """A scan needs all earlier tokens: it runs on whole sequences, and tokens are fetched by all-to-alls around it."""
    program = small(Layer(mixer, None))
    sizes = {"B": 16, **{n: s for n, s in program.axes.items() if isinstance(s, int)}}
    mesh = Mesh.of(dict.fromkeys(INNER_AXES, 1) | {"context": 4})
    result = resolve_program(program, layouts(Choices()).rules, sizes, mesh)
    for phase in ("forward", "backward"):
        moved = {(m.collective.kind, m.collective.axes) for m in result.moves(phase) if m.role == "activation"}
        assert ("all_to_all", ("context",)) in moved
    scan = next(step for step in result.forward if isinstance(step, LocalOp) and step.kind == "scan")
    for name, sharding in (*scan.takes, *scan.gives):
        axes = program.array(name).axes
        assert "T" not in axes or not sharding.axes[axes.index("T")]


@pytest.mark.parametrize("name", models())
def test_every_model_can_be_planned(name):
    model = architecture(name)
    kinds = structure(model, 128, Choices(), Recipe())
    assert sum(kinds.counts[c.name] for c in kinds.blocks) >= model.layers
    for compiled in kinds.programs:
        mesh = dict.fromkeys(INNER_AXES, 2)
        assert all(size >= 0 for size in compiled.evaluate({**kinds.axes, "B": 128}, mesh))


def test_a_plain_einsum_needs_no_communication_on_one_device():
    program = small(KINDS["grouped"])
    result = resolve_program(program, {}, {"B": 2, **program.axes}, Mesh.of({"data": 1}))
    assert not [m for phase in ("forward", "backward", "update") for m in result.moves(phase)]
    assert all(s == Sharding(((),) * len(s.axes)) for s in result.gradients.values())


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "jamba-v0.1"])
def test_a_derivation_of_a_model_with_several_widths_is_the_number(name):
    best = plan(name, on="v5p:4x4x8", batch=2**20, seq=4096).best
    assert explain_estimate(best, "step_seconds").value == pytest.approx(best.step.expected, rel=1e-9)
    assert explain_estimate(best, "memory").value == pytest.approx(best.step.memory_bytes, rel=1e-9)
