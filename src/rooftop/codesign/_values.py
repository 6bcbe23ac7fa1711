"""What `--vary NAME=...` says: lists, ranges with a factor, a step or a number of values, and multiples of what is there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rooftop.errors import InputError
from rooftop.units import parse_count

_MOST = 10_000_000


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a parameter: a number or a word; relative: a multiple of what the parameter is without it."""

    value: Any
    relative: bool = False


@dataclass(frozen=True, slots=True)
class Vary:
    """Parameters that take their values together (one, or several joined by +)."""

    names: tuple[str, ...]
    values: tuple[Value, ...]


#: Reads an absolute value of a parameter: (text, what the error calls it).
Reader = Callable[[str, str], Any]


def parse_vary(text: str, reader_of: Callable[[str], Reader]) -> Vary:
    """Read `NAME=VALUES`. Raises InputError.

    VALUES is a list of values and ranges: `1M,2M`, `1M..64M` (doubling), `1M..64M:x4` (a factor), `8..64:+8` (a step),
    `1M..64M:n9` (so many, in even ratios). `0.5x` is half of what is there; ranges of such are written `0.5x..4x`.
    """
    name, equals, told = text.partition("=")
    names = tuple(part.strip() for part in name.split("+"))
    if not equals or not told.strip() or not all(names) or len(text) > 10_000:
        raise InputError(
            f"--vary {text[:60]!r} is not NAME=VALUES; write a list or a range, such as batch=1M..64M:x2", field="vary"
        )
    readers = [reader_of(each) for each in names]
    found: list[Value] = []
    for item in _items(told):
        found += _range(names[0], item, readers[0])
    for each, read in zip(names[1:], readers[1:], strict=True):
        for value in found:
            if not value.relative:
                read(str(value.value), each)  # refuses what the other parameter cannot be
    return Vary(names, tuple(dict.fromkeys(found)))


def _items(told: str) -> list[str]:
    """Values of a list; commas inside brackets do not split."""
    items, depth = [""], 0
    for letter in told:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            items.append("")
        else:
            items[-1] += letter
    return [item.strip().removeprefix("[").removesuffix("]") for item in items]


def _range(name: str, item: str, read: Reader) -> list[Value]:
    low_text, dots, rest = item.partition("..")
    if not dots:
        return [_value(name, item, read)]
    high_text, colon, step = rest.partition(":")
    low, high = _value(name, low_text, read), _value(name, high_text, read)
    for value, shown in ((low, low_text), (high, high_text)):
        if not isinstance(value.value, (int, float)) or isinstance(value.value, bool) or value.value <= 0:
            raise InputError(
                f"{name}: {shown[:40]!r} cannot be the end of a range; give a number above 0, or a list", field=name
            )
    if low.relative != high.relative or high.value < low.value:
        raise InputError(
            f"{name}: {item[:60]!r} is not a range; write the smaller end first, both absolute or both multiples",
            field=name,
        )
    numbers = _numbers(name, item, float(low.value), float(high.value), step if colon else "x2")
    whole = not low.relative and isinstance(low.value, int)
    return [Value(round(n) if whole else n, low.relative) for n in numbers]


def _numbers(name: str, item: str, low: float, high: float, step: str) -> list[float]:
    problem = InputError(
        f"{name}: {item[:60]!r} has no step; write A..B:x2 (a factor), A..B:+8 (a step) or A..B:n9 (so many)",
        field=name,
    )
    kind, size = step[:1], step[1:]
    if kind not in ("x", "+", "n"):
        raise problem
    amount = parse_count(size, name)
    if kind == "n":
        count = int(amount)
        if count != amount or not 2 <= count <= _MOST:
            raise problem
        ends = [low, *(low * (high / low) ** (i / (count - 1)) for i in range(1, count - 1)), high]
        return list(dict.fromkeys(ends))
    if (kind == "x" and amount <= 1) or (kind == "+" and amount <= 0):
        raise problem
    span = math.log(high / low) / math.log(amount) if kind == "x" else (high - low) / amount
    if span >= _MOST:
        raise InputError(f"{name}: {item[:60]!r} has more than {_MOST:,} values; use a larger step", field=name)
    count = math.floor(span + 1e-9) + 1
    return [low * amount**i if kind == "x" else low + i * amount for i in range(count)]


def _value(name: str, text: str, read: Reader) -> Value:
    text = text.strip()
    if text[-1:] in ("x", "X") and text[:-1].replace(".", "", 1).replace("e-", "").isdigit():
        factor = parse_count(text[:-1], name)
        if factor <= 0:
            raise InputError(f"{name}: {text!r} is not a multiple; give a number above 0, such as 2x", field=name)
        return Value(factor, True)
    return Value(read(text, name))
