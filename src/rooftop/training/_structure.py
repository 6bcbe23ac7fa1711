"""A model's programs resolved under the layouts of a plan, compiled to terms that can be evaluated fast.

The structure of a step (which ops, which collectives, which arrays are alive together) does not depend on the sizes of mesh
axes: an axis of size 1 makes its collectives free. So it is resolved once, and plans fill in numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from rooftop.arrays import (
    Array,
    LocalOp,
    Move,
    Program,
    ResolvedProgram,
    Rules,
    Size,
    fused_only,
    resolve_program,
    shard,
    weight_sharding,
)
from rooftop.formula import Number
from rooftop.training._layouts import INNER_AXES, Layouts, layouts, outer_name
from rooftop.training._recipe import Recipe
from rooftop.training._remat import POLICIES, remat
from rooftop.transformer import Architecture, programs
from rooftop.units import dtype_bytes


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel of one pass: a matmul, a fused kernel, or an elementwise op. Integers index `Compiled.sizes`."""

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
class Compiled:
    """One program: what it does and keeps, as indices into its distinct sizes."""

    name: str
    sizes: tuple[Size, ...]
    works: tuple[Work, ...]
    transfers: tuple[Transfer, ...]
    updates: tuple[Transfer, ...]
    recomputed: Mapping[str, frozenset[str]]
    weights: tuple[int, ...]
    weights_at_use: tuple[int, ...]
    gradients: tuple[int, ...]
    optimizer: tuple[int, ...]
    saved: Mapping[str, tuple[int, ...]]
    working: Mapping[str, tuple[tuple[tuple[int, float], ...], ...]]
    boundary: int  # bytes of the residual stream
    own: Mapping[str, int] = field(
        default_factory=dict
    )  # sizes of axes that other programs of the model have otherwise

    @property
    def moving(self) -> frozenset[int]:
        """Indices of the sizes that cross the network."""
        return frozenset(i for t in (*self.transfers, *self.updates) for i in t.bytes) | {self.boundary}

    def evaluate(self, axes: Mapping[str, Number], mesh: Mapping[str, Number]) -> list[Number]:
        """The value of every distinct size."""
        known = {**axes, **self.own}
        return [size(known, mesh) for size in self.sizes]


@dataclass(frozen=True, slots=True)
class Structure:
    """A model under one set of layouts. counts: how often each program runs for one microbatch."""

    embed: Compiled
    blocks: tuple[Compiled, ...]
    head: Compiled
    counts: Mapping[str, int]
    layers: int
    axes: Mapping[str, int]
    kv_heads: int
    groups: tuple[tuple[str, ...], ...]
    divisible: tuple[tuple[int, tuple[str, ...]], ...]

    @property
    def programs(self) -> tuple[Compiled, ...]:
        """Embedding, blocks, head."""
        return (self.embed, *self.blocks, self.head)


@functools.lru_cache(maxsize=64)
def structure(model: Architecture, seq: int, zero: int, recipe: Recipe, *, fold: bool = True) -> Structure:
    """Resolve and compile a model for training at a sequence length under a ZeRO stage.

    fold: put sizes that do not depend on the plan into coefficients and add up terms that are then alike; without it,
    every term keeps the names that an explanation shows.
    """
    parts = programs(model, seq)
    rules = layouts(zero)
    blocks = [b.program for b in parts.blocks]
    every = [parts.embed, *blocks, parts.head]
    resolved = [_resolve(p, rules) for p in every]
    compiled = [_Compiler(r, rules, recipe, whole=p in (parts.embed, parts.head), fold=fold).compiled()
                for r, p in zip(resolved, every, strict=True)]  # fmt: skip
    axes: dict[str, int] = {}
    for program in every:
        axes |= {n: s for n, s in program.axes.items() if isinstance(s, int)}
    compiled = [
        replace(c, own={n: s for n, s in p.axes.items() if isinstance(s, int) and s != axes[n]})
        for c, p in zip(compiled, every, strict=True)
    ]
    groups = {t.axes for c in compiled for t in (*c.transfers, *c.updates)} | {("pipeline",)}
    counts = {c.name: 1 for c in compiled} | {b.program.name: b.count for b in parts.blocks}
    return Structure(
        embed=compiled[0],
        blocks=tuple(compiled[1:-1]),
        head=compiled[-1],
        counts=counts,
        layers=sum(b.count for b in parts.blocks),
        axes=axes,
        kv_heads=math.gcd(*(p.axes["K"] for p in blocks if isinstance(p.axes.get("K"), int))),  # type: ignore[arg-type]
        groups=tuple(sorted(groups)),
        divisible=tuple(sorted({pair for p in every for pair in _divisible(p, rules.rules)})),
    )


