"""rooftop matmul."""

from __future__ import annotations

import click

from rooftop.cli._common import SIZES, emit, json_option


@click.command(
    "matmul",
    epilog="""\b
Examples:
  rooftop matmul "A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]" --sizes I=8192,J=8192,K=32768 --mesh X=4,Y=8 --on v5e:4x8
  rooftop matmul "A[I, J_X] * B[J_X, K] -> C[I, K_X]" --sizes I=8192,J=8192,K=32768 --mesh X=16 --on v5e:16x16
  rooftop matmul "A[I_X, J] -> A[I, J_X]" --sizes I=8192,J=8192 --mesh X=4 --on v4:4x4x4
""",
)
@click.argument("expression")
@click.option("--sizes", type=SIZES, help="Sizes of the array axes: I=8192,J=8192.")
@click.option("--mesh", type=SIZES, required=True, help="Sizes of the mesh axes: X=4,Y=8.")
@click.option("--on", "where", required=True, metavar="SLICE", help="The slice: v5e:4x8.")
@json_option
def command(expression: str, sizes: dict[str, int] | None, mesh: dict[str, int], where: str, as_json: bool) -> None:
    """The collectives that shardings force on an einsum (or a resharding), their time, and the other ways."""
    from rooftop.arrays import parse
    from rooftop.figures import matmul_figures
    from rooftop.hardware import slice_of
    from rooftop.roofline import matmul_time
    from rooftop.views._roofline import matmul_json, matmul_text

    result = matmul_time(parse(expression), sizes or {}, mesh, slice_of(where))
    emit(matmul_json(result), lambda: matmul_text(result), as_json, lambda: matmul_figures(result))
