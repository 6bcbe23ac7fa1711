"""rooftop collective."""

from __future__ import annotations

import click

from rooftop.cli._common import BYTES, SIZES, emit, json_option


@click.command(
    "collective",
    epilog="""\b
Examples:
  rooftop collective all-gather --bytes 34MB --axes X=16 --on v5e:16x16
  rooftop collective all-reduce --bytes 1GB --axes data=8 --on h100:8
""",
)
@click.argument("kind")
@click.option(
    "--bytes", "size", type=BYTES, required=True, help="The whole array of one group: what an all-gather ends with."
)
@click.option("--axes", type=SIZES, required=True, help="Mesh axes and sizes: X=16, or X=4,Y=4.")
@click.option("--on", "where", required=True, metavar="SLICE", help="The slice: v5e:16x16.")
@click.option("--one-way", is_flag=True, help="Rings send in one direction only.")
@json_option
def command(kind: str, size: float, axes: dict[str, int], where: str, one_way: bool, as_json: bool) -> None:
    """One collective: all-gather, reduce-scatter, all-reduce, all-to-all, permute or broadcast.

    --bytes is the whole array of one group: what an all-gather ends with, a reduce-scatter or all-reduce starts with, and an
    all-to-all holds over the group; for a permute it is one chip's block.
    """
    from rooftop.figures import collective_figures
    from rooftop.hardware import slice_of
    from rooftop.roofline import collective_time
    from rooftop.views._roofline import collective_json, collective_text

    result = collective_time(kind, size, axes, slice_of(where), one_way=one_way)
    emit(collective_json(result), lambda: collective_text(result), as_json, lambda: collective_figures(result))
