"""Strong scaling: the same batch on more and more chips; where the curve bends, and what bends it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rooftop.errors import InputError, NoAnswer, nearest
from rooftop.hardware import Slice, Torus, slice_of, standard_slices
from rooftop.shown import Shown
from rooftop.training._answer import Answer, grown_parts, plan
from rooftop.training._evaluate import Estimate
from rooftop.training._question import Question, price_of
from rooftop.training._run import chip_hours, cost
from rooftop.training._search import Limits
from rooftop.units import format_seconds, format_usd

_MOST_POINTS = 24
#: The curve bends where a chip does less than this part of what it does at its best.
BEND = 0.8


@dataclass(frozen=True, slots=True)
class Point:
    """The best plan on one slice, or why there is none."""

    where: Slice
    best: Estimate | None
    reason: str

    @property
    def tokens_per_second(self) -> float:
        """Expected throughput of all chips."""
        return 0.0 if self.best is None else self.best.useful_tokens / float(self.best.step.expected)


@dataclass(frozen=True, slots=True)
class Curve(Shown):
    """Points by rising number of chips. `bend` is the first that is past its best by more than BEND allows."""

    question: Question
    points: tuple[Point, ...]
    bend: Point | None
    why: str


def chip_counts(text: str) -> list[int]:
    """`64..16384` is 64, 128, ..., 16384; `64,96,128` is what it says. Raises InputError."""
    counts: list[int] = []
    span = re.fullmatch(r"\s*(\d{1,9})\s*\.\.\s*(\d{1,9})\s*", text)
    if span is not None:
        first, last = int(span[1]), int(span[2])
        while first >= 1 and first <= last and len(counts) <= _MOST_POINTS:
            counts.append(first)
            first *= 2
    elif re.fullmatch(r"\s*\d{1,9}(\s*,\s*\d{1,9})*\s*", text):
        counts = sorted({int(n) for n in text.split(",")})
    if not counts or counts[0] < 1 or len(counts) > _MOST_POINTS:
        raise InputError(
            f"{text[:60]!r} is not a range of chips; write 64..16384 (doubling) or a list such as 64,96,128, at most"
            f" {_MOST_POINTS} of them",
            field="scale",
        )
    return counts


def slices_of(chip: str, counts: list[int]) -> Iterator[Slice]:
    """A slice for each number of chips: a standard shape, or several whole pods."""
    for count in counts:
        try:
            yield slice_of(f"{chip}:{count}")
        except InputError:
            pod = _largest(chip)
            if pod is None or count % pod.chips:
                raise
            yield slice_of(f"{pod.name}*{count // pod.chips}")


def _largest(chip: str) -> Slice | None:
    """The largest slice whose number of chips is a power of two: what several of are joined."""
    shapes = [slice_of(name) for name in standard_slices(chip)]
    even = [s for s in shapes if s.chips & (s.chips - 1) == 0 and s.levels and isinstance(s.levels[0], Torus)]
    return even[-1] if even else None


def scale(
    question: Question,
    counts: list[int],
    *,
    fixed: Mapping[str, int] | None = None,
    limits: Limits | None = None,
    progress: Callable[[float], None] | None = None,
) -> Curve:
    """The best plan for each number of chips, the batch as it is."""
    points: list[Point] = []
    for done, where in enumerate(slices_of(question.slice.chip.name, counts)):
        try:
            answer = plan(replace(question, slice=where), fixed=fixed, limits=limits, keep=1)
            points.append(Point(where, answer.best, ""))
        except NoAnswer as error:
            points.append(Point(where, None, error.message))
        if progress is not None:
            progress((done + 1) / len(counts))
    found = [p for p in points if p.best is not None]
    bend, why = None, ""
    if found:
        top = max(found, key=lambda p: p.tokens_per_second / p.where.chips)
        later = [p for p in found if p.where.chips > top.where.chips]
        bend = next(
            (p for p in later if p.tokens_per_second / p.where.chips < BEND * top.tokens_per_second / top.where.chips),
            None,
        )
        if bend is not None and bend.best is not None and top.best is not None:
            step = float(bend.best.step.expected)
            grown = grown_parts(top.best, bend.best)
            why = ", ".join(f"{name} +{seconds / step:.0%} of the step" for seconds, name in grown)
    return Curve(question, tuple(points), bend, why)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a run may take: seconds, USD; None for no limit."""

    seconds: float | None = None
    usd: float | None = None

    def misses(self, answer: Answer) -> str:
        """Why an answer does not meet the wish; empty if it does."""
        run = answer.run
        if run is None:
            return "" if self == Wish() else "the run has no length"
        reasons = []
        if self.seconds is not None and run.seconds > self.seconds:
            reasons.append(f"takes {format_seconds(run.seconds)} where {format_seconds(self.seconds)} are wanted")
        if self.usd is not None and run.usd is not None and run.usd > self.usd:
            reasons.append(f"costs {format_usd(run.usd)} where {format_usd(self.usd)} are wanted")
        return " and ".join(reasons)

    def excess(self, answer: Answer) -> float:
        """How many times over the wish an answer is, in whatever it misses most."""
        assert answer.run is not None
        return max(
            answer.run.seconds / self.seconds if self.seconds else 0.0,
            (answer.run.usd or 0.0) / self.usd if self.usd else 0.0,
        )


