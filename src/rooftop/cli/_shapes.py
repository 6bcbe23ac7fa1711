"""rooftop shapes."""

from __future__ import annotations

from typing import Any

import click

from rooftop.cli._common import emit, json_option
from rooftop.cli._scenario import engine_options, scenario_of, scenario_options


@click.command(
    "shapes",
    epilog="""\b
Examples:
  rooftop shapes llama-3-8b --on h100:64 --set batch=1M
  rooftop shapes gpt2-xl --on v5e:4x4 --set batch=1M --set seq=1024
  rooftop shapes llama-3-8b --on v5e:4x4 --of serve --set tpot=30ms --vary kv_heads --vary layers
  rooftop shapes qwen3-30b-a3b --on h100:4 --of serve --vary experts=64..256 --vary active=4..16 --equal parameters --equal active
  rooftop shapes deepseek-v3 --on h200:32 --of serve --vary kv_rank=256..1024 --within 5%

Of the numbers varied every combination is a shape; the width of the feed-forward parts is fitted to the first budget, in whole tiles.
Values are those of rooftop sweep: 16,24,32; 1024..8192 (doubling); 0.5x..2x; :+8 a step.
""",
)
@scenario_options
@click.option(
    "--vary", "varied", multiple=True, metavar="NAME[=VALUES]",
    help="A number of the model: layers, heads=16..64, window.  [default: d_model and layers, from 0.5x to 2x]",
)  # fmt: skip
@click.option(
    "--equal", multiple=True, type=click.Choice(["parameters", "active", "flops", "kv"]), default=("parameters",),
    show_default=True, help="What shapes must have as much of; several are possible.",
)  # fmt: skip
@click.option("--within", default="2%", show_default=True, help="By how much they may miss it.")
@click.option("--top", type=click.IntRange(1, 1000), default=12, show_default=True, help="Rows to show.")
@engine_options
@json_option
def command(
    model: str, where: str, ask: str, mesh: dict[str, int] | None, settings: tuple[str, ...], workload: str | None,
    varied: tuple[str, ...], equal: tuple[str, ...], within: str, top: int, as_json: bool, **engine: Any,
) -> int:  # fmt: skip
    """Shapes of a model with equal parameters, FLOPs or cache that run faster on a slice, and sizes that suit its matmul units."""
    from rooftop import codesign
    from rooftop.views._progress import progress_bar
    from rooftop.views._shapes import shapes_json, shapes_text

    scenario = scenario_of(model, where, ask, mesh, settings, workload)
    names = codesign.parse_numbers(scenario.model, varied)
    chosen = codesign.Engine(engine["engine"], engine["workers"], engine["address"])
    with progress_bar("shapes", quiet=as_json) as advance:
        found = codesign.shapes(
            scenario, varied=names, equal=equal, within=codesign.parse_share(within, "within"), engine=chosen,
            progress=advance,
        )  # fmt: skip
    emit(shapes_json(found), lambda: shapes_text(found, top), as_json)
    return 0
