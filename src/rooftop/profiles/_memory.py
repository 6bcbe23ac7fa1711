"""What allocators handed out: over time, and at the peak what held it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from rooftop.profiles._events import Allocation, Trace
from rooftop.profiles._report import Holder, Memory
from rooftop.profiles._scopes import part_and_layer

_SECOND = 1e12  # picoseconds
_MOST_SAMPLES = 200
BEFORE = "allocated before the profile"


def memory_of(traces: Sequence[Trace]) -> dict[str, Memory]:
    """Each allocator over time; long series are cut into equal pieces, of which each keeps its most."""
    found = {}
    for trace in traces:
        for allocator, samples in trace.memory.items():
            ordered = sorted(samples, key=lambda a: a.time)
            number = max(range(len(ordered)), key=lambda i: ordered[i].used)
            at, peak = ordered[number].time, ordered[number].used
            first, span = ordered[0].time, max(1, ordered[-1].time - ordered[0].time)
            most: dict[int, Allocation] = {}
            for sample in ordered:
                piece = (sample.time - first) * (_MOST_SAMPLES - 1) // span
                if piece not in most or sample.used > most[piece].used:
                    most[piece] = sample
            live = _live(ordered[: number + 1])
            names = _around(trace, {a.time for a in live if not a.by} | {at})
            name = allocator if trace.rank is None else f"rank {trace.rank}, {allocator}"
            found[name] = Memory(
                float(peak), at / _SECOND, names[at][1], [(a.time / _SECOND, float(a.used)) for a in most.values()],
                _holders(live, names, peak),
            )  # fmt: skip
    return found


def _live(samples: Iterable[Allocation]) -> list[Allocation]:
    """Allocations that were not freed again; the frees of what was there before are not told apart from what remains of it."""
    live: dict[int, Allocation] = {}
    for a in samples:
        if a.change > 0:
            live[a.address] = a
        else:
            live.pop(a.address, None)
    return list(live.values())


def _holders(live: Sequence[Allocation], names: dict[int, tuple[str, str]], peak: int) -> list[Holder]:
    """Bytes at the peak by who allocated them, largest first; they add up to it."""
    held: dict[str, list[int]] = defaultdict(list)
    for a in live:
        part = part_and_layer(a.by, True)[0] or a.by if a.by else names[a.time][0]
        held[part or "nothing that the profile names"].append(a.change)
    before = peak - sum(map(sum, held.values()))
    found = [Holder(name, float(sum(sizes)), len(sizes)) for name, sizes in held.items()]
    if before > 0:
        found.append(Holder(BEFORE, float(before), 0))
    return sorted(found, key=lambda h: (-h.bytes, h.name))


def _around(trace: Trace, instants: Iterable[int]) -> dict[int, tuple[str, str]]:
    """For each instant the part of the model, or else the op, that the host was in; and its innermost op."""
    host = trace.events("host")
    start, end = trace.start[host].tolist(), (trace.start + trace.duration)[host].tolist()
    ops = [trace.ops[i] for i in trace.op[host].tolist()]
    running: list[int] = []
    found = {}
    position = 0
    for instant in sorted(instants):
        while position < len(start) and start[position] <= instant:
            running.append(position)
            position += 1
            if len(running) > 4096:
                running = [i for i in running if end[i] > instant]
        running = [i for i in running if end[i] > instant]
        modules = "/".join(ops[i].name for i in running if ops[i].category == "module")
        innermost = ops[running[-1]].name if running else ""
        framework = next((ops[i].name for i in reversed(running) if ops[i].category == "cpu_op"), innermost)
        found[instant] = (part_and_layer(modules, False)[0] or framework, innermost)
    return found
