"""From events to the report: who had the time, what it should have taken, where each lost percent went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rooftop.errors import NoAnswer
from rooftop.profiles._categories import COLLECTIVE, MATRIX, TRANSFER, WAIT
from rooftop.profiles._events import Device, Op, Trace
from rooftop.profiles._gaps import gaps_of
from rooftop.profiles._intervals import winners
from rooftop.profiles._memory import memory_of
from rooftop.profiles._recognise import Known, recognise
from rooftop.profiles._report import DeviceTime, Group, Loss, OpRow, Report, Step, Straggling
from rooftop.profiles._roof import Roof, collective_bound, roof_for
from rooftop.profiles._scopes import part_and_layer

SECOND = 1e12  # picoseconds
_BACKGROUND = {COLLECTIVE: 1, TRANSFER: 2, WAIT: 3, "control flow": 4}

USEFUL = "useful arithmetic at the peak"
BELOW_PEAK = "compute-bound ops below the peak"
AT_HBM = "memory-bound ops: time that HBM needs"
BELOW_HBM = "memory-bound ops below HBM's bandwidth"
RECOMPUTED = "recomputation"
NO_ROOFLINE = "work whose FLOPs and bytes the profile does not tell"
COMMUNICATION = "communication that nothing hides"
TRANSFERS = "transfers between host and device that nothing hides"

_ADVICE = {
    BELOW_PEAK: "pad sizes to the tiles of the matrix unit, batch small matmuls, try another kernel or layout",
    AT_HBM: "fuse these ops, keep activations in 16 or 8 bits, or raise the batch",
    BELOW_HBM: "fuse small ops and avoid strided or narrow accesses; the bandwidth is there",
    RECOMPUTED: "keep more activations where memory allows",
    NO_ROOFLINE: "record shapes (record_shapes=True) to learn what these ops should take",
    COMMUNICATION: "overlap it with compute, use larger buckets, or shard so that less moves",
    TRANSFERS: "prefetch and offload asynchronously, pin host memory, or move less",
    "idle: the host launched too late": "launch less often: CUDA graphs, torch.compile, larger batches",
    "idle: the host waited for the device": "remove .item(), .cpu() and other synchronising calls from the step",
    "idle: input": "prefetch batches, add loader workers, or move preprocessing off the critical path",
    "idle: gaps between kernels": "fuse kernels or use CUDA graphs: each launch leaves a gap",
    "idle: pauses that the profile does not explain": "capture the host's activity, too; look for input, logging, checkpoints",
    "idle: between programs": "dispatch the next step before reading results of the last one",
    "idle: within programs": "look at what the program waits for: transfers, other cores, or the host",
}


@dataclass(slots=True)
class _Total:
    """Sums over the runs of an op, in picoseconds."""

    count: int = 0
    duration: int = 0
    wall: int = 0


@dataclass(slots=True)
class _DeviceSums:
    rank: int | None
    device: int
    window: int
    totals: dict[Op, _Total]
    idle: dict[str, int]
    hidden: int = 0  # transfers on asynchronous tracks
    collectives: dict[str, list[int]] = field(default_factory=dict)


def analyse(traces: Sequence[Trace], on: str | None = None) -> Report:
    """The report over all devices of all ranks. Raises NoAnswer for profiles in which no device did anything."""
    if len(traces) > 1 and len({trace.rank for trace in traces}) < len(traces):  # hosts that do not say which they are
        traces = [replace(trace, rank=number) for number, trace in enumerate(traces)]
    sums = [s for trace in traces for s in _devices(trace)]
    if not sums:
        raise NoAnswer(
            f"{traces[0].path}: no device ran anything in this profile; profile with the activities of the device on",
            field="path",
        )
    facts = next((d for trace in traces for d in trace.devices.values() if d.name or d.flops), Device())
    roof = roof_for(facts, on)
    window = sum(s.window for s in sums) / len(sums) / SECOND
    layered = _rows(sums, roof, xla=traces[0].format in ("XLA profiler", "Chrome trace"))
    rows = _merged(layered)
    losses = _losses(rows, sums, window, roof is not None)
    notes = [n for trace in traces for n in trace.notes]
    if roof is None:
        who = f"the device ({facts.name})" if facts.name else "the device"
        notes.append(f"{who} is not in our data, so there are no rooflines; name the chip with --on")
    elif any((row.fraction or 0) > 1.02 for row in rows):
        notes.append(
            "some ops beat their roofline: their operands came from caches, or were broadcast; see share above 100 %"
        )
    unlaunched = _without_launch(traces)
    if unlaunched > 0.1:
        notes.append(
            f"the launch of {unlaunched:.0%} of the kernels is not in the profile (graphs, or work queued before it began), so their"
            " shapes and parts are unknown"
        )
    exposed = sum(row.wall for row in rows if row.category == COLLECTIVE or (row.category == WAIT and row.collective))
    moving = sum(row.seconds for row in rows if row.category == COLLECTIVE)
    return Report(
        tuple(trace.path for trace in traces), traces[0].format, tuple(_device_time(s) for s in sums), facts.name, roof,
        window, _steps(traces[0]), rows, _grouped(rows, lambda r: r.part or f"({r.category})"),
        _grouped([r for r in layered if r.layer], lambda r: r.layer), _grouped(rows, lambda r: r.category), losses,
        moving, exposed, _straggling(sums), memory_of(traces), tuple(dict.fromkeys(notes)), _assumptions(rows, roof, sums),
    )  # fmt: skip


def _devices(trace: Trace) -> Iterable[_DeviceSums]:
    for device in sorted({t.device for t in trace.tracks if t.kind == "device" and t.device is not None}):
        index = trace.events("device", device=device)
        known = [recognise(trace.ops[i]) for i in trace.op[index]]
        if not len(index) or (
            all(k.category in (TRANSFER, "copy and layout") for k in known) and _busier(trace, device)
        ):
            continue
        start, end = trace.start[index], trace.start[index] + trace.duration[index]
        first, last = int(start.min()), int(end.max())
        if last <= first:
            continue
        events = [
            (int(a), int(b), int(i), _BACKGROUND.get(k.category, 0))
            for a, b, i, k in zip(start, end, index, known, strict=True)
        ]
        flat = _flat(events, trace)
        segments = winners(flat)
        totals: dict[Op, _Total] = defaultdict(_Total)
        collectives: dict[str, list[int]] = defaultdict(list)
        own = _own_time(flat)
        for (_, _, i, _), k in zip(events, known, strict=True):
            group = trace.ops[trace.op[i]].group
            total = totals[trace.ops[trace.op[i]]]
            total.count += 1
            total.duration += own[i]
            if k.category == COLLECTIVE:
                collectives[f"{group or ''} {k.collective} {trace.ops[trace.op[i]].name[:80]}"].append(
                    int(trace.duration[i])
                )
        for a, b, i in segments:
            totals[trace.ops[trace.op[i]]].wall += b - a
        hidden = int(trace.duration[trace.events("async", device=device)].sum())
        yield _DeviceSums(
            trace.rank, device, last - first, dict(totals), gaps_of(trace, device, segments, first, last), hidden,
            dict(collectives),
        )  # fmt: skip


def _without_launch(traces: Sequence[Trace]) -> float:
    """The share of kernels of GPUs that no call of the host is recorded for; 0 for profiles that record no launches."""
    missing = total = 0
    for trace in traces:
        if trace.format == "PyTorch profiler" and len(trace.launched):
            kernels = [i for i in trace.events("device") if trace.ops[trace.op[i]].category == "kernel"]
            total += len(kernels)
            missing += sum(not trace.ops[trace.op[i]].caller for i in kernels)
    return missing / total if total else 0.0


def _busier(trace: Trace, device: int) -> bool:
    """Whether another device of the profile computes; one that only received copies is not part of the run then."""
    others = {t.device for t in trace.tracks if t.kind == "device"} - {device, None}
    return bool(others)


def _flat(events: list[tuple[int, int, int, int]], trace: Trace) -> list[tuple[int, int, int, int]]:
    """Events of each track cut so that none covers another: a nested op takes its time from the one around it."""
    rank = {i: r for _, _, i, r in events}
    by_track: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    for a, b, i, _ in events:
        by_track[int(trace.track[i])].append((a, b, i, 0))
    return [(a, b, i, rank[i]) for rows in by_track.values() for a, b, i in winners(rows)]


def _own_time(flat: list[tuple[int, int, int, int]]) -> dict[int, int]:
    """Time of each event without that of those nested in it."""
    own: dict[int, int] = defaultdict(int)
    for a, b, i, _ in flat:
        own[i] += b - a
    return own


def _rows(sums: Sequence[_DeviceSums], roof: Roof | None, *, xla: bool) -> list[OpRow]:
    """One row for each op, by wall time; seconds and work are means over the devices."""
    merged: dict[tuple[Op, Known], _Total] = defaultdict(_Total)
    for s in sums:
        for op, t in s.totals.items():
            total = merged[op, recognise(op)]
            total.count += t.count
            total.duration += t.duration
            total.wall += t.wall
    bounds: dict[tuple[str, float, int], float | None] = {}
    rows = []
    for (op, k), t in merged.items():
        n = len(sums)
        part, layer = part_and_layer(op.scope, xla)
        math = hbm = network = None
        flops = k.flops * t.count / n if k.flops is not None else None
        moved = k.bytes * t.count / n if k.bytes is not None else None
        if roof is not None and k.category == COLLECTIVE:
            if k.bytes and op.group:
                key = (k.collective, k.bytes, op.group)
                if key not in bounds:
                    bounds[key] = collective_bound(roof, *key)
                bound = bounds[key]
                network = bound * t.count / n if bound is not None else None
        elif roof is not None and k.category == TRANSFER and moved and roof.host_bandwidth:
            network = moved / roof.host_bandwidth
        elif roof is not None and k.category not in (TRANSFER, WAIT, "control flow"):
            peak = roof.peak(k.dtype)
            # XLA counts elementwise FLOPs, too, which do not run on the matrix unit
            if flops and peak and k.category in MATRIX:
                math = flops / peak
            if moved:
                hbm = moved / roof.bandwidth
        link = "host link" if k.category == TRANSFER else "network"
        known = {name: x for name, x in (("compute", math), ("hbm", hbm), (link, network)) if x is not None}
        rows.append(OpRow(
            op.name, k.category, k.library, part, layer, t.count / n, t.duration / n / SECOND, t.wall / n / SECOND,
            k.dtype, k.shape, flops, moved, math, hbm, network, max(known, key=lambda x: known[x]) if known else "", op.source,
            k.collective, op.group, op.recomputed,
        ))  # fmt: skip
    rows.sort(key=lambda r: (-r.wall, -r.seconds, r.name))
    return rows


def _merged(rows: Iterable[OpRow]) -> list[OpRow]:
    """Rows of different layers together."""
    found: dict[tuple[object, ...], list[OpRow]] = defaultdict(list)
    for row in rows:
        known = tuple(getattr(row, name) is not None for name in _SUMMED)
        found[row.name, row.category, row.part, row.shape, row.dtype, row.binds, row.source, row.collective, row.group,
              row.recomputed, known].append(row)  # fmt: skip
    merged = []
    for members in found.values():
        sums: dict[str, Any] = {n: sum(getattr(r, n) for r in members) for n in ("count", "seconds", "wall")}
        sums |= {n: sum(getattr(r, n) for r in members) for n in _SUMMED if getattr(members[0], n) is not None}
        merged.append(replace(members[0], layer="", **sums))
    return sorted(merged, key=lambda r: (-r.wall, -r.seconds, r.name))


_SUMMED = ("flops", "bytes", "math", "hbm", "network")


def _grouped(rows: Iterable[OpRow], key: Callable[[OpRow], str]) -> list[Group]:
    found: dict[str, list[OpRow]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    groups = []
    for name, members in found.items():
        known = [r for r in members if r.bound is not None]
        groups.append(Group(
            name, sum(r.seconds for r in members), sum(r.wall for r in members), sum(r.count for r in members),
            sum(r.flops or 0.0 for r in members), sum(r.bytes or 0.0 for r in members), sum(r.seconds for r in known),
            sum(r.bound or 0.0 for r in known),
        ))  # fmt: skip
    return sorted(groups, key=lambda g: (-g.wall, g.name))


def _losses(rows: Sequence[OpRow], sums: Sequence[_DeviceSums], window: float, rooflines: bool) -> list[Loss]:
    """The window of a device, to the last picosecond: each op's wall time is split by its roofline, the rest was idle."""
    shares: dict[str, float] = defaultdict(float)
    for row in rows:
        if row.category in (COLLECTIVE, WAIT) and (row.category == COLLECTIVE or row.collective):
            shares[COMMUNICATION] += row.wall
        elif row.category in (TRANSFER, WAIT):
            shares[TRANSFERS] += row.wall
        elif row.recomputed:
            shares[RECOMPUTED] += row.wall
        elif row.bound is None:
            shares[NO_ROOFLINE] += row.wall
        else:
            covered = row.wall / row.seconds if row.seconds > 0 else 0.0
            useful = min((row.math or 0.0) * covered, row.wall)
            needed = min(row.bound * covered, row.wall)
            shares[USEFUL] += useful
            shares[AT_HBM] += needed - useful
            shares[BELOW_PEAK if row.binds == "compute" else BELOW_HBM] += row.wall - needed
    for s in sums:
        for name, time in s.idle.items():
            shares[name] += time / SECOND / len(sums)
    order = [USEFUL, BELOW_PEAK, AT_HBM, BELOW_HBM, RECOMPUTED, NO_ROOFLINE, COMMUNICATION, TRANSFERS]
    names = [n for n in order if shares.get(n)] + sorted(
        (n for n in shares if n not in order and shares[n]), key=lambda n: -shares[n]
    )
    advice = (
        _ADVICE
        if rooflines
        else {**_ADVICE, NO_ROOFLINE: "name the chip with --on: without one there are no rooflines"}
    )
    return [Loss(n, shares[n], shares[n] / window, advice.get(n, "")) for n in names]


