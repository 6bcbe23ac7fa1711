"""Two plans side by side: what differs in them, where time and memory differ, which one wins and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rooftop.errors import InputError
from rooftop.shown import Shown
from rooftop.training._answer import grown_parts
from rooftop.training._evaluate import Estimate

#: Plans whose times per token differ by less are equally fast.
_EQUAL = 1e-6


@dataclass(frozen=True, slots=True)
class Difference:
    """One quantity of two plans. Seconds are exposed seconds of the plan's own step, bytes those of one chip."""

    name: str
    a: float
    b: float


@dataclass(frozen=True, slots=True)
class Comparison(Shown):
    """What differs between plan a and plan b. `winner` is a, b or equal, by chip-seconds per token if both fit.

    changes: (name, value of a, value of b) of everything in the plan that differs. why: the parts that make the loser
    slower, in seconds of its own step.
    """

    a: Estimate
    b: Estimate
    changes: tuple[tuple[str, Any, Any], ...]
    time: tuple[Difference, ...]
    memory: tuple[Difference, ...]
    winner: str
    why: tuple[tuple[float, str], ...]

    @property
    def ratio(self) -> float:
        """Chip-time per token of b over that of a."""
        return chip_seconds_per_token(self.b) / chip_seconds_per_token(self.a)


def chip_seconds_per_token(e: Estimate) -> float:
    """Expected seconds of all chips of the slice, used or not, for one token that is no padding."""
    return e.seconds_per_token / e.problem.filled * e.problem.slice.chips


def compare(a: Estimate, b: Estimate) -> Comparison:
    """Compare two plans for one model. Raises InputError where the models or the sequence lengths differ."""
    if a.problem.model != b.problem.model:
        raise InputError(
            f"the plans are for {a.problem.model.name} and {b.problem.model.name}; compare two plans of one model",
            field="versus",
        )
    if a.problem.seq != b.problem.seq:
        raise InputError(
            f"the plans are for sequences of {a.problem.seq} and {b.problem.seq} tokens; give one --seq for both",
            field="versus",
        )
    mine, theirs = _facts(a), _facts(b)
    changes = tuple((k, mine[k], theirs[k]) for k in mine if mine[k] != theirs[k])
    time = _joined(
        {p.name: float(p.seconds - p.overlapped) for p in a.step.parts},
        {p.name: float(p.seconds - p.overlapped) for p in b.step.parts},
    )
    memory = _joined({n: float(v) for n, v in a.step.memory.items()}, {n: float(v) for n, v in b.step.memory.items()})
    ratio = chip_seconds_per_token(b) / chip_seconds_per_token(a)
    if a.fits != b.fits:
        winner = "a" if a.fits else "b"
    else:
        winner = "equal" if abs(ratio - 1) < _EQUAL else "a" if ratio > 1 else "b"
    why = () if winner == "equal" else tuple(grown_parts(a, b, 3) if winner == "a" else grown_parts(b, a, 3))
    return Comparison(a, b, changes, time, memory, winner, why)


def _facts(e: Estimate) -> dict[str, Any]:
    plan = e.plan
    return {
        "slice": e.problem.slice.name,
        **{axis: ways for axis, ways in plan.mesh.items()},
        "placement": tuple(tuple(sorted((a, n) for a, n in f.items() if n > 1)) for f in plan.factors),
        "batch_tokens": e.batch_tokens,
        "microbatches": plan.microbatches,
        "microbatch_sequences": plan.sequences,
        "documents": None if e.problem.documents is None else f"{e.problem.documents.text[:60]}, {e.problem.packing}",
        "recipe": e.problem.recipe.sentence(),
        **asdict(plan.choices),
    }


def _joined(a: dict[str, float], b: dict[str, float]) -> tuple[Difference, ...]:
    """By the size of the difference, the largest first."""
    rows = (Difference(n, a.get(n, 0.0), b.get(n, 0.0)) for n in dict.fromkeys((*a, *b)))
    return tuple(sorted(rows, key=lambda d: -abs(d.b - d.a)))
