"""Programs of other tools: JAX functions and compilers' listings, op by op; plans as programs, through real compilers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rooftop.lower._cost import OpTime, Overlap, ProgramTime, program_time, scope_of
from rooftop.lower._hlo import list_hlo, parse_hlo, replica_groups
from rooftop.lower._jaxpr import list_ops
from rooftop.lower._listing import Listing, Op, Transfer, moved_bytes
from rooftop.lower._load import load_function, parse_shapes, read_hlo
from rooftop.lower._overlap import function_time
from rooftop.lower._targets import KINDS

if TYPE_CHECKING:
    from rooftop.lower._check import TOLERANCE, Check, check
    from rooftop.lower._check import Row as CheckRow
    from rooftop.lower._compile import Compiled, compile_step
    from rooftop.lower._decoder import place
    from rooftop.lower._program import server, trainer
    from rooftop.lower._reference import Reference
    from rooftop.lower._serving import Serving

__all__ = [
    "KINDS",
    "TOLERANCE",
    "Check",
    "CheckRow",
    "Compiled",
    "Listing",
    "Op",
    "OpTime",
    "Overlap",
    "ProgramTime",
    "Reference",
    "Serving",
    "Transfer",
    "check",
    "compile_step",
    "function_time",
    "list_hlo",
    "list_ops",
    "load_function",
    "moved_bytes",
    "parse_hlo",
    "parse_shapes",
    "place",
    "program_time",
    "read_hlo",
    "replica_groups",
    "scope_of",
    "server",
    "trainer",
]

#: What needs JAX already when it is imported: (module, name in it).
_LATE = {
    "TOLERANCE": ("_check", "TOLERANCE"), "Check": ("_check", "Check"), "CheckRow": ("_check", "Row"), "check": ("_check", "check"),
    "Compiled": ("_compile", "Compiled"), "compile_step": ("_compile", "compile_step"), "place": ("_decoder", "place"),
    "Reference": ("_reference", "Reference"), "Serving": ("_serving", "Serving"), "server": ("_program", "server"),
    "trainer": ("_program", "trainer"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LATE[name]
    from rooftop.lower._jax import jax

    jax()
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
