"""rooftop compare."""

from __future__ import annotations

import click

from rooftop.cli._common import emit, json_option
from rooftop.cli._scenario import scenario_of, scenario_options
from rooftop.errors import InputError


@click.command(
    "compare",
    epilog="""\b
Examples:
  rooftop compare llama-3-70b --on h100:8 --of serve --ways attention --equal parameters
  rooftop compare llama-3-70b --on h100:8 --of serve --ways precision
  rooftop compare llama-3-8b --on v5e:4x4 --set batch=1M --ways overlap --ways remat
  rooftop compare llama-3-70b --on h100:64 --mesh pipeline=4 --set batch=1M --ways schedule
  rooftop compare llama-3-70b --on v5p:4x4x4 --of serve --way weights=int8,kv=int8 --way attention=mla-512 --over ici_bandwidth

Ways: attention, precision, overlap, remat, zero, schedule, context. A --way sets any parameters of rooftop sweep, or attention=KIND:
mha, gqa-8, mqa, mla, mla-512, window-4096.
""",
)
@scenario_options
@click.option(
    "--ways", "kinds", multiple=True, metavar="KIND", help="All ways of a kind: attention, precision, remat, ..."
)
@click.option("--way", "texts", multiple=True, metavar="NAME=VALUE,...", help="One way: weights=fp8,kv=fp8.")
@click.option(
    "--equal", type=click.Choice(["parameters", "active", "flops"]),
    help="Fit d_ff of models that differ to as much of this as the one given.",
)  # fmt: skip
@click.option(
    "--over", multiple=True, metavar="NAME", help="Rates to follow to where a way wins.  [default: all of the hardware]"
)
@json_option
def command(
    model: str, where: str, ask: str, mesh: dict[str, int] | None, settings: tuple[str, ...], workload: str | None,
    kinds: tuple[str, ...], texts: tuple[str, ...], equal: str | None, over: tuple[str, ...], as_json: bool,
) -> int:  # fmt: skip
    """Ways to do the same beside each other: bounds, expected times, and the hardware with which each would overtake the fastest."""
    from rooftop import codesign
    from rooftop.views._compare import compared_json, compared_text

    if not kinds and not texts:
        raise InputError(
            "nothing to compare with; name ways, such as --ways precision or --way remat=full", field="ways"
        )
    scenario = scenario_of(model, where, ask, mesh, settings, workload)
    every = [*(text for kind in kinds for text in codesign.ways(scenario, kind)), *texts]
    found = codesign.compare(scenario, list(dict.fromkeys(every)), over=over, equal=equal)
    emit(compared_json(found), lambda: compared_text(found), as_json)
    return 0
