"""Parameters, FLOPs and caches, counted from the programs: there is no second formula for any of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from rooftop.arrays import Op, Program, Size
from rooftop.shown import Shown
from rooftop.transformer._architecture import Architecture
from rooftop.transformer._builder import Cache
from rooftop.transformer._documents import Documents
from rooftop.transformer._program import Block, programs
from rooftop.units import dtype_bytes

#: Axes of a program that a token does not meet whole: experts.
_EXPERTS = "E"


@dataclass(frozen=True, slots=True)
class Parameters:
    """Exact parameter counts. `active` are those that one token of text meets: all but experts that it is not routed to,
    and towers for other senses. `parts` sum to the total. `beside` is in the checkpoint and not in the total: heads that
    predict further ahead.
    """

    total: int
    active: int
    parts: dict[str, int]
    beside: dict[str, int] = field(default_factory=dict)


@functools.lru_cache(maxsize=256)
def parameters(arch: Architecture) -> Parameters:
    """Count the weights of all programs; tied ones once."""
    parts: dict[str, int] = {}
    active = 0.0
    seen: set[str] = set()
    every = programs(arch, 1024)
    for program, count in every.every:
        part_of = {name: op.part for op in program.ops for name in op.inputs}
        for weight in program.weights:
            if weight.name == "embedding":
                if weight.name in seen:
                    continue
                seen.add(weight.name)
            size = count * weight_size(program, weight.axes)
            part = part_of[weight.name]
            parts[part] = parts.get(part, 0) + size
            active += size * _met(program, weight.axes, arch)
    for block in every.towers:
        name = block.program.name.split()[0]
        parts[name] = parts.get(name, 0) + _all_weights(block)
    beside = sum(_all_weights(block) for block in every.extra)
    return Parameters(sum(parts.values()), round(active), parts, {"extra heads": beside} if beside else {})


def _all_weights(block: Block) -> int:
    return block.count * sum(weight_size(block.program, w.axes) for w in block.program.weights)


def weight_size(program: Program, axes: tuple[str, ...]) -> int:
    """Elements of a weight. Raises TypeError if its size depends on the batch."""
    sizes = [program.axes[axis] for axis in axes]
    if any(isinstance(size, Size) for size in sizes):
        raise TypeError(f"the size of a weight of {program.name} depends on the batch")
    return math.prod(size for size in sizes if not isinstance(size, Size))


def _met(program: Program, axes: tuple[str, ...], arch: Architecture) -> float:
    """The part of a weight that one token meets: of experts, the slots that it takes over their number."""
    slots = program.axes.get("C")
    if _EXPERTS not in axes or not isinstance(slots, Size):
        return 1.0
    spec = arch.experts
    experts = program.axes[_EXPERTS]
    assert isinstance(experts, int)
    return slots.coefficient / (spec.capacity_factor if spec else 1.0) / experts


@dataclass(frozen=True, slots=True)
class Flops:
    """FLOPs for one token at a sequence length. Training is forward and backward: three times the forward matmuls.

    `matmul` are matmuls with weights; `attention` the products of queries, keys and values (and of an indexer), counted
    exactly for causal attention (T+1 of 2T points; a window or a choice of keys cuts further), `attention_book` by the
    book's convention, every point; `scan` recurrences. `parts` holds all but the convention. Slots of experts that stay
    empty do not count.
    """

    matmul: float
    attention: float
    attention_book: float
    scan: float
    parts: dict[str, float]

    @property
    def forward(self) -> float:
        """Matmuls with weights, exact causal attention, recurrences."""
        return self.matmul + self.attention + self.scan


@functools.lru_cache(maxsize=512)
def flops_per_token(arch: Architecture, seq: int, documents: Documents | None = None) -> Flops:
    """Forward FLOPs of one token in a sequence of `seq`, from the einsums and scans of the programs. documents: the pieces
    of documents that fill the sequences, each one document unless given.
    """
    matmul = attention = whole = scan = 0.0
    parts: dict[str, float] = {}
    for program, count in programs(arch, seq, documents).every:
        for op in program.ops:
            points = count * _points(program, op) / seq / _spare(program, op, arch)
            if op.kind == "scan":
                work = op.flops * points
                scan += work
            elif op.kind == "einsum":
                work = 2 * points * op.fraction
                if any(program.array(name).role == "weight" for name in op.inputs):
                    matmul += work
                else:
                    attention += work
                    whole += 2 * points
            else:
                continue
            parts[op.part] = parts.get(op.part, 0.0) + work
    return Flops(matmul, attention, whole, scan, parts)


def _spare(program: Program, op: Op, arch: Architecture) -> float:
    """Slots of experts for each token that takes one: work on slots that stay empty is of no use to a token."""
    spec = arch.experts
    empty = spec is not None and any("C" in program.array(name).axes for name in op.inputs)
    return spec.capacity_factor if spec is not None and empty else 1.0


def _points(program: Program, op: Op) -> float:
    """Points of an op's index space for one sequence: of an einsum all axes, of a scan those of its output."""
    arrays = (op.output,) if op.kind == "scan" else (*op.inputs, op.output)
    axes = dict.fromkeys(axis for name in arrays for axis in program.array(name).axes)
    return math.prod(axis_size(program, axis) for axis in axes)


