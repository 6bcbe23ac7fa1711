"""rooftop model."""

from __future__ import annotations

import click

from rooftop.cli._common import INTEGER, emit, json_option, model_named
from rooftop.errors import InputError


@click.command("model")
@click.argument("names", metavar="[MODEL]...", nargs=-1)
@click.option(
    "--seq", type=INTEGER, default=4096, show_default=True, help="Sequence length for attention FLOPs and activations."
)
@json_option
def command(names: tuple[str, ...], seq: int, as_json: bool) -> None:
    """Parameters, FLOPs, KV cache and activations of MODEL, by part; several models side by side; without one, the
    catalogue.

    MODEL is a name of the catalogue, the path of a config.json or of its folder, a hub id, or numbers:
    layers=48,d_model=6144,heads=64,d_ff=24576,vocab=51200.
    """
    from rooftop.transformer import architecture, models, parameters
    from rooftop.units import format_count
    from rooftop.views import table
    from rooftop.views._model import compare_json, compare_text, model_json, model_text

    if not names:
        every = [(a, parameters(a)) for a in map(architecture, models())]
        data = {
            "models": [
                {"name": a.name, "parameters": p.total, "active": p.active, "source": a.source, "date": a.date}
                for a, p in every
            ]
        }
        rows = [
            (a.name, format_count(p.total), format_count(p.active) if p.active != p.total else "", a.date, a.source)
            for a, p in every
        ]
        emit(data, lambda: table("Catalogue", ("name", ">parameters", ">active", "date", "source"), rows), as_json)
        return
    if not 1 <= seq <= 10**8:
        raise InputError(f"--seq: {seq} is not a sequence length; give 1 to 100M tokens", field="seq")
    if len(names) > 12:
        raise InputError(f"{len(names)} models do not fit side by side; give at most 12", field="model")
    found = [model_named(name) for name in names]
    if len(found) == 1:
        emit(model_json(found[0], seq), lambda: model_text(found[0], seq), as_json)
        return
    emit(compare_json(found, seq), lambda: compare_text(found, seq), as_json)
