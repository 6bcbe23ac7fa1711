"""rooftop jax."""

from __future__ import annotations

import click

from rooftop.cli._common import INTEGER, emit, json_option
from rooftop.errors import InputError


@click.command(
    "jax",
    epilog="""\b
Examples:
  rooftop jax jax.numpy:matmul --shapes "bf16[4096,8192]; bf16[8192,8192]" --on v5e
  rooftop jax attention.py:flash --shapes "bf16[8,4096,128]; bf16[8,4096,128]; bf16[8,4096,128]" --on h100
  rooftop jax attention.py:naive --shapes "bf16[8,4096,128]; bf16[8,4096,128]; bf16[8,4096,128]" --versus attention.py:flash --on h100
""",
)
@click.argument("function")
@click.option("--shapes", default="", metavar="SHAPES", help="Arguments: bf16[512,8192]; f32[16].")
@click.option("--on", "where", required=True, metavar="SLICE", help="Where: v5e, v5p:4x4x4, a hardware file.")
@click.option("--versus", metavar="FUNCTION", help="Another function on the same arguments, side by side.")
@click.option("--devices", type=INTEGER, help="Simulated devices that JAX shall have, for functions that make a mesh.")
@click.option(
    "--depth", default=1, show_default=True, type=click.IntRange(1, 20), help="Names of scopes to tell apart."
)
@click.option("--top", default=12, show_default=True, type=click.IntRange(1, 1000), help="Ops to show.")
@json_option
def command(
    function: str, shapes: str, where: str, versus: str | None, devices: int | None, depth: int, top: int, as_json: bool
) -> None:
    """The roofline of any JAX function, op by op: FLOPs, bytes, collectives, what binds, the top offenders.

    FUNCTION is MODULE:FUNCTION or FILE.py:FUNCTION; its module is imported. Nothing is compiled or run on a device.
    """
    from rooftop.hardware import slice_of
    from rooftop.lower import function_time, load_function, parse_shapes
    from rooftop.views._program import program_json, program_text, versus_json, versus_text

    if devices is not None and not 1 <= devices <= 100_000:
        raise InputError(f"--devices {devices} is out of range; give 1 to 100,000", field="devices")
    there = slice_of(where)
    named = [function] if versus is None else [function, versus]
    functions = [load_function(name, devices=devices) for name in named]
    arguments = parse_shapes(shapes)
    results = [function_time(f, *arguments, where=there, name=name) for f, name in zip(functions, named, strict=True)]
    if versus is None:
        emit(program_json(results[0], depth), lambda: program_text(results[0], depth, top), as_json)
    else:
        first, second = results
        emit(versus_json(first, second, depth), lambda: versus_text(first, second, depth), as_json)
