"""rooftop slice."""

from __future__ import annotations

import click

from rooftop.cli._common import emit, json_option


@click.command("slice")
@click.argument("where", metavar="SLICE")
@json_option
def command(where: str, as_json: bool) -> None:
    """Chips, hosts, totals and networks of a slice: v5e:4x8, v5p:8x8x16*4, h100:1024, a hardware file."""
    from rooftop.hardware import slice_of
    from rooftop.views._hardware import slice_json, slice_text

    found = slice_of(where)
    emit(slice_json(found), lambda: slice_text(found), as_json)
