"""rooftop design."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rooftop.cli._common import COUNT, USD, emit, json_option
from rooftop.cli._scenario import engine_options


@click.command(
    "design",
    epilog="""\b
Examples:
  rooftop design --work 'train llama-3-70b batch=4M' --usd 5M
  rooftop design --work 'train llama-3-70b batch=4M weight=1' --work 'serve llama-3-70b weights=fp8 tpot=30ms weight=2' --usd 5M --workers 4
  rooftop design --like v5p --work 'serve llama-3-8b prompt=8k' --watts 100k --networks torus2,torus3 --vary link=45GB,90GB,180GB
  rooftop design --work 'serve deepseek-v3 weights=fp8' --usd 10M --mm2 858 --networks torus3,switch-8,switch-64 --part 64 --beside h200,gb200
  rooftop design --work 'train llama-3-8b' --usd 1M --costs my-costs.toml --json

A weight is the share of the time of today's chip (--like) that a work takes. Networks: torus2, torus3, mesh2, mesh3 (never closed to rings),
switch-8 and other powers of two, switch-all.
""",
)
@click.option(
    "--work",
    "texts",
    multiple=True,
    required=True,
    metavar="WORK",
    help="'train MODEL NAME=VALUE...' or 'serve MODEL ...'.",
)
@click.option("--usd", type=USD, help="To buy the machine and to run it for the years of the cost model.")
@click.option("--watts", type=COUNT, help="Of the whole machine with its network and building.")
@click.option("--mm2", type=COUNT, help="Silicon of a chip.  [default: as much as the dies of the cost model]")
@click.option(
    "--like", default="h100", show_default=True, help="The chip whose kind is varied, and which others are compared to."
)
@click.option("--networks", help="Networks to try.  [default: torus2,torus3,mesh3,switch-8,switch-64,switch-all]")
@click.option(
    "--vary", "varied", multiple=True, metavar="NAME=VALUES",
    help="Values to try: flops (multiples of the chip's), stacks, stack_bytes, link, domain, scaleout (bytes/s).",
)  # fmt: skip
@click.option(
    "--costs", "file", type=click.Path(path_type=Path), help="Numbers of the cost model to replace, a TOML file."
)
@click.option("--beside", help="Chips of today to show.  [default: all]")
@click.option("--most-chips", type=click.IntRange(1, 65536), default=4096, show_default=True, help="Of a machine.")
@click.option(
    "--part",
    type=click.IntRange(1, 1024),
    default=32,
    show_default=True,
    help="Most chips of a replica of a served model.",
)
@click.option("--top", type=click.IntRange(1, 50), default=5, show_default=True, help="Machines to show.")
@engine_options
@json_option
def command(
    texts: tuple[str, ...], usd: float | None, watts: float | None, mm2: float | None, like: str, networks: str | None,
    varied: tuple[str, ...], file: Path | None, beside: str | None, most_chips: int, part: int, top: int, as_json: bool,
    **engine: Any,
) -> int:  # fmt: skip
    """The chip and the network that do a mix of work best within a budget of money, power and silicon, beside chips of today."""
    from rooftop import codesign
    from rooftop.hardware import chip
    from rooftop.views._design import design_json, design_text
    from rooftop.views._progress import progress_bar

    with progress_bar("designing", quiet=as_json) as advance:
        found = codesign.design(
            codesign.works(texts, chip(like)),
            codesign.Budget(usd, watts, mm2, most_chips, part),
            like=like,
            values=codesign.parse_values(varied),
            networks=_names(networks) or codesign.NETWORKS,
            cost_model=codesign.costs(file),
            beside=None if beside is None else _names(beside),
            top=top,
            engine=codesign.Engine(engine["engine"], engine["workers"], engine["address"]),
            progress=advance,
        )
    emit(design_json(found), lambda: design_text(found), as_json)
    return 0


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]
