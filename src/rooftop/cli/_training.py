"""What `plan` and `step` share: their options, and how an answer is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from rooftop.cli._common import COUNT, INTEGER, SECONDS, USD_PER_HOUR, emit, explain_options, json_option, refuse_given

F = TypeVar("F", bound=Callable[..., Any])


def training_options(function: F) -> F:
    """The options of a training question."""
    for option in reversed(
        (
            click.option(
                "--on", "where", required=True, metavar="SLICE", help="Where: v5p:16x20x28, h100:1024, a hardware file."
            ),
            click.option("--batch", type=COUNT, help="Tokens per step, such as 4M.  [default: 4M]"),
            click.option("--seq", type=INTEGER, help="Tokens of a sequence.  [default: 4096]"),
            click.option("--tokens", type=COUNT, help="Tokens of the whole run, such as 15T."),
            click.option(
                "--batch-within",
                type=float,
                default=0.1,
                show_default=True,
                help="How far a plan's batch may be from --batch.",
            ),
            click.option(
                "--precision",
                default="bf16",
                show_default=True,
                help="Recipe: bf16, bf16-mixed, bf16-pure, fp16-mixed, fp32.",
            ),
            click.option(
                "--capacity-factor",
                type=float,
                help="Slots of an expert over its fair share of tokens; more than 1 is an uneven load.  [default: 1]",
            ),
            click.option(
                "--failures",
                help="Count failures in the run: llama-3, opt-175b, or a chip's mean hours between failures.",
            ),
            click.option(
                "--checkpoint-seconds",
                type=SECONDS,
                default=30.0,
                help="How long a checkpoint stops the run.  [default: 30s]",
            ),
            click.option(
                "--checkpoint-every", type=SECONDS, help="Work between checkpoints.  [default: the best interval]"
            ),
            click.option(
                "--restart-seconds",
                type=SECONDS,
                default=600.0,
                help="From a failure to the first new step.  [default: 10min]",
            ),
            click.option("--optimizer-dtype", help="Dtype of the AdamW moments: fp32 or bf16."),
            click.option("--price", type=USD_PER_HOUR, help="USD per chip-hour, instead of the list price."),
            click.option(
                "--collective-matmul",
                is_flag=True,
                help="Tensor-parallel transfers overlap their matmuls piece by piece, as prefetched ones do.",
            ),
            click.option("--headroom", type=float, default=0.0, show_default=True, help="Part of HBM to leave free."),
        )
    ):
        function = option(function)
    return json_option(explain_options(function))


def choice_options(*, several: bool) -> Callable[[F], F]:
    """The choices of a plan as options: one value each, or the values to try."""
    from rooftop.training import choices

    def add(function: F) -> F:
        for f in reversed(choices()):
            values = [str(v) for v in f.metadata["values"]]
            function = click.option(
                f"--{f.name.replace('_', '-')}",
                multiple=several,
                type=click.Choice(values),
                help=f"{f.metadata['help']}  [default: {'all are tried' if several else f.default}]",
            )(function)
        return function

    return add


def chosen(options: dict[str, Any]) -> dict[str, Any]:
    """Take the choices that were given out of the options: a value, or the values to try, by name."""
    from rooftop.training import choices

    result = {}
    for f in choices():
        given = options.pop(f.name)
        of_text = {str(v): v for v in f.metadata["values"]}
        if isinstance(given, tuple) and given:
            result[f.name] = tuple(of_text[text] for text in given)
        elif isinstance(given, str):
            result[f.name] = of_text[given]
    return result


def question_of(
    model: str,
    where: str,
    *,
    capacity_factor: float | None,
    failures: str | None,
    checkpoint_seconds: float,
    checkpoint_every: float | None,
    restart_seconds: float,
    **options: Any,
) -> Any:
    """The question that the options ask."""
    from rooftop.hardware import slice_of
    from rooftop.training import Failures, Question, failure_rate
    from rooftop.transformer import architecture, with_capacity

    rate = None
    if failures is None:
        refuse_given(
            "--checkpoint-seconds", "--checkpoint-every", "--restart-seconds", why="they count with --failures only"
        )
    else:
        hours, source = failure_rate(failures)
        rate = Failures(hours, checkpoint_seconds, restart_seconds, checkpoint_every, source)
    arch = architecture(model)
    if capacity_factor is not None:
        arch = with_capacity(arch, capacity_factor)
    return Question(arch, slice_of(where), failures=rate, **options)


def show(answer: Any, as_json: bool, explain: str | None, depth: int) -> None:
    """Print an answer, or the derivation of one of its quantities."""
    from rooftop.training import explain_estimate
    from rooftop.views._explain import explanation_json, explanation_text
    from rooftop.views._plan import answer_json, answer_text

    if explain is None:
        emit(answer_json(answer), lambda: answer_text(answer), as_json)
        return
    explanation = explain_estimate(answer.best, explain, depth, question=answer.question)
    emit(
        {**answer_json(answer), "explanation": explanation_json(explanation)},
        lambda: explanation_text(explanation),
        as_json,
    )
