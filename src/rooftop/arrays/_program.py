"""A whole program under a sharding table: its local ops and the collectives, forward, backward and at the update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rooftop.arrays._collective import Collective
from rooftop.arrays._size import Size
from rooftop.arrays._types import Array, Mesh, Program, Rules, Sharding

ONE = Size()


@dataclass(frozen=True, slots=True)
class LocalOp:
    """What one device computes in one op of one phase. All sizes are of one device's blocks, as monomials.

    `op` is the name of the program's op; `kind` its kind; `phase` is "forward" or "backward"; `makes` names the array
    that it makes (`dW` is the gradient of W). `flops` run on the matrix unit, `vector_flops` on the vector unit.
    `reads` and `writes` are in bytes, one entry an array, without arrays that live and die inside a fused kernel; an
    array that several ops of one fused kernel read is counted at the first of them. For an einsum, `batch` are the
    axes in both inputs and the output, `rows` those of the first input and the output, `columns` those of the second
    input and the output and `contraction` those that are summed. `again` marks an op of the forward pass that a fused
    kernel computes a second time in the backward pass because it did not keep what is inside it.
    """

    op: str
    kind: str
    phase: str
    makes: str
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
    """A collective of a program: the op that forced it, the phase ("forward", "backward", "update"), and what it moves.

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
    mesh axes must divide the axis for the shardings to be legal.
    """

    program: Program
    forward: tuple[Step, ...]
    backward: tuple[Step, ...]
    update: tuple[Move, ...]
    shardings: Mapping[str, Sharding]
    gradients: Mapping[str, Sharding]
    divisible: tuple[tuple[str, tuple[str, ...]], ...]

    def moves(self, phase: str) -> tuple[Move, ...]:
        """The collectives of a phase."""
        steps = {"forward": self.forward, "backward": self.backward, "update": self.update}[phase]
        return tuple(step for step in steps if isinstance(step, Move))


def resolve_program(
    program: Program,
    rules: Rules,
    mesh: Mesh,
    *,
    sizes: Mapping[str, int] | None = None,
    weight_use: str = "weight_use",
    gradient_unreduced: tuple[str, ...] = (),
    gradient_dtype: str | None = None,
) -> ResolvedProgram:
    """Resolve `program` forward and backward under `rules`.

    `mesh` and `sizes` (of axes that the program leaves open, `B`) are representative: they decide between ways that
    are all legal and whose order depends on sizes; every Size of the answer holds for any mesh. Rows of `rules`: one
    for each layout of the program's arrays ("weight": as stored), and `weight_use` (weights as ops use them; without
    that row, as stored), "gradient" (gradients of weights as accumulated; without it, as the weights are stored) and
    "optimizer" (optimizer states; without it, as the gradients). Over the mesh axes `gradient_unreduced` the sum of
    weight gradients is put off to the update.
    """
    raise NotImplementedError


def saved(program: Program) -> tuple[Array, ...]:
    """The arrays made in the forward pass that the backward pass reads, without those inside fused kernels."""
    raise NotImplementedError
