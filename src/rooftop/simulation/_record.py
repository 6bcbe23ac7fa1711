"""What is kept of a simulation while it runs: distributions, a time line, and rows for whoever wants each request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rooftop.simulation._distribution import Distribution
from rooftop.simulation._engine import Period
from rooftop.simulation._request import Request

_ROWS = 8192
_BINS = 240

#: Columns of the table of requests.
COLUMNS = (
    "id", "arrival_seconds", "admitted_seconds", "first_token_seconds", "finish_seconds", "input_tokens", "output_tokens",
    "cached_tokens", "preemptions", "replica", "queue_seconds", "ttft_seconds", "tpot_seconds", "e2e_seconds", "met_slo",
)  # fmt: skip
WHOLE = ("id", "input_tokens", "output_tokens", "cached_tokens", "preemptions", "replica")


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must meet to be good, in seconds; None is no limit."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.ttft, self.tpot, self.e2e))


class Sink(Protocol):
    """Takes the rows of finished requests."""

    def write(self, table: dict[str, np.ndarray]) -> None:
        """Columns of COLUMNS, all of one length."""


class Record:
    """Requests as they finish. Rows go to the sink in parts, so that memory does not grow with their number."""

    def __init__(self, slo: Slo, sink: Sink | None) -> None:
        self.ttft, self.tpot, self.e2e, self.queue = (Distribution() for _ in range(4))
        self.requests = self.good = self.input_tokens = self.output_tokens = self.cached_tokens = 0
        self.first_arrival, self.last_arrival = np.inf, -np.inf
        self.last_finish = 0.0
        self._slo = slo
        self._sink = sink
        self._rows: list[tuple[float, ...]] = []

    def finished(self, request: Request) -> bool:
        """A request is done; whether it is time to `flush`."""
        self._rows.append(
            (
                request.id, request.arrival, request.admitted, request.first, request.finish, request.input,
                request.output, request.cached, request.preemptions, request.replica,
            )
        )  # fmt: skip
        return len(self._rows) >= _ROWS

    def flush(self) -> None:
        """Count the rows that came since the last time."""
        if not self._rows:
            return
        table = dict(zip(COLUMNS, np.array(self._rows, dtype=float).T, strict=False))
        self._rows.clear()
        for name in WHOLE:
            table[name] = table[name].astype(np.int64)
        arrival, first, finish = table["arrival_seconds"], table["first_token_seconds"], table["finish_seconds"]
        table["queue_seconds"] = queue = table["admitted_seconds"] - arrival
        table["ttft_seconds"] = ttft = first - arrival
        after = table["output_tokens"] - 1
        table["tpot_seconds"] = tpot = np.where(after > 0, (finish - first) / np.maximum(after, 1), np.nan)
        table["e2e_seconds"] = e2e = finish - arrival
        met = np.ones(len(arrival), dtype=bool)
        for values, limit in ((ttft, self._slo.ttft), (tpot, self._slo.tpot), (e2e, self._slo.e2e)):
            if limit is not None:
                met &= ~(values > limit)
        table["met_slo"] = met
        for distribution, values in ((self.ttft, ttft), (self.tpot, tpot), (self.e2e, e2e), (self.queue, queue)):
            distribution.add(values)
        self.requests += len(arrival)
        self.good += int(met.sum())
        self.input_tokens += int(table["input_tokens"].sum())
        self.output_tokens += int(table["output_tokens"].sum())
        self.cached_tokens += int(table["cached_tokens"].sum())
        self.first_arrival = min(self.first_arrival, float(arrival.min()))
        self.last_arrival = max(self.last_arrival, float(arrival.max()))
        self.last_finish = max(self.last_finish, float(finish.max()))
        if self._sink is not None:
            self._sink.write(table)


class Timeline:
    """Integrals over time of what engines did, in a bounded number of bins that double their width as time goes on."""

    NAMES = ("busy", "running", "waiting", "blocks")

    def __init__(self) -> None:
        self.width = 1e-3
        self._bins = np.zeros((len(self.NAMES), _BINS))

    def add(self, periods: Iterable[Period]) -> None:
        """Add the periods of one engine, in order."""
        table = np.array(periods, dtype=float)
        if not len(table):
            return
        starts, ends = table[:, 0], table[:, 1]
        while ends[-1] > self.width * _BINS:
            self._bins = np.concatenate(
                [
                    self._bins.reshape(len(self.NAMES), _BINS // 2, 2).sum(axis=2),
                    np.zeros((len(self.NAMES), _BINS // 2)),
                ],
                axis=1,
            )
            self.width *= 2
        times = np.stack([starts, ends], axis=1).ravel()
        edges = self.width * np.arange(_BINS + 1)
        for n, values in enumerate((np.ones(len(table)), table[:, 2], table[:, 3], table[:, 4])):
            integral = np.cumsum(np.stack([np.zeros(len(table)), values * (ends - starts)], axis=1).ravel())
            self._bins[n] += np.diff(np.interp(edges, times, integral, left=0.0, right=integral[-1]))

    def series(self, end: float) -> dict[str, list[float]]:
        """Means over each bin, up to `end`, by name; `seconds` are the starts of the bins."""
        bins = max(1, min(_BINS, int(np.ceil(end / self.width))))
        result = {"seconds": [self.width * n for n in range(bins)]}
        for n, name in enumerate(self.NAMES):
            result[name] = (self._bins[n, :bins] / self.width).tolist()
        return result

    def total(self, name: str) -> float:
        """An integral over all time, in seconds times its unit."""
        return float(self._bins[self.NAMES.index(name)].sum())
