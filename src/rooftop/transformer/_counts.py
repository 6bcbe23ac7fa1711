"""Parameters, FLOPs and caches, counted from the programs: there is no second formula for any of them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from rooftop.arrays import Op, Program, Size
from rooftop.transformer._architecture import Architecture
from rooftop.transformer._program import programs
from rooftop.units import dtype_bytes


@dataclass(frozen=True, slots=True)
class Parameters:
    """Exact parameter counts. `active` are those that one token meets."""

    total: int
    active: int
    parts: dict[str, int]


@functools.lru_cache(maxsize=128)
def parameters(arch: Architecture) -> Parameters:
    """Count the weights of all programs; tied ones once."""
    parts: dict[str, int] = {}
    seen: set[str] = set()
    for program, count in programs(arch, 1024).every:
        part_of = {name: op.part for op in program.ops for name in op.inputs}
        for weight in program.weights:
            if weight.name == "embedding":
                if weight.name in seen:
                    continue
                seen.add(weight.name)
            size = count * math.prod(_int(program.axes[axis]) for axis in weight.axes)
            part = part_of[weight.name]
            parts[part] = parts.get(part, 0) + size
    total = sum(parts.values())
    return Parameters(total, total, parts)


def _int(size: int | Size) -> int:
    if isinstance(size, Size):
        raise TypeError(f"the size {size} of a weight depends on the batch")
    return size


@dataclass(frozen=True, slots=True)
class Flops:
    """FLOPs for one token at a sequence length. Training is forward and backward: three times the forward matmuls.

    `matmul` are matmuls with weights; `attention` the two products of queries, keys and values, counted exactly for causal
    attention (T+1 of 2T points; a window cuts further), `attention_book` by the book's convention, every point.
    """

    matmul: float
    attention: float
    attention_book: float
    parts: dict[str, float]

    @property
    def forward(self) -> float:
        """Matmuls with weights and exact causal attention."""
        return self.matmul + self.attention


@functools.lru_cache(maxsize=256)
def flops_per_token(arch: Architecture, seq: int) -> Flops:
    """Forward FLOPs of one token in a sequence of `seq`, from the einsums of the programs."""
    matmul = attention = whole = 0.0
    parts: dict[str, float] = {}
    for program, count in programs(arch, seq).every:
        for op in program.ops:
            if op.kind != "einsum":
                continue
            points = count * _points(program, op) / seq
            parts[op.part] = parts.get(op.part, 0.0) + 2 * points * op.fraction
            if any(program.array(name).role == "weight" for name in op.inputs):
                matmul += 2 * points * op.fraction
            else:
                attention += 2 * points * op.fraction
                whole += 2 * points
    return Flops(matmul, attention, whole, parts)


def _points(program: Program, op: Op) -> float:
    axes = dict.fromkeys(axis for name in (*op.inputs, op.output) for axis in program.array(name).axes)
    return float(math.prod(1 if axis == "B" else _int(program.axes[axis]) for axis in axes))


def training_flops_per_token(arch: Architecture, seq: int) -> float:
    """Useful FLOPs of training for one token: forward, and twice that backward; attention counted exactly."""
    return 3 * flops_per_token(arch, seq).forward


def kv_bytes_per_token(arch: Architecture, dtype: str = "bf16") -> float:
    """Bytes that one more token adds to the KV cache while no window is full (book, section 4: 2·L·K·H values)."""
    return 2 * arch.layers * arch.kv_heads * arch.head_dim * dtype_bytes(dtype)


def kv_cache_bytes(arch: Architecture, seq: int, dtype: str = "bf16") -> float:
    """Bytes of the KV cache of one sequence; layers with a window keep no more than it."""
    kept = sum(min(seq, w) if w else seq for w in arch.windows) if arch.windows else arch.layers * seq
    return 2 * kept * arch.kv_heads * arch.head_dim * dtype_bytes(dtype)
