"""Why there is no plan, by how much it misses, and what would fit; meshes that a model does not allow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from rooftop.costing import MESH_AXES
from rooftop.errors import InputError, NoAnswer, RooftopError, nearest
from rooftop.hardware import slice_of, standard_slices
from rooftop.training._choices import DEFAULT, Choices, values_of
from rooftop.training._plan import Problem
from rooftop.training._search import Limits, Outcome, search
from rooftop.training._space import options


def check_fixed(problem: Problem, fixed: Mapping[str, int], layout: Choices = DEFAULT) -> None:
    """Refuse mesh axes that do not exist, and ways that do not divide the model under a layout, by name."""
    compiled = problem.structure(layout)
    for axis, ways in fixed.items():
        if axis not in MESH_AXES:
            raise InputError(
                f"unknown mesh axis {axis!r}{nearest(axis, MESH_AXES)}; the axes are {', '.join(MESH_AXES)}",
                field="mesh",
            )
        if ways < 1:
            raise InputError(f"{axis}={ways} is not a number of ways; give 1 or more", field="mesh")
        if (axis == "data" and not layout.outer_zero) or options(compiled, axis, [ways]):
            continue
        known = options(compiled, axis, range(1, 1025))
        raise InputError(
            f"{axis}={ways} does not divide {problem.model.name} evenly ({_what(axis)}); use"
            f" {', '.join(map(str, known[:-1])) + ' or ' if len(known) > 1 else ''}{known[-1]}",
            field="mesh",
        )


def _what(axis: str) -> str:
    return {
        "tensor": "heads, feed-forward and vocabulary must divide",
        "tensor_transpose": "heads, feed-forward, vocabulary and d_model must divide",
        "data": "d_model must divide where its ZeRO stage is 1",
        "fsdp": "d_model must divide",
        "context": "the sequence and d_model, with ulysses also KV heads, must divide",
        "expert": "the number of experts must divide",
        "pipeline": "there can be no more stages than layers",
    }[axis]


def no_plan(problem: Problem, outcome: Outcome, fixed: Mapping[str, int]) -> RooftopError:
    """Say by how much the nearest plan misses, and what would fit (tried, not guessed)."""
    name, where = problem.model.name, problem.slice
    closest = outcome.closest
    if closest is None and outcome.least_host < math.inf:
        return NoAnswer(
            f"{name} does not fit on {where.name}: the plan that needs the least host memory takes"
            f" {outcome.least_host / 1e9:.1f} GB of {problem.host_capacity / 1e9:.1f} GB per chip there; take something out of"
            " --offload, or use a larger slice",
            field="slice",
        )
    if closest is None:
        demand = f" with {', '.join(f'{a}={w}' for a, w in fixed.items())}" if fixed else ""
        return NoAnswer(
            f"no mesh of {where.name}{demand} can share {problem.batch_tokens / problem.seq:g} sequences of {problem.seq}"
            f" tokens evenly for {name}; use a larger --batch, a wider --batch-within, or another slice",
            field="batch",
        )
    need, have = closest.memory_bytes, problem.capacity
    mesh = ", ".join(f"{a}={w}" for a, w in closest.plan.mesh.items() if w > 1) or "one chip"
    fitting = _what_fits(problem, fixed)
    return NoAnswer(
        f"{name} does not fit on {where.name}: the plan that needs the least memory ({mesh}, remat {closest.plan.choices.remat})"
        f" takes {need / 1e9:.1f} GB of {have / 1e9:.1f} GB per chip, {(need - have) / 1e9:.1f} GB too much; {fitting}",
        field="slice",
    )


def _what_fits(problem: Problem, fixed: Mapping[str, int]) -> str:
    fitting: list[str] = []
    if problem.recipe.moments != "bf16" or problem.recipe.master:
        lean = replace(problem, recipe=replace(problem.recipe, moments="bf16", master=None))
        if search(lean, fixed, keep=1).found:
            fitting.append("optimizer states in bf16 (--optimizer-dtype bf16)")
    everything = search(problem, fixed, keep=1, limits=Limits({"offload": values_of("offload")[1:]}))
    if everything.found:
        fitting.append(f"what lies in host memory (--offload {everything.found[0].plan.choices.offload})")
    for name in standard_slices(problem.slice.chip.name):
        larger = slice_of(name)
        if larger.chips > problem.slice.chips and search(replace(problem, slice=larger), fixed, keep=1).found:
            fitting.append(f"a slice of {larger.chips} chips ({larger.name})")
            break
    if not fitting:
        return "no larger standard slice fits either: use a smaller model, a shorter --seq or a chip with more memory"
    return f"what would fit: {' or '.join(fitting)}"
