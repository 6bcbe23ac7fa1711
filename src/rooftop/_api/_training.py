"""Training: the best plan, one plan, curves over slices, plans in files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

from rooftop import training
from rooftop._api._words import model_of, number, numbers, where_of
from rooftop.errors import InputError
from rooftop.hardware import Slice, slice_of
from rooftop.training import Answer, Choices, Curve, Failures, Limits, Question, Wish, offered
from rooftop.transformer import Architecture, architecture, documents_of, with_capacity


class Options(TypedDict, total=False):
    """What plan and step have in common; the defaults are those of the command line, and numbers may be texts such as "4M"."""

    batch: float | str  # tokens per step
    seq: int | str  # tokens of a sequence
    tokens: float | str  # of the whole run; "chinchilla": 20 for each parameter
    batch_within: float
    max_batch: float | str
    precision: str
    optimizer: str
    optimizer_dtype: str
    gradient_dtype: str
    reduction_dtype: str
    price: float | str  # USD per chip-hour
    headroom: float
    collective_matmul: bool
    lengths: str  # of documents
    packing: str
    capacity_factor: float  # slots of an expert over its fair share
    failures: Failures | str | float  # "llama-3", "opt-175b", or the mean hours between failures of a chip


class PlanOptions(Options, total=False):
    """Options of `plan`: of the choices the values to try; where none are named, those of `tried` in its table."""

    zero: tuple[int, ...]
    outer_zero: tuple[int, ...]
    context_kind: tuple[str, ...]
    causal: tuple[str, ...]
    expert_fold: tuple[str, ...]
    expert_zero: tuple[int, ...]
    remat: tuple[str, ...]
    offload: tuple[str, ...]
    schedule: tuple[str, ...]
    chunks: tuple[int, ...]
    embed_layers: tuple[int, ...]
    head_layers: tuple[int, ...]


class StepOptions(Options, total=False):
    """Options of `step`: of the choices one value each."""

    zero: int
    outer_zero: int
    context_kind: str
    causal: str
    expert_fold: str
    expert_zero: int
    remat: str
    offload: str
    schedule: str
    chunks: int
    embed_layers: int
    head_layers: int


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(choices, the rest) of the options."""
    names = {f.name for f in offered()}
    return {n: v for n, v in options.items() if n in names}, {n: v for n, v in options.items() if n not in names}


def _question(model: str | Architecture, on: str | Slice, options: Mapping[str, Any]) -> Question:
    given = dict(options)
    arch = model_of(model)
    if (factor := given.pop("capacity_factor", None)) is not None:
        arch = with_capacity(arch, factor)
    if isinstance(failures := given.pop("failures", None), (str, float, int)):
        hours, source = training.failure_rate(str(failures))
        failures = Failures(hours, source=source)
    if isinstance(given.get("lengths"), str):
        given["lengths"] = documents_of(given["lengths"])
    if given.get("tokens") == "chinchilla":
        given["tokens"] = training.chinchilla_tokens(arch)
    return Question(arch, where_of(on), failures=failures, **numbers(given))


def plan(
    model: str | Architecture,
    on: str | Slice,
    *,
    fix: Mapping[str, int] | None = None,
    microbatches: int | None = None,
    alternatives: int = 5,
    objective: str | None = None,
    days: float | None = None,
    budget: float | str | None = None,
    pareto: bool = False,
    **options: Unpack[PlanOptions],
) -> Answer:
    """The best way to train a model on a slice; see `rooftop plan --help`.

    model: a name of the catalogue, a path, or an Architecture; on: a slice, or a chip alone, for which `objective`, `days` or `budget`
    (USD) choose a slice. fix: ways of some mesh axes. The answer has `best`, `alternatives` with `reasons`, `run`, `assumptions`.
    Raises NoAnswer where nothing fits, InputError for what is not well formed.
    """
    allowed, rest = _split(options)
    question = _question(model, on, rest)
    search: dict[str, Any] = {
        "fixed": fix, "limits": Limits(allowed, microbatches=microbatches), "keep": alternatives + 1, "pareto": pareto,
    }  # fmt: skip
    wish = Wish(None if days is None else days * 86400, number("budget", budget))
    if objective is None and wish == Wish():
        return training.plan(question, **search)
    return training.choose(question, objective or "chips", wish, **search)


def scale(
    model: str | Architecture,
    on: str | Slice,
    chips: str,
    *,
    fix: Mapping[str, int] | None = None,
    microbatches: int | None = None,
    **options: Unpack[PlanOptions],
) -> Curve:
    """The best plan on more and more chips, as `rooftop plan --scale`. on: a chip; chips: "64..4096", or "64,96,128"."""
    allowed, rest = _split(options)
    limits = Limits(allowed, microbatches=microbatches)
    return training.scale(_question(model, on, rest), training.chip_counts(chips), fixed=fix, limits=limits)


def step(
    model: str | Architecture,
    on: str | Slice,
    mesh: Mapping[str, int],
    *,
    microbatches: int | None = None,
    **options: Unpack[StepOptions],
) -> Answer:
    """Time, memory and cost of one plan that you name; see `rooftop step --help`. mesh: ways of its axes.

    A plan that does not fit is answered too: `best.fits` says so. Raises InputError for a mesh that cannot be.
    """
    taken, rest = _split(options)
    question = _question(model, on, rest)
    named = training.named_plan(question, mesh, microbatches=microbatches, choices=Choices(**taken))
    return training.step_of(question, named)


def save_plan(answer: Answer, path: str | Path, *, model: str | None = None, on: str | None = None) -> None:
    """Save the best plan of an answer, as `--save` does.

    model, on: how the file shall name model and slice, where these have no name of their own (a config.json, a hardware file).
    Raises InputError where the file would not find them again, or cannot be written.
    """
    question = answer.question
    words = {"model": model or question.model.name, "slice": on or question.slice.name}
    for name, found, asked in (
        ("model", architecture(words["model"]), question.model),
        ("slice", slice_of(words["slice"]), question.slice),
    ):
        if found != asked:
            raise InputError(
                f"{words[name]} does not name the {name} of this plan; say where it is to be found:"
                f" save_plan(..., {'on' if name == 'slice' else name}=...)",
                field=name,
            )
    kept = ("precision", "optimizer", "optimizer_dtype", "gradient_dtype", "reduction_dtype")
    told = {k: getattr(question, k) for k in kept}
    more: dict[str, Any] = {
        "collective_matmul": question.collective_matmul or None,
        "headroom": question.headroom or None,
    }
    lengths = question.lengths
    if lengths is not None:
        more |= {"lengths": lengths if isinstance(lengths, str) else lengths.text, "packing": question.packing}
    training.write_plan(Path(path), answer, {**words, "batch": question.batch, **told, **more})


def load_plan(path: str | Path, **options: Unpack[Options]) -> Answer:
    """The answer for a saved plan, whose file says model and slice; options go before what it was made for."""
    facts = training.made_for(training.load(Path(path)), str(path))
    for name in ("model", "slice"):
        if name not in facts:
            raise InputError(f"{path} does not say its {name}; add it to its `for`", field=name)
    model, where = facts.pop("model"), facts.pop("slice")
    question = _question(model, where, {**facts, **options})
    return training.step_of(question, training.read_plan(Path(path), question))
