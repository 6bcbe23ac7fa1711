"""Programs and profiles: JAX functions, compiled programs, plans as other tools have them, what really ran."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop import frameworks, lower, profiles
from rooftop._api._training import load_plan
from rooftop._api._words import where_of
from rooftop.errors import InputError
from rooftop.frameworks import Exported, Imported
from rooftop.hardware import Slice
from rooftop.lower import ProgramTime
from rooftop.profiles import Report
from rooftop.training import Answer

if TYPE_CHECKING:
    from rooftop.lower import Check  # brings JAX along

#: A function, or MODULE:FUNCTION, or FILE.py:FUNCTION.
Function = str | Callable[..., Any]


def _loaded(function: Function) -> tuple[Callable[..., Any], str]:
    if isinstance(function, str):
        return lower.load_function(function), function
    return function, getattr(function, "__name__", "function")


def _arguments(arguments: tuple[Any, ...]) -> list[Any]:
    """Arrays and shapes as they are; texts such as "bf16[512, 8192]" as shapes."""
    return [shape for a in arguments for shape in (lower.parse_shapes(a) if isinstance(a, str) else [a])]


def jax(function: Function, *arguments: Any, on: str | Slice) -> ProgramTime:
    """The roofline of a JAX function, op by op; see `rooftop jax --help`. Nothing is compiled or run on a device.

    arguments: arrays, jax.ShapeDtypeStruct, or texts such as "bf16[512, 8192]". Raises InputError where it cannot be traced.
    """
    found, name = _loaded(function)
    return lower.function_time(found, *_arguments(arguments), where=where_of(on), name=name)


def hlo(program: str | Path, *, on: str | Slice, mesh: Mapping[str, int] | None = None) -> ProgramTime:
    """What each op of a compiled program costs; see `rooftop hlo --help`.

    program: optimised HLO as `compiled.as_text()` gives it, or the Path of a file of it. mesh: axes whose row-major order numbers devices.
    """
    if isinstance(program, str):
        return lower.program_time(lower.list_hlo(program, mesh=mesh), where_of(on))
    return lower.program_time(lower.list_hlo(lower.read_hlo(program), mesh=mesh, name=program.name), where_of(on))


def check(
    plan: Answer | str | Path, compiler: str = "simulated", *, seconds: float = 600.0, memory: float = 16e9
) -> Check:
    """The training step of a plan as a real compiler makes it, beside the prediction; see `rooftop check --help`.

    plan: an answer of `plan` or `step`, or a saved plan. compiler: "simulated" (JAX's CPU devices), "gpu" or "tpu". seconds, memory
    (bytes): what the compilation may take. `agrees` of the result says whether the two are one.
    """
    answer = _answer(plan)
    return lower.check(answer.best.problem, answer.best.plan, compiler, seconds=seconds, bytes=memory)


def export(plan: Answer | str | Path, to: str) -> Exported:
    """A plan as another framework's configuration; see `rooftop export --help`.

    plan: an answer of `plan` or `step`, or a saved plan; to: "maxtext", "megatron", ... The result has `settings`, the file's `text`,
    and as `unsaid` what the framework cannot be told.
    """
    answer = _answer(plan)
    return frameworks.export(answer.best.problem, answer.best.plan, to)


def import_plan(
    path: str | Path,
    framework: str | None = None,
    *,
    model: str | None = None,
    on: str | None = None,
    seq: int | None = None,
) -> Imported:
    """The run that a configuration of MaxText, Megatron-LM, torchtitan or DeepSpeed describes; see `rooftop import --help`.

    framework: recognised by the keys of the file unless given. model, on, seq count before what the file says. The result has the
    `question` and `plan`, as `unread` the keys that nobody understood, and gives its `answer()`.
    """
    return frameworks.import_plan(path, framework, model=model, on=on, seq=seq)


def _answer(plan: Answer | str | Path) -> Answer:
    return plan if isinstance(plan, Answer) else load_plan(plan)


def trace(*paths: str | Path, on: str | None = None) -> Report:
    """A real profile against its roofline; see `rooftop trace --help`.

    paths: files or folders, the ranks of one run. on: the chip, where the profile does not name it. `versus` tells two reports apart.
    """
    if not paths:
        raise InputError("trace needs a profile; give a file or a folder", field="paths")
    return profiles.analyse([found for path in paths for found in profiles.read(path)], on)


def profile(
    function: Function, *shapes: Any, steps: int = 5, out: str | Path | None = None, on: str | None = None
) -> Report:
    """Profile a function through JAX on this machine, and report as `trace` does; see `rooftop profile --help`.

    shapes: of the arguments it is jitted and called with; none: it is called as it is. out: a folder that keeps the profile.
    """
    found, _ = _loaded(function)
    with tempfile.TemporaryDirectory() as temporary:
        folder = out or temporary
        profiles.capture(found, _arguments(shapes), steps, folder)
        return trace(folder, on=on)
