"""What if a number were another: exact slopes of what is chosen, and what becomes of it, and of the best, some way off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rooftop import inference, training
from rooftop.codesign._answers import Row, planned, row_of, serving_question
from rooftop.codesign._derivatives import MEASURES, WORKLOAD, elasticities, hardware_numbers
from rooftop.codesign._engine import Engine
from rooftop.codesign._models import model_numbers
from rooftop.codesign._scenario import Scenario, canonical, current, resolved
from rooftop.codesign._sweep import Task, work
from rooftop.codesign._values import Value
from rooftop.errors import InputError, NoAnswer, RooftopError, nearest
from rooftop.shown import Shown
from rooftop.training import choices

#: The share of a time that no number of hardware names: kernels, steps and messages that cost time by themselves.
FIXED = "fixed overheads"


@dataclass(frozen=True, slots=True)
class Move:
    """A number some way off. fixed: the row of what was chosen, its mesh, microbatches or batch kept; best: of the best one then.

    A row has `error` instead of numbers where there is no answer.
    """

    factor: float
    value: Any
    fixed: Row
    best: Row | None


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """One number. kind: hardware, model or workload. elasticities: by measure, the per cent that it moves for one per cent of the
    number, what was chosen kept; None where a number moves things in steps.
    """

    name: str
    kind: str
    value: float
    elasticities: Mapping[str, float | None]
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class Whatif(Shown):
    """base: the row of what was chosen. shares: of the measure's time by hardware number, which add up to one, most first."""

    scenario: Scenario
    measure: str
    by: float
    base: Row
    shares: Mapping[str, float]
    numbers: tuple[Sensitivity, ...]
    assumptions: tuple[str, ...]

    def change(self, row: Row | None) -> float | None:
        """What part of the measure a row is off; None where it has no answer."""
        if row is None or row.get(self.measure) is None or row.get("fits") is False:
            return None
        return float(row[self.measure]) / float(self.base[self.measure]) - 1.0


def numbers_of(scenario: Scenario) -> dict[str, str]:
    """Full names of the numbers that are looked at unless some are named, with their kinds."""
    hardware = (*hardware_numbers(scenario), "chip.hbm_bytes")
    return (
        dict.fromkeys(hardware, "hardware")
        | {f"model.{name}": "model" for name in model_numbers(scenario.model)}
        | dict.fromkeys(WORKLOAD[scenario.ask], "workload")
    )


def whatif(
    scenario: Scenario,
    *,
    numbers: Sequence[str] = (),
    measure: str | None = None,
    by: float = 2.0,
    replan: bool = True,
    engine: Engine | None = None,
    progress: Callable[[float], None] = lambda done: None,
) -> Whatif:
    """How a plan of training or a way to serve, and the best one, move with each number of hardware, model and workload.

    numbers: names of some. measure: one of MEASURES that is told of first. by: how far off the numbers are tried, as a factor and
    its inverse. replan: also find the best anew there. Raises NoAnswer where nothing fits, InputError for what is not well formed.
    """
    if scenario.ask not in MEASURES:
        raise InputError(
            f"whatif is about one plan or one way to serve, not {scenario.ask}; give --of {', '.join(MEASURES)}, or"
            " sweep the numbers",
            field="of",
        )
    measures = MEASURES[scenario.ask]
    measure = measure or measures[0]
    if measure not in measures:
        raise InputError(
            f"unknown measure {measure[:60]!r}{nearest(measure, measures)}; use {', '.join(measures)}", field="measure"
        )
    if not 1 < by <= 1000:
        raise InputError(f"by = {by:g} is out of range; give a factor above 1, such as 2", field="by")
    known = numbers_of(scenario)
    wanted = {name: known.get(name, _kind(name)) for name in (canonical(scenario, n) for n in numbers)} or known
    chosen = chosen_of(scenario)
    base = row_of(scenario, chosen)
    if base.get(measure) is None:
        raise InputError(f"{scenario.slice.chip.name} has no price; give one, as in --set price=2.5", field="price")
    kept = kept_of(scenario, chosen)
    slopes = elasticities(kept, chosen)
    moves = _moves(kept, scenario if replan else None, wanted, by, engine or Engine(), progress)
    found = tuple(
        Sensitivity(name, kind, _value(kept, name), slopes.get(name, {}), moves[name]) for name, kind in wanted.items()
    )
    return Whatif(scenario, measure, by, base, _shares(scenario, slopes, measure), found, _ASSUMPTIONS[scenario.ask])


