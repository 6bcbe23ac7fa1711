"""A prediction for every published row: the plan as published, not a searched one. What cannot be read is left out by rule."""

from __future__ import annotations

import functools
import math
import statistics
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import resources

from rooftop.costing import MESH_AXES
from rooftop.errors import InputError, RooftopError
from rooftop.hardware import Slice, Switch, chip, slice_of
from rooftop.measure._rows import Row
from rooftop.training import RECIPES, Choices, Estimate, Question, Recipe, estimate, named_plan, problem_of
from rooftop.transformer import Architecture, architecture, training_flops_per_token

#: Megatron's names of mesh axes; vp (chunks of an interleaved schedule) is no axis.
_MEGATRON = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
#: Precisions as sources write them. Master weights in fp32 with gradients in fp32 is what their frameworks do.
_PRECISIONS: Mapping[str, Recipe] = {
    "bf16": RECIPES["bf16-mixed"],
    "amp_bf16": RECIPES["bf16-mixed"],
    "fp16": RECIPES["fp16-mixed"],
    # every matmul at the low rate is a bound; attention, embedding and head really stay in bf16
    **dict.fromkeys(("fp8", "fp8_full", "amp_fp8", "mxfp8"), replace(RECIPES["bf16-mixed"], compute="fp8")),
    "nvfp4": replace(RECIPES["bf16-mixed"], compute="fp4"),
}
#: What sources call selective recomputation of attention alone is what a fused attention does anyway.
_REMAT = {"none": "none", "full": "full", "selective": "selective", "selective+sequence": "none"}


@dataclass(frozen=True, slots=True)
class Prediction:
    """A published row, and the step of its plan. measured: seconds of a step. readings: what the row did not say."""

    row: Row
    estimate: Estimate
    measured: float
    readings: tuple[str, ...]

    @property
    def error(self) -> float:
        """Expected over measured, less 1: above 0 where the prediction is too slow."""
        return float(self.estimate.step.expected) / self.measured - 1

    @property
    def beats_bound(self) -> bool:
        """Whether the measurement is faster than physics: a wrong model or a wrong reading."""
        return self.measured < float(self.estimate.step.bound) * (1 - 1e-3)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A published row without a prediction, and the rule that left it out."""

    row: Row
    reason: str


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of some predictions: expected over measured, less 1. bias: the median; spread: the median of its absolute value."""

    count: int
    bias: float
    spread: float
    worst: float
    beating: int


@dataclass(frozen=True, slots=True)
class Validation:
    """All rows, predicted or left out."""

    predictions: tuple[Prediction, ...]
    skipped: tuple[Skipped, ...]

    def by(self, key: Callable[[Row], str]) -> dict[str, Errors]:
        """Errors of groups of rows."""
        groups: dict[str, list[Prediction]] = {}
        for p in self.predictions:
            groups.setdefault(key(p.row), []).append(p)
        return {name: errors_of(group) for name, group in sorted(groups.items())}


def errors_of(predictions: Iterable[Prediction]) -> Errors:
    """Errors of at least one prediction."""
    found = list(predictions)
    errors = [p.error for p in found]
    return Errors(
        len(found), statistics.median(errors), statistics.median(map(abs, errors)), max(errors, key=abs),
        sum(p.beats_bound for p in found),
    )  # fmt: skip


def validate(rows: Iterable[Row], progress: Callable[[float], None] | None = None) -> Validation:
    """Predict every row; what cannot be predicted says by which rule."""
    rows = tuple(rows)
    predictions: list[Prediction] = []
    skipped: list[Skipped] = []
    for done, row in enumerate(rows):
        try:
            predictions.append(predict(row))
        except RooftopError as error:
            skipped.append(Skipped(row, error.message))
        if progress is not None:
            progress((done + 1) / len(rows))
    return Validation(tuple(predictions), tuple(skipped))


