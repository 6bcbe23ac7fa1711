"""Inference rows: the throughput of a node at maximum load, and steps and prefill of the PaLM inference paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rooftop.errors import InputError
from rooftop.hardware import Slice
from rooftop.inference import Configuration, Layout, Limits, Question, point, problem_of, search
from rooftop.measure._models import model_of
from rooftop.measure._result import Prediction
from rooftop.measure._table import Row
from rooftop.measure._training import where_of

#: Precision -> dtypes of weights, of activations in matmuls, of the cache.
_PRECISIONS: dict[str, tuple[str | None, str | None, str | None]] = {
    "fp4": ("nvfp4", "fp4", "fp8"), "nvfp4": ("nvfp4", "fp4", "fp8"), "fp8": ("fp8", "fp8", "fp8"), "bf16": ("bf16", None, None),
    "fp16": ("fp16", "fp16", None), "int8": ("int8", None, None),
}  # fmt: skip


def inference(row: Row) -> tuple[Prediction, ...]:
    """The throughput, step or utilisation of a row. Raises InputError with the rule by which it cannot be predicted."""
    model = model_of(row.text("model"))
    chips = row.count("chips") or 1
    where = where_of(row.text("chip"), chips, 1)
    precision = row.text("precision").lower().split(" ")[0] or "bf16"
    if precision not in _PRECISIONS:
        raise InputError(f"precision {precision[:40]} is not known", field="precision")
    weights, activations, kv = _PRECISIONS[precision]
    if activations == "fp4" and "fp4" not in where.chip.flops:
        activations = None  # 4-bit weights are multiplied in bf16 where the chip has no such rate
    if activations == "fp8" and "fp8" not in where.chip.flops:
        raise InputError(f"{where.chip.name} has no fp8 rate", field="precision")
    question = Question(model, where, weights=weights, activations=activations, kv=kv, headroom=0.1)
    if row.number("output_tokens_per_second_per_chip") is not None:
        return (_offline(row, question),)
    if row.number("step_seconds") is not None and row.text("kind") == "decode":
        return (_decode(row, question),)
    if row.number("mfu") is not None and row.text("kind") == "prefill":
        return (_prefill(row, question),)
    raise InputError("no throughput, step of a batch or utilisation at prefill is published", field="kind")


def _result(
    row: Row, where: Slice, quantity: str, expected: float, bound: float, how: dict[str, object], *readings: str
) -> Prediction:
    measured = row.number(quantity)
    assert measured is not None
    return Prediction(
        row.id, row.table, row.text("kind") or "serve-offline", row.id.partition(".")[0], row.text("model"), where.chip.name,
        where.name, quantity, measured, bound, expected, how, readings,
    )  # fmt: skip


def _offline(row: Row, question: Question) -> Prediction:
    """Maximum load: requests in all stages of their output, as many as the memory holds at their mean length."""
    prompt, output, chips = row.needed("input_tokens"), row.needed("output_tokens"), question.slice.chips
    question = replace(question, prompt=prompt, output=output, chunk=min(8192, prompt))
    moe = question.model.experts is not None
    axis = "expert" if row.text("layout").upper().startswith("DEP") and moe else "tensor"
    limits = Limits(fixed={axis: chips}, weights=("stationary",), caches=("heads",), experts=("width",))
    # a request holds its mean length: the pages of later tokens are not there yet
    mean = replace(question, prompt=prompt + output // 2, output=1)
    whole = search(problem_of(replace(mean, headroom=0.0)), (1,), limits)
    if not whole.by_batch:
        raise InputError(f"{question.model.name} does not fit on {question.slice.name}", field="chips")
    at = next(iter(whole.by_batch.values())).at
    most = search(problem_of(mean), (1,), limits).caches
    if not most:
        raise InputError(f"no cache fits beside the weights on {question.slice.name}", field="chips")
    problem = problem_of(question)
    sizes = sorted({min(most, 2**k) for k in range(15)} | {min(most, 16384)})
    # runs at maximum load are tuned to the batch that serves most
    points = [point(problem, at, b) for b in sizes]
    best = max(points, key=lambda p: p.requests_per_second)
    bound = point(problem, at, whole.caches).most_requests_per_second
    return _result(
        row, question.slice, "output_tokens_per_second_per_chip", best.requests_per_second * output / chips,
        bound * output / chips, {"mesh": {axis: chips}, "batch": best.batch}, "as many requests at once as serve most",
    )  # fmt: skip


def _decode(row: Row, question: Question) -> Prediction:
    """The best configuration of a batch on the slice."""
    batch, where = row.needed("batch"), question.slice
    prompt, output = row.count("input_tokens") or 2048, row.count("output_tokens") or 64
    question = replace(question, prompt=prompt, output=output, context=prompt)
    problem = problem_of(question)
    found = search(problem, (batch,)).by_batch.get(batch)
    if found is None:
        raise InputError(f"a batch of {batch} does not fit on {where.name}", field="batch")
    p = point(problem, found.at, batch)
    lowest = min(float(point(problem, c, batch).generate.step.bound) for c in _meshes(where))
    mesh = {a: w for a, w in found.at.mesh.items() if w != 1}
    return _result(
        row, where, "step_seconds", float(p.generate.step.expected), min(lowest, float(p.generate.step.bound)),
        {"mesh": mesh, "batch": batch}, "the fastest mesh",
    )  # fmt: skip


def _meshes(where: Slice) -> Iterator[Configuration]:
    """Two-dimensional meshes of a cube of chips, as they lie on its sides in order."""
    if where.chips != 64:
        return
    for fsdp in (1, 4, 16):
        tensor = 64 // fsdp
        sides = (
            {"fsdp": min(4, fsdp), "tensor": 4 // min(4, fsdp)},
            {"fsdp": fsdp // 4 or 1, "tensor": 4 // (fsdp // 4 or 1)},
        )
        yield Configuration({"fsdp": fsdp, "tensor": tensor}, (*sides, {"tensor": 4}), Layout())


def _prefill(row: Row, question: Question) -> Prediction:
    """Utilisation of the configuration that reads prompts fastest."""
    question = replace(question, prompt=row.count("input_tokens") or 2048, output=1)
    problem = problem_of(question)
    reader = search(problem, (1,)).reader
    if reader is None:
        raise InputError(f"{question.model.name} does not fit on {question.slice.name}", field="chips")
    p = point(problem, reader.at, 1)
    mesh = {a: w for a, w in reader.at.mesh.items() if w != 1}
    mfu = float(p.prefill.resources["compute"] / p.prefill.expected)
    return _result(row, question.slice, "mfu", mfu, 1.0, {"mesh": mesh, "batch": 1}, "the fastest mesh")