def _resolve(program: Program, rules: Layouts) -> ResolvedProgram:
    """Resolve at representative sizes: two ways of each mesh axis, and the program's own sizes made divisible."""
    mesh = dict.fromkeys(INNER_AXES, 2)
    known = {n: -(-s // 128) * 128 for n, s in program.axes.items() if isinstance(s, int)}
    known["B"] = 128
    sizes = {**known, **{n: int(s(known, {})) * 128 for n, s in program.axes.items() if isinstance(s, Size)}}
    return resolve_program(program, rules.rules, sizes, mesh, gradient_unreduced=rules.gradient_unreduced)


def _divisible(program: Program, rules: Rules) -> Iterable[tuple[int, tuple[str, ...]]]:
    """(size, mesh axes) of every array axis that must divide evenly, in any layout that the array can have."""
    for array in program.arrays:
        kinds = ("weight", "weight_use", "gradient", "optimizer") if array.role == "weight" else ("",)
        for kind in kinds:
            sharding = weight_sharding(array, rules, kind) if kind else shard(array, rules)
            for axis, names in zip(array.axes, sharding.axes, strict=True):
                size = program.axes.get(axis)
                if names and isinstance(size, int):
                    yield size, names


class _Compiler:
    """Collects the distinct sizes of one resolved program."""

    def __init__(self, resolved: ResolvedProgram, rules: Layouts, recipe: Recipe, *, whole: bool, fold: bool) -> None:
        self.resolved, self.rules, self.recipe, self.whole = resolved, rules.rules, recipe, whole
        self.program, self.fold = resolved.program, fold
        self.derived = {n: s for n, s in self.program.axes.items() if isinstance(s, Size)}
        self.index: dict[Size, int] = {}

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

    def sum(self, sizes: Iterable[Size | None]) -> tuple[int, ...]:
        """Indices whose values add up to the sizes; like terms are one where folding is on."""
        every = [s for s in sizes if s is not None]
        if not self.fold:
            return tuple(self.add(s) for s in every)
        like: dict[Size, float] = {}
        for size in every:
            folded = self._folded(size)
            key = Size(1.0, folded.axes, folded.mesh)
            like[key] = like.get(key, 0.0) + folded.coefficient
        return tuple(self.add(key * coefficient) for key, coefficient in like.items())

    def compiled(self) -> Compiled:
        program = self.program
        works = (*self._works(self.resolved.forward), *self._works(self.resolved.backward))
        steps = (*self.resolved.forward, *self.resolved.backward)
        transfers = self._transfers(s for s in steps if isinstance(s, Move))
        updates = self._transfers(self.resolved.update)
        # an embedding or a head is not worth recomputing: its arrays live for one microbatch only
        plans = {p: remat(program, "none" if self.whole else p) for p in POLICIES}
        inputs = [a for a in program.arrays if a.role == "input" and not a.dtype.startswith("int")]
        saved = {
            p: self._blocks(inputs if self.whole else [program.array(n) for n in r.saved]) for p, r in plans.items()
        }
        working = {p: self._moments(() if self.whole else r.saved) for p, r in plans.items()}
        weights = program.weights
        if "lm_head" not in {w.name for w in weights} and self.program.ops[-1].kind == "loss":
            weights = tuple(w for w in weights if w.name != "embedding")  # tied: held once, by the embedding
        residual = next((a for a in program.arrays if a.layout == "residual"), program.arrays[0])
        fields = dict(
            works=works,
            transfers=transfers,
            updates=updates,
            recomputed={p: frozenset(r.recomputed) for p, r in plans.items()},
            weights=self._layout(weights, "weight", dtype_bytes(self.recipe.weights)),
            weights_at_use=self._layout(program.weights, "weight_use", dtype_bytes(self.recipe.compute)),
            gradients=self._layout(weights, "gradient", dtype_bytes(self.recipe.gradients)),
            optimizer=self._layout(weights, "optimizer", self.recipe.optimizer_bytes),
            saved=saved,
            working=working,
            boundary=self.add(self._block(residual)),
        )
        return Compiled(name=program.name, sizes=tuple(self.index), **fields)  # type: ignore[arg-type]

    def _block(self, array: Array) -> Size:
        return Size.of(array.axes, shard(array, self.rules).used, dtype_bytes(array.dtype))

    def _blocks(self, arrays: Iterable[Array]) -> tuple[int, ...]:
        return self.sum(self._block(a) for a in arrays)

    def _layout(self, weights: Iterable[Array], layout: str, bytes: float) -> tuple[int, ...]:
        return self.sum(Size.of(w.axes, weight_sharding(w, self.rules, layout).used, bytes) for w in weights)

    def _works(self, steps: Iterable[object]) -> Iterable[Work]:
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
                    flops=self.sum(o.flops for o in inside if o.flops is not None),
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
            )  # fmt: skip

    def _transfers(self, moves: Iterable[Move]) -> tuple[Transfer, ...]:
        """Transfers in order. Prefetched ones of one kind over the same axes in one pass go out together, as FSDP units
        and XLA's combiners have it.
        """
        bundles: dict[tuple[object, ...], list[Move]] = {}
        for position, move in enumerate(moves):
            c = move.collective
            key = (c.kind, c.axes, move.phase) if _overlap(move) == "prefetch" else (position,)
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
                    title, c.kind, axes, outer_name(axes), first.op, first.phase, _overlap(first),
                    self.sum(m.collective.bytes for m in inside),
                )
            )  # fmt: skip
        return tuple(result)

    def _moments(self, saved: Iterable[str]) -> tuple[tuple[tuple[int, float], ...], ...]:
        """What is alive at each op of the backward pass, beside what was saved: recomputed arrays that are still to be
        read, gradients on their way, gathered copies.
        """
        program, kept, private = self.program, set(saved), fused_only(self.program)
        gathered: dict[str, list[Size]] = {}
        for step in self.resolved.backward:
            if isinstance(step, Move) and step.role == "activation" and step.collective.kind == "all_gather":
                gathered.setdefault(step.op, []).append(step.collective.bytes)
        first_reader: dict[str, int] = {}
        for position, op in enumerate(program.ops):
            if not op.linear:
                for name in op.inputs:
                    first_reader.setdefault(name, position)
        maker = {op.output: position for position, op in enumerate(program.ops)}
        activations = [a for a in program.arrays if a.role == "activation" and a.name not in private]
        moments = []
        for position, op in enumerate(program.ops):
            alive: dict[Size, float] = {}

            def count(size: Size, alive: dict[Size, float] = alive) -> None:
                folded = self._folded(size)
                key = Size(1.0, folded.axes, folded.mesh)
                alive[key] = alive.get(key, 0.0) + folded.coefficient

            for array in activations:
                name = array.name
                # a forward array is needed until the backward pass has gone past its first reader
                if name not in kept and name in first_reader and first_reader[name] <= position:
                    count(self._block(array))
                # a gradient lives from its array's last reader down to its maker
                readers = [i for i, o in enumerate(program.ops) if name in o.inputs]
                if maker.get(name, -1) <= position and readers and position <= max(readers):
                    count(self._block(array))
            for size in gathered.get(op.name, ()):
                count(size)
            if alive:
                moments.append(tuple(sorted((self.add(size), n) for size, n in alive.items())))
        return tuple(m for m in dict.fromkeys(moments) if not any(_covers(o, m) for o in moments if o != m))


def _overlap(move: Move) -> str:
    if move.role in ("weight", "gradient"):
        return "prefetch"
    return "ring" if set(move.collective.axes) <= {"context"} else "critical"


def _covers(larger: tuple[tuple[int, float], ...], smaller: tuple[tuple[int, float], ...]) -> bool:
    """Whether one moment holds at least what another one holds, for any sizes."""
    have = dict(larger)
    return all(have.get(i, 0.0) >= n for i, n in smaller)
