"""Published measurements as tables: those in the package, or a user's CSV file. Cells stay text until a prediction reads them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from rooftop._files import read_text
from rooftop.errors import InputError

_MOST_BYTES = 50_000_000
#: Kind of table -> columns that it alone has; the first kind of which a file has any.
TABLES: Mapping[str, tuple[str, ...]] = {
    "serving": ("silicon_tpot_ms", "silicon_ttft_ms", "isl", "osl"),
    "inference": ("output_tokens_per_second_per_chip", "input_tokens", "output_tokens", "prefill_seconds"),
    "training": ("global_batch", "tokens_per_second_per_chip", "tflops_per_chip", "seq", "microbatch"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table. Reading a cell raises InputError that names the row and the column."""

    table: str
    id: str
    cells: Mapping[str, str]
    where: str

    def text(self, column: str) -> str:
        """A cell; "" where it is empty or the table has no such column."""
        return self.cells.get(column, "")

    def number(self, column: str) -> float | None:
        """A number above 0; None where it is not stated."""
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value < 1e15:
            raise InputError(f"{self.where}: {column} = {text[:40]!r} is not a number above 0", field=column)
        return value

    def count(self, column: str) -> int | None:
        """A whole number above 0; None where it is not stated."""
        value = self.number(column)
        if value is not None and value != int(value):
            raise InputError(f"{self.where}: {column} = {self.text(column)[:40]!r} is not a whole number", field=column)
        return None if value is None else int(value)

    def needed(self, column: str) -> int:
        """A whole number that a prediction cannot do without."""
        value = self.count(column)
        if value is None:
            raise InputError(f"{column} is not published", field=column)
        return value

    def ways(self, column: str) -> Mapping[str, int]:
        """Ways by mesh axis, written as a JSON object; empty where they are not stated."""
        text = self.text(column)
        try:
            mesh = {str(k): int(v) for k, v in json.loads(text or "{}").items()}
        except (ValueError, AttributeError, TypeError, OverflowError, RecursionError):
            raise InputError(
                f"{self.where}: {column} = {text[:40]!r} is not an object of ways by axis", field=column
            ) from None
        if any(not 0 <= w <= 10**7 for w in mesh.values()):
            raise InputError(f"{self.where}: {column} = {text[:40]!r} has ways out of range", field=column)
        return mesh


def published(table: str | None = None) -> tuple[Row, ...]:
    """The measurements in the package, of one kind of table or of all."""
    found: list[Row] = []
    for name in ("training", "inference", "serving") if table is None else (table,):
        folder = resources.files("rooftop.measure").joinpath("data")
        if name == "serving":  # thousands of rows that repeat each other
            text = gzip.decompress(folder.joinpath("serving.csv.gz").read_bytes()).decode("utf-8")
        else:
            text = folder.joinpath(f"{name}.csv").read_text(encoding="utf-8")
        found += _parse(text, name)
    return tuple(found)


def read_rows(path: Path) -> tuple[Row, ...]:
    """Measurements from a CSV file with the columns of one of the tables in the package. Raises InputError."""
    try:
        text = read_text(path, _MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read {path}: {str(error)[:120]}; give a CSV file of measurements", field="rows"
        ) from None
    return _parse(text.removeprefix("\ufeff"), str(path))


def select(
    rows: Sequence[Row], *, source: str | None = None, chip: str | None = None, sample: int | None = None
) -> list[Row]:
    """Rows whose id or source, and whose chip, contain a text; of these `sample` rows, evenly spread. Raises InputError for none."""
    found = [
        row
        for row in rows
        if (source is None or any(source in row.text(c) for c in ("id", "source", "silicon_data_source")))
        and (chip is None or any(chip in row.text(c) for c in ("chip", "system")))
    ]
    if not found:
        raise InputError(
            "no row is of that source and chip; see rooftop validate --rows for all of them", field="source"
        )
    if sample is not None and sample < len(found):
        return [found[i * len(found) // sample] for i in range(sample)]
    return found


def _parse(text: str, where: str) -> tuple[Row, ...]:
    try:
        reader = csv.DictReader(io.StringIO(text))
        columns = [(c or "").strip() for c in reader.fieldnames or ()]
        reader.fieldnames = columns
        lines = list(reader)
    except csv.Error as error:
        raise InputError(f"{where} is not CSV: {error}", field="rows") from None
    table = next((name for name, own in TABLES.items() if set(own) & set(columns)), None)
    if table is None or not lines:
        told = "; ".join(f"{name}: {', '.join(own)}" for name, own in TABLES.items())
        raise InputError(
            f"{where} has {'no rows' if table else 'none of the columns of measurements'}; give rows with columns of one of {told}",
            field="rows",
        )
    found = []
    for number, line in enumerate(lines, 2):
        cells = {k: v.strip() for k, v in line.items() if isinstance(k, str) and isinstance(v, str)}
        found.append(Row(table, cells.get("id") or f"row {number}", cells, f"{where}, row {number}"))
    return tuple(found)
