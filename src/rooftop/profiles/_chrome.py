"""Chrome traces: PyTorch's profiler (Kineto) and JAX's. Streamed: a block of text at a time, so memory is bounded by the events.

The text is cut between two events, and the cut is checked by parsing what lies before it: only a cut between the events of the
list leaves a well-formed piece, since one inside an event leaves it open.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, Any

from rooftop.errors import MissingExtra
from rooftop.profiles._clock import Clock
from rooftop.profiles._events import Allocation, Builder, Device, Op, Trace, Track, device_of, kind_of
from rooftop.profiles._link import HostThreads, Launch
from rooftop.profiles._source import blocks, expected, problem

if TYPE_CHECKING:
    from collections.abc import Callable

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_NEXT = re.compile(rb"\s*\{")
#: Without a place to cut in so many bytes, it is not a list of events.
_MOST_PENDING = 64 << 20
_MOST_HEADER = 16 << 20
_MOST_EVENTS = 100_000_000
_DEVICE_CATS = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset", "concurrent_kernel"}
_SPAN_CATS = {"gpu_user_annotation"}
_IGNORED_CATS = {"Trace", "overhead", "ac2g", "fwdbwd"}


def _decoders() -> tuple[Callable[[bytes], Any], Callable[[bytes], Any], type[Exception]]:
    """Parsers of a list of events and of the whole document, which keep the fields that we read and skip the rest."""
    try:
        import msgspec
    except ImportError:
        raise MissingExtra(
            "reading JSON traces needs msgspec; install it with pip install 'rooftop[profiles]'", field="path"
        ) from None
    number: Any = int | float | str | None
    scalar: Any = int | float | str | bool | None
    args: Any = msgspec.defstruct(
        "Args",
        [
            ("external", scalar, msgspec.field(name="External id", default=None)),
            ("correlation", scalar, None), ("device", scalar, None), ("name", Any, None),
            ("grid", Any, None), ("block", Any, None),
            ("dims", msgspec.Raw, msgspec.field(name="Input Dims", default=msgspec.Raw(b""))),
            ("types", msgspec.Raw, msgspec.field(name="Input type", default=msgspec.Raw(b""))),
            ("values", msgspec.Raw, msgspec.field(name="Concrete Inputs", default=msgspec.Raw(b""))),
            ("collective", Any, msgspec.field(name="Collective name", default=None)),
            ("elements", Any, msgspec.field(name="In msg nelems", default=None)),
            ("out_elements", Any, msgspec.field(name="Out msg nelems", default=None)),
            ("dtype", Any, None), ("group", Any, msgspec.field(name="Group size", default=None)),
            ("bytes", Any, None), ("allocated", Any, msgspec.field(name="Total Allocated", default=None)),
            ("address", Any, msgspec.field(name="Addr", default=None)), ("changed", Any, msgspec.field(name="Bytes", default=None)),
            ("device_id", Any, msgspec.field(name="Device Id", default=None)),
            ("device_type", Any, msgspec.field(name="Device Type", default=None)),
            ("hlo_category", Any, None), ("flops", Any, None), ("model_flops", Any, None),
            ("bytes_accessed", Any, None), ("tf_op", Any, None), ("source", Any, None), ("long_name", Any, None),
            ("device_offset_ps", Any, None), ("device_duration_ps", Any, None), ("hlo_op", Any, None), ("hlo_module", Any, None),
        ],
        gc=False,
    )  # fmt: skip
    event: Any = msgspec.defstruct(
        "Event",
        [
            ("ph", scalar, ""), ("cat", scalar, ""), ("name", scalar, ""), ("pid", scalar, 0), ("tid", scalar, 0),
            ("ts", number, None), ("dur", number, None), ("args", args | str | int | float | bool | list[Any] | None, None),
        ],
        gc=False,
    )  # fmt: skip
    events = GenericAlias(list, (event,))
    tail = msgspec.defstruct(
        "Tail",
        [
            ("traceEvents", events, msgspec.field(default_factory=list)),
            ("deviceProperties", Any, None), ("distributedInfo", Any, None), ("schemaVersion", Any, None),
        ],
    )  # fmt: skip
    return msgspec.json.Decoder(events).decode, msgspec.json.Decoder(tail).decode, msgspec.DecodeError


def pieces(path: Path, header: dict[str, Any]) -> Iterator[list[Any]]:
    """Lists of events, some megabytes at a time; `header` is filled with what stands before and behind them."""
    decode, decode_tail, broken = _decoders()
    source = blocks(path)
    buffer = b""
    bare = False
    for block in source:
        buffer += block
        text = buffer.lstrip(b"\xef\xbb\xbf \t\r\n")
        if text and text[:1] not in (b"{", b"["):
            raise problem(path, f"is not a profile; {expected()}")
        if text[:1] == b"[":
            bare, buffer = True, text[1:]
            break
        start = _LIST.search(text)
        if start is not None:
            _keep(header, decode_tail, text[: start.end()] + b"]}", broken, path)
            buffer = text[start.end() :]
            break
        if len(text) > _MOST_HEADER:
            raise problem(path, f"is JSON without traceEvents; {expected()}")
    else:
        if not buffer.strip():
            raise problem(path, f"is empty; {expected()}")
        raise problem(path, f"is JSON without traceEvents; {expected()}")
    wanted = 0
    for block in source:
        buffer += block
        if len(buffer) < wanted:
            continue
        cut, events = _cut(buffer, decode, broken)
        if events is None:
            wanted = len(buffer) * 2
            if len(buffer) > _MOST_PENDING:
                raise problem(path, "is not a list of events as JSON; capture it again")
            continue
        wanted = 0
        buffer = buffer[cut:]
        yield events
    yield _rest(path, buffer, bare, header, decode, decode_tail, broken)


def _cut(buffer: bytes, decode: Callable[[bytes], Any], broken: type[Exception]) -> tuple[int, list[Any] | None]:
    """Events up to the last place between two of them, and the place. (0, None) where there is none."""
    position = len(buffer)
    for _ in range(8):
        while True:
            position = buffer.rfind(b"},", 0, position)
            if position < 0:
                return 0, None
            if _NEXT.match(buffer, position + 2):
                break
        try:
            return position + 2, decode(b"[" + buffer[: position + 1] + b"]")
        except broken:
            continue
    return 0, None


def _rest(
    path: Path, buffer: bytes, bare: bool, header: dict[str, Any],
    decode: Callable[[bytes], Any], decode_tail: Callable[[bytes], Any], broken: type[Exception],
) -> list[Any]:  # fmt: skip
    if bare:
        text = buffer.rstrip().rstrip(b",")
        try:
            events: list[Any] = decode(b"[" + text + (b"" if text.endswith(b"]") else b"]"))
        except (broken, RecursionError) as error:
            raise problem(path, f"its JSON is cut off or corrupt ({error}); capture it again") from None
        return events
    document = _keep(header, decode_tail, b'{"traceEvents":[' + buffer, broken, path)
    found: list[Any] = document.traceEvents
    return found


def _keep(
    header: dict[str, Any], decode: Callable[[bytes], Any], text: bytes, broken: type[Exception], path: Path
) -> Any:
    try:
        document = decode(text)
    except (broken, RecursionError) as error:
        raise problem(path, f"its JSON is cut off or corrupt ({str(error)[:120]}); capture it again") from None
    for name in ("deviceProperties", "distributedInfo", "schemaVersion"):
        value = getattr(document, name)
        if value is not None:
            header[name] = value
    return document


def _number(value: Any) -> float | None:
    """A number that a profile may have written as a text."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if abs(number) < 1e30 else None


