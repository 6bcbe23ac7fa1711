"""Answers of the planner as a terminal page and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rooftop.training import (
    Answer,
    Comparison,
    ComputeOptimal,
    Curve,
    Difference,
    Estimate,
    Reach,
    Run,
    attention_imbalance,
    described,
    loss,
    six_nd,
)
from rooftop.training._answer import context_text, offload_text, remat_text, schedule_text
from rooftop.training._keep import Found
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
    if answer.pareto is not None:
        result["pareto"] = [found_json(f, question.seq) for f in answer.pareto]
    if answer.outcome is not None:
        result["searched"] = {"plans": answer.outcome.plans, "seconds": answer.outcome.seconds}
    return result


def found_json(found: Found, seq: int) -> dict[str, Any]:
    """One plan of the Pareto set: what it is, and the three numbers in which nothing beats it."""
    plan = found.plan
    tokens = plan.batch_sequences * seq
    return {
        "mesh": dict(plan.mesh),
        "placement": [dict(f) for f in plan.factors],
        "microbatches": plan.microbatches,
        "microbatch_sequences": plan.sequences,
        **asdict(plan.choices),
        "batch_tokens": tokens,
        "step_seconds": found.seconds_per_token * tokens,
        "seconds_per_token": found.seconds_per_token,
        "memory_bytes": found.memory_bytes,
        "chips": plan.chips,
    }


def estimate_json(e: Estimate) -> dict[str, Any]:
    """One plan with its numbers."""
    bound_mfu, expected_mfu = e.mfu
    return {
        **described(e),
        "chips": e.plan.chips,
        "batch_tokens": e.batch_tokens,
        "documents": documents_json(e),
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
        "host_memory": {
            "bytes": float(e.step.host_bytes),
            "capacity_bytes": float(e.problem.host_capacity),
            "parts": {name: float(b) for name, b in e.step.host.items()},
        },
        "time_parts": [
            {"name": p.name, "kind": p.kind, "seconds": float(p.seconds), "overlapped": float(p.overlapped)}
            for p in e.step.parts
        ],
    }


def documents_json(e: Estimate) -> dict[str, Any] | None:
    """What sequences are made of, where they are not one document each."""
    of = e.problem.documents
    if of is None:
        return None
    return {
        "mean_tokens": of.mean,
        "longest_tokens": of.longest,
        "packing": e.problem.packing,
        "filled": e.problem.filled,
        "useful_tokens": e.useful_tokens,
        "useful_flops": e.useful_flops,
        "wasted_flops": e.wasted_flops,
        "slowest_over_mean": attention_imbalance(e.problem, e.plan),
    }


def run_json(run: Run) -> dict[str, Any]:
    """The whole run."""
    return {
        "tokens": run.tokens,
        "steps": run.steps,
        "flops": float(run.flops),
        "flops_6nd": run.six_nd,
        "seconds": float(run.seconds),
        "chip_hours": float(run.chip_hours),
        "usd": None if run.usd is None else float(run.usd),
        "tokens_per_usd": None if not run.usd else float(run.tokens / run.usd),
        "joules": float(run.joules),
        "goodput": None
        if run.goodput is None
        else {
            "fraction": run.goodput.fraction,
            "checkpoint_interval_seconds": run.goodput.interval_seconds,
            "failures": run.goodput.failures,
            "seconds_between_failures": run.goodput.system_seconds,
            "checkpoint_seconds": run.goodput.checkpoint_seconds,
            "available_with_spares": list(run.goodput.available),
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
    if answer.pareto is not None:
        parts.append(_front(answer.pareto, best))
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
        *([("documents", documents_text(e))] if e.problem.documents is not None else []),
        ("schedule", f"ZeRO-{e.plan.choices.zero} over fsdp{', ZeRO-1 over data' if e.plan.choices.outer_zero else ''}, {remat_text(e.plan)}"
         + (f", {offload_text(e.plan)}" if e.plan.choices.offloads else "")
         + (f", {context_text(e.plan)}" if e.plan.mesh["context"] > 1 else "")
         + (f", {schedule_text(e.plan).removeprefix('schedule ')}" if e.plan.mesh["pipeline"] > 1 else "")),
        ("placement", placement_text(e)),
    ]  # fmt: skip
    if answer.run is not None:
        r = answer.run
        money = "" if r.usd is None else f", {format_usd(r.usd)}"
        rows.append(("run", f"{format_count(r.tokens)} tokens in {format_seconds(r.seconds)},"
                            f" {r.steps:,.0f} steps, {r.chip_hours:,.0f} chip-hours{money}, {r.joules / 3.6e9:,.0f} MWh"))  # fmt: skip
        if r.usd:
            rows.append(("per USD", f"{format_count(r.tokens / r.usd)} tokens"))
        rows.append(("FLOPs", f"{r.flops:.3g}; 6ND gives {r.six_nd:.3g} ({r.six_nd / r.flops - 1:+.1%})"))
        if r.goodput is not None:
            g = r.goodput
            rows.append(("failures", f"goodput {g.fraction:.1%}: about {g.failures:,.0f} failures, one every"
                         f" {format_seconds(g.system_seconds)}; a checkpoint of {format_seconds(g.checkpoint_seconds)} every {format_seconds(g.interval_seconds)}"))  # fmt: skip
            if g.available:
                most = len(g.available) - 1
                steps = sorted({0, most // 4, most // 2, most})
                told = ", ".join(f"{n} {g.available[n]:.1%}" for n in steps)
                rows.append(("spares", f"chips in reserve and the part of the time that enough chips work: {told}"))
    return table("", ("", ""), rows)


def documents_text(e: Estimate) -> str:
    """What sequences are made of, and what that costs, in words."""
    found = documents_json(e) or {}
    text = f"{found['mean_tokens']:,.0f} tokens on average, {e.problem.packing}"
    if e.problem.packing == "padded":
        wasted = found["wasted_flops"] / (found["wasted_flops"] + found["useful_flops"])
        return f"{text}: {1 - found['filled']:.1%} of positions and {wasted:.1%} of model FLOPs are padding"
    return f"{text}: the chip with the most attention has {found['slowest_over_mean']:.2f} times the mean"


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
    here = table(f"Memory per chip, of {format_bytes(capacity)}", ("part", ">bytes", ">of HBM", ""), rows)
    if not e.step.host:
        return here
    share = float(e.problem.host_capacity)
    parts = [*e.step.host.items(), *([("total", e.step.host_bytes)] if len(e.step.host) > 1 else [])]
    rows = [(n, format_bytes(b), f"{float(b) / share:.1%}", bar(float(b), share)) for n, b in parts]
    title = f"Host memory per chip, of {format_bytes(share)}"
    return group(here, table(title, ("part", ">bytes", ">of host", ""), rows))


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


#: Plans of the Pareto set that fit on a page.
_SHOWN = 24


def _front(front: tuple[Found, ...], best: Estimate) -> RenderableType:
    """The Pareto set; of a long one, plans spread evenly over it."""
    last = len(front) - 1
    shown = front if last < _SHOWN else [front[round(i * last / (_SHOWN - 1))] for i in range(_SHOWN)]
    rows = [
        (f"{f.seconds_per_token / best.seconds_per_token:.3f}x", format_bytes(f.memory_bytes), f"{f.plan.chips:,}",
         ", ".join(f"{a}={w}" for a, w in f.plan.mesh.items() if w > 1) or "one chip",
         f"{f.plan.microbatches} x {f.plan.sequences}", ", ".join(str(v) for v in asdict(f.plan.choices).values()))
        for f in shown
    ]  # fmt: skip
    names = ", ".join(asdict(best.plan.choices))
    return table(
        f"Pareto set: {len(front)} plans that no other beats in time, memory and chips at once",
        (">time per token", ">memory", ">chips", "mesh", "microbatches", names), rows,
        caption="" if len(shown) == len(front) else f"{len(shown)} of them, spread evenly; --json has all",
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


def comparison_json(c: Comparison) -> dict[str, Any]:
    """Two plans side by side; a is the plan of `--plan`, b that of `--versus`."""

    def rows(differences: tuple[Difference, ...], unit: str) -> list[dict[str, Any]]:
        return [{"name": d.name, f"a_{unit}": d.a, f"b_{unit}": d.b} for d in differences]

    return {
        "b": {"slice": c.b.problem.slice.name, **estimate_json(c.b)},
        "changes": [{"name": name, "a": a, "b": b} for name, a, b in c.changes],
        "time_parts": rows(c.time, "exposed_seconds"),
        "memory_parts": rows(c.memory, "bytes"),
        "chip_seconds_per_token_ratio": c.ratio,
        "winner": c.winner,
        "why": [{"name": name, "seconds": seconds} for seconds, name in c.why],
    }


def comparison_text(c: Comparison) -> RenderableType:
    """Two plans side by side for a person."""
    a, b = c.a, c.b
    parts: list[RenderableType] = [heading(f"{a.problem.model.name}: {verdict(c)}")]
    changes = [(name, _cell(x), _cell(y)) for name, x, y in c.changes]
    parts.append(table("What differs in the plans", ("", "a", "b"), changes or [("nothing", "", "")]))
    rows = [
        ("step, expected", a.step.expected, b.step.expected, format_seconds),
        ("step, bound", a.step.bound, b.step.bound, format_seconds),
        ("tokens/s a chip", a.tokens_per_second_per_chip, b.tokens_per_second_per_chip, format_count),
        ("memory a chip", a.step.memory_bytes, b.step.memory_bytes, format_bytes),
    ]
    facts = [(n, f(float(x)), f(float(y)), f"{float(y) / float(x) - 1:+.1%}") for n, x, y, f in rows]
    facts.append(("MFU, expected", f"{a.mfu[1]:.1%}", f"{b.mfu[1]:.1%}", f"{100 * (b.mfu[1] - a.mfu[1]):+.1f} points"))
    facts.append(("bound by", a.bottleneck, b.bottleneck, ""))
    note = None if a.batch_tokens == b.batch_tokens else "the steps differ in their batch: the verdict is per token"
    parts.append(table("The plans", ("", ">a", ">b", ">b - a"), facts, caption=note))
    for title, differences, unit, least in (
        ("Exposed time of a step", c.time, format_seconds, 5e-5),
        ("Memory of a chip", c.memory, format_bytes, 1e6),
    ):
        shown = [
            (d.name, unit(d.a), unit(d.b), f"{'-' if d.b < d.a else '+'}{unit(abs(d.b - d.a))}")
            for d in differences
            if abs(d.b - d.a) > least
        ]
        parts.append(
            table(f"{title}: where they differ", ("part", ">a", ">b", ">b - a"), shown or [("nowhere", "", "", "")])
        )
    return group(*parts)


def verdict(c: Comparison) -> str:
    """Which plan wins and why, in a sentence."""
    if c.a.fits != c.b.fits:
        return f"{c.winner} wins: {'b' if c.winner == 'a' else 'a'} does not fit"
    if c.winner == "equal":
        return "both plans are equally fast"
    loser, slower = ("b", c.ratio - 1) if c.winner == "a" else ("a", 1 / c.ratio - 1)
    why = ", ".join(f"{name} +{format_seconds(seconds)}" for seconds, name in c.why) or "the sum of small differences"
    return f"{c.winner} wins; {loser} takes {slower:.1%} more chip-time per token: {why}"


def _cell(value: Any) -> str:
    if isinstance(value, tuple):
        return "; ".join(" x ".join(f"{a} {n}" for a, n in axes) or "unused" for axes in value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def reach_json(r: Reach) -> dict[str, Any]:
    """Critical batches and largest useful degrees; null for an infinite number of tokens."""
    return {
        "tokens_per_chip": r.tokens_per_chip,
        "critical_tokens_per_chip": [{"network": c.network, "bound": c.bound, "hidden": c.hidden} for c in r.batches],
        "degrees": [
            {
                "axis": d.axis,
                "ways": d.ways,
                "largest_useful": d.useful,
                "beyond": d.beyond,
                "slower": d.slower,
                "why": d.why,
            }
            for d in r.degrees
        ],
    }


def reach_text(r: Reach) -> RenderableType:
    """How far each axis goes, for a person."""

    def tokens(value: float) -> str:
        return "any" if value == 0 else "none" if value == float("inf") else format_count(value)

    batches = table(
        f"Tokens per chip in a step, here {format_count(r.tokens_per_chip)}; a network stops to matter from",
        ("", ">below compute (bound)", ">hidden (expected)"),
        [(c.network, tokens(c.bound), tokens(c.hidden)) for c in r.batches] or [("no network is used", "", "")],
        caption="the mesh and the number of microbatches stay as they are",
    )
    degrees = table(
        "The largest useful ways of each axis: the best plan with them is at most 5% slower",
        ("axis", ">ways here", ">largest useful", "with the next ways"),
        [
            (d.axis, str(d.ways), str(d.useful), "the model or the slice allows no more" if d.beyond is None
             else f"{d.beyond}: {d.why}" if d.slower == float("inf") else f"{d.beyond}: {d.slower:.0%} slower ({d.why})")
            for d in r.degrees
        ],
    )  # fmt: skip
    return group(batches, degrees)


def laws_json(found: ComputeOptimal) -> dict[str, Any]:
    """Compute-optimal training by each reading of the paper; exact FLOPs where the model is known."""
    return {
        "optima": [
            {
                "rule": o.rule,
                "parameters": o.parameters,
                "tokens": o.tokens,
                "flops_6nd": six_nd(o.parameters, o.tokens),
                "flops": None if found.flops_per_token is None else found.flops_per_token * o.tokens,
                "loss": loss(o.parameters, o.tokens),
            }
            for o in found.optima
        ]
    }


def laws_text(found: ComputeOptimal) -> RenderableType:
    """Compute-optimal training for a person."""
    rows = [
        (
            o.rule, format_count(o.parameters), format_count(o.tokens), f"{float(six_nd(o.parameters, o.tokens)):.3g}",
            "-" if found.flops_per_token is None else f"{found.flops_per_token * o.tokens:.3g}",
            f"{float(loss(o.parameters, o.tokens)):.2f}",
        )
        for o in found.optima
    ]  # fmt: skip
    return table(
        found.what, ("", ">parameters", ">tokens", ">6ND", ">exact FLOPs", ">loss by approach 3"), rows,
        caption="Hoffmann et al., 2022, for dense models on its own data",
    )  # fmt: skip
