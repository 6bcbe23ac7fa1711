"""A profile against its roofline: terminal and JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rooftop.profiles import AgainstPlan, Change, Group, Holder, Memory, OpRow, Report, Versus, short_name
from rooftop.units import format_bandwidth, format_bytes, format_flops, format_flops_rate, format_seconds
from rooftop.views._terminal import bar, group, heading, lines, table

if TYPE_CHECKING:
    from rich.console import RenderableType


def trace_json(r: Report) -> dict[str, Any]:
    """The report; every key with its unit."""
    return {
        "paths": list(r.paths),
        "format": r.format,
        "device": r.device_name,
        "roof": None if r.roof is None else {
            "chip": r.roof.name, "flops_per_second": dict(r.roof.flops), "bytes_per_second": r.roof.bandwidth,
            "source": r.roof.source,
        },
        "window_seconds": r.window,
        "steps": None if r.steps is None else {"source": r.steps.source, "seconds": list(r.steps.seconds)},
        "mfu": r.mfu,
        "mfu_lacks_seconds": r.unknown_matmuls,
        "flops": r.flops,
        "known_share": r.known,
        "losses": [asdict(loss) for loss in r.losses],
        "devices": [asdict(d) for d in r.devices],
        "parts": [_group_json(g) for g in r.parts],
        "layers": [_group_json(g) for g in r.layers],
        "categories": [_group_json(g) for g in r.categories],
        "ops": [op_json(op) for op in r.ops],
        "communication": {
            "seconds": r.communication, "exposed_seconds": r.exposed,
            "overlapped_seconds": max(0.0, r.communication - r.exposed),
        },
        "stragglers": None if r.straggling is None else asdict(r.straggling),
        "memory": {name: _memory_json(m) for name, m in r.memory.items()},
        "notes": list(r.notes),
        "assumptions": list(r.assumptions),
    }  # fmt: skip


def op_json(op: OpRow) -> dict[str, Any]:
    """One row, with its rates."""
    return {
        "name": op.name, "category": op.category, "library": op.library, "part": op.part, "count": op.count,
        "seconds": op.seconds, "wall_seconds": op.wall, "bound_seconds": op.bound, "roofline_share": op.fraction,
        "binds": op.binds, "flops": op.flops, "bytes": op.bytes,
        "flops_per_second": _rate(op.flops, op.seconds), "bytes_per_second": _rate(op.bytes, op.seconds),
        "dtype": op.dtype, "shape": op.shape, "collective": op.collective, "group": op.group, "source": op.source,
        "recomputed": op.recomputed,
    }  # fmt: skip


def _group_json(g: Group) -> dict[str, Any]:
    return {
        "name": g.name, "seconds": g.seconds, "wall_seconds": g.wall, "count": g.count, "flops": g.flops, "bytes": g.bytes,
        "known_seconds": g.known, "bound_seconds": g.bound, "roofline_share": _rate(g.bound, g.known),
    }  # fmt: skip


def _memory_json(m: Memory) -> dict[str, Any]:
    return {
        "peak_bytes": m.peak, "peak_at_seconds": m.at, "during": m.during,
        "series": [{"seconds": t, "bytes": used} for t, used in m.series],
        "held": [{"name": h.name, "bytes": h.bytes, "buffers": h.buffers or None} for h in m.held],
    }  # fmt: skip


def _rate(amount: float | None, seconds: float) -> float | None:
    return amount / seconds if amount is not None and seconds > 0 else None


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def trace_text(r: Report, top: int = 15) -> RenderableType:
    """The report for a person: where the time went, part by part, op by op, and what to do first."""
    parts = [heading(_title(r)), table("", ("", ""), _summary(r)), _losses(r)]
    parts.append(_groups("by part of the model", r.parts, r.window, top))
    if r.layers:
        parts.append(_groups("by layer", sorted(r.layers, key=lambda g: int(g.name)), r.window, top))
    parts += [_groups("by kind of work", r.categories, r.window, top), _ops(r, top)]
    held = _held(r, top)
    if held is not None:
        parts.append(held)
    collectives = [op for op in r.ops if op.category == "collective"]
    if collectives:
        parts.append(_communication(collectives, top))
    if r.straggling is not None and r.straggling.collectives:
        parts.append(_straggling(r))
    first = [f"{loss.name} ({loss.share:.1%}): {loss.advice}" for loss in advice(r)]
    if first:
        parts.append(lines("What to do first", first))
    if r.notes:
        parts.append(lines("Notes", r.notes))
    if r.assumptions:
        parts.append(lines("Assumptions", r.assumptions))
    return group(*parts)


def advice(r: Report) -> list[Any]:
    """The three largest losses of at least 2 % for which something can be done."""
    return sorted((x for x in r.losses if x.advice and x.share >= 0.02), key=lambda x: -x.share)[:3]


def _title(r: Report) -> str:
    chip = r.roof.name if r.roof is not None else r.device_name or "unknown device"
    ranks = {d.rank for d in r.devices} - {None}
    who = f"{len(r.devices)} x {chip}" + (f", {len(ranks)} ranks" if len(ranks) > 1 else "")
    return f"{r.format}: {who}, {format_seconds(r.window)}"


def _summary(r: Report) -> list[tuple[str, str]]:
    rows = []
    if r.steps is not None:
        times = r.steps.seconds
        rows.append((
            "steps", f"{len(times)} ({r.steps.source}), median {format_seconds(statistics.median(times))},"
            f" {format_seconds(min(times))} to {format_seconds(max(times))}",
        ))  # fmt: skip
    if r.mfu is not None:
        lacking = r.unknown_matmuls
        least = "at least " if lacking > 0 else ""
        note = f"; matmuls of {format_seconds(lacking)} have no recorded shapes" if lacking > 0 else ""
        rows.append(("MFU", f"{least}{r.mfu:.1%} ({format_flops(r.flops)} a device{note})"))
    rows.append(("known", f"{r.known:.1%} of the busy time is in ops whose roofline is known"))
    if r.communication:
        hidden = max(0.0, r.communication - r.exposed)
        rows.append(
            (
                "communication",
                f"{format_seconds(r.communication)}: {format_seconds(r.exposed)} exposed, {format_seconds(hidden)} overlapped",
            )
        )
    rows += _peaks(r)
    return rows


def _peaks(r: Report) -> list[tuple[str, str]]:
    """The allocator with the highest peak, and what the others come to."""
    if not r.memory:
        return []
    (name, m), *others = sorted(r.memory.items(), key=lambda x: -x[1].peak)
    during = f" in {short_name(m.during)}" if m.during else ""
    rows = [("memory", f"{name}: peak {format_bytes(m.peak)} allocated, at {format_seconds(m.at)}{during}")]
    if others:
        least, most = format_bytes(others[-1][1].peak), format_bytes(others[0][1].peak)
        rows.append(("", f"{len(others)} more allocators: {most if least == most else f'{least} to {most}'}"))
    return rows


def _held(r: Report, top: int) -> RenderableType | None:
    """What held the memory of the highest peak."""
    if not r.memory:
        return None
    name, m = max(r.memory.items(), key=lambda x: x[1].peak)
    return _holders(f"what held the peak of {name}", m.held, m.peak, top) if m.held else None


def _holders(title: str, held: Sequence[Holder], peak: float, top: int) -> RenderableType:
    rows = [
        (h.name[-60:], f"{h.buffers:,}" if h.buffers else "-", format_bytes(h.bytes), f"{h.bytes / peak:.1%}")
        for h in held[:top]
    ]
    more = f"and {len(held) - top} more; --json has all" if len(held) > top else None
    return table(title, ("allocated in", ">buffers", ">bytes", ">share"), rows, caption=more)


def _losses(r: Report) -> RenderableType:
    rows = [
        (f"{x.share:.1%}", format_seconds(x.seconds), bar(x.share, max(y.share for y in r.losses), 20), x.name)
        for x in r.losses
    ]
    return table("where the time went", (">share", ">time", "", ""), rows)


def _groups(title: str, groups: Sequence[Group], window: float, top: int) -> RenderableType:
    rows = [
        (
            g.name[-60:], format_seconds(g.wall), f"{g.wall / window:.1%}",
            format_seconds(g.bound) if g.known > 0 else "-", _percent(_rate(g.bound, g.known)),
            f"{g.known / g.seconds:.0%}" if g.seconds > 0 else "-",
        )
        for g in groups[:top]
    ]  # fmt: skip
    more = f"and {len(groups) - top} more; --json has all" if len(groups) > top else None
    return table(title, ("", ">took", ">of window", ">roofline", ">reached", ">known"), rows, caption=more)


def _ops(r: Report, top: int) -> RenderableType:
    rows = []
    for op in r.ops[:top]:
        rate = _rate(op.flops, op.seconds) if op.math else None
        moved = _rate(op.bytes, op.seconds)
        rows.append((
            short_name(op.name)[:36], op.shape[:26], f"{op.count:g}", format_seconds(op.wall),
            format_seconds(op.bound) if op.bound is not None else "-", _percent(op.fraction), op.binds or op.category,
            format_flops_rate(rate) if rate else format_bandwidth(moved) if moved else "-",
        ))  # fmt: skip
    more = f"and {len(r.ops) - top} more; --json has all" if len(r.ops) > top else None
    return table(
        "by op", ("", "shape", ">runs", ">took", ">roofline", ">reached", "bound by", ">rate"), rows, caption=more
    )


def _communication(collectives: Sequence[OpRow], top: int) -> RenderableType:
    rows = [
        (
            op.collective or short_name(op.name)[:30], str(op.group or "?"), f"{op.count:g}",
            format_bytes(op.bytes / op.count) if op.bytes else "?", format_seconds(op.seconds / op.count),
            format_bandwidth(op.bytes / op.seconds) if op.bytes and op.seconds else "-", format_seconds(op.wall), _percent(op.fraction),
        )
        for op in collectives[:top]
        if op.count
    ]  # fmt: skip
    return table(
        "communication", ("", ">over", ">runs", ">bytes", ">each", ">bytes/time", ">exposed", ">of links"), rows,
        caption="bytes: the whole array of one group",
    )  # fmt: skip


def _straggling(r: Report) -> RenderableType:
    s = r.straggling
    assert s is not None
    rows = [
        (
            rank,
            format_seconds(s.compute[rank]),
            format_seconds(s.waited[rank]),
            "others wait for it" if rank == s.slowest else "",
        )
        for rank in s.waited
    ]
    return table(f"who waits for whom, over {s.collectives} collectives", ("", ">compute", ">waited", ""), rows)


def versus_json(v: Versus) -> dict[str, Any]:
    """What changed; seconds of a step."""
    return {
        "before": trace_json(v.before),
        "after": trace_json(v.after),
        "steps": list(v.steps),
        "step_seconds": {"before": v.step_before, "after": v.step_after},
        "speedup": v.speedup,
        "losses": [_change_json(c) for c in v.losses],
        "parts": [_change_json(c) for c in v.parts],
        "categories": [_change_json(c) for c in v.categories],
        "ops": [_change_json(c) for c in v.ops],
        "notes": list(v.notes),
    }


def _change_json(c: Change) -> dict[str, Any]:
    return {
        "name": c.name, "before_seconds": c.before, "after_seconds": c.after, "added_seconds": c.seconds, "added_share": c.share,
    }  # fmt: skip


def versus_text(v: Versus, top: int = 15) -> RenderableType:
    """What changed for a person, the largest changes first."""
    word = "faster" if v.speedup >= 1 else "slower"
    times = f"{format_seconds(v.step_before)} before, {format_seconds(v.step_after)} after"
    ratio = v.speedup if v.speedup >= 1 else 1 / v.speedup
    parts: list[Any] = [heading(f"{times}: {ratio:.3g} times {word}")]
    for title, changes in (
        ("where the time went", v.losses), ("by part of the model", v.parts), ("by kind of work", v.categories), ("by op", v.ops),
    ):  # fmt: skip
        rows = [
            (
                c.name[-60:], "-" if c.before is None else format_seconds(c.before),
                "-" if c.after is None else format_seconds(c.after), f"{c.seconds * 1e3:+,.3f}", f"{c.share:+.1%}",
            )
            for c in changes[:top]
        ]  # fmt: skip
        more = f"and {len(changes) - top} more; --json has all" if len(changes) > top else None
        parts.append(table(title, ("", ">before", ">after", ">ms", ">of step"), rows, caption=more))
    notes = [*v.notes, *(f"before: {n}" for n in v.before.notes), *(f"after: {n}" for n in v.after.notes)]
    if notes:
        parts.append(lines("Notes", notes))
    return group(*parts)


def plan_json(p: AgainstPlan) -> dict[str, Any]:
    """A step as planned and as measured."""
    return {
        "plan": p.path,
        "steps": p.steps,
        "step_seconds": {"bound": p.bound, "expected": p.planned, "measured": p.measured},
        "parts": [
            {"name": r.name, "planned_seconds": r.planned, "measured_seconds": r.measured, "added_seconds": r.difference, "cause": r.cause}
            for r in p.rows
        ],
        "memory_bytes": None if p.memory is None else {
            "planned": p.memory[0], "measured": p.memory[1], "planned_parts": dict(p.memory_parts),
            "held": [{"name": h.name, "bytes": h.bytes} for h in p.held],
        },
        "notes": list(p.notes),
    }  # fmt: skip


def plan_text(p: AgainstPlan) -> RenderableType:
    """A step as planned and as measured, for a person."""
    rows = [
        (r.name, format_seconds(r.planned), format_seconds(r.measured), f"{r.difference * 1e3:+,.3f}", r.cause)
        for r in p.rows
    ]
    title = (
        f"Against {p.path}: a step took {format_seconds(p.measured)}; the plan expects {format_seconds(p.planned)},"
        f" bound {format_seconds(p.bound)}"
    )
    parts: list[Any] = [heading(title), table("", ("", ">planned", ">measured", ">ms", "likely cause"), rows)]
    if p.memory is not None:
        parts.append(
            lines("Memory", [f"planned {format_bytes(p.memory[0])}, measured peak {format_bytes(p.memory[1])}"])
        )
        planned = sorted(p.memory_parts.items(), key=lambda x: -x[1])
        if planned:
            parts.append(
                table("planned", ("", ">bytes"), [(name, format_bytes(size)) for name, size in planned if size])
            )
        if p.held:
            parts.append(_holders("measured, by what allocated it", p.held, p.memory[1], 8))
    if p.notes:
        parts.append(lines("Notes of the comparison", p.notes))
    return group(*parts)
