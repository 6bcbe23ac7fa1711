"""A plan's prediction beside what a compiler made of its step: FLOPs, collectives and peak memory, part by part.

What is compared of collectives are the bytes that a chip must send (`moved_bytes`), which do not depend on whether a compiler
writes an all-reduce, or a reduce-scatter and an all-gather, or a chain of permutes. Differences that follow from how the program
is written are predicted as well, and shown as such; what is left is `difference`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from rooftop.costing import outer_axes
from rooftop.errors import InputError
from rooftop.lower._attention import BLOCK, computed_share
from rooftop.lower._compile import Compiled, compile_step
from rooftop.lower._hlo import list_hlo
from rooftop.lower._listing import Listing, moved_bytes
from rooftop.lower._mesh import ways_of
from rooftop.lower._semantics import mask_of
from rooftop.shown import Shown
from rooftop.training import Estimate, Ledger, Plan, Problem, estimate, ledger
from rooftop.transformer import Attention, Programs, programs

#: Largest part of a difference that counts as agreement: FLOPs, bytes of a mesh axis, peak memory.
TOLERANCE = {"flops": 0.01, "bytes": 0.05, "memory": 0.10}
#: Collectives this small (a norm's gradient, a loss) are not compared.
_SMALL = 0.005


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of both: FLOPs or bytes of a chip in a step, and of collectives how often and how many go on beside work.

    known: what the plan does not count and the compiled program is known to add; why: the sentences that explain.
    """

    name: str
    predicted: float
    compiled: float
    known: float = 0.0
    why: tuple[str, ...] = ()
    counts: tuple[float, float] = (0.0, 0.0)
    asynchronous: float = 0.0  # share of the compiled bytes

    @property
    def difference(self) -> float:
        """(compiled - predicted - known) over what is predicted and known; nothing of nothing differs by nothing."""
        expected = self.predicted + self.known
        if expected:
            return (self.compiled - expected) / expected
        return math.inf if self.compiled else 0.0


@dataclass(frozen=True, slots=True)
class Check(Shown):
    """One plan under one compiler. flops: by part of the model; bytes: by mesh axis; kinds: by axis and kind of collective."""

    estimate: Estimate
    compiled: Compiled
    flops: tuple[Row, ...] = ()
    bytes: tuple[Row, ...] = ()
    kinds: tuple[Row, ...] = ()
    memory: Row = field(default_factory=lambda: Row("memory", 0.0, 0.0))
    listing: Listing | None = None

    @property
    def total(self) -> Row:
        """All FLOPs."""
        why = tuple(dict.fromkeys(text for row in self.flops for text in row.why))
        return Row(
            "all", sum(r.predicted for r in self.flops), sum(r.compiled for r in self.flops),
            sum(r.known for r in self.flops), why,
        )  # fmt: skip

    @property
    def agrees(self) -> bool:
        """Whether the compiler takes the plan and every quantity that it makes comparable agrees."""
        return self.compiled.accepted and not self.differing

    @property
    def differing(self) -> tuple[str, ...]:
        """What does not agree."""
        if not self.compiled.accepted:
            return ("the compiler refuses the plan",)
        found = []
        if abs(self.total.difference) > TOLERANCE["flops"]:
            found.append("FLOPs")
        if self.compiled.target.kind != "simulated":
            found += [f"bytes over {r.name}" for r in self.bytes if abs(r.difference) > TOLERANCE["bytes"]]
            if abs(self.memory.difference) > TOLERANCE["memory"]:
                found.append("peak memory")
        return tuple(found)


def check(problem: Problem, plan: Plan, kind: str, *, seconds: float = 600.0, bytes: float = 16e9) -> Check:
    """Compile a plan's step and compare. See `compile_step` for what is raised; InputError for documents in sequences."""
    if problem.documents is not None:
        raise InputError(
            "the reference Transformer knows no ends of documents; check a plan that was made without --lengths",
            field="lengths",
        )
    compiled = compile_step(problem, plan, kind, seconds=seconds, bytes=bytes)
    return compared(problem, plan, compiled)


def compared(problem: Problem, plan: Plan, compiled: Compiled) -> Check:
    """A plan beside its compiled step."""
    predicted = estimate(problem, plan)
    if not compiled.accepted:
        return Check(predicted, compiled)
    parts = programs(problem.model, problem.seq)
    kv_heads = _kv_heads(parts)
    listing = list_hlo(compiled.text, mesh=ways_of(plan, kv_heads), name=problem.model.name)
    counted = ledger(problem, plan)
    held = Row("peak memory", float(predicted.step.memory_bytes), compiled.peak)
    return Check(
        predicted,
        compiled,
        _flops(problem, plan, counted, listing, parts),
        *_bytes(compiled, counted, listing),
        held,
        listing,
    )


def _kv_heads(parts: Programs) -> int:
    return math.gcd(*(p.program.axes["K"] for p in parts.blocks if isinstance(p.program.axes.get("K"), int)))  # type: ignore[arg-type]


