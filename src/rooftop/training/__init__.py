"""Training: step time, memory, schedules, the plan search, run time and cost."""

from rooftop.costing import MESH_AXES, axis_bandwidth
from rooftop.training._answer import Answer, named_plan, plan, step_of
from rooftop.training._choices import Choices, choices, is_value, offered, values_of
from rooftop.training._compare import Comparison, Difference, compare
from rooftop.training._critical import (
    best_split,
    communicated_bytes,
    critical_batch,
    network_intensity,
    slice_critical_batch,
    tensor_limit,
)
from rooftop.training._evaluate import (
    Estimate,
    attention_imbalance,
    estimate,
    evaluate,
    step_kernels,
    useful_flops_per_token,
)
from rooftop.training._explain import explain_estimate
from rooftop.training._failures import PRESETS, Failures, Goodput, best_interval, failure_rate, goodput
from rooftop.training._file import described, load, made_for, read_plan, saved, write_plan
from rooftop.training._laws import (
    ComputeOptimal,
    Optimum,
    chinchilla_tokens,
    loss,
    optimal_for_chips,
    optimal_for_flops,
    optimal_for_model,
    optimum_of,
    six_nd,
    tokens_for,
)
from rooftop.training._layouts import layouts
from rooftop.training._ledger import Collected, Ledger, Multiply, ledger
from rooftop.training._limits import CriticalBatch, Degree, Reach, critical_batches, largest_degrees, reach
from rooftop.training._plan import Plan, Problem
from rooftop.training._prepared import Prepared
from rooftop.training._question import Question, price_of, problem_of
from rooftop.training._recipe import RECIPES, Recipe, recipe
from rooftop.training._remat import POLICIES, SAVE, Remat, names_of, remat
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
from rooftop.training._scale import OBJECTIVES, Curve, Point, Wish, chip_counts, choose, fewest, scale, usd_per_token
from rooftop.training._search import Limits, Outcome
from rooftop.training._step import Part, Step
from rooftop.training._structure import Structure, structure
from rooftop.training._timeline import Event, Moment, Timeline, Traffic, timeline

__all__ = [
    "MESH_AXES",
    "OBJECTIVES",
    "POLICIES",
    "PRESETS",
    "RECIPES",
    "SAVE",
    "Answer",
    "Choices",
    "Collected",
    "Comparison",
    "ComputeOptimal",
    "CriticalBatch",
    "Curve",
    "Degree",
    "Difference",
    "Estimate",
    "Event",
    "Failures",
    "Goodput",
    "Ledger",
    "Limits",
    "Moment",
    "Multiply",
    "Optimum",
    "Outcome",
    "Part",
    "Plan",
    "Point",
    "Prepared",
    "Problem",
    "Question",
    "Reach",
    "Recipe",
    "Remat",
    "Run",
    "Step",
    "Structure",
    "Timeline",
    "Traffic",
    "Wish",
    "attention_imbalance",
    "axis_bandwidth",
    "best_interval",
    "best_split",
    "checkpoint_bytes",
    "chinchilla_tokens",
    "chip_counts",
    "chip_hours",
    "choices",
    "choose",
    "communicated_bytes",
    "compare",
    "cost",
    "critical_batch",
    "critical_batches",
    "described",
    "estimate",
    "evaluate",
    "explain_estimate",
    "failure_rate",
    "fewest",
    "goodput",
    "is_value",
    "largest_degrees",
    "largest_model",
    "layouts",
    "ledger",
    "load",
    "loss",
    "made_for",
    "named_plan",
    "names_of",
    "network_intensity",
    "offered",
    "optimal_for_chips",
    "optimal_for_flops",
    "optimal_for_model",
    "optimum_of",
    "plan",
    "price_of",
    "problem_of",
    "reach",
    "read_plan",
    "recipe",
    "remat",
    "run_flops",
    "run_seconds",
    "saved",
    "scale",
    "seconds_at",
    "six_nd",
    "slice_critical_batch",
    "step_kernels",
    "step_of",
    "structure",
    "tensor_limit",
    "timeline",
    "tokens_for",
    "usd_per_token",
    "useful_flops_per_token",
    "utilisation",
    "values_of",
    "write_plan",
]
