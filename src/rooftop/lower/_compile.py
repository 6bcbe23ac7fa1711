"""A plan's training step through a real compiler, in a process of its own with limits of time and memory.

What is wanted (the scheduled HLO, the report of its memory) is in the compiler's dump long before machine code is; the process is
stopped as soon as it is there.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooftop._files import read_text
from rooftop.errors import InputError, MissingExtra, NoAnswer
from rooftop.lower._jax import jax
from rooftop.lower._targets import Target
from rooftop.training import Plan, Problem

_MOST_BYTES = 2**30
_POLL_SECONDS = 0.05
#: What a compiler writes last of all that is wanted.
_READY = {"tpu": "*after_optimizations_after_buffer_assignment.txt"}


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiler made of a step, for one device.

    peak: bytes of device memory at the worst moment. message: why it was refused, empty if it was not.
    """

    target: Target
    text: str
    peak: float
    seconds: float
    message: str = ""

    @property
    def accepted(self) -> bool:
        """Whether there is a program."""
        return not self.message


def compile_step(problem: Problem, plan: Plan, kind: str, *, seconds: float = 600.0, bytes: float = 16e9) -> Compiled:
    """Compile the whole training step of a plan. kind: one of `KINDS`; seconds, bytes: what the compilation may take.

    Raises InputError for models and plans that are not lowered to JAX, MissingExtra without the compiler, and NoAnswer
    where the limits are too small.
    """
    target = Target(kind, problem.slice)
    _check_lowered(problem, plan)
    jax()  # fails here, with the advice what to install, rather than in the other process
    with tempfile.TemporaryDirectory(prefix="rooftop-") as folder:
        process = multiprocessing.get_context("spawn").Process(target=_work, args=(problem, plan, target, folder))
        start = time.monotonic()
        with _environment(target, folder):  # a new process may import JAX before it runs a line of ours
            process.start()
        try:
            stopped = _wait(process, Path(folder), target, start + seconds, bytes)
        finally:
            if process.is_alive():
                process.kill()
            process.join()
        return _read(Path(folder), target, time.monotonic() - start, stopped, process.exitcode)


@contextlib.contextmanager
def _environment(target: Target, folder: str) -> Iterator[None]:
    """What the other process shall find in its environment."""
    before = dict(os.environ)
    changed: dict[str, str] = {}
    target.prepare(changed, folder)
    os.environ.update(changed)
    try:
        yield
    finally:
        for name in changed:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


def _check_lowered(problem: Problem, plan: Plan) -> None:
    """Raises InputError for what the reference Transformer does not do."""
    recipe = problem.recipe
    if plan.mesh.get("pipeline", 1) > 1:
        raise InputError(
            "plans with pipeline stages are not lowered to JAX so far; check one with pipeline=1", field="mesh"
        )
    if recipe.optimizer != "adamw" or recipe.moments not in ("fp32", "bf16"):
        raise InputError(
            f"{recipe.optimizer} with states in {recipe.moments} is not lowered to JAX; check the plan with AdamW in fp32 or bf16",
            field="optimizer",
        )


def _wait(process: Any, folder: Path, target: Target, deadline: float, bytes: float) -> str:
    """Wait until what is wanted is there; returns why the process must be stopped before, if so."""
    ready = _READY.get(target.kind)
    while process.is_alive():
        if ready and any(p.stat().st_size for p in folder.glob(ready)):
            return ""
        if time.monotonic() > deadline:
            return "time"
        if _resident(process.pid) > bytes:
            return "memory"
        process.join(_POLL_SECONDS)
    return ""


def _resident(pid: int) -> float:
    """Bytes of memory that a process has; 0 where the system does not tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    found = re.search(r"VmRSS:\s*(\d+) kB", status)
    return 1024.0 * int(found[1]) if found else 0.0


def _read(folder: Path, target: Target, seconds: float, stopped: str, code: int | None) -> Compiled:
    if stopped:
        limit = {"time": f"--timeout: it was stopped after {seconds:.0f} s", "memory": "--compiler-memory"}[stopped]
        raise NoAnswer(
            f"the compilation takes more than {limit}; raise the limit, or take a smaller slice", field=stopped
        )
    answer: dict[str, Any] = {}
    if (folder / "answer.json").exists():
        answer = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    error = {"InputError": InputError, "MissingExtra": MissingExtra}.get(answer.get("kind", ""))
    if error is not None:
        raise error(answer["message"], field=answer["field"])
    if "message" in answer:
        return Compiled(target, "", 0.0, seconds, answer["message"])
    optimised = sorted(folder.glob("*.jit_step.*after_optimizations.txt"))
    if not optimised:
        log = (
            (folder / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
            if (folder / "log").exists()
            else []
        )
        told = f": {log[-1][:200]}" if log else ""
        raise NoAnswer(f"the compiler ended with status {code} and wrote no program{told}", field="compiler")
    text = read_text(optimised[-1], _MOST_BYTES)
    peak = answer.get("peak") or _reported(folder)
    if peak is None:
        raise NoAnswer("the compiler reported no peak memory; this version of JAX is not known", field="compiler")
    return Compiled(target, text, float(peak), seconds)


def _reported(folder: Path) -> float | None:
    """Bytes of device memory in the compiler's report."""
    for path in folder.glob("*memory-usage-report.txt"):
        found = re.search(r"\(color=0\)\s*Total bytes: (\d+)", path.read_text(encoding="utf-8", errors="replace"))
        if found:
            return float(found[1])
    return None


def _work(problem: Problem, plan: Plan, target: Target, folder: str) -> None:
    """The other process: what it learns goes into files of the folder."""
    log = os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    answer: dict[str, Any]
    try:
        answer = {"peak": _compiled(problem, plan, target)}
    except InputError as error:
        answer = {"kind": type(error).__name__, "message": error.message, "field": error.field}
    except Exception as error:  # whatever a compiler says is its answer
        text = " ".join(str(error).split())
        answer = {"message": text.removeprefix("INTERNAL: ").partition(" --- ")[0][:500] or type(error).__name__}
    part = os.path.join(folder, "answer.part")
    with open(part, "w", encoding="utf-8") as file:
        json.dump(answer, file)
    os.replace(part, os.path.join(folder, "answer.json"))


def _compiled(problem: Problem, plan: Plan, target: Target) -> float:
    """Compile the step; peak bytes of a device."""
    import jax

    from rooftop.lower._program import step_of_plan

    step, arguments = step_of_plan(problem, plan, target)
    windows = problem.calibration.overlap["critical"] > 0
    compiled = jax.jit(step, donate_argnums=0).lower(*arguments).compile(target.options(windows=windows))
    return float(compiled.memory_analysis().peak_memory_in_bytes)
