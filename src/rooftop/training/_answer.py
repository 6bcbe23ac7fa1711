"""The answers of the planner: a plan with everything that is known of it, the run, the runners-up, the assumptions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rooftop.errors import InputError, NoAnswer, RooftopError, nearest
from rooftop.formula import Explanation, Number, Traced, explain, given, maximum, named
from rooftop.hardware import Slice, slice_of, standard_slices
from rooftop.roofline import Calibration, Placement, calibration_for
from rooftop.training._estimate import Rates, local, moved
from rooftop.training._layouts import MESH_AXES, ZERO_STAGES
from rooftop.training._plan import PLACEMENT_ORDER, Plan, Problem, environment, links_of, rates_of
from rooftop.training._recipe import recipe
from rooftop.training._remat import POLICIES
from rooftop.training._run import Run, chip_hours, cost, run_flops, run_seconds, utilisation
from rooftop.training._search import Limits, Outcome, Scene, search
from rooftop.training._space import degrees
from rooftop.training._step import Evaluated, Part, Step, memory_of, states_of, step
from rooftop.training._structure import structure
from rooftop.transformer import training_flops_per_token


@dataclass(frozen=True, slots=True)
class Estimate:
    """One plan of a problem, estimated: seconds of a step (bound, expected), what binds it, memory, utilisation."""

    problem: Problem
    plan: Plan
    step: Step
    flops_per_token: float
    peak: float

    @property
    def batch_tokens(self) -> int:
        """Tokens of a step."""
        return self.plan.batch_sequences * self.problem.seq

    @property
    def bottleneck(self) -> str:
        """The resource whose lower bound is the largest: compute, hbm or a network axis."""
        return max(self.step.resources, key=lambda name: self.step.resources[name])

    @property
    def mfu(self) -> tuple[float, float]:
        """Model FLOPs utilisation of the chips used: (at the bound, expected)."""

        def at(seconds: Number) -> float:
            return float(utilisation(self.flops_per_token, self.batch_tokens, seconds, self.plan.chips, self.peak))

        return at(self.step.bound), at(self.step.expected)

    @property
    def tokens_per_second_per_chip(self) -> float:
        """Expected throughput of each chip used."""
        return float(self.batch_tokens / self.step.expected / self.plan.chips)

    @property
    def seconds_per_token(self) -> float:
        """What plans are ranked by."""
        return float(self.step.expected / self.batch_tokens)

    @property
    def fits(self) -> bool:
        """Whether the memory suffices."""
        return bool(self.step.memory_bytes <= self.problem.capacity)


@dataclass(frozen=True, slots=True)
class Answer:
    """What `rooftop plan` and `rooftop step` say."""

    question: Question
    best: Estimate
    alternatives: tuple[Estimate, ...]
    reasons: tuple[str, ...]
    run: Run | None
    outcome: Outcome | None
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A training question in the user's terms. See `plan`."""

    model: Any
    slice: Slice
    batch: float | None = None
    seq: int | None = None
    tokens: float | None = None
    batch_within: float = 0.1
    precision: str = "bf16"
    optimizer_dtype: str | None = None
    price: float | None = None
    headroom: float = 0.0
    calibration: Calibration | None = None
    collective_matmul: bool = False


def problem_of(question: Question) -> Problem:
    """The problem behind a question; defaults: sequences of 4096 tokens, a batch of 4M tokens."""
    model, where = question.model, question.slice
    seq = 4096 if question.seq is None else question.seq
    batch = 4e6 if question.batch is None else question.batch
    if seq < 1 or seq > 1e8:
        raise InputError(f"seq={seq} is not a sequence length; give 1 to 100M tokens, as in --seq 4096", field="seq")
    if not seq <= batch < math.inf:
        raise InputError(
            f"a batch of {batch:g} tokens is smaller than one sequence of {seq}; give a batch of {seq} tokens or more,"
            f" or a shorter --seq",
            field="batch",
        )
    if not 0 <= question.batch_within < 1:
        raise InputError(
            f"batch-within={question.batch_within} is not a share; give 0 (exactly this batch) to below 1",
            field="batch_within",
        )
    if not 0 <= question.headroom < 1:
        raise InputError(
            f"headroom={question.headroom} is not a share of HBM; give 0 to below 1, as in --headroom 0.1",
            field="headroom",
        )
    calibration = question.calibration or calibration_for(where.chip.name, where.chip.family)
    if question.collective_matmul:
        overlap = {**calibration.overlap, "critical": calibration.overlap["prefetch"]}
        calibration = replace(calibration, overlap=overlap)
    return Problem(
        model=model, slice=where, seq=seq, batch_tokens=batch, batch_within=question.batch_within,
        recipe=recipe(question.precision, moments=question.optimizer_dtype),
        calibration=calibration,
        headroom=question.headroom,
    )  # fmt: skip


