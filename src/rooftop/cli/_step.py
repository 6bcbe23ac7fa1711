"""rooftop step."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from rooftop.cli._common import INTEGER, SIZES, emit, refuse_given
from rooftop.cli._training import asked_for, asked_of, choice_options, chosen, question_of, show, training_options
from rooftop.errors import InputError


@click.command(
    "step",
    epilog="""\b
Examples:
  rooftop step llama-3-70b --on v5p:8x16x16 --mesh fsdp=256,tensor=8 --batch 4M
  rooftop step llama-3-8b --on h100:64 --mesh fsdp=8,tensor=8 --remat full --explain memory
  rooftop step --plan plan.json
  rooftop step --plan a.json --versus b.json
""",
)
@click.argument("model", required=False)
@partial(training_options, saved=True)
@click.option("--mesh", type=SIZES, help="Ways of the mesh axes: fsdp=64,tensor=4.")
@click.option("--plan", "file", type=click.Path(path_type=Path), help="A plan saved by --save, instead of --mesh.")
@click.option("--versus", type=click.Path(path_type=Path), help="A second saved plan: what differs, which wins, why.")
@choice_options(several=False)
@click.option("--microbatches", type=INTEGER, help="Microbatches of a step.  [default: the fastest number]")
def command(
    model: str | None,
    where: str | None,
    as_json: bool,
    explain: str | None,
    depth: int,
    mesh: dict[str, int] | None,
    file: Path | None,
    versus: Path | None,
    microbatches: int | None,
    save: Path | None,
    timeline: bool,
    **options: Any,
) -> int:
    """Time, memory and cost of training MODEL under one plan, placed as well as it can be on the slice.

    A saved plan knows its model and slice: MODEL and --on may then be left out.
    """
    from rooftop.training import Choices, compare, named_plan, problem_of, read_plan, step_of, write_plan
    from rooftop.units import format_bytes
    from rooftop.views._plan import answer_json, comparison_json, comparison_text

    context = click.get_current_context()
    choices = chosen(options)
    if (mesh is None) == (file is None):
        raise InputError("step needs one plan: give --mesh fsdp=64,tensor=4, or --plan FILE", field="mesh")
    if versus is not None and file is None:
        raise InputError("--versus compares two saved plans; give the first one with --plan FILE", field="versus")
    if file is not None:
        refuse_given("--microbatches", *(f"--{name}" for name in choices), why="the plan of --plan says it")
    asked = asked_of(model, where, options, file)
    question = question_of(**asked)
    if file is not None:
        the_plan = read_plan(file, question)
        tokens = the_plan.batch_sequences * problem_of(question).seq
        given = context.get_parameter_source("batch") is click.core.ParameterSource.COMMANDLINE
        if given and abs(tokens - question.batch) > question.batch_within * question.batch:
            raise InputError(
                f"{file} is a plan for a batch of {tokens:,} tokens, not of {question.batch:,.0f}; leave --batch out, or"
                " edit microbatches in the file",
                field="batch",
            )
    else:
        the_plan = named_plan(question, mesh or {}, microbatches=microbatches, choices=Choices(**choices))
    answer = step_of(question, the_plan)
    if save is not None:
        write_plan(save, answer, asked_for(asked["model"], asked["where"], answer, asked))
    if versus is not None:
        refuse_given("--explain", "--depth", "--tokens", "--timeline", why="--versus compares steps")
        other = question_of(**asked_of(model, where, options, versus))
        both = compare(answer.best, step_of(other, read_plan(versus, other)).best)
        emit({**answer_json(answer), "versus": comparison_json(both)}, lambda: comparison_text(both), as_json)
        return 0 if both.a.fits and both.b.fits else 1
    show(answer, as_json, explain, depth, timeline)
    best = answer.best
    if best.fits:
        return 0
    # the answer is printed all the same: it says where the time and the memory would go
    over = float(best.step.memory_bytes) - best.problem.capacity
    if over <= 0:
        click.echo(
            f"rooftop: the plan takes {format_bytes(best.step.host_bytes)} of {format_bytes(best.problem.host_capacity)} of host"
            " memory per chip; take something out of --offload, or use more fsdp ways",
            err=True,
        )
        return 1
    click.echo(
        f"rooftop: the plan takes {format_bytes(best.step.memory_bytes)} of {format_bytes(best.problem.capacity)} per chip,"
        f" {format_bytes(over)} too much; try --remat full, a higher --zero, more fsdp ways or more --microbatches",
        err=True,
    )
    return 1
