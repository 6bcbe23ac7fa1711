"""Matmuls in a low precision: which ops run in it, what their operands weigh, and the casts that they need.

Matmuls of blocks with their weights run in it, forward and backward; attention, routers, embedding and head do not (Micikevicius
et al., 2022; DeepSeek-V3 report, 2024, section 3.3.1). Every operand is cast from 16 bits when it is made: read once, with its
largest value, and written twice, since each of its two matmuls contracts another axis and wants its own layout. What crosses
the network stays in 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from rooftop.arrays import LocalOp, Program, Size
from rooftop.units import dtype_bytes

#: The rate of a chip that a low precision needs, and another one that tells that the chip has its scales.
RATES = {"fp8": ("fp8", None), "mxfp8": ("fp8", "fp4"), "nvfp4": ("fp4", None), "int8": ("int8", None)}
#: Elementwise FLOPs of a cast: the largest value, the scale, rounding.
_CAST = 3.0


def low_ops(program: Program) -> frozenset[str]:
    """Names of the ops of a block that run in a low precision: matmuls with a weight, routers aside."""
    return frozenset(
        op.name
        for op in program.ops
        if op.kind == "einsum"
        and op.fused is None
        and op.part != "router"
        and any(program.array(n).role == "weight" for n in op.inputs)
    )


def narrow_arrays(program: Program) -> frozenset[str]:
    """Activations that only matmuls in low precision read: kept for the backward pass as they read them."""
    low = low_ops(program)
    readers: dict[str, set[bool]] = {}
    for op in program.ops:
        if not op.linear:
            for name in op.inputs:
                readers.setdefault(name, set()).add(op.name in low)
    return frozenset(n for n, kinds in readers.items() if kinds == {True})


def lowered(program: Program, steps: Iterable[object], low: str, *, weight_gradients: bool) -> Iterator[object]:
    """The steps of a resolved program with narrow operands, and a cast before the first use of each in a pass."""
    ops, seen = low_ops(program), set()
    kept: set[str] = set()  # cast in the forward pass, for the backward pass as well
    share = dtype_bytes(low) / dtype_bytes("bf16")
    for step in steps:
        if not isinstance(step, LocalOp) or step.kind != "einsum" or step.op not in ops:
            yield step
            continue
        if is_weight_gradient(program, step) and not weight_gradients:
            yield step
            continue
        for name, sharding in step.takes:
            if name in kept or (step.phase, name) in seen:
                continue
            seen.add((step.phase, name))
            kept |= {name} if step.phase == "forward" else set()
            points = Size.of(program.array(name.removeprefix("d_")).axes, sharding.used)
            yield LocalOp(
                step.op, "cast", step.phase, name, vector_flops=points * _CAST, part="casts",
                reads=(points * dtype_bytes("bf16"),), writes=(points * (2 * dtype_bytes(low)),),
            )  # fmt: skip
        yield replace(step, reads=tuple(size * share for size in step.reads))


def is_weight_gradient(program: Program, step: LocalOp) -> bool:
    """Whether an einsum makes the gradient of a weight."""
    name = step.makes.removeprefix("d_")
    return step.makes != name and any(a.name == name and a.role == "weight" for a in program.arrays)
