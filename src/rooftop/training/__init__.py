"""Training: step time, memory, schedules, the plan search, run time and cost."""

from rooftop.training._answer import (
    Answer,
    Estimate,
    Question,
    estimate,
    explain_estimate,
    named_plan,
    plan,
    problem_of,
    step_of,
)
from rooftop.training._layouts import MESH_AXES, ZERO_STAGES, layouts
from rooftop.training._plan import Plan, Problem
from rooftop.training._recipe import RECIPES, Recipe, recipe
from rooftop.training._remat import POLICIES, Remat, remat
from rooftop.training._run import Run
from rooftop.training._search import Limits, Outcome
from rooftop.training._step import Part, Step

__all__ = [
    "MESH_AXES",
    "POLICIES",
    "RECIPES",
    "ZERO_STAGES",
    "Answer",
    "Estimate",
    "Limits",
    "Outcome",
    "Part",
    "Plan",
    "Problem",
    "Question",
    "Recipe",
    "Remat",
    "Run",
    "Step",
    "estimate",
    "explain_estimate",
    "layouts",
    "named_plan",
    "plan",
    "problem_of",
    "recipe",
    "remat",
    "step_of",
]