_KEPT = "changes less than a step of whole numbers are those of the formulas, rounded sizes (tiles, layers of a stage, pages) as they are"
_ASSUMPTIONS = {
    "plan": ("slopes: mesh, place, microbatches and choices stay; a larger batch means more sequences in each microbatch", _KEPT,
             "fixed: mesh, microbatches and choices stay; best: the search is run again"),
    "serve": ("slopes: mesh, place, layout and batch stay", _KEPT, "fixed: mesh and batch stay; best: the search is run again"),
}  # fmt: skip
_ASSUMPTIONS["step"] = _ASSUMPTIONS["plan"]


def chosen_of(scenario: Scenario) -> training.Plan | inference.Point:
    """The plan or the way to serve that a scenario names, or the best. Raises NoAnswer."""
    if scenario.ask == "serve":
        return inference.serve(*serving_question(scenario), look_around=False).best
    if scenario.ask in ("plan", "step"):
        return planned(scenario)
    raise NoAnswer("a simulation chooses nothing that could be kept")


def kept_of(scenario: Scenario, chosen: training.Plan | inference.Point) -> Scenario:
    """The question about what was chosen alone."""
    if isinstance(chosen, inference.Point):
        mesh = {axis: int(n) for axis, n in chosen.at.mesh.items()}
        return replace(scenario, mesh=mesh, options={**scenario.options, "batch": chosen.batch})
    own = {"microbatches": chosen.microbatches, **{f.name: getattr(chosen.choices, f.name) for f in choices()}}
    mesh = {axis: n for axis, n in chosen.mesh.items() if n > 1} or {"data": 1}
    return replace(scenario, ask="step", mesh=mesh, options={**scenario.options, **own})


def _kind(name: str) -> str:
    kind = name.partition(".")[0]
    return "model" if kind == "model" else "workload" if kind == name else "hardware"


def _value(scenario: Scenario, name: str) -> float:
    value = current(scenario, name)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise InputError(f"{name} is no number that could be a little larger; give another one", field=name)
    return float(value)


def _moves(
    kept: Scenario, free: Scenario | None, names: Mapping[str, str], by: float, engine: Engine, progress: Callable[[float], None]
) -> dict[str, tuple[Move, ...]]:  # fmt: skip
    if free is not None and free.ask == "step":
        free = replace(free, ask="plan", mesh={})
    tasks: list[Task] = []
    asked: dict[str, list[tuple[float, Any, Row | None]]] = {}
    for name in names:
        asked[name] = []
        for factor in (1 / by, by):
            try:
                value = resolved(kept, name, Value(factor, True))
            except RooftopError as error:
                asked[name].append((factor, None, {"error": error.message}))
                continue
            asked[name].append((factor, value, None))
            tasks += [Task(s, ({name: value},)) for s in (kept, free) if s is not None]
    rows: dict[int, Row] = {}
    for i, found in engine.run(work, tasks):
        rows[i] = found[0]
        progress(len(rows) / len(tasks))
    results = iter([rows[i] for i in range(len(tasks))])
    return {
        name: tuple(
            Move(factor, value, wrong, wrong) if wrong
            else Move(factor, value, next(results), None if free is None else next(results))
            for factor, value, wrong in each
        )
        for name, each in asked.items()
    }  # fmt: skip


def _shares(scenario: Scenario, slopes: Mapping[str, Mapping[str, float | None]], measure: str) -> dict[str, float]:
    """Times halve if all rates double and all delays halve, so slopes by hardware are shares of a time, the rest that of overheads."""
    if not measure.partition(".")[0].endswith("seconds"):
        return {}
    shares = {name: abs(slopes[name].get(measure) or 0.0) for name in hardware_numbers(scenario)}
    rest = 1.0 - sum(shares.values())
    shares |= {FIXED: rest} if rest > 1e-9 else {}
    return dict(sorted(((n, s) for n, s in shares.items() if s > 1e-9), key=lambda pair: -pair[1]))
