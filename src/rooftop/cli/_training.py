"""What `plan` and `step` share: their options, and how an answer is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from rooftop.cli._common import (
    BANDWIDTH,
    COUNT,
    INTEGER,
    SECONDS,
    TOKENS,
    USD_PER_HOUR,
    Parsed,
    emit,
    explain_options,
    json_option,
    model_named,
    refuse_given,
)
from rooftop.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])


def read_lengths(text: str, field: str | None) -> Any:
    """A distribution of document lengths."""
    from rooftop.transformer import documents_of

    return documents_of(text, field)


LENGTHS = Parsed("lengths", read_lengths)


def training_options(function: F, *, saved: bool = False) -> F:
    """The options of a training question. saved: a file may say what is asked."""
    for option in reversed(
        (
            click.option(
                "--on",
                "where",
                required=not saved,
                metavar="SLICE",
                help="Where: v5p:16x20x28, h100:1024, a hardware file."
                + ("  [default: that of --plan]" if saved else ""),
            ),
            click.option("--batch", type=COUNT, help="Tokens per step, such as 4M.  [default: 4M]"),
            click.option("--seq", type=INTEGER, help="Tokens of a sequence.  [default: 4096]"),
            click.option(
                "--lengths",
                type=LENGTHS,
                help="Tokens of documents: 2048, 512*3,2048, exponential:2048, lognormal:2048:1.2, or a file with one on each"
                " line.  [default: one document a sequence]",
            ),
            click.option(
                "--packing",
                type=click.Choice(["packed", "padded"]),
                default="packed",
                help="Documents of --lengths end to end, cut where a sequence ends, or each padded to a sequence of its own."
                "  [default: packed]",
            ),
            click.option(
                "--tokens", type=TOKENS, help="Tokens of the whole run, such as 15T; chinchilla: 20 a parameter."
            ),
            click.option(
                "--batch-within",
                type=float,
                default=0.1,
                show_default=True,
                help="How far a plan's batch may be from --batch.",
            ),
            click.option("--max-batch", type=COUNT, help="No plan's batch may have more tokens than this."),
            click.option(
                "--precision",
                default="bf16",
                show_default=True,
                help="Recipe: bf16, bf16-mixed, bf16-pure, fp16-mixed, fp8, mxfp8, nvfp4, int8, fp32.",
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
            click.option(
                "--checkpoint-bandwidth",
                type=BANDWIDTH,
                help="Storage bandwidth of the whole run, instead of --checkpoint-seconds: 200GB/s.",
            ),
            click.option("--spares", type=INTEGER, help="Chips in reserve: how long the run stands for repairs."),
            click.option(
                "--repair", type=SECONDS, default=86400.0, help="How long a failed chip is out.  [default: 1d]"
            ),
            click.option(
                "--optimizer",
                default="adamw",
                show_default=True,
                help="adamw, adafactor, lion, sgd-momentum, muon.",
            ),
            click.option("--optimizer-dtype", help="Dtype of the optimizer's moments: fp32, bf16, fp16, fp8 or int8."),
            click.option("--gradient-dtype", help="Dtype in which gradients are accumulated: fp32, bf16 or fp16."),
            click.option("--reduction-dtype", help="Dtype in which gradients cross the network: fp32, bf16 or fp16."),
            click.option("--price", type=USD_PER_HOUR, help="USD per chip-hour, instead of the list price."),
            click.option(
                "--collective-matmul",
                is_flag=True,
                help="Tensor-parallel transfers overlap their matmuls piece by piece, as prefetched ones do.",
            ),
            click.option("--headroom", type=float, default=0.0, show_default=True, help="Part of HBM to leave free."),
            click.option("--timeline", is_flag=True, help="Also the step over time: stages, networks, memory."),
            click.option("--save", type=click.Path(path_type=Path, dir_okay=False), help="Save the plan: plan.json."),
        )
    ):
        function = option(function)
    return json_option(explain_options(function))


def choice_options(*, several: bool) -> Callable[[F], F]:
    """The choices of a plan as options: one value each, or the values to try."""
    from rooftop.training import offered

    def add(function: F) -> F:
        for f in reversed(offered()):
            values = [str(v) for v in (*f.metadata["values"], *f.metadata["asked"])]
            function = click.option(
                f"--{f.name.replace('_', '-')}",
                multiple=several,
                type=_Value(values, f.metadata["begins"]),
                help=f"{f.metadata['help']}  [default: {_tried(f) if several else f.default}]",
            )(function)
        return function

    return add


class _Value(click.Choice[str]):
    """One of the values of a choice, words with commas in any order; or a text that begins as a choice says."""

    def __init__(self, values: list[str], begins: str | None) -> None:
        super().__init__(values)
        self.begins = begins

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if self.begins is not None and str(value).startswith(self.begins):
            return str(value)
        words = sorted(str(value).split(","))
        found = next((v for v in self.choices if sorted(v.split(",")) == words), value)
        return super().convert(found, param, ctx)


def _tried(f: Any) -> str:
    tried = f.metadata["tried"]
    return "all are tried" if tried == f.metadata["values"] else f"{', '.join(map(str, tried))}"


def chosen(options: dict[str, Any]) -> dict[str, Any]:
    """Take the choices that were given out of the options: a value, or the values to try, by name."""
    from rooftop.training import offered

    result = {}
    for f in offered():
        given = options.pop(f.name)
        of_text = {str(v): v for v in f.metadata["values"]}
        if isinstance(given, tuple) and given:
            result[f.name] = tuple(of_text.get(text, text) for text in given)
        elif isinstance(given, str):
            result[f.name] = of_text.get(given, given)
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
    checkpoint_bandwidth: float | None,
    spares: int | None,
    repair: float,
    tokens: float | str | None,
    **options: Any,
) -> Any:
    """The question that the options ask."""
    from rooftop.hardware import slice_of
    from rooftop.training import Failures, Question, chinchilla_tokens, failure_rate
    from rooftop.transformer import with_capacity

    rate = None
    if failures is None:
        refuse_given(
            "--checkpoint-seconds", "--checkpoint-every", "--restart-seconds", "--checkpoint-bandwidth", "--spares",
            "--repair", why="they count with --failures only",
        )  # fmt: skip
    else:
        hours, source = failure_rate(failures)
        if checkpoint_bandwidth is not None:
            refuse_given("--checkpoint-seconds", why="--checkpoint-bandwidth says how long a checkpoint takes")
        if spares is None:
            refuse_given("--repair", why="it counts with --spares only")
        rate = Failures(
            hours, checkpoint_seconds, restart_seconds, checkpoint_every, source, checkpoint_bandwidth, spares, repair
        )
    arch = model_named(model)
    if capacity_factor is not None:
        arch = with_capacity(arch, capacity_factor)
    length = chinchilla_tokens(arch) if isinstance(tokens, str) else tokens
    if isinstance(options["lengths"], str):  # of a saved plan
        options["lengths"] = read_lengths(options["lengths"], "lengths")
    return Question(arch, slice_of(where), failures=rate, tokens=length, **options)


#: What a question says where nobody asks otherwise.
NOT_ASKED: dict[str, Any] = {
    "tokens": None, "max_batch": None, "price": None, "headroom": 0.0, "failures": None, "checkpoint_seconds": 30.0,
    "checkpoint_every": None, "restart_seconds": 600.0, "checkpoint_bandwidth": None, "spares": None, "repair": 86400.0,
    "batch": None, "seq": None, "capacity_factor": None, "lengths": None, "packing": "packed",
}  # fmt: skip


def asked_of(model: str | None, where: str | None, options: dict[str, Any], file: Path | None) -> dict[str, Any]:
    """What is asked: the command line first, then what the plan in the file was made for."""
    result = {"model": model, "where": where, **options}
    context = click.get_current_context()
    if file is not None:
        from rooftop.training import load, made_for

        for key, value in made_for(load(file), str(file)).items():
            name = "where" if key == "slice" else key
            if context.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE:
                result[name] = value
    for name, what in (("model", "MODEL"), ("where", "--on SLICE")):
        if result[name] is None:
            raise InputError(
                f"{context.info_name} needs {what}; give it, or a plan of --save, which knows it", field=name
            )
    return result


def question_of_file(file: Path) -> Any:
    """What a saved plan was made for, whatever the command line says."""
    from rooftop.training import load, made_for

    facts = made_for(load(file), str(file))
    for name in ("model", "slice"):
        if name not in facts:
            raise InputError(f"{file} does not say its {name}; save the plan again with --save", field=name)
    where = facts.pop("slice")
    return question_of(where=where, **{**NOT_ASKED, **facts})


def asked_for(model: str, where: str, answer: Any, options: dict[str, Any]) -> dict[str, Any]:
    """What a saved plan was made for: the user's words where they still name the slice of the answer."""
    from rooftop.hardware import slice_of

    there = answer.question.slice
    same = slice_of(where) == there
    kept = (
        "seq",
        "batch",
        "precision",
        "optimizer",
        "optimizer_dtype",
        "gradient_dtype",
        "reduction_dtype",
        "capacity_factor",
        "collective_matmul",
        "headroom",
    )
    lengths = answer.question.lengths
    of_documents = {} if lengths is None else {"lengths": lengths.text, "packing": answer.question.packing}
    told = {k: options[k] for k in kept if options.get(k) not in (None, False, 0.0)}
    return {"model": model, "slice": where if same else there.name, **told, **of_documents}


