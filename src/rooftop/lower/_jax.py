"""JAX, imported when it is needed."""

from __future__ import annotations

import importlib
from typing import Any

from rooftop.errors import InputError


def jax() -> Any:
    """The module jax. Raises InputError where it is not installed."""
    try:
        return importlib.import_module("jax")
    except ImportError:
        raise InputError("this needs JAX; install it with pip install 'rooftop[jax]'", field="function") from None
