"""Tables of requests on disk, written in parts: CSV, or Parquet with the extra `parquet`."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from rooftop.errors import InputError, MissingExtra
from rooftop.simulation._record import COLUMNS, WHOLE, Sink


@contextmanager
def table_file(path: str) -> Iterator[Sink]:
    """A sink that writes to `path`, whose ending says the format: .csv or .parquet.

    What was there before is replaced only when all is written.
    """
    target = Path(path)
    if target.suffix not in (".csv", ".parquet"):
        raise InputError(f"{path} does not end in .csv or .parquet; give one of them", field="requests")
    if target.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file", field="requests")
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if target.suffix == ".csv":
            with part.open("w", encoding="utf-8", newline="") as file:
                yield _Csv(file)
        else:
            sink = _Parquet(part)
            try:
                yield sink
            finally:
                sink.close()
        part.replace(target)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}", field="requests") from None
    finally:
        part.unlink(missing_ok=True)


class _Csv:
    def __init__(self, file: IO[str]) -> None:
        self._writer = csv.writer(file)
        self._writer.writerow(COLUMNS)

    def write(self, table: dict[str, np.ndarray]) -> None:
        columns = []
        for name in COLUMNS:
            values = table[name].tolist()
            columns.append(["" if v != v else v for v in values] if name == "tpot_seconds" else values)
        self._writer.writerows(zip(*columns, strict=True))


class _Parquet:
    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise MissingExtra(
                "Parquet files need pyarrow; install it with pip install 'rooftop[parquet]', or write .csv",
                field="requests",
            ) from None
        self._arrow: Any = pyarrow
        kinds = {name: pyarrow.int64() if name in WHOLE else pyarrow.float64() for name in COLUMNS}
        kinds["met_slo"] = pyarrow.bool_()
        self._schema = pyarrow.schema(list(kinds.items()))
        self._writer: Any = pyarrow.parquet.ParquetWriter(str(path), self._schema)

    def write(self, table: dict[str, np.ndarray]) -> None:
        arrays = [
            self._arrow.array(table[name], type=self._schema.field(name).type, from_pandas=name == "tpot_seconds")
            for name in COLUMNS
        ]
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        self._writer.close()
