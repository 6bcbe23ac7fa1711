"""Rooftop: how long a Transformer should take on TPUs and GPUs, what bounds it, and what it costs.

>>> import rooftop as rt
>>> answer = rt.plan("llama-3-8b", on="v5e:4x4", batch=1e6)
>>> answer.best.plan.chips
16
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rooftop._api import (
        check,
        chip,
        collective,
        compare,
        design,
        explain,
        export,
        find_rate,
        hlo,
        import_plan,
        jax,
        load_plan,
        matmul,
        model,
        plan,
        profile,
        roofline_of,
        save_plan,
        scale,
        scaling,
        serve,
        serve_apart,
        shapes,
        simulate,
        slice,
        solve,
        step,
        sweep,
        trace,
        validate,
        versus,
        whatif,
    )
    from rooftop.arrays import (
        parse,
    )
    from rooftop.errors import (
        InputError,
        NoAnswer,
        RooftopError,
    )
    from rooftop.hardware import (
        slice_of,
    )
    from rooftop.roofline import (
        collective_time,
        matmul_time,
        op_roofline,
    )
    from rooftop.transformer import (
        architecture,
    )

#: Public names by the module that holds them. Importing Rooftop imports none of them.
_WHERE = {
    "rooftop._api": (
        "check",
        "chip",
        "collective",
        "compare",
        "design",
        "explain",
        "export",
        "find_rate",
        "hlo",
        "import_plan",
        "jax",
        "load_plan",
        "matmul",
        "model",
        "plan",
        "profile",
        "roofline_of",
        "save_plan",
        "scale",
        "scaling",
        "serve",
        "serve_apart",
        "shapes",
        "simulate",
        "slice",
        "solve",
        "step",
        "sweep",
        "trace",
        "validate",
        "versus",
        "whatif",
    ),
    "rooftop.arrays": ("parse",),
    "rooftop.errors": (
        "InputError",
        "NoAnswer",
        "RooftopError",
    ),
    "rooftop.hardware": ("slice_of",),
    "rooftop.roofline": (
        "collective_time",
        "matmul_time",
        "op_roofline",
    ),
    "rooftop.transformer": ("architecture",),
}

__all__ = [
    "InputError",
    "NoAnswer",
    "RooftopError",
    "architecture",
    "check",
    "chip",
    "collective",
    "collective_time",
    "compare",
    "design",
    "explain",
    "export",
    "find_rate",
    "hlo",
    "import_plan",
    "jax",
    "load_plan",
    "matmul",
    "matmul_time",
    "model",
    "op_roofline",
    "parse",
    "plan",
    "profile",
    "roofline_of",
    "save_plan",
    "scale",
    "scaling",
    "serve",
    "serve_apart",
    "shapes",
    "simulate",
    "slice",
    "slice_of",
    "solve",
    "step",
    "sweep",
    "trace",
    "validate",
    "versus",
    "whatif",
]


def __getattr__(name: str) -> Any:
    for module, names in _WHERE.items():
        if name in names:
            import importlib

            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'rooftop' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
