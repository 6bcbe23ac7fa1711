"""rooftop step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rooftop.cli._common import INTEGER, SIZES, refuse_given
from rooftop.cli._training import choice_options, chosen, question_of, show, training_options
from rooftop.errors import InputError


@click.command(
    "step",
    epilog="""\b
Examples:
  rooftop step llama-3-70b --on v5p:8x16x16 --mesh fsdp=256,tensor=8 --batch 4M
  rooftop step llama-3-8b --on h100:64 --mesh fsdp=8,tensor=8 --remat full --explain memory
  rooftop step llama-3-8b --on h100:64 --plan plan.json
""",
)
@click.argument("model")
@training_options
@click.option("--mesh", type=SIZES, help="Ways of the mesh axes: fsdp=64,tensor=4.")
@click.option("--plan", "file", type=click.Path(path_type=Path), help="A plan saved by --json, instead of --mesh.")
@choice_options(several=False)
@click.option("--microbatches", type=INTEGER, help="Microbatches of a step.  [default: the fastest number]")
def command(
    model: str,
    where: str,
    as_json: bool,
    explain: str | None,
    depth: int,
    mesh: dict[str, int] | None,
    file: Path | None,
    microbatches: int | None,
    **options: Any,
) -> int:
    """Time, memory and cost of training MODEL under one plan, placed as well as it can be on the slice."""
    from rooftop.training import Choices, named_plan, read_plan, step_of
    from rooftop.units import format_bytes

    choices = chosen(options)
    question = question_of(model, where, **options)
    if (mesh is None) == (file is None):
        raise InputError("step needs one plan: give --mesh fsdp=64,tensor=4, or --plan FILE", field="mesh")
    if file is not None:
        refuse_given("--microbatches", *(f"--{name}" for name in choices), why="the plan of --plan says it")
        the_plan = read_plan(file, question)
    else:
        the_plan = named_plan(question, mesh or {}, microbatches=microbatches, choices=Choices(**choices))
    answer = step_of(question, the_plan)
    show(answer, as_json, explain, depth)
    best = answer.best
    if best.fits:
        return 0
    # the answer is printed all the same: it says where the time and the memory would go
    over = float(best.step.memory_bytes) - best.problem.capacity
    click.echo(
        f"rooftop: the plan takes {format_bytes(best.step.memory_bytes)} of {format_bytes(best.problem.capacity)} per chip,"
        f" {format_bytes(over)} too much; try --remat full, a higher --zero, more fsdp ways or more --microbatches",
        err=True,
    )
    return 1