#: What the slice of a run is chosen by, and what each means. All chips of a slice are paid for: on one slice, and for one price,
#: less time is less money and more tokens per dollar.
OBJECTIVES = {
    "time": "least time per token",
    "cost": "least USD per token",
    "tokens-per-dollar": "most tokens per USD, which is the least USD per token",
    "chips": "fewest chips",
}


def fewest(question: Question, wish: Wish, **search: Any) -> Answer:
    """The answer on the smallest standard slice of the question's chip whose run meets the wish; see `choose`."""
    return choose(question, "chips", wish, **search)


def choose(
    question: Question,
    objective: str,
    wish: Wish | None = None,
    *,
    fixed: Mapping[str, int] | None = None,
    limits: Limits | None = None,
    keep: int = 6,
    pareto: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Answer:
    """The best answer by an objective on any standard slice of the question's chip whose run meets the wish.

    A question about a slice of several chips is about that slice: there, all objectives but `chips` ask for the fastest plan, and
    `chips` has one slice to choose from. Raises NoAnswer with the nearest miss.
    """
    wish = wish or Wish()
    _check(question, objective, wish)
    only = question.slice.chips > 1
    names = [question.slice.name] if only else standard_slices(question.slice.chip.name)
    best: Answer | None = None
    nearest_miss, closest = "", float("inf")
    for done, name in enumerate(names):
        try:
            where = question.slice if only else slice_of(name)
            answer = plan(replace(question, slice=where), fixed=fixed, limits=limits, keep=keep, pareto=pareto and only)
        except NoAnswer:
            if only:
                raise
            continue
        finally:
            if progress is not None:
                progress((done + 1) / len(names))
        missing = wish.misses(answer)
        if missing:
            excess = wish.excess(answer)
            if excess < closest:
                nearest_miss, closest = f"{where.name} {missing}", excess
        elif best is None or _score(answer, objective) < _score(best, objective):
            best = answer
            if objective == "chips":
                break  # slices come in the order of their chips
    if best is None:
        raise NoAnswer(
            f"no {'plan' if only else 'standard slice of ' + question.slice.chip.name} trains {question.model.name} so:"
            f" {nearest_miss or 'it fits on none'}; allow more time or money, or take another chip",
            field="days",
        )
    if pareto and not only:
        return plan(best.question, fixed=fixed, limits=limits, keep=keep, pareto=True)
    return best


def usd_per_token(answer: Answer) -> float | None:
    """Money for a token at the expected time: all chips of the slice are paid for. None without a price."""
    price = price_of(answer.question)
    if price is None:
        return None
    return float(cost(chip_hours(answer.best.seconds_per_token, answer.best.problem.slice.chips), price))


def _score(answer: Answer, objective: str) -> float:
    """What the objective wants small."""
    if objective == "time":
        return answer.best.seconds_per_token
    if objective == "chips":
        return float(answer.best.problem.slice.chips)
    usd = usd_per_token(answer)
    assert usd is not None
    return usd


def _check(question: Question, objective: str, wish: Wish) -> None:
    if objective not in OBJECTIVES:
        raise InputError(
            f"unknown objective {objective!r}{nearest(objective, tuple(OBJECTIVES))}; use {', '.join(OBJECTIVES)}",
            field="objective",
        )
    if wish != Wish() and question.tokens is None:
        raise InputError("a deadline or a budget needs the length of the run; give --tokens", field="tokens")
    money = wish.usd is not None or objective in ("cost", "tokens-per-dollar")
    if money and price_of(question) is None:
        raise InputError(
            f"no price is known for {question.slice.chip.name}; give --price with --budget or an objective in USD",
            field="budget",
        )
