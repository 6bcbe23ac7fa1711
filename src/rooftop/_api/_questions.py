"""Questions about answers: how they move, how far they are from what was measured, why they are what they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from rooftop import codesign, inference, measure, profiles, training
from rooftop._api._words import model_of, number, where_of
from rooftop.codesign import Engine, Scenario, Swept, Value, Vary
from rooftop.errors import InputError
from rooftop.formula import Explanation
from rooftop.hardware import Slice, chip
from rooftop.measure import Validation
from rooftop.training import ComputeOptimal
from rooftop.transformer import Architecture


def sweep(
    model: str | Architecture,
    on: str | Slice,
    vary: Mapping[str, str | Iterable[Any]],
    *,
    of: str = "plan",
    mesh: Mapping[str, int] | None = None,
    settings: Sequence[str] = (),
    workload: str | None = None,
    out: str | Path | None = None,
    engine: Engine | None = None,
) -> Swept:
    """How an answer moves with any parameters: every combination of their values; see `rooftop sweep --help`.

    vary: parameter (several joined by +) -> values, or a text such as "1M..64M:x2". of: "plan", "step" (of `mesh`), "serve" or
    "simulate" (of `workload`). settings: "NAME=VALUE". out: a file for all points, which resumes. The result has `columns`.
    """
    scenario = codesign.told(Scenario(of, model_of(model), where_of(on)), mesh, settings, workload)
    varies = [_vary(scenario, name, values) for name, values in vary.items()]
    return codesign.sweep(scenario, varies, out=None if out is None else Path(out), engine=engine)


def _vary(scenario: Scenario, names: str, values: str | Iterable[Any]) -> Vary:
    if isinstance(values, str):
        return codesign.vary_of(scenario, f"{names}={values}")
    full = tuple(codesign.canonical(scenario, name.strip()) for name in names.split("+"))
    return Vary(full, tuple(Value(value) for value in values))


def scaling(
    model: str | Architecture | None = None,
    *,
    flops: float | str | None = None,
    on: str | Slice | None = None,
    days: float | None = None,
    mfu: float | None = None,
    seq: int = 4096,
    precision: str = "bf16",
) -> ComputeOptimal:
    """Compute-optimal tokens for a model, or model and tokens for a budget; see `rooftop scaling --help`.

    One of: model; flops, a budget; on, days and mfu, which make one.
    """
    if sum(x is not None for x in (model, flops, on)) != 1:
        raise InputError("give one of model, flops, or on with days and mfu", field="model")
    if model is not None:
        return training.optimal_for_model(model_of(model), seq)
    if flops is not None:
        return training.optimal_for_flops(number("flops", flops))
    if on is None or days is None or mfu is None:
        raise InputError("on, days and mfu make one budget; give all three", field="days")
    return training.optimal_for_chips(where_of(on), days * 86400, mfu, precision)


def validate(
    rows: str | Path | None = None,
    *,
    table: str = "training",
    source: str | None = None,
    chip: str | None = None,
    sample: int | None = None,
) -> Validation:
    """Predictions beside published measurements, or beside yours; see `rooftop validate --help`.

    rows: a CSV file of yours; else table: "training", "inference" or "serving". source, chip: texts that rows must contain; sample: so
    many rows, evenly spread. The result has `predictions` and `refused` rows.
    """
    found = measure.published(table) if rows is None else measure.read_rows(Path(rows))
    return measure.validate(measure.select(found, source=source, chip=chip, sample=sample))


def explain(
    answer: training.Answer | inference.Answer, quantity: str = "step_seconds", *, depth: int = 2
) -> Explanation:
    """Derive a quantity of the best plan or configuration: formula, numbers, sources, so many levels deep; as `--explain`.

    Raises InputError, which names all quantities, for one that there is not.
    """
    if isinstance(answer, inference.Answer):
        return inference.explain_point(answer.best, quantity, depth)
    return training.explain_estimate(answer.best, quantity, depth, question=answer.question)


def whatif(
    model: str | Architecture,
    on: str | Slice,
    *,
    of: str = "plan",
    mesh: Mapping[str, int] | None = None,
    settings: Sequence[str] = (),
    names: Sequence[str] = (),
    measure: str | None = None,
    by: float = 2.0,
    fixed: bool = False,
    engine: Engine | None = None,
) -> codesign.Whatif:
    """What limits an answer, and how far each number of hardware, model and workload moves it; see `rooftop whatif --help`.

    names: of some numbers; measure: what is told of first; by: how far off numbers are tried, a factor; fixed: keep the plan. of, mesh,
    settings: as for `sweep`.
    """
    scenario = codesign.told(Scenario(of, model_of(model), where_of(on)), mesh, settings)
    return codesign.whatif(scenario, numbers=names, measure=measure, by=by, replan=not fixed, engine=engine)


def solve(
    model: str | Architecture,
    on: str | Slice,
    need: str | Sequence[str],
    by: str,
    *,
    of: str = "plan",
    mesh: Mapping[str, int] | None = None,
    settings: Sequence[str] = (),
    workload: str | None = None,
    want: str = "nearest",
    engine: Engine | None = None,
) -> codesign.Solved:
    """What a number of hardware, model or plan must be for a goal; see `rooftop solve --help`.

    need: goals such as "mfu>=0.5", all of which must be met. by: the parameter, perhaps with values: "ici_bandwidth=10GB..1TB". want: of the
    values that meet them the "nearest" edge to what is there, the "smallest" or the "largest". of, mesh, settings, workload: as for
    `sweep`. The result has `at`, whose value and row were answered, and `fails`, its neighbour that misses a goal. Raises NoAnswer where
    no value meets the goals.
    """
    scenario = codesign.told(Scenario(of, model_of(model), where_of(on)), mesh, settings, workload)
    return codesign.solve(scenario, need, by, want=want, engine=engine)


def shapes(
    model: str | Architecture,
    on: str | Slice,
    vary: Mapping[str, Sequence[int] | None] | Sequence[str] = (),
    *,
    equal: Sequence[str] = ("parameters",),
    within: float = 0.02,
    of: str = "plan",
    mesh: Mapping[str, int] | None = None,
    settings: Sequence[str] = (),
    workload: str | None = None,
    engine: Engine | None = None,
) -> codesign.Shapes:
    """Shapes of a model with as much of all budgets `equal`, within a share, the fastest first; see `rooftop shapes --help`.

    vary: numbers of the model and their values, or texts such as "heads=16..64"; of, mesh, settings, workload: as for `sweep`.
    """
    scenario = codesign.told(Scenario(of, model_of(model), where_of(on)), mesh, settings, workload)
    varied = vary if isinstance(vary, Mapping) else codesign.parse_numbers(scenario.model, tuple(vary))
    return codesign.shapes(scenario, varied=varied, equal=equal, within=within, engine=engine)


def design(
    works: Sequence[str],
    *,
    usd: float | str | None = None,
    watts: float | None = None,
    mm2: float | None = None,
    like: str = "h100",
    networks: Sequence[str] = codesign.NETWORKS,
    vary: Mapping[str, Sequence[float]] | None = None,
    costs: str | Path | None = None,
    beside: Sequence[str] | None = None,
    most_chips: int = 4096,
    part: int = 32,
    top: int = 5,
    engine: Engine | None = None,
) -> codesign.Design:
    """The chip and the network that do a mix of work best within a budget, beside chips of today; see `rooftop design --help`.

    works: "train llama-3-70b batch=4M weight=2", "serve llama-3-70b tpot=30ms". vary: values of flops (multiples of those of
    `like`), stacks, stack_bytes, link, domain, scaleout (bytes/s). costs: a file with numbers of the cost model.
    """
    return codesign.design(
        codesign.works(works, chip(like)),
        codesign.Budget(number("usd", usd), watts, mm2, most_chips, part),
        like=like,
        values=vary,
        networks=networks,
        cost_model=codesign.costs(None if costs is None else Path(costs)),
        beside=beside,
        top=top,
        engine=engine,
    )


def compare(
    model: str | Architecture,
    on: str | Slice,
    ways: Iterable[str] | str,
    *,
    of: str = "plan",
    mesh: Mapping[str, int] | None = None,
    settings: Sequence[str] = (),
    workload: str | None = None,
    equal: str | None = None,
    over: Sequence[str] = (),
) -> codesign.Comparison:
    """Ways to do the same beside each other, and the hardware with which each would overtake the fastest; see `rooftop compare --help`.

    ways: all of a kind ("attention", "precision", ...), or each as "weights=fp8,kv=fp8". equal: "parameters", "active" or "flops" that
    models which differ are fitted to. over: rates to follow. of, mesh, settings, workload: as for `sweep`.
    """
    scenario = codesign.told(Scenario(of, model_of(model), where_of(on)), mesh, settings, workload)
    texts = codesign.ways(scenario, ways) if isinstance(ways, str) else list(dict.fromkeys(ways))
    return codesign.compare(scenario, texts, over=over, equal=equal)


@overload
def versus(a: training.Answer, b: training.Answer) -> training.Comparison: ...


@overload
def versus(a: profiles.Report, b: profiles.Report) -> profiles.Versus: ...


def versus(a: Any, b: Any) -> Any:
    """What differs between two plans, or between a profile before and after a change; as `--versus`."""
    if isinstance(a, training.Answer) and isinstance(b, training.Answer):
        return training.compare(a.best, b.best)
    if isinstance(a, profiles.Report) and isinstance(b, profiles.Report):
        return profiles.compare(a, b)
    raise InputError("versus takes two answers of plan or step, or two reports of trace", field="a")
