"""Answers of the planner as a terminal page and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rooftop.training import Answer, Curve, Estimate, Run
from rooftop.units import format_bytes, format_count, format_seconds, format_usd
from rooftop.views._terminal import bar, group, heading, lines, table

if TYPE_CHECKING:
    from rich.console import RenderableType


def answer_json(answer: Answer) -> dict[str, Any]:
    """The keys that scripts may rely on; seconds, bytes and USD."""
    question = answer.best.problem
    result: dict[str, Any] = {
        "model": question.model.name,
        "slice": question.slice.name,
        "seq": question.seq,
        "best": estimate_json(answer.best),
        "alternatives": [
            {**estimate_json(e), "reason": reason}
            for e, reason in zip(answer.alternatives, answer.reasons, strict=True)
        ],
        "run": None if answer.run is None else run_json(answer.run),
        "searched": None,
        "assumptions": list(answer.assumptions),
    }
    if answer.outcome is not None:
        result["searched"] = {"plans": answer.outcome.plans, "seconds": answer.outcome.seconds}
    return result


def estimate_json(e: Estimate) -> dict[str, Any]:
    """One plan with its numbers."""
    bound_mfu, expected_mfu = e.mfu
    return {
        "mesh": dict(e.plan.mesh),
        "placement": [
            {"network": d.network, "size": d.size, "factors": dict(f)}
            for d, f in zip(e.problem.dimensions, e.plan.factors, strict=False)
        ],
        "chips": e.plan.chips,
        "batch_tokens": e.batch_tokens,
        "microbatches": e.plan.microbatches,
        "microbatch_sequences": e.plan.sequences,
        **asdict(e.plan.choices),
        "fits": e.fits,
        "step_seconds": {"bound": float(e.step.bound), "expected": float(e.step.expected)},
        "bottleneck": e.bottleneck,
        "bounds": {name: float(s) for name, s in e.step.resources.items()},
        "mfu": {"bound": float(bound_mfu), "expected": float(expected_mfu)},
        "tokens_per_second_per_chip": e.tokens_per_second_per_chip,
        "memory": {
            "bytes": float(e.step.memory_bytes),
            "capacity_bytes": float(e.problem.capacity),
            "parts": {name: float(b) for name, b in e.step.memory.items()},
        },
        "time_parts": [
            {"name": p.name, "kind": p.kind, "seconds": float(p.seconds), "overlapped": float(p.overlapped)}
            for p in e.step.parts
        ],
    }


def run_json(run: Run) -> dict[str, Any]:
    """The whole run."""
    return {
        "tokens": run.tokens,
        "steps": run.steps,
        "flops": float(run.flops),
        "seconds": float(run.seconds),
        "chip_hours": float(run.chip_hours),
        "usd": None if run.usd is None else float(run.usd),
        "joules": float(run.joules),
        "goodput": None
        if run.goodput is None
        else {
            "fraction": run.goodput.fraction,
            "checkpoint_interval_seconds": run.goodput.interval_seconds,
            "failures": run.goodput.failures,
            "seconds_between_failures": run.goodput.system_seconds,
        },
    }


def mesh_text(e: Estimate) -> str:
    """The mesh in the words of `--mesh`; axes of one way left out."""
    return ", ".join(f"{a}={w}" for a, w in e.plan.mesh.items() if w > 1) or "one chip"


def answer_text(answer: Answer) -> RenderableType:
    """The page that `rooftop plan` and `rooftop step` print."""
    best, problem = answer.best, answer.best.problem
    parts: list[RenderableType] = [heading(f"{problem.model.name} on {problem.slice.name}: {mesh_text(best)}")]
    parts.append(_summary(answer))
    parts.append(_time(best))
    parts.append(_memory(best))
    if answer.alternatives:
        parts.append(_runners_up(answer))
    parts.append(lines("Assumptions", answer.assumptions))
    if answer.outcome is not None and answer.outcome.plans > 1:
        o = answer.outcome
        parts.append(
            f"searched {o.plans:,} plans in {o.seconds:.2f} s; all that were not evaluated have a lower bound above the plans shown"
        )
    return group(*parts)


def _summary(answer: Answer) -> RenderableType:
    e = answer.best
    bound_mfu, expected_mfu = e.mfu
    rows = [
        ("step", f"{format_seconds(e.step.expected)} expected, {format_seconds(e.step.bound)} bound ({e.bottleneck})"),
        ("bounds", ", ".join(f"{n} {format_seconds(s)}" for n, s in sorted(e.step.resources.items(), key=lambda r: -float(r[1])) if s > 0)),
        ("MFU", f"{expected_mfu:.1%} expected, {bound_mfu:.1%} at the bound"),
        ("throughput", f"{e.tokens_per_second_per_chip:,.0f} tokens/s on each of {e.plan.chips:,} chips"
         + (f" ({e.problem.slice.chips - e.plan.chips:,} idle)" if e.plan.chips < e.problem.slice.chips else "")),
        ("batch", f"{e.batch_tokens:,} tokens: {e.plan.groups} groups x {e.plan.microbatches} microbatches x"
         f" {e.plan.sequences} sequences of {e.problem.seq}"),
        ("schedule", f"ZeRO-{e.plan.choices.zero} over fsdp, remat {e.plan.choices.remat}"),
        ("placement", placement_text(e)),
    ]  # fmt: skip
    if answer.run is not None:
        r = answer.run
        money = "" if r.usd is None else f", {format_usd(r.usd)}"
        rows.append(("run", f"{format_count(r.tokens)} tokens in {format_seconds(r.seconds)},"
                            f" {r.steps:,.0f} steps, {r.chip_hours:,.0f} chip-hours{money}, {r.joules / 3.6e9:,.0f} MWh"))  # fmt: skip
        if r.goodput is not None:
            g = r.goodput
            rows.append(("failures", f"goodput {g.fraction:.1%}: about {g.failures:,.0f} failures, one every"
                         f" {format_seconds(g.system_seconds)}; a checkpoint every {format_seconds(g.interval_seconds)}"))  # fmt: skip
    return table("", ("", ""), rows)


def placement_text(e: Estimate) -> str:
    """Which mesh axes lie on which part of the network, innermost first."""
    from rooftop.costing import PLACEMENT_ORDER

    texts = []
    for d, factors in zip(e.problem.dimensions, e.plan.factors, strict=False):
        inside = " x ".join(f"{a} {factors[a]}" for a in PLACEMENT_ORDER if factors.get(a, 1) > 1) or "unused"
        texts.append(f"{d.network}[{d.size}]: {inside}")
    return "; ".join(texts) or "one chip"


def _time(e: Estimate) -> RenderableType:
    longest = max((float(p.seconds - p.overlapped) for p in e.step.parts), default=0.0)
    rows = []
    for p in sorted(e.step.parts, key=lambda p: -float(p.seconds)):
        exposed = float(p.seconds - p.overlapped)
        share = exposed / float(e.step.expected)
        rows.append(
            (p.name, p.kind, format_seconds(p.seconds), format_seconds(exposed), f"{share:.1%}", bar(exposed, longest))
        )
    shown = [r for r in rows if r[4] != "0.0%" or r[2] != "0 s"]
    return table(
        "Where the step goes (slowest stage, expected)", ("part", "kind", ">busy", ">exposed", ">of step", ""), shown,
        caption="exposed adds up to the step; the rest is hidden under other work",
    )  # fmt: skip


def _memory(e: Estimate) -> RenderableType:
    capacity = float(e.problem.capacity)
    rows = [
        (n, format_bytes(b), f"{float(b) / capacity:.1%}", bar(float(b), capacity)) for n, b in e.step.memory.items()
    ]
    total = float(e.step.memory_bytes)
    rows.append(("total", format_bytes(total), f"{total / capacity:.1%}", bar(total, capacity)))
    return table(f"Memory per chip, of {format_bytes(capacity)}", ("part", ">bytes", ">of HBM", ""), rows)


def _runners_up(answer: Answer) -> RenderableType:
    rows = [
        (mesh_text(e), f"{e.plan.chips:,}", f"{e.batch_tokens / 1e6:.2f}M", f"{format_seconds(e.step.expected)}",
         f"{e.mfu[1]:.1%}", format_bytes(e.step.memory_bytes), reason)
        for e, reason in zip(answer.alternatives, answer.reasons, strict=True)
    ]  # fmt: skip
    return table(
        "Runners-up, each the best plan of its mesh, by time per token",
        ("mesh", ">chips", ">batch", ">step", ">MFU", ">memory", "why it loses"), rows,
    )  # fmt: skip


def curve_json(curve: Curve) -> dict[str, Any]:
    """A strong-scaling curve."""
    return {
        "model": curve.question.model.name,
        "points": [
            {
                "slice": p.where.name,
                "chips": p.where.chips,
                "tokens_per_second": p.tokens_per_second,
                "best": None if p.best is None else estimate_json(p.best),
                "reason": p.reason or None,
            }
            for p in curve.points
        ],
        "bend": None if curve.bend is None else {"chips": curve.bend.where.chips, "why": curve.why},
    }


def curve_text(curve: Curve) -> RenderableType:
    """A strong-scaling curve for a person."""
    rates = [p.tokens_per_second / p.where.chips for p in curve.points]
    rows = []
    for p, rate in zip(curve.points, rates, strict=True):
        if p.best is None:
            rows.append(
                (p.where.name, f"{p.where.chips:,}", "-", "-", "-", "does not fit", "", p.reason.split(";")[0][:60])
            )
            continue
        e = p.best
        rows.append((
            p.where.name, f"{p.where.chips:,}", format_seconds(e.step.expected), f"{format_count(p.tokens_per_second)}/s",
            f"{e.mfu[1]:.1%}", e.bottleneck, bar(rate, max(rates), 12), mesh_text(e),
        ))  # fmt: skip
    note = (
        f"bends at {curve.bend.where.chips:,} chips: {curve.why}"
        if curve.bend is not None
        else "does not bend: every chip does at least 80 % of the best throughput a chip"
    )
    return table(
        f"{curve.question.model.name}: the same batch on more chips",
        ("slice", ">chips", ">step", ">tokens", ">MFU", "bound by", "per chip", "best mesh"), rows, caption=note,
    )  # fmt: skip
