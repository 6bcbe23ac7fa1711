"""A resolved program compiled to terms: local work and transfers as indices into its distinct sizes.

What a program does (which kernels, which collectives) does not depend on the sizes of mesh axes: an axis of size 1 makes its
collectives free. So a program is resolved and compiled once, and questions fill in numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rooftop.arrays import Array, LocalOp, Move, ResolvedProgram, Rules, Size, shard, weight_sharding
from rooftop.costing._axes import INNER_AXES, outer_name
from rooftop.formula import Number
from rooftop.units import dtype_bytes


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel of one pass: a matmul, a fused kernel, or an elementwise op. Integers index `Terms.sizes`."""

    name: str
    ops: tuple[str, ...]
    phase: str
    part: str
    fused: bool
    bytes: tuple[int, ...]
    flops: tuple[int, ...]  # on the matrix unit
    vector: tuple[int, ...]  # elementwise
    matmul: tuple[int, int, int, int] | None = None  # rows, contraction, columns, batch
    scale: float = 1.0  # FLOPs per point of the matmul
    weight: str = ""  # dtype of the weight that it multiplies with, if any
    weight_gradient: bool = False  # whether it makes the gradient of a weight
    uneven: Uneven | None = None


@dataclass(frozen=True, slots=True)
class Uneven:
    """A kernel whose FLOPs chance moves from chip to chip; integers index `Terms.sizes`.

    The work of t tokens has a standard deviation of spread/sqrt(t) of its mean, and is at most `most` of it. tokens: of one
    chip; chips: that have tokens of their own.
    """

    spread: float
    most: float
    tokens: int
    chips: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """One collective of one pass."""

    title: str
    kind: str
    axes: tuple[str, ...]
    axis: str  # the axes as users name them
    op: str
    phase: str
    overlap: str  # prefetch, ring or critical
    bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Terms:
    """One program: what it does, as indices into its distinct sizes."""

    name: str
    sizes: tuple[Size, ...]
    works: tuple[Work, ...]
    transfers: tuple[Transfer, ...]
    #: sizes of axes that other programs of the model have otherwise
    own: Mapping[str, int] = field(default_factory=dict, kw_only=True)

    @property
    def computing(self) -> frozenset[int]:
        """Indices of the sizes on which the seconds of kernels depend."""
        uneven = (w.uneven for w in self.works if w.uneven is not None)
        every = (i for w in self.works for i in (*w.bytes, *w.flops, *w.vector, *(w.matmul or ())))
        return frozenset(every) | {i for u in uneven for i in (u.tokens, u.chips)}

    def evaluate(
        self, axes: Mapping[str, Number], mesh: Mapping[str, Number], only: frozenset[int] | None = None
    ) -> list[Number]:
        """The value of every distinct size; only: those at some indices, zero elsewhere."""
        known = {**axes, **self.own}
        return [size(known, mesh) if only is None or i in only else 0.0 for i, size in enumerate(self.sizes)]


