"""Optimised HLO text as a listing of ops: what a compiler made of a program, per device.

Loops multiply their bodies by their trip counts (from `known_trip_count`, or from the constants of the condition and the step
of the counter where a compiler does not tell). A fusion reads its operands and writes its results, slices only what they slice.
Replica groups come in four spellings, and become mesh axes where the mesh is known.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rooftop.errors import InputError
from rooftop.lower._listing import Listing, Op, Transfer
from rooftop.units import dtype as canonical
from rooftop.units import dtype_bytes

_MOST_BYTES = 2**30

_DTYPES = {
    "pred": 1.0, "s2": 0.25, "u2": 0.25, "s4": 0.5, "u4": 0.5, "s8": 1.0, "u8": 1.0, "s16": 2.0, "u16": 2.0, "s32": 4.0, "u32": 4.0,
    "s64": 8.0, "u64": 8.0, "bf16": 2.0, "f16": 2.0, "f32": 4.0, "f64": 8.0, "c64": 8.0, "c128": 16.0, "f8e4m3fn": 1.0,
    "f8e5m2": 1.0, "f8e4m3": 1.0, "f8e4m3b11fnuz": 1.0, "f8e4m3fnuz": 1.0, "f8e5m2fnuz": 1.0, "f8e8m0fnu": 1.0, "f4e2m1fn": 0.5,
    "token": 0.0, "opaque": 0.0,
}  # fmt: skip

_SHAPE = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,<=?]*)\]")
_COMPUTATION = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s+(?:\(.*\)\s*->|\{)")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)")

_COLLECTIVES = {
    "all-gather": "all_gather", "all-reduce": "all_reduce", "reduce-scatter": "reduce_scatter", "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all", "collective-permute": "permute", "collective-broadcast": "all_gather",
}  # fmt: skip

#: Custom calls that compute nothing.
_RENAMINGS = frozenset(
    {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "AllocateBuffer", "ConcatBitcast", "AsyncCollectiveStart",
     "AsyncCollectiveDone"}
)  # fmt: skip

_FREE = frozenset(
    {
        "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id",
        "optimization-barrier", "iota", "add-dependency", "domain",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """One array type."""

    dtype: str
    sizes: tuple[int, ...]

    @property
    def elements(self) -> float:
        """Number of elements."""
        return float(math.prod(self.sizes))

    @property
    def bytes(self) -> float:
        """Bytes without tiling."""
        return self.elements * _DTYPES.get(self.dtype, 0.0)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of HLO: `%name = type opcode(operands), attributes`."""

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    inside: str  # the text between the parentheses
    attributes: str
    root: bool

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The arrays of its type."""
        return _shapes(self.type)

    @property
    def bytes(self) -> float:
        """Bytes of its results."""
        return sum(s.bytes for s in self.shapes)

    @property
    def called(self) -> tuple[str, ...]:
        """Names of the computations that it calls."""
        return tuple(_CALLED.findall(self.attributes))

    @property
    def scope(self) -> str:
        """The scope that JAX gave it."""
        match = re.search(r'op_name="([^"]*)"', self.attributes)
        return "/".join(match[1].split("/")[1:-1]) if match else ""

    @property
    def source(self) -> str:
        """File and line, where the metadata has them."""
        match = re.search(r'source_file="([^"]*)"(?: source_line=(\d+))?', self.attributes)
        return f"{match[1]}:{match[2]}" if match else ""


@functools.lru_cache(maxsize=65536)
def _shapes(text: str) -> tuple[Shape, ...]:
    found = []
    for kind, sizes in _SHAPE.findall(text):
        if kind in _DTYPES:
            found.append(Shape(kind, tuple(int(n.lstrip("<=?") or 0) for n in sizes.split(",") if n)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed module: instructions by computation."""

    name: str
    computations: Mapping[str, Mapping[str, Instruction]]
    entry: str

    def root(self, computation: str) -> Instruction | None:
        """The instruction whose value a computation returns."""
        return next((i for i in self.computations.get(computation, {}).values() if i.root), None)


