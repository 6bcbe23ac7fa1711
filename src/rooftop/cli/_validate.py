"""rooftop validate."""

from __future__ import annotations

from pathlib import Path

import click

from rooftop.cli._common import emit, json_option
from rooftop.errors import InputError


@click.command(
    "validate",
    epilog="""\b
Examples:
  rooftop validate --source seqpar --rows
  rooftop validate --table serving --sample 100
  rooftop validate mine.csv --json
""",
)
@click.argument("file", metavar="[ROWS.csv]", type=click.Path(path_type=Path), required=False)
@click.option(
    "--table",
    type=click.Choice(["training", "inference", "serving"]),
    help="Only this table of the package. [training]",
)
@click.option("--source", help="Only rows whose id or source contains this text.")
@click.option("--chip", help="Only rows of chips whose name contains this text.")
@click.option("--sample", type=click.IntRange(1), metavar="N", help="Only so many rows, evenly spread over the table.")
@click.option(
    "--by", type=click.Choice(["kind", "source", "hardware", "model"]), default="kind", help="Also errors by."
)
@click.option("--rows", is_flag=True, help="Show every row.")
@json_option
def command(
    file: Path | None, table: str | None, source: str | None, chip: str | None, sample: int | None, by: str, rows: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Predictions of published runs, each of the plan as published, beside what was measured.

    ROWS.csv holds measurements of your own, with the columns of the tables in the package: training steps (chips, mesh, global_batch,
    seq, precision, step_seconds), throughput at maximum load (input_tokens, output_tokens,
    output_tokens_per_second_per_chip), or times under load (isl, osl, batch_size, tp_size, silicon_ttft_ms,
    silicon_tpot_ms). Rows that cannot be predicted say why. Exits with 1 where a measurement is faster than its bound.
    """
    from rooftop.measure import published, read_rows, select, validate
    from rooftop.views._progress import progress_bar
    from rooftop.views._validate import validation_json, validation_text

    if file is not None and table is not None:
        raise InputError("--table chooses a table of the package; leave it out with a file", field="table")
    rows_of = published(table or "training") if file is None else read_rows(file)
    found = select(rows_of, source=source, chip=chip, sample=sample)
    with progress_bar("predicting", quiet=as_json) as advance:
        result = validate(found, progress=advance)
    if not result.predictions and file is None:
        raise InputError(f"none of the {len(found)} rows can be predicted: {result.refused[0].reason}", field="source")
    emit(validation_json(result), lambda: validation_text(result, rows=rows, by=by), as_json)
    return 1 if any(p.beats_bound for p in result.predictions) else 0
