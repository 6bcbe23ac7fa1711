"""What JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Numbers, texts, lists and dicts only.

    An infinity (the bandwidth of a collective that takes no time) becomes null. NaN is always a mistake of ours, and
    raises ValueError rather than pass for a missing value.
    """
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (str, bool, int)) or value is None:
        return value
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        if math.isnan(value):
            raise ValueError("a number of the answer is nan")
        return value if math.isfinite(value) else None
    return value
