"""rooftop export."""

from __future__ import annotations

from pathlib import Path

import click

from rooftop.cli._common import emit, json_option
from rooftop.cli._training import question_of_file
from rooftop.errors import InputError


@click.command(
    "export",
    epilog="""\b
Examples:
  rooftop export plan.json --to maxtext
  rooftop export plan.json --to megatron --out arguments.txt
""",
)
@click.argument("file", metavar="PLAN", type=click.Path(path_type=Path))
@click.option(
    "--to", "framework", required=True,
    type=click.Choice(("maxtext", "megatron", "torchtitan", "deepspeed", "nemo", "vllm", "sglang", "tensorrt-llm")),
    help="The framework.",
)  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="A file to write, instead of stdout.")
@json_option
def command(file: Path, framework: str, out: Path | None, as_json: bool) -> None:
    """A plan of --save as another framework's configuration, in its own keys. What cannot be expressed is said on stderr."""
    from rooftop.frameworks import export
    from rooftop.training import problem_of, read_plan
    from rooftop.views._program import exported_json, exported_text

    question = question_of_file(file)
    made = export(problem_of(question), read_plan(file, question), framework)
    if out is not None:
        try:
            with out.open("x", encoding="utf-8") as written:
                written.write(made.text)
        except OSError as error:
            raise InputError(
                f"--out: cannot write {out}: {error.strerror or error}; give a new file", field="out"
            ) from None
    for text in made.unsaid:
        click.echo(f"rooftop: not expressed: {text}", err=True)
    if out is None or as_json:
        emit(exported_json(made), lambda: exported_text(made), as_json)
