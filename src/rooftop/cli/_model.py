"""rooftop model."""

from __future__ import annotations

import click

from rooftop.cli._common import INTEGER, emit, json_option
from rooftop.errors import InputError


@click.command("model")
@click.argument("model", required=False)
@click.option(
    "--seq", type=INTEGER, default=4096, show_default=True, help="Sequence length for attention FLOPs and activations."
)
@json_option
def command(model: str | None, seq: int, as_json: bool) -> None:
    """Parameters, FLOPs, KV cache and activations of MODEL, by part; without a model, the catalogue.

    MODEL is a name of the catalogue, the path of a config.json or of its folder, or numbers:
    layers=48,d_model=6144,heads=64,d_ff=24576,vocab=51200.
    """
    from rooftop.transformer import architecture, models, parameters
    from rooftop.units import format_count
    from rooftop.views import table
    from rooftop.views._model import model_json, model_text

    if model is None:
        every = [architecture(n) for n in models()]
        data = {
            "models": [
                {"name": a.name, "parameters": parameters(a).total, "source": a.source, "date": a.date} for a in every
            ]
        }
        rows = [(a.name, format_count(parameters(a).total), a.date, a.source) for a in every]
        emit(data, lambda: table("Catalogue", ("name", ">parameters", "date", "source"), rows), as_json)
        return
    if not 1 <= seq <= 10**8:
        raise InputError(f"--seq: {seq} is not a sequence length; give 1 to 100M tokens", field="seq")
    arch = architecture(model)
    emit(model_json(arch, seq), lambda: model_text(arch, seq), as_json)
