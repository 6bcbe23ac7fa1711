"""The Python interface: a function for each command, under its name, with its options as keywords."""

from rooftop._api._ops import chip, collective, matmul, model, roofline_of, slice
from rooftop._api._programs import check, export, hlo, import_plan, jax, profile, trace
from rooftop._api._questions import compare, design, explain, scaling, shapes, solve, sweep, validate, versus, whatif
from rooftop._api._serving import find_rate, serve, serve_apart, simulate
from rooftop._api._training import PlanOptions, StepOptions, load_plan, plan, save_plan, scale, step

__all__ = [
    "PlanOptions",
    "StepOptions",
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
]
