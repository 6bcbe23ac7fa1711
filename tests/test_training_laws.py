"""Laws of one plan: bounds, resources, memory, and one formula for floats and derivations."""

import math
from dataclasses import replace

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from rooftop.hardware import Torus, slice_of
from rooftop.roofline import ideal
from rooftop.training import (
    MESH_AXES,
    POLICIES,
    Choices,
    Limits,
    Plan,
    Question,
    choices,
    estimate,
    explain_estimate,
    problem_of,
)
from rooftop.training._evaluate import evaluate
from rooftop.training._schedule import holds, rules
from rooftop.training._search import search
from rooftop.training._structure import structure
from rooftop.transformer import architecture

NO_SHRINK = [Phase.explicit, Phase.generate]
SMALL = "layers=5,d_model=512,heads=8,kv_heads=2,d_ff=1536,vocab=32000"
MODELS = (("llama-3-8b", 4096), ("gemma-3-1b", 512), ("gpt2", 1024), (SMALL, 512))
SLICES = ("v5e:4x4", "h100:16", "v5p:2x2x4", "v5p:4x4x4*2", "v5e:8x16", "h100:64", "v5e")
_KNOWN = {}


def plans_of(model, seq, where, calibration):
    """Several plans for each of several kinds of mesh, found once."""
    key = model, where, seq, calibration is None
    if key not in _KNOWN:
        at = slice_of(where)
        of = problem_of(
            Question(
                architecture(model), at, batch=4 * at.chips * seq, seq=seq, batch_within=0.5, calibration=calibration
            )
        )
        found = []
        for fixed in ({}, {"tensor": 2}, {"context": 2}, {"pipeline": 4}, {"data": 4}, {"tensor": 4, "pipeline": 2}):
            if at.chips == 1 and fixed:
                continue
            limits = Limits(ignore_memory=True, least_used=1.0)
            found += [f.plan for f in search(of, fixed, keep=3, limits=limits).found]
        _KNOWN[key] = of, found
    return _KNOWN[key]


@st.composite
def plans(draw):
    """A problem and a plan for it: a mesh and placement that are good for something, any schedule."""
    calibration = ideal() if draw(st.booleans()) else None
    of, found = plans_of(*draw(st.sampled_from(MODELS)), draw(st.sampled_from(SLICES)), calibration)
    assume(found)
    plan = draw(st.sampled_from(found))
    used = [
        f for f in choices()
        if (f.metadata["axis"] is None or plan.mesh[f.metadata["axis"]] > 1) and not f.metadata["follows"]
        and (of.model.experts is not None or not f.name.startswith("expert_"))
    ]  # fmt: skip
    chosen = Choices(**{f.name: draw(st.sampled_from(f.metadata["values"])) for f in used})
    chosen = replace(chosen, causal="balanced") if chosen.idle else chosen
    microbatches = draw(st.integers(1, 9) | st.sampled_from([8, 16]))
    layers = structure(of.model, of.seq, chosen.layout, of.recipe).layers
    if not holds(rules(chosen, layers, plan.mesh, microbatches)):
        chosen = replace(chosen, schedule="1f1b", chunks=1, embed_layers=0, head_layers=0)
    assume(holds(rules(chosen, layers, plan.mesh, microbatches)))
    return of, replace(plan, choices=chosen, microbatches=microbatches, sequences=draw(st.integers(1, 5)))


def law(examples=30):
    return settings(max_examples=examples, deadline=None, derandomize=True, phases=NO_SHRINK)


@law(35)
@given(plans())
def test_a_step_is_never_faster_than_its_bound(drawn):
    of, plan = drawn
    e = estimate(of, plan)
    assert 0 < e.step.bound <= e.step.expected * (1 + 1e-9)
    assert e.step.bound == pytest.approx(max(e.step.resources.values()), rel=1e-12)
    assert e.step.resources[e.bottleneck] == max(e.step.resources.values())
    assert 0 < e.mfu[1] <= e.mfu[0] * (1 + 1e-9)
    assert e.mfu[0] <= 1 + 1e-9


