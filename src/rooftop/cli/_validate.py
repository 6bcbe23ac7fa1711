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
  rooftop validate --chip h100 --json
  rooftop validate --file mine.csv
""",
)
@click.option(
    "--file", type=click.Path(path_type=Path), help="A CSV file of measurements instead of those in the package."
)
@click.option("--source", help="Only rows whose id or source contains this text.")
@click.option("--chip", help="Only rows of chips whose name contains this text.")
@click.option("--rows", is_flag=True, help="Show every row.")
@json_option
def command(file: Path | None, source: str | None, chip: str | None, rows: bool, as_json: bool) -> int:
    """Predictions of published training runs, each of the plan as published, beside what was measured.

    Exits with 1 where a measurement is faster than its bound.
    """
    from rooftop.measure import published, read_rows, validate
    from rooftop.views._progress import progress_bar
    from rooftop.views._validate import validation_json, validation_text

    found = [
        row
        for row in (published() if file is None else read_rows(file))
        if (source is None or source in row.id or source in row.source) and (chip is None or chip in row.chip)
    ]
    if not found:
        raise InputError(
            "no row is of that source and chip; see rooftop validate --rows for all of them", field="source"
        )
    with progress_bar("predicting", quiet=as_json) as advance:
        result = validate(found, progress=advance)
    if not result.predictions:
        raise InputError(f"none of the {len(found)} rows can be predicted: {result.skipped[0].reason}", field="source")
    emit(validation_json(result), lambda: validation_text(result, rows=rows), as_json)
    return 1 if any(p.beats_bound for p in result.predictions) else 0
