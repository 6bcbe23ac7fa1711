"""rooftop hlo."""

from __future__ import annotations

from pathlib import Path

import click

from rooftop.cli._common import SIZES, emit, json_option


@click.command(
    "hlo",
    epilog="""\b
Examples:
  rooftop hlo module_0001.step.after_optimizations.txt --on v5e:4x4 --mesh fsdp=8,tensor=2
  rooftop hlo step.hlo --on h100 --json
""",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--on", "where", required=True, metavar="SLICE", help="Where the program runs: v5e:4x4, a hardware file.")
@click.option("--mesh", type=SIZES, help="Mesh axes whose row-major order numbers the devices: fsdp=8,tensor=2.")
@click.option(
    "--depth", default=1, show_default=True, type=click.IntRange(1, 20), help="Names of scopes to tell apart."
)
@click.option("--top", default=12, show_default=True, type=click.IntRange(1, 1000), help="Ops to show.")
@json_option
def command(file: Path, where: str, mesh: dict[str, int] | None, depth: int, top: int, as_json: bool) -> None:
    """What each op of a compiled program costs: FILE is optimised HLO text, as --xla_dump_to or as_text() write it."""
    from rooftop.hardware import slice_of
    from rooftop.lower import list_hlo, program_time, read_hlo
    from rooftop.views._program import program_json, program_text

    result = program_time(list_hlo(read_hlo(file), mesh=mesh, name=file.name), slice_of(where))
    emit(program_json(result, depth), lambda: program_text(result, depth, top), as_json)