@law(35)
@given(plans())
def test_parts_add_up(drawn):
    e = estimate(*drawn)
    exposed = math.fsum(float(p.seconds - p.overlapped) for p in e.step.parts)
    assert exposed == pytest.approx(float(e.step.expected), rel=1e-9)
    assert len({(p.name, p.kind) for p in e.step.parts}) == len(e.step.parts)
    assert all(-1e-12 <= p.overlapped <= p.seconds * (1 + 1e-9) for p in e.step.parts)
    assert math.fsum(map(float, e.step.memory.values())) == pytest.approx(float(e.step.memory_bytes), rel=1e-12)
    assert all(b >= 0 for b in e.step.memory.values())


@law()
@given(plans())
def test_a_traced_step_is_the_step(drawn):
    of, plan = drawn
    plain, traced = evaluate(of, plan), evaluate(of, plan, traced=True)
    assert float(traced.expected) == pytest.approx(float(plain.expected), rel=1e-9)
    assert float(traced.bound) == pytest.approx(float(plain.bound), rel=1e-9)
    assert float(traced.memory_bytes) == pytest.approx(float(plain.memory_bytes), rel=1e-9)
    assert {n: float(v) for n, v in traced.memory.items()} == pytest.approx(
        {n: float(v) for n, v in plain.memory.items()}, rel=1e-9
    )
    assert {n: float(v) for n, v in traced.resources.items()} == pytest.approx(
        {n: float(v) for n, v in plain.resources.items()}, rel=1e-9
    )


@law(20)
@given(plans())
def test_explanations_end_in_the_estimate(drawn):
    e = estimate(*drawn)
    values = {"step_seconds": e.step.expected, "step_seconds.bound": e.step.bound, "memory": e.step.memory_bytes, "mfu": e.mfu[1],
              "mfu.bound": e.mfu[0], "tokens_per_second_per_chip": e.tokens_per_second_per_chip}  # fmt: skip
    for name, value in values.items():
        told = explain_estimate(e, name, depth=3)
        assert told.value == pytest.approx(float(value), rel=1e-9)
        assert told.formula
        assert told.substitution


def with_faster(of, what, factor):
    where = of.slice
    chip, levels = where.chip, list(where.levels)
    if what == "hbm":
        chip = replace(chip, hbm_bandwidth=chip.hbm_bandwidth * factor)
    elif what == "pcie":
        chip = replace(chip, pcie_bandwidth=chip.pcie_bandwidth * factor)
    elif what == "flops":
        chip = replace(
            chip, flops={n: f * factor for n, f in chip.flops.items()}, vector_flops=chip.vector_flops * factor
        )
    else:
        levels = [
            replace(v, link_bandwidth=v.link_bandwidth * factor)
            if isinstance(v, Torus)
            else replace(v, bandwidth=v.bandwidth * factor)
            for v in levels
        ]
    return replace(of, slice=replace(where, chip=chip, levels=tuple(levels)))


@law(35)
@given(plans(), st.sampled_from(["hbm", "flops", "links", "pcie"]), st.floats(1.0, 8.0))
def test_faster_hardware_never_makes_a_plan_slower(drawn, what, factor):
    of, plan = drawn
    before, after = estimate(of, plan).step, estimate(with_faster(of, what, factor), plan).step
    assert after.expected <= before.expected * (1 + 1e-9)
    assert after.bound <= before.bound * (1 + 1e-9)
    assert after.memory_bytes == before.memory_bytes


@law(35)
@given(plans())
def test_recomputation_saves_memory_and_costs_time(drawn):
    of, plan = drawn
    none, dots, selective, full = (
        estimate(of, replace(plan, choices=replace(plan.choices, remat=p))).step
        for p in ("none", "dots", "selective", "full")
    )
    saved = [s.memory["saved activations"] for s in (full, selective, dots, none)]
    assert saved == sorted(saved)
    if "activations" in plan.choices.offloads:
        return  # what runs again is not brought from the host
    assert none.expected <= dots.expected * (1 + 1e-12)
    assert dots.expected <= selective.expected * (1 + 1e-12)
    assert selective.expected <= full.expected * (1 + 1e-12)
    assert none.resources["compute"] <= full.resources["compute"] * (1 + 1e-12)