def axis_size(program: Program, axis: str) -> float:
    """The size of an axis for one sequence."""
    known: Mapping[str, float] = {"B": 1.0} | {n: float(s) for n, s in program.axes.items() if not isinstance(s, Size)}
    size = program.axes.get(axis)
    return float(size(known)) if isinstance(size, Size) else known[axis]


def training_flops_per_token(arch: Architecture, seq: int, documents: Documents | None = None) -> float:
    """Useful FLOPs of training for one token: forward, and twice that backward; attention counted exactly."""
    return 3 * flops_per_token(arch, seq, documents).forward


def _entry(block: Block, cache: Cache, dtype: str) -> float:
    program = block.program
    return block.count * math.prod(axis_size(program, a) for a in cache.axes) * dtype_bytes(cache.dtype or dtype)


@functools.lru_cache(maxsize=512)
def kv_bytes_per_token(arch: Architecture, dtype: str = "bf16") -> float:
    """Bytes that one more token adds to the caches while no window is full (book, section 4: 2·L·K·H values).

    A compressed cache counts its share of an entry; states of fixed size count nothing.
    """
    return sum(
        _entry(block, cache, dtype) / cache.every
        for block in programs(arch, 2**20).blocks
        for cache in block.caches
        if not cache.fixed
    )


@functools.lru_cache(maxsize=512)
def kv_cache_bytes(arch: Architecture, seq: int, dtype: str = "bf16") -> float:
    """Bytes of all caches and states of one sequence; layers with a window keep no more than it."""
    total = 0.0
    for block in programs(arch, seq).blocks:
        for cache in block.caches:
            entries = 1 if cache.fixed else seq // cache.every
            total += _entry(block, cache, dtype) * (min(entries, cache.window) if cache.window else entries)
    return total


def weight_bytes(arch: Architecture, dtype: str = "bf16") -> dict[str, float]:
    """Bytes of the stored weights by part: as the checkpoint has them quantised, the rest in `dtype`.

    Layers that predict further ahead are stored part by part like those of the stack.
    """
    formats, plain = dict(arch.formats), 8 * dtype_bytes(dtype)
    count = parameters(arch)
    stored = {part: n * formats.get(part, plain) / 8 for part, n in count.parts.items()}
    beside = 0.0
    for block in programs(arch, 1024).extra:
        part_of = {name: op.part for op in block.program.ops for name in op.inputs}
        for weight in block.program.weights:
            size = block.count * weight_size(block.program, weight.axes)
            beside += size * formats.get(part_of[weight.name], plain) / 8
    return stored | ({name: beside for name in count.beside})


@dataclass(frozen=True, slots=True)
class Model(Shown):
    """What an architecture counts, at a sequence length of `seq` tokens."""

    architecture: Architecture
    seq: int

    @property
    def parameters(self) -> Parameters:
        """Exact counts."""
        return parameters(self.architecture)

    @property
    def flops_per_token(self) -> Flops:
        """Forward; training takes three times the matmuls."""
        return flops_per_token(self.architecture, self.seq)

    @property
    def training_flops_per_token(self) -> float:
        """Forward and backward."""
        return training_flops_per_token(self.architecture, self.seq)

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of cache that one more token takes, in bf16."""
        return kv_bytes_per_token(self.architecture)
