"""One plan, evaluated with plain numbers or with traced ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rooftop.costing import MESH_AXES, PLACEMENT_ORDER, Kernel, Matmuls, Rates, kernels, links_of, slowest_share
from rooftop.formula import Number, Traced, given, maximum, named
from rooftop.roofline import Placement
from rooftop.training._estimate import local, moved
from rooftop.training._offload import crossings
from rooftop.training._plan import Plan, Problem, environment
from rooftop.training._run import utilisation
from rooftop.training._schedule import stages_of
from rooftop.training._step import Evaluated, Part, Step, memory_of, states_of, step
from rooftop.training._structure import Structure
from rooftop.transformer import training_flops_per_token, with_capacity


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
        """Tokens of a step, padding among them."""
        return self.plan.batch_sequences * self.problem.seq

    @property
    def useful_tokens(self) -> float:
        """Tokens of documents in a step."""
        return self.batch_tokens * self.problem.filled

    @property
    def useful_flops(self) -> float:
        """FLOPs that the model asks for in a step, without recomputation."""
        return self.flops_per_token * self.useful_tokens

    @property
    def wasted_flops(self) -> float:
        """FLOPs of a step that padding takes, without recomputation."""
        problem = self.problem
        if problem.filled == 1:
            return 0.0
        return useful_flops_per_token(replace(problem, documents=None)) * self.batch_tokens - self.useful_flops

    @property
    def bottleneck(self) -> str:
        """The resource whose lower bound is the largest: compute, hbm or a network axis."""
        return max(self.step.resources, key=lambda name: self.step.resources[name])

    @property
    def mfu(self) -> tuple[float, float]:
        """Model FLOPs utilisation of the chips used: (at the bound, expected)."""

        def at(seconds: Number) -> float:
            return float(utilisation(self.flops_per_token, self.useful_tokens, seconds, self.plan.chips, self.peak))

        return at(self.step.bound), at(self.step.expected)

    @property
    def tokens_per_second_per_chip(self) -> float:
        """Expected throughput of each chip used, in tokens of documents."""
        return float(self.useful_tokens / self.step.expected / self.plan.chips)

    @property
    def seconds_per_token(self) -> float:
        """What plans are ranked by; padding counts as tokens, as it does in all plans."""
        return float(self.step.expected / self.batch_tokens)

    @property
    def fits(self) -> bool:
        """Whether the memory suffices, that of the chip and the host's."""
        return bool(
            self.step.memory_bytes <= self.problem.capacity and self.step.host_bytes <= self.problem.host_capacity
        )


def estimate(problem: Problem, the_plan: Plan) -> Estimate:
    """Evaluate one plan with plain numbers."""
    result = evaluate(problem, the_plan)
    return Estimate(problem, the_plan, result, useful_flops_per_token(problem), problem.peak)


def useful_flops_per_token(problem: Problem) -> float:
    """FLOPs of training that the model asks for, for a token of a document: attention beyond it, and slots of experts beyond a
    token's fair share, are not useful.
    """
    model = problem.model if problem.model.experts is None else with_capacity(problem.model, 1.0)
    return training_flops_per_token(model, problem.seq, problem.pieces)


