"""Tables of columns on disk: CSV, JSON, or Parquet with the extra `parquet`; complete or not there at all."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooftop.errors import InputError, MissingExtra, RooftopError

#: One array of equal length for each column.
Columns = Mapping[str, NDArray[Any]]
ENDINGS = (".csv", ".json", ".parquet")


def check_path(path: Path) -> None:
    """Raise InputError for a file that could not be written: before any work is done for it."""
    if path.suffix not in ENDINGS:
        raise InputError(f"{path} does not end in {', '.join(ENDINGS)}; give one of them", field="out")
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise InputError(
            f"cannot write {path}: its folder is not there, or it is one; give the name of a file", field="out"
        )
    if path.suffix == ".parquet":
        _arrow()


def write_table(path: Path, columns: Columns) -> None:
    """Write a table; what was there before is replaced only when all is written."""
    check_path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if path.suffix == ".parquet":
            arrow, parquet = _arrow()
            parquet.write_table(arrow.table({n: arrow.array(_typed(c)) for n, c in columns.items()}), part)
        elif path.suffix == ".csv":
            with part.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(columns)
                writer.writerows(zip(*(_cells(c, "") for c in columns.values()), strict=True))
        else:
            with part.open("w", encoding="utf-8") as file:
                names = list(columns)
                rows = zip(*(_cells(c, None) for c in columns.values()), strict=True)
                file.write("[")
                for i, row in enumerate(rows):
                    file.write((",\n" if i else "\n") + json.dumps(dict(zip(names, row, strict=True)), allow_nan=False))
                file.write("\n]\n")
        part.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}; give another file", field="out") from None
    finally:
        part.unlink(missing_ok=True)


def _cells(column: NDArray[Any], missing: Any) -> list[Any]:
    return [missing if v is None or (isinstance(v, float) and not math.isfinite(v)) else v for v in column.tolist()]


def _typed(column: NDArray[Any]) -> Any:
    """A column as Arrow takes it: words and missing values as a list."""
    return column.tolist() if column.dtype.kind in "OU" else column


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra(
            "Parquet files need pyarrow; install it with pip install 'rooftop[parquet]', or write .csv", field="out"
        ) from None
    return pyarrow, pyarrow.parquet


class Journal:
    """Rows of points that are done, in a file beside the table, so that an interrupted sweep goes on where it was.

    Each line is a key and its row. A line that was cut short by an end of the process is left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(f"{path.name}.partial")
        self.rows: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            try:
                if self.path.stat().st_size > 4_000_000_000:
                    raise RooftopError(f"{self.path} is too large to go on from; delete it to start again")
                with self.path.open(encoding="utf-8") as file:
                    for line in file:
                        self._read(line)
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(
                    f"cannot read {self.path}: {str(error)[:100]}; delete it to start again", field="out"
                ) from None
        self._file = self.path.open("a", encoding="utf-8")
        self._file.write("\n")  # ends a line that was cut short

    def _read(self, line: str) -> None:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(found, dict) and isinstance(found.get("key"), str) and isinstance(found.get("row"), dict):
            self.rows[found["key"]] = found["row"]

    def add(self, key: str, row: dict[str, Any]) -> None:
        """Keep the row of a point."""
        self.rows[key] = row
        self._file.write(json.dumps({"key": key, "row": row}) + "\n")

    def flush(self) -> None:
        """Hand what was added to the system."""
        self._file.flush()

    def close(self, *, done: bool) -> None:
        """Close; the file goes when the table is written."""
        self._file.close()
        if done:
            self.path.unlink(missing_ok=True)


def column(values: list[Any]) -> NDArray[Any]:
    """A column of numbers, or of anything."""
    if all(isinstance(v, bool) for v in values):
        return np.array(values, dtype=np.bool_)
    if all(isinstance(v, int) and not isinstance(v, bool) and abs(v) < 2**62 for v in values):
        return np.array(values, dtype=np.int64)
    if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        return np.array(values, dtype=np.float64)
    result = np.empty(len(values), dtype=object)
    result[:] = values
    return result