def _flops(problem: Problem, plan: Plan, counted: Ledger, listing: Listing, parts: Programs) -> tuple[Row, ...]:
    """By part of the model. The kernel of attention computes whole blocks of keys, where the plan counts what is seen."""
    part_of = {op.name: op.part for program, _ in parts.every for op in program.ops}
    predicted: dict[str, float] = defaultdict(float)
    known: dict[str, float] = defaultdict(float)
    found: dict[str, float] = defaultdict(float)
    why: dict[str, dict[str, None]] = defaultdict(dict)
    shares = {}
    for block, layer in zip(parts.order, problem.model.stack, strict=True):
        program = parts.blocks[block].program
        if program.name in shares:
            continue
        mask = mask_of(layer.mixer) if isinstance(layer.mixer, Attention) else None
        seen = next((op.fraction for op in program.ops if op.fused and op.kind == "einsum"), 1.0)
        split = plan.mesh.get("context", 1) > 1
        shares[program.name] = (
            computed_share(mask, problem.seq, BLOCK, split) / seen if mask is not None else 1.0 / seen
        )
    for m in counted.multiplies:
        predicted[m.part] += m.flops
        if m.fused and shares.get(m.program, 1.0) != 1.0:
            known[m.part] += m.flops * (shares[m.program] - 1)
            why[m.part][
                "attention computes whole blocks of keys, of which the plan counts the points that are seen"
            ] = None
    for op in listing.ops:
        if op.flops:
            named = next((part_of[n] for n in op.scope.split("/") if n in part_of), _wrapped(op.scope, part_of))
            found[named] += op.times * op.flops
    return tuple(
        Row(part, predicted[part], found[part], known[part], tuple(why[part]))
        for part in dict.fromkeys([*predicted, *found])
    )


def _wrapped(scope: str, part_of: Mapping[str, str]) -> str:
    """The part of an op whose name is inside of a transformation's: jvp(lm_head)."""
    return next((part for name, part in part_of.items() if f"({name})" in scope), "other")


_Key = tuple[str, str]


def _bytes(compiled: Compiled, counted: Ledger, listing: Listing) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """By mesh axis, and by mesh axis and kind of collective."""
    planned: dict[_Key, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for c in counted.collected:
        row = planned["+".join(c.axes), c.kind]
        row[0] += c.count
        row[1] += c.count * moved_bytes(c.kind, c.bytes, c.size)
    found: dict[_Key, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    wide: dict[str, float] = defaultdict(float)
    for op in listing.ops:
        if op.transfer is None:
            continue
        axis = "+".join(outer_axes(op.transfer.axes)) or "all devices"
        moved = op.times * op.transfer.moved
        row = found[axis, op.transfer.kind]
        row[0] += op.times
        row[1] += moved
        row[2] += moved * op.transfer.asynchronous
        if op.dtype == "fp32":
            wide[axis] += moved
    most = max([v[1] for v in (*planned.values(), *found.values())], default=0.0)
    kinds = []
    for axis, kind in dict.fromkeys([*planned, *found]):
        p, f = planned[axis, kind], found[axis, kind]
        if max(p[1], f[1]) >= _SMALL * most:
            share = f[2] / f[1] if f[1] else 0.0
            kinds.append(Row(f"{axis}: {kind.replace('_', '-')}", p[1], f[1], counts=(p[0], f[0]), asynchronous=share))
    rows = []
    for axis in dict.fromkeys(a for a, _ in [*planned, *found]):
        p1 = sum(v[1] for (a, _), v in planned.items() if a == axis)
        f1 = sum(v[1] for (a, _), v in found.items() if a == axis)
        if max(p1, f1) >= _SMALL * most:
            share = sum(v[2] for (a, _), v in found.items() if a == axis) / f1 if f1 else 0.0
            rows.append(Row(axis, p1, f1, why=_why(compiled, axis, planned, found, wide[axis]), asynchronous=share))
    return tuple(rows), tuple(kinds)


def _why(
    compiled: Compiled, axis: str, planned: Mapping[_Key, list[float]], found: Mapping[_Key, list[float]], wide: float
) -> tuple[str, ...]:
    """What the compiler did otherwise on an axis."""

    def of(table: Mapping[_Key, list[float]], kind: str, index: int = 1) -> float:
        return table[axis, kind][index] if (axis, kind) in table else 0.0

    every = sum(v[1] for (a, _), v in found.items() if a == axis)
    reasons = []
    if wide > 0.01 * every:
        reasons.append(f"{wide / every:.0%} of the bytes are in fp32" + (
            ", to which the CPU compiler widens bf16" if compiled.target.kind == "simulated" else ": sums that it does not round first"
        ))  # fmt: skip
    extra = of(found, "all_reduce") - of(planned, "all_reduce")
    if extra > 0.01 * every and of(planned, "reduce_scatter") > of(found, "reduce_scatter"):
        reasons.append("all-reduces, of which each chip keeps its part, stand for reduce-scatters")
    if of(found, "permute") > 0.01 * every and of(planned, "permute") == 0:
        reasons.append("permutes carry arrays from chip to chip, under matmuls or between two shardings")
    if of(found, "all_to_all") > 0.01 * every and of(planned, "all_to_all") == 0:
        reasons.append("all-to-alls change one split axis for another, which the plan does otherwise")
    more = of(found, "all_gather") - of(planned, "all_gather")
    if more > 0.02 * every and wide < 0.02 * every:
        reasons.append(
            f"{more / every:.0%} of the bytes are arrays that it gathers once more than the plan, for several readers"
        )
    elif -more > 0.02 * every:
        reasons.append(
            f"it keeps gathered arrays for later readers that the plan gathers again ({-more / every:.0%} of the bytes)"
        )
    return tuple(reasons)