def evaluate(
    problem: Problem,
    the_plan: Plan,
    *,
    traced: bool = False,
    with_parts: bool = True,
    compiled: Structure | None = None,
) -> Step:
    """The step of one plan; traced=True gives quantities that can be explained, from the same functions.

    Without parts, numbers of the problem's hardware and calibration may be arrays or traced: so is the step then. compiled: the
    structure of the model instead of its own, with numbers that are traced.
    """
    compiled = compiled or problem.structure(the_plan.choices, fold=not traced)
    rates = problem.rates
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
    links = links_of(placement, inner, compiled.groups, problem.calibration, problem.copies)
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
        crossings(compiled, values, the_plan.choices),
    )
    memory = memory_of(compiled, values, the_plan.choices, microbatches, inner["pipeline"])
    calibration = problem.calibration
    overlap: Mapping[str, Number] = calibration.overlap
    overhead: Number = calibration.step_overhead
    if traced:
        told = f"calibration: {calibration.name}"
        overlap = {kind: given(share, f"overlap_{kind}", "", told) for kind, share in overlap.items()}
        overhead = given(overhead, "step overhead", "s", told)
    result = step(
        evaluated, rates, links, overlap, overhead, the_plan.choices, microbatches,
        inner["pipeline"], memory, states_of(compiled, values, the_plan.choices, inner["pipeline"]),
        with_parts=with_parts,
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


def step_kernels(e: Estimate) -> tuple[Kernel, ...]:
    """Every kernel of a chip in a step of an estimate, on a pipeline stage with the most layers.

    Embedding and head are listed although with several stages no chip has both. What is recomputed is a phase of its own.
    """
    problem, plan = e.problem, e.plan
    compiled = problem.structure(plan.choices)
    mesh: dict[str, Number] = {a: plan.mesh.get(a, 1) for a in MESH_AXES}
    axes, inner = environment(mesh, plan.sequences, compiled.kv_heads, compiled.axes)
    kinds = stages_of(compiled.layers, inner["pipeline"], plan.microbatches, plan.choices)
    most = max(float(kind.share * kind.copies) for kind in kinds)
    blocks = {c.name for c in compiled.blocks}
    result: list[Kernel] = []
    for c in compiled.programs:
        share = most if c.name in blocks else 1.0
        count = plan.microbatches * compiled.counts[c.name] * share
        again = c.recomputed[plan.choices.remat]
        for work, kernel in zip(c.works, kernels(c, c.evaluate(axes, inner), problem.rates, count), strict=True):
            result.append(kernel)
            if kernel.phase == "forward" and not again.isdisjoint(work.ops):
                result.append(replace(kernel, phase="recompute"))
    return tuple(result)


def attention_imbalance(problem: Problem, plan: Plan) -> float:
    """Work of attention in a microbatch on the chip that has most of it, over the mean, where documents differ in length."""
    compiled = problem.structure(plan.choices)
    axes, inner = environment(plan.mesh, plan.sequences, compiled.kv_heads, dict(compiled.axes))
    shares = [1.0]
    for c in compiled.programs:
        values = c.evaluate(axes, inner)
        uneven = (w.uneven for w in c.works if w.uneven is not None)
        shares += [float(slowest_share(u.spread, u.most, values[u.tokens], values[u.chips])) for u in uneven]
    return max(shares)


def _only(axes: str, active: set[str]) -> str:
    kept = [axis for axis in axes.split("+") if axis in active]
    return "+".join(kept) or axes


def _traced_rates(problem: Problem, rates: Rates) -> Rates:
    chip, calibration = problem.slice.chip, problem.calibration
    sheet = f"data sheet of {chip.name}"
    told = f"calibration: {calibration.name} ({calibration.provenance})"

    def traced(of: Matmuls, suffix: str, what: str) -> Matmuls:
        top = given(of.peak, f"C{suffix}", "FLOP/s", f"{sheet}, dense {what}")
        efficiency = given(of.expected / of.peak, f"e_matmul{suffix}", "", told)
        overhead = given(of.overhead, f"overhead_matmul{suffix}", "s", told)
        return Matmuls(top, named(top * efficiency, f"C{suffix}_achieved", "FLOP/s"), overhead)

    matmuls = traced(rates.matmuls, "", problem.recipe.compute)
    hbm = given(rates.hbm, "W_hbm", "B/s", sheet)
    host = given(rates.host, "W_pcie", "B/s", f"{sheet}, one way")
    return replace(
        rates,
        peak=matmuls.peak,
        by_weight={d: traced(m, f"_{d}", str(problem.recipe.low_rate)) for d, m in rates.by_weight.items()},
        hbm=hbm,
        matmuls=matmuls,
        attention_expected=given(rates.attention_expected, "C_attention", "FLOP/s", told),
        unhidden=given(rates.unhidden, "unhidden", "", told),
        hbm_expected=named(hbm * given(calibration.hbm, "e_hbm", "", told), "W_hbm_achieved", "B/s"),
        op_overhead=given(calibration.op_overhead, "overhead", "s", told),
        host=host,
        host_expected=named(
            host * given(calibration.network_efficiency("pcie"), "e_pcie", "", told), "W_pcie_achieved", "B/s"
        ),
    )
