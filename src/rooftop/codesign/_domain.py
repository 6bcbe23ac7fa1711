"""Which values of a parameter are looked at when one is searched for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rooftop.codesign._scenario import Scenario, canonical, current, reader, resolved
from rooftop.codesign._shown import shown
from rooftop.codesign._values import parse_vary
from rooftop.errors import InputError, RooftopError
from rooftop.hardware import slice_of, standard_slices
from rooftop.units import parse_integer

FAR = 64.0  # how many times more and less than what is there, unless a range is given
_SCANNED = 25  # values of a range
_DIGITS = 3  # of a number that need not be whole
_MOST = 10_000  # values that are named
#: Numbers that divide others: doublings only.
_DOUBLING = ("model.heads", "model.kv_heads", "model.experts", "model.active", "mesh.")


@dataclass(frozen=True, slots=True)
class Domain:
    """values: those that are scanned, rising. grain: between two of them, multiples of so much are well formed (0: any number of
    three digits); None where no other value is.
    """

    name: str
    values: tuple[Any, ...]
    grain: int | None

    def between(self, low: Any, high: Any) -> Any | None:
        """A value in the middle of two; None where there is none."""
        if self.grain is None:
            return None
        if self.grain:
            middle: Any = round((low + high) / 2 / self.grain) * self.grain
            middle = middle if low < middle < high else (int(low) // self.grain + 1) * self.grain
        else:
            middle = digits(math.sqrt(low * high) if low > 0 else (low + high) / 2)
        return middle if low < middle < high else None


def digits(value: float) -> float:
    """A number rounded to three digits."""
    return float(f"{value:.{_DIGITS}g}")


def domain_of(scenario: Scenario, text: str) -> Domain:
    """Read NAME, NAME=LOW..HIGH (any value between) or NAME=LIST (those alone; see parse_vary). Raises InputError."""
    named, equals, told = text.partition("=")
    name = canonical(scenario, named.strip())
    if name in ("model", "on"):
        raise InputError(f"{name} is no number; solve for chips, model.d_ff, hbm_bandwidth or the like", field="solve")
    read = reader(name, scenario.ask)
    if not any(_well_formed(scenario, name, text) for text in ("1", "0.5", "1MB", "1s")):
        raise InputError(f"{name} is no number; solve for chips, model.d_ff, hbm_bandwidth or the like", field="solve")
    if equals and (":" in told or "," in told or ".." not in told):
        values = parse_vary(f"{name}={told}", lambda n: read).values
        if len(values) > _MOST:
            raise InputError(f"{name}: {len(values):,} values are too many; give at most {_MOST:,}", field="solve")
        listed = [resolved(scenario, name, v) for v in values]
        if any(isinstance(v, (str, bool)) for v in listed):
            raise InputError(
                f"{name} is no number; solve for chips, model.d_ff, hbm_bandwidth or the like", field="solve"
            )
        return Domain(name, tuple(sorted(set(listed))), None)
    if equals:
        ends = parse_vary(f"{name}={told}:n2", lambda n: read).values
        if len(ends) != 2:
            raise InputError(f"{name}: {told[:60]!r} is one value; give the two ends of a range", field="solve")
        low, high = (float(resolved(scenario, name, v)) for v in ends)
        return _scan(scenario, name, low, high)
    if name == "chips":
        count = scenario.slice.chips
        sizes = {slice_of(s).chips for s in standard_slices(scenario.slice.chip.name)} | {count}
        return Domain(name, tuple(sorted(n for n in sizes if count / FAR <= n <= count * FAR)), None)
    if name == "batch" and scenario.ask == "serve" and current(scenario, name) is None:
        return _scan(scenario, name, 1, 4096)
    now = _now(scenario, name)
    if name.startswith(_DOUBLING):
        return Domain(name, tuple(int(now * 2**k) for k in range(-6, 7) if now * 2**k == int(now * 2**k)), None)
    return _scan(scenario, name, now / FAR, now * FAR)


def _now(scenario: Scenario, name: str) -> float:
    now = current(scenario, name)
    if isinstance(now, bool) or not isinstance(now, (int, float)) or not now > 0:
        raise InputError(
            f"{name} is {now} now, which says nothing about where to look; give a range, such as {name}=1..100",
            field="solve",
        )
    return float(now)


def _scan(scenario: Scenario, name: str, low: float, high: float) -> Domain:
    """Values of a range in even ratios, with what is there among them, as far as they are well formed."""
    now = current(scenario, name)
    grain = _grain(scenario, name)
    ratios = [low * (high / low) ** (i / (_SCANNED - 1)) for i in range(_SCANNED)]
    if grain:
        values: list[Any] = [max(grain, round(v / grain) * grain) for v in ratios]
    else:
        values = [digits(v) for v in ratios]
    if isinstance(now, (int, float)) and low <= now <= high:
        values.append(int(now) if grain else float(now))
    return Domain(name, tuple(v for v in sorted(set(values)) if _well_formed(scenario, name, v)), grain)


def _well_formed(scenario: Scenario, name: str, value: Any) -> bool:
    try:
        reader(name, scenario.ask)(str(value), name)
    except RooftopError:
        return False
    return True


def _grain(scenario: Scenario, name: str) -> int:
    """Of what the values are multiples: 0 for numbers that need not be whole."""
    if name == "batch" and scenario.ask in ("plan", "step"):
        return int(current(scenario, "seq"))
    if reader(name, scenario.ask) is not parse_integer:
        return 0
    now = current(scenario, name)
    if name == "model.layers":
        return int(scenario.mesh.get("pipeline", 1))
    if not isinstance(now, int) or not name.startswith(("model.", "seq", "prompt", "output", "context")):
        return 1
    return min(256, now & -now, max(1, now // 16))


def assumed(domain: Domain) -> Sequence[str]:
    """What was assumed of the values."""
    if domain.grain is None:
        return (f"{len(domain.values)} values of {domain.name} were tried, and no others",)
    first, last = domain.values[0], domain.values[-1]
    kind = (
        "whole multiples of " + str(domain.grain)
        if domain.grain > 1
        else "whole numbers"
        if domain.grain
        else "numbers of three digits"
    )
    return (
        f"{len(domain.values)} values of {domain.name} from {shown(domain.name, first)} to {shown(domain.name, last)} were tried ({kind});"
        " between two of them, the goal is taken to be met or missed from one value on",
    )
