"""Serving: the best configuration, pools of both kinds, and workloads request by request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from rooftop import inference, simulation
from rooftop._api._words import model_of, number, numbers, where_of
from rooftop.hardware import Slice
from rooftop.inference import Answer, Pools
from rooftop.transformer import Architecture


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
    price: float | str  # USD per chip-hour
    headroom: float


def _question(
    model: str | Architecture, on: str | Slice, draft: str | Architecture | None, options: Mapping[str, Any]
) -> inference.Question:
    given = numbers(options)
    if draft is not None:
        given = {"acceptance": 0.7, **({"draft_tokens": 1} if draft == "mtp" else {}), **given}
    helper = model_of(draft) if draft is not None and draft != "mtp" else draft
    return inference.Question(model_of(model), where_of(on), draft=helper, **given)


def serve(
    model: str | Architecture,
    on: str | Slice,
    *,
    draft: str | Architecture | None = None,
    fix: Mapping[str, int] | None = None,
    ttft: float | str | None = None,
    tpot: float | str | None = None,
    usd: float | str | None = None,
    load: float | str | None = None,
    **options: Unpack[Serving],
) -> Answer:
    """The best ways to serve a model on a slice: a table over batches, the frontier, the best; see `rooftop serve --help`.

    ttft, tpot: limits in seconds, or "20ms"; usd: per million tokens generated; load: requests a second that the smallest slice of
    the chip must sustain. Raises NoAnswer where nothing fits, InputError for what is not well formed.
    """
    question = _question(model, on, draft, options)
    limits = inference.Limits(fixed=fix, **numbers({"ttft": ttft, "tpot": tpot, "usd": usd}))
    return (
        inference.serve(question, limits) if load is None else inference.fewest(question, number("load", load), limits)
    )


def serve_apart(
    model: str | Architecture,
    on: str | Slice,
    prefill_on: str | Slice,
    *,
    most: int = 64,
    fix: Mapping[str, int] | None = None,
    ttft: float | str | None = None,
    tpot: float | str | None = None,
    **options: Unpack[Serving],
) -> Pools:
    """Pools that read prompts beside pools that generate, in the best ratio, as `rooftop serve --prefill-on`. most: pools in all."""
    limits = inference.Limits(fixed=fix, **numbers({"ttft": ttft, "tpot": tpot}))
    return inference.disaggregate(_question(model, on, None, options), where_of(prefill_on), limits, most=most)


def _setup(
    model: str | Architecture,
    on: str | Slice,
    work: simulation.Workload,
    scheduling: simulation.Scheduling | None,
    fleet: simulation.Fleet | None,
    slo: simulation.Slo | None,
    seed: int,
    options: Mapping[str, Any],
    within: simulation.Slo | None = None,
) -> simulation.Setup:
    scheduling, fleet = scheduling or simulation.Scheduling(), fleet or simulation.Fleet()
    replica = simulation.modelled(
        model_of(model),
        where_of(on),
        scheduling,
        simulation.typical(work, seed),
        replicas=fleet.replicas,
        within=within,
        **numbers(options),
    )
    return simulation.Setup(replica, scheduling, fleet, slo or simulation.Slo())


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
    """Serve a workload, request by request, on replicas of a model on a slice; see `rooftop simulate --help`.

    workload: a file, or "poisson:rate=8,input=1000,output=200". Raises NoAnswer where the model or a request does not fit.
    """
    work = simulation.workload(workload) if isinstance(workload, str) else workload
    return simulation.simulate(_setup(model, on, work, scheduling, fleet, slo, seed, options), work, seed=seed)


def find_rate(
    model: str | Architecture,
    on: str | Slice,
    workload: str | simulation.Workload,
    slo: simulation.Slo,
    *,
    attain: float = 0.99,
    scheduling: simulation.Scheduling | None = None,
    fleet: simulation.Fleet | None = None,
    seed: int = 0,
    **options: Unpack[simulation.Deployed],
) -> simulation.Rate:
    """The highest load at which a part `attain` of the requests meets the SLO, as `rooftop simulate --find-rate`."""
    work = simulation.workload(workload) if isinstance(workload, str) else workload
    setup = _setup(model, on, work, scheduling, fleet, slo, seed, options, within=slo)
    return simulation.find_rate(setup, work, attain=attain, seed=seed)
