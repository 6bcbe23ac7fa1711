"""Profiles for other programs: Parquet of ops, and a trace that Perfetto shows with the roofline beside what was measured."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rooftop.errors import InputError, MissingExtra
from rooftop.profiles._events import Op, Trace
from rooftop.profiles._recognise import recognise
from rooftop.profiles._report import Report
from rooftop.profiles._roof import Roof, collective_bound


def write_parquet(rows: Sequence[dict[str, Any]], path: str | Path) -> None:
    """Ops as a table, one row each, with the names and units of the JSON answer. Raises MissingExtra without pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtra(
            "--parquet needs pyarrow; install it with pip install 'rooftop[profiles]'", field="parquet"
        ) from None
    text = {"name", "category", "library", "part", "binds", "dtype", "shape", "collective", "source"}
    kinds = {"group": pa.int64(), "recomputed": pa.bool_(), **dict.fromkeys(text, pa.string())}
    schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in rows[0]]) if rows else pa.schema([])
    try:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path)
    except OSError as error:
        raise InputError(f"--parquet: cannot write {path}: {error.strerror or error}", field="parquet") from None


def bound_of(op: Op, roof: Roof) -> float | None:
    """Seconds of one run of an op on its roof; None where its work is not known."""
    known = recognise(op)
    if known.category == "collective":
        return collective_bound(roof, known.collective, known.bytes or 0.0, op.group or 0)
    bounds = []
    peak = roof.peak(known.dtype)
    if known.flops and peak and known.category in ("matmul", "attention", "convolution"):
        bounds.append(known.flops / peak)
    if known.bytes and known.category not in ("host transfer", "transfer wait", "control flow"):
        bounds.append(known.bytes / roof.bandwidth)
    return max(bounds) if bounds else None


def write_perfetto(traces: Sequence[Trace], report: Report, path: str | Path) -> None:
    """A Chrome trace for Perfetto: measured ops, and on a second track beside each the time that the roofline gives them.

    An op of the second track starts with the measured one; where it beat its roofline it ends with it. Compressed if the name
    ends in .gz.
    """
    where = Path(path)
    try:
        with (
            gzip.open(where, "wt", encoding="utf-8")
            if where.suffix == ".gz"
            else where.open("w", encoding="utf-8") as file
        ):
            file.write('{"traceEvents":[')
            first = True
            for process, trace in enumerate(traces):
                for event in _events(trace, report.roof, process):
                    file.write(("" if first else ",\n") + json.dumps(event, allow_nan=False))
                    first = False
            file.write('],"displayTimeUnit":"ms"}')
    except OSError as error:
        raise InputError(f"--perfetto: cannot write {path}: {error.strerror or error}", field="perfetto") from None


def _events(trace: Trace, roof: Roof | None, process: int) -> Any:
    bounds = {} if roof is None else {i: bound_of(op, roof) for i, op in enumerate(trace.ops)}
    shown = [i for i, t in enumerate(trace.tracks) if t.kind in ("device", "async", "module", "span")]
    numbers = {i: n for n, i in enumerate(shown)}
    pid = {i: 1000 * process + (trace.tracks[i].device or 0) + 1 for i in shown}
    rank = "" if trace.rank is None else f"rank {trace.rank}, "
    for i in {pid[i]: i for i in shown}.values():
        yield {"ph": "M", "name": "process_name", "pid": pid[i], "args": {"name": f"{rank}{trace.tracks[i].process}"}}
    for i in shown:
        track = trace.tracks[i]
        yield {"ph": "M", "name": "thread_name", "pid": pid[i], "tid": 2 * numbers[i], "args": {"name": track.thread}}
        if roof is not None and track.kind == "device":
            name = f"{track.thread}: roofline of {roof.name}"
            yield {"ph": "M", "name": "thread_name", "pid": pid[i], "tid": 2 * numbers[i] + 1, "args": {"name": name}}
    for event in trace.events("device", "async", "module", "span"):
        i, number = int(trace.track[event]), int(trace.op[event])
        op = trace.ops[number]
        start, duration = int(trace.start[event]) / 1e6, int(trace.duration[event]) / 1e6
        row = {"ph": "X", "name": op.name, "pid": pid[i], "tid": 2 * numbers[i], "ts": start, "dur": duration}
        if trace.tracks[i].kind != "device":
            yield row
            continue
        known = recognise(op)
        bound = bounds.get(number)
        args = {
            "category": known.category, "shape": known.shape, "scope": op.scope, "flops": known.flops, "bytes": known.bytes,
            "roofline_us": None if bound is None else bound * 1e6, "source": op.source,
        }  # fmt: skip
        yield {**row, "args": {k: v for k, v in args.items() if v not in (None, "")}}
        if bound is not None and duration > 0:
            yield {
                **row,
                "tid": 2 * numbers[i] + 1,
                "dur": min(bound * 1e6, duration),
                "args": {"roofline_us": bound * 1e6},
            }
