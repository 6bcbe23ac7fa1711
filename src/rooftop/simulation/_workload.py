"""Workloads: where requests come from. Traces are in `_traces`; here are the synthetic ones."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np

from rooftop.errors import InputError, nearest
from rooftop.simulation._request import Part, Request

_CHUNK = 4096
_MOST_TOKENS = 10_000_000


class Source:
    """The requests of one simulation that wait for no other, and those that follow others."""

    def __init__(self, requests: Iterator[Request]) -> None:
        self._requests = requests

    def __iter__(self) -> Iterator[Request]:
        return self._requests

    def following(self, request: Request) -> Request | None:
        """The request that the user of a finished one sends next, if users wait for answers."""
        return None


class Workload(Protocol):
    """Requests in the order of arrival."""

    @property
    def name(self) -> str:
        """What it is, in a line."""

    @property
    def random(self) -> bool:
        """Whether another seed gives other requests."""

    def requests(self, seed: int) -> Source:
        """The requests; the same seed gives the same ones. Only what is being read is in memory."""

    def scaled(self, factor: float) -> Workload:
        """The same requests, coming `factor` times as fast."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts: `1000` fixed, `500..1500` uniform, `1000~0.5` lognormal with that coefficient of
    variation, `1000~exp` exponential. Draws are whole and at least 1."""

    text: str
    kind: str
    first: float
    second: float = 0.0

    def draw(self, random: np.random.Generator, count: int) -> list[int]:
        """So many lengths."""
        if self.kind == "fixed":
            return [int(self.first)] * count
        if self.kind == "uniform":
            return [int(n) for n in random.integers(int(self.first), int(self.second) + 1, count)]
        if self.kind == "exponential":
            drawn = random.exponential(self.first, count)
        else:
            variance = math.log1p(self.second**2)
            drawn = random.lognormal(math.log(self.first) - variance / 2, math.sqrt(variance), count)
        return [int(n) for n in np.clip(np.rint(drawn), 1, _MOST_TOKENS)]


def lengths(text: str, field: str) -> Lengths:
    """Read a distribution of lengths. Raises InputError."""
    problem = InputError(
        f"{field} = {text[:40]!r} is not a distribution of tokens; write 1000, 500..1500, 1000~0.5 (lognormal) or 1000~exp",
        field="workload",
    )
    number = r"\d{1,8}"
    if match := re.fullmatch(rf"({number})", text):
        found = Lengths(text, "fixed", int(match[1]))
    elif match := re.fullmatch(rf"({number})\.\.({number})", text):
        found = Lengths(text, "uniform", int(match[1]), int(match[2]))
        if found.second < found.first:
            raise problem
    elif match := re.fullmatch(rf"({number})~exp", text):
        found = Lengths(text, "exponential", int(match[1]))
    elif match := re.fullmatch(rf"({number})~(\d{{0,3}}\.?\d{{0,6}})", text):
        try:
            found = Lengths(text, "lognormal", int(match[1]), float(match[2]))
        except ValueError:
            raise problem from None
    else:
        raise problem
    if not 1 <= found.first <= _MOST_TOKENS or found.second > _MOST_TOKENS:
        raise problem
    return found


#: Kind of arrivals -> seconds between them, for a mean of one second: (random, count, parameters).
_GAPS: dict[str, Callable[[np.random.Generator, int, Synthetic], np.ndarray]] = {
    "constant": lambda random, count, w: np.ones(count),
    "poisson": lambda random, count, w: random.exponential(1.0, count),
    "gamma": lambda random, count, w: random.gamma(w.cv**-2, w.cv**2, count),
    "bursty": lambda random, count, w: _bursts(random, count, w.burst, w.on * w.rate),
}


def _bursts(random: np.random.Generator, count: int, burst: float, on: float) -> np.ndarray:
    """An interrupted Poisson process: bursts of `burst` times the mean rate, exponential, of mean length `on`, between
    silences that bring the mean back to one. A gap in which the burst ends has silences added to it."""
    gaps = random.exponential(1.0 / burst, count)
    silences = random.poisson(gaps / on)
    return gaps + random.standard_gamma(silences) * (on * (burst - 1.0))


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Requests drawn at random.

    arrivals: "poisson", "gamma" (gaps with a coefficient of variation `cv`), "constant", "bursty" (bursts of `burst` times
    the rate that last `on` seconds on average, silence between them), or "closed": `users` who each send a request, wait
    for its answer, think for an exponential time of mean `think` seconds, and send the next.
    prefixes: so many prefixes of prefix_tokens tokens, one of which begins each prompt.
    """

    arrivals: str
    input: Lengths
    output: Lengths
    count: int = 10_000
    rate: float = 1.0
    cv: float = 1.0
    burst: float = 4.0
    on: float = 10.0
    users: int = 1
    think: float = 0.0
    prefixes: int = 0
    prefix_tokens: int = 0

    @property
    def random(self) -> bool:
        """Another seed gives other requests."""
        return True

    @property
    def name(self) -> str:
        """What it is, in a line."""
        pace = f"{self.users} users" if self.arrivals == "closed" else f"{self.rate:g}/s"
        return f"{self.count:,} requests, {self.arrivals} {pace}, {self.input.text} in, {self.output.text} out"

    def requests(self, seed: int) -> Source:
        """The requests, and with users who wait, those that follow."""
        if self.arrivals == "closed":
            return _Users(self, seed)
        return Source(self._drawn(np.random.default_rng([seed, 1])))

    def _drawn(self, random: np.random.Generator) -> Iterator[Request]:
        now = 0.0
        for begin in range(0, self.count, _CHUNK):
            count = min(_CHUNK, self.count - begin)
            gaps = _GAPS[self.arrivals](random, count, self) / self.rate
            times = now + np.cumsum(gaps)
            now = float(times[-1])
            inputs, outputs = self.input.draw(random, count), self.output.draw(random, count)
            if self.prefixes:
                chosen = random.integers(0, self.prefixes, count).tolist()
                for n, (time, a, b) in enumerate(zip(times.tolist(), inputs, outputs, strict=True)):
                    yield Request(begin + n, time, a, b, self.parts_of(chosen[n], a))
            else:
                for n, (time, a, b) in enumerate(zip(times.tolist(), inputs, outputs, strict=True)):
                    yield Request(begin + n, time, a, b)

    def parts_of(self, prefix: int, tokens: int) -> tuple[Part, ...]:
        """A prompt that begins with a prefix."""
        return ((f"prefix {prefix}", min(tokens, self.prefix_tokens)),)

    def scaled(self, factor: float) -> Synthetic:
        """The same at another rate."""
        if self.arrivals == "closed":
            raise InputError(
                "users who wait for answers have no rate; use open arrivals such as poisson:rate=8", field="workload"
            )
        return replace(self, rate=self.rate * factor)