def _device_time(s: _DeviceSums) -> DeviceTime:
    times = dict.fromkeys(("compute", "communication", "transfers"), 0)
    for op, total in s.totals.items():
        k = recognise(op)
        name = "communication" if k.category == COLLECTIVE or (k.category == WAIT and k.collective) else (
            "transfers" if k.category in (TRANSFER, WAIT) else "compute"
        )  # fmt: skip
        times[name] += total.wall
    idle = sum(s.idle.values())
    return DeviceTime(
        s.rank, s.device, s.window / SECOND, times["compute"] / SECOND, times["communication"] / SECOND,
        times["transfers"] / SECOND, idle / SECOND,
    )  # fmt: skip


def _steps(trace: Trace) -> Step | None:
    """Steps: the profiler's own, or the program that took most of the time, each run one."""
    index = trace.events("step")
    if len(index):
        device = min(t.device or 0 for t in trace.tracks if t.kind == "step")
        index = trace.events("step", device=device)
        return Step("the profiler's steps", tuple(float(d) / SECOND for d in trace.duration[index]))
    host = trace.events("host")
    marked = [
        i
        for i in host
        if trace.ops[trace.op[i]].category == "step" or trace.ops[trace.op[i]].name.startswith("ProfilerStep#")
    ]
    if marked:
        return Step("annotations of steps", tuple(float(trace.duration[i]) / SECOND for i in marked))
    index = trace.events("module")
    if len(index):
        device = min(t.device or 0 for t in trace.tracks if t.kind == "module")
        by_op: dict[int, list[int]] = defaultdict(list)
        for i in trace.events("module", device=device):
            by_op[int(trace.op[i])].append(int(trace.duration[i]))
        longest = max(by_op, key=lambda op: sum(by_op[op]))
        return Step(f"runs of {trace.ops[longest].name.split('(')[0]}", tuple(d / SECOND for d in by_op[longest]))
    return None


