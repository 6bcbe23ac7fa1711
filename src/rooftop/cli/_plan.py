"""rooftop plan."""

from __future__ import annotations

from typing import Any

import click

from rooftop.cli._common import DAYS, INTEGER, SIZES, USD, emit
from rooftop.cli._training import question_of, show, training_options
from rooftop.errors import InputError


@click.command(
    "plan",
    epilog="""\b
Examples:
  rooftop plan llama-3-70b --on v5p:16x20x28 --batch 4M --seq 4096 --tokens 15T
  rooftop plan llama-3-8b --on h100:256 --fix tensor=8 --explain step_seconds
  rooftop plan llama-3-70b --on h100 --batch 4M --scale 64..4096
  rooftop plan llama-3-70b --on h100 --batch 4M --tokens 15T --days 60
  rooftop plan ./config.json --on v5e:16x16 --batch 1M --remat full --json
""",
)
@click.argument("model")
@training_options
@click.option("--fix", type=SIZES, help="Fix some mesh axes: tensor=8,pipeline=1.")
@click.option(
    "--remat", multiple=True, type=click.Choice(["none", "selective", "full"]), help="Policies to try.  [default: all]"
)
@click.option(
    "--zero", multiple=True, type=click.IntRange(1, 3), help="ZeRO stages of the fsdp axis to try.  [default: all]"
)
@click.option("--microbatches", type=INTEGER, help="Fix the number of microbatches.")
@click.option("--chips", type=INTEGER, help="How many chips, where --on names a chip alone.")
@click.option(
    "--days", type=DAYS, help="The run must end within so many days (or 12h, 6w): the fewest chips that do it."
)
@click.option("--budget", type=USD, help="The run must cost no more USD: 2M.")
@click.option("--scale", metavar="A..B", help="Strong scaling over numbers of chips: 64..16384, or 64,96,128.")
@click.option("--alternatives", default=5, show_default=True, type=click.IntRange(0, 100), help="Runners-up to show.")
def command(
    model: str,
    where: str,
    as_json: bool,
    explain: str | None,
    depth: int,
    fix: dict[str, int] | None,
    remat: tuple[str, ...],
    zero: tuple[int, ...],
    microbatches: int | None,
    chips: int | None,
    days: float | None,
    budget: float | None,
    scale: str | None,
    alternatives: int,
    **options: Any,
) -> None:
    """The best way to train MODEL on a slice: mesh, placement, schedule; time, memory, cost; the runners-up.

    MODEL is a name of the catalogue, the path of a config.json or of its folder, or numbers:
    layers=48,d_model=6144,heads=64,d_ff=24576,vocab=51200.
    """
    from rooftop import training
    from rooftop.training import POLICIES, ZERO_STAGES, Limits
    from rooftop.views._plan import curve_json, curve_text
    from rooftop.views._progress import progress_bar

    question = question_of(model, where if chips is None else f"{where}:{chips}", **options)
    if sum(x is not None for x in (scale, days or budget)) > 1:
        raise InputError("--scale is a curve over many slices; ask for --days or --budget without it", field="scale")
    limits = Limits(
        zero=tuple(z for z in ZERO_STAGES if not zero or z in zero),
        remat=tuple(p for p in POLICIES if not remat or p in remat),
        microbatches=microbatches,
    )
    with progress_bar("searching plans", quiet=as_json) as advance:
        if scale is not None:
            curve = training.scale(question, training.chip_counts(scale), limits=limits, progress=advance)
        elif days is not None or budget is not None:
            wish = training.Wish(days, budget)
            answer = training.fewest(question, wish, limits=limits, keep=alternatives + 1, progress=advance)
        else:
            answer = training.plan(question, fixed=fix, limits=limits, keep=alternatives + 1, progress=advance)
    if scale is not None:
        emit(curve_json(curve), lambda: curve_text(curve), as_json)
    else:
        show(answer, as_json, explain, depth)
