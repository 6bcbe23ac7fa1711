"""Plans to configurations and back: the table of frameworks, and how their files are written and recognised."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooftop.errors import InputError
from rooftop.frameworks import _deepspeed, _maxtext, _megatron, _servers, _torchtitan
from rooftop.frameworks._facts import Facts
from rooftop.frameworks._reader import Reader, Run
from rooftop.frameworks._settings import Settings, read_settings
from rooftop.shown import Shown
from rooftop.training import Answer, Choices, Plan, Problem, Question, named_plan, problem_of, step_of


@dataclass(frozen=True, slots=True)
class Exported(Shown):
    """settings: by key, perhaps nested; text: the file; unsaid: what the framework cannot be told, in sentences."""

    framework: str
    settings: Mapping[str, Any]
    text: str
    unsaid: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Imported(Shown):
    """A run of another framework as a question and its plan.

    words: of the `rooftop step` that asks the same. made_for: what a saved plan keeps of the question. unread: keys of the file
    that nobody understood; notes: how others were read.
    """

    framework: str
    question: Question
    plan: Plan
    words: tuple[str, ...]
    made_for: Mapping[str, Any]
    unread: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def question_options(self) -> dict[str, Any]:
        """Precision and optimizer."""
        return {
            k: v for k, v in self.made_for.items() if k not in ("model", "slice", "seq", "batch", "capacity_factor")
        }

    def answer(self) -> Answer:
        """Time, memory and cost of the run."""
        return step_of(self.question, self.plan)


@dataclass(frozen=True, slots=True)
class Framework:
    """write: settings of a plan; text: how they are written; read: a run from settings, where that is possible."""

    write: Callable[[Facts], dict[str, Any]]
    text: Callable[[Mapping[str, Any]], str]
    read: Callable[[Reader], Run] | None = None


def export(problem: Problem, plan: Plan, framework: str) -> Exported:
    """A plan for one of FRAMEWORKS. Raises InputError for others."""
    facts = Facts(problem, plan)
    found = _framework(framework)
    settings = found.write(facts)
    return Exported(framework, settings, found.text(settings), tuple(dict.fromkeys(facts.unsaid)))


def import_plan(
    path: str | Path,
    framework: str | None = None,
    *,
    model: str | None = None,
    on: str | None = None,
    seq: int | None = None,
) -> Imported:
    """The run that a configuration of MaxText, Megatron-LM, torchtitan or DeepSpeed describes.

    framework: recognised by the file unless given. model, on, seq: what the file does not say, or what counts instead; a chip
    alone as `on` gets as many chips as the file starts processes. Raises InputError for what is not well formed.
    """
    kind, settings = read_settings(Path(path))
    name = framework or recognised(kind, settings, str(path))
    reader = _framework(name).read
    if reader is None:
        able = [n for n, f in FRAMEWORKS.items() if f.read is not None]
        raise InputError(f"{name} configurations are not read; those of {', '.join(able)} are", field="from")
    if name == "megatron":
        settings = {key.rpartition(".")[2].lstrip("-").replace("_", "-"): value for key, value in settings.items()}
    r = Reader(settings, str(path), model=model, on=on, seq=seq)
    return _imported(name, r, reader(r))


def _imported(name: str, r: Reader, run: Run) -> Imported:
    tokens = run.sequences * run.seq
    question = Question(run.model, run.where, batch=tokens, seq=run.seq, **run.options)
    mesh = {axis: n for axis, n in run.mesh.items() if n > 1} or {"fsdp": 1}
    if math.prod(mesh.values()) > run.where.chips:
        shown = ", ".join(f"{a}={n}" for a, n in mesh.items())
        raise InputError(
            f"{r.title}: {shown} takes {math.prod(mesh.values())} chips of the {run.where.chips} of {run.where.name}; give a larger"
            " slice with --on",
            field="on",
        )
    plan = named_plan(question, mesh, microbatches=run.microbatches, choices=Choices(**run.choices))
    if plan.batch_sequences != run.sequences:
        raise InputError(
            f"{r.title}: {run.sequences} sequences of a step cannot be shared evenly by {plan.groups} data-parallel groups; give the"
            " slice that it runs on with --on",
            field="batch",
        )
    capacity = getattr(problem_of(question).model.experts, "capacity_factor", 1.0)
    made_for = {
        "model": run.words, "slice": run.where.name, "seq": run.seq, "batch": tokens, **run.options,
        **({"capacity_factor": capacity} if capacity != 1.0 else {}),
    }  # fmt: skip
    return Imported(name, question, plan, _words(made_for, plan), made_for, r.unread, tuple(r.notes))


def _words(made_for: Mapping[str, Any], plan: Plan) -> tuple[str, ...]:
    """The words of `rooftop step`."""
    from rooftop.training import choices

    said = {k: v for k, v in made_for.items() if k not in ("model", "slice") and (k, v) not in _USUAL}
    words = [
        "rooftop", "step", made_for["model"], "--on", made_for["slice"], "--mesh",
        ",".join(f"{a}={n}" for a, n in plan.mesh.items() if n > 1) or "fsdp=1",
    ]  # fmt: skip
    for field in choices():
        value = getattr(plan.choices, field.name)
        if value != field.default:
            said[field.name] = value
    said["microbatches"] = plan.microbatches
    for key, value in said.items():
        words += [f"--{key.replace('_', '-')}", str(value)]
    return tuple(words)


_USUAL = {("precision", "bf16"), ("optimizer", "adamw")}


def recognised(kind: str, settings: Settings, title: str) -> str:
    """The framework whose keys these are. Raises InputError."""
    plain = {key.rpartition(".")[2].lstrip("-").replace("_", "-") for key in settings}
    if kind == "toml" or "parallelism.tensor_parallel_degree" in settings:
        return "torchtitan"
    if {"zero-optimization", "train-batch-size", "train-micro-batch-size-per-gpu"} & plain or any(
        key.startswith("zero_optimization.") for key in settings
    ):
        return "deepspeed"
    if {"num-layers", "tensor-model-parallel-size", "micro-batch-size", "hidden-size"} & plain:
        return "megatron"
    if any(key.startswith(("ici_", "dcn_", "base_")) for key in settings) or {
        "per-device-batch-size", "model-name", "max-target-length", "remat-policy",
    } & plain:  # fmt: skip
        return "maxtext"
    raise InputError(
        f"{title}: no key of MaxText, Megatron-LM, torchtitan or DeepSpeed is in it; say which it is with --from",
        field="from",
    )


def _framework(name: str) -> Framework:
    if name not in FRAMEWORKS:
        raise InputError(f"no framework is called {name[:40]!r}; use {', '.join(FRAMEWORKS)}", field="to")
    return FRAMEWORKS[name]


def _yaml(settings: Mapping[str, Any], indent: str = "") -> str:
    lines = []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            lines.append(f"{indent}{key}:\n{_yaml(value, indent + '  ')}")
        else:
            lines.append(f"{indent}{key}: {json.dumps(value)}\n")  # what JSON writes of a scalar is YAML
    return "".join(lines)


def _toml(settings: Mapping[str, Any]) -> str:
    return "\n".join(
        f"[{table}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in rows.items())
        for table, rows in settings.items()
    )


def _arguments(settings: Mapping[str, Any]) -> str:
    rows = [
        f"--{key}" if value is True else f"--{key} {value}" for key, value in settings.items() if value is not False
    ]
    return "\n".join(rows) + "\n"


def _json(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, indent=2) + "\n"


FRAMEWORKS = {
    "maxtext": Framework(_maxtext.write, _yaml, _maxtext.read),
    "megatron": Framework(_megatron.write, _arguments, _megatron.read),
    "torchtitan": Framework(_torchtitan.write, _toml, _torchtitan.read),
    "deepspeed": Framework(_deepspeed.write, _json, _deepspeed.read),
    "nemo": Framework(_megatron.write_nemo, _yaml),
    "vllm": Framework(_servers.write_vllm, _yaml),
    "sglang": Framework(_servers.write_sglang, _yaml),
    "tensorrt-llm": Framework(_servers.write_tensorrt, _yaml),
}
