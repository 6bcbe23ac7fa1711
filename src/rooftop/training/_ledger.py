"""What a step does, counted and not timed: FLOPs by op and pass, collectives one by one. For comparison with real programs."""

from __future__ import annotations

from dataclasses import dataclass

from rooftop.costing import outer_axes
from rooftop.training._plan import Plan, Problem, environment
from rooftop.training._structure import Compiled


@dataclass(frozen=True, slots=True)
class Multiply:
    """The matrix unit's FLOPs of one op in one pass (forward, recompute, backward), of a step on one chip."""

    program: str
    op: str
    part: str
    phase: str
    flops: float
    fused: bool  # inside of an attention kernel


@dataclass(frozen=True, slots=True)
class Collected:
    """One collective: how often a step does it, bytes of the whole array of a group each time, members of a group.

    what: weights, gradients, activations; phase: forward, recompute, backward, update.
    """

    program: str
    title: str
    kind: str
    axes: tuple[str, ...]  # as users name them, those of more than one way
    what: str
    phase: str
    count: float
    bytes: float
    size: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """One step on one chip, all layers on it (of a pipeline: of every stage, divided by the stages)."""

    multiplies: tuple[Multiply, ...]
    collected: tuple[Collected, ...]


def ledger(problem: Problem, plan: Plan) -> Ledger:
    """Count a plan's step. Layers of a pipeline count as on an even stage; the ends of the model count whole."""
    found = problem.structure(plan.choices)
    axes, inner = environment(plan.mesh, plan.sequences, found.kv_heads, dict(found.axes))
    stages = plan.mesh.get("pipeline", 1)
    multiplies: list[Multiply] = []
    collected: list[Collected] = []
    for program in found.programs:
        whole = program in (found.embed, found.head)
        copies = found.counts[program.name] / (1 if whole else stages)
        values = [float(v) for v in program.evaluate(axes, inner)]
        policy = "none" if whole else plan.choices.remat
        each = copies * plan.microbatches
        for work in program.works:
            flops = each * sum(values[i] for i in work.flops)
            if not flops:
                continue
            multiplies.append(Multiply(program.name, work.name, work.part, work.phase, flops, work.fused))
            if work.phase == "forward" and any(op in program.recomputed[policy] for op in work.ops):
                multiplies.append(Multiply(program.name, work.name, work.part, "recompute", flops, work.fused))
        collected += _collected(program, values, inner, policy, copies, plan.microbatches)
    return Ledger(tuple(multiplies), tuple(collected))


def _collected(
    program: Compiled, values: list[float], inner: dict[str, object], policy: str, copies: float, microbatches: int
) -> list[Collected]:
    result = []
    rows = [(t, t.phase, copies * microbatches) for t in program.transfers]
    rows += [(program.transfers[i], "recompute", copies * microbatches) for i in sorted(program.moved_again[policy])]
    rows += [(t, "update", copies) for t in program.updates]
    for transfer, phase, count in rows:
        size = 1
        for axis in transfer.axes:
            size *= int(inner[axis])  # type: ignore[call-overload]
        bytes = sum(values[i] for i in transfer.bytes)
        if size <= 1 or not bytes:
            continue
        what = (
            "activations"
            if transfer.overlap != "prefetch"
            else "gradients"
            if transfer.kind != "all_gather"
            else "weights"
        )
        used = outer_axes([a for a in transfer.axes if int(inner[a]) > 1])  # type: ignore[call-overload]
        result.append(Collected(program.name, transfer.title, transfer.kind, used, what, phase, count, bytes, size))
    return result
