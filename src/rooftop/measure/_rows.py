"""Published training measurements: one row each, with its source; from the package or from a user's CSV file."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from rooftop._files import read_text
from rooftop.errors import InputError

_MOST_BYTES = 20_000_000
_NEEDED = ("id", "source", "model", "chip")


@dataclass(frozen=True, slots=True)
class Row:
    """One published measurement. None and "" where the source does not say.

    mesh: ways by axis as published: tp, pp, cp, vp, ep (Megatron's) or Rooftop's axes. microbatch: sequences of one group at a
    time; global_batch: sequences of a step. tflops_per_chip: model TFLOP/s by the source's own count of FLOPs.
    """

    id: str
    source: str
    kind: str
    model: str
    chip: str
    chips: int | None
    slices: int | None
    mesh: Mapping[str, int]
    microbatch: int | None
    global_batch: int | None
    seq: int | None
    precision: str
    recompute: str
    step_seconds: float | None
    tokens_per_second_per_chip: float | None
    tflops_per_chip: float | None

    @property
    def family(self) -> str:
        """The benchmark that the row belongs to: the id up to its first dot."""
        return self.id.partition(".")[0]


def published() -> tuple[Row, ...]:
    """The measurements in the package."""
    text = resources.files("rooftop.measure").joinpath("data/training.csv").read_text(encoding="utf-8")
    return _parse(text, "the published measurements")


def read_rows(path: Path) -> tuple[Row, ...]:
    """Measurements from a CSV file with the same columns. Raises InputError, naming row and column."""
    try:
        text = read_text(path, _MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read {path}: {str(error)[:120]}; give a CSV file of measurements", field="rows"
        ) from None
    return _parse(text, str(path))


def _parse(text: str, where: str) -> tuple[Row, ...]:
    try:
        table = list(csv.DictReader(io.StringIO(text)))
    except csv.Error as error:
        raise InputError(f"{where} is not CSV: {error}", field="rows") from None
    missing = [c for c in _NEEDED if not table or c not in table[0]]
    if missing:
        raise InputError(
            f"{where} has no column {missing[0]!r}; the columns needed are {', '.join(_NEEDED)}", field="rows"
        )
    return tuple(_row(cells, f"{where}, row {number}") for number, cells in enumerate(table, 2))


def _row(cells: Mapping[str, str | None], where: str) -> Row:
    def text(key: str) -> str:
        return (cells.get(key) or "").strip()

    def number(key: str) -> float | None:
        if not text(key):
            return None
        try:
            value = float(text(key))
        except ValueError:
            value = math.nan
        if not 0 < value < 1e15:
            raise InputError(f"{where}: {key} = {text(key)[:40]!r} is not a number above 0", field=key)
        return value

    def count(key: str) -> int | None:
        value = number(key)
        if value is not None and value != int(value):
            raise InputError(f"{where}: {key} = {text(key)[:40]!r} is not a whole number", field=key)
        return None if value is None else int(value)

    return Row(
        id=text("id"), source=text("source"), kind=text("kind"), model=text("model"), chip=text("chip"),
        chips=count("chips"), slices=count("slices"), mesh=_mesh(text("mesh"), where), microbatch=count("microbatch"),
        global_batch=count("global_batch"), seq=count("seq"), precision=text("precision"), recompute=text("recompute"),
        step_seconds=number("step_seconds"), tokens_per_second_per_chip=number("tokens_per_second_per_chip"),
        tflops_per_chip=number("tflops_per_chip"),
    )  # fmt: skip


def _mesh(text: str, where: str) -> Mapping[str, int]:
    try:
        data = json.loads(text or "{}")
        mesh = {str(k): int(v) for k, v in data.items()}
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise InputError(f"{where}: mesh = {text[:40]!r} is not an object of ways by axis", field="mesh") from None
    if any(not 0 <= w <= 10**7 for w in mesh.values()):
        raise InputError(f"{where}: mesh = {text[:40]!r} has ways out of range", field="mesh")
    return mesh
