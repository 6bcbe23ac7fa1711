"""All ways to lay mesh axes on the dimensions of a network."""

from __future__ import annotations

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
    limit = wanted.max(axis=0)
    # the first axis follows from the others, which are the digits of one number
    weights = np.concatenate([[1], np.cumprod(limit[1:-1] + 1)]).astype(np.int64)

    def key(rows: IntArray) -> IntArray:
        return np.asarray(rows[..., 1:] @ weights, dtype=np.int64)

    partial: IntArray = np.ones((1, 0, axes), dtype=np.int64)
    product: IntArray = np.ones((1, axes), dtype=np.int64)
    for position, size in enumerate(used):
        options = _factorings(size, tuple(int(x) for x in limit))
        joined = product[:, None, :] * options[None, :, :]
        ok = (joined <= limit).all(axis=2)
        left, right = np.nonzero(ok)
        product = joined[left, right]
        partial = np.concatenate([partial[left], options[right][:, None, :]], axis=1)
        if position == len(used) - 1:
            break
    keys = key(product)
    order = np.argsort(key(wanted), kind="stable")
    ordered = key(wanted)[order]
    at = np.searchsorted(ordered, keys)
    at = np.minimum(at, len(ordered) - 1)
    found = ordered[at] == keys
    index = order[at[found]]
    factors = partial[found]
    by_mesh = np.argsort(index, kind="stable")
    return index[by_mesh], factors[by_mesh]


_cache: dict[tuple[int, tuple[int, ...]], IntArray] = {}


def _factorings(size: int, limit: tuple[int, ...]) -> IntArray:
    """All ways to write `size` as a product of one factor for each mesh axis, each at most its limit; [n, axes]."""
    if (size, limit) not in _cache:
        rows: list[tuple[int, ...]] = [()]
        left: list[int] = [size]
        for axis in range(len(limit)):
            new_rows: list[tuple[int, ...]] = []
            new_left: list[int] = []
            last = axis == len(limit) - 1
            for row, rest in zip(rows, left, strict=True):
                for d in [rest] if last else divisors(rest):
                    if d <= limit[axis]:
                        new_rows.append((*row, d))
                        new_left.append(rest // d)
            rows, left = new_rows, new_left
        if len(_cache) > 4096:
            _cache.clear()
        _cache[size, limit] = np.array(rows, dtype=np.int64).reshape(-1, len(limit))
    return _cache[size, limit]


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
    return np.array(kept, dtype=np.int64).reshape(-1, len(used))


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
