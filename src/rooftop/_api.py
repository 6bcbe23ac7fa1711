"""The Python interface: the questions of the command line, with the same names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict, Unpack

from rooftop.hardware import Slice, slice_of
from rooftop.training import POLICIES, ZERO_STAGES, Answer, Limits, Question, named_plan, step_of
from rooftop.training import plan as search_plan
from rooftop.transformer import Architecture, architecture


class Options(TypedDict, total=False):
    """What plan and step have in common; the defaults are those of the command line."""

    batch: float  # tokens per step
    seq: int  # tokens of a sequence
    tokens: float  # of the whole run
    batch_within: float
    precision: str
    optimizer_dtype: str
    price: float  # USD per chip-hour
    headroom: float
    collective_matmul: bool


def _question(model: str | Architecture, on: str | Slice, options: Options) -> Question:
    return Question(
        architecture(model) if isinstance(model, str) else model,
        slice_of(on) if isinstance(on, str) else on,
        **options,
    )


def plan(
    model: str | Architecture,
    on: str | Slice,
    *,
    fix: Mapping[str, int] | None = None,
    remat: tuple[str, ...] = POLICIES,
    zero: tuple[int, ...] = ZERO_STAGES,
    microbatches: int | None = None,
    alternatives: int = 5,
    **options: Unpack[Options],
) -> Answer:
    """The best way to train a model on a slice; see `rooftop plan --help`.

    Raises NoAnswer where nothing fits, InputError for what is not well formed.
    """
    limits = Limits(zero=zero, remat=remat, microbatches=microbatches)
    return search_plan(_question(model, on, options), fixed=fix, limits=limits, keep=alternatives + 1)


def step(
    model: str | Architecture,
    on: str | Slice,
    mesh: Mapping[str, int],
    *,
    remat: str = "none",
    zero: int = 3,
    microbatches: int | None = None,
    **options: Unpack[Options],
) -> Answer:
    """Time, memory and cost of one plan that you name; see `rooftop step --help`."""
    question = _question(model, on, options)
    return step_of(question, named_plan(question, mesh, microbatches=microbatches, remat=remat, zero=zero))
