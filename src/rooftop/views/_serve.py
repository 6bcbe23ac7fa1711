"""Answers on serving as a terminal page and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.inference import Answer, Point, Pools, bounds
from rooftop.units import format_bytes, format_count, format_seconds
from rooftop.views._terminal import bar, group, heading, lines, table

if TYPE_CHECKING:
    from rich.console import RenderableType


def serving_json(answer: Answer) -> dict[str, Any]:
    """The keys that scripts may rely on; seconds, bytes and USD."""
    q = answer.question
    return {
        "model": q.model.name,
        "slice": answer.best.problem.slice.name,
        "prompt_tokens": q.prompt,
        "output_tokens": q.output,
        "points": [point_json(p) for p in answer.points],
        "prefill": prefill_json(answer.best),
        "frontier": [point_json(p) for p in answer.frontier],
        "best": point_json(answer.best) | {"time_parts": _parts_json(answer.best)},
        "kv_caches": answer.caches,
        "critical_batch": answer.critical,
        "binds_from_batch": dict(answer.binds_from),
        "smallest_slice": answer.smallest,
        "searched": {"configurations": answer.configurations},
        "assumptions": list(answer.assumptions),
    }


def point_json(p: Point) -> dict[str, Any]:
    """One configuration at one batch."""
    step = p.generate.step
    return {
        "batch": p.batch,
        "context": p.problem.context,
        "mesh": {a: int(n) for a, n in p.at.mesh.items()},
        "weights": p.at.layout.weights,
        "cache": p.at.layout.cache,
        "experts": p.at.layout.experts,
        "placement": [
            {"network": d.network, "size": d.size, "factors": {a: int(n) for a, n in f.items()}}
            for d, f in zip(p.problem.dimensions, p.at.factors, strict=False)
        ],
        "step_seconds": {"bound": float(step.bound), "expected": float(step.expected)},
        "tpot_seconds": {"bound": float(p.generate.tpot[0]), "expected": float(p.generate.tpot[1])},
        "ttft_seconds": {"bound": float(p.prefill.bound), "expected": float(p.prefill.expected)},
        "tokens_per_step": float(p.generate.tokens),
        "tokens_per_second": p.tokens_per_second,
        "tokens_per_second_per_chip": p.tokens_per_second / p.problem.slice.chips,
        "requests_per_second": p.requests_per_second,
        "tpot_with_prefill_seconds": p.tpot_mixed,
        "memory_bytes": float(p.generate.memory_bytes),
        "memory": {part: float(b) for part, b in p.generate.memory.items()},
        "bottleneck": p.bottleneck,
        "bounds": p.bounds,
        "fits": p.fits,
        "usd_per_million_tokens": p.usd_output,
        "usd_per_million_input_tokens": p.usd_input,
    }


def prefill_json(p: Point) -> dict[str, Any]:
    """Reading one prompt in every group of chips."""
    return {
        "seconds": {"bound": float(p.prefill.bound), "expected": float(p.prefill.expected)},
        "prompts": int(p.prefill.prompts),
        "tokens": p.problem.question.prompt,
        "cached_tokens": p.problem.cached,
        "bounds": bounds(p.prefill.resources, p.at.mesh),
    }


def _parts_json(p: Point) -> list[dict[str, Any]]:
    return [
        {"name": x.name, "kind": x.kind, "seconds": float(x.seconds), "overlapped": float(x.overlapped)}
        for x in p.generate.step.parts
    ]


def mesh_text(p: Point, between: str = ", ") -> str:
    """Mesh axes of more than one way, with what differs from the common layout."""
    words = [f"{a}={int(n)}" for a, n in p.at.mesh.items() if n > 1]
    if p.at.layout.weights == "gathered":
        words.append("weights gathered")
    if p.at.layout.cache == "sequence":
        words.append("cache along sequence")
    if p.at.layout.experts == "whole":
        words.append("whole experts")
    return between.join(words) or "one chip"


def serving_text(answer: Answer) -> RenderableType:
    """The page that `rooftop serve` prints."""
    best, q = answer.best, answer.question
    problem = best.problem
    rows = []
    for p in answer.points:
        mark = "*" if p is best else "+" if p in answer.frontier else "" if p.fits else "!"
        rows.append(
            (
                mark, f"{p.batch:,}", mesh_text(p, " "), format_seconds(p.generate.tpot[0]), format_seconds(p.generate.tpot[1]),
                format_seconds(p.prefill.expected), f"{p.tokens_per_second:,.0f}", format_bytes(p.generate.memory_bytes), p.bottleneck,
                "-" if p.usd_output is None else f"{p.usd_output:.3g}",
            )
        )  # fmt: skip
    columns = ("", ">batch", "mesh", ">bound", ">token", ">first", ">tokens/s", ">memory", "bound by", ">USD/M")
    title = f"{problem.model.name} on {problem.slice.name}: {q.prompt:,} tokens in, {q.output:,} out"
    parts: list[RenderableType] = [
        heading(title),
        table(
            "",
            columns,
            rows,
            caption="token: from one to the next, expected, and its bound; first: time to it; USD per million tokens generated\n"
            "* best, + on the frontier of latency and throughput, ! does not fit",
        ),
        _best(answer),
        _time(best),
        lines("Assumptions", answer.assumptions),
        f"searched {answer.configurations:,} configurations",
    ]
    return group(*parts)


def _best(answer: Answer) -> RenderableType:
    p = answer.best
    g = p.generate
    money = "" if p.usd_output is None else f"; USD per million tokens: {p.usd_input:.3g} in, {p.usd_output:.3g} out"
    names = sorted(p.bounds.items(), key=lambda r: -r[1])
    titles = {"network": "the network", "compute": "arithmetic", "host": "the way to host memory"}
    binds = [f"{titles[name]} from batch {batch:,} on" for name, batch in answer.binds_from.items()]
    rows = [
        ("best", f"batch {p.batch:,} on {mesh_text(p)}"),
        ("step", f"{format_seconds(g.step.expected)} expected, {format_seconds(g.step.bound)} bound ({p.bottleneck})"
         + (f", {float(g.tokens):.2f} tokens a step" if float(g.tokens) != 1 else "")),
        ("bounds", ", ".join(f"{n} {format_seconds(s)}" for n, s in names)),
        ("prefill", f"{format_seconds(p.prefill.expected)} expected, {format_seconds(p.prefill.bound)} bound for"
         f" {int(p.prefill.prompts):,} prompt{'s' if p.prefill.prompts > 1 else ''} of {p.problem.question.prompt:,} tokens"),
        ("sustained", f"{p.requests_per_second:.3g} requests/s with their prefill, a token every {format_seconds(p.tpot_mixed)}{money}"),
        ("memory", ", ".join(f"{n} {format_bytes(b)}" for n, b in g.memory.items())
         + f" of {format_bytes(p.problem.capacity)}; {answer.caches:,} caches fit beside the weights"),
        ("limits", f"matmuls with weights are bound by arithmetic from batch {format_count(answer.critical)};"
         f" what binds a step: {', '.join(binds) or 'HBM at every batch'}"),
    ]  # fmt: skip
    if answer.smallest is not None:
        rows.append(("smallest", f"{answer.smallest} holds the model and one request"))
    return table("", ("", ""), rows)


def _time(p: Point) -> RenderableType:
    parts = sorted(p.generate.step.parts, key=lambda x: -float(x.seconds))
    longest = max((float(x.seconds - x.overlapped) for x in parts), default=0.0)
    rows = [
        (x.name, x.kind, format_seconds(x.seconds), format_seconds(x.seconds - x.overlapped),
         bar(float(x.seconds - x.overlapped), longest))
        for x in parts
    ]  # fmt: skip
    return table("Where a generate step goes", ("part", "kind", ">time", ">exposed", ""), rows)


def pools_json(pools: Pools) -> dict[str, Any]:
    """Separate pools for prefill and generation."""
    return {
        "model": pools.generate.problem.model.name,
        "prefill_pool": {"slice": pools.prefill.problem.slice.name, "count": pools.prefill_pools, **prefill_json(pools.prefill)}
        | {"mesh": {a: int(n) for a, n in pools.prefill.at.mesh.items()}},
        "generate_pool": {
            "slice": pools.generate.problem.slice.name, "count": pools.generate_pools, **point_json(pools.generate),
        },
        "ratio": pools.ratio,
        "transfer": {
            "bytes": pools.transfer_bytes,
            "seconds": {"bound": pools.transfer_seconds[0], "expected": pools.transfer_seconds[1]},
            "network": pools.network,
        },
        "ttft_seconds": {"bound": pools.ttft[0], "expected": pools.ttft[1]},
        "tpot_seconds": {"bound": float(pools.generate.generate.tpot[0]), "expected": float(pools.generate.generate.tpot[1])},
        "chips": pools.chips,
        "requests_per_second": pools.requests_per_second,
        "usd_per_million_tokens": pools.usd,
        "assumptions": list(pools.assumptions),
    }  # fmt: skip


def pools_text(pools: Pools) -> RenderableType:
    """The page that `rooftop serve --prefill-on` prints."""
    reading, generating = pools.prefill, pools.generate
    q = generating.problem.question
    rows = [
        ("prefill", f"{pools.prefill_pools} pools of {reading.problem.slice.name} on {mesh_text(reading)}:"
         f" {format_seconds(reading.prefill.expected)} for {int(reading.prefill.prompts):,} prompts of {q.prompt:,} tokens"),
        ("generate", f"{pools.generate_pools} pools of {generating.problem.slice.name} on {mesh_text(generating)}: batch"
         f" {generating.batch:,}, a token every {format_seconds(generating.generate.tpot[1])}"),
        ("ratio", f"{pools.ratio:.3g} prefill pools keep one generate pool busy"),
        ("transfer", f"{format_bytes(pools.transfer_bytes)} of cache a prompt over {pools.network}:"
         f" {format_seconds(pools.transfer_seconds[1])} expected, {format_seconds(pools.transfer_seconds[0])} bound"),
        ("first token", f"{format_seconds(pools.ttft[1])} expected, {format_seconds(pools.ttft[0])} bound"),
        ("throughput", f"{pools.requests_per_second:,.3g} requests/s on {pools.chips:,} chips"
         + ("" if pools.usd is None else f"; {pools.usd:.3g} USD per million tokens generated, prompts included")),
    ]  # fmt: skip
    return group(
        heading(f"{generating.problem.model.name}: {q.prompt:,} tokens in, {q.output:,} out, in separate pools"),
        table("", ("", ""), rows),
        lines("Assumptions", pools.assumptions),
    )
