"""rooftop whatif."""

from __future__ import annotations

from typing import Any

import click

from rooftop.cli._common import emit, json_option
from rooftop.cli._scenario import engine_options, scenario_of, scenario_options


@click.command(
    "whatif",
    epilog="""\b
Examples:
  rooftop whatif llama-3-8b --on h100:64 --set batch=1M
  rooftop whatif llama-3-70b --on v5p:8x8x8 --number ici_bandwidth --number hbm_bytes --by 4
  rooftop whatif llama-3-8b --on h100:64 --of step --mesh fsdp=8,tensor=8 --set batch=1M --fixed
  rooftop whatif llama-3-70b --on h100:8 --of serve --set weights=fp8 --measure tpot_seconds.expected --html whatif.html

A slope of -0.8 means: one per cent more of the number, 0.8 per cent less of the measure. Slopes by hardware numbers are the shares
of the time that each has. Measures: seconds_per_token.expected (of the slice), step_seconds.expected, tpot_seconds.expected,
ttft_seconds.expected, the same with .bound, tokens_per_second, usd_per_million_tokens, memory.bytes.
""",
)
@scenario_options
@click.option("--number", "numbers", multiple=True, metavar="NAME", help="A number to look at.  [default: all of them]")
@click.option("--measure", metavar="NAME", help="What is told of.  [default: seconds_per_token.expected]")
@click.option("--by", type=float, default=2.0, show_default=True, help="How far off numbers are tried: a factor.")
@click.option("--fixed", is_flag=True, help="Keep the plan; do not search for the best anew.")
@engine_options
@json_option
def command(
    model: str, where: str, ask: str, mesh: dict[str, int] | None, settings: tuple[str, ...], workload: str | None,
    numbers: tuple[str, ...], measure: str | None, by: float, fixed: bool, as_json: bool, **engine: Any,
) -> int:  # fmt: skip
    """What if a number of the hardware, the model or the workload were another: what limits, in order, and how far it moves the answer."""
    from rooftop import codesign
    from rooftop.views._progress import progress_bar
    from rooftop.views._whatif import whatif_json, whatif_text

    scenario = scenario_of(model, where, ask, mesh, settings, workload)
    chosen = codesign.Engine(engine["engine"], engine["workers"], engine["address"])
    with progress_bar("trying", quiet=as_json) as advance:
        found = codesign.whatif(
            scenario, numbers=numbers, measure=measure, by=by, replan=not fixed, engine=chosen, progress=advance
        )
    emit(whatif_json(found), lambda: whatif_text(found), as_json, lambda: _figures(found))
    return 0


def _figures(found: Any) -> list[Any]:
    from rooftop.figures import whatif_figures

    return whatif_figures(found)
