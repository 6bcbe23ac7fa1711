"""The Python interface: the questions of the command line, with the same names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from rooftop.hardware import Slice, slice_of
from rooftop.training import Answer, Choices, Limits, Question, choices, named_plan, step_of
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


class PlanOptions(Options, total=False):
    """Options of `plan`: of the choices the values to try, all where none are named."""

    zero: tuple[int, ...]
    remat: tuple[str, ...]


class StepOptions(Options, total=False):
    """Options of `step`: of the choices one value each."""

    zero: int
    remat: str


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(choices, the rest) of the options."""
    names = {f.name for f in choices()}
    return {n: v for n, v in options.items() if n in names}, {n: v for n, v in options.items() if n not in names}


def _question(model: str | Architecture, on: str | Slice, options: Mapping[str, Any]) -> Question:
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
    microbatches: int | None = None,
    alternatives: int = 5,
    **options: Unpack[PlanOptions],
) -> Answer:
    """The best way to train a model on a slice; see `rooftop plan --help`.

    Raises NoAnswer where nothing fits, InputError for what is not well formed.
    """
    allowed, rest = _split(options)
    limits = Limits(allowed, microbatches=microbatches)
    return search_plan(_question(model, on, rest), fixed=fix, limits=limits, keep=alternatives + 1)


def step(
    model: str | Architecture,
    on: str | Slice,
    mesh: Mapping[str, int],
    *,
    microbatches: int | None = None,
    **options: Unpack[StepOptions],
) -> Answer:
    """Time, memory and cost of one plan that you name; see `rooftop step --help`."""
    taken, rest = _split(options)
    question = _question(model, on, rest)
    return step_of(question, named_plan(question, mesh, microbatches=microbatches, choices=Choices(**taken)))