def plan(
    question: Question,
    *,
    fixed: Mapping[str, int] | None = None,
    limits: Limits | None = None,
    keep: int = 6,
    progress: Callable[[float], None] | None = None,
) -> Answer:
    """Search the best plan. Raises NoAnswer with what misses, and what would fit, when no plan does."""
    problem = problem_of(question)
    _check_fixed(problem, fixed or {})
    outcome = search(problem, fixed, keep=keep, limits=limits, progress=progress)
    if not outcome.found:
        raise _no_plan(problem, outcome, fixed or {})
    estimates = [estimate(problem, f.plan) for f in outcome.found]
    best = estimates[0]
    return Answer(
        question=question,
        best=best,
        alternatives=tuple(estimates[1:]),
        reasons=tuple(why_slower(best, e) for e in estimates[1:]),
        run=run_of(question, best),
        outcome=outcome,
        assumptions=assumptions(question, best),
    )


def step_of(question: Question, the_plan: Plan) -> Answer:
    """The same for one plan that the user names."""
    problem = problem_of(question)
    best = estimate(problem, the_plan)
    return Answer(question, best, (), (), run_of(question, best), None, assumptions(question, best))


def estimate(problem: Problem, the_plan: Plan) -> Estimate:
    """Evaluate one plan with plain numbers."""
    result = evaluate(problem, the_plan)
    return Estimate(
        problem, the_plan, result, training_flops_per_token(problem.model, problem.seq), rates_of(problem).peak
    )


def evaluate(problem: Problem, the_plan: Plan, *, traced: bool = False) -> Step:
    """The step of one plan; traced=True gives quantities that can be explained, from the same functions."""
    compiled = structure(problem.model, problem.seq, the_plan.zero, problem.recipe, fold=not traced)
    rates = rates_of(problem)
    mesh: dict[str, Number] = {a: the_plan.mesh.get(a, 1) for a in MESH_AXES}
    axes: dict[str, Number] = dict(compiled.axes)
    sequences: Number = the_plan.sequences
    microbatches: Number = the_plan.microbatches
    dimensions = problem.dimensions
    if traced:
        mesh = {a: given(w, a) for a, w in mesh.items()}
        axes = {n: given(v, n) for n, v in axes.items()}
        sequences = given(sequences, "b", "sequences")
        microbatches = given(microbatches, "m")
        rates = _traced_rates(problem, rates)
        dimensions = tuple(
            replace(
                d,
                bandwidth=given(d.bandwidth, f"W_{d.network}", "B/s", "data sheet"),  # type: ignore[arg-type]
                latency=given(d.latency, f"latency_{d.network}", "s", "data sheet"),  # type: ignore[arg-type]
            )
            for d in dimensions
        )
    axes, inner = environment(mesh, sequences, compiled.kv_heads, axes)
    if traced:
        axes["B"] = named(axes["B"], "B", "sequences", note="sequences of a microbatch over all groups")
    factors: list[dict[str, Number]] = [dict(f) for f in the_plan.factors]
    placement = Placement(dimensions, tuple(factors), PLACEMENT_ORDER)
    links = links_of(placement, inner, compiled.groups, problem.calibration)
    values = {c.name: c.evaluate(axes, inner) for c in compiled.programs}
    if traced:
        values = {
            c.name: [
                named(v, str(size)) if isinstance(v, Traced) else v
                for v, size in zip(values[c.name], c.sizes, strict=True)
            ]
            for c in compiled.programs
        }
    evaluated = Evaluated(
        compiled,
        values,
        {c.name: local(c, values[c.name], rates) for c in compiled.programs},
        {c.name: moved(c, values[c.name], links) for c in compiled.programs},
    )
    memory = memory_of(compiled, values, the_plan.remat, microbatches, inner["pipeline"])
    calibration = problem.calibration
    overlap: Mapping[str, Number] = calibration.overlap
    overhead: Number = calibration.step_overhead
    if traced:
        told = f"calibration: {calibration.name}"
        overlap = {kind: given(share, f"overlap_{kind}", "", told) for kind, share in overlap.items()}
        overhead = given(overhead, "step overhead", "s", told)
    result = step(
        evaluated, rates, links, overlap, overhead, the_plan.remat, microbatches,
        inner["pipeline"], memory, states_of(compiled, values, inner["pipeline"]),
    )  # fmt: skip
    # axes of one way are in the algebra, not in what a person wants to read
    active = {axis for axis, ways in the_plan.mesh.items() if ways > 1}

    def shown(name: str) -> str:
        network, _, rest = name.partition(" ")
        return f"network {_only(rest, active)}" if network == "network" else name

    def title(part: Part) -> str:
        axes, colon, what = part.name.partition(": ")
        return f"{_only(axes, active)}: {what}" if colon and part.kind == "network" else part.name

    # groups that differ in axes of one way are one group here
    resources: dict[str, Number] = {}
    for name, seconds in result.resources.items():
        resources[shown(name)] = maximum(resources[shown(name)], seconds) if shown(name) in resources else seconds
    parts: dict[tuple[str, str], Part] = {}
    for part in result.parts:
        key = title(part), part.kind
        if key in parts:
            same = parts[key]
            part = replace(part, seconds=same.seconds + part.seconds, overlapped=same.overlapped + part.overlapped)
        parts[key] = replace(part, name=key[0])
    return replace(result, resources=resources, parts=tuple(parts.values()))


