"""rooftop plan."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from rooftop.cli._common import DAYS, INTEGER, SIZES, USD, emit, refuse_given
from rooftop.cli._training import asked_for, choice_options, chosen, question_of, show, training_options


@click.command(
    "plan",
    epilog="""\b
Examples:
  rooftop plan llama-3-70b --on v5p:16x20x28 --batch 4M --seq 4096 --tokens 15T
  rooftop plan llama-3-8b --on h100:256 --fix tensor=8 --explain step_seconds
  rooftop plan llama-3-70b --on h100 --batch 4M --scale 64..4096
  rooftop plan llama-3-70b --on h100 --batch 4M --tokens 15T --days 60
  rooftop plan llama-3-8b --on h100 --batch 1M --tokens 1T --objective cost --days 90
  rooftop plan llama-3-8b --on h100:64 --batch 1M --pareto
  rooftop plan llama-3-70b --on v5p:8x8x8 --limits --timeline
  rooftop plan ./config.json --on v5e:16x16 --batch 1M --remat full --json
  rooftop plan llama-3-8b --on h100:64 --batch 1M --save plan.json
""",
)
@click.argument("model")
@training_options
@click.option("--fix", type=SIZES, help="Fix some mesh axes: tensor=8,pipeline=1.")
@click.option(
    "--try-axis",
    "opened",
    multiple=True,
    type=click.Choice(["tensor_transpose"]),
    help="Also try ways of an axis that is left at one way otherwise: tensor_transpose, the second side of a grid with tensor.",
)
@choice_options(several=True)
@click.option("--microbatches", type=INTEGER, help="Fix the number of microbatches.")
@click.option("--chips", type=INTEGER, help="How many chips, where --on names a chip alone.")
@click.option(
    "--days", type=DAYS, help="The run must end within so many days (or 12h, 6w): the fewest chips that do it."
)
@click.option("--budget", type=USD, help="The run must cost no more USD: 2M.")
@click.option(
    "--objective",
    type=click.Choice(["time", "cost", "tokens-per-dollar", "chips"]),
    help="What a standard slice of the chip is chosen by, where --on names a chip alone; on one slice the fastest plan is also the"
    " cheapest. tokens-per-dollar is one over cost.  [default: chips, with --days or --budget]",
)
@click.option("--pareto", is_flag=True, help="Also all plans that no other beats in time, memory and chips at once.")
@click.option("--scale", metavar="A..B", help="Strong scaling over numbers of chips: 64..16384, or 64,96,128.")
@click.option(
    "--limits", "limits_too", is_flag=True, help="Also how far each mesh axis goes: critical batch, useful ways."
)
@click.option("--alternatives", default=5, show_default=True, type=click.IntRange(0, 100), help="Runners-up to show.")
def command(
    model: str,
    where: str,
    as_json: bool,
    explain: str | None,
    depth: int,
    fix: dict[str, int] | None,
    opened: tuple[str, ...],
    microbatches: int | None,
    chips: int | None,
    days: float | None,
    budget: float | None,
    objective: str | None,
    pareto: bool,
    scale: str | None,
    limits_too: bool,
    alternatives: int,
    save: Path | None,
    timeline: bool,
    **options: Any,
) -> None:
    """The best way to train MODEL on a slice: mesh, placement, schedule; time, memory, cost; the runners-up.

    MODEL is a name of the catalogue, the path of a config.json or of its folder, or numbers:
    layers=48,d_model=6144,heads=64,d_ff=24576,vocab=51200.
    """
    from rooftop import training
    from rooftop.views._plan import curve_json, curve_text
    from rooftop.views._progress import progress_bar

    limits = training.Limits(chosen(options), microbatches=microbatches, opened=opened)
    where = where if chips is None else f"{where}:{chips}"
    question = question_of(model, where, **options)
    if scale is not None:
        refuse_given(
            "--chips",
            "--days",
            "--budget",
            "--objective",
            "--pareto",
            "--explain",
            "--depth",
            "--alternatives",
            "--save",
            "--timeline",
            "--limits",
            why="--scale is a curve over slices",
        )
        with progress_bar("searching plans", quiet=as_json) as advance:
            counts = training.chip_counts(scale)
            curve = training.scale(question, counts, fixed=fix, limits=limits, progress=advance)
        emit(curve_json(curve), lambda: curve_text(curve), as_json, lambda: _figures(curve))
        return
    wish = training.Wish(days, budget)
    search = training.plan
    if objective is not None or wish != training.Wish():
        search = partial(training.choose, objective=objective or "chips", wish=wish)
    with progress_bar("searching plans", quiet=as_json) as advance:
        answer = search(question, fixed=fix, limits=limits, keep=alternatives + 1, pareto=pareto, progress=advance)
    if save is not None:
        training.write_plan(save, answer, asked_for(model, where, answer, options))
    found = None
    if limits_too and explain is None:
        with progress_bar("varying each axis", quiet=as_json) as advance:
            found = training.reach(answer.question, answer.best, limits=limits, progress=advance)
    show(answer, as_json, explain, depth, timeline, found)


def _figures(curve: Any) -> list[Any]:
    from rooftop.figures import scaling_curve

    return [scaling_curve(curve)]