class _Users(Source):
    """Users who wait for answers. What they do is drawn by the number of the request, whoever sends it."""

    def __init__(self, workload: Synthetic, seed: int) -> None:
        self._workload = workload
        self._seed = seed
        self._sent = 0
        first = sorted((self._next(0.0) for _ in range(min(workload.users, workload.count))), key=Request.order)
        super().__init__(iter(first))

    def _next(self, now: float) -> Request:
        work = self._workload
        number = self._sent
        self._sent += 1
        random = np.random.default_rng([self._seed, 2, number])
        pause = float(random.exponential(work.think)) if work.think else 0.0
        tokens = work.input.draw(random, 1)[0]
        parts = work.parts_of(int(random.integers(0, work.prefixes)), tokens) if work.prefixes else ()
        return Request(number, now + pause, tokens, work.output.draw(random, 1)[0], parts)

    def following(self, request: Request) -> Request | None:
        """The next one, while any are left."""
        return self._next(request.finish) if self._sent < self._workload.count else None


#: Key of a synthetic workload -> field and limits of its value.
_NUMBERS = {
    "rate": ("rate", 1e-6, 1e6), "requests": ("count", 1, 1e9), "cv": ("cv", 0.01, 100), "burst": ("burst", 1.01, 1e4),
    "on": ("on", 1e-3, 1e6), "users": ("users", 1, 1e6), "think": ("think", 0, 1e6), "prefixes": ("prefixes", 0, 1e6),
    "prefix_tokens": ("prefix_tokens", 0, _MOST_TOKENS),
}  # fmt: skip
_WHOLE = ("count", "users", "prefixes", "prefix_tokens")
#: Kind of arrivals -> the keys that only it has.
KINDS: dict[str, tuple[str, ...]] = {
    "poisson": ("rate",), "gamma": ("rate", "cv"), "constant": ("rate",), "bursty": ("rate", "burst", "on"),
    "closed": ("users", "think"),
}  # fmt: skip
_ALWAYS = ("requests", "input", "output", "prefixes", "prefix_tokens")