def predict(row: Row) -> Prediction:
    """The step of a row's plan. Raises InputError with the rule by which the row cannot be predicted."""
    model = model_of(row.model)
    if "LoRA" in row.source:
        raise InputError("adapters alone are trained (LoRA): fewer FLOPs than a training step", field="kind")
    for key in ("chips", "mesh", "seq", "global_batch", "precision"):
        if not getattr(row, key):
            raise InputError(f"{key} is not published", field=key)
    assert row.chips is not None
    assert row.seq is not None
    assert row.global_batch is not None
    recipe = _PRECISIONS.get(row.precision.lower())
    if recipe is None:
        raise InputError(f"precision {row.precision} is not known", field="precision")
    where = where_of(row.chip, row.chips, row.slices or 1)
    if recipe.compute not in where.chip.flops:
        # emulated where the chip has no such rate
        raise InputError(f"{row.chip} has no {recipe.compute} rate", field="precision")
    mesh, zero, readings = mesh_of(row)
    groups = math.prod(mesh.get(a, 1) for a in ("data", "fsdp", "expert"))
    if row.global_batch % groups:
        raise InputError("the batch does not divide over the data-parallel groups", field="global_batch")
    microbatches = None
    if row.microbatch is not None and not _local_batch(row) and row.global_batch % (groups * row.microbatch) == 0:
        microbatches = row.global_batch // (groups * row.microbatch)
    else:
        readings.append("microbatches: the fastest number")
    question = Question(
        model, where, batch=float(row.global_batch * row.seq), seq=row.seq, batch_within=0.0,
        precision="fp16-mixed" if recipe.compute == "fp16" else "bf16-mixed",
    )  # fmt: skip
    problem = replace(problem_of(question), recipe=recipe)
    best = None
    # what is not published is the policy that recomputes least and fits
    for policy in (_REMAT[row.recompute],) if row.recompute in _REMAT else ("none", "selective", "full"):
        plan = named_plan(question, mesh, choices=Choices(zero=zero, remat=policy))
        if microbatches is not None and row.microbatch is not None:
            plan = replace(plan, microbatches=microbatches, sequences=row.microbatch)
        best = estimate(problem, plan)
        if best.fits:
            break
    assert best is not None
    if row.recompute not in _REMAT:
        readings.append(f"recomputation: {best.plan.choices.remat}, the least that fits")
    return Prediction(row, best, measured_seconds(row, model), tuple(readings))


def measured_seconds(row: Row, model: Architecture) -> float:
    """Seconds of a step: as published, or from tokens per second, or from model FLOP/s by the model's own FLOPs."""
    if row.step_seconds is not None:
        return row.step_seconds
    assert row.chips is not None
    assert row.seq is not None
    assert row.global_batch is not None
    tokens = row.global_batch * row.seq
    if row.tokens_per_second_per_chip is not None:
        return tokens / (row.tokens_per_second_per_chip * row.chips)
    if row.tflops_per_chip is not None:
        return training_flops_per_token(model, row.seq) * tokens / (row.tflops_per_chip * 1e12 * row.chips)
    raise InputError("no time is published", field="step_seconds")


def model_of(name: str) -> Architecture:
    """The model of a row: from the catalogue, or from the numbers in the package."""
    for table in _models().values():
        if name in table:
            return architecture(table[name])
    try:
        return architecture(name)
    except InputError:
        raise InputError(f"the model {name} is not known", field="model") from None


@functools.cache
def _models() -> dict[str, dict[str, str]]:
    text = resources.files("rooftop.measure").joinpath("data/models.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def where_of(name: str, chips: int, slices: int) -> Slice:
    """The slice of a row. Racks of switched chips that do not fill their domains are taken as equal parts of domains."""
    try:
        chip(name)
    except InputError:
        raise InputError(f"the chip {name} is not in the data", field="chip") from None
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


def mesh_of(row: Row) -> tuple[dict[str, int], int, list[str]]:
    """(ways by Rooftop's axes, ZeRO stage, what was read into it). What Megatron does not name is data-parallel."""
    assert row.chips is not None
    if not set(row.mesh) & set(_MEGATRON):
        mesh = {a: w for a, w in row.mesh.items() if a in MESH_AXES}
        if math.prod(mesh.values()) != row.chips:
            raise InputError("the mesh does not multiply to the chips", field="mesh")
        return mesh, 3 if mesh.get("fsdp", 1) > 1 else 1, []
    mesh = {axis: row.mesh.get(name, 1) for name, axis in _MEGATRON.items()}
    rest, left = divmod(row.chips, math.prod(mesh.values()))
    if left or rest < 1:
        raise InputError("expert ways span tensor, context or pipeline ways", field="mesh")
    # its optimizer states are always split over the data-parallel chips
    mesh["fsdp"] = rest
    readings = ["ZeRO-3 over data parallelism" if row.mesh.get("fsdp") else "ZeRO-1 over data parallelism"]
    return mesh, 3 if row.mesh.get("fsdp") else 1, readings


def _local_batch(row: Row) -> bool:
    """Whether `microbatch` is the batch of a group, which a pipeline then splits into pieces that are not published."""
    return row.family == "torchtitan" and row.mesh.get("pipeline", 1) > 1
