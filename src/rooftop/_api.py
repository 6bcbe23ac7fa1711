"""The Python interface: the questions of the command line, with the same names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from rooftop import inference, simulation
from rooftop.hardware import Slice, slice_of
from rooftop.inference import Answer as Served
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
    optimizer: str
    optimizer_dtype: str
    gradient_dtype: str
    reduction_dtype: str
    price: float  # USD per chip-hour
    headroom: float
    collective_matmul: bool
    lengths: str  # of documents
    packing: str


class PlanOptions(Options, total=False):
    """Options of `plan`: of the choices the values to try; where none are named, those of `tried` in its table."""

    zero: tuple[int, ...]
    outer_zero: tuple[int, ...]
    context_kind: tuple[str, ...]
    causal: tuple[str, ...]
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
    remat: str
    offload: str
    schedule: str
    chunks: int
    embed_layers: int
    head_layers: int


class Serving(TypedDict, total=False):
    """What `serve` takes beside its limits; the defaults are those of the command line."""

    prompt: int  # tokens of a request in
    output: int  # and out
    context: int  # position at which steps are timed
    batches: tuple[int, ...]
    weights: str  # dtypes
    activations: str
    kv: str
    prefix_hits: float
    chunk: int
    block: int
    reserve: int
    draft_tokens: int
    acceptance: float
    offload: float
    price: float  # USD per chip-hour
    headroom: float


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


def simulate(
    model: str | Architecture,
    on: str | Slice,
    workload: str | simulation.Workload,
    *,
    scheduling: simulation.Scheduling | None = None,
    fleet: simulation.Fleet | None = None,
    slo: simulation.Slo | None = None,
    seed: int = 0,
    **options: Unpack[simulation.Deployed],
) -> simulation.Outcome:
    """Serve a workload, request by request, on replicas of a model on a slice; see `rooftop simulate --help`."""
    scheduling = scheduling or simulation.Scheduling()
    work = simulation.workload(workload) if isinstance(workload, str) else workload
    fleet = fleet or simulation.Fleet()
    replica = simulation.modelled(
        architecture(model) if isinstance(model, str) else model,
        slice_of(on) if isinstance(on, str) else on,
        scheduling,
        simulation.typical(work, seed),
        replicas=fleet.replicas,
        **options,
    )
    setup = simulation.Setup(replica, scheduling, fleet, slo or simulation.Slo())
    return simulation.simulate(setup, work, seed=seed)


def serve(
    model: str | Architecture,
    on: str | Slice,
    *,
    draft: str | Architecture | None = None,
    fix: Mapping[str, int] | None = None,
    ttft: float | None = None,
    tpot: float | None = None,
    usd: float | None = None,
    load: float | None = None,
    **options: Unpack[Serving],
) -> Served:
    """The best ways to serve a model on a slice: a table over batches, the frontier, the best; see `rooftop serve --help`.

    ttft, tpot: limits in seconds; usd: per million tokens generated; load: requests a second that the smallest slice of
    the chip must sustain. Raises NoAnswer where nothing fits, InputError for what is not well formed.
    """
    question = inference.Question(
        architecture(model) if isinstance(model, str) else model,
        slice_of(on) if isinstance(on, str) else on,
        draft=architecture(draft) if isinstance(draft, str) and draft != "mtp" else draft,
        **options,
    )
    limits = inference.Limits(fixed=fix, ttft=ttft, tpot=tpot, usd=usd)
    return inference.serve(question, limits) if load is None else inference.fewest(question, load, limits)