@dataclass(frozen=True, slots=True)
class Typical:
    """The mean request of a workload, and how much comes: requests a second, or users who wait for answers."""

    prompt: int
    output: int
    rate: float | None = None
    users: int | None = None


def typical(work: Workload, seed: int, most: int = 1000) -> Typical:
    """The means of the first requests."""
    first = list(islice(work.requests(seed), most))
    prompt, output = (
        max(1, round(sum(lengths) / len(first))) for lengths in zip(*((r.input, r.output) for r in first), strict=True)
    )
    if isinstance(work, Synthetic) and work.arrivals == "closed":
        return Typical(prompt, output, users=work.users)
    span = first[-1].arrival - first[0].arrival
    return Typical(prompt, output, (len(first) - 1) / span if span > 0 else None)


def workload(text: str) -> Workload:
    """A workload: the path of a trace, or `poisson:rate=8,requests=20000,input=1000,output=200` and the like."""
    kind, colon, rest = text.partition(":")
    if kind in KINDS and colon:
        return _synthetic(kind, rest)
    from rooftop.simulation._traces import Trace

    if not Path(text).exists() and colon and re.fullmatch(r"[a-z_-]+", kind):
        raise InputError(
            f"unknown arrivals {kind[:40]!r}{nearest(kind, KINDS)}; use {', '.join(KINDS)}, or the path of a trace",
            field="workload",
        )
    return Trace(Path(text))


def _synthetic(kind: str, rest: str) -> Synthetic:
    if len(rest) > 1000:
        raise InputError("the workload has more than 1000 characters; write it shorter, or as a file", field="workload")
    allowed = (*KINDS[kind], *_ALWAYS)
    numbers: dict[str, float] = {}
    drawn: dict[str, Lengths] = {}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = item.partition("=")
        if key not in allowed or not equals:
            raise InputError(
                f"{item[:40]!r} is not an item of a {kind} workload; write {', '.join(f'{k}=...' for k in allowed)}",
                field="workload",
            )
        if key in numbers or key in drawn:
            raise InputError(f"{key} is given twice in the workload; give it once", field="workload")
        if key in ("input", "output"):
            drawn[key] = lengths(value, key)
            continue
        name, least, most = _NUMBERS[key]
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not least <= number <= most or (name in _WHOLE and number != int(number)):
            whole = "a whole number" if name in _WHOLE else "a number"
            raise InputError(f"{key} = {value[:40]!r} is not {whole} from {least:g} to {most:g}", field="workload")
        numbers[name] = int(number) if name in _WHOLE else number
    needed = (("users",) if kind == "closed" else ("rate",)) + ("input", "output")
    for key in needed:
        if key not in numbers and key not in drawn:
            raise InputError(f"the {kind} workload has no {key}; add {key}=...", field="workload")
    if bool(numbers.get("prefixes")) != bool(numbers.get("prefix_tokens")):
        raise InputError("prefixes and prefix_tokens go together; give both or none", field="workload")
    return Synthetic(kind, drawn["input"], drawn["output"], **numbers)  # type: ignore[arg-type]