def _only(axes: str, active: set[str]) -> str:
    kept = [axis for axis in axes.split("+") if axis in active]
    return "+".join(kept) or axes


def _traced_rates(problem: Problem, rates: Rates) -> Rates:
    chip, calibration = problem.slice.chip, problem.calibration
    sheet = f"data sheet of {chip.name}"
    told = f"calibration: {calibration.name} ({calibration.provenance})"
    peak = given(rates.peak, "C", "FLOP/s", f"{sheet}, dense {problem.recipe.compute}")
    hbm = given(rates.hbm, "W_hbm", "B/s", sheet)
    return replace(
        rates,
        peak=peak,
        hbm=hbm,
        matmul_expected=named(peak * given(calibration.matmul, "e_matmul", "", told), "C_achieved", "FLOP/s"),
        attention_expected=named(peak * given(calibration.attention, "e_attention", "", told), "C_attention", "FLOP/s"),
        hbm_expected=named(hbm * given(calibration.hbm, "e_hbm", "", told), "W_hbm_achieved", "B/s"),
        op_overhead=given(calibration.op_overhead, "overhead", "s", told),
    )


def explain_estimate(best: Estimate, quantity: str, depth: int = 2, *, question: Question | None = None) -> Explanation:
    """Explain a quantity of an estimate: formula, substitution, value, source, down to `depth` levels.

    With the question behind it also the quantities of the run: run.seconds, run.chip_hours, run.usd.
    """
    result = evaluate(best.problem, best.plan, traced=True)
    known: dict[str, Any] = {
        "step_seconds": result.expected,
        "step_seconds.expected": result.expected,
        "step_seconds.bound": result.bound,
        "memory": result.memory_bytes,
        "memory.bytes": result.memory_bytes,
    }
    known |= {f"memory.{part}": value for part, value in result.memory.items()}
    known |= {name: value for name, value in result.resources.items()}
    tokens = given(best.batch_tokens, "batch_tokens", "tokens")
    chips = given(best.plan.chips, "chips")
    flops = given(best.flops_per_token, "FLOPs per token", "FLOP", "forward and backward matmuls, causal attention")
    peak = given(best.peak, "C", "FLOP/s", f"data sheet of {best.problem.slice.chip.name}")
    known["mfu"] = known["mfu.expected"] = utilisation(flops, tokens, result.expected, chips, peak)
    known["mfu.bound"] = utilisation(flops, tokens, result.bound, chips, peak)
    known["tokens_per_second_per_chip"] = named(
        tokens / (result.expected * chips), "tokens_per_second_per_chip", "tokens/s"
    )
    known |= {part.name: named(part.seconds, part.name, "s") for part in result.parts}
    if question is not None and question.tokens is not None:
        known |= _traced_run(question, best, result.expected, tokens, flops)
    if quantity not in known:
        raise InputError(
            f"cannot explain {quantity!r}{nearest(quantity, known)}; choose one of {', '.join(known)}", field="explain"
        )
    value = known[quantity]
    if not isinstance(value, Traced):
        value = given(float(value), quantity)
    return explain(value, depth)


def _traced_run(
    question: Question, best: Estimate, step_seconds: Number, batch: Number, flops: Number
) -> dict[str, Number]:
    assert question.tokens is not None
    tokens = given(question.tokens, "tokens", "tokens", "of the whole run")
    seconds = run_seconds(tokens, batch, step_seconds)
    where = best.problem.slice
    hours = chip_hours(seconds, given(where.chips, "chips", "", f"all of {where.name}, used or not"))
    result = {"run.seconds": seconds, "run.chip_hours": hours, "run.flops": run_flops(flops, tokens)}
    price = price_of(question)
    if price is not None:
        listed = where.chip.price
        source = f"{listed.source}, {listed.date}" if question.price is None and listed is not None else "as given"
        result["run.usd"] = cost(hours, given(price, "price", "USD/h", source))
    return result


