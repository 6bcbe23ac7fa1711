"""XLA's profiles (XSpace in xplane.pb): TPU, GPU and CPU planes, with the metadata of each op."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rooftop.profiles._clock import Clock
from rooftop.profiles._events import Allocation, Builder, Device, Op, Trace, Track, device_of, kind_of
from rooftop.profiles._hlo import Instruction, instructions, replica_group
from rooftop.profiles._proto import broken, message
from rooftop.profiles._source import blocks, expected, problem

#: Protobuf's own limit.
_MOST_BYTES = (2 << 30) - 1
_SIZE = re.compile(r"\bsize:(\d{1,18})")


def read_xplane(path: Path) -> Trace:
    """Read an xplane.pb, plain or gzipped. Raises InputError for what is not one or is cut off."""
    data = b"".join(blocks(path, _MOST_BYTES))
    if not data:
        raise problem(path, f"is empty; {expected()}")
    space = message("XSpace")()
    try:
        space.ParseFromString(data)
    except broken():
        raise problem(path, f"is not an XSpace, or is cut off; {expected()}") from None
    del data
    if not any(plane.name for plane in space.planes):
        raise problem(path, f"is not an XSpace; {expected()}")
    builder = Builder()
    memory: dict[str, list[Allocation]] = {}
    devices: dict[int, Device] = {}
    programs = _programs(space)
    # XLA's CPU backend runs ops on threads of the host; on other platforms these threads only launch them
    on_host = not any(plane.lines for plane in space.planes if device_of(plane.name) is not None)
    origin = min((line.timestamp_ns for plane in space.planes for line in plane.lines if line.events), default=0)
    try:
        for plane in space.planes:
            _read_plane(plane, builder, devices, programs, on_host, origin, memory)
    except (TypeError, ValueError) as error:
        raise problem(path, f"has values that XLA does not write ({str(error)[:80]}); capture it again") from None
    if not len(builder):
        raise problem(path, "has no events; profile at least one step")
    return builder.build(str(path), "XLA profiler", devices=devices, memory=memory)


class _Stats:
    """The statistics of a plane by name."""

    def __init__(self, plane: Any) -> None:
        self._names = {entry.key: entry.value.name for entry in plane.stat_metadata}

    def __call__(self, stats: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for stat in stats:
            kind = stat.WhichOneof("value")
            if kind is None:
                continue
            value = getattr(stat, kind)
            found[self._names.get(stat.metadata_id, "")] = self._names.get(value, "") if kind == "ref_value" else value
        return found


def _read_plane(
    plane: Any,
    builder: Builder,
    devices: dict[int, Device],
    programs: dict[tuple[str, str], Instruction],
    on_host: bool,
    origin: int,
    memory: dict[str, list[Allocation]],
) -> None:
    stats = _Stats(plane)
    device = device_of(plane.name)
    if device is not None and plane.lines:
        devices[device] = _device(stats(plane.stats))
    metadata = {entry.key: entry.value for entry in plane.event_metadata}
    known: dict[tuple[Any, ...], int] = {}
    clock = _clock(plane, stats, origin) if device is not None else None
    for line in plane.lines:
        kind = kind_of(plane.name, line.name)
        thread = line.name or line.display_name or str(line.id)
        tracks: dict[str, int] = {}
        for event in line.events:
            own = stats(event.stats)
            if "bytes_allocated" in own and "allocator_name" in own:
                when = (line.timestamp_ns - origin) * 1000 + event.offset_ps
                memory.setdefault(str(own["allocator_name"]), []).append(
                    _allocation(when, own, metadata.get(event.metadata_id))
                )
            here = "device" if on_host and kind == "host" and "hlo_op" in own else kind
            key = (
                event.metadata_id, own.get("hlo_op"), own.get("hlo_module"), own.get("name"), own.get("annotation"),
                own.get("tf_op"), own.get("memcpy_details"), own.get("step_num") is not None, here,
            )  # fmt: skip
            number = known.get(key)
            if number is None:
                number = known[key] = builder.op(_op(metadata.get(event.metadata_id), stats, own, programs))
            if here not in tracks:
                where = 0 if kind == "host" and here == "device" else device
                tracks[here] = builder.track(Track(here, plane.name, thread, where))
            start, duration = (line.timestamp_ns - origin) * 1000 + event.offset_ps, event.duration_ps
            if clock is not None:
                chips = None
                if "device_offset_ps" in own:
                    chips = int(own["device_offset_ps"]), int(own.get("device_duration_ps", duration))
                start, duration = clock.place(kind, start, duration, chips)
            builder.add(tracks[here], number, start, duration)


def _allocation(when: int, own: dict[str, Any], known: Any) -> Allocation:
    """MemoryAllocation and MemoryDeallocation of the allocators of XLA and TensorFlow."""
    size = int(own.get("allocation_bytes", 0))
    freed = known is not None and "dealloc" in known.name.lower()
    return Allocation(
        when, int(own["bytes_allocated"]), int(own.get("addr", 0)), -size if freed else size, str(own.get("tf_op", ""))
    )


def _clock(plane: Any, stats: _Stats, origin: int) -> Clock | None:
    """The clock of a chip whose ops carry its time; None for others."""
    ops = []
    for line in plane.lines:
        if kind_of(plane.name, line.name) != "device":
            continue
        for event in line.events:
            own = stats(event.stats)
            if "device_offset_ps" in own:
                start = int(own["device_offset_ps"])
                end = start + int(own.get("device_duration_ps", event.duration_ps))
                ops.append(((line.timestamp_ns - origin) * 1000 + event.offset_ps, start, end))
    return Clock(ops) if ops else None


def _op(known: Any, stats: _Stats, own: dict[str, Any], programs: dict[tuple[str, str], Instruction]) -> Op:
    name = known.name if known is not None else "?"
    facts = {**(stats(known.stats) if known is not None else {}), **own}
    text = name if name.startswith("%") else ""
    short = known.display_name if known is not None and known.display_name else name
    if text:
        short = text[1 : text.index(" ")] if " " in text else text[1:]
    scope = str(facts.get("tf_op", ""))
    if scope in ("", "XlaModule:"):
        scope = str(facts.get("name") or facts.get("annotation") or "")
    instruction = programs.get((str(facts.get("hlo_module", "")), str(facts.get("hlo_op", ""))))
    flops = facts.get("model_flops") or facts.get("flops")
    moved = facts.get("bytes_accessed", facts.get("raw_bytes_accessed"))
    source = str(facts.get("source", ""))
    category = str(facts.get("hlo_category", ""))
    copied = _SIZE.search(str(facts.get("memcpy_details", "")))
    if copied:
        moved = int(copied[1])
    if instruction is not None:
        flops, moved = flops or instruction.flops, moved or instruction.bytes
        scope, source = scope or instruction.scope, source or instruction.source
        category = category or instruction.opcode
    if "step_num" in facts:
        category = "step"
    return Op(
        short, category, None if flops is None else float(flops), None if moved is None else float(moved), scope, source,
        caller=str(facts.get("hlo_op", "")), group=replica_group(text), text=text,
        inputs=() if instruction is None else instruction.inputs,
        recomputed="rematted_computation" in scope,
    )  # fmt: skip


def _device(facts: dict[str, Any]) -> Device:
    flops = facts.get("peak_teraflops_per_second")
    bandwidth = facts.get("peak_hbm_bw_gigabytes_per_second")
    if bandwidth is None and facts.get("memory_bandwidth"):
        bandwidth = float(facts["memory_bandwidth"]) / 1e9
    name = str(facts.get("device_type_string", ""))
    if not name and facts.get("device_vendor"):
        name = f"{facts['device_vendor']} {facts.get('core_count', '')} cores"
    elif not name and facts.get("compute_cap_major") is not None:
        name = f"NVIDIA compute {facts['compute_cap_major']}.{facts.get('compute_cap_minor', 0)}, {facts.get('core_count', '?')} SMs"
    memory = facts.get("memory_size")
    return Device(
        name, float(flops) * 1e12 if flops else None, float(bandwidth) * 1e9 if bandwidth else None,
        float(memory) if memory else None,
    )  # fmt: skip


def _programs(space: Any) -> dict[tuple[str, str], Instruction]:
    """Instructions of the programs that the profile carries, by module and name."""
    found: dict[tuple[str, str], Instruction] = {}
    for plane in space.planes:
        if plane.name != "/host:metadata":
            continue
        for entry in plane.event_metadata:
            for stat in entry.value.stats:
                if stat.WhichOneof("value") == "bytes_value":
                    found.update(instructions(stat.bytes_value))
    return found
