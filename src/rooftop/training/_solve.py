"""Where a function of one number crosses zero, and where it is smallest."""

from __future__ import annotations

import math
from collections.abc import Callable


def root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function of positive numbers crosses zero, to twelve digits."""
    for _ in range(400):
        middle = math.sqrt(low * high)
        if rising(middle) < 0:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def lowest(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that first falls and then rises is smallest."""
    for _ in range(200):
        third = (high - low) / 3
        if function(low + third) < function(high - third):
            high -= third
        else:
            low += third
    return (low + high) / 2
