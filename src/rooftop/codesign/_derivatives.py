"""Derivatives of one plan, or of one way to serve, by every number of its question.

The formulas run once, over traced numbers, and `gradient` goes back through what they did. Numbers of hardware are inputs of the
formulas themselves; those of the model and of requests enter through structures (`_open`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rooftop import inference, training
from rooftop.codesign._answers import Row, serving_question, training_question
from rooftop.codesign._models import model_numbers
from rooftop.codesign._open import Leaves, Neighbours, Structures
from rooftop.codesign._scenario import Scenario, changed, current
from rooftop.codesign._settled import Settled
from rooftop.formula import Number, given
from rooftop.inference import throughput, usd_per_million

_PER_TOKEN = ("seconds_per_token.expected", "seconds_per_token.bound")
_RATES = ("tokens_per_second", "usd_per_million_tokens", "memory.bytes")
_TRAINING = (*_PER_TOKEN, "step_seconds.expected", "step_seconds.bound", *_RATES)
#: What can be said to move, by question; the first unless another is asked for. Seconds per token are those of the slice.
MEASURES = {
    "plan": _TRAINING,
    "step": _TRAINING,
    "serve": (
        *_PER_TOKEN,
        "tpot_seconds.expected",
        "tpot_seconds.bound",
        "ttft_seconds.expected",
        "ttft_seconds.bound",
        *_RATES,
    ),
}
#: Sizes of batches and requests, by question.
WORKLOAD = {"plan": ("batch", "seq"), "step": ("batch", "seq"), "serve": ("batch", "prompt", "output")}

Elasticities = dict[str, dict[str, float | None]]


def hardware_numbers(scenario: Scenario) -> tuple[str, ...]:
    """Full names of the rates and delays of hardware that times follow from."""
    chip = ("chip.flops", "chip.vector_flops", "chip.hbm_bandwidth", "chip.pcie_bandwidth")
    levels = (f"network.{level.name}.{what}" for level in scenario.slice.levels for what in ("bandwidth", "latency"))
    return (*chip, *dict.fromkeys(levels))


def elasticities(scenario: Scenario, held: Settled) -> Elasticities:
    """By number and measure, the per cent that a measure of a plan or of a way to serve moves for one per cent of the number.

    The answer stays what it is: mesh, place, microbatches, layout. A larger batch of training means more sequences in each microbatch,
    and longer sequences mean fewer of them. None where there is no derivative, since the number moves something in steps.
    """
    if held.point is not None:
        return _of_serving(scenario, held.point)
    assert held.plan is not None
    return _of_training(scenario, held.plan)


def _traced_hardware(scenario: Scenario, leaves: Leaves) -> Scenario:
    for name in hardware_numbers(scenario):
        value = float(current(scenario, name))
        leaf = given(value, name)
        leaves.add(name, value, leaf)
        scenario = changed(scenario, {name: leaf})
    return scenario


def _neighbours(scenario: Scenario, names: Sequence[str], structures: Callable[[Scenario], Structures]) -> Neighbours:
    """For numbers of the model and some others: the value, and the structures of the question with another one."""

    def with_value(name: str, value: int) -> Structures:
        return structures(changed(scenario, {name: value}))

    every = (*(f"model.{name}" for name in model_numbers(scenario.model)), *names)
    return {name: (current(scenario, name), functools.partial(with_value, name)) for name in every}


def _of_training(scenario: Scenario, plan: training.Plan) -> Elasticities:
    leaves = Leaves()
    problem = training.problem_of(training_question(scenario))
    layout = plan.choices.layout

    def structures(here: Scenario) -> list[training.Structure]:
        return [training.structure(here.model, _seq(here), layout, problem.recipe, fold=False, keep=plan.choices.sets)]

    opened = leaves.open(structures(scenario), _neighbours(scenario, ("seq",), structures))[0]
    sequences, seq = given(plan.sequences, "sequences"), given(problem.seq, "seq")
    leaves.add("batch", problem.batch_tokens, sequences, plan.sequences / problem.batch_tokens)
    leaves.add("seq", problem.seq, sequences, -plan.sequences / problem.seq)
    leaves.add("seq", problem.seq, seq)
    question = training_question(_traced_hardware(scenario, leaves))
    here = replace(plan, sequences=sequences)  # type: ignore[arg-type]
    step = training.evaluate(training.problem_of(question), here, with_parts=False, compiled=opened)
    tokens: Number = here.batch_sequences * seq
    row: Row = {
        "step_seconds.expected": step.expected,
        "step_seconds.bound": step.bound,
        "seconds_per_token.expected": step.expected / tokens,
        "seconds_per_token.bound": step.bound / tokens,
        "memory.bytes": step.memory_bytes,
    }
    return leaves.elasticities(_with_money(row, tokens / step.expected, scenario), MEASURES["plan"])


def _seq(scenario: Scenario) -> int:
    return training.problem_of(training_question(scenario)).seq


def _with_money(row: Row, rate: Number, scenario: Scenario) -> Row:
    """The row with throughput and, where there is a price, cost."""
    usd = scenario.options.get("price") or current(scenario, "chip.usd_per_hour")
    money = {"usd_per_million_tokens": usd_per_million(scenario.slice.chips, usd, rate)} if usd else {}
    return {**row, "tokens_per_second": rate, **money}


class _Told(inference.Scene):
    """A configuration whose structures are put down in the order in which they are asked for, or given in that order."""

    def __init__(self, problem: inference.Problem, at: inference.Configuration, opened: Sequence[Any] = ()) -> None:
        super().__init__(problem, at)
        self.met: list[Any] = []
        self.opened = opened

    def structure(self, model: Any, phase: str, tokens: int, context: int) -> inference.Structure:
        """The compiled programs of a phase."""
        at = len(self.met)
        found = inference.structure(model, phase, tokens, context, self.layout, self.problem.precision, fold=False)
        self.met.append(found)
        return self.opened[at] if self.opened else found


def _of_serving(scenario: Scenario, point: inference.Point) -> Elasticities:
    leaves = Leaves()

    def structures(here: Scenario) -> list[inference.Structure]:
        told = _Told(inference.problem_of(serving_question(here)[0]), point.at)
        told.generate(point.batch)
        told.prefill()
        return told.met

    question = point.problem.question
    opened = leaves.open(structures(scenario), _neighbours(scenario, ("prompt", "output"), structures))
    if question.chunk and question.chunk < point.problem.fresh:
        leaves.rough.add("prompt")  # chunks come and go
    batch = given(point.batch, "batch")
    leaves.add("batch", point.batch, batch)
    traced = inference.problem_of(serving_question(_traced_hardware(scenario, leaves))[0])
    scene = _Told(traced, point.at, opened)
    generate, prefill = scene.generate(batch), scene.prefill()
    row: Row = {
        "seconds_per_token.bound": generate.tpot[0] / batch,
        "seconds_per_token.expected": generate.tpot[1] / batch,
        "tpot_seconds.bound": generate.tpot[0],
        "tpot_seconds.expected": generate.tpot[1],
        "ttft_seconds.bound": prefill.bound,
        "ttft_seconds.expected": prefill.expected,
        "memory.bytes": generate.memory_bytes,
    }
    rate = throughput(batch, generate.tokens, generate.step.expected)
    return leaves.elasticities(_with_money(row, rate, scenario), MEASURES["serve"])


__all__ = ["MEASURES", "WORKLOAD", "elasticities", "hardware_numbers"]
