"""The derivation of any quantity of a way to serve, from the functions that computed it."""

from __future__ import annotations

from typing import Any

from rooftop.errors import InputError, nearest
from rooftop.formula import Explanation, Number, Traced, explain, floor, formula, given, named
from rooftop.inference._answer import Point, shown
from rooftop.inference._critical import critical_batch
from rooftop.inference._evaluate import Scene, throughput, usd_per_million


@formula("kv_caches", "sequences", note="on this mesh, in whole rounds of its groups")
def caches_beside(
    capacity: Number, weights: Number, working_set: Number, round_bytes: Number, groups: Number
) -> Number:
    """Sequences whose caches fit beside weights and activations: whole rounds of one sequence a group."""
    return floor((capacity - weights - working_set) / round_bytes) * groups


def _caches(scene: Scene) -> Number:
    problem = scene.problem
    groups = scene.ways(scene.layout.spread)
    parts = scene.memory(groups)
    capacity = given(problem.capacity, "HBM", "B", f"data sheet of {problem.slice.chip.name}, less the headroom")
    return caches_beside(capacity, parts["weights"], parts["working set"], parts["kv cache"], groups)


def explain_point(p: Point, quantity: str, depth: int = 2) -> Explanation:
    """Explain a quantity of a point: formula, substitution, value, source, down to `depth` levels."""
    problem = p.problem
    scene = Scene(problem, p.at, traced=True)
    batch = given(p.batch, "batch", "sequences")
    generate, prefill = scene.generate(batch), scene.prefill()
    step = generate.step
    rate = throughput(batch, generate.tokens, step.expected)
    known: dict[str, Any] = {
        "step_seconds": named(step.expected, "step_seconds.expected", "s"),
        "step_seconds.expected": named(step.expected, "step_seconds.expected", "s"),
        "step_seconds.bound": named(step.bound, "step_seconds.bound", "s"),
        "tpot": generate.tpot[1],
        "tpot.bound": generate.tpot[0],
        "ttft": named(prefill.expected, "ttft", "s"),
        "ttft.bound": named(prefill.bound, "ttft.bound", "s"),
        "memory": generate.memory_bytes,
        "tokens_per_second": rate,
        "critical_batch": critical_batch(scene),
        "kv_caches": _caches(scene),
    }
    known |= {f"memory.{part.replace(' ', '_')}": value for part, value in generate.memory.items()}
    known |= {shown(n, p.at.mesh).replace(" ", "_"): v for n, v in step.resources.items()}
    if problem.price is not None:
        listed = problem.slice.chip.price
        source = f"{listed.source}, {listed.date}" if problem.question.price is None and listed else "as given"
        price, chips = given(problem.price, "price", "USD/h", source), given(problem.slice.chips, "chips")
        known["usd"] = known["usd.output"] = usd_per_million(chips, price, rate)
        tokens = given(problem.question.prompt, "prompt", "tokens")
        known["usd.input"] = usd_per_million(chips, price, throughput(prefill.prompts, tokens, prefill.expected))
    if quantity not in known:
        raise InputError(
            f"cannot explain {quantity!r}{nearest(quantity, known)}; choose one of {', '.join(known)}", field="explain"
        )
    value = known[quantity]
    return explain(value if isinstance(value, Traced) else given(float(value), quantity), depth)
