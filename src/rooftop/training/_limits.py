"""How far each mesh axis of a plan goes: the batch from which it hides, and the ways up to which it is of use.

Nothing here is a formula of its own: the step of the plan is evaluated at other batches, and the search is run with an axis fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rooftop.costing import ASKED_AXES, MESH_AXES
from rooftop.errors import RooftopError
from rooftop.training._answer import grown_parts, plan
from rooftop.training._choices import DEFAULT
from rooftop.training._evaluate import Estimate, evaluate
from rooftop.training._plan import Problem
from rooftop.training._question import Question
from rooftop.training._search import Limits
from rooftop.training._space import options
from rooftop.training._step import Step

#: Ways of an axis are of use while the best plan with them is slower by no more than this.
USEFUL = 0.05
#: A network hides where it exposes no more than this part of the step.
HIDDEN = 0.01
#: How far the batch is varied, as a factor both ways.
_RANGE = 4096.0


@dataclass(frozen=True, slots=True)
class CriticalBatch:
    """Tokens per chip and step from which a network stops to matter, mesh and number of microbatches kept.

    bound: from which its bound is below that of compute. hidden: from which it exposes at most HIDDEN of the expected step.
    0 where any batch does, infinite where none does.
    """

    network: str
    bound: float
    hidden: float


@dataclass(frozen=True, slots=True)
class Degree:
    """The largest useful ways of an axis; the next ways, how much slower the best plan with them is, and why."""

    axis: str
    ways: int
    useful: int
    beyond: int | None
    slower: float
    why: str


@dataclass(frozen=True, slots=True)
class Reach:
    """How far the axes of a plan go. tokens_per_chip: of the plan itself, in a step."""

    tokens_per_chip: float
    batches: tuple[CriticalBatch, ...]
    degrees: tuple[Degree, ...]


def reach(
    question: Question,
    best: Estimate,
    *,
    limits: Limits | None = None,
    progress: Callable[[float], None] | None = None,
) -> Reach:
    """Critical batches and largest useful degrees of the best plan of a question."""
    return Reach(
        tokens_per_chip=best.batch_tokens / best.plan.chips,
        batches=critical_batches(best),
        degrees=largest_degrees(question, best, limits=limits, progress=progress),
    )


def critical_batches(best: Estimate) -> tuple[CriticalBatch, ...]:
    """The critical batch of each network axis that the plan uses."""
    here = best.batch_tokens / best.plan.chips
    known: dict[float, Step] = {}

    def at(tokens: float) -> Step:
        if tokens not in known:
            scaled = replace(best.plan, sequences=best.plan.sequences * tokens / here)  # type: ignore[arg-type]
            known[tokens] = evaluate(best.problem, scaled)
        return known[tokens]

    result = []
    for name, seconds in best.step.resources.items():
        if not name.startswith("network ") or float(seconds) <= 0 or name == "network pipeline":
            continue

        def surplus(tokens: float, name: str = name) -> float:
            resources = at(tokens).resources
            return float(resources["compute"] - resources[name])

        def room(tokens: float, axis: str = name.removeprefix("network ")) -> float:
            step = at(tokens)
            return HIDDEN - sum(_exposed(step, axis)) / float(step.expected)

        result.append(CriticalBatch(name, _crossing(surplus, here), _crossing(room, here)))
    return tuple(result)


def _exposed(step: Step, axis: str) -> list[float]:
    """Exposed seconds of what a network axis carries in the passes, and, for data parallelism, at the end."""
    own = [p for p in step.parts if p.name.startswith(f"{axis}: ")]
    if not own:
        own = [p for p in step.parts if p.name in ("gradient reduction", "updated weights")]
    return [float(p.seconds - p.overlapped) for p in own]


def _crossing(f: Callable[[float], float], here: float) -> float:
    """Where a function that rises with the tokens per chip becomes positive: 0 if it is everywhere, infinite if nowhere."""
    low, high = here / _RANGE, here * _RANGE
    if f(low) >= 0:
        return 0.0
    if f(high) < 0:
        return float("inf")
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if f(middle) >= 0 else (middle, high)
    return high


def largest_degrees(
    question: Question,
    best: Estimate,
    *,
    limits: Limits | None = None,
    progress: Callable[[float], None] | None = None,
) -> tuple[Degree, ...]:
    """For each axis the most ways whose best plan is slower than the plan itself by USEFUL at most."""
    result = []
    asked = [a for a in ASKED_AXES if best.plan.mesh.get(a, 1) > 1]
    axes = [a for a in MESH_AXES if a not in ASKED_AXES or a in asked]
    for done, axis in enumerate(axes):
        result.append(_largest(question, best, axis, limits))
        if progress is not None:
            progress((done + 1) / len(axes))
    return tuple(d for d in result if d is not None)


def _largest(question: Question, best: Estimate, axis: str, limits: Limits | None) -> Degree | None:
    ways = best.plan.mesh.get(axis, 1)
    useful = ways
    for more in _more(best.problem, axis, ways):
        try:
            other = plan(question, fixed={axis: more}, limits=limits, keep=1).best
        except RooftopError:
            return Degree(axis, ways, useful, more, float("inf"), "no plan fits")
        slower = other.seconds_per_token / best.seconds_per_token - 1
        if slower > USEFUL:
            grown = grown_parts(best, other)
            why = ", ".join(name for _, name in grown) or "the sum of small differences"
            return Degree(axis, ways, useful, more, slower, why)
        useful = more
    return None if useful == 1 else Degree(axis, ways, useful, None, 0.0, "")


def _more(problem: Problem, axis: str, ways: int) -> list[int]:
    """Doublings that the model and the slice allow."""
    doubled, candidates = 2 * ways, []
    while doubled <= problem.slice.chips:
        candidates.append(doubled)
        doubled *= 2
    compiled = problem.structure(DEFAULT.on({axis: 2}))
    return candidates if axis == "data" else [w for w in candidates if options(compiled, axis, [w])]
