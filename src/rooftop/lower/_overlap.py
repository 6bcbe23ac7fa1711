"""A JAX function with its collectives beside its arithmetic: each op begins when what it reads is there and its resource is free.

Resources are the chip and, for each mesh axis, the links in either direction: a permute to a neighbour takes those of one
direction, every other collective both. A program whose matmuls do not wait for its transfers hides them; one that gathers first
does not, and the difference is what an overlapped algorithm gains.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rooftop.hardware import Slice, Torus
from rooftop.lower import _jaxpr as walked
from rooftop.lower._cost import Overlap, ProgramTime, program_time
from rooftop.lower._jax import jax
from rooftop.lower._jaxpr import list_ops
from rooftop.lower._listing import Op


@dataclass(slots=True)
class _Task:
    """Ops that run together, after other tasks; ways: directions of a ring along which a permute sends."""

    ops: list[Op]
    after: frozenset[int]
    ways: tuple[str, ...] = ("+", "-")


@dataclass(slots=True)
class _Tasks:
    walk: walked._Walk
    found: list[_Task] = field(default_factory=list)
    inputs: float = 0.0  # bytes of one device
    outputs: float = 0.0

    def level(self, jaxpr: Any, ready: Sequence[frozenset[int]]) -> list[frozenset[int]]:
        """Add the tasks of a program whose inputs come from tasks `ready`; returns from which its results come."""
        values = {
            v: walked._Value(walked._bytes(v.aval), walked._elements(v.aval)) for v in (*jaxpr.constvars, *jaxpr.invars)
        }
        origin = {id(values[v]): r for v, r in zip(jaxpr.invars, ready, strict=True)}
        nodes: list[walked._Node] = []
        walked._flatten(jaxpr, values, nodes, "")
        results = [walked._read(v, values) for v in jaxpr.outvars]
        live = walked._live(nodes, results)
        held = {id(v): v.bytes for v in (*(values[v] for v in jaxpr.invars), *results)}
        clusters = walked._clusters(live)
        home = {id(n): i for i, inside in enumerate(clusters) for n in inside}
        read = {id(s) for r in results for s, _ in walked._sources(r)}
        for node in live:
            for value in node.inputs:
                for source, _ in walked._sources(value):
                    if source.maker is not None and home[id(source.maker)] != home[id(node)]:
                        read.add(id(source))

        def origins(value: Any) -> frozenset[int]:
            return frozenset().union(*(origin.get(id(s), frozenset()) for s, _ in walked._sources(value)))

        for inside in sorted(clusters, key=lambda c: max(n.level for n in c)):
            given = [v for n in inside for v in n.inputs]
            made = [v for n in inside for v in n.outputs]
            if inside[0].name == "shard_map":
                node = inside[0]
                shape = getattr(node.params["mesh"], "shape", {})
                self.walk.mesh.update({str(a): int(n) for a, n in dict(shape).items()})
                body = getattr(node.params["jaxpr"], "jaxpr", node.params["jaxpr"])
                ends = self.level(body, [origins(v) for v in node.inputs])
                shards = zip((*node.inputs, *node.outputs), (*body.invars, *body.outvars), strict=True)
                held.update({id(v): walked._bytes(shard.aval) for v, shard in shards if id(v) in held})
                origin.update({id(v): e for v, e in zip(node.outputs, ends, strict=True)})
                continue
            own = {id(v) for v in made}
            after = frozenset().union(*(origins(v) for v in given if id(v) not in own))
            ops = walked._costed(inside, [v for v in made if id(v) in read], 1.0, self.walk)
            if ops:
                self.found.append(_Task(ops, after, _ways(inside[0], self.walk.mesh)))
                after = frozenset({len(self.found) - 1})
            origin.update(dict.fromkeys(own, after))
        self.inputs = sum(held[id(values[v])] for v in jaxpr.invars)
        self.outputs = sum(held[id(r)] for r in results)
        return [origins(r) for r in results]


def _ways(node: walked._Node, mesh: dict[str, int]) -> tuple[str, ...]:
    """In which directions of a ring a collective sends."""
    if node.name != "ppermute":
        return ("+", "-")
    named = node.params["axis_name"]
    axes = named if isinstance(named, tuple) else (named,)
    size = 1
    for axis in axes:
        size *= mesh.get(str(axis), 1)
    steps = {(b - a) % size for a, b in node.params["perm"]}
    return ("-",) if steps and all(2 * s > size for s in steps) else ("+",)


def function_time(function: Callable[..., Any], *args: Any, where: Slice, name: str = "") -> ProgramTime:
    """The roofline of a JAX function for arguments of these shapes on one device of a slice, and how far it overlaps.

    Arguments and results of a shard_map count with the shards of one device. Loops that are not unrolled are one op, in which
    nothing overlaps. Raises InputError where the function cannot be traced, or its mesh does not fit on the slice.
    """
    listing = list_ops(function, *args, name=name)
    closed = jax().make_jaxpr(function)(*args)
    tasks = _Tasks(walked._Walk())
    tasks.level(closed.jaxpr, [frozenset()] * len(closed.jaxpr.invars))
    result = program_time(replace(listing, inputs=tasks.inputs, outputs=tasks.outputs), where)
    every = tuple(op for task in tasks.found for op in task.ops)
    times = {id(t.op): t for t in program_time(replace(listing, ops=every), where).ops}
    # on a switch a chip has one way out, whichever neighbour it sends to
    rings = bool(where.levels) and isinstance(where.levels[0], Torus)
    overlap = Overlap(
        _makespan(tasks.found, lambda op: times[id(op)].bound, rings),
        _makespan(tasks.found, lambda op: times[id(op)].expected, rings),
    )
    # both directions of a ring are busy beside each other
    busy: dict[tuple[str, str], float] = {}
    for task in tasks.found:
        for op in task.ops:
            if op.transfer is not None:
                axes = tuple(a for a in op.transfer.axes if listing.mesh.get(a, 1) > 1)
                for way in task.ways if rings else ("+",):
                    key = f"network {'+'.join(axes)}", way
                    busy[key] = busy.get(key, 0.0) + times[id(op)].network
    links = {
        name: max(s for (other, _), s in busy.items() if other == name) for name, _ in busy if name in result.resources
    }
    return replace(result, overlap=overlap, resources={**result.resources, **links})


def _makespan(tasks: Sequence[_Task], seconds: Callable[[Op], float], rings: bool) -> float:
    """When the last task ends: of those that could begin, the one with the longest way to the end begins first."""
    lengths = [sum(seconds(op) for op in task.ops) for task in tasks]
    way = list(lengths)
    for i in reversed(range(len(tasks))):
        for before in tasks[i].after:
            way[before] = max(way[before], lengths[before] + way[i])
    waiting = [len(task.after) for task in tasks]
    readers: list[list[int]] = [[] for _ in tasks]
    for i, task in enumerate(tasks):
        for before in task.after:
            readers[before].append(i)
    ready = sorted((i for i, n in enumerate(waiting) if n == 0), key=lambda i: -way[i])
    busy: set[tuple[str, ...]] = set()
    running: list[tuple[float, int]] = []
    now = 0.0
    while ready or running:
        for i in list(ready):
            taken = _resources(tasks[i], rings)
            if not taken & busy:
                busy |= taken
                ready.remove(i)
                heapq.heappush(running, (now + lengths[i], i))
        now, ended = heapq.heappop(running)
        busy -= _resources(tasks[ended], rings)
        for reader in readers[ended]:
            waiting[reader] -= 1
            if not waiting[reader]:
                bisect.insort(ready, reader, key=lambda i: -way[i])
    return now


def _resources(task: _Task, rings: bool) -> set[tuple[str, ...]]:
    """What a task keeps busy: the chip, or links."""
    transfers = [op.transfer for op in task.ops if op.transfer is not None]
    links: set[tuple[str, ...]] = {
        (axis, way) for t in transfers for axis in t.axes for way in (task.ways if rings else ("+",))
    }
    return links | ({("chip",)} if len(transfers) < len(task.ops) else set())