def run_of(question: Question, best: Estimate) -> Run | None:
    """The whole run, if the question says how many tokens it has."""
    if question.tokens is None:
        return None
    if question.tokens < best.batch_tokens:
        raise InputError(
            f"a run of {question.tokens:g} tokens is shorter than one step of {best.batch_tokens}; give more --tokens",
            field="tokens",
        )
    seconds = run_seconds(question.tokens, best.batch_tokens, best.step.expected)
    hours = chip_hours(seconds, best.problem.slice.chips)
    price = price_of(question)
    return Run(
        tokens=question.tokens,
        steps=question.tokens / best.batch_tokens,
        seconds=seconds,
        chip_hours=hours,
        usd=None if price is None else cost(hours, price),
        flops=run_flops(best.flops_per_token, question.tokens),
    )


def price_of(question: Question) -> float | None:
    """USD per chip-hour: the user's, or the chip's."""
    if question.price is not None:
        return question.price
    return question.slice.chip.price.usd_per_hour if question.slice.chip.price else None


def assumptions(question: Question, best: Estimate) -> tuple[str, ...]:
    """What the answer takes for granted, one sentence each."""
    problem, chip = best.problem, best.problem.slice.chip
    calibration = problem.calibration
    hidden = calibration.overlap
    result = [
        problem.recipe.sentence(),
        f"expected times: calibration of the {calibration.name}, {calibration.provenance}",
        f"bound: dense {problem.recipe.compute} peak of {best.peak / 1e12:.0f} TFLOP/s, nothing waits for anything but its"
        " own resource",
        f"overlap: weight gathers and gradient reductions hide under {hidden['prefetch']:.0%} of the other work, keys and"
        f" values under attention, activations between matmuls under {hidden['critical']:.0%}",
        "attention is causal and counted exactly, half of the book's convention; MFU counts it so, without recomputation",
        "attention never stores its scores (FlashAttention); its backward pass computes them again",
        "gradients are accumulated over microbatches; 1F1B schedule over pipeline stages",
        f"memory: {problem.capacity / 1e9:.1f} GB of HBM per chip may be used; fragmentation and program are not counted",
    ]
    if question.tokens is not None:
        price = price_of(question)
        if price is None:
            result.append(f"no price is known for {chip.name}; give --price to get the cost")
        elif question.price is not None:
            result.append(f"price: {price:g} USD per chip-hour, as given")
        elif chip.price is not None:
            p = chip.price
            result.append(
                f"price: {p.usd_per_hour:g} USD per chip-hour, {p.terms or 'on demand'}, {p.region}, {p.date}"
            )
        result.append("the run never fails or restarts; all chips of the slice are paid for, used or not")
    if question.batch is None:
        result.append("batch: 4M tokens, since none was given")
    if question.seq is None:
        result.append("sequences of 4096 tokens, since no length was given")
    return tuple(result)


def why_slower(best: Estimate, other: Estimate) -> str:
    """Why a runner-up loses: the parts of its time that grow most against the best plan, per token."""
    extra: dict[str, float] = {}
    for sign, e in ((1.0, other), (-1.0, best)):
        chips_seconds = e.plan.chips / e.batch_tokens
        for part in e.step.parts:
            key = _part_title(part)
            extra[key] = extra.get(key, 0.0) + sign * float(part.seconds - part.overlapped) * chips_seconds
    scale = other.batch_tokens / other.plan.chips * 1e3
    slower = other.seconds_per_token / best.seconds_per_token - 1
    grown = sorted(((v * scale, k) for k, v in extra.items() if v > 0), reverse=True)[:2]
    reasons = [f"{k} +{v:.1f} ms" for v, k in grown if v > 0.05]
    if other.plan.chips < best.plan.chips:
        reasons.append(f"{best.plan.chips - other.plan.chips} more chips idle")
    return f"{slower:.1%} slower: {', '.join(reasons) if reasons else 'the sum of small differences'}"


def _part_title(part: Part) -> str:
    if part.kind == "compute" and part.name != "recompute":
        return "matmuls and vector ops"
    return part.name


