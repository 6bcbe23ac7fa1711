"""Traces of requests: CSV and JSON lines, read line by line. Errors name the line and the column."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, NoReturn

from rooftop.errors import InputError
from rooftop.simulation._request import Part, Request
from rooftop.simulation._workload import Source

_LONGEST_LINE = 4_000_000
_MOST_TOKENS = 10_000_000
_MOST_SECONDS = 1e10

#: Meaning -> columns that have it, in any case of letters, each with the factor that makes seconds of arrivals.
_COLUMNS: dict[str, tuple[str, ...]] = {
    "arrival": ("arrival", "arrival_seconds", "arrived_at", "timestamp"),
    "input": (
        "input_tokens",
        "contexttokens",
        "input_length",
        "num_prefill_tokens",
        "prompt_tokens",
        "input",
        "prompt",
    ),
    "output": ("output_tokens", "generatedtokens", "output_length", "num_decode_tokens", "completion_tokens", "output"),
    "prefix_id": ("prefix_id",),
    "prefix_tokens": ("prefix_tokens",),
    "hash_ids": ("hash_ids",),
    "priority": ("priority",),
    "client": ("client",),
}
#: Tokens that one of Mooncake's hashes stands for (its trace's README: block size 512).
HASH_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Trace:
    """The requests of a file, `factor` times as fast as they came. The first one comes at 0."""

    path: Path
    factor: float = 1.0

    @property
    def random(self) -> bool:
        """The file says it all."""
        return False

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.name + (f", {self.factor:.4g} times as fast" if self.factor != 1.0 else "")

    def requests(self, seed: int) -> Source:
        """The requests, one line after the other."""
        return Source(self._read())

    def _read(self) -> Iterator[Request]:
        rows = _json_lines if self.path.suffix in (".jsonl", ".ndjson", ".json") else _csv
        first, last = math.nan, -math.inf
        try:
            with self.path.open(encoding="utf-8", newline="") as file:
                for number, row in enumerate(rows(file, self.path.name)):
                    if number == 0:
                        first = row.arrival
                    if row.arrival < last:
                        row.fail("arrival", "is before the line above it; sort the file by arrival")
                    last = row.arrival
                    yield Request(
                        number, (row.arrival - first) / self.factor, row.input, row.output, row.parts(), row.priority,
                        row.client,
                    )  # fmt: skip
        except OSError as error:
            raise InputError(
                f"cannot read the workload {self.path}: {error.strerror or error}", field="workload"
            ) from None
        except UnicodeDecodeError:
            raise InputError(f"the workload {self.path} is not text in UTF-8", field="workload") from None
        if math.isnan(first):
            raise InputError(f"the workload {self.path} has no requests; give at least one line", field="workload")

    def scaled(self, factor: float) -> Trace:
        """The same trace, faster."""
        return Trace(self.path, self.factor * factor)


class _Row:
    """One line; `get` gives the value of a meaning and the name of its column."""

    __slots__ = ("arrival", "client", "file", "input", "line", "names", "output", "priority", "values")

    def __init__(self, file: str, line: int, names: dict[str, str], values: dict[str, Any]) -> None:
        self.file, self.line, self.names, self.values = file, line, names, values
        self.arrival = self._arrival()
        self.input = self._tokens("input")
        self.output = self._tokens("output")
        self.priority = self._whole("priority", -(10**6), 10**6) if "priority" in names else 0
        self.client = str(values[names["client"]])[:200] if "client" in names else ""

    def fail(self, meaning: str, problem: str) -> NoReturn:
        """Say what is wrong, and where."""
        column = self.names.get(meaning, meaning)
        value = self.values.get(column)
        raise InputError(
            f"{self.file}, line {self.line}, column {column}: {str(value)[:40]!r} {problem}", field="workload"
        )

    def _arrival(self) -> float:
        column = self.names["arrival"]
        value = self.values[column]
        seconds = _number(value)
        if seconds is None and isinstance(value, str) and column.lower() == "timestamp":
            try:
                moment = datetime.fromisoformat(value.strip())
                seconds = (moment.replace(tzinfo=None) - (moment.utcoffset() or _NOTHING) - _EPOCH).total_seconds()
            except (ValueError, OverflowError):
                seconds = None
        elif seconds is not None and column == "timestamp":
            seconds /= 1000.0  # Mooncake's are milliseconds
        if seconds is None or not -_MOST_SECONDS <= seconds <= 10 * _MOST_SECONDS:
            self.fail(
                "arrival", "is not a time; give seconds, milliseconds as `timestamp`, or a date and time as TIMESTAMP"
            )
        return seconds

    def _tokens(self, meaning: str) -> int:
        return self._whole(meaning, 1, _MOST_TOKENS)

    def _whole(self, meaning: str, least: int, most: int) -> int:
        number = _number(self.values[self.names[meaning]])
        if number is None or number != int(number) or not least <= number <= most:
            self.fail(meaning, f"is not a whole number from {least} to {most}")
        return int(number)

    def parts(self) -> tuple[Part, ...]:
        """What is known of the tokens of its prompt."""
        if "hash_ids" in self.names:
            ids = self.values[self.names["hash_ids"]]
            if isinstance(ids, str):
                try:
                    ids = json.loads(ids)
                except (ValueError, RecursionError):
                    ids = None
            if not isinstance(ids, list) or not all(isinstance(i, int) and i >= 0 for i in ids):
                self.fail("hash_ids", "is not a list of whole numbers of 0 or more")
            if len(ids) > -(-self.input // HASH_TOKENS):
                self.fail(
                    "hash_ids",
                    f"has {len(ids)} hashes, more than one for each {HASH_TOKENS} of {self.input} input tokens",
                )
            return tuple((i, min(self.input, HASH_TOKENS * n)) for n, i in enumerate(ids, 1))
        if "prefix_id" not in self.names or self.values[self.names["prefix_id"]] in (None, ""):
            return ()
        tokens = self.input + self.output  # a conversation: what comes next repeats the answer, too
        if "prefix_tokens" in self.names:
            tokens = self._whole("prefix_tokens", 0, self.input)
        return ((str(self.values[self.names["prefix_id"]])[:200], tokens),)


_EPOCH = datetime(1970, 1, 1)
_NOTHING = _EPOCH - _EPOCH


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _meanings(file: str, line: int, columns: list[str]) -> dict[str, str]:
    """Meaning -> the column that has it."""
    lower = {c.strip().lower(): c for c in reversed(columns)}
    found = {m: lower[n] for m, names in _COLUMNS.items() for n in reversed(names) if n in lower}
    for meaning in ("arrival", "input", "output"):
        if meaning not in found:
            raise InputError(
                f"{file}, line {line}: no column for {meaning}; name it {' or '.join(_COLUMNS[meaning])}, beside "
                f"{', '.join(c[:40] for c in columns[:12]) or 'nothing'}",
                field="workload",
            )
    if "prefix_tokens" in found and "prefix_id" not in found:
        raise InputError(f"{file}, line {line}: prefix_tokens without prefix_id; name both columns", field="workload")
    return found


def _lines(file: IO[str], name: str) -> Iterator[str]:
    line = 0
    while text := file.readline(_LONGEST_LINE):
        line += 1
        if len(text) >= _LONGEST_LINE:
            raise InputError(f"{name}, line {line} is longer than {_LONGEST_LINE} characters", field="workload")
        yield text


def _csv(file: IO[str], name: str) -> Iterator[_Row]:
    reader = csv.reader(_lines(file, name), strict=True)
    try:
        header = next(reader, None)
        if header is None:
            return
        header[0] = header[0].lstrip("\ufeff")
        names = _meanings(name, 1, header)
        for values in reader:
            if not values:
                continue
            if len(values) != len(header):
                raise InputError(
                    f"{name}, line {reader.line_num}, column {header[min(len(values), len(header) - 1)]}: {len(values)} values "
                    f"where the header has {len(header)}",
                    field="workload",
                )
            yield _Row(name, reader.line_num, names, dict(zip(header, values, strict=True)))
    except csv.Error as error:
        raise InputError(f"{name}, line {reader.line_num}: not CSV: {error}", field="workload") from None


def _json_lines(file: IO[str], name: str) -> Iterator[_Row]:
    names: dict[str, str] = {}
    columns: tuple[str, ...] = ()
    for line, text in enumerate(_lines(file, name), 1):
        if not text.strip():
            continue
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            column = getattr(error, "colno", 1)
            raise InputError(
                f"{name}, line {line}, column {column}: not JSON: {error}"[:200], field="workload"
            ) from None
        if not isinstance(values, dict):
            raise InputError(f"{name}, line {line}: not a JSON object; write one for each request", field="workload")
        if tuple(values) != columns:
            columns = tuple(values)
            names = _meanings(name, line, list(columns))
        yield _Row(name, line, names, values)
