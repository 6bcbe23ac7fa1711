"""rooftop check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rooftop.cli._common import BYTES, COUNT, INTEGER, SECONDS, SIZES, emit, json_option, refuse_given
from rooftop.cli._training import NOT_ASKED, asked_of, choice_options, chosen, question_of
from rooftop.errors import InputError


@click.command(
    "check",
    epilog="""\b
Examples:
  rooftop check plan.json --with tpu
  rooftop check llama-3-8b --on v5e:4x4 --mesh fsdp=4,tensor=4 --batch 64k --remat full --with tpu
  rooftop check llama-3-8b --on h100:16 --mesh fsdp=16 --batch 64k --with gpu --json
""",
)
@click.argument("what", metavar="PLAN|MODEL")
@click.option("--on", "where", metavar="SLICE", help="Where: v5e:4x8, h100:64.  [default: that of PLAN]")
@click.option("--mesh", type=SIZES, help="Ways of the mesh axes, with a MODEL: fsdp=64,tensor=4.")
@click.option(
    "--with", "compiler", type=click.Choice(("simulated", "gpu", "tpu")), default="simulated", show_default=True,
    help="The compiler: JAX's CPU devices, or that of the chip (pip install 'rooftop[tpu]' or 'rooftop[gpu]'; no chip needed).",
)  # fmt: skip
@click.option("--batch", type=COUNT, help="Tokens per step, such as 4M.  [default: 4M]")
@click.option("--seq", type=INTEGER, help="Tokens of a sequence.  [default: 4096]")
@click.option(
    "--batch-within", type=float, default=0.1, show_default=True, help="How far the batch may be from --batch."
)
@click.option(
    "--precision", default="bf16", show_default=True, help="Recipe: bf16, bf16-mixed, bf16-pure, fp16-mixed, fp32."
)
@click.option("--optimizer-dtype", help="Dtype of the AdamW moments: fp32 or bf16.")
@click.option("--capacity-factor", type=float, help="Slots of an expert over its fair share of tokens.  [default: 1]")
@click.option(
    "--collective-matmul",
    is_flag=True,
    help="Matmuls overlap their collectives piece by piece; the compiler is allowed to.",
)
@choice_options(several=False)
@click.option("--microbatches", type=INTEGER, help="Microbatches of a step.  [default: the fastest number]")
@click.option("--timeout", type=SECONDS, default=600.0, help="How long the compilation may take.  [default: 10min]")
@click.option("--compiler-memory", type=BYTES, default=16e9, help="How much memory it may take.  [default: 16GB]")
@json_option
def command(
    what: str,
    where: str | None,
    mesh: dict[str, int] | None,
    compiler: str,
    microbatches: int | None,
    timeout: float,
    compiler_memory: float,
    as_json: bool,
    **options: Any,
) -> int:
    """Compile the whole training step of a plan, and lay FLOPs, collectives and memory of the program beside the prediction.

    The step is forward, backward and AdamW of a reference Transformer, sharded as planned. PLAN is a file of --save. No
    accelerator is needed. Exits with 1 where the two differ.
    """
    from rooftop.lower import check
    from rooftop.training import Choices, named_plan, problem_of, read_plan
    from rooftop.views._check import check_json, check_text

    choices = chosen(options)
    file = Path(what) if what.endswith(".json") and mesh is None else None
    if file is None and mesh is None:
        raise InputError(
            f"check needs a plan: give a file of --save, or {what} with --mesh fsdp=64,tensor=4", field="mesh"
        )
    if file is not None:
        refuse_given("--microbatches", *(f"--{name}" for name in choices), why="the plan says it")
    question = question_of(**asked_of(None if file else what, where, {**NOT_ASKED, **options}, file))
    if file is not None:
        plan = read_plan(file, question)
    else:
        plan = named_plan(question, mesh or {}, microbatches=microbatches, choices=Choices(**choices))
    result = check(problem_of(question), plan, compiler, seconds=timeout, bytes=compiler_memory)
    emit(check_json(result), lambda: check_text(result), as_json)
    if result.agrees:
        return 0
    click.echo(f"rooftop: plan and program differ in {', '.join(result.differing)}", err=True)
    return 1
