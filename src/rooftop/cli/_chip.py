"""rooftop chip."""

from __future__ import annotations

import click

from rooftop.cli._common import emit, json_option


@click.command("chip")
@click.argument("name", required=False)
@json_option
def command(name: str | None, as_json: bool) -> None:
    """What is known of chip NAME, each figure with its source; without a name, all chips."""
    from rooftop.hardware import chip, chips
    from rooftop.views._hardware import chip_json, chip_text, chips_text

    if name is None:
        every = [chip(n) for n in chips()]
        emit({"chips": [chip_json(c) for c in every]}, lambda: chips_text(every), as_json)
        return
    one = chip(name)
    emit(chip_json(one), lambda: chip_text(one), as_json)
