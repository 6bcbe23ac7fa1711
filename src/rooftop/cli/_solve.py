"""rooftop solve."""

from __future__ import annotations

from typing import Any

import click

from rooftop.cli._common import emit, json_option
from rooftop.cli._scenario import engine_options, scenario_of, scenario_options


@click.command(
    "solve",
    epilog="""\b
Examples:
  rooftop solve llama-3-8b --on v5e:4x4 --set batch=128k --need "mfu>=0.5" --solve ici_bandwidth
  rooftop solve llama-3-70b --on h100:64 --set batch=4M --need "step_seconds<=10s" --solve chips
  rooftop solve llama-3-8b --on h100:1 --of serve --need "tpot<=10ms" --solve batch --largest
  rooftop solve llama-3-70b --on h100:8 --of serve --need "ttft<=300ms" --need "tpot<=30ms" --solve prompt=1k..128k
  rooftop solve llama-3-8b --on v5e:4x4 --of step --mesh fsdp=4,tensor=4 --need bottleneck=compute --solve model.d_ff=4096..65536:+1024
  rooftop solve llama-3-8b --on h100:1 --of simulate --workload poisson:rate=4,requests=500,input=500,output=100 --need "ttft.p99<=200ms" --solve load

A goal is NAME>=VALUE, <=, >, < or, of words, =; names are those of the rows of rooftop sweep, or short: mfu, tpot, ttft, usd, memory.
NAME=A..B searches any value between, NAME=A..B:x2 or a list those alone; without values, 64 times less to 64 times more.
""",
)
@scenario_options
@click.option("--need", "needs", multiple=True, required=True, metavar="GOAL", help='What is needed: "mfu>=0.5".')
@click.option("--solve", "by", required=True, metavar="NAME[=VALUES]", help="The parameter that is to be found.")
@click.option("--smallest", "want", flag_value="smallest", help="The smallest value that meets the goal.")
@click.option(
    "--largest", "want", flag_value="largest", help="The largest.  [default: the nearest edge to what is there]"
)
@engine_options
@json_option
def command(
    model: str, where: str, ask: str, mesh: dict[str, int] | None, settings: tuple[str, ...], workload: str | None,
    needs: tuple[str, ...], by: str, want: str | None, as_json: bool, **engine: Any,
) -> int:  # fmt: skip
    """What a number of the hardware, the model or the plan must be for a goal; answered there, and beside it where the goal is missed."""
    from rooftop import codesign
    from rooftop.views._progress import progress_bar
    from rooftop.views._solve import solved_json, solved_text

    scenario = scenario_of(model, where, ask, mesh, settings, workload)
    chosen = codesign.Engine(engine["engine"], engine["workers"], engine["address"])
    with progress_bar("solving", quiet=as_json) as advance:
        found = codesign.solve(scenario, needs, by, want=want or "nearest", engine=chosen, progress=advance)
    emit(solved_json(found), lambda: solved_text(found), as_json, lambda: _figures(found))
    return 0


def _figures(found: Any) -> list[Any]:
    from rooftop.figures import solved_figures

    return solved_figures(found)
