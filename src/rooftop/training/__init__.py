"""Training: step time, memory, schedules, the plan search, run time and cost."""

from rooftop.costing import MESH_AXES
from rooftop.training._answer import Answer, named_plan, plan, step_of
from rooftop.training._choices import Choices, choices, values_of
from rooftop.training._critical import (
    axis_bandwidth,
    best_split,
    communicated_bytes,
    critical_batch,
    network_intensity,
    slice_critical_batch,
    tensor_limit,
)
from rooftop.training._evaluate import Estimate, estimate
from rooftop.training._explain import explain_estimate
from rooftop.training._failures import PRESETS, Failures, Goodput, best_interval, failure_rate, goodput
from rooftop.training._file import read_plan
from rooftop.training._layouts import layouts
from rooftop.training._plan import Plan, Problem
from rooftop.training._question import Question, problem_of
from rooftop.training._recipe import RECIPES, Recipe, recipe
from rooftop.training._remat import POLICIES, Remat, remat
from rooftop.training._run import (
    Run,
    checkpoint_bytes,
    chip_hours,
    cost,
    largest_model,
    run_flops,
    run_seconds,
    seconds_at,
    utilisation,
)
from rooftop.training._scale import Curve, Point, Wish, chip_counts, fewest, scale
from rooftop.training._search import Limits, Outcome
from rooftop.training._step import Part, Step

__all__ = [
    "MESH_AXES",
    "POLICIES",
    "PRESETS",
    "RECIPES",
    "Answer",
    "Choices",
    "Curve",
    "Estimate",
    "Failures",
    "Goodput",
    "Limits",
    "Outcome",
    "Part",
    "Plan",
    "Point",
    "Problem",
    "Question",
    "Recipe",
    "Remat",
    "Run",
    "Step",
    "Wish",
    "axis_bandwidth",
    "best_interval",
    "best_split",
    "checkpoint_bytes",
    "chip_counts",
    "chip_hours",
    "choices",
    "communicated_bytes",
    "cost",
    "critical_batch",
    "estimate",
    "explain_estimate",
    "failure_rate",
    "fewest",
    "goodput",
    "largest_model",
    "layouts",
    "named_plan",
    "network_intensity",
    "plan",
    "problem_of",
    "read_plan",
    "recipe",
    "remat",
    "run_flops",
    "run_seconds",
    "scale",
    "seconds_at",
    "slice_critical_batch",
    "step_of",
    "tensor_limit",
    "utilisation",
    "values_of",
]