class Collector:
    """Collects the distinct sizes of one resolved program under sharding rules.

    fold: put sizes that do not depend on the plan into coefficients and add up terms that are then alike; without it,
    every term keeps the names that an explanation shows.
    """

    def __init__(self, resolved: ResolvedProgram, rules: Rules, *, fold: bool) -> None:
        self.rules, self.fold, self.program = rules, fold, resolved.program
        self.derived = {n: s for n, s in self.program.axes.items() if isinstance(s, Size)}
        self.index: dict[Size, int] = {}

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The distinct sizes so far, in the order of their indices."""
        return tuple(self.index)

    def add(self, size: Size) -> int:
        """The index of a size among the distinct ones."""
        return self.index.setdefault(self._folded(size), len(self.index))

    def _folded(self, size: Size) -> Size:
        for name, value in self.derived.items():
            for axis, power in size.axes:
                if axis == name:
                    for _ in range(abs(power)):
                        size = size / Size.of((name,)) * value if power > 0 else size * Size.of((name,)) / value
        if self.fold:
            known = {n: v for n, v in self.program.axes.items() if isinstance(v, int)}
            factor = math.prod(known[n] ** p for n, p in size.axes if n in known)
            size = Size(size.coefficient * factor, tuple((n, p) for n, p in size.axes if n not in known), size.mesh)
        return size

    def like(self, sizes: Iterable[Size]) -> dict[Size, float]:
        """The sizes folded, like terms once, with their coefficients."""
        result: dict[Size, float] = {}
        for size in sizes:
            folded = self._folded(size)
            key = Size(1.0, folded.axes, folded.mesh)
            result[key] = result.get(key, 0.0) + folded.coefficient
        return result

    def sum(self, sizes: Iterable[Size | None]) -> tuple[int, ...]:
        """Indices whose values add up to the sizes; like terms are one where folding is on."""
        every = [s for s in sizes if s is not None]
        if not self.fold:
            return tuple(self.add(s) for s in every)
        return tuple(self.add(key * coefficient) for key, coefficient in self.like(every).items())

    def block(self, array: Array) -> Size:
        """Bytes that a chip holds of an array."""
        return Size.of(array.axes, shard(array, self.rules).used, dtype_bytes(array.dtype))

    def layout(self, weights: Iterable[Array], layout: str, bytes: float) -> tuple[int, ...]:
        """Bytes that a chip holds of weights in one of their layouts, at so many bytes each."""
        return self.sum(Size.of(w.axes, weight_sharding(w, self.rules, layout).used, bytes) for w in weights)

    def works(self, steps: Iterable[object]) -> Iterable[Work]:
        """Kernels in order; the ops of a fused kernel are one."""
        kernels: dict[str, list[LocalOp]] = {}
        order: list[LocalOp | str] = []
        for step in steps:
            if isinstance(step, LocalOp):
                if step.fused is None:
                    order.append(step)
                else:
                    if step.fused not in kernels:
                        order.append(step.fused)
                    kernels.setdefault(step.fused, []).append(step)
        for item in order:
            if isinstance(item, str):
                inside = kernels[item]
                yield Work(
                    name=item, ops=tuple(dict.fromkeys(o.op for o in inside)), phase=inside[0].phase, part=inside[0].part,
                    fused=True, bytes=self.sum(x for o in inside for x in (*o.reads, *o.writes)), vector=(),
                    flops=self.sum(o.flops for o in inside if o.flops is not None), uneven=self._uneven(inside),
                )  # fmt: skip
                continue
            bytes = (
                self.sum((*item.reads, *item.writes))
                if item.flops or item.vector_flops or item.kind == "lookup"
                else ()
            )
            if not bytes:
                continue  # a renaming
            matmul = None
            if item.kind == "einsum":
                matmul = tuple(self.add(x) for x in (item.rows, item.contraction, item.columns, item.batch))
            points = item.rows * item.contraction * item.columns * item.batch
            yield Work(
                name=item.op, ops=(item.op,), phase=item.phase, part=item.part, fused=False, bytes=bytes,
                flops=self.sum([item.flops]) if item.flops else (),
                vector=self.sum([item.vector_flops]) if item.vector_flops else (),
                matmul=matmul,  # type: ignore[arg-type]
                scale=item.flops.coefficient / points.coefficient if matmul and item.flops else 1.0,
                weight=self._weight(item) if matmul else "",
                weight_gradient=item.phase == "backward" and item.kind == "einsum" and self._is_weight(item.makes),
            )  # fmt: skip

    def _uneven(self, kernel: Sequence[LocalOp]) -> Uneven | None:
        """How far chance moves the work of a fused kernel: as its products say, over the tokens of its queries."""
        names = {op.op for op in kernel}
        found = next((op.uneven for op in self.program.ops if op.name in names and op.uneven is not None), None)
        if found is None:
            return None
        for name, sharding in (block for op in kernel for block in (*op.takes, *op.gives)):
            array = self.program.array(name.removeprefix("d_"))
            if {"B", "T"} <= {*array.axes}:
                split = (*sharding.of_axis(array, "B"), *sharding.of_axis(array, "T"))
                chips = Size.of((), split).inverse()
                return Uneven(*found, self.add(Size.of(("B", "T"), split)), self.add(chips))
        raise AssertionError(f"{kernel[0].fused} has no array of tokens")

    def _is_weight(self, gradient: str) -> bool:
        name = gradient.removeprefix("d_")
        return any(array.name == name and array.role == "weight" for array in self.program.arrays)

    def _weight(self, op: LocalOp) -> str:
        arrays = (self.program.array(name) for name, _ in op.takes if not name.startswith("d_"))
        return next((array.dtype for array in arrays if array.role == "weight"), "")

    def transfers(self, moves: Iterable[Move], overlap: Callable[[Move], str]) -> tuple[Transfer, ...]:
        """Transfers in order, each of the overlap class that `overlap` says. Prefetched ones of one kind over the same axes in one pass go out together, as FSDP units
        and XLA's combiners have it.
        """
        bundles: dict[tuple[object, ...], list[Move]] = {}
        for position, move in enumerate(moves):
            c = move.collective
            key = (c.kind, c.axes, move.phase) if overlap(move) == "prefetch" else (position,)
            bundles.setdefault(key, []).append(move)
        result = []
        for inside in bundles.values():
            first = inside[0]
            c = first.collective
            what = "gradients" if first.role == "gradient" else "weights"
            title = str(c) if len(inside) == 1 else f"{str(c).split()[0]} {what}"
            axes = tuple(sorted(c.axes, key=INNER_AXES.index))
            result.append(
                Transfer(
                    title, c.kind, axes, outer_name(axes), first.op, first.phase, overlap(first),
                    self.sum(m.collective.bytes for m in inside),
                )
            )  # fmt: skip
        return tuple(result)
