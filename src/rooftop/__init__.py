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
    from rooftop._api import plan, serve, simulate, step
    from rooftop.arrays import parse
    from rooftop.errors import InputError, NoAnswer, RooftopError
    from rooftop.hardware import chip, slice_of
    from rooftop.roofline import collective_time, matmul_time, op_roofline
    from rooftop.transformer import architecture

#: Public name -> module that holds it. Importing Rooftop imports none of them.
_WHERE = {
    "plan": "rooftop._api",
    "serve": "rooftop._api",
    "simulate": "rooftop._api",
    "step": "rooftop._api",
    "parse": "rooftop.arrays",
    "InputError": "rooftop.errors",
    "NoAnswer": "rooftop.errors",
    "RooftopError": "rooftop.errors",
    "chip": "rooftop.hardware",
    "slice_of": "rooftop.hardware",
    "collective_time": "rooftop.roofline",
    "matmul_time": "rooftop.roofline",
    "op_roofline": "rooftop.roofline",
    "architecture": "rooftop.transformer",
}

__all__ = [
    "InputError",
    "NoAnswer",
    "RooftopError",
    "architecture",
    "chip",
    "collective_time",
    "matmul_time",
    "op_roofline",
    "parse",
    "plan",
    "serve",
    "simulate",
    "slice_of",
    "step",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        import importlib

        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'rooftop' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
