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
    return list(_divisors(n))


@functools.lru_cache(maxsize=4096)
def _divisors(n: int) -> tuple[int, ...]:
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return (*small, *(n // d for d in reversed(small) if d * d != n))


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


def count_placements(used: Sequence[int], wanted: IntArray) -> IntArray:
    """How many rows `placements` has for each of the wanted meshes; shape [meshes].

    Prime by prime: the exponents of a placement are a table of non-negative integers whose rows add up to those of the
    dimensions and whose columns to those of the mesh axes.
    """
    result = np.ones(len(wanted), dtype=np.int64)
    if not used or not len(wanted):
        return result
    for prime in _primes(math.prod(used)):
        sums = tuple(sorted(_power(prime, size) for size in used))
        powers = np.sort(np.vectorize(functools.partial(_power, prime), otypes=[np.int64])(wanted), axis=1)
        distinct, which = np.unique(powers, axis=0, return_inverse=True)
        counts = [_tables(sums, tuple(row)) for row in distinct.tolist()]
        result *= np.array(counts, dtype=np.int64)[np.ravel(which)]
    return result


def _primes(n: int) -> list[int]:
    return [d for d in divisors(n) if d > 1 and len(divisors(d)) == 2]


@functools.lru_cache(maxsize=65536)
def _power(prime: int, n: int) -> int:
    """How often a prime divides n."""
    count = 0
    while n % prime == 0:
        n, count = n // prime, count + 1
    return count


@functools.lru_cache(maxsize=65536)
def _tables(rows: tuple[int, ...], columns: tuple[int, ...]) -> int:
    """Tables of non-negative integers with these sums of rows and (ascending) columns; the sums add up to the same."""
    if len(rows) == 1:
        return 1
    lefts: list[tuple[tuple[int, ...], int]] = [((), rows[0])]
    for i, column in enumerate(columns):
        after = sum(columns[i + 1 :])
        lefts = [((*t, column - k), r - k) for t, r in lefts for k in range(max(0, r - after), min(r, column) + 1)]
    return sum(_tables(rows[1:], tuple(sorted(left))) for left, _ in lefts)


def single_placements(used: Sequence[int], ways: int) -> IntArray:
    """All ways to take a group of `ways` chips from dimensions of the given sizes, next to each other; [n, dimensions]."""
    rows = _splits(tuple(used), ways)
    return np.array(rows, dtype=np.int64).reshape(len(rows), len(used))


@functools.lru_cache(maxsize=65536)
def _splits(used: tuple[int, ...], ways: int) -> tuple[tuple[int, ...], ...]:
    """All ways to write `ways` as a product of divisors of the given sizes."""
    if not used:
        return ((),) if ways == 1 else ()
    here = _divisors(math.gcd(used[0], ways))
    return tuple((d, *rest) for d in here for rest in _splits(used[1:], ways // d))


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
