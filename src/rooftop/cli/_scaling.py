"""rooftop scaling."""

from __future__ import annotations

import click

from rooftop.cli._common import COUNT, DAYS, INTEGER, emit, json_option, model_named
from rooftop.errors import InputError


@click.command(
    "scaling",
    epilog="""\b
Examples:
  rooftop scaling llama-3-8b
  rooftop scaling --flops 1e24
  rooftop scaling --on h100:1024 --days 30 --mfu 0.4
""",
)
@click.argument("model", required=False)
@click.option("--flops", type=COUNT, help="A budget of training FLOPs.")
@click.option("--on", "where", metavar="SLICE", help="A budget of chips ...")
@click.option("--days", type=DAYS, help="... for so many days")
@click.option("--mfu", type=float, help="... at this model FLOPs utilisation.")
@click.option(
    "--seq", type=INTEGER, default=4096, show_default=True, help="Tokens of a sequence, for exact FLOPs of MODEL."
)
@click.option("--precision", default="bf16", show_default=True, help="The dtype whose peak --mfu is of.")
@json_option
def command(
    model: str | None, flops: float | None, where: str | None, days: float | None, mfu: float | None, seq: int,
    precision: str, as_json: bool,
) -> None:  # fmt: skip
    """Compute-optimal training (Hoffmann et al., 2022): tokens for MODEL, or model and tokens for a budget of FLOPs."""
    from rooftop.hardware import slice_of
    from rooftop.training import optimal_for_chips, optimal_for_flops, optimal_for_model
    from rooftop.views._plan import laws_json, laws_text

    if sum(x is not None for x in (model, flops, where)) != 1:
        raise InputError("give one of MODEL, --flops, or --on SLICE with --days and --mfu", field="model")
    if (where is None) != (days is None) or (where is None) != (mfu is None):
        raise InputError("--on, --days and --mfu make one budget; give all three", field="days")
    if model is not None:
        found = optimal_for_model(model_named(model), seq)
    elif where is not None and days is not None and mfu is not None:
        found = optimal_for_chips(slice_of(where), days, mfu, precision)
    else:
        assert flops is not None
        found = optimal_for_flops(flops)
    emit(laws_json(found), lambda: laws_text(found), as_json)
