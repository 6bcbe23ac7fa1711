"""Ways to do the same beside each other: how fast each is, and what hardware each would need to be the fastest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rooftop.codesign._answers import Row
from rooftop.codesign._budget import sequence
from rooftop.codesign._scenario import Scenario, canonical, changed, current, smooth
from rooftop.codesign._scenario import parameters as parameters_of
from rooftop.codesign._settled import Settled, check_settled, row_of, settled, speed
from rooftop.codesign._ways import GIVEN, at_equal, way
from rooftop.errors import InputError, RooftopError
from rooftop.shown import Shown
from rooftop.transformer import kv_cache_bytes, parameters

#: How far a parameter is followed, as a multiple of what it is, in both directions.
FARTHEST = 64.0
_POINTS = 97
_AHEAD = 1e-4  # of a speed that counts as faster
_NOT_FOLLOWED = ("chip.hbm_bytes", "chip.usd_per_hour", "chip.power_watts", "chip.host_memory_bytes")


@dataclass(frozen=True, slots=True)
class Overtakes:
    """Where a way is faster than the one that is fastest now: for values of a parameter below one number or above another one.

    None: nowhere in this direction, up to FARTHEST times as much or as little. below_x, above_x: as multiples of what it is. Ways on
    the same hardware both have the new value; of ways on different hardware it is a number of this one's alone.
    """

    parameter: str
    now: float
    below_x: float | None
    above_x: float | None

    @property
    def below(self) -> float | None:
        return None if self.below_x is None else self.now * self.below_x

    @property
    def above(self) -> float | None:
        return None if self.above_x is None else self.now * self.above_x


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way. row: its answer, or `error`. bound, expected: tokens a second; parameters, kv_bytes: of its model."""

    name: str
    scenario: Scenario
    row: Row
    bound: float
    expected: float
    parameters: int
    kv_bytes: float
    overtakes: tuple[Overtakes, ...] = ()

    @property
    def error(self) -> str | None:
        error: str | None = self.row.get("error")
        return error


@dataclass(frozen=True, slots=True)
class Comparison(Shown):
    """Ways, the fastest expected first, those without an answer last. over: parameters that were followed."""

    scenario: Scenario
    alternatives: tuple[Alternative, ...]
    over: tuple[str, ...]

    @property
    def best(self) -> Alternative:
        """The fastest."""
        return self.alternatives[0]


def compare(
    scenario: Scenario, texts: Sequence[str], *, over: Sequence[str] = (), equal: str | None = None
) -> Comparison:
    """Answer a scenario as it is, and each of the ways that `texts` name (see `way`).

    over: parameters of hardware and calibration to follow, all of hardware unless some are named; each way keeps its plan then.
    equal: a budget (parameters, flops, ...) to which models that differ are fitted by their feed-forward width. Raises
    InputError for what is not well formed; a way that does not fit says so in its row.
    """
    check_settled(scenario)
    follows = _followed(scenario, over)
    asked: dict[str, Scenario] = {GIVEN: scenario}
    for text in texts:
        one = way(scenario, text)
        asked[text] = at_equal(one, scenario, equal) if equal is not None else one
    found = [_answered(name, each) for name, each in asked.items()]
    ranked = sorted(found, key=lambda pair: -pair[0].expected)
    best, held = ranked[0]
    if held is None:
        raise RooftopError(f"none of {len(found)} ways fits; the first: {best.error}", field="way")
    result = [best]
    for other, kept in ranked[1:]:
        if kept is not None and other.expected < best.expected:
            crossed = (_overtakes(name, (other, kept), (best, held)) for name in follows)
            other = replace(other, overtakes=tuple(o for o in crossed if o is not None))
        result.append(other)
    return Comparison(scenario, tuple(result), tuple(follows))


def crossings(ahead: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> tuple[float | None, float | None]:
    """The multiples nearest to 1, below and above it, from which on a function of the multiple is positive.

    Looked for on a grid that is even in the logarithm, then refined; what comes and goes within a step of the grid
    (a factor of 1.09) is not seen.
    """
    return _crossing(ahead, -1.0), _crossing(ahead, 1.0)


def _crossing(ahead: Callable[[NDArray[np.float64]], NDArray[np.float64]], sign: float) -> float | None:
    low, high = 0.0, math.log(FARTHEST)
    for _ in range(4):
        at = np.linspace(low, high, _POINTS)
        hits = np.flatnonzero(ahead(np.exp(sign * at)) > 0)
        if not len(hits):
            return None
        first = int(hits[0])
        if first == 0:
            break
        low, high = at[first - 1], at[first]
    return float(np.exp(sign * high))


def _followed(scenario: Scenario, over: Sequence[str]) -> list[str]:
    if over:
        names = [canonical(scenario, name) for name in over]
        for name in names:
            if not smooth(name) or name in _NOT_FOLLOWED:
                raise InputError(
                    f"{name} cannot be followed, since plans change with it; use rooftop sweep, or follow a rate or a latency",
                    field="over",
                )
        return names
    chip = scenario.slice.chip
    low = [f"chip.flops.{name}" for name in ("fp8", "int8", "fp4") if name in chip.flops]
    networks = [f"network.{level.name}.bandwidth" for level in scenario.slice.levels]
    return ["chip.flops", "chip.hbm_bandwidth", *networks, *low]


def _answered(name: str, scenario: Scenario) -> tuple[Alternative, Settled | None]:
    model = scenario.model
    sizes = parameters(model).total, kv_cache_bytes(model, sequence(scenario))
    try:
        held = settled(scenario)
    except RooftopError as error:
        return Alternative(name, scenario, {"error": error.message}, 0.0, 0.0, *sizes), None
    found = speed(scenario, held)
    row = {**row_of(scenario, held), "error": None}
    return Alternative(name, scenario, row, float(found.bound), float(found.expected), *sizes), held


def _overtakes(name: str, other: tuple[Alternative, Settled], best: tuple[Alternative, Settled]) -> Overtakes | None:
    """None: the hardware of the other way has no such number."""
    if name not in parameters_of(other[0].scenario):
        return None
    now = float(current(other[0].scenario, name))
    shared = other[0].scenario.slice == best[0].scenario.slice

    def ahead(factors: NDArray[np.float64]) -> NDArray[np.float64]:
        moved = speed(changed(other[0].scenario, {name: now * factors}), other[1]).expected
        stays = best[0].expected
        if shared:
            stays = speed(changed(best[0].scenario, {name: now * factors}), best[1]).expected
        return np.asarray(np.broadcast_to(np.asarray(moved / stays, dtype=float), factors.shape) - 1.0 - _AHEAD)

    return Overtakes(name, now, *((None, None) if now == 0 else crossings(ahead)))
