"""What a scenario answers: one row of numbers and words, under the JSON keys of its command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rooftop import inference, simulation, training
from rooftop.codesign._scenario import Scenario
from rooftop.errors import InputError, RooftopError
from rooftop.training import Choices, Limits, Plan, Question, named_plan, offered, problem_of
from rooftop.transformer import architecture

Row = dict[str, Any]


def answer(scenario: Scenario) -> Row:
    """The row of a scenario. Raises NoAnswer where nothing fits, InputError for what is not well formed."""
    return _ANSWERS[scenario.ask](scenario)


def answer_or_why(scenario: Scenario) -> Row:
    """The same, with `error` instead of an exception: what is wrong with one point does not end a sweep."""
    try:
        return {**answer(scenario), "error": None}
    except RooftopError as error:
        return {"error": error.message}


def training_question(scenario: Scenario) -> Question:
    """The question of `plan` and `step`."""
    own = {"microbatches", *(f.name for f in offered())}
    options = {n: v for n, v in scenario.options.items() if n not in own and v is not None}
    return Question(scenario.model, scenario.slice, calibration=scenario.calibration, **options)


def searched(scenario: Scenario, keep: int = 1) -> training.Answer:
    """The best plan."""
    allowed = {f.name: (scenario.options[f.name],) for f in offered() if scenario.options.get(f.name) is not None}
    limits = Limits(allowed, microbatches=scenario.options.get("microbatches"))
    return training.plan(training_question(scenario), fixed=scenario.mesh, limits=limits, keep=keep)


def planned(scenario: Scenario) -> Plan:
    """The plan of a scenario: the one that `step` names, or the best."""
    if scenario.ask == "plan":
        return searched(scenario).best.plan
    taken = {f.name: scenario.options[f.name] for f in offered() if scenario.options.get(f.name) is not None}
    if not scenario.mesh:
        raise InputError("step needs a mesh; give one, such as --mesh fsdp=8,tensor=4", field="mesh")
    question = training_question(scenario)
    return named_plan(
        question, scenario.mesh, microbatches=scenario.options.get("microbatches"), choices=Choices(**taken)
    )


def trained(scenario: Scenario, plan: Plan) -> Row:
    """The columns of one training plan. Hardware numbers of the scenario may be NumPy arrays: so are the columns then."""
    question = training_question(scenario)
    problem = problem_of(question)
    step = training.evaluate(problem, plan, with_parts=False)
    batch, chips = plan.batch_sequences * problem.seq, plan.chips
    tokens = batch * problem.filled
    flops = training.useful_flops_per_token(problem)
    names = list(step.resources)
    row: Row = {}
    for kind in ("bound", "expected"):
        row[f"step_seconds.{kind}"] = getattr(step, kind)
        row[f"seconds_per_token.{kind}"] = getattr(step, kind) / tokens
        row[f"mfu.{kind}"] = training.utilisation(flops, tokens, getattr(step, kind), chips, problem.peak)
    seconds = np.broadcast_arrays(*(np.asarray(step.resources[name], dtype=float) for name in names))
    binds = np.array(names)[np.argmax(seconds, axis=0)]
    price = training.price_of(question)
    row |= {
        "bottleneck": binds if binds.ndim else str(binds),
        "tokens_per_second": tokens / step.expected,
        "tokens_per_second_per_chip": tokens / step.expected / chips,
        "usd_per_million_tokens": None if price is None
        else inference.usd_per_million(problem.slice.chips, price, tokens / step.expected),
        "memory.bytes": step.memory_bytes,
        "memory.capacity_bytes": problem.capacity,
        "fits": (step.memory_bytes <= problem.capacity) & (step.host_bytes <= problem.host_capacity),
        "batch_tokens": batch,
        "chips": chips,
        "mesh": shown_mesh(plan.mesh),
        "microbatches": plan.microbatches,
        **{f"plan.{f.name}": getattr(plan.choices, f.name) for f in offered()},
    }  # fmt: skip
    return row


def shown_mesh(mesh: Mapping[str, Any]) -> str:
    """Ways of more than one by mesh axis."""
    return ",".join(f"{a}={int(n)}" for a, n in mesh.items() if n > 1) or "one chip"


def _trained(scenario: Scenario) -> Row:
    return {name: _plain(value) for name, value in trained(scenario, planned(scenario)).items()}


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def serving_question(scenario: Scenario) -> tuple[inference.Question, inference.Limits]:
    """The question of `serve`, and its limits."""
    options = {n: v for n, v in scenario.options.items() if v is not None}
    limits = {name: options.pop(name, None) for name in ("ttft", "tpot", "usd")}
    batch, draft = options.pop("batch", None), options.pop("draft", None)
    if draft is not None and draft != "mtp":
        draft = architecture(draft)
    question = inference.Question(
        scenario.model, scenario.slice, batches=() if batch is None else (batch,), draft=draft,
        calibration=scenario.calibration, **options,
    )  # fmt: skip
    return question, inference.Limits(fixed=scenario.mesh or None, **limits)


def _served(scenario: Scenario) -> Row:
    question, limits = serving_question(scenario)
    return served_row(inference.serve(question, limits, look_around=False).best)


def served_row(best: inference.Point) -> Row:
    """The columns of one way to serve at one batch."""
    return {
        "batch_sequences": best.batch,
        "tpot_seconds.bound": float(best.generate.tpot[0]),
        "tpot_seconds.expected": float(best.generate.tpot[1]),
        "ttft_seconds.bound": float(best.prefill.bound),
        "ttft_seconds.expected": float(best.prefill.expected),
        "seconds_per_token.bound": float(best.generate.tpot[0]) / best.batch,
        "seconds_per_token.expected": float(best.generate.tpot[1]) / best.batch,
        "bottleneck": best.bottleneck,
        "tokens_per_second": best.tokens_per_second,
        "tokens_per_second_per_chip": best.tokens_per_second / best.problem.slice.chips,
        "requests_per_second": best.requests_per_second,
        "usd_per_million_tokens": best.usd_output,
        "memory.bytes": float(best.generate.memory_bytes),
        "memory.capacity_bytes": best.problem.capacity,
        "fits": best.fits,
        "chips": best.problem.slice.chips,
        "mesh": shown_mesh(best.at.mesh),
        "plan.weights": best.at.layout.weights,
        "plan.cache": best.at.layout.cache,
        "plan.experts": best.at.layout.experts,
    }


def _simulated(scenario: Scenario) -> Row:
    options = {n: v for n, v in scenario.options.items() if v is not None}
    text, load, seed = options.pop("workload", None), options.pop("load", 1.0), options.pop("seed", 0)
    if text is None:
        raise InputError(
            "simulate needs a workload; give one, such as --workload poisson:rate=8,input=1000,output=200",
            field="workload",
        )
    if not 0 < load < 1e9:
        raise InputError(f"load = {load:g} is out of range; give how many times as fast requests come", field="load")
    slo = simulation.Slo(*(options.pop(name, None) for name in ("ttft", "tpot", "e2e")))
    fleet = {n: options.pop(n) for n in ("replicas", "prefill_replicas", "route") if n in options}
    deployed = {n: options.pop(n) for n in ("weights", "activations", "kv", "price", "headroom") if n in options}
    work = simulation.workload(text).scaled(load)
    scheduling = simulation.Scheduling(**options)
    replica = simulation.modelled(
        scenario.model, scenario.slice, scheduling, simulation.typical(work, seed), replicas=fleet.get("replicas", 1),
        mesh=scenario.mesh or None, **deployed,
    )  # fmt: skip
    setup = simulation.Setup(replica, scheduling, simulation.Fleet(**fleet), slo)
    out = simulation.simulate(setup, work, seed=seed)
    row: Row = {}
    for name in ("ttft", "tpot", "e2e"):
        held = getattr(out.record, name)
        row |= {f"{name}_seconds.{q}": held.quantile(p) for q, p in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}
    running = max(1.0, out.timeline.total("running") / out.busy_seconds)
    scene = replica.steps.scene  # type: ignore[attr-defined]
    step = scene.generate(running, detail=False).step
    usd = out.usd
    return row | {
        # what binds the decode step at the mean number of running requests
        "bottleneck": max(inference.bounds(step.resources, scene.mesh).items(), key=lambda pair: pair[1])[0],
        "running": running,
        "requests_per_second": out.requests_per_second,
        "tokens_per_second": out.tokens_per_second,
        "goodput": out.goodput,
        "slo_attainment": out.attainment,
        "utilisation": out.utilisation,
        "kv_occupancy": out.kv_occupancy,
        "overloaded": out.overloaded,
        "usd_per_million_tokens": None if usd is None else usd / out.record.output_tokens * 1e6,
        "chips": scenario.slice.chips,
        "mesh": shown_mesh(scene.mesh),
    }


_ANSWERS = {"plan": _trained, "step": _trained, "serve": _served, "simulate": _simulated}
