"""The Python interface: the questions of the command line, with the same names."""

from __future__ import annotations

from collections.abc import Mapping

from rooftop.hardware import Slice, slice_of
from rooftop.training import POLICIES, ZERO_STAGES, Answer, Limits, Question, named_plan, step_of
from rooftop.training import plan as search_plan
from rooftop.transformer import Architecture, architecture


def _question(
    model: str | Architecture,
    on: str | Slice,
    *,
    batch: float | None,
    seq: int | None,
    tokens: float | None,
    batch_within: float,
    precision: str,
    optimizer_dtype: str | None,
    price: float | None,
    headroom: float,
    collective_matmul: bool,
) -> Question:
    return Question(
        architecture(model) if isinstance(model, str) else model,
        slice_of(on) if isinstance(on, str) else on,
        batch=batch, seq=seq, tokens=tokens, batch_within=batch_within, precision=precision,
        optimizer_dtype=optimizer_dtype, price=price, headroom=headroom, collective_matmul=collective_matmul,
    )  # fmt: skip


def plan(
    model: str | Architecture,
    on: str | Slice,
    *,
    batch: float | None = None,
    seq: int | None = None,
    tokens: float | None = None,
    batch_within: float = 0.1,
    precision: str = "bf16",
    optimizer_dtype: str | None = None,
    price: float | None = None,
    headroom: float = 0.0,
    collective_matmul: bool = False,
    fix: Mapping[str, int] | None = None,
    remat: tuple[str, ...] = POLICIES,
    zero: tuple[int, ...] = ZERO_STAGES,
    microbatches: int | None = None,
    alternatives: int = 5,
) -> Answer:
    """The best way to train a model on a slice; see `rooftop plan --help`. batch and tokens in tokens, price in USD/h.

    Raises NoAnswer where nothing fits, InputError for what is not well formed.
    """
    question = _question(
        model, on, batch=batch, seq=seq, tokens=tokens, batch_within=batch_within, precision=precision,
        optimizer_dtype=optimizer_dtype, price=price, headroom=headroom, collective_matmul=collective_matmul,
    )  # fmt: skip
    limits = Limits(zero=zero, remat=remat, microbatches=microbatches)
    return search_plan(question, fixed=fix, limits=limits, keep=alternatives + 1)


def step(
    model: str | Architecture,
    on: str | Slice,
    mesh: Mapping[str, int],
    *,
    batch: float | None = None,
    seq: int | None = None,
    tokens: float | None = None,
    batch_within: float = 0.1,
    precision: str = "bf16",
    optimizer_dtype: str | None = None,
    price: float | None = None,
    headroom: float = 0.0,
    collective_matmul: bool = False,
    remat: str = "none",
    zero: int = 3,
    microbatches: int | None = None,
) -> Answer:
    """Time, memory and cost of one plan that you name; see `rooftop step --help`."""
    question = _question(
        model, on, batch=batch, seq=seq, tokens=tokens, batch_within=batch_within, precision=precision,
        optimizer_dtype=optimizer_dtype, price=price, headroom=headroom, collective_matmul=collective_matmul,
    )  # fmt: skip
    return step_of(question, named_plan(question, mesh, microbatches=microbatches, remat=remat, zero=zero))
