"""Optimizers as a table: what they keep for each parameter, and what their update costs beside reading and writing it.

| optimizer | states of a parameter | source |
| --- | --- | --- |
| adamw | two moments | Loshchilov and Hutter, 2019 |
| adafactor | the second moment of a matrix as row and column sums, no first one | Shazeer and Stern, 2018, section 3 |
| lion | one moment | Chen et al., 2023 |
| sgd-momentum | one moment | Sutskever et al., 2013 |
| muon | matrices of blocks: one moment, orthogonalised; all else as adamw | Jordan et al., 2024 |

States of 8 bits are quantised in blocks of 2,048 with a scale of fp32 each (Dettmers et al., 2022, section 2).
"""

from __future__ import annotations

from dataclasses import dataclass

from rooftop.arrays import Array, Program
from rooftop.errors import InputError, nearest
from rooftop.formula import Number, formula
from rooftop.units import dtype_bytes

#: Dtypes in which moments may be kept.
MOMENTS = ("fp32", "bf16", "fp16", "fp8", "int8")
#: Values of 8 bits that share one scale.
BLOCK = 2048
#: Iterations of Newton-Schulz in an update of Muon (Jordan et al., 2024).
NEWTON_SCHULZ = 5


@dataclass(frozen=True, slots=True)
class Optimizer:
    """One row of the table. moments: numbers kept for each parameter; matrix_moments: of a matrix in a block."""

    moments: float
    matrix_moments: float
    factored: bool = False  # row and column sums of every matrix instead
    orthogonal: bool = False  # updates of matrices in blocks are orthogonalised


OPTIMIZERS = {
    "adamw": Optimizer(2, 2),
    "adafactor": Optimizer(1, 0, factored=True),
    "lion": Optimizer(1, 1),
    "sgd-momentum": Optimizer(1, 1),
    "muon": Optimizer(2, 1, orthogonal=True),
}


def optimizer(name: str) -> Optimizer:
    """A row by name. Raises InputError."""
    if name not in OPTIMIZERS:
        raise InputError(
            f"unknown optimizer {name!r}{nearest(name, OPTIMIZERS)}; use one of {', '.join(OPTIMIZERS)}",
            field="optimizer",
        )
    return OPTIMIZERS[name]


def moment_bytes(kind: str) -> float:
    """Bytes of one number of a moment, with its part of a scale."""
    size = dtype_bytes(kind)
    return size + (4 / BLOCK if size == 1 else 0.0)


@formula("newton_schulz", "FLOP", "Jordan et al., 2024: X·X', its square, and its product with X, five times")
def newton_schulz_flops(small: Number, large: Number) -> Number:
    """FLOPs to orthogonalise a matrix of small x large: each iteration has 2·s²·l, 2·s³ and 2·s²·l."""
    return NEWTON_SCHULZ * (4 * small * small * large + 2 * small * small * small)


def matrix_axes(program: Program, weight: Array) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """(axes summed over, axes made) of a weight as the matrix of a matmul; axes in both arrays count matrices. None for what
    is no matrix.
    """
    for op in program.ops:
        if op.kind != "einsum" or weight.name not in op.inputs:
            continue
        (other,) = (n for n in op.inputs if n != weight.name) if len(op.inputs) == 2 else (None,)
        if other is None:
            return None
        there, out = program.array(other).axes, program.array(op.output).axes
        rows = tuple(a for a in weight.axes if a in there and a not in out)
        columns = tuple(a for a in weight.axes if a in out and a not in there)
        return (rows, columns) if rows and columns else None
    return None