def _integer(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def read_chrome(path: Path) -> Trace:
    """Read a Chrome trace. Raises InputError for what is not one, is corrupt, or is cut off."""
    collecting = gc.isenabled()
    gc.disable()  # millions of rows, none of them in a cycle
    try:
        return _read(path)
    finally:
        if collecting:
            gc.enable()


def _read(path: Path) -> Trace:
    builder = Builder()
    header: dict[str, Any] = {}
    host = HostThreads()
    launches: list[Launch] = []
    processes: dict[Any, str] = {}
    threads: dict[tuple[Any, Any], str] = {}
    memory: dict[str, list[Allocation]] = {}
    open_events: dict[tuple[Any, Any], list[Any]] = {}
    unnamed: list[tuple[Any, Any, Any, int, int, Any]] = []  # events whose kind depends on names that may come later
    streams: dict[tuple[Any, Any, Any], int] = {}
    origin: float | None = None
    kineto = False
    count = 0
    for events in pieces(path, header):
        count += len(events)
        if count > _MOST_EVENTS:
            raise problem(path, f"has more than {_MOST_EVENTS:,} events; capture fewer steps")
        for e in events:
            phase = e.ph
            args = e.args
            if phase == "X":
                cat = e.cat
                if cat in _IGNORED_CATS:
                    continue
                ts, dur = e.ts, e.dur
            elif phase == "M":
                if e.name == "process_name" and hasattr(args, "name"):
                    processes[e.pid] = _text(args.name)
                elif e.name == "thread_name" and hasattr(args, "name"):
                    threads[(e.pid, e.tid)] = _text(args.name)
                continue
            elif phase == "B":
                open_events.setdefault((e.pid, e.tid), []).append(e)
                continue
            elif phase == "E":
                stack = open_events.get((e.pid, e.tid))
                ended = _number(e.ts)
                if not stack or ended is None:
                    continue
                e = stack.pop()
                args, cat, ts = e.args, e.cat, e.ts
                began = _number(ts)
                dur = ended - began if began is not None else None
            elif phase == "i" and e.name == "[memory]" and hasattr(args, "allocated"):
                time, used, device = _number(e.ts), _integer(args.allocated), _integer(args.device_id)
                if time is not None and used is not None and device is not None and args.device_type not in (0, "0"):
                    origin = time if origin is None else origin
                    memory.setdefault(f"device {device}", []).append(
                        Allocation(
                            round((time - origin) * 1e6), used, _integer(args.address) or 0, _integer(args.changed) or 0
                        )
                    )
                continue
            else:
                continue
            if type(ts) is str or type(dur) is str:
                ts, dur = _number(ts), _number(dur)
            if ts is None or dur is None:
                continue
            if not abs(ts) < 1e18 or not abs(dur) < 1e13:
                raise problem(path, f"an event has the time {ts!r} and the duration {dur!r} us; capture it again")
            if origin is None:
                origin = ts
            start, duration = round((ts - origin) * 1e6), round(dur * 1e6)
            name = e.name if type(e.name) is str else _text(e.name)
            known = args if hasattr(args, "correlation") else None
            if cat in _DEVICE_CATS:
                kineto = True
                line = (e.pid, e.tid, known.device if known else e.pid)
                track = streams.get(line, -1)
                if track < 0:
                    made = Track("device", f"GPU {e.pid}", f"stream {e.tid}", _integer(line[2]) or 0)
                    track = streams[line] = builder.track(made)
                launches.append(Launch(
                    len(builder), name, cat, known.correlation if known else None, known.external if known else None,
                    *_copied(known),
                ))  # fmt: skip
                builder.add(track, 0, start, duration)
            elif cat in _SPAN_CATS:
                track = builder.track(Track("span", f"GPU {e.pid}", f"stream {e.tid}", _integer(e.pid) or 0))
                builder.add(track, builder.op(Op(name, "annotation")), start, duration)
            elif cat == "python_function":
                if name.startswith("nn.Module: "):
                    host.add(e.pid, e.tid, start, duration, name[11:], "module")
            elif cat:
                kineto = True
                host.add(
                    e.pid, e.tid, start, duration, name, cat,
                    known.external if known else None, known.correlation if known else None,
                    bytes(known.dims) if known else b"", bytes(known.types) if known else b"",
                    bytes(known.values) if known and "conv" in name else b"",
                )  # fmt: skip
            else:
                if known is None or not (known.hlo_op or known.hlo_category):
                    known = None
                unnamed.append((e.pid, e.tid, name, start, duration, known))
    if not count:
        raise problem(path, "has no events; profile at least one step")
    _place_unnamed(builder, unnamed, processes, threads)
    host.finish(builder, launches, threads)
    if not len(builder):
        raise problem(path, "has no events with a duration; profile at least one step")
    info = header.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    return builder.build(
        str(path), "PyTorch profiler" if kineto else "Chrome trace", devices=_devices(header), memory=memory,
        rank=_integer(info.get("rank")), world=_integer(info.get("world_size")),
    )  # fmt: skip


def _copied(known: Any) -> tuple[float | None, int | None, str]:
    """Bytes that a copy or a collective moves, the members of the collective, its dtype."""
    if known is None or (known.bytes is None and known.group is None and known.collective is None):
        return None, None, ""
    group = _integer(known.group)
    return (
        _number(known.bytes),
        group,
        _text(known.collective) and f"{known.collective}:{known.dtype}:{known.elements}:{known.out_elements}",
    )


def _place_unnamed(
    builder: Builder, events: list[tuple[Any, Any, Any, int, int, Any]], processes: dict[Any, str],
    threads: dict[tuple[Any, Any], str],
) -> None:  # fmt: skip
    """Events of XLA's profiler: what their line is called tells what they are."""
    on_host = not any(device_of(name) is not None for name in processes.values())
    chips: dict[Any, list[tuple[int, int, int]]] = {}
    for pid, _, _, start, _, known in events:
        own = _own_time(known)
        if own is not None:
            chips.setdefault(pid, []).append((start, own[0], own[0] + own[1]))
    clocks = {pid: Clock(ops) for pid, ops in chips.items()}
    for pid, tid, name, start, duration, known in events:
        process, thread = processes.get(pid, str(pid)), threads.get((pid, tid), str(tid))
        kind, device = kind_of(process, thread), device_of(process)
        if on_host and kind == "host" and known is not None and known.hlo_op:  # XLA's CPU backend
            kind, device = "device", 0
        if pid in clocks:
            start, duration = clocks[pid].place(kind, start, duration, _own_time(known))
        op = Op(name) if known is None else Op(
            _text(known.hlo_op) or name, _text(known.hlo_category), _number(known.model_flops or known.flops),
            _number(known.bytes_accessed), _text(known.tf_op), _text(known.source), text=_text(known.long_name),
        )  # fmt: skip
        builder.add(builder.track(Track(kind, process, thread, device)), builder.op(op), start, duration)


def _own_time(known: Any) -> tuple[int, int] | None:
    """Start and duration on the chip's clock, of ops of TPUs."""
    if known is None:
        return None
    start, duration = _integer(known.device_offset_ps), _integer(known.device_duration_ps)
    return None if start is None or duration is None else (start, duration)


def _devices(header: dict[str, Any]) -> dict[int, Device]:
    rows = header.get("deviceProperties")
    if not isinstance(rows, list):
        return {}
    found = {}
    for row in rows[:1024]:
        if isinstance(row, dict):
            number = _integer(row.get("id"))
            if number is not None:
                found[number] = Device(_text(row.get("name")), memory_bytes=_number(row.get("totalGlobalMem")))
    return found
