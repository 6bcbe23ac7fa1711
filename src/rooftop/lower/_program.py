"""A plan as a JAX program on its mesh: a trainer, a server, and the step that compilers are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from rooftop import inference
from rooftop.errors import InputError
from rooftop.inference._structure import structure as served
from rooftop.lower._mesh import chip_order, devices_at, mesh_of
from rooftop.lower._reference import Reference
from rooftop.lower._serving import Serving
from rooftop.lower._targets import Target
from rooftop.training import Answer, Estimate, Plan, Problem
from rooftop.training._structure import structure

#: Coordinates of chips to devices.
_Devices = Callable[[NDArray[np.int64]], Sequence[Any]]


def trainer(answer: Answer | Estimate, devices: Sequence[Any] | None = None) -> Reference:
    """The reference Transformer under the plan of an answer, on its mesh. devices: those of the slice, JAX's unless given.

    Raises InputError for what is not lowered to JAX, and where there are other devices than the plan takes.
    """
    found = answer.best if isinstance(answer, Answer) else answer
    problem = found.problem
    every = jax.devices() if devices is None else devices
    return reference_of(problem, found.plan, lambda places: devices_at(places, problem.slice, every))


def server(answer: inference.Answer | inference.Point, devices: Sequence[Any] | None = None, **options: Any) -> Serving:
    """A served model under the configuration of an answer, on its mesh; caches hold its prompts and outputs.

    devices: those of the slice, JAX's unless given. options: `capacity`, `tokens`, `compute` of `Serving`, where they differ.
    Raises InputError for what is not lowered to JAX, and where there are other devices than the slice has.
    """
    found = answer.best if isinstance(answer, inference.Answer) else answer
    problem, at = found.problem, found.at
    capacity = options.pop("capacity", problem.question.prompt + problem.question.output)
    heads = served(problem.model, "generate", 1, capacity, at.layout, inference.Precision()).kv_heads
    order = chip_order(at.mesh, at.factors, heads)
    every = jax.devices() if devices is None else devices
    mesh = mesh_of(devices_at(order.reshape(-1, order.shape[-1]), problem.slice, every), order)
    return Serving(problem.model, capacity, at.layout, mesh=mesh, **options)


def reference_of(problem: Problem, plan: Plan, devices: _Devices) -> Reference:
    """The reference Transformer on the plan's mesh of the devices at its chips' coordinates."""
    _check_lowered(problem, plan)
    kv_heads = structure(problem.model, problem.seq, plan.choices.layout, problem.recipe).kv_heads
    order = chip_order(plan.mesh, plan.factors, kv_heads)
    mesh = mesh_of(devices(order.reshape(-1, order.shape[-1])), order)
    return Reference(problem.model, problem.seq, plan.choices, problem.recipe, mesh)


def step_of_plan(problem: Problem, plan: Plan, target: Target) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """(step, abstract arguments): state, tokens and targets, with the shardings of the plan."""
    reference = reference_of(problem, plan, target.devices)
    tokens = reference.batch(plan.microbatches, plan.groups * plan.sequences)

    def step(state: Any, tokens: Any, targets: Any) -> Any:
        return reference.step(state, tokens, targets)

    return step, (reference.state(), tokens, tokens)


def _check_lowered(problem: Problem, plan: Plan) -> None:
    """Raises InputError for what a plan has and the reference Transformer does not do."""
    choices, recipe = plan.choices, problem.recipe
    if problem.documents is not None:
        raise InputError(
            "the reference Transformer knows no ends of documents; lower a plan that was made without --lengths",
            field="lengths",
        )
    if recipe.optimizer != "adamw" or recipe.moments not in ("fp32", "bf16"):
        raise InputError(
            f"{recipe.optimizer} with states in {recipe.moments} is not lowered to JAX; lower a plan with AdamW in fp32 or bf16",
            field="optimizer",
        )
    uneven = choices.embed_layers or choices.head_layers or choices.chunks > 1
    if plan.mesh.get("pipeline", 1) > 1 and (uneven or choices.schedule not in ("gpipe", "1f1b")):
        raise InputError(
            "pipeline stages are lowered to JAX in equal shares of layers, without chunks, in the order of GPipe; lower a plan with"
            " schedule=gpipe, chunks=1, embed_layers=0 and head_layers=0",
            field="schedule",
        )