def show(answer: Any, as_json: bool, explain: str | None, depth: int, over_time: bool, found: Any = None) -> None:
    """Print an answer, perhaps over time and with how far its axes go, or the derivation of one of its quantities."""
    from rooftop.training import explain_estimate, timeline
    from rooftop.views import group
    from rooftop.views._explain import explanation_json, explanation_text
    from rooftop.views._plan import answer_json, answer_text, reach_json, reach_text
    from rooftop.views._timeline import timeline_json, timeline_text

    if explain is None:
        data, drawn = answer_json(answer), timeline(answer.best) if over_time else None
        if drawn is not None:
            data["timeline"] = timeline_json(drawn)
        if found is not None:
            data["limits"] = reach_json(found)
        emit(
            data,
            lambda: group(
                answer_text(answer),
                *([] if found is None else [reach_text(found)]),
                *([] if drawn is None else [timeline_text(drawn, answer.best)]),
            ),
            as_json,
            lambda: _figures(answer),
        )
        return
    refuse_given("--timeline", "--limits", why="--explain shows a derivation alone")
    explanation = explain_estimate(answer.best, explain, depth, question=answer.question)
    emit(
        {**answer_json(answer), "explanation": explanation_json(explanation)},
        lambda: explanation_text(explanation),
        as_json,
    )


def _figures(answer: Any) -> list[Any]:
    from rooftop.figures import training_figures

    return list(training_figures(answer))
