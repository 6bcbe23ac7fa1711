"""A whole program under a sharding table: its local ops and the collectives, forward, backward and at the update.

Rules that are stated once and hold throughout:

- Weights are stored by layout "weight" and used by layout "weight_use"; the algebra brings activations to the
  weights.
- An op's work is split one way, forward and backward (see `_place`). The array that it makes ends in the sharding of
  its layout.
- What was gathered is at hand for the rest of the pass; nothing gathered is kept from forward to backward.
- All parts of a gradient are summed locally first and reduced once, straight into the sharding that the backward of
  the op needs that made the array. A part that is whole on every device of a mesh axis joins parts that are unreduced
  over it by counting on one device only, which is free.
- The gradient of a weight ends in layout "gradient", unreduced over the mesh axes whose sum waits for the update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rooftop.arrays._collective import Collective
from rooftop.arrays._size import Size
from rooftop.arrays._types import Array, Program, Rules, Sharding, shard

ONE = Size()


@dataclass(frozen=True, slots=True)
class LocalOp:
    """What one device computes in one op of one phase. All sizes are of one device's blocks, as monomials.

    `op` is the name of the program's op; `kind` its kind; `phase` is "forward" or "backward"; `makes` names the array
    that it makes (`d_W` is the gradient of W). `flops` run on the matrix unit, `vector_flops` on the vector unit.
    `takes` and `gives` are the blocks that go in and come out, by name and sharding. `reads` and `writes` are in
    bytes, one entry an array, without arrays that live and die inside a fused kernel; an array that several ops of
    one fused kernel read is counted at the first of them. For an einsum, `batch` are the axes in both inputs and the
    output, `rows` those of the first input and the output, `columns` those of the second input and the output and
    `contraction` those that are summed. `again` marks an op of the forward pass that a fused kernel computes a second
    time in the backward pass because it did not keep what is inside it.
    """

    op: str
    kind: str
    phase: str
    makes: str
    takes: tuple[tuple[str, Sharding], ...] = ()
    gives: tuple[tuple[str, Sharding], ...] = ()
    flops: Size | None = None
    vector_flops: Size | None = None
    reads: tuple[Size, ...] = ()
    writes: tuple[Size, ...] = ()
    batch: Size = ONE
    rows: Size = ONE
    contraction: Size = ONE
    columns: Size = ONE
    fused: str | None = None
    part: str = ""
    again: bool = False
    dtype: str = "bf16"


@dataclass(frozen=True, slots=True)
class Move:
    """A collective of a program: the op that forced it, the phase ("forward", "backward", "update"), what it moves.

    `role` is "weight", "gradient" (of a weight) or "activation" (and gradients of activations).
    """

    collective: Collective
    op: str
    phase: str
    role: str
    part: str = ""


Step = LocalOp | Move


@dataclass(frozen=True, slots=True)
class ResolvedProgram:
    """The steps of a program in order, and what follows from its shardings.

    `update` holds what the end of a step costs once, however many microbatches there were: the reduction of gradients
    into the optimizer's sharding and the gathering of the new weights out of it. `gradients` is the sharding in which
    each weight's gradient is accumulated. `divisible` are the pairs (array axis, mesh axes) where the product of the
    mesh axes must divide the axis for all shardings, on the way too, to be legal.
    """

    program: Program
    forward: tuple[Step, ...]
    backward: tuple[Step, ...]
    update: tuple[Move, ...]
    gradients: Mapping[str, Sharding]
    divisible: tuple[tuple[str, tuple[str, ...]], ...]

    def moves(self, phase: str) -> tuple[Move, ...]:
        """The collectives of a phase."""
        steps = {"forward": self.forward, "backward": self.backward, "update": self.update}[phase]
        return tuple(step for step in steps if isinstance(step, Move))


def weight_sharding(weight: Array, rules: Rules, kind: str) -> Sharding:
    """How a weight is split as "weight" (stored), "weight_use", "gradient" or "optimizer"."""
    if kind == "weight":
        return shard(weight, rules)
    prefix = weight.layout.removesuffix("weight")
    fallbacks = {"optimizer": "gradient"}
    row: str | None = kind
    while row is not None:
        for name in (f"{prefix}{row}", row):
            if name in rules:
                return shard(replace(weight, layout=name), rules)
        row = fallbacks.get(row)
    return shard(weight, rules)


def fused_only(program: Program) -> set[str]:
    """Arrays that are made and read inside one fused kernel only: they are never in memory."""
    readers: dict[str, set[str | None]] = {}
    for op in program.ops:
        for name in op.inputs:
            readers.setdefault(name, set()).add(op.fused)
    return {op.output for op in program.ops if op.fused is not None and readers.get(op.output) == {op.fused}}


def trained(program: Program) -> set[str]:
    """Names of the arrays that have a gradient: weights, inputs that are not integers, and what is made of either."""
    found = {
        array.name
        for array in program.arrays
        if array.role in ("weight", "input") and not array.dtype.startswith(("int", "uint"))
    }
    for op in program.ops:
        if found.intersection(op.inputs) and not program.array(op.output).dtype.startswith(("int", "uint")):
            found.add(op.output)
    return found


def saved(program: Program) -> tuple[Array, ...]:
    """The activations that the backward pass reads, without those inside fused kernels (which compute them again).

    An einsum reads an input where another input has a gradient, a map that is not linear reads all of its inputs.
    """
    gradients, private = trained(program), fused_only(program)
    read: set[str] = set()
    for op in program.ops:
        if op.kind in ("lookup", "route") or op.linear or op.output not in gradients:
            continue
        for i, name in enumerate(op.inputs):
            others = (*op.inputs[:i], *op.inputs[i + 1 :])
            if op.kind != "einsum" or gradients.intersection(others):
                read.add(name)
    return tuple(
        array for array in program.arrays if array.name in read - private and array.role in ("activation", "input")
    )
