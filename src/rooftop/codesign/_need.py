"""What `--need NAME>=VALUE` says: a goal for a column of a row."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rooftop.codesign._answers import Row
from rooftop.errors import InputError, nearest
from rooftop.units import parse_bytes, parse_count, parse_seconds, parse_usd

_FORM = re.compile(r"([A-Za-z_][A-Za-z0-9_.]{0,60})\s*(>=|<=|=|>|<)\s*([^\s<>=].{0,60})")
_SHARES = ("mfu", "utilisation", "slo_attainment", "kv_occupancy")
#: What may follow a short name, in this order: `mfu` is `mfu.expected`, `tpot` is `tpot_seconds.expected` or `tpot_seconds.p99`.
_ENDINGS = ("", ".expected", "_seconds.expected", ".p99", "_seconds.p99", "_per_million_tokens", ".bytes")
_RELATIONS = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}


@dataclass(frozen=True, slots=True)
class Need:
    """A goal. name: of a column, perhaps short; relation: >=, <=, >, < or, of words, =. told: the value as it was written."""

    name: str
    relation: str
    value: Any
    told: str

    def __str__(self) -> str:
        return f"{self.name} {self.relation} {self.told}"

    def column(self, columns: Iterable[str]) -> str:
        """The full name of the column that is meant. Raises InputError."""
        known = list(columns)
        for ending in _ENDINGS:
            if self.name + ending in known:
                return self.name + ending
        raise InputError(
            f"unknown goal {self.name!r}{nearest(self.name, known)}; use one of {', '.join(known)}", field="need"
        )

    def met(self, row: Row) -> bool:
        """Whether a row has what is needed; rows without an answer and what does not fit do not."""
        if row.get("error") or (row.get("fits") is False and self.name != "memory"):
            return False
        held = row[self.column(row)]
        if self.relation == "=":
            return bool(_word(held) == self.value)
        return held is not None and bool(_RELATIONS[self.relation](held, self.value))

    def missing(self, row: Row) -> float:
        """How far a row is from what is needed, in the logarithm; infinite where it has no answer or cannot be told."""
        if row.get("error"):
            return math.inf
        held = row[self.column(row)]
        if self.relation == "=" or isinstance(held, (str, bool)) or not held or not self.value:
            return 0.0 if self.met(row) else math.inf
        gap = math.log(self.value / held) if self.relation.startswith(">") else math.log(held / self.value)
        over = math.log(row["memory.bytes"] / row["memory.capacity_bytes"]) if row.get("fits") is False else 0.0
        return max(gap, over, 0.0)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_need(text: str) -> Need:
    """Read a goal such as `mfu>=0.5`, `tpot<=20ms`, `bottleneck=compute`. Raises InputError."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise InputError(
            f"--need {text[:60]!r} is not a goal; write NAME>=VALUE or NAME<=VALUE, such as mfu>=0.5 or tpot<=20ms",
            field="need",
        )
    name, relation, told = found.groups()
    told = told.strip()
    return Need(name, relation, told if relation == "=" else _value(name, told), told)


def _value(name: str, told: str) -> float:
    if told.endswith("%"):
        return parse_count(told[:-1], "need") / 100
    if "per_second" in name or name.split(".")[0] in _SHARES:
        return parse_count(told, "need")
    if "seconds" in name or name.split(".")[0] in ("ttft", "tpot", "e2e"):
        return parse_seconds(told, "need")
    if "bytes" in name or name == "memory":
        return float(parse_bytes(told, "need"))
    return float((parse_usd if name.startswith("usd") else parse_count)(told, "need"))
