"""A plan as a JAX program: the mesh on a compiler's devices, the step, and its abstract arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rooftop.lower._mesh import chip_order, mesh_of
from rooftop.lower._reference import Reference
from rooftop.lower._targets import Target
from rooftop.training import Plan, Problem


def reference_of(problem: Problem, plan: Plan, target: Target) -> Reference:
    """The reference Transformer on the plan's mesh of the target's devices."""
    kv_heads = problem.structure(plan.choices.layout).kv_heads
    order = chip_order(problem, plan, kv_heads)
    devices = target.devices(order.reshape(-1, order.shape[-1]))
    return Reference(problem.model, problem.seq, plan.choices, problem.recipe, mesh_of(devices, order))


def step_of_plan(problem: Problem, plan: Plan, target: Target) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """(step, abstract arguments): state, tokens and targets, with the shardings of the plan."""
    reference = reference_of(problem, plan, target)
    tokens = reference.batch(plan.microbatches, plan.groups * plan.sequences)

    def step(state: Any, tokens: Any, targets: Any) -> Any:
        return reference.step(state, tokens, targets)

    return step, (reference.state(), tokens, tokens)
