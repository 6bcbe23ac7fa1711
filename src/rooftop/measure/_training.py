"""Training rows: the step of the plan as published, not of a searched one. What cannot be read is refused by rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from rooftop.costing import MESH_AXES
from rooftop.errors import InputError
from rooftop.hardware import Slice, Switch, chip, slice_of
from rooftop.measure._models import model_of
from rooftop.measure._result import Prediction
from rooftop.measure._table import Row
from rooftop.training import RECIPES, Choices, Estimate, Question, Recipe, estimate, named_plan, problem_of, values_of
from rooftop.transformer import Architecture, training_flops_per_token

#: Megatron's names of mesh axes. vp, the chunks of an interleaved schedule, is no axis.
_MEGATRON = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
#: Precisions as sources write them. Master weights in fp32 with gradients in fp32 is what their frameworks do.
_PRECISIONS: Mapping[str, Recipe] = {
    "bf16": RECIPES["bf16-mixed"],
    "amp_bf16": RECIPES["bf16-mixed"],
    "fp16": RECIPES["fp16-mixed"],
    **{low: RECIPES[low] for low in ("fp8", "mxfp8", "nvfp4")},
    **dict.fromkeys(("fp8_full", "amp_fp8"), RECIPES["fp8"]),
}
#: What sources call selective recomputation of attention alone is what a fused attention does anyway.
_REMAT = {"none": "none", "full": "full", "selective": "selective", "selective+sequence": "none"}


def training(row: Row) -> tuple[Prediction, ...]:
    """The step of a row's plan. Raises InputError with the rule by which the row cannot be predicted."""
    best, readings = planned(row)
    where = best.problem.slice
    plan = best.plan
    how = {
        "mesh": {a: w for a, w in plan.mesh.items() if w > 1}, "microbatches": plan.microbatches,
        "remat": plan.choices.remat, "zero": plan.choices.zero, "bottleneck": best.bottleneck, "fits": best.fits,
    }  # fmt: skip
    return (
        Prediction(
            row.id, row.table, row.text("kind") or "train", benchmark(row), row.text("model"), where.chip.name, where.name,
            "step_seconds", measured_seconds(row, best.problem.model), float(best.step.bound), float(best.step.expected),
            how, readings,
        ),
    )  # fmt: skip


def benchmark(row: Row) -> str:
    """The benchmark that a row belongs to: its id up to the first dot."""
    return row.id.partition(".")[0]


def planned(row: Row) -> tuple[Estimate, tuple[str, ...]]:
    """The plan of a row with its estimate, and how what the row does not say was read."""
    model = model_of(row.text("model"))
    if "LoRA" in row.text("source"):
        raise InputError("adapters alone are trained (LoRA): fewer FLOPs than a training step", field="kind")
    for key in ("mesh", "precision"):
        if not row.text(key):
            raise InputError(f"{key} is not published", field=key)
    chips, seq, batch = (row.needed(key) for key in ("chips", "seq", "global_batch"))
    recipe = _PRECISIONS.get(row.text("precision").lower())
    if recipe is None:
        raise InputError(f"precision {row.text('precision')[:40]} is not known", field="precision")
    where = where_of(row.text("chip"), chips, row.count("slices") or 1)
    if (missing := recipe.missing(where.chip.flops)) is not None:
        # emulated where the chip has no such rate
        raise InputError(f"{where.chip.name} has no {missing} rate", field="precision")
    ways = row.ways("mesh")
    mesh, zero, readings = mesh_of(ways, chips)
    pipeline = _pipeline(ways.get("vp", 1), mesh.get("pipeline", 1), len(model.stack), readings)
    microbatch, recompute = row.count("microbatch"), row.text("recompute")
    groups = math.prod(mesh.get(a, 1) for a in ("data", "fsdp", "expert"))
    if batch % groups:
        raise InputError("the batch does not divide over the data-parallel groups", field="global_batch")
    microbatches = None
    if microbatch is not None and not _local_batch(row, mesh) and batch % (groups * microbatch) == 0:
        microbatches = batch // (groups * microbatch)
    else:
        readings.append("microbatches: the fastest number")
    question = Question(
        model, where, batch=float(batch * seq), seq=seq, batch_within=0.0,
        precision="fp16-mixed" if recipe.compute == "fp16" else "bf16-mixed",
    )  # fmt: skip
    problem = replace(problem_of(question), recipe=recipe)
    best = None
    # what is not published is the policy that recomputes least and fits
    for policy in (_REMAT[recompute],) if recompute in _REMAT else ("none", "selective"):
        plan = named_plan(question, mesh, choices=replace(pipeline, zero=zero, remat=policy))
        if microbatches is not None and microbatch is not None:
            plan = replace(plan, microbatches=microbatches, sequences=microbatch)
        best = estimate(problem, plan)
        if best.fits:
            break
    assert best is not None
    if recompute not in _REMAT:
        readings.append(f"recomputation: {best.plan.choices.remat}, the least that fits")
    return best, tuple(readings)


