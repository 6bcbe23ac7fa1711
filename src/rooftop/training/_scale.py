"""Strong scaling: the same batch on more and more chips; where the curve bends, and what bends it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rooftop.errors import InputError, NoAnswer
from rooftop.hardware import Slice, Torus, slice_of, standard_slices
from rooftop.training._answer import grown_parts, plan
from rooftop.training._evaluate import Estimate
from rooftop.training._question import Question
from rooftop.training._search import Limits

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
        return 0.0 if self.best is None else self.best.batch_tokens / float(self.best.step.expected)


@dataclass(frozen=True, slots=True)
class Curve:
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
    limits: Limits | None = None,
    progress: Callable[[float], None] | None = None,
) -> Curve:
    """The best plan for each number of chips, the batch as it is."""
    points: list[Point] = []
    for done, where in enumerate(slices_of(question.slice.chip.name, counts)):
        try:
            answer = plan(replace(question, slice=where), limits=limits, keep=1)
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
