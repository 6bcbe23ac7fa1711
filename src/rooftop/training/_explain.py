"""The derivation of any quantity of a plan, from the functions that computed it."""

from __future__ import annotations

from typing import Any

from rooftop.errors import InputError, nearest
from rooftop.formula import Explanation, Number, Traced, explain, given, named
from rooftop.training._evaluate import Estimate, evaluate
from rooftop.training._question import Question, price_of
from rooftop.training._run import chip_hours, cost, run_flops, run_seconds, utilisation


def explain_estimate(best: Estimate, quantity: str, depth: int = 2, *, question: Question | None = None) -> Explanation:
    """Explain a quantity of an estimate: formula, substitution, value, source, down to `depth` levels.

    With the question behind it also the quantities of the run: run.seconds, run.chip_hours, run.usd.
    """
    result = evaluate(best.problem, best.plan, traced=True)
    known: dict[str, Any] = {
        "step_seconds": result.expected,
        "step_seconds.expected": result.expected,
        "step_seconds.bound": result.bound,
        "memory": result.memory_bytes,
        "memory.bytes": result.memory_bytes,
    }
    known |= {f"memory.{part}": value for part, value in result.memory.items()}
    known |= {name: value for name, value in result.resources.items()}
    tokens = given(best.batch_tokens, "batch_tokens", "tokens")
    if best.problem.filled < 1:
        filled = given(best.problem.filled, "filled", "", "mean length of documents in a sequence over its length")
        tokens = named(tokens * filled, "useful tokens", "tokens")
    chips = given(best.plan.chips, "chips")
    flops = given(best.flops_per_token, "FLOPs per token", "FLOP", "forward and backward matmuls, causal attention")
    peak = given(best.peak, "C", "FLOP/s", f"data sheet of {best.problem.slice.chip.name}")
    known["mfu"] = known["mfu.expected"] = utilisation(flops, tokens, result.expected, chips, peak)
    known["mfu.bound"] = utilisation(flops, tokens, result.bound, chips, peak)
    known["tokens_per_second_per_chip"] = named(
        tokens / (result.expected * chips), "tokens_per_second_per_chip", "tokens/s"
    )
    known |= {part.name: named(part.seconds, part.name, "s") for part in result.parts}
    if question is not None and question.tokens is not None:
        known |= _traced_run(question, best, result.expected, tokens, flops)
    if quantity not in known:
        raise InputError(
            f"cannot explain {quantity!r}{nearest(quantity, known)}; choose one of {', '.join(known)}", field="explain"
        )
    value = known[quantity]
    if not isinstance(value, Traced):
        value = given(float(value), quantity)
    return explain(value, depth)


def _traced_run(
    question: Question, best: Estimate, step_seconds: Number, batch: Number, flops: Number
) -> dict[str, Number]:
    assert question.tokens is not None
    tokens = given(question.tokens, "tokens", "tokens", "of the whole run")
    seconds = run_seconds(tokens, batch, step_seconds)
    where = best.problem.slice
    hours = chip_hours(seconds, given(where.chips, "chips", "", f"all of {where.name}, used or not"))
    result = {"run.seconds": seconds, "run.chip_hours": hours, "run.flops": run_flops(flops, tokens)}
    price = price_of(question)
    if price is not None:
        listed = where.chip.price
        source = f"{listed.source}, {listed.date}" if question.price is None and listed is not None else "as given"
        result["run.usd"] = cost(hours, given(price, "price", "USD/h", source))
    return result
