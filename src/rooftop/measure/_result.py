"""Predictions beside measurements, rows without one, and their errors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from rooftop.shown import Shown

#: Quantities of which more is better: their bound is the most that is possible.
_HIGHER = ("output_tokens_per_second_per_chip", "mfu")


@dataclass(frozen=True, slots=True)
class Prediction:
    """One published quantity of a row, and what it is predicted to be.

    quantity: its name, with the unit. bound: what no run can beat. how: the plan that was read from the row. readings: what
    the row did not say, and how that was read.
    """

    id: str
    table: str
    kind: str
    source: str
    model: str
    hardware: str
    slice: str
    quantity: str
    measured: float
    bound: float
    expected: float
    how: Mapping[str, object] = field(default_factory=dict)
    readings: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        """Expected over measured, less 1."""
        return self.expected / self.measured - 1

    @property
    def beats_bound(self) -> bool:
        """Whether the measurement is better than physics: a wrong model, a wrong reading, or a wrong row."""
        if self.quantity in _HIGHER:
            return self.measured > self.bound * (1 + 1e-3)
        return self.measured < self.bound * (1 - 1e-3)


@dataclass(frozen=True, slots=True)
class Refused:
    """A row without a prediction, and the rule that left it out."""

    id: str
    table: str
    source: str
    model: str
    reason: str


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of some predictions: expected over measured, less 1. bias: the median; median, p90: of its absolute value."""

    count: int
    bias: float
    median: float
    p90: float
    worst: float
    beating: int


def errors_of(predictions: Iterable[Prediction]) -> Errors:
    """Errors of at least one prediction."""
    found = list(predictions)
    errors = [p.error for p in found]
    sizes = sorted(map(abs, errors))
    return Errors(
        len(found), statistics.median(errors), statistics.median(sizes), sizes[math.ceil(0.9 * len(sizes)) - 1],
        max(errors, key=abs), sum(p.beats_bound for p in found),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Validation(Shown):
    """All rows, predicted or refused."""

    predictions: tuple[Prediction, ...]
    refused: tuple[Refused, ...]

    def by(self, key: Callable[[Prediction], str]) -> dict[tuple[str, str], Errors]:
        """Errors of groups of predictions, by (group, quantity)."""
        groups: dict[tuple[str, str], list[Prediction]] = {}
        for p in self.predictions:
            groups.setdefault((key(p), p.quantity), []).append(p)
        return {name: errors_of(group) for name, group in sorted(groups.items())}


#: What errors are aggregated by -> the group of a prediction.
GROUPS: Mapping[str, Callable[[Prediction], str]] = {
    "kind": lambda p: f"{p.table}: {p.kind}",
    "source": lambda p: f"{p.table}: {p.source}",
    "hardware": lambda p: f"{p.table}: {p.hardware}",
    "model": lambda p: f"{p.table}: {p.model}",
}
