"""Serving: prefill and generate under any sharding, memory, cost, the search over configurations."""

from rooftop.inference._answer import Answer, Point, bounds, fewest, frontier, point, serve, serve_with, smallest_slice
from rooftop.inference._critical import (
    binds_from,
    critical_batch,
    flops_per_usd,
    tensor_limit,
    token_seconds,
    two_dimensional_from,
    weight_seconds,
)
from rooftop.inference._evaluate import Configuration, Generate, Prefill, Scene, throughput, usd_per_million
from rooftop.inference._explain import explain_point
from rooftop.inference._layouts import SERVING_AXES, Layout, layouts
from rooftop.inference._pools import Pools, disaggregate, evicted_per_step, finished_per_step, pool_ratio
from rooftop.inference._precision import Precision
from rooftop.inference._question import BATCHES, Problem, Question, problem_of
from rooftop.inference._search import Limits, search
from rooftop.inference._speculate import tokens_per_step
from rooftop.inference._structure import Structure, structure
from rooftop.inference._times import Part, Pass

__all__ = [
    "BATCHES",
    "SERVING_AXES",
    "Answer",
    "Configuration",
    "Generate",
    "Layout",
    "Limits",
    "Part",
    "Pass",
    "Point",
    "Pools",
    "Precision",
    "Prefill",
    "Problem",
    "Question",
    "Scene",
    "Structure",
    "binds_from",
    "bounds",
    "critical_batch",
    "disaggregate",
    "evicted_per_step",
    "explain_point",
    "fewest",
    "finished_per_step",
    "flops_per_usd",
    "frontier",
    "layouts",
    "point",
    "pool_ratio",
    "problem_of",
    "search",
    "serve",
    "serve_with",
    "smallest_slice",
    "structure",
    "tensor_limit",
    "throughput",
    "token_seconds",
    "tokens_per_step",
    "two_dimensional_from",
    "usd_per_million",
    "weight_seconds",
]
