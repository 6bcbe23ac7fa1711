"""An answer that is kept while hardware changes: a training plan, or a way to serve at a batch; and how fast it then is."""

from __future__ import annotations

from dataclasses import dataclass

from rooftop import inference, training
from rooftop.codesign._answers import Row, planned, served_row, serving_question, trained, training_question
from rooftop.codesign._scenario import Scenario
from rooftop.errors import InputError
from rooftop.formula import Number
from rooftop.training import Plan, problem_of

#: Questions that have such an answer.
SETTLED = ("plan", "step", "serve")


@dataclass(frozen=True, slots=True)
class Settled:
    """plan: of training. point: of serving, with its configuration and its batch."""

    plan: Plan | None = None
    point: inference.Point | None = None


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second of all chips (trained, or generated), by the bound and expected; arrays where numbers of hardware are.

    requests: requests a second where prompts are read as well. ttft, tpot: seconds. memory, capacity: bytes of a chip.
    """

    bound: Number
    expected: Number
    memory: Number
    capacity: Number
    requests: Number = 0.0
    ttft: Number = 0.0
    tpot: Number = 0.0


def check_settled(scenario: Scenario) -> None:
    """Raise InputError for a question whose answer is no plan that could be kept."""
    if scenario.ask not in SETTLED:
        raise InputError(f"{scenario.ask} has no plan that could be kept; ask for {', '.join(SETTLED)}", field="of")


def settled(scenario: Scenario) -> Settled:
    """The best answer, to be kept. Raises NoAnswer where nothing fits."""
    check_settled(scenario)
    if scenario.ask != "serve":
        return Settled(plan=planned(scenario))
    question, limits = serving_question(scenario)
    return Settled(point=inference.serve(question, limits, look_around=False).best)


def row_of(scenario: Scenario, held: Settled) -> Row:
    """What it answers, under the JSON keys of its command."""
    if held.point is not None:
        return served_row(held.point)
    assert held.plan is not None
    row = trained(scenario, held.plan)
    return {name: value.item() if hasattr(value, "item") else value for name, value in row.items()}


def speed(scenario: Scenario, held: Settled) -> Speed:
    """How fast it is on the hardware of a scenario, whose numbers may be NumPy arrays."""
    if held.plan is not None:
        problem = problem_of(training_question(scenario))
        step = training.evaluate(problem, held.plan, with_parts=False)
        tokens = held.plan.batch_sequences * problem.seq
        return Speed(tokens / step.bound, tokens / step.expected, step.memory_bytes, problem.capacity)
    assert held.point is not None
    question, _ = serving_question(scenario)
    asked = inference.problem_of(question)
    scene = inference.Scene(asked, held.point.at)
    batch = held.point.batch
    generated, read = scene.generate(batch, detail=False), scene.prefill(detail=False)
    tokens_a_second = batch / generated.tpot[1]
    return Speed(
        bound=batch / generated.tpot[0],
        expected=tokens_a_second,
        memory=generated.memory_bytes,
        capacity=asked.capacity,
        requests=1.0 / (question.output / tokens_a_second + read.expected / read.prompts),
        ttft=read.expected,
        tpot=generated.tpot[1],
    )
