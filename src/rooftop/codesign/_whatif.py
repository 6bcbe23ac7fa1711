"""What if a number were another: exact slopes of what is chosen, and what becomes of it, and of the best, some way off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rooftop.codesign._answers import Row
from rooftop.codesign._derivatives import MEASURES, WORKLOAD, elasticities, hardware_numbers
from rooftop.codesign._engine import Engine
from rooftop.codesign._models import model_numbers
from rooftop.codesign._scenario import Scenario, canonical, current, resolved
from rooftop.codesign._settled import Settled, row_of, settled
from rooftop.codesign._sweep import Task, work
from rooftop.codesign._values import Value
from rooftop.errors import InputError, RooftopError, nearest
from rooftop.shown import Shown
from rooftop.training import offered

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
        """What part of the measure a row is off; None where it has no answer, or no longer fits."""
        if row is None or row.get(self.measure) is None or (row.get("fits") is False and self.base["fits"]):
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
    held = settled(scenario)
    base = row_of(scenario, held)
    if base.get(measure) is None:
        raise InputError(f"{scenario.slice.chip.name} has no price; give one, as in --set price=2.5", field="price")
    kept = kept_of(scenario, held)
    slopes = elasticities(kept, held)
    moves = _moves(kept, scenario if replan else None, wanted, by, engine or Engine(), progress)
    found = tuple(
        Sensitivity(name, kind, _value(kept, name), slopes.get(name, {}), moves[name]) for name, kind in wanted.items()
    )
    return Whatif(scenario, measure, by, base, _shares(scenario, slopes, measure), found, _ASSUMPTIONS[scenario.ask])


_KEPT = "slopes are exact where nothing jumps: sizes that are rounded up (tiles, waves, layers of a stage, pages) are flat between two steps"
_ASSUMPTIONS = {
    "plan": ("slopes: mesh, place, microbatches and choices stay; a larger batch means more sequences in each microbatch", _KEPT,
             "fixed: mesh, microbatches and choices stay; best: the search is run again"),
    "serve": ("slopes: mesh, place, layout and batch stay", _KEPT, "fixed: mesh and batch stay; best: the search is run again"),
}  # fmt: skip
_ASSUMPTIONS["step"] = _ASSUMPTIONS["plan"]


def kept_of(scenario: Scenario, held: Settled) -> Scenario:
    """The question about the answer that is kept alone: its mesh, its microbatches and choices, or its batch."""
    if held.point is not None:
        mesh = {axis: int(n) for axis, n in held.point.at.mesh.items()}
        return replace(scenario, mesh=mesh, options={**scenario.options, "batch": held.point.batch})
    assert held.plan is not None
    plan = held.plan
    own = {"microbatches": plan.microbatches, **{f.name: getattr(plan.choices, f.name) for f in offered()}}
    mesh = {axis: n for axis, n in plan.mesh.items() if n > 1} or {"data": 1}
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
    if "seconds" not in measure or "per_second" in measure:
        return {}
    shares = {name: abs(slopes[name].get(measure) or 0.0) for name in hardware_numbers(scenario)}
    rest = 1.0 - sum(shares.values())
    shares |= {FIXED: rest} if rest > 1e-9 else {}
    return dict(sorted(((n, s) for n, s in shares.items() if s > 1e-9), key=lambda pair: -pair[1]))
