"""Exports of Nsight Systems (nsys export --type sqlite): kernels, copies, NVTX ranges and runtime calls."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rooftop.profiles._events import Builder, Device, Trace, Track
from rooftop.profiles._link import HostThreads, Launch
from rooftop.profiles._source import problem

_KERNELS, _COPIED, _SET, _CALLS = (f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME"))
_MOST_ROWS = 50_000_000
#: CUPTI's kinds of copies.
_COPIES = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 8: "DtoD", 10: "PtoP"}


def read_nsight(path: Path) -> Trace:
    """Read an export. Raises InputError for other databases. Opened read-only; only named tables are read."""
    try:
        connection = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error as error:
        raise problem(path, f"cannot be opened: {error}") from None
    try:
        return _read(path, connection)
    except (sqlite3.Error, TypeError, ValueError) as error:  # values of other types than the tool writes
        raise problem(path, f"is not a whole export of Nsight Systems ({error}); export it again") from None
    finally:
        connection.close()


def _read(path: Path, connection: sqlite3.Connection) -> Trace:
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables & {_KERNELS, _COPIED}:
        raise problem(path, "is a database without kernels of CUPTI; export it with nsys export --type sqlite")
    builder, host = Builder(), HostThreads()
    launches: list[Launch] = []
    strings: dict[int, str] = {}
    if "StringIds" in tables:
        strings = {int(i): str(v) for i, v in connection.execute("SELECT id, value FROM StringIds")}

    def rows(table: str, *wanted: str) -> Iterator[tuple[Any, ...]]:
        """Columns of a table; those that this version of the tool did not write are None."""
        if table not in tables:
            return iter(())
        present = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        columns = ", ".join(f'"{name}"' if name in present else "NULL" for name in wanted)
        return iter(connection.execute(f"SELECT {columns} FROM {table} LIMIT {_MOST_ROWS}"))

    def call(start: int, end: int, name: str, cat: str, thread: int | None, correlation: int | None = None) -> None:
        process = (thread or 0) >> 24
        key = None if correlation is None else process << 32 | correlation
        host.add(
            process & 0xFFFFFF, (thread or 0) & 0xFFFFFF, start * 1000, (end - start) * 1000, name, cat, correlation=key
        )

    def device_event(at: list[Any], name: str, cat: str, moved: float | None = None) -> None:
        start, end, device, stream, process, correlation = at
        key = (process or 0) >> 24 << 32 | (correlation or 0)
        launches.append(Launch(len(builder), name, cat, key, None, moved, None, ""))
        track = builder.track(Track("device", f"GPU {device}", f"stream {stream}", int(device)))
        builder.add(track, 0, start * 1000, (end - start) * 1000)

    for start, end, correlation, name, thread in rows(_CALLS, "start", "end", "correlationId", "nameId", "globalTid"):
        call(start, end, strings.get(name, "?"), "cuda_runtime", thread, correlation)
    for start, end, text, number, thread in rows("NVTX_EVENTS", "start", "end", "text", "textId", "globalTid"):
        if end is not None:
            call(start, end, str(text) if text else strings.get(number, "?"), "user_annotation", thread)
    where = ("start", "end", "deviceId", "streamId", "globalPid", "correlationId")
    for *at, name in rows(_KERNELS, *where, "demangledName"):
        device_event(at, strings.get(name, "?"), "kernel")
    for *at, kind, moved in rows(_COPIED, *where, "copyKind", "bytes"):
        device_event(at, f"Memcpy {_COPIES.get(kind, kind)}", "gpu_memcpy", float(moved or 0))
    for *at, moved in rows(_SET, *where, "bytes"):
        device_event(at, "Memset", "gpu_memset", float(moved or 0))
    host.finish(builder, launches, {})
    if not len(builder):
        raise problem(path, "has no events; profile at least one step")
    devices = {
        int(number): Device(str(name), bandwidth=float(bandwidth or 0) or None, memory_bytes=float(memory or 0) or None)
        for number, name, memory, bandwidth in rows("TARGET_INFO_GPU", "id", "name", "totalMemory", "memoryBandwidth")
    }
    return builder.build(str(path), "Nsight Systems", devices=devices)
