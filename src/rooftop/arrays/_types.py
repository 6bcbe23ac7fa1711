"""Axes, arrays, meshes and shardings. Nothing here knows of time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from rooftop.arrays._size import Size
from rooftop.errors import InputError


@dataclass(frozen=True, slots=True)
class Axis:
    """A named axis of an array; printed as `D(8192)`."""

    name: str
    size: int

    def __str__(self) -> str:
        return f"{self.name}({self.size})"


@dataclass(frozen=True, slots=True)
class Mesh:
    """Named mesh axes and their sizes, major to minor."""

    axes: tuple[Axis, ...]

    @staticmethod
    def of(sizes: Mapping[str, int]) -> Mesh:
        return Mesh(tuple(Axis(name, size) for name, size in sizes.items()))

    @property
    def sizes(self) -> dict[str, int]:
        return {axis.name: axis.size for axis in self.axes}

    @property
    def devices(self) -> int:
        return math.prod(axis.size for axis in self.axes)


@dataclass(frozen=True, slots=True)
class Array:
    """A named array with named axes.

    `layout` names the row of the sharding table that says how the array is split ("weight", "residual", "inner", ...);
    `role` says what it is for memory: a weight is stored and trained, an activation is made by an op, a cache stays
    between steps, an input comes from outside (tokens) and needs no gradient.
    """

    name: str
    axes: tuple[str, ...]
    dtype: str = "bf16"
    role: str = "activation"
    layout: str = "inner"


@dataclass(frozen=True, slots=True)
class Sharding:
    """How an array is split: for each array axis the mesh axes on it (major to minor), and the axes not yet summed.

    Printed, with the array, in the notation of the book: `A[I_XY, J]{U_Z}`.
    """

    axes: tuple[tuple[str, ...], ...]
    unreduced: tuple[str, ...] = ()

    @property
    def used(self) -> tuple[str, ...]:
        """Mesh axes that split the array, in array order."""
        return tuple(name for axis in self.axes for name in axis)

    def of_axis(self, array: Array, axis: str) -> tuple[str, ...]:
        return self.axes[array.axes.index(axis)]


#: Sharding rules: layout -> array axis -> mesh axes, major to minor. An axis that is not named is not split.
Rules = Mapping[str, Mapping[str, tuple[str, ...]]]


def shard(array: Array, rules: Rules) -> Sharding:
    """The sharding that the rules give an array.

    Where two axes of it ask for one mesh axis, the first has it: attention scores [.., T, S] are split over the
    context axis along T only.
    """
    row = rules.get(array.layout, {})
    used: set[str] = set()
    axes: list[tuple[str, ...]] = []
    for axis in array.axes:
        mine = tuple(m for m in row.get(axis, ()) if m not in used)
        used.update(mine)
        axes.append(mine)
    return Sharding(tuple(axes))


def checked(
    array: Array, sharding: Sharding, sizes: Mapping[str, int] | None = None, mesh: Mesh | None = None
) -> Sharding:
    """Return the sharding if it is legal for the array, else raise InputError that names array, axis and mesh axis."""
    seen: dict[str, str] = {}
    for axis, names in zip(array.axes, sharding.axes, strict=True):
        for name in names:
            if name in seen:
                raise InputError(
                    f"{array.name} uses mesh axis {name} twice (on {seen[name]} and on {axis});"
                    " a mesh axis may split one axis of an array only",
                    field=array.name,
                )
            seen[name] = axis
    for name in sharding.unreduced:
        if sharding.unreduced.count(name) > 1:
            raise InputError(f"{array.name} names mesh axis {name} twice as unreduced; name it once", field=array.name)
        if name in seen:
            raise InputError(
                f"{array.name} is both split over mesh axis {name} (on {seen[name]}) and unreduced over it; choose one",
                field=array.name,
            )
    if mesh is not None:
        known = mesh.sizes
        for name in (*seen, *sharding.unreduced):
            if name not in known:
                raise InputError(
                    f"{array.name} uses mesh axis {name}, which is not in the mesh ({', '.join(known)})",
                    field=array.name,
                )
        if sizes is not None:
            for axis, names in zip(array.axes, sharding.axes, strict=True):
                if axis not in sizes:
                    raise InputError(
                        f"axis {axis} of {array.name} has no size; give one, as in {axis}=8192", field=axis
                    )
                ways = math.prod(known[name] for name in names)
                if sizes[axis] % ways:
                    raise InputError(
                        f"{'x'.join(f'{n}={known[n]}' for n in names)} ({ways} ways) does not divide axis"
                        f" {axis}({sizes[axis]}) of {array.name}; use a divisor of {sizes[axis]}",
                        field=array.name,
                    )
    return sharding


def local_size(array: Array, sharding: Sharding) -> Size:
    """Elements of one device's block, as a monomial."""
    return Size.of(array.axes, sharding.used)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a program.

    kind "einsum": the output is the sum over all axes that inputs have and the output lacks; FLOPs are 2 x product of
    all axes x `fraction`. kind "map": any elementwise or normalising op on arrays whose axes match by position up to
    renaming (`T` of a key becomes `S`); FLOPs are `flops` per element of the output, on the vector unit. kind
    "lookup": rows of a table picked by index (embedding); the table is the first input. kind "route": elements are
    moved between axes locally (tokens into experts). kind "scan": a recurrence along an axis, `flops` per output
    element on the matrix unit. kind "loss": everything after the logits.

    `fused` names a kernel: arrays made and used only inside it are not written to memory.
    `fraction` is the part of an einsum's points that is computed (causal mask, window); `uneven` says how far chance moves
    it: (spread, most), the work of t tokens has a standard deviation of spread/sqrt(t) of its mean and is at most `most` of it.
    `linear` says of a map that its derivative needs none of its inputs (sum, rotation, renaming), so that none is kept.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    output: str
    flops: float = 0.0
    fused: str | None = None
    fraction: float = 1.0
    part: str = ""
    linear: bool = False
    uneven: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A straight list of ops on named-axis arrays; weights and inputs are arrays that no op makes.

    `axes` gives each axis a size: a number, or a Size in other axes (`C = 2·B·T/E`). `B` (sequences) is left
    open: whoever runs the program chooses it.
    """

    name: str
    axes: Mapping[str, int | Size]
    arrays: tuple[Array, ...]
    ops: tuple[Op, ...]
    _by_name: Mapping[str, Array] = field(default_factory=dict, repr=False, compare=False)

    def array(self, name: str) -> Array:
        if not self._by_name:
            object.__setattr__(self, "_by_name", {array.name: array for array in self.arrays})
        return self._by_name[name]

    @property
    def weights(self) -> tuple[Array, ...]:
        return tuple(array for array in self.arrays if array.role == "weight")
