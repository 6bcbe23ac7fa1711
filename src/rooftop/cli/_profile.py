"""rooftop profile."""

from __future__ import annotations

import click

from rooftop.cli._common import emit, json_option


@click.command(
    "profile",
    epilog="""\b
Examples:
  rooftop profile train:step
  rooftop profile model:forward --shapes "bf16[8,1024]; bf16[1024,4096]" --steps 10 --out ./logdir
""",
)
@click.argument("function")
@click.option("--shapes", default="", metavar="SHAPES", help="Arguments: bf16[512,8192]; f32[16].")
@click.option("--steps", default=5, show_default=True, type=click.IntRange(1, 1000), help="Calls to record.")
@click.option("--out", type=click.Path(file_okay=False), help="Keep the profile in this folder.")
@click.option("--on", "where", metavar="CHIP", help="The chip or slice.  [default: what the profile names]")
@click.option("--top", default=15, show_default=True, type=click.IntRange(1, 10000), help="Rows of each table.")
@json_option
def command(
    function: str, shapes: str, steps: int, out: str | None, where: str | None, top: int, as_json: bool
) -> None:
    """Profile a function through JAX on this machine, and report as `rooftop trace` does.

    FUNCTION is MODULE:FUNCTION or FILE.py:FUNCTION, and does one step. It is called once to compile and then --steps times. With
    --shapes it is jitted and called with arrays of ones; without, it is called as it is.
    """
    import tempfile

    from rooftop.figures import trace_figures
    from rooftop.lower import load_function, parse_shapes
    from rooftop.profiles import analyse, capture, read
    from rooftop.views._trace import trace_json, trace_text

    loaded = load_function(function)
    arguments = parse_shapes(shapes)
    with tempfile.TemporaryDirectory() as temporary:
        folder = out or temporary
        capture(loaded, arguments, steps, folder)
        traces = read(folder)
    report = analyse(traces, where)
    emit(trace_json(report), lambda: trace_text(report, top), as_json, lambda: trace_figures(report, traces))
