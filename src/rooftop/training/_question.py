"""A training question in the user's terms, and the problem that it poses."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from rooftop.errors import InputError, nearest
from rooftop.hardware import Slice
from rooftop.roofline import Calibration, calibration_for
from rooftop.training._failures import Failures
from rooftop.training._plan import PACKING, Problem
from rooftop.training._recipe import RECIPES, recipe
from rooftop.transformer import Documents, documents_of


@dataclass(frozen=True, slots=True)
class Question:
    """A training question in the user's terms. See `plan`."""

    model: Any
    slice: Slice
    batch: float | None = None
    seq: int | None = None
    tokens: float | None = None
    batch_within: float = 0.1
    max_batch: float | None = None
    precision: str = "bf16"
    optimizer: str = "adamw"
    optimizer_dtype: str | None = None
    gradient_dtype: str | None = None
    reduction_dtype: str | None = None
    price: float | None = None
    headroom: float = 0.0
    calibration: Calibration | None = None
    collective_matmul: bool = False
    failures: Failures | None = None
    lengths: str | Documents | None = None
    packing: str = "packed"


def problem_of(question: Question) -> Problem:
    """The problem behind a question; defaults: sequences of 4096 tokens, a batch of 4M tokens."""
    model, where = question.model, question.slice
    seq = 4096 if question.seq is None else question.seq
    most = math.inf if question.max_batch is None else question.max_batch
    batch = min(4e6, most) if question.batch is None else question.batch
    if seq < 1 or seq > 1e8:
        raise InputError(f"seq={seq} is not a sequence length; give 1 to 100M tokens, as in --seq 4096", field="seq")
    if not seq <= batch < math.inf:
        raise InputError(
            f"a batch of {batch:g} tokens is smaller than one sequence of {seq}; give a batch of {seq} tokens or more,"
            f" or a shorter --seq",
            field="batch",
        )
    if not batch <= most:
        raise InputError(
            f"a batch of {batch:g} tokens is more than the largest allowed, {most:g}; lower --batch or raise --max-batch",
            field="max_batch",
        )
    if not 0 <= question.batch_within < 1:
        raise InputError(
            f"batch-within={question.batch_within} is not a share; give 0 (exactly this batch) to below 1",
            field="batch_within",
        )
    if not 0 <= question.headroom < 1:
        raise InputError(
            f"headroom={question.headroom} is not a share of HBM; give 0 to below 1, as in --headroom 0.1",
            field="headroom",
        )
    if question.packing not in PACKING:
        raise InputError(
            f"packing={question.packing[:40]!r} is not known{nearest(question.packing, PACKING)}; use {' or '.join(PACKING)}",
            field="packing",
        )
    if question.lengths is None and question.packing != "packed":
        raise InputError("packing changes nothing without lengths of documents; give --lengths, too", field="packing")
    chosen = recipe(
        question.precision, moments=question.optimizer_dtype, optimizer_name=question.optimizer,
        gradients=question.gradient_dtype, reduction=question.reduction_dtype,
    )  # fmt: skip
    missing = chosen.missing(where.chip.flops)
    if missing is not None:
        able = [name for name, r in RECIPES.items() if r.missing(where.chip.flops) is None]
        raise InputError(
            f"{where.chip.name} has no {missing} rate, which {question.precision} needs (it has {', '.join(where.chip.flops)}); use --precision"
            f" {' or '.join(able) if able else 'on another chip'}",
            field="precision",
        )
    calibration = question.calibration or calibration_for(where.chip.name, where.chip.family)
    if question.collective_matmul:
        overlap = {**calibration.overlap, "critical": calibration.overlap["prefetch"]}
        calibration = replace(calibration, overlap=overlap)
    return Problem(
        model=model, slice=where, seq=seq, batch_tokens=batch, batch_within=question.batch_within,
        recipe=chosen,
        calibration=calibration,
        headroom=question.headroom,
        max_batch_tokens=most,
        documents=documents_of(question.lengths) if isinstance(question.lengths, str) else question.lengths,
        packing=question.packing,
    )  # fmt: skip


def price_of(question: Question) -> float | None:
    """USD per chip-hour: the user's, or the chip's."""
    if question.price is not None:
        return question.price
    return question.slice.chip.price.usd_per_hour if question.slice.chip.price else None
