"""A profile of a function of the user's, taken through JAX on this machine."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rooftop.errors import InputError, MissingExtra


def capture(function: Callable[..., Any], shapes: Sequence[Any], steps: int, folder: str | Path) -> None:
    """Run a function once to compile it and `steps` times under JAX's profiler, which writes to `folder`.

    shapes: jax.ShapeDtypeStruct of its arguments; the function is then jitted and called with ones. Without arguments it is
    called as it is, and does one step. Raises InputError for what fails.
    """
    try:
        jax = importlib.import_module("jax")
    except ImportError:
        raise MissingExtra(
            "profiling needs JAX; install it with pip install 'rooftop[jax]'", field="function"
        ) from None
    try:
        values = [jax.numpy.ones(s.shape, s.dtype) for s in shapes]
        step = jax.jit(function) if values else function
        jax.block_until_ready(step(*values))
        with jax.profiler.trace(str(folder)):
            for number in range(steps):
                with jax.profiler.StepTraceAnnotation("step", step_num=number):
                    jax.block_until_ready(step(*values))
    except Exception as error:  # the user's code may raise anything
        text = " ".join(str(error).split())[:200]
        raise InputError(f"running the function failed: {type(error).__name__}: {text}", field="function") from None
