"""Which plans a search keeps, and what it may therefore leave out: the fastest of each mesh, or all that nothing beats.

A keeper is asked `admits` with lower bounds of seconds per token, the bytes and the chips of plans, and answers which of them may
still be worth keeping; what it refuses is proven not to be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rooftop.training._plan import Plan

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Plans of the front that differ by less than this part of their time count as equally fast.
SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Found:
    """A plan with what the search knows of it."""

    plan: Plan
    seconds_per_token: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class Timed:
    """Plans whose time is known, one a row, each the best placement of its mesh, microbatching and choices."""

    mesh: NDArray[np.int64]  # rows of one mesh have one number
    seconds: Array  # per token
    bytes: Array
    chips: NDArray[np.int64]
    plan: Callable[[int], Plan]  # of a row

    def found(self, row: int) -> Found:
        """One of them."""
        return Found(self.plan(row), float(self.seconds[row]), float(self.bytes[row]))


class Keeper(Protocol):
    """What a search needs to know of the plans that it looks for."""

    #: whether only the fastest plan of each mesh is looked for, whatever memory it takes
    fastest: bool

    def admits(self, seconds: Any, bytes: Any, chips: Any) -> Mask:
        """Which plans, none faster than so many seconds per token, may be worth keeping."""

    def add(self, timed: Timed) -> None:
        """Look at plans whose time is known. All plans of one mesh that `admits` lets through come together."""

    @property
    def found(self) -> list[Found]:
        """The plans kept, fastest first."""


class Fastest:
    """The `most` meshes whose best plans are the fastest per token, each with that plan."""

    fastest = True

    def __init__(self, most: int) -> None:
        self.most = most
        self.found: list[Found] = []

    @property
    def _worst(self) -> float:
        return self.found[-1].seconds_per_token if len(self.found) >= self.most else np.inf

    def admits(self, seconds: Any, bytes: Any, chips: Any) -> Mask:
        """Those below the slowest kept."""
        return np.asarray(seconds < self._worst)

    def add(self, timed: Timed) -> None:
        """Keep the fastest of each mesh."""
        seen: set[int] = set()
        for row in np.argsort(timed.seconds, kind="stable").tolist():
            if timed.seconds[row] >= self._worst:
                break
            if timed.mesh[row] not in seen:
                seen.add(timed.mesh[row])
                self.found.append(timed.found(row))
                self.found.sort(key=lambda f: f.seconds_per_token)
                del self.found[self.most :]


class Front:
    """The Pareto set: all plans than which none is at once as fast per token, as small and on as few chips; equal ones once."""

    fastest = False

    def __init__(self) -> None:
        self._plans: list[Found] = []
        self._points = np.zeros((0, 3))  # seconds per token, bytes, chips

    @property
    def found(self) -> list[Found]:
        """Fastest first."""
        return sorted(self._plans, key=lambda f: (f.seconds_per_token, f.memory_bytes, f.plan.chips))

    def admits(self, seconds: Any, bytes: Any, chips: Any) -> Mask:
        """Those that no plan kept beats or equals in all three."""
        seconds, bytes, chips = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (seconds, bytes, chips)))
        result = np.ones(seconds.shape, dtype=np.bool_)
        for n in np.unique(chips):
            points = self._points[self._points[:, 2] <= n]
            if not len(points):
                continue
            points = points[np.argsort(points[:, 1], kind="stable")]
            fastest = np.concatenate([[np.inf], np.minimum.accumulate(points[:, 0])])
            mine = chips == n
            # the fastest plan kept that takes no more bytes
            rival = fastest[np.searchsorted(points[:, 1], bytes[mine] * (1 + SAME), side="right")]
            result[mine] = seconds[mine] < rival * (1 - SAME)
        return result

    def add(self, timed: Timed) -> None:
        """Keep those that nothing beats, and drop what they beat."""
        open_ = np.nonzero(self.admits(timed.seconds, timed.bytes, timed.chips))[0]
        for row in open_[np.lexsort((timed.bytes[open_], timed.seconds[open_]))].tolist():
            point = np.array([timed.seconds[row], timed.bytes[row], timed.chips[row]])
            if not self.admits(*point):
                continue
            kept = np.asarray(~(self._points >= point).all(axis=1))
            self._plans = [p for p, k in zip(self._plans, kept.tolist(), strict=True) if k]
            self._plans.append(timed.found(row))
            self._points = np.concatenate([self._points[kept], point[None, :]])