def _pipeline(chunks: int, stages: int, layers: int, readings: list[str]) -> Choices:
    """Choices of a pipeline with so many interleaved chunks: embedding and head count as layers where that makes chunks equal."""
    if chunks < 2 or stages < 2:
        return Choices()
    for ends in ((0, 0), (1, 1), (0, 1), (1, 0), (0, 2), (2, 2)):
        if (layers + sum(ends)) % (stages * chunks) == 0 and chunks in values_of("chunks"):
            if any(ends):
                readings.append(f"stages: embedding and head count as {ends[0]} and {ends[1]} layers")
            return Choices(chunks=chunks, embed_layers=ends[0], head_layers=ends[1])
    readings.append(f"schedule: {chunks} chunks would not be equal, so none are interleaved")
    return Choices()


def measured_seconds(row: Row, model: Architecture) -> float:
    """Seconds of a step: as published, or from tokens per second, or from model FLOP/s by the model's own FLOPs."""
    step, rate, tflops = (row.number(k) for k in ("step_seconds", "tokens_per_second_per_chip", "tflops_per_chip"))
    if step is not None:
        return step
    chips, seq = row.needed("chips"), row.needed("seq")
    tokens = row.needed("global_batch") * seq
    if rate is not None:
        return tokens / (rate * chips)
    if tflops is not None:
        return training_flops_per_token(model, seq) * tokens / (tflops * 1e12 * chips)
    raise InputError("no time is published", field="step_seconds")


def where_of(name: str, chips: int, slices: int) -> Slice:
    """The slice of a row. Racks of switched chips that do not fill their domains are taken as equal parts of domains."""
    if "/" in name or "." in name:  # a table names chips, never files
        raise InputError(f"the chip {name[:40]} is not in the data", field="chip")
    try:
        name = chip(name).name
    except InputError:
        raise InputError(f"the chip {name[:40] or '(none)'} is not in the data", field="chip") from None
    if chips % slices:
        raise InputError(f"{chips} chips are not {slices} equal slices", field="slices")
    many = f"*{slices}" if slices > 1 else ""
    try:
        return slice_of(f"{name}:{chips // slices}{many}")
    except InputError:
        outer = _outer(name)
        if outer is None:  # a torus of no standard shape: the longest one whose sides close into rings
            return slice_of(f"{name}:4x4x{chips // slices // 16}{many}")
        domain = next((n for n in range(min(outer[0], chips), 1, -1) if chips % n == 0), 0)
        if not domain:
            raise
        inner = slice_of(f"{name}:{domain}")
        return Slice(f"{name}:{chips}", inner.chip, (inner.levels[0], replace(outer[1], size=chips // domain)))


def _outer(name: str) -> tuple[int, Switch] | None:
    """(chips of a whole domain, the network that joins domains) of a switched chip; None for a torus."""
    for domain in (8, 72):
        try:
            levels = slice_of(f"{name}:{2 * domain}").levels
        except InputError:
            continue
        if len(levels) == 2 and isinstance(levels[1], Switch):
            return domain, levels[1]
    return None


def mesh_of(published: Mapping[str, int], chips: int) -> tuple[dict[str, int], int, list[str]]:
    """(ways by Rooftop's axes, ZeRO stage, what was read into it). What Megatron does not name is data-parallel."""
    if not set(published) & set(_MEGATRON):
        unknown = [a for a in published if a not in (*MESH_AXES, "vp")]
        if unknown:
            raise InputError(f"the mesh has an unknown axis {unknown[0][:40]}", field="mesh")
        mesh = {a: w for a, w in published.items() if a != "vp"}
        if math.prod(mesh.values()) != chips:
            raise InputError("the mesh does not multiply to the chips", field="mesh")
        return mesh, 3 if mesh.get("fsdp", 1) > 1 else 1, []
    mesh = {axis: max(1, published.get(name, 1)) for name, axis in _MEGATRON.items()}
    rest, left = divmod(chips, math.prod(mesh.values()))
    if left or rest < 1:
        raise InputError("expert ways span tensor, context or pipeline ways", field="mesh")
    # its optimizer states are always split over the data-parallel chips
    mesh["fsdp"] = rest
    readings = ["ZeRO-3 over data parallelism" if published.get("fsdp") else "ZeRO-1 over data parallelism"]
    return mesh, 3 if published.get("fsdp") else 1, readings


def _local_batch(row: Row, mesh: Mapping[str, int]) -> bool:
    """Whether `microbatch` is the batch of a group, which a pipeline then splits into pieces that are not published."""
    return benchmark(row) == "torchtitan" and mesh.get("pipeline", 1) > 1
