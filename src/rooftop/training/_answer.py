"""The answers of the planner: a plan with everything that is known of it, the run, the runners-up, the assumptions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from rooftop.costing import MESH_AXES, batch_groups
from rooftop.errors import InputError
from rooftop.shown import Shown
from rooftop.training._choices import DEFAULT, Choices
from rooftop.training._evaluate import Estimate, estimate
from rooftop.training._failures import goodput
from rooftop.training._keep import Found
from rooftop.training._laws import TOKENS_PER_PARAMETER, chinchilla_tokens, six_nd
from rooftop.training._plan import Plan, Problem, environment
from rooftop.training._question import Question, price_of, problem_of
from rooftop.training._refuse import check_fixed, no_plan
from rooftop.training._remat import AUTO, names_of
from rooftop.training._run import Run, chip_hours, cost, energy, run_flops, run_seconds
from rooftop.training._schedule import rules
from rooftop.training._search import Limits, Outcome, Scene, search
from rooftop.training._step import Part, states_of
from rooftop.transformer import MoE, parameters
from rooftop.units import dtype_bytes, format_bytes


@dataclass(frozen=True, slots=True)
class Answer(Shown):
    """What `rooftop plan` and `rooftop step` say."""

    question: Question
    best: Estimate
    alternatives: tuple[Estimate, ...]
    reasons: tuple[str, ...]
    run: Run | None
    outcome: Outcome | None
    assumptions: tuple[str, ...]
    #: the plans that no other beats in time, memory and chips at once, where they were asked for
    pareto: tuple[Found, ...] | None = None


def plan(
    question: Question,
    *,
    fixed: Mapping[str, int] | None = None,
    limits: Limits | None = None,
    keep: int = 6,
    pareto: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Answer:
    """Search the best plan. Raises NoAnswer with what misses, and what would fit, when no plan does.

    pareto: also find all plans that no other beats in time per token, memory and chips at once.
    """
    problem = problem_of(question)
    layouts = {c.on(fixed or {}) for c in (limits or Limits()).layouts}
    check_fixed(problem, fixed or {}, layouts.pop() if len(layouts) == 1 else DEFAULT.on(fixed or {}))
    _check_idle(fixed or {}, limits or Limits())
    outcome = search(problem, fixed, keep=keep, limits=limits, progress=progress)
    if not outcome.found:
        raise no_plan(problem, outcome, fixed or {})
    front = search(problem, fixed, limits=limits, front=True, progress=progress).found if pareto else None
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
        pareto=None if front is None else tuple(front),
    )


def _check_idle(fixed: Mapping[str, int], limits: Limits) -> None:
    """Refuse choices about a mesh axis that the user fixes to one way."""
    for name, values in limits.allowed.items():
        for value in values:
            replace(DEFAULT, **{name: value}).check(search=True).check_used({**dict.fromkeys(MESH_AXES, 2), **fixed})


def schedule_text(plan: Plan) -> str:
    """The pipeline schedule of a plan in words."""
    chosen = plan.choices
    kind = f"{chosen.schedule}, {chosen.chunks} interleaved chunks" if chosen.chunks > 1 else chosen.schedule
    for layers, what in ((chosen.embed_layers, "embedding"), (chosen.head_layers, "head")):
        kind += f", the {what} counts as {layers} layer{'s' * (layers > 1)}" if layers else ""
    return f"schedule {kind}"


def offload_text(plan: Plan) -> str:
    """What lies in host memory, in words."""
    names = {"optimizer": "optimizer states", "params": "weights", "activations": "saved activations"}
    there = [text for name, text in names.items() if name in plan.choices.offloads]
    return f"{' and '.join(filter(None, (', '.join(there[:-1]), there[-1])))} in host memory"


def remat_text(plan: Plan) -> str:
    """What is recomputed, in words."""
    kept = names_of(plan.choices.remat)
    return f"remat keeps {', '.join(kept)}" if kept else f"remat {plan.choices.remat}"


def context_text(plan: Plan) -> str:
    """What context ways do for attention, in words."""
    kind = {"ring": "keys around a ring", "gather": "keys gathered", "ulysses": "tokens swapped for heads"}
    chosen = plan.choices
    return kind[chosen.context_kind] + ("" if chosen.causal == "balanced" else ", contiguous tokens")


def step_of(question: Question, the_plan: Plan) -> Answer:
    """The same for one plan that the user names."""
    problem = problem_of(question)
    started = time.perf_counter()
    best = estimate(problem, the_plan)
    one = Outcome(plans=1, timed=1, seconds=time.perf_counter() - started)
    return Answer(question, best, (), (), run_of(question, best), one, assumptions(question, best))


def named_plan(
    question: Question,
    mesh: Mapping[str, int],
    *,
    microbatches: int | None = None,
    choices: Choices = DEFAULT,
) -> Plan:
    """The plan of a mesh that the user names: placed as well as can be, with the batch nearest to what was asked."""
    problem = problem_of(question)
    choices = choices.on(mesh).check(search=True).check_used(mesh)
    check_fixed(problem, mesh, choices.layout)
    full = {a: int(mesh.get(a, 1)) for a in MESH_AXES}
    chips = math.prod(full.values())
    only = {name: (value,) for name, value in asdict(choices).items()}
    limits = Limits(only, microbatches=microbatches)
    # where no set of arrays fits, the plan is shown with the smallest
    least = {**only, "remat": ("full",)} if choices.remat == AUTO else only
    for each in (limits, Limits(least, microbatches=microbatches, ignore_memory=True)):
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
    groups = batch_groups(full)
    if not Scene(problem, limits).batch.splits(np.array([groups]))[0]:
        raise InputError(
            f"a batch of {problem.batch_tokens:g} tokens is {problem.batch_tokens / problem.seq:g} sequences, which"
            f" {groups} data-parallel groups cannot share evenly within {problem.batch_within:.0%}; change --batch,"
            " or use fewer groups and more context or tensor ways",
            field="batch",
        )
    compiled, m = problem.structure(choices), microbatches
    for ok, rule in rules(choices, compiled.layers, full, math.lcm(2 * full["pipeline"], 2) if m is None else m):
        if not ok:
            raise InputError(f"the mesh {shown} does not allow {choices.schedule}: {rule}", field="schedule")
    raise InputError(
        f"the mesh {shown} cannot be laid on {problem.slice.name} with microbatches={microbatches or 'any'} and"
        f" {problem.model.name}: its sizes do not divide evenly; see rooftop plan for meshes that do",
        field="mesh",
    )


def run_of(question: Question, best: Estimate) -> Run | None:
    """The whole run, if the question says how many tokens it has."""
    if question.tokens is None:
        return None
    if question.tokens < best.useful_tokens:
        raise InputError(
            f"a run of {question.tokens:g} tokens is shorter than one step of {best.useful_tokens:.0f}; give more --tokens",
            field="tokens",
        )
    seconds = run_seconds(question.tokens, best.useful_tokens, best.step.expected)
    where = best.problem.slice
    lost, reserve = None, 0
    if question.failures is not None:
        lost = goodput(question.failures.writing(checkpoint_size(best)), where.chips, seconds)
        seconds = seconds / lost.fraction
        reserve = question.failures.spares or 0
    hours = chip_hours(seconds, where.chips + reserve)
    price = price_of(question)
    return Run(
        tokens=question.tokens,
        steps=question.tokens / best.useful_tokens,
        seconds=seconds,
        chip_hours=hours,
        usd=None if price is None else cost(hours, price),
        flops=run_flops(best.flops_per_token, question.tokens),
        joules=energy(seconds, where.chips, where.chip.power_watts),
        goodput=lost,
        six_nd=float(six_nd(parameters(best.problem.model).active, question.tokens)),
    )


def checkpoint_size(best: Estimate) -> float:
    """Bytes of a checkpoint: every parameter with its optimizer states, the weights once (in the master copy if there is one)."""
    problem, recipe = best.problem, best.problem.recipe
    compiled = problem.structure(DEFAULT)
    axes, inner = environment(dict.fromkeys(MESH_AXES, 1), 1, compiled.kv_heads, compiled.axes)
    values = {c.name: c.evaluate(axes, inner, c.held) for c in compiled.programs}
    weights = 0.0 if recipe.master else dtype_bytes(recipe.weights)
    return float(states_of(compiled, values, DEFAULT, 1)["optimizer"]) + parameters(problem.model).total * weights


def assumptions(question: Question, best: Estimate) -> tuple[str, ...]:
    """What the answer takes for granted, one sentence each."""
    problem, chip = best.problem, best.problem.slice.chip
    calibration = problem.calibration
    hidden = calibration.overlap
    result = [
        problem.recipe.sentence(),
        f"expected times: calibration of the {calibration.name}, {calibration.provenance}",
        f"bound: dense {problem.recipe.low_rate or problem.recipe.compute} peak of {best.peak / 1e12:.0f} TFLOP/s, nothing waits for anything but its"
        " own resource",
        f"overlap: weight gathers and gradient reductions hide under {hidden['prefetch']:.0%} of the other work, keys and"
        f" values under attention, activations between matmuls under {hidden['critical']:.0%}",
        "attention is causal and counted exactly, half of the book's convention; MFU counts it so, without recomputation",
        "attention never stores its scores (FlashAttention); its backward pass computes them again",
        f"gradients are accumulated over microbatches; {schedule_text(best.plan)} over pipeline stages",
        *_of_documents(problem),
        *_of_experts(problem.model.experts),
        *_of_hosts(best),
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
        f = question.failures
        if f is None:
            result.append("the run never fails or restarts (see --failures)")
        else:
            f = f.writing(checkpoint_size(best))
            result.append(
                f"failures: one in {f.chip_hours:,.0f} chip-hours ({f.source}); a checkpoint stops the run for"
                f" {f.checkpoint_seconds:.3g} s, a restart takes {f.restart_seconds:g} s"
            )
            if f.storage_bandwidth is not None:
                result.append(
                    f"checkpoint: {format_bytes(checkpoint_size(best))} of weights and optimizer states, written at"
                    f" {format_bytes(f.storage_bandwidth)}/s while the run stands"
                )
            if f.spares is not None:
                result.append(
                    f"every failure takes a chip out for {f.repair_seconds / 3600:g} h; the run stands while more than"
                    f" {f.spares} are out; those in reserve are paid for"
                )
        result.append("all chips of the slice are paid for, used or not")
        result.append(f"energy: {chip.power_watts:g} W a chip throughout; hosts, network and cooling come on top")
    if question.tokens is not None and question.tokens == chinchilla_tokens(problem.model):
        result.append(f"tokens: {TOKENS_PER_PARAMETER:g} for each parameter that a token meets (Hoffmann et al., 2022)")
    if question.batch is None:
        result.append("batch: 4M tokens, since none was given")
    if question.seq is None:
        result.append("sequences of 4096 tokens, since no length was given")
    return tuple(result)


def _of_documents(problem: Problem) -> tuple[str, ...]:
    if problem.documents is None:
        return ()
    if problem.packing == "padded":
        return ("documents: each is padded to a sequence, and padding is computed like tokens; a longer one is cut",)
    return (
        "documents: laid end to end and cut where a sequence ends; attention stays inside of them, and in every microbatch all"
        " chips wait for the one with the most of it, as if pieces came at random",
    )


def _of_hosts(best: Estimate) -> tuple[str, ...]:
    plan, chip, e = best.plan, best.problem.slice.chip, best.problem.calibration.network_efficiency("pcie")
    if not plan.choices.offloads:
        return ()
    return (
        f"{offload_text(plan)}: {chip.pcie_bandwidth / 1e9:g} GB/s a chip over PCIe each way, {e:.0%} of it achieved; buffers of two"
        f" blocks stay on the chip, the update runs there; a host has {format_bytes(chip.host_memory_bytes)} for"
        f" {chip.chips_per_host} chips",
    )


def _of_experts(experts: MoE | None) -> tuple[str, ...]:
    if experts is None:
        return ()
    slots = experts.capacity_factor
    load = (
        "the router loads them evenly"
        if slots == 1
        else f"each has slots for {slots:g} times its fair share, all computed"
    )
    return (f"experts: a token meets {experts.active} of {experts.experts}, {load} (see --capacity-factor)",)


def why_slower(best: Estimate, other: Estimate) -> str:
    """Why a runner-up loses: the parts of its time that grow most against the best plan, per token."""
    slower = other.seconds_per_token / best.seconds_per_token - 1
    reasons = [f"{name} +{seconds * 1e3:.1f} ms" for seconds, name in grown_parts(best, other)]
    if other.plan.chips < best.plan.chips:
        reasons.append(f"{best.plan.chips - other.plan.chips} more chips idle")
    return f"{slower:.1%} slower: {', '.join(reasons) if reasons else 'the sum of small differences'}"


def grown_parts(best: Estimate, other: Estimate, most: int = 2) -> list[tuple[float, str]]:
    """(seconds of the other's step, name) of the parts that take most beyond the chip-time per token of the best."""
    extra: dict[str, float] = {}
    for sign, e in ((1.0, other), (-1.0, best)):
        chip_seconds = e.plan.chips / e.useful_tokens
        for part in e.step.parts:
            key = _part_title(part)
            extra[key] = extra.get(key, 0.0) + sign * float(part.seconds - part.overlapped) * chip_seconds
    scale = other.useful_tokens / other.plan.chips
    grown = sorted(((v * scale, k) for k, v in extra.items() if v * scale > 5e-5), reverse=True)
    return grown[:most]


def _part_title(part: Part) -> str:
    if part.kind == "compute" and part.name not in ("recompute", "orthogonalisation"):
        return "matmuls and vector ops"
    return part.name
