"""All ways to lay mesh axes on the dimensions of a network."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rooftop.errors import InputError
from rooftop.hardware import Slice
from rooftop.roofline._network import Placement, dimensions

IntArray = NDArray[np.int64]


def divisors(n: int) -> list[int]:
    """All divisors of n, ascending."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def placements(used: Sequence[int], wanted: IntArray) -> tuple[IntArray, IntArray]:
    """All placements of the wanted meshes on dimensions of the given sizes.

    wanted: ways of each mesh axis, shape [meshes, axes], every row a way to write the product of `used`.
    Returns (index into wanted, shape [n], ascending; factors, shape [n, dimensions, axes]).
    """
    axes = wanted.shape[1]
    if not used or not len(wanted):
        count = len(wanted) if not used else 0
        return np.arange(count), np.ones((count, len(used), axes), dtype=np.int64)
    options = [_factorings(size, axes) for size in used[:-1]]
    rows: list[IntArray] = []
    for mesh in wanted:
        left = mesh[None, :]
        taken = np.ones((1, 0, axes), dtype=np.int64)
        for each in options:
            fitting = each[(mesh % each == 0).all(axis=1)]
            first, second = np.nonzero((left[:, None, :] % fitting[None, :, :] == 0).all(axis=2))
            left = left[first] // fitting[second]
            taken = np.concatenate([taken[first], fitting[second][:, None, :]], axis=1)
        # what is left lies on the last dimension: the numbers of chips agree
        rows.append(np.concatenate([taken, left[:, None, :]], axis=1))
    counts = [len(r) for r in rows]
    return np.repeat(np.arange(len(wanted)), counts), np.concatenate(rows)


@functools.lru_cache(maxsize=4096)
def _factorings(size: int, axes: int) -> IntArray:
    """All ways to write `size` as a product of one factor for each of some axes, in order; [n, axes]."""
    rows: list[tuple[tuple[int, ...], int]] = [((), size)]
    for position in range(axes):
        last = position == axes - 1
        rows = [((*row, d), rest // d) for row, rest in rows for d in ([rest] if last else divisors(rest))]
    return np.array([row for row, _ in rows], dtype=np.int64).reshape(len(rows), axes)


def single_placements(used: Sequence[int], ways: int) -> IntArray:
    """All ways to take a group of `ways` chips from dimensions of the given sizes, next to each other; [n, dimensions]."""
    rows: list[tuple[int, ...]] = [()]
    for size in used:
        rows = [
            (*row, d)
            for row in rows
            for d in divisors(size)
            if (ways // math.prod(row)) % d == 0 and ways % math.prod(row) == 0
        ]
    kept = [row for row in rows if math.prod(row) == ways]
    return np.array(kept, dtype=np.int64).reshape(len(kept), len(used))


def placements_of(mesh: Mapping[str, int], where: Slice, order: Sequence[str] | None = None) -> list[Placement]:
    """All placements of a mesh on a slice, chips left over going to an axis of their own (outermost).

    Raises InputError if the mesh does not fit.
    """
    size = math.prod(mesh.values())
    if where.chips % size:
        raise InputError(
            f"the mesh {', '.join(f'{n}={s}' for n, s in mesh.items())} has {size} devices, which does not divide the"
            f" {where.chips} chips of {where.name}; choose axis sizes whose product does",
            field="mesh",
        )
    names = (*(order or tuple(mesh)), "(rest)")
    sizes = [dict(mesh).get(name, where.chips // size) for name in names]
    parts = dimensions(where.levels)
    _, factors = placements([d.size for d in parts], np.array([sizes], dtype=np.int64))
    if not len(factors):
        raise InputError(
            f"no side of {where.name} can be split into {', '.join(f'{n}={s}' for n, s in mesh.items())}", field="mesh"
        )
    return [
        Placement(parts, tuple({n: int(f) for n, f in zip(names, row, strict=True)} for row in each), names)
        for each in factors
    ]
