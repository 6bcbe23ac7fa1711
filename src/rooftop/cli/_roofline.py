"""rooftop roofline."""

from __future__ import annotations

import click

from rooftop.cli._common import SIZES, emit, json_option


@click.command(
    "roofline",
    epilog="""\b
Examples:
  rooftop roofline "bf16[B=512, D=8192] * bf16[D, F=28672] -> bf16[B, F]" --on v5e
  rooftop roofline "bf16[B, D] * int8[D, F] -> bf16[B, F]" --sizes B=64,D=8192,F=28672 --on v5e
""",
)
@click.argument("expression")
@click.option("--on", "where", required=True, metavar="CHIP", help="A chip, or a hardware file.")
@click.option("--sizes", type=SIZES, help="Sizes of axes that have none inline: B=512,D=8192.")
@click.option("--dtype", help="Dtype of the arithmetic.  [default: the widest input]")
@click.option(
    "--memory",
    default="hbm",
    show_default=True,
    type=click.Choice(["hbm", "fast", "host"]),
    help="Where the operands are.",
)
@json_option
def command(
    expression: str, where: str, sizes: dict[str, int] | None, dtype: str | None, memory: str, as_json: bool
) -> None:
    """The roofline of one op on one chip: FLOPs, bytes, intensity, bound, what binds it, critical sizes."""
    from rooftop.arrays import parse
    from rooftop.figures import op_chart, systolic_figures
    from rooftop.hardware import slice_of
    from rooftop.roofline import op_roofline
    from rooftop.views._roofline import roofline_json, roofline_text

    result = op_roofline(parse(expression), sizes or {}, slice_of(where).chip, dtype=dtype, memory=memory)
    emit(
        roofline_json(result),
        lambda: roofline_text(result),
        as_json,
        lambda: [op_chart(result), *systolic_figures(result)],
    )
