"""Designed machines: as tables, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rooftop.codesign import Design, Machine
from rooftop.units import format_count, format_usd
from rooftop.views._terminal import group, heading, lines, table

if TYPE_CHECKING:
    from rich.console import RenderableType

_MOST_ERROR = 100


def design_json(found: Design) -> dict[str, Any]:
    """The best machines, the best of each network, chips of today, the cost model with its sources."""
    b = found.budget
    return {
        "works": [{"text": w.text, "weight": w.weight, "unit": w.unit} for w in found.works],
        "budget": {"usd": b.usd, "watts": b.watts, "mm2": b.mm2, "most_chips": b.most_chips, "part": b.part},
        "reference": found.base,
        "best": [_machine_json(m) for m in found.best],
        "networks": [_machine_json(m) for m in found.networks],
        "today": [_machine_json(m) for m in found.today],
        "candidates": found.candidates,
        "too_large": found.too_large,
        "too_dear": found.too_dear,
        "unable": found.unable,
        "gain_of_full_search": found.gain,
        "at_the_end": list(found.at_the_end),
        "costs": {
            "name": found.costs.name,
            "process": found.costs.process,
            "values": dict(found.costs.values),
            "sources": dict(found.costs.sources),
        },
        "assumptions": assumptions(found),
        "seconds": found.seconds,
    }


def _machine_json(m: Machine) -> dict[str, Any]:
    c = m.cost
    return {
        "name": m.name,
        "network": m.network,
        "chips": m.chips,
        "numbers": dict(m.numbers),
        "links_bytes_per_second": list(m.links),
        "chip": {
            "flops": m.chip.flops,
            "hbm_bytes": m.chip.hbm_bytes,
            "hbm_bandwidth_bytes_per_second": m.chip.hbm_bandwidth,
            "mm2": c.mm2,
            "dies": c.dies,
            "watts": c.chip_watts,
        },
        "usd": m.chips * c.usd,
        "capital_usd": m.chips * c.capital,
        "watts": m.chips * c.watts,
        "share_of_budget": m.share,
        "score": m.score if m.error is None else None,
        "error": m.error,
        "works": [{"rate": r, "answer": row} for r, row in zip(m.rates, m.rows, strict=True)],
    }


def assumptions(found: Design) -> list[str]:
    """What the answer rests on."""
    b, model = found.budget, found.costs
    assumed = sum(text.startswith("assumed") for text in model.sources.values())
    return [
        f"cost model: {model.name}, {model.process}; {assumed} of {len(model.values)} numbers are assumed (see --json); chips of today are taken"
        " as if they were made so, whatever they sell for",
        f"USD: to buy, and electricity for {model['price.years']:g} years at {model['price.per_kwh']:g} USD/kWh; watts: at full power",
        "machines have a power of two chips (chips of today a common slice); scores are in proportion to what is spent, so that all are for"
        " the whole budget",
        f"scores: the mix keeps {found.base} busy by its weights; a score of 2 does it in half the time",
        f"training uses the whole machine, a replica of a served model at most {b.part} chips; every one with its own best plan",
        f"expected times, with the coefficients of the family of {found.base} (of each chip of today, of its own family)",
        "memory on the chip costs silicon but is not searched, since no time here depends on how much there is",
    ]


def design_text(found: Design) -> RenderableType:
    """Tables of the best machines, of networks, of chips of today; what limits the answer."""
    budget = found.budget
    limits = [
        *([f"{format_usd(budget.usd)}"] if budget.usd is not None else []),
        *([f"{format_count(budget.watts)}W"] if budget.watts is not None else []),
        *([f"{budget.mm2:g} mm2 a chip"] if budget.mm2 is not None else []),
    ]
    works = [f"{w.text} ({w.weight:.0%}): column {i + 1}, {w.unit}" for i, w in enumerate(found.works)]
    told_links = "links: of a torus one, of switches what a chip has into its domain + beyond, each way"
    parts: list[RenderableType] = [
        heading(f"{found.candidates:,} machines like {found.base} within {', '.join(limits)}"),
        lines("Work", works),
        _table("The best", found.best, found),
    ]
    if len(found.networks) > 1:
        parts.append(_table("The best of each network", found.networks, found))
    parts.append(_table("Chips of today under the same cost model", [m for m in found.today if m.error is None], found))
    notes = [f"{m.chip.name}: {(m.error or '')[:_MOST_ERROR]}" for m in found.today if m.error is not None]
    if notes:
        parts.append(lines("Cannot do all of the work", notes))
    told = [
        f"{found.too_large:,} candidates have too much silicon, one chip of {found.too_dear:,} is over the budget, {found.unable:,} cannot do"
        " all of the work",
        f"winners were searched in full, which made them up to {found.gain:.1%} better than the first pass had them",
    ]  # fmt: skip
    if found.at_the_end:
        told.append(
            f"the best is at an end of the values of {', '.join(found.at_the_end)}; more of them may be better (--vary)"
        )
    parts.append(lines("Notes", [told_links, *told, *assumptions(found)]))
    return group(*parts)


def _table(title: str, machines: Sequence[Machine], found: Design) -> RenderableType:
    columns = ["", ">chips", ">score", ">TFLOP/s", ">HBM, GB", ">TB/s", ">links, GB/s", ">mm2", ">kUSD", ">kW",
               *(f">{i + 1}" for i in range(len(found.works)))]  # fmt: skip
    rows = [
        [
            m.name, f"{m.chips:,}", f"{m.score:.2f}", f"{_peak(m) / 1e12:,.0f}", f"{m.chip.hbm_bytes / 1e9:,.0f}",
            f"{m.chip.hbm_bandwidth / 1e12:.3g}", "+".join(f"{rate / 1e9:.3g}" for rate in m.links), f"{m.cost.mm2:,.0f}",
            f"{m.chips * m.cost.usd / 1e3:,.0f}", f"{m.chips * m.cost.watts / 1e3:,.0f}", *(format_count(r) for r in m.rates),
        ]
        for m in machines
    ]  # fmt: skip
    return table(title, columns, rows)


def _peak(m: Machine) -> float:
    return next((m.chip.flops[d] for d in ("bf16", "fp16") if d in m.chip.flops), next(iter(m.chip.flops.values())))