def named_plan(
    question: Question,
    mesh: Mapping[str, int],
    *,
    microbatches: int | None = None,
    remat: str = "none",
    zero: int = 3,
) -> Plan:
    """The plan of a mesh that the user names: placed as well as can be, with the batch nearest to what was asked."""
    problem = problem_of(question)
    _check_fixed(problem, mesh)
    if remat not in POLICIES:
        raise InputError(f"unknown remat policy {remat!r}; use one of {', '.join(POLICIES)}", field="remat")
    if zero not in ZERO_STAGES:
        raise InputError(f"zero={zero} is not a ZeRO stage; use 1, 2 or 3", field="zero")
    full = {a: int(mesh.get(a, 1)) for a in MESH_AXES}
    chips = math.prod(full.values())
    limits = Limits(zero=(zero,), remat=(remat,), microbatches=microbatches)
    for each in (limits, replace(limits, ignore_memory=True)):
        outcome = search(problem, full, keep=1, limits=each)
        if outcome.found:
            return outcome.found[0].plan
    shown = ", ".join(f"{a}={w}" for a, w in mesh.items())
    if chips > problem.slice.chips or 2 * chips < problem.slice.chips:
        raise InputError(
            f"the mesh {shown} takes {chips} chips of the {problem.slice.chips} of {problem.slice.name}; name ways whose"
            f" product is {problem.slice.chips}, or a slice of {chips} chips",
            field="mesh",
        )
    groups = full["data"] * full["fsdp"] * full["expert"]
    if not Scene(problem).can_batch(np.array([list(full.values())]))[0]:
        raise InputError(
            f"a batch of {problem.batch_tokens:g} tokens is {problem.batch_tokens / problem.seq:g} sequences, which"
            f" {groups} data-parallel groups cannot share evenly within {problem.batch_within:.0%}; change --batch,"
            " or use fewer groups and more context or tensor ways",
            field="batch",
        )
    raise InputError(
        f"the mesh {shown} cannot be laid on {problem.slice.name} with microbatches={microbatches or 'any'} and"
        f" {problem.model.name}: its sizes do not divide evenly; see rooftop plan for meshes that do",
        field="mesh",
    )


def _check_fixed(problem: Problem, fixed: Mapping[str, int]) -> None:
    """Refuse mesh axes that do not exist, and ways that do not divide the model, by name."""
    found = degrees(structure(problem.model, problem.seq, 3, problem.recipe))
    for axis, ways in fixed.items():
        if axis not in MESH_AXES:
            raise InputError(
                f"unknown mesh axis {axis!r}{nearest(axis, MESH_AXES)}; the axes are {', '.join(MESH_AXES)}",
                field="mesh",
            )
        if ways < 1:
            raise InputError(f"{axis}={ways} is not a number of ways; give 1 or more", field="mesh")
        if axis == "data" or found.options(axis, [ways]):
            continue
        known = found.options(axis, range(1, 1025))
        raise InputError(
            f"{axis}={ways} does not divide {problem.model.name} evenly ({_what(axis)}); use"
            f" {', '.join(map(str, known[:-1])) + ' or ' if len(known) > 1 else ''}{known[-1]}",
            field="mesh",
        )


def _what(axis: str) -> str:
    return {
        "tensor": "heads, feed-forward and vocabulary must divide",
        "fsdp": "d_model must divide",
        "context": "the sequence and d_model must divide",
        "expert": "the number of experts must divide",
        "pipeline": "there can be no more stages than layers",
    }[axis]


def _no_plan(problem: Problem, outcome: Outcome, fixed: Mapping[str, int]) -> RooftopError:
    """Say by how much the nearest plan misses, and what would fit (tried, not guessed)."""
    name, where = problem.model.name, problem.slice
    closest = outcome.closest
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
        f"{name} does not fit on {where.name}: the plan that needs the least memory ({mesh}, remat {closest.plan.remat})"
        f" takes {need / 1e9:.1f} GB of {have / 1e9:.1f} GB per chip, {(need - have) / 1e9:.1f} GB too much; {fitting}",
        field="slice",
    )


def _what_fits(problem: Problem, fixed: Mapping[str, int]) -> str:
    options: list[str] = []
    if problem.recipe.moments != "bf16" or problem.recipe.master:
        lean = replace(problem, recipe=replace(problem.recipe, moments="bf16", master=None))
        if search(lean, fixed, keep=1).found:
            options.append("optimizer states in bf16 (--optimizer-dtype bf16)")
    for name in standard_slices(problem.slice.chip.name):
        larger = slice_of(name)
        if larger.chips > problem.slice.chips and search(replace(problem, slice=larger), fixed, keep=1).found:
            options.append(f"a slice of {larger.chips} chips ({larger.name})")
            break
    if not options:
        return "no larger standard slice fits either: use a smaller model, a shorter --seq or a chip with more memory"
    return f"what would fit: {' or '.join(options)}"
