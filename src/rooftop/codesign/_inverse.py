"""Inverse questions: from which value of a parameter on a goal is met. Every value that is told of was answered."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rooftop.codesign._answers import Row
from rooftop.codesign._domain import Domain, domain_of
from rooftop.codesign._engine import Engine
from rooftop.codesign._need import Need, parse_need
from rooftop.codesign._scenario import Scenario, current
from rooftop.codesign._shown import shown
from rooftop.codesign._sweep import Task, work
from rooftop.errors import InputError, NoAnswer
from rooftop.shown import Shown

WANTED = ("smallest", "largest", "nearest")
_MOST_REGIONS = 20
#: Goals that the search over ways to serve takes as limits.
_LIMITS = {f"{n}{e}": n for n in ("ttft", "tpot") for e in ("", "_seconds", "_seconds.expected")} | {
    "usd": "usd",
    "usd_per_million_tokens": "usd",
}


@dataclass(frozen=True, slots=True)
class Tried:
    """A value of the parameter, its row, and whether all goals are met there."""

    value: Any
    row: Row
    met: bool


@dataclass(frozen=True, slots=True)
class Region:
    """Values that meet the goal, from the smallest found to the largest. below, above: the nearest that were found to miss it;
    None where the range that was looked at ends.
    """

    low: Tried
    high: Tried
    below: Tried | None
    above: Tried | None


@dataclass(frozen=True, slots=True)
class Solved(Shown):
    """at: the value asked for. fails: the nearest one that misses the goal, on the side where it is missed; None if none does.

    regions: all values that meet it; points: all that were answered, by value. now: what the parameter is.
    """

    scenario: Scenario
    needs: tuple[Need, ...]
    domain: Domain
    now: Any
    at: Tried
    fails: Tried | None
    regions: tuple[Region, ...]
    points: tuple[Tried, ...]


def solve(
    scenario: Scenario,
    need: str | Sequence[str],
    by: str,
    *,
    want: str = "nearest",
    engine: Engine | None = None,
    progress: Callable[[float], None] = lambda done: None,
) -> Solved:
    """The value of a parameter from which on goals are met: the nearest to what is there, the smallest or the largest.

    need: goals such as `mfu>=0.5`, all of which must be met. by: the parameter, perhaps with values (see `domain_of`). Values over the
    range are answered, then those between two neighbours of which one meets the goal, until there is none between. Raises NoAnswer
    where none meets it, with what binds at the best one, and InputError for what is not well formed.
    """
    needs = tuple(parse_need(text) for text in ([need] if isinstance(need, str) else need))
    if not needs:
        raise InputError("nothing is needed; give a goal, such as --need 'mfu>=0.5'", field="need")
    if want not in WANTED:
        raise InputError(f"unknown wish {want[:40]!r}; use {', '.join(WANTED)}", field="want")
    domain = domain_of(scenario, by)
    engine = engine or Engine()
    free, scenario = scenario, _limited(scenario, needs)
    points = _tried(scenario, needs, domain, domain.values, engine, progress)
    if all(p.row.get("error") for p in points) and scenario is not free:  # what it would be without the goals as limits
        points = _tried(free, needs, domain, domain.values, engine, progress)
    if all(p.row.get("error") for p in points):
        first = points[0]
        raise NoAnswer(
            f"no value of {domain.name} has an answer; the first, {shown(domain.name, first.value)}: {first.row['error']}",
            field="need",
        )
    changes = sum(a.met != b.met for a, b in itertools.pairwise(points))
    if changes <= _MOST_REGIONS:
        points = _refined(scenario, needs, domain, points)
    if not any(p.met for p in points):
        raise NoAnswer(_nothing(needs, domain, points), field="need")
    regions = _regions(points)
    now = current(scenario, domain.name)
    at, fails = _chosen(regions, now, want)
    return Solved(scenario, needs, domain, now, at, fails, regions, tuple(points))


def _limited(scenario: Scenario, needs: Sequence[Need]) -> Scenario:
    """Goals for latencies and cost of serving as limits of its search, which else takes the most tokens a second."""
    if scenario.ask != "serve":
        return scenario
    limits = {
        _LIMITS[n.name]: n.value for n in needs
        if n.relation == "<=" and n.name in _LIMITS and scenario.options.get(_LIMITS[n.name]) is None
    }  # fmt: skip
    return replace(scenario, options={**scenario.options, **limits}) if limits else scenario


def _tried(
    scenario: Scenario, needs: Sequence[Need], domain: Domain, values: Sequence[Any], engine: Engine, progress: Callable[[float], None]
) -> list[Tried]:  # fmt: skip
    rows: dict[int, Row] = {}
    for i, found in engine.run(work, [Task(scenario, ({domain.name: value},)) for value in values]):
        rows[i] = found[0]
        progress(len(rows) / len(values))
    return [Tried(value, rows[i], all(need.met(rows[i]) for need in needs)) for i, value in enumerate(values)]


def _refined(scenario: Scenario, needs: Sequence[Need], domain: Domain, points: list[Tried]) -> list[Tried]:
    """Halve what lies between neighbours of which one meets the goal until nothing does."""
    result = [points[0]]
    for after in points[1:]:
        low, high = result[-1], after
        while low.met != high.met:
            middle = domain.between(low.value, high.value)
            if middle is None:
                break
            (found,) = _tried(scenario, needs, domain, [middle], Engine(), lambda done: None)
            result.append(found)
            low, high = (found, high) if found.met == low.met else (low, found)
        result.append(after)
    return sorted(result, key=lambda p: p.value)


def _regions(points: Sequence[Tried]) -> tuple[Region, ...]:
    found: list[Region] = []
    start = 0
    for i, p in enumerate(points):
        if p.met and (i + 1 == len(points) or not points[i + 1].met):
            while not points[start].met:
                start += 1
            below = points[start - 1] if start else None
            found.append(Region(points[start], p, below, points[i + 1] if i + 1 < len(points) else None))
        if not p.met:
            start = i + 1
    return tuple(found)


def _chosen(regions: Sequence[Region], now: Any, want: str) -> tuple[Tried, Tried | None]:
    """The value that is asked for, and its neighbour that misses the goal."""
    if want == "smallest":
        return regions[0].low, regions[0].below
    if want == "largest":
        return regions[-1].high, regions[-1].above
    if not isinstance(now, (int, float)):
        now = regions[0].low.value

    def far(region: Region) -> float:
        low, high = region.low.value, region.high.value
        return 0.0 if low <= now <= high else max(low / now, now / low if low else 1.0) if now < low else now / high

    region = min(regions, key=far)
    if now < region.low.value:
        return region.low, region.below
    if now > region.high.value:
        return region.high, region.above
    # met as it is: how far it may go, towards where it is missed
    if region.above is None and region.below is not None:
        return region.low, region.below
    if region.below is None:
        return region.high, region.above
    nearer_low = now * now < region.low.value * region.high.value
    return (region.low, region.below) if nearer_low else (region.high, region.above)


def _nothing(needs: Sequence[Need], domain: Domain, points: Sequence[Tried]) -> str:
    best = min(points, key=lambda p: max(need.missing(p.row) for need in needs))
    goal = " and ".join(map(str, needs))
    text = f"no value of {domain.name} from {shown(domain.name, points[0].value)} to {shown(domain.name, points[-1].value)} gives {goal}"
    if best.row.get("error"):
        return f"{text}; the first: {points[0].row['error']}"
    reached = ", ".join(
        f"{need.column(best.row)} {shown(need.column(best.row), best.row[need.column(best.row)])}" for need in needs
    )
    room = "" if best.row.get("fits", True) else ", where the memory does not suffice"
    return (
        f"{text}: the nearest is {reached} at {shown(domain.name, best.value)}, where {best.row['bottleneck']} binds{room}; change what binds, or"
        " ask for less"
    )