@law(35)
@given(plans())
def test_a_higher_zero_stage_holds_no_more(drawn):
    of, plan = drawn
    none, first, second, third = (
        estimate(of, replace(plan, choices=Choices(zero=z, remat=plan.choices.remat))).step.memory for z in (0, 1, 2, 3)
    )
    assert first["optimizer"] <= none["optimizer"] * (1 + 1e-12) or sum(first.values()) <= sum(none.values())
    for part in ("weights", "gradients", "optimizer"):
        assert third[part] <= second[part] * (1 + 1e-12)
        assert second[part] <= first[part] * (1 + 1e-12)
    assert sum(second.values()) <= sum(first.values()) * (1 + 1e-12)


@law(25)
@given(plans(), st.integers(2, 4))
def test_more_microbatches_cost_no_more_than_in_proportion(drawn, times):
    of, plan = drawn
    one, many = estimate(of, plan).step, estimate(of, replace(plan, microbatches=plan.microbatches * times)).step
    assert one.expected <= many.expected * (1 + 1e-12)
    assert many.expected <= times * one.expected * (1 + 1e-12)
    assert many.bound <= times * one.bound * (1 + 1e-12)


@law(25)
@given(plans())
def test_states_are_what_the_recipe_says(drawn):
    """No chip holds more than whole states, and all chips together hold at least one copy."""
    of, plan = drawn
    from rooftop.transformer import parameters

    plan = replace(plan, choices=replace(plan.choices, offload="none"))
    count = parameters(of.model).total
    memory = estimate(of, replace(plan, choices=replace(plan.choices, zero=3))).step.memory
    if plan.mesh["pipeline"] == 1:  # the fullest stage may be one with few layers and many activations
        assert memory["weights"] * plan.chips >= count * 0.99
    assert memory["optimizer"] <= count * of.recipe.optimizer_bytes * (1 + 1e-9)
    alone = replace(plan, mesh=dict.fromkeys(MESH_AXES, 1), factors=tuple({} for _ in plan.factors))
    whole = estimate(of, alone).step.memory
    assert whole["optimizer"] == pytest.approx(count * of.recipe.optimizer_bytes, rel=1e-9)


@law(25)
@given(plans())
def test_a_lossless_calibration_is_no_slower(drawn):
    of, plan = drawn
    assert estimate(replace(of, calibration=ideal()), plan).step.expected <= estimate(of, plan).step.expected * (
        1 + 1e-9
    )


def test_compute_bound_of_one_chip_is_model_flops_over_peak():
    model = architecture(SMALL)
    of = problem_of(Question(model, slice_of("v5p"), batch=8 * 2048, seq=2048, calibration=ideal()))
    (found,) = search(of, keep=1, limits=Limits({"remat": ("none",)})).found
    e = estimate(of, found.plan)
    assert e.step.resources["compute"] >= e.flops_per_token * e.batch_tokens / e.peak * (1 - 1e-9)
    # beside the model's FLOPs only the scores that the fused backward pass makes again: one matmul of attention's nine
    assert e.step.resources["compute"] <= e.flops_per_token * e.batch_tokens / e.peak * 1.15


def test_recomputation_of_a_gather_bound_pipeline_is_no_faster():
    """Which stage is fullest depends on what is kept for the backward pass; the time of the update must not."""
    of = problem_of(
        Question(architecture("gemma-3-1b"), slice_of("v5e:4x4"), batch=64 * 512, seq=512, batch_within=0.5)
    )
    half = {"fsdp": 2, "pipeline": 2}
    plan = Plan({**dict.fromkeys(MESH_AXES, 1), "fsdp": 4, "pipeline": 4}, (half, half), 6, 1)
    times = [estimate(of, replace(plan, choices=replace(plan.choices, remat=p))).step.expected for p in POLICIES]
    assert times == sorted(times)
