"""From a kernel to what launched it: the framework's op, its input shapes, the modules around it.

A kernel carries the correlation id of the runtime call that launched it, which lies within the op of the framework that made
it, which lies within modules and annotations. Kernels of replayed graphs have no such call; for these only the name speaks.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rooftop.profiles._events import Builder, Op, Track

_RUNTIME = ("cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "Runtime")
_NUMBERED = ("ProfilerStep#", "## Call CompiledFxGraph")  # annotations that are no part of a model
_COLLECTIVE = ("nccl:", "gloo:", "mpi:")  # annotations that record the operands of a collective


_START = operator.itemgetter(0, 1)


@dataclass(slots=True)
class Launch:
    """A device event that waits for its op: event number, name, category, ids, bytes moved, members, collective."""

    event: int
    name: str
    cat: str
    correlation: Any
    external: Any
    bytes: float | None
    group: int | None
    collective: str


@dataclass(slots=True)
class _Context:
    """What stands around a launch."""

    caller: str = ""
    dims: bytes = b""
    types: bytes = b""
    values: bytes = b""
    scope: str = ""
    recomputed: bool = False


class HostThreads:
    """Host events by thread, kept in rows until all are read."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str, bytes, bytes, bytes], int] = {}
        self._rows: dict[tuple[Any, Any], list[tuple[int, int, int, Any, Any]]] = {}

    def add(
        self, pid: Any, tid: Any, start: int, duration: int, name: str, cat: str,
        external: Any = None, correlation: Any = None, dims: bytes = b"", types: bytes = b"", values: bytes = b"",
    ) -> None:  # fmt: skip
        """One event of a host thread."""
        key = (name, cat, dims, types, values)
        number = self._names.setdefault(key, len(self._names))
        self._rows.setdefault((pid, tid), []).append((start, -duration, number, external, correlation))

    def finish(self, builder: Builder, launches: list[Launch], threads: Mapping[tuple[Any, Any], str]) -> None:
        """Put host events and the ops of launches into the trace."""
        names = list(self._names)
        wanted = {x.correlation for x in launches if isinstance(x.correlation, int)}
        externals = {x.external for x in launches if isinstance(x.external, int)}
        called: dict[Any, tuple[int, tuple[int, ...]]] = {}  # correlation -> when, and the names around the call
        within: dict[Any, tuple[int, tuple[int, ...]]] = {}  # external id -> the same of the op of the framework
        host_ops = [
            builder.op(
                Op(name, cat, caller=name, inputs=_inputs(dims, types), values=_values(values))
                if cat == "cpu_op"
                else Op(name, cat)
            )
            for name, cat, dims, types, values in names
        ]
        on_host = not launches  # a run without an accelerator: the ops of the framework are the work
        runtime = [cat in _RUNTIME for _, cat, *_ in names]
        work = [cat == "cpu_op" for _, cat, *_ in names]
        for (pid, tid), rows in self._rows.items():
            rows.sort(key=_START)
            thread = threads.get((pid, tid), f"thread {tid}")
            track = builder.track(Track("host", f"process {pid}", thread))
            cpu = builder.track(Track("device", f"process {pid}", thread, 0)) if on_host else track
            numbers = [row[2] for row in rows]
            builder.extend(
                [cpu if work[n] else track for n in numbers], [host_ops[n] for n in numbers], [row[0] for row in rows],
                [-row[1] for row in rows],
            )  # fmt: skip
            if on_host:
                continue
            ends: list[int] = []
            around: list[int] = []
            for start, negative, number, external, correlation in rows:
                while ends and ends[-1] <= start:
                    ends.pop()
                    around.pop()
                ends.append(start - negative)
                around.append(number)
                if runtime[number]:
                    if correlation in wanted:
                        called[correlation] = start, tuple(around)
                elif external in externals and external not in within:
                    within[external] = -1, tuple(around)
        contexts: dict[tuple[int, ...], _Context] = {}
        memo: dict[tuple[Any, ...], int] = {}
        for x in launches:
            start, place = called.get(x.correlation) or within.get(x.external) or (-1, ())
            key = (x.name, x.cat, x.bytes, x.group, x.collective, place)
            number = memo.get(key, -1)
            if number < 0:
                if place not in contexts:
                    contexts[place] = _context(place, names)
                context = contexts[place]
                number = memo[key] = builder.op(Op(
                    x.name, x.cat, bytes=x.bytes, scope=context.scope, caller=context.caller,
                    inputs=_inputs(context.dims, context.types), group=x.group, text=x.collective,
                    recomputed=context.recomputed, values=_values(context.values),
                ))  # fmt: skip
            builder.relabel(x.event, number, start)


def _context(around: tuple[int, ...], names: list[tuple[str, str, bytes, bytes, bytes]]) -> _Context:
    """From the innermost op outwards. The caller is the innermost op that recorded shapes, or else the innermost op."""
    found = _Context()
    modules: list[str] = []
    for number in reversed(around):
        name, cat, dims, types, values = names[number]
        if cat == "cpu_op" or name.startswith(_COLLECTIVE):
            if not found.caller or (not found.dims and len(dims) > 4):
                found.caller, found.dims, found.types = name, dims if len(dims) > 4 else b"", types
                found.values = values
            found.recomputed |= "CheckpointFunctionBackward" in name
        elif cat == "module" or (cat == "user_annotation" and not name.startswith(_NUMBERED)):
            modules.append(name)
    found.scope = "/".join(reversed(modules))
    return found


def _values(values: bytes) -> str:
    return values.decode(errors="replace") if len(values) < 4000 else ""


def _inputs(dims: bytes, types: bytes) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Shapes and dtypes as recorded. Lists of tensors, which have lists of shapes, give ()."""
    if not dims:
        return ()
    try:
        shapes, names = json.loads(dims), json.loads(types or b"[]")
    except (ValueError, RecursionError):
        return ()
    if not isinstance(shapes, list) or not isinstance(names, list):
        return ()
    rows = []
    for position, shape in enumerate(shapes[:64]):
        flat = isinstance(shape, list) and all(isinstance(n, int) and 0 <= n < 2**50 for n in shape)
        dtype = names[position] if position < len(names) and isinstance(names[position], str) else ""
        rows.append((tuple(shape) if flat else (), dtype))
    return tuple(rows)
