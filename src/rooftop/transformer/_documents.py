"""Documents of different lengths in sequences of one length: how they are cut, and what attention inside of them computes."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

from rooftop._files import read_text
from rooftop.errors import InputError
from rooftop.units import parse_count, parse_integer

#: Documents of a named distribution are as many lengths of equal probability.
_BINS = 1000
_MOST_BYTES = 20_000_000
_MOST = 10**8

#: (tokens, window, chunk) -> points that are computed; tokens may be an array.
Points = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Documents:
    """A distribution of document lengths: (tokens, share of the documents) by rising length; shares add up to 1.

    text: the distribution in the words of `documents_of`.
    """

    shares: tuple[tuple[int, float], ...]
    text: str = ""

    @property
    def mean(self) -> float:
        """Tokens of a document on average."""
        return sum(n * share for n, share in self.shares)

    @property
    def longest(self) -> int:
        """Tokens of the longest one."""
        return self.shares[-1][0]

    def laid(self, seq: int) -> Documents:
        """Pieces of documents that are laid end to end and cut wherever a sequence of `seq` tokens ends.

        Where documents begin in a sequence is, in the long run, uniform over the multiples of the greatest common divisor g of
        all lengths and `seq` (steps of a random walk on a cyclic group reach the subgroup that they generate, evenly).
        """
        import numpy as np

        g = math.gcd(seq, *(n for n, _ in self.shares))
        places = seq // g
        found = np.zeros(places + 1)  # by length in units of g
        for n, share in self.shares:
            length, each = n // g, share / places
            if length <= places:
                found[length] += each * (places - length + 1)
                found[1:length] += 2 * each  # cut in two: a beginning and an end of every length
            else:
                # a beginning of every length, an end of every length, whole sequences between them
                found[1:] += each
                found[1:places] += each
                found[places] += each * (length - places)
        return _normal({int(i) * g: float(found[i]) for i in np.nonzero(found > 0)[0]}, self.text)

    def split(self, seq: int) -> Documents:
        """Pieces of documents that have sequences of `seq` tokens to themselves: whole sequences of a longer one, and its rest."""
        found: dict[int, float] = {}
        for n, share in self.shares:
            whole, rest = divmod(n, seq)
            for length, count in ((seq, whole), (rest, 1)):
                if length and count:
                    found[length] = found.get(length, 0.0) + share * count
        return _normal(found, self.text)

    def seen(self, points: Points, plain: float, seq: int) -> Seen:
        """What attention inside of documents computes in a sequence that they fill. points: of one document, by its tokens;
        plain: the part where the sequence is one document.
        """
        import numpy as np

        n, share = (np.array(column, dtype=float) for column in zip(*self.shares, strict=True))
        work = points(n)
        tokens = float((share * n).sum())
        each = float((share * work).sum()) / tokens  # points of a token
        # of t tokens the variance is t / E[n] times that of work - each·n (renewal-reward processes; Smith, 1955)
        variance = float((share * (work - each * n) ** 2).sum()) / tokens
        part = each / seq
        return Seen(part, math.sqrt(variance) / each, max(1.0, plain / part))


@dataclass(frozen=True, slots=True)
class Seen:
    """The part of all points of a sequence that attention computes.

    spread: the standard deviation of the work of t tokens over its mean is spread/sqrt(t). most: no t tokens have more than
    so many times the mean.
    """

    part: float
    spread: float = 0.0
    most: float = 1.0

    @property
    def uneven(self) -> tuple[float, float] | None:
        """(spread, most), if the work differs at all."""
        return (self.spread, self.most) if self.spread > 1e-9 else None


def _normal(found: Mapping[int, float], text: str) -> Documents:
    whole = math.fsum(found.values())
    return Documents(tuple((n, found[n] / whole) for n in sorted(found)), text)


def documents_of(text: str, field: str | None = "lengths") -> Documents:
    """Read a distribution: lengths with how often they occur (`512*3,2048`), `exponential:MEAN`, `lognormal:MEAN:SIGMA`, or a
    file with a length on each line, or `length,count`. Raises InputError.
    """
    kind, _, numbers = text.strip().partition(":")
    if kind in ("exponential", "lognormal"):
        return _named(kind, numbers.split(":"), text.strip(), field)
    if re.match(r"\s*\d", text):
        return _listed((item.partition("*")[::2] for item in text.split(",")), text[:60], field)
    try:
        lines = read_text(Path(text), _MOST_BYTES).splitlines()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not a text"
        raise InputError(
            f"lengths {text[:60]!r} are neither lengths nor a file that can be read ({why}); give 2048, 512*3,2048,"
            " exponential:2048, lognormal:2048:1.2 or a file with a length on each line",
            field=field,
        ) from None
    rows = [line.replace(";", ",").partition(",")[::2] for line in lines if line.strip()]
    if rows and not rows[0][0].strip()[:1].isdigit():
        rows = rows[1:]  # a header
    return _listed(rows, Path(text).name, field)


def _listed(rows: Iterable[tuple[str, str]], where: str, field: str | None) -> Documents:
    found: dict[int, float] = {}
    for length, count in rows:
        try:
            n = parse_integer(length.strip(), field)
            times = parse_count(count.strip(), field) if count.strip() else 1.0
        except InputError as error:
            raise InputError(f"lengths of {where}: {error.message}", field=field) from None
        if not (1 <= n <= _MOST and 0 < times < math.inf):
            raise InputError(
                f"lengths of {where}: {n} tokens, {times:g} times, is no document; give lengths of 1 to 100M tokens",
                field=field,
            )
        found[n] = found.get(n, 0.0) + times
    if not found:
        raise InputError(f"lengths of {where}: there are none; give a length on each line", field=field)
    shown = ",".join(f"{n}*{times:g}" if times != 1 else str(n) for n, times in sorted(found.items()))
    return _normal(found, shown)


def _named(kind: str, numbers: list[str], text: str, field: str | None) -> Documents:
    try:
        mean, *sigma = (float(parse_count(n, field)) for n in numbers)
        if not (1 <= mean <= _MOST and len(sigma) == (kind == "lognormal") and all(0 < s <= 4 for s in sigma)):
            raise ValueError
    except (InputError, ValueError):
        raise InputError(
            f"lengths {text[:60]!r} are not a distribution; use exponential:MEAN or lognormal:MEAN:SIGMA with a mean of 1 to"
            " 100M tokens and a sigma above 0, at most 4",
            field=field,
        ) from None
    below = _exponential(mean) if kind == "exponential" else _lognormal(mean, sigma[0])
    edges = [i / _BINS for i in range(_BINS + 1)]
    parts = [below(p) for p in edges]
    found: dict[int, float] = {}
    for low, high in itertools.pairwise(parts):
        n = min(_MOST, max(1, round((high - low) * _BINS)))
        found[n] = found.get(n, 0.0) + 1 / _BINS
    return _normal(found, text)


def _exponential(mean: float) -> Callable[[float], float]:
    """The part of the mean that lies below a quantile."""

    def below(p: float) -> float:
        return mean if p >= 1 else mean * (p + (1 - p) * math.log1p(-p))

    return below


def _lognormal(mean: float, sigma: float) -> Callable[[float], float]:
    normal = NormalDist()

    def below(p: float) -> float:
        if p in (0.0, 1.0):
            return mean * p
        return mean * normal.cdf(normal.inv_cdf(p) - sigma)

    return below


@functools.lru_cache(maxsize=64)
def pieces_of(documents: Documents, seq: int, packed: bool) -> Documents:
    """The pieces of documents in sequences of `seq` tokens: laid end to end, or each in a sequence of its own."""
    return documents.laid(seq) if packed else documents.split(seq)