def parse_hlo(text: str) -> Module:
    """Read HLO text. Raises InputError where it has no entry computation."""
    if len(text) > _MOST_BYTES:
        raise InputError(f"the HLO is larger than {_MOST_BYTES:,} bytes", field="file")
    first = re.search(r"^HloModule\s+([\w.\-]+)", text, re.MULTILINE)
    computations: dict[str, dict[str, Instruction]] = {}
    current: dict[str, Instruction] | None = None
    entry = ""
    for line in text.splitlines():
        if not line[:1].isspace() and line.rstrip().endswith("{"):
            match = _COMPUTATION.match(line)
            if match and not line.startswith("HloModule"):
                current = computations.setdefault(match[2], {})
                entry = match[2] if match[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None:
            instruction = _instruction(line)
            if instruction is not None:
                current[instruction.name] = instruction
    if not entry and len(computations) == 1:
        entry = next(iter(computations))
    if not entry:
        raise InputError("this is not the text of an HLO module: it has no ENTRY computation", field="file")
    return Module(first[1] if first else "module", computations, entry)


def _instruction(line: str) -> Instruction | None:
    text = line.strip()
    root = text.startswith("ROOT ")
    text = text.removeprefix("ROOT ")
    name, equals, rest = text.partition(" = ")
    if not equals:
        return None
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.find(" ")
    if end <= 0:
        return None
    kind, rest = rest[:end], rest[end:].lstrip()
    start = rest.find("(")
    if start < 0:
        return None
    close = _closing(rest, start)
    inside = rest[start + 1 : close]
    operands = tuple(re.findall(r"%([\w.\-]+)", inside)) or tuple(
        part.strip().split(" ")[-1] for part in inside.split(",") if re.fullmatch(r"[\w.\- \[\]{}:()]*[A-Za-z_][\w.\-]*", part.strip())
    )  # fmt: skip
    return Instruction(name.lstrip("%"), kind, rest[:start], operands, inside, rest[close + 1 :], root)


def _closing(text: str, start: int) -> int:
    """The index of the parenthesis that closes the one at `start`; the end of the text if none does."""
    depth = 0
    for match in re.finditer(r"[()]", text[start:]):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return start + match.start()
    return len(text)


def list_hlo(text: str, *, mesh: Mapping[str, int] | None = None, name: str = "") -> Listing:
    """The ops of an optimised HLO module, on one device. mesh: the axes whose row-major order numbers the devices."""
    module = parse_hlo(text)
    reader = _Reader(module, dict(mesh or {}))
    ops = tuple(reader.walk(module.entry, 1.0))
    entry = module.computations[module.entry].values()
    root = module.root(module.entry)
    return Listing(
        name or module.name, ops, dict(mesh or {}), sum(i.bytes for i in entry if i.opcode == "parameter"),
        root.bytes if root else 0.0, tuple(reader.notes),
    )  # fmt: skip


class _Reader:
    """Walks a module from its entry."""

    def __init__(self, module: Module, mesh: dict[str, int]) -> None:
        self.module, self.mesh = module, mesh
        self.notes: dict[str, None] = {}
        # collectives that several fusions carry on, even inside of loops: they are counted where they start
        self.spread = {
            _channel(c)
            for name in module.computations
            if self._starts(name)
            for c in self._nested(name)
            if c.opcode in _COLLECTIVES
        } - {""}

    def _starts(self, computation: str) -> bool:
        return any("AsyncCollectiveStart" in c.attributes for c in self.module.computations[computation].values())

    def walk(self, computation: str, times: float) -> Iterator[Op]:
        """The ops of a computation that runs `times` times."""
        channels: set[str] = set()
        for i in self.module.computations.get(computation, {}).values():
            if i.opcode in _FREE or i.opcode.endswith(("-done", "-update")):
                continue
            if i.opcode == "while":
                yield from self._loop(i, times)
            elif i.opcode in ("call", "async-start") or (i.opcode.endswith("-start") and i.called):
                for called in i.called:
                    yield from self.walk(called, times)
            elif i.opcode == "conditional":
                branches = re.search(r"branch_computations=\{([^}]*)\}", i.attributes)
                names = re.findall(r"[\w.\-]+", branches[1].replace("%", "")) if branches else list(
                    re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", i.attributes)
                )  # fmt: skip
                options = [list(self.walk(n, times)) for n in names]
                yield from max(
                    options, key=lambda ops: (sum(o.flops for o in ops), sum(o.bytes for o in ops)), default=[]
                )
            else:
                yield from self._op(i, computation, times, channels)

    def _loop(self, i: Instruction, times: float) -> Iterator[Op]:
        trips = self.trips(i)
        if trips is None:
            self.notes[f"the loop {i.name} does not tell its number of iterations: its body is counted once"] = None
        body = re.search(r"body=%?([\w.\-]+)", i.attributes)
        if body:
            for op in self.walk(body[1], times * (1 if trips is None else trips)):
                yield op if op.scope else replace(op, scope=i.scope)

    def trips(self, i: Instruction) -> int | None:
        """How often a loop runs: as the compiler says, or limit over step of the counter that its condition compares."""
        told = re.search(r'"?known_trip_count"?[=:]\{"n":"(\d+)"', i.attributes)
        if told:
            return int(told[1])
        condition = re.search(r"condition=%?([\w.\-]+)", i.attributes)
        body = re.search(r"body=%?([\w.\-]+)", i.attributes)
        if not condition or not body:
            return None
        limits = [*self._constants(condition[1]).values()]
        for inner in self.module.computations.get(condition[1], {}).values():
            for called in inner.called:
                limits += self._constants(called).values()
        step = self._step(condition[1], body[1])
        return -(-limits[0] // step) if len(set(limits)) == 1 and step > 0 else None

    def _constants(self, computation: str) -> dict[str, int]:
        found = {}
        for i in self.module.computations.get(computation, {}).values():
            if (
                i.opcode == "constant"
                and re.fullmatch(r"[su](32|64)\[\](\{[^}]*\})?", i.type)
                and re.match(r"-?\d+$", i.inside.strip())
            ):
                found[i.name] = int(i.inside)
        return found

    def _step(self, condition: str, body: str) -> int:
        """By how much the counter that the condition compares grows: 1 unless the body says otherwise."""
        compare = self.module.root(condition)
        inside = self.module.computations.get(condition, {})
        if compare is None or compare.opcode != "compare":
            return 1
        index = next(
            (m[1] for n in compare.operands if n in inside and (m := re.search(r"index=(\d+)", inside[n].attributes))),
            None,
        )
        root, of_body = self.module.root(body), self.module.computations.get(body, {})
        if index is None or root is None or root.opcode != "tuple" or int(index) >= len(root.operands):
            return 1
        constants = self._constants(body)

        def plain(name: str) -> Instruction | None:
            found = of_body.get(name)
            while found is not None and found.opcode in ("copy", "bitcast") and found.operands:
                found = of_body.get(found.operands[0])
            return found

        added = plain(root.operands[int(index)])
        if added is None or added.opcode != "add":
            return 1
        steps = [constants[p.name] for n in added.operands if (p := plain(n)) is not None and p.name in constants]
        return abs(steps[0]) if steps and steps[0] else 1

    def _op(self, i: Instruction, computation: str, times: float, channels: set[str]) -> Iterator[Op]:
        table = self.module.computations[computation]
        kind = _COLLECTIVES.get(i.opcode.removesuffix("-start"))
        if kind is not None:
            yield self._collective(i, table, kind, times)
            return
        if i.opcode == "fusion":
            yield from self._fusion(i, table, times, channels)
            return
        read = sum(table[n].bytes for n in i.operands if n in table)
        op = Op(
            i.opcode, "memory", times, _canonical(i.shapes), bytes=read + i.bytes, unfused=read + i.bytes, scope=i.scope, source=i.source
        )  # fmt: skip
        if i.opcode in ("dot", "convolution"):
            yield replace(
                op, kind="matmul", flops=_flops(i, table), matmul=_matmul(i, table), dtype=_operand_dtype(i, table)
            )
        elif i.opcode == "custom-call":
            yield self._custom(i, table, op)
        elif i.opcode == "dynamic-update-slice":
            yield replace(op, bytes=2 * (table[i.operands[1]].bytes if i.operands[1] in table else i.bytes))
        elif i.opcode in ("dynamic-slice", "slice", "gather"):
            yield replace(op, bytes=2 * i.bytes)
        elif i.opcode.startswith(("copy", "slice-start")):
            yield replace(op, bytes=2 * min((s.bytes for s in i.shapes if s.bytes > 64), default=i.bytes))
        else:
            yield replace(op, vector=sum(s.elements for s in i.shapes))

    def _custom(self, i: Instruction, table: Mapping[str, Instruction], op: Op) -> Op:
        target = re.search(r'custom_call_target="([^"]*)"', i.attributes)
        name = target[1] if target else "custom-call"
        if "matmul" in name or "gemm" in name:
            first = next((table[n] for n in i.operands if n in table), None)
            dims = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', i.attributes)
            if first is not None and dims is not None and first.shapes and i.shapes:
                contracted = [int(d) for d in re.findall(r"\d+", dims[1])]
                k = math.prod(first.shapes[0].sizes[d] for d in contracted if d < len(first.shapes[0].sizes))
                return replace(
                    op, name=name, kind="matmul", flops=2 * i.shapes[0].elements * k, dtype=_canonical(first.shapes)
                )
        cost = re.search(r'"cost_estimate":\{([^}]*)\}', i.attributes)
        if cost:
            told = json.loads("{" + cost[1] + "}")
            return replace(
                op,
                name=name,
                kind="kernel",
                flops=_number(told.get("flops")),
                bytes=_number(told.get("bytes_accessed")) or op.bytes,
            )
        if name in _RENAMINGS:
            return replace(op, name=name, bytes=0.0, unfused=0.0)
        self.notes[f"the custom call {name} is not known: its FLOPs are not counted"] = None
        return replace(op, name=name, kind="unknown")

    def _fusion(
        self, i: Instruction, table: Mapping[str, Instruction], times: float, channels: set[str]
    ) -> Iterator[Op]:
        name = i.called[0] if i.called else ""
        inside = self.module.computations.get(name, {})
        reduced = [c for c in self._nested(name) if c.opcode.removesuffix("-start") in _COLLECTIVES]
        if reduced:
            # a collective inside of a fusion; a reduce-scatter of TPUs is an all-reduce with a slice behind it
            for c in reduced:
                channel = _channel(c)
                spread = channel in self.spread
                if channel in channels or (spread and not self._starts(name)):
                    continue
                channels |= {channel} - {""}
                kind = _COLLECTIVES[c.opcode.removesuffix("-start")]
                scatter = kind == "all_reduce" and ("reduce-scatter" in i.name or "reduce-scatter" in name)
                yield self._collective(
                    replace(c, attributes=c.attributes + i.attributes),
                    inside,
                    "reduce_scatter" if scatter else kind,
                    times,
                    whole=c.bytes,
                    asynchronous=spread,
                )
        flops = self._inner_flops(name)
        dots = [(c, t) for c, t in self._nested_with_tables(name) if c.opcode in ("dot", "convolution")]
        bytes = self._fusion_bytes(i, table, inside)
        if reduced and not dots:
            return
        elements = sum(s.elements for s in i.shapes)
        largest = max(dots, key=lambda pair: _flops(*pair), default=None)
        yield Op(
            name or i.name, "matmul" if dots else "fusion", times,
            _operand_dtype(*largest) if largest else _canonical(i.shapes), flops, 0.0 if dots else elements, bytes,
            sum(table[n].bytes for n in i.operands if n in table) + i.bytes,
            _matmul(*largest) if largest and len(dots) == 1 else None, None, i.scope, i.source,
        )  # fmt: skip

    def _nested_with_tables(self, computation: str) -> Iterator[tuple[Instruction, Mapping[str, Instruction]]]:
        table = self.module.computations.get(computation, {})
        for i in table.values():
            yield i, table
            if i.opcode in ("fusion", "call"):
                for called in i.called:
                    yield from self._nested_with_tables(called)

    def _nested(self, computation: str) -> Iterator[Instruction]:
        for i, _ in self._nested_with_tables(computation):
            yield i

    def _inner_flops(self, computation: str) -> float:
        return sum(_flops(c, t) for c, t in self._nested_with_tables(computation) if c.opcode in ("dot", "convolution"))

    def _fusion_bytes(
        self, i: Instruction, table: Mapping[str, Instruction], inside: Mapping[str, Instruction]
    ) -> float:
        """Operands read (only what is sliced of them, where nothing else reads them) and results written."""
        total = 0.0
        parameters = {
            int(p.inside): p.name for p in inside.values() if p.opcode == "parameter" and p.inside.strip().isdigit()
        }
        root = next((p for p in inside.values() if p.root), None)
        updated = self._updated(root, inside)
        for index, operand in enumerate(i.operands):
            whole = table[operand].bytes if operand in table else 0.0
            readers = [r for r in inside.values() if parameters.get(index) in r.operands]
            if readers and all(r.opcode in ("dynamic-slice", "slice", "gather") for r in readers):
                whole = min(whole, sum(r.bytes for r in readers))
            elif readers and all(
                r.opcode == "dynamic-update-slice" and r.operands[0] == parameters.get(index) for r in readers
            ):
                whole = 0.0
            total += whole
        return total + (updated if updated is not None else i.bytes)

    def _updated(self, root: Instruction | None, inside: Mapping[str, Instruction]) -> float | None:
        """Bytes that an in-place update writes, if that is what a fusion ends with."""
        while root is not None and root.opcode in ("bitcast", "copy") and root.operands:
            root = inside.get(root.operands[0])
        if root is None or root.opcode != "dynamic-update-slice" or root.operands[1] not in inside:
            return None
        return inside[root.operands[1]].bytes

    def _collective(
        self,
        i: Instruction,
        table: Mapping[str, Instruction],
        kind: str,
        times: float,
        *,
        whole: float | None = None,
        asynchronous: bool = False,
    ) -> Op:
        groups = replica_groups(i.attributes)
        size = len(groups[0]) if groups else (math.prod(self.mesh.values()) if self.mesh else 1)
        axes = self.axes_of(groups)
        read = sum(table[n].bytes for n in i.operands if n in table)
        results = i.shapes
        if i.opcode.endswith("-start") and len(results) > 1 and kind in ("all_gather", "permute"):
            written = sum(s.bytes for s in results) / 2 if kind == "permute" else sum(s.bytes for s in results) - read
        else:
            written = i.bytes
        bytes = {
            "all_gather": max(written, read * size), "reduce_scatter": read or written * size, "all_reduce": read or written,
            "all_to_all": (read or written) * size, "permute": read or written,
        }[kind] if whole is None else whole  # fmt: skip
        if kind == "permute":
            size = 2
        return Op(
            i.opcode.removesuffix("-start"), "network", times, _canonical(results), unfused=read + written,
            transfer=Transfer(
                kind, axes, bytes, size, asynchronous or (i.opcode.endswith("-start") and '"is_sync":true' not in i.attributes)
            ), scope=i.scope, source=i.source,
        )  # fmt: skip

    def axes_of(self, groups: list[list[int]]) -> tuple[str, ...]:
        """The mesh axes along which the members of a group differ; none where the mesh is unknown or does not fit."""
        sizes = tuple(self.mesh.values())
        if not groups or not sizes or max(max(g) for g in groups if g) >= math.prod(sizes):
            return ()
        places = np.array(np.unravel_index(np.array(groups[0]), sizes))
        differ = [axis for axis, row in zip(self.mesh, places, strict=True) if (row != row[0]).any()]
        return tuple(differ)


def _channel(i: Instruction) -> str:
    match = re.search(r"channel_id=(\d+)", i.attributes)
    return match[1] if match else ""


def replica_groups(text: str) -> list[list[int]]:
    """Groups of device numbers, in any of their spellings; pairs of a permute are groups of two. Empty: one group of all."""
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if iota:
        shape, dims = _ints(iota[1]), _ints(iota[2])
        if math.prod(dims) > 2**24:
            return []
        numbers = np.arange(math.prod(dims)).reshape(dims)
        if iota[3]:
            numbers = numbers.transpose(_ints(iota[3]))
        return [[int(n) for n in row] for row in numbers.reshape(shape)]
    on_mesh = _ON_MESH.search(text)
    if on_mesh:
        return _mesh_groups(on_mesh)
    listed = re.search(r"replica_groups=\{(\{[\d,{} ]*\})\}", text) or re.search(
        r"source_target_pairs=\{(\{[\d,{} ]*\})\}", text
    )
    if listed:
        return [_ints(group) for group in re.findall(r"\{([\d, ]+)\}", listed[1])]
    return []


#: Axes of a mesh, the order of its devices where it is not their own, the axes of a group: whole ones or 'name':(before)size.
_ON_MESH = re.compile(
    r"replica_groups=@?mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))?\s*\{([^}]*)\}"
)


def _mesh_groups(found: re.Match[str]) -> list[list[int]]:
    sized = [(n, int(s)) for n, s in re.findall(r"'([^']+)'=(\d+)", found[1])]
    total = math.prod(s for _, s in sized)
    if total > 2**24:
        return []
    numbers = np.arange(total)
    if found[2]:
        dims = _ints(found[2])
        if math.prod(dims) != total:
            return []
        order = numbers.reshape(dims)
        numbers = (order.transpose(_ints(found[3])) if found[3] else order).reshape(-1)
    parts = {
        n: (int(before or 1), int(size or 0))
        for n, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", found[4])
    }
    shape: list[int] = []
    used: list[int] = []
    for name, size in sized:
        before, mine = parts.get(name, (1, 0))
        mine = mine or (size if name in parts else 1)
        if size % (before * mine):
            return []
        used += [len(shape) + 1] if name in parts else []
        shape += [before, mine, size // (before * mine)]
    rest = [k for k in range(len(shape)) if k not in used]
    return [
        [int(n) for n in row]
        for row in numbers.reshape(shape).transpose([*rest, *used]).reshape(-1, math.prod(shape[k] for k in used))
    ]


def _ints(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n.strip()]


def _number(value: Any) -> float:
    try:
        return max(0.0, float(value))
    except (TypeError, ValueError):
        return 0.0


def _canonical(shapes: tuple[Shape, ...]) -> str:
    if not shapes:
        return "fp32"
    largest = max(shapes, key=lambda s: s.bytes)
    try:
        return canonical(largest.dtype)
    except InputError:
        return largest.dtype


def _operand_dtype(i: Instruction, table: Mapping[str, Instruction]) -> str:
    kinds = [_canonical(table[n].shapes) for n in i.operands[:2] if n in table]
    known = [k for k in kinds if _has_size(k)]
    return max(known, key=dtype_bytes) if known else _canonical(i.shapes)


def _has_size(kind: str) -> bool:
    try:
        dtype_bytes(kind)
    except InputError:
        return False
    return True


def _matmul(i: Instruction, table: Mapping[str, Instruction]) -> tuple[float, float, float, float] | None:
    """(rows, contraction, columns, batch) of a dot; of a convolution only where it is a plain matmul."""
    shapes = [table[n].shapes[0] for n in i.operands[:2] if n in table and table[n].shapes]
    if len(shapes) < 2 or not i.shapes or i.opcode != "dot":
        return None
    contracted = _dims("lhs_contracting_dims", i.attributes)
    batched = _dims("lhs_batch_dims", i.attributes)
    k = math.prod(shapes[0].sizes[d] for d in contracted)
    b = math.prod(shapes[0].sizes[d] for d in batched)
    return shapes[0].elements / (k * b), float(k), shapes[1].elements / (k * b), float(b)


def _dims(name: str, text: str) -> list[int]:
    match = re.search(name + r"=\{([\d,]*)\}", text)
    return _ints(match[1]) if match else []


def _flops(i: Instruction, table: Mapping[str, Instruction]) -> float:
    """Multiply-adds times two, exactly: positions of a window that fall outside of the array are not counted."""
    shapes = [table[n].shapes[0] for n in i.operands[:2] if n in table and table[n].shapes]
    if len(shapes) < 2 or not i.shapes:
        return 0.0
    out = i.shapes[0]
    if i.opcode == "dot":
        return 2.0 * out.elements * math.prod(shapes[0].sizes[d] for d in _dims("lhs_contracting_dims", i.attributes))
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", i.attributes)
    if not labels:
        return 0.0
    lhs, kernel, result = labels[1], labels[2], labels[3]
    flops = 2.0 * out.sizes[result.index("b")] * out.sizes[result.index("f")] * shapes[1].sizes[kernel.index("i")]
    window = re.search(r"window=\{([^}]*)\}", i.attributes)
    given = dict(part.split("=") for part in window[1].split()) if window else {}
    spatial = sorted(c for c in result if c.isdigit())
    for index, c in enumerate(spatial):

        def value(key: str, default: str, index: int = index) -> str:
            return given[key].split("x")[index] if key in given else default

        outputs, positions = out.sizes[result.index(c)], shapes[1].sizes[kernel.index(c)]
        length = shapes[0].sizes[lhs.index(c)]
        stride, dilate, spread = int(value("stride", "1")), int(value("rhs_dilate", "1")), int(value("lhs_dilate", "1"))
        low = int(value("pad", "0_0").split("_")[0])
        flops *= _inside(outputs, positions, length, stride, dilate, spread, low)
    return flops


@functools.lru_cache(maxsize=4096)
def _inside(outputs: int, positions: int, length: int, stride: int, dilate: int, spread: int, low: int) -> float:
    """Pairs of (output, window position) that read an element of the array and not of its padding or its holes."""
    if outputs * positions > 50_000_000:
        return float(outputs) * positions
    p = np.arange(outputs)[:, None] * stride - low + np.arange(positions)[None, :] * dilate
    return float(((p >= 0) & (p % spread == 0) & (p // spread < length)).sum())


def memory_spaces(text: str) -> dict[str, int]:
    """How many arrays of the module's text live in each memory space: S(1) is VMEM on TPUs, S(5) the host."""
    return dict(sorted((k, len(list(v))) for k, v in itertools.groupby(sorted(re.findall(r"S\((\d+)\)", text)))))
