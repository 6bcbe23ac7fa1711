"""A distribution of durations, seen value by value in bounded memory."""

from __future__ import annotations

import numpy as np

_EXACT = 1_000_000  # values that are kept as they are
_LEAST, _MOST, _STEP = 1e-9, 1e9, 1e-3
_EDGES = int(np.log(_MOST / _LEAST) / _STEP) + 2


class Distribution:
    """Exact up to a million values; from then on counts in bins 0.1% wide, so that quantiles are within 0.1%."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.least = np.inf
        self.most = -np.inf
        self._kept: list[np.ndarray] = []
        self._bins: np.ndarray | None = None

    def add(self, values: np.ndarray) -> None:
        """Add values; those that are not numbers (a TPOT of one token) do not count."""
        values = values[~np.isnan(values)]
        if not len(values):
            return
        self.count += len(values)
        self.total += float(values.sum())
        self.least = min(self.least, float(values.min()))
        self.most = max(self.most, float(values.max()))
        if self._bins is None:
            self._kept.append(values)
            if self.count <= _EXACT:
                return
            self._bins = np.zeros(_EDGES, dtype=np.int64)
            values, self._kept = np.concatenate(self._kept), []
        places = np.ceil(np.log(np.clip(values, _LEAST, _MOST) / _LEAST) / _STEP).astype(np.int64)
        np.add.at(self._bins, places, 1)

    @property
    def mean(self) -> float | None:
        """The mean, None of nothing."""
        return self.total / self.count if self.count else None

    def quantile(self, q: float) -> float | None:
        """The value below which a part q of all are; None of nothing."""
        if not self.count:
            return None
        if self._bins is None:
            self._kept = [np.concatenate(self._kept)]
            return float(np.quantile(self._kept[0], q))
        place = int(np.searchsorted(np.cumsum(self._bins), q * (self.count - 1), side="right"))
        if place == 0:
            return self.least
        return float(min(self.most, max(self.least, _LEAST * np.exp((place - 0.5) * _STEP))))
