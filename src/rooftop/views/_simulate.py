"""A simulation of serving: as tables, as JSON, as a figure over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from rooftop.simulation import Outcome, Rate, confidence
from rooftop.simulation._distribution import Distribution
from rooftop.units import format_bandwidth, format_seconds, format_usd
from rooftop.views._terminal import group, heading, lines, table

if TYPE_CHECKING:
    from rich.console import RenderableType

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_LATENCIES = {"ttft_seconds": "TTFT", "tpot_seconds": "TPOT", "e2e_seconds": "end to end", "queue_seconds": "queueing"}


def _distribution(outcome: Outcome, name: str) -> Distribution:
    found: Distribution = getattr(outcome.record, name.removesuffix("_seconds"))
    return found


def _usd_per_million(outcome: Outcome) -> float | None:
    return None if outcome.usd is None else outcome.usd / outcome.record.output_tokens * 1e6


#: Rates and shares of an outcome, under their JSON keys.
_SCALARS: dict[str, Callable[[Outcome], float | None]] = {
    "requests_per_second": lambda o: o.requests_per_second,
    "tokens_per_second": lambda o: o.tokens_per_second,
    "goodput": lambda o: o.goodput,
    "slo_attainment": lambda o: o.attainment,
    "utilisation": lambda o: o.utilisation,
    "kv_occupancy": lambda o: o.kv_occupancy,
    "usd": lambda o: o.usd,
    "usd_per_million_tokens": _usd_per_million,
}


def _assumptions(outcome: Outcome) -> list[str]:
    setup = outcome.setup
    found = [*setup.replica.assumptions]
    if setup.prefill_replica is not None:
        found += [f"prefill: {text}" for text in setup.prefill_replica.assumptions if text not in found]
    if setup.replica.usd_per_chip_hour is not None:
        found.append(f"price: {setup.replica.usd_per_chip_hour:g} USD per chip-hour")
    if setup.fleet.prefill_replicas:
        source = setup.prefill_replica or setup.replica
        found.append(f"KV caches move at {format_bandwidth(source.transfer_bandwidth)} from a prefill replica")
    if outcome.record.ttft.count > 1_000_000:
        found.append("percentiles within 0.1%, from bins")
    if setup.scheduling.speculation is not None:
        found.append("drafted tokens are accepted independently of each other")
    return found


def outcome_json(outcomes: Sequence[Outcome], rate: Rate | None) -> dict[str, Any]:
    """The first outcome; with several seeds, the mean and a 95% confidence interval of each number beside it."""
    first = outcomes[0]
    data: dict[str, Any] = {
        name: {
            **{q: _distribution(first, name).quantile(part) for q, part in _QUANTILES.items()},
            "mean": _distribution(first, name).mean,
        }
        for name in _LATENCIES
    }
    data |= {name: value(first) for name, value in _SCALARS.items()}
    data |= {
        "input_tokens": first.record.input_tokens,
        "output_tokens": first.record.output_tokens,
        "cached_tokens": first.record.cached_tokens,
        "overloaded": first.overloaded,
        "preemptions": first.preemptions,
        "steps": first.steps,
        "span_seconds": first.span,
        "most_replicas": first.most_replicas,
        "simulated": {
            "requests": sum(o.record.requests for o in outcomes),
            "seconds": sum(o.wall_seconds for o in outcomes),
        },
        "seed": first.seed,
        "workload": first.workload.name,
        "timeline": first.timeline.series(first.record.last_finish),
        "assumptions": _assumptions(first),
    }
    if rate is not None:
        data["find_rate"] = {
            "requests_per_second": rate.offered,
            "limited": rate.limited,
            "tried": [{"requests_per_second": r, "slo_attainment": part} for r, part in rate.tried],
        }
    if len(outcomes) > 1:
        data["confidence"] = {"seeds": len(outcomes), "level": 0.95, "mean_and_half_width": _intervals(outcomes)}
    return data


def _intervals(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _LATENCIES:
        for q, part in _QUANTILES.items():
            values = [_distribution(o, name).quantile(part) for o in outcomes]
            found[f"{name}.{q}"] = _interval(values)
    for name, value in _SCALARS.items():
        found[name] = _interval([value(o) for o in outcomes])
    return {name: interval for name, interval in found.items() if interval is not None}


def _interval(values: Sequence[float | None]) -> list[float] | None:
    known = [v for v in values if v is not None]
    return list(confidence(known)) if len(known) == len(values) else None


def outcome_text(outcomes: Sequence[Outcome], rate: Rate | None) -> RenderableType:
    """For a person: latencies, throughput, use over time."""
    first = outcomes[0]
    setup, record = first.setup, first.record
    parts: list[RenderableType] = [heading(f"{setup.replica.name}: {first.workload.name}")]
    if rate is not None:
        limit = "" if rate.limited else ", or more: no load that was tried misses it"
        parts.append(
            table("", ("", ""), [("highest rate", f"{rate.offered:.3g} requests/s meet the SLO{limit}"),
                                 ("tried", ", ".join(f"{r:.3g}/s {part:.1%}" for r, part in rate.tried))])
        )  # fmt: skip
    latencies = []
    for name, title in _LATENCIES.items():
        seen = _distribution(first, name)
        numbers = [*(seen.quantile(q) for q in _QUANTILES.values()), seen.mean]
        latencies.append((title, *("-" if n is None else format_seconds(n) for n in numbers)))
    parts.append(table("", ("latency", ">p50", ">p90", ">p99", ">mean"), latencies))
    rows = [
        ("served", f"{record.requests:,} requests in {format_seconds(first.span)}: {first.requests_per_second:,.3g} requests/s, "
                   f"{first.tokens_per_second:,.0f} tokens/s"),
    ]  # fmt: skip
    if first.overloaded:
        rows.append(
            (
                "overloaded",
                f"requests come faster than they are served: {first.backlog:.0%} of all still wait when the last "
                "one comes, and latencies grow with the length of the workload; --find-rate finds the load that is met",
            )
        )
    if setup.slo:
        limits = ", ".join(
            f"{n.upper()} {format_seconds(v)}"
            for n, v in (("ttft", setup.slo.ttft), ("tpot", setup.slo.tpot), ("e2e", setup.slo.e2e))
            if v is not None
        )
        rows.append(("goodput", f"{first.goodput:,.3g} requests/s, {first.attainment:.1%} within {limits}"))
    rows.append(
        ("utilisation", f"{first.utilisation:.1%} of the time a step runs, KV blocks {first.kv_occupancy:.1%} taken")
    )
    if setup.scheduling.prefix_cache:
        part = record.cached_tokens / record.input_tokens
        rows.append(("prefix cache", f"{part:.1%} of {record.input_tokens:,} prompt tokens were there"))
    if first.preemptions:
        rows.append(("preemptions", f"{first.preemptions:,}, by {setup.scheduling.preempt}"))
    if setup.fleet.autoscale is not None:
        rows.append(("replicas", f"{setup.fleet.replicas} to {first.most_replicas}"))
    per_million = _usd_per_million(first)
    if first.usd is not None and per_million is not None:
        rows.append(("cost", f"{format_usd(first.usd)}, {format_usd(per_million)} per million tokens"))
    parts.append(table("", ("", ""), rows))
    parts.append(_course(first))
    if len(outcomes) > 1:
        shown = [f"{name}.{q}" for name in _LATENCIES for q in _QUANTILES] + ["goodput", "utilisation"]
        found = _intervals(outcomes)
        parts.append(
            table(f"Mean of {len(outcomes)} seeds, 95% confidence", ("", ">mean", ">+/-"),
                  [(name, f"{found[name][0]:.4g}", f"{found[name][1]:.2g}") for name in shown if name in found])
        )  # fmt: skip
    parts.append(lines("Assumed", _assumptions(first)))
    return group(*parts)


def _course(outcome: Outcome) -> RenderableType:
    """Ten equal parts of the time."""
    series = outcome.timeline.series(outcome.record.last_finish)
    count = len(series["seconds"])
    rows = []
    for n in range(min(10, count)):
        a, b = n * count // min(10, count), (n + 1) * count // min(10, count)
        mean = {name: sum(series[name][a:b]) / (b - a) for name in ("running", "waiting", "blocks")}
        rows.append(
            (
                format_seconds(series["seconds"][a]),
                f"{mean['running']:,.1f}",
                f"{mean['waiting']:,.1f}",
                f"{mean['blocks']:,.0f}",
            )
        )
    return table("Over time", (">from", ">running", ">waiting", ">KV blocks"), rows)


_PANELS = (("running", "requests running"), ("waiting", "requests waiting"), ("blocks", "KV blocks taken"))


def timeline_svg(outcome: Outcome) -> str:
    """Requests that run and wait, and KV blocks, over time: a self-contained figure."""
    series = outcome.timeline.series(outcome.record.last_finish)
    width, height, left, gap = 720, 120, 70, 36
    span = series["seconds"][-1] + outcome.timeline.width
    panels = []
    for number, (name, title) in enumerate(_PANELS):
        values = series[name]
        top = max(*values, 1e-9)
        y0 = gap + number * (height + gap)
        points = []
        for start, value in zip(series["seconds"], values, strict=True):
            y = y0 + height * (1 - value / top)
            points += [f"{left + width * start / span:.1f},{y:.1f}",
                       f"{left + width * (start + outcome.timeline.width) / span:.1f},{y:.1f}"]  # fmt: skip
        panels.append(
            f'<text x="{left}" y="{y0 - 8}">{escape(title)}, at most {top:,.4g}</text>'
            f'<line x1="{left}" y1="{y0 + height}" x2="{left + width}" y2="{y0 + height}" stroke="#888"/>'
            f'<polyline fill="none" stroke="#1f6fb2" stroke-width="1.5" points="{" ".join(points)}"/>'
        )
    bottom = gap + len(_PANELS) * (height + gap)
    title = escape(f"{outcome.setup.replica.name}: {outcome.workload.name}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} {bottom + 10}" '
        f'font-family="sans-serif" font-size="12"><title>{title}</title>{"".join(panels)}'
        f'<text x="{left}" y="{bottom - 14}">0 s</text>'
        f'<text x="{left + width}" y="{bottom - 14}" text-anchor="end">{format_seconds(span)}</text></svg>\n'
    )