def _straggling(sums: Sequence[_DeviceSums]) -> Straggling | None:
    """Who waits for whom, without comparing clocks: the rank that comes to a collective last spends the least time in it."""
    alone = len({s.rank for s in sums}) == len(sums)
    by_rank = {(f"rank {s.rank}" if alone else f"device {s.device}" if len({x.rank for x in sums}) == 1
                else f"rank {s.rank}, device {s.device}"): s for s in sums}  # fmt: skip
    if len(by_rank) < 2:
        return None
    shared = set.intersection(*(set(s.collectives) for s in by_rank.values()))
    waited = dict.fromkeys(by_rank, 0)
    count = 0
    for name in shared:
        members = name.split(" ")[0]
        if members and int(members) < len(by_rank):  # not all of these ranks meet in it
            continue
        runs = [s.collectives[name] for s in by_rank.values()]
        if len({len(r) for r in runs}) > 1:  # parts of the run are missing, so the runs do not match
            continue
        for meeting in zip(*runs, strict=True):
            count += 1
            shortest = min(meeting)
            for rank, time in zip(by_rank, meeting, strict=True):
                waited[rank] += time - shortest
    compute = {
        rank: sum(t.wall for op, t in s.totals.items() if recognise(op).category not in (COLLECTIVE, WAIT, TRANSFER))
        / SECOND
        for rank, s in by_rank.items()
    }
    slowest = min(waited, key=lambda r: waited[r]) if count else max(compute, key=lambda r: compute[r])
    return Straggling(count, {r: t / SECOND for r, t in waited.items()}, compute, slowest)


def _assumptions(rows: Sequence[OpRow], roof: Roof | None, sums: Sequence[_DeviceSums]) -> tuple[str, ...]:
    found = [f"times are of one device, the mean of {len(sums)}"] if len(sums) > 1 else []
    if roof is not None:
        found.append(f"roofs: {roof.source}")
    if any(r.category == "attention" and r.flops for r in rows):
        found.append("attention counts all scores, also those that a causal mask drops")
    if any(r.binds == "network" for r in rows):
        found.append("collectives are bound by the links between neighbouring chips, or by what --on names")
    return tuple(found)
