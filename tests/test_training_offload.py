"""Host memory as a second home: what it frees, what crosses PCIe for it, and what that costs."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rooftop.cli import run
from rooftop.errors import NoAnswer
from rooftop.hardware import slice_of
from rooftop.training import Choices, Limits, Question, choices, estimate, named_plan, plan, problem_of, values_of
from rooftop.training._choices import OFFLOADED
from rooftop.training._search import search
from rooftop.transformer import architecture, parameters

#: Layers of 12 times the width squared, as in the papers.
GPT = "layers={layers},d_model={d_model},heads={heads},d_ff={d_ff},vocab=50304"


def gpt(layers, d_model, heads):
    return architecture(GPT.format(layers=layers, d_model=d_model, heads=heads, d_ff=8 * d_model // 3))


def on(name, **chip):
    where = slice_of(name)
    return replace(where, chip=replace(where.chip, **chip))


def step_of(model, where, mesh, batch, seq, precision="bf16", **chosen):
    question = Question(model, where, batch=batch * seq, seq=seq, batch_within=0.0, precision=precision)
    return estimate(problem_of(question), named_plan(question, mesh, microbatches=1, choices=Choices(**chosen)))


def part(e, name):
    return next(p for p in e.step.parts if p.name == name)


def test_bytes_over_pcie_are_those_of_zero_infinity():
    """Section 4.1 of the paper: weights are read for the forward and for the backward pass; states are read and written once a
    step; a checkpoint of 2 bytes for each token, layer and element of the model is written and read.
    """
    layers, d_model, batch, seq = 12, 1536, 4, 1024
    model, where = gpt(layers, d_model, 16), on("h100")
    blocks = layers * (parameters(gpt(2, d_model, 16)).total - parameters(gpt(1, d_model, 16)).total)
    ends = parameters(model).total - blocks
    states = step_of(model, where, {}, batch, seq, "bf16-mixed", offload="optimizer", remat="full")
    assert states.step.resources["host"] * where.chip.pcie_bandwidth == pytest.approx(
        12 * parameters(model).total, rel=1e-9
    )
    assert states.step.host["optimizer"] == pytest.approx(12 * parameters(model).total, rel=1e-9)
    saved = step_of(model, where, {}, batch, seq, "bf16-mixed", offload="activations", remat="full")
    assert saved.step.resources["host"] * where.chip.pcie_bandwidth == pytest.approx(
        2 * layers * d_model * batch * seq, rel=1e-9
    )
    weights = step_of(model, where, {}, batch, seq, "bf16-mixed", offload="params", remat="full")
    assert weights.step.resources["host"] * where.chip.pcie_bandwidth == pytest.approx(
        2 * (2 * blocks + ends), rel=1e-6
    )


def test_the_arithmetic_intensities_are_those_of_zero_infinity():
    """FLOPs of a step with recomputation, 8 for each token and parameter, over bytes both ways: section 4.1 gives batch times
    sequence for weights with gradients (8 bytes a parameter, of which the plan leaves the 4 of the third read and of the
    gradients on the chip), and a quarter of it for states of 16 bytes (12 here, without the gradients).
    """
    batch, seq = 2, 1024
    model, where = gpt(48, 6144, 48), on("h100", hbm_bytes=1e13, host_memory_bytes=1e15)
    blocks = 48 * (parameters(gpt(2, 6144, 48)).total - parameters(gpt(1, 6144, 48)).total)
    flops = 8 * blocks * batch * seq
    states = step_of(model, where, {}, batch, seq, "bf16-mixed", offload="optimizer", remat="full")
    both_ways = 2 * states.step.resources["host"] * where.chip.pcie_bandwidth
    assert flops / both_ways == pytest.approx(batch * seq / 4 * 16 / 12, rel=0.06)
    weights = step_of(model, where, {}, batch, seq, "bf16-mixed", offload="params", remat="full")
    assert flops / (weights.step.resources["host"] * where.chip.pcie_bandwidth) == pytest.approx(
        batch * seq * 8 / 4, rel=0.06
    )
    # checkpoints every layer: 24 times the width of the model, with its FLOPs of matmuls with weights
    saved = step_of(model, where, {}, batch, seq, "bf16-mixed", offload="activations", remat="full")
    both_ways = 2 * saved.step.resources["host"] * where.chip.pcie_bandwidth
    assert 2 * 4 * 12 * 48 * 6144**2 * batch * seq / both_ways == pytest.approx(24 * 6144, rel=1e-9)


def test_one_dgx_2_trains_what_zero_infinity_says():
    """16 V100 of 32 GB and a host of 1.5 TB: about 100B parameters with host memory alone, 20B without, no trillion."""
    dgx = on("v100:16", hbm_bytes=32e9, host_memory_bytes=1.5e12, chips_per_host=16)
    everything = Limits({"offload": ("optimizer,params,activations",), "remat": ("full",), "zero": (3,)})

    def largest(layers, limits):
        of = problem_of(
            Question(
                gpt(layers, 6144, 48), dgx, batch=64 * 1024, seq=1024, precision="fp16-mixed", gradient_dtype="fp16"
            )
        )
        return search(of, {"fsdp": 16}, keep=1, limits=limits).found

    bare = Limits({"remat": ("full",), "zero": (3,)})
    assert largest(44, bare)  # 20B
    assert not largest(88, bare)  # 40B
    assert largest(220, everything)  # 100B
    assert not largest(250, everything)  # 114B: 14 bytes each are more than the host has


@pytest.mark.parametrize("offload", values_of("offload")[1:])
def test_offload_frees_the_chip_and_fills_the_host(offload):
    where, mesh = on("h100:16"), {"fsdp": 4, "pipeline": 4}
    model = gpt(24, 2048, 16)
    here = step_of(model, where, mesh, 32, 1024, "bf16-mixed")
    there = step_of(model, where, mesh, 32, 1024, "bf16-mixed", offload=offload)
    names = {"optimizer": "optimizer", "params": "weights", "activations": "saved activations"}
    for what in OFFLOADED:
        name, away = names[what], what in offload
        assert (there.step.memory[name] < here.step.memory[name]) is away
        assert (name in there.step.host) is away
    assert "host" in there.step.resources
    assert "host" not in here.step.resources
    assert not here.step.host


def test_traffic_hides_under_passes_and_the_update_waits_for_states():
    model, where = gpt(8, 2048, 16), on("h100")
    quick = step_of(
        model, on("h100", pcie_bandwidth=1e15), {}, 4, 1024, "bf16-mixed", offload="optimizer,params,activations"
    )
    bare = step_of(model, where, {}, 4, 1024, "bf16-mixed")
    assert quick.step.expected == pytest.approx(bare.step.expected, rel=1e-4)
    weights = part(step_of(model, where, {}, 32, 1024, "bf16-mixed", offload="params"), "host memory: microbatches")
    assert weights.overlapped > 0.9 * weights.seconds
    slow = step_of(model, on("h100", pcie_bandwidth=1e9), {}, 4, 1024, "bf16-mixed", offload="optimizer")
    assert slow.bottleneck == "host"
    assert slow.step.expected > 12 * parameters(model).total / 1e9


@settings(max_examples=25, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(
    layers=st.sampled_from([1, 4, 8, 16]), mesh=st.sampled_from([{"fsdp": 8}, {"fsdp": 2, "tensor": 4}, {"pipeline": 4, "data": 2}, {"pipeline": 8}]),
    zero=st.sampled_from([1, 3]), remat=st.sampled_from(values_of("remat")), schedule=st.sampled_from(values_of("schedule")),
    microbatches=st.sampled_from([1, 4, 16]), pcie=st.floats(1e8, 1e12), more=st.floats(1.0, 50.0),
    offload=st.sampled_from(values_of("offload")), without=st.sampled_from(OFFLOADED),
)  # fmt: skip
def test_laws(layers, mesh, zero, remat, schedule, microbatches, pcie, more, offload, without):
    model = architecture(f"layers={layers},d_model=512,heads=8,kv_heads=2,d_ff=1536,vocab=4096")
    if mesh.get("pipeline", 1) > layers:
        mesh = {"fsdp": 8}
    if mesh.get("pipeline", 1) == 1 or (
        schedule == "dualpipe" and (microbatches < 2 * mesh["pipeline"] or layers < mesh["pipeline"])
    ):
        schedule = "1f1b"
    fewer = ",".join(sorted(set(offload.split(",")) - {without}, key=values_of("offload").index)) or "none"

    def at(bandwidth, offload):
        question = Question(model, on("h100:8", pcie_bandwidth=bandwidth), batch=128 * 256, seq=256, batch_within=0.0)
        chosen = Choices(zero=zero, remat=remat, schedule=schedule, offload=offload)
        found = named_plan(question, mesh, microbatches=microbatches, choices=chosen)
        return estimate(problem_of(question), found)

    e, faster, less = at(pcie, offload), at(pcie * more, offload), at(pcie, fewer)
    # more PCIe bandwidth never slows a step, and no resource is beaten
    assert faster.step.expected <= e.step.expected * (1 + 1e-12)
    assert e.step.bound <= e.step.expected * (1 + 1e-12)
    assert math.fsum(float(p.seconds - p.overlapped) for p in e.step.parts) == pytest.approx(
        float(e.step.expected), rel=1e-9
    )
    # what lies in host memory takes time and never room on the chip
    assert e.step.memory_bytes <= less.step.memory_bytes * (1 + 1e-12)
    assert e.step.host_bytes >= less.step.host_bytes
    assert e.step.expected >= less.step.expected * (1 - 1e-12)
    assert e.plan.choices == less.plan.choices or e.plan.choices.never_faster_than(less.plan.choices)


def test_what_is_recomputed_is_not_brought_from_the_host():
    """Over slow lanes full recomputation beats keeping all activations there, so no order between them may be assumed."""
    model = gpt(8, 2048, 16)
    none, full = (
        step_of(model, on("h100", pcie_bandwidth=2e9), {}, 8, 1024, remat=r, offload="activations")
        for r in ("none", "full")
    )
    assert full.step.expected < none.step.expected
    assert not full.plan.choices.never_faster_than(none.plan.choices)
    assert full.plan.choices.never_faster_than(replace(none.plan.choices, offload="none"))


def test_host_memory_is_a_limit():
    model, question = gpt(24, 2048, 16), {"batch": 64 * 1024, "seq": 1024, "precision": "bf16-mixed"}
    small = on("h100:8", hbm_bytes=4e9, host_memory_bytes=8 * 2e9)
    limits = Limits({"offload": ("optimizer,params,activations",)})
    with pytest.raises(NoAnswer, match=r"host memory takes .* GB of 2.0 GB"):
        plan(Question(model, small, **question), limits=limits)
    ample = plan(
        Question(model, on("h100:8", hbm_bytes=4e9, host_memory_bytes=8 * 20e9), **question), limits=limits
    ).best
    assert ample.fits
    assert 2e9 < ample.step.host_bytes <= 20e9
    # nothing fits without: the refusal names what would
    with pytest.raises(NoAnswer, match="--offload"):
        plan(Question(model, on("h100:8", hbm_bytes=3e9), **question))


def test_the_command_line_saves_and_reads_it(tmp_path, capsys):
    path = tmp_path / "plan.json"
    asked = "step gpt2 --on h100:8 --mesh fsdp=8 --batch 64k --seq 1024 --offload activations,optimizer --json --save"
    assert run([*asked.split(), str(path)]) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert best["offload"] == "optimizer,activations"
    assert set(best["host_memory"]["parts"]) == {"optimizer", "saved activations"}
    assert best["host_memory"]["capacity_bytes"] == 2e12 / 8
    assert {p["name"] for p in best["time_parts"] if p["kind"] == "host"} >= {
        "host memory: microbatches",
        "host memory: update",
    }
    assert run(["step", "--plan", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best"] == best
    assert run(["step", "--plan", str(path), "--explain", "host"]) == 0
    assert "W_pcie" in capsys.readouterr().out
    for framework, key in (
        ("maxtext", "optimizer_memory_host_offload: true"), ("megatron", "--optimizer-cpu-offload"),
        ("deepspeed", "offload_optimizer"), ("torchtitan", "enable_cpu_offload = true"),
    ):  # fmt: skip
        assert run(["export", str(path), "--to", framework]) == 0
        assert key in capsys.readouterr().out
    assert run([*asked.replace("activations,", "weights,").split(), str(path)]) == 2


def test_offload_is_a_choice_like_the_others():
    (field,) = (f for f in choices() if f.name == "offload")
    assert field.metadata["tried"] == ("none",)
    assert Choices(offload="optimizer,params").offloads == {"optimizer", "params"}
    assert not Choices().offloads
