"""rooftop import."""

from __future__ import annotations

from pathlib import Path

import click

from rooftop.cli._common import INTEGER, emit, json_option


@click.command(
    "import",
    epilog="""\b
Examples:
  rooftop import config.yml --on v5e:16x16
  rooftop import train_llama3.sh --on h100 --save plan.json
  rooftop import llama3_70b.toml --on h100:64
  rooftop import ds_config.json --model llama-3-8b --on h100:64 --seq 8192
""",
)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--from", "framework", type=click.Choice(("maxtext", "megatron", "torchtitan", "deepspeed")),
    help="The framework.  [default: by the keys of the file]",
)  # fmt: skip
@click.option(
    "--model", help="The model, where the file names none that the catalogue knows; it counts before the file's."
)
@click.option("--on", "where", metavar="SLICE", help="Where it runs; a chip alone gets as many as the file starts.")
@click.option("--seq", type=INTEGER, help="Tokens of a sequence, instead of the file's.")
@click.option("--save", type=click.Path(path_type=Path, dir_okay=False), help="Save the plan: plan.json.")
@json_option
def command(
    file: Path,
    framework: str | None,
    model: str | None,
    where: str | None,
    seq: int | None,
    save: Path | None,
    as_json: bool,
) -> None:
    """A run of MaxText, Megatron-LM, torchtitan or DeepSpeed as a plan: what to ask about it, and what was not understood.

    FILE is MaxText's YAML or a command that starts it, Megatron-LM's arguments (a script, or YAML), torchtitan's TOML or DeepSpeed's
    JSON. It is read, never run.
    """
    from rooftop.frameworks import import_plan
    from rooftop.training import write_plan
    from rooftop.views._import import import_json, import_text

    found = import_plan(file, framework, model=model, on=where, seq=seq)
    if save is not None:
        write_plan(save, found.answer(), found.made_for)
    emit(import_json(found), lambda: import_text(found), as_json)
