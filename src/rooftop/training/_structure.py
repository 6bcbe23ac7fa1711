"""A model's programs resolved under the layouts of a plan, compiled to terms that can be evaluated fast.

The structure of a step (which ops, which collectives, which arrays are alive together) does not depend on the sizes of mesh
axes: an axis of size 1 makes its collectives free. So it is resolved once, and plans fill in numbers.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rooftop.arrays import (
    Array,
    LocalOp,
    Move,
    Program,
    ResolvedProgram,
    Rules,
    Size,
    Step,
    fused_only,
    resolve_program,
    shard,
    weight_sharding,
)
from rooftop.costing import INNER_AXES, Collector, Terms, Transfer, Work, outer_name
from rooftop.errors import InputError
from rooftop.training._choices import Choices
from rooftop.training._layouts import Layouts, layouts
from rooftop.training._lowered import low_ops, lowered, narrow_arrays
from rooftop.training._optimizer import matrix_axes, moment_bytes, newton_schulz_flops, optimizer
from rooftop.training._recipe import Recipe
from rooftop.training._remat import AUTO, POLICIES, check_names, remat, sets
from rooftop.transformer import Architecture, Documents, programs
from rooftop.units import dtype_bytes


@dataclass(frozen=True, slots=True)
class Compiled(Terms):
    """One program of a training step: what it does and keeps, as indices into its distinct sizes."""

    updates: tuple[Transfer, ...]
    orthogonal: tuple[int, ...]  # FLOPs that orthogonalise updates
    recomputed: Mapping[str, frozenset[str]]
    #: by remat policy, indices of the forward transfers that run again in the backward pass
    moved_again: Mapping[str, frozenset[int]]
    weights: tuple[int, ...]
    weights_at_use: tuple[int, ...]
    brought: tuple[int, ...]  # weights that a pass needs, as they are stored; a tied embedding counts at either end
    gradients: tuple[int, ...]
    optimizer: tuple[int, ...]
    saved: Mapping[str, tuple[int, ...]]
    working: Mapping[str, tuple[tuple[tuple[int, float], ...], ...]]
    boundary: int  # bytes of the residual stream

    @property
    def moving(self) -> frozenset[int]:
        """Indices of the sizes that cross the network."""
        return self.moving_late | {i for t in self.transfers for i in t.bytes}

    @property
    def held(self) -> frozenset[int]:
        """Indices of the sizes that take memory."""
        always = (
            *self.orthogonal,
            *self.weights,
            *self.brought,
            *self.weights_at_use,
            *self.gradients,
            *self.optimizer,
        )
        saved = (i for indices in self.saved.values() for i in indices)
        working = (i for moments in self.working.values() for moment in moments for i, _ in moment)
        return frozenset((*always, *saved, *working))

    @property
    def moving_late(self) -> frozenset[int]:
        """Those of the update and of the hand-over between stages."""
        return frozenset(i for t in self.updates for i in t.bytes) | {self.boundary, *self.orthogonal}


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

    @property
    def late(self) -> tuple[tuple[str, ...], ...]:
        """Groups that move something in the update or between stages."""
        return tuple(sorted({t.axes for c in self.programs for t in c.updates} | {("pipeline",)}))


@functools.lru_cache(maxsize=64)
def structure(
    model: Architecture,
    seq: int,
    layout: Choices,
    recipe: Recipe,
    documents: Documents | None = None,
    *,
    fold: bool = True,
    keep: tuple[str, ...] = (),
) -> Structure:
    """Resolve and compile a model for training at a sequence length under the choices of a layout (`Choices.layout`).

    documents: the pieces of documents that fill the sequences, each one document unless given.

    fold: put sizes that do not depend on the plan into coefficients and add up terms that are then alike; without it,
    every term keeps the names that an explanation shows. keep: remat policies that keep arrays by name, to compile beside
    those of the table; `auto` for all among which it chooses.
    """
    if documents is not None and layout.causal == "contiguous":
        raise InputError(
            "causal=contiguous is not modelled with documents of several lengths, which decide what each chunk attends to;"
            " leave causal or the lengths out",
            field="causal",
        )
    if model.experts is None and (layout.expert_fold != "none" or layout.expert_zero):
        name = "expert_zero" if layout.expert_zero else "expert_fold"
        raise InputError(f"{model.name} has no experts, for which {name} would matter; leave it out", field=name)
    parts = programs(model, seq, documents)
    rules = layouts(layout)
    every = [parts.embed, *(b.program for b in parts.blocks), parts.head]
    if layout.context_kind == "ulysses":
        every = [by_heads(p) for p in every]
    blocks = every[1:-1]
    for policy in keep:
        check_names(blocks, policy)
    every_set = sets([(b.count, p) for b, p in zip(parts.blocks, blocks, strict=True)]) if AUTO in keep else ()
    policies = tuple(p for p in dict.fromkeys((*POLICIES, *keep, *every_set)) if p != AUTO)
    resolved = [_resolve(p, rules, recipe.reduction) for p in every]
    compiled = [_Compiler(r, rules, recipe, layout, whole=p in (every[0], every[-1]), fold=fold).compiled(policies)
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


def by_heads(program: Program) -> Program:
    """The program with the arrays of attention kernels in the layout of heads instead of tokens."""
    kernels = {op.fused for op in program.ops if op.fused and op.name.startswith(op.fused.split("_far")[0] + ".scores")}
    inside = {n for op in program.ops if op.fused in kernels for n in (*op.inputs, op.output)}
    arrays = tuple(
        replace(a, layout="heads") if a.name in inside and a.role == "activation" else a for a in program.arrays
    )
    return Program(program.name, program.axes, arrays, program.ops)


def _resolve(program: Program, rules: Layouts, reduction: str) -> ResolvedProgram:
    """Resolve at representative sizes: two ways of each mesh axis, and the program's own sizes made divisible."""
    mesh = dict.fromkeys(INNER_AXES, 2)
    known = {n: -(-s // 128) * 128 for n, s in program.axes.items() if isinstance(s, int)}
    known["B"] = 128
    sizes = {**known, **{n: int(s(known, {})) * 128 for n, s in program.axes.items() if isinstance(s, Size)}}
    return resolve_program(
        program, rules.rules, sizes, mesh, gradient_unreduced=rules.gradient_unreduced, gradient_dtype=reduction
    )


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


class _Compiler(Collector):
    """Compiles one resolved program. whole: an embedding or a head, none of whose arrays outlive a microbatch."""

    def __init__(
        self, resolved: ResolvedProgram, rules: Layouts, recipe: Recipe, layout: Choices, *, whole: bool, fold: bool
    ) -> None:
        super().__init__(resolved, rules.rules, fold=fold)
        self.resolved, self.recipe, self.chosen, self.whole = resolved, recipe, layout, whole

    def compiled(self, policies: tuple[str, ...]) -> Compiled:
        program = self.program
        works = self._works()
        steps = (*self.resolved.forward, *self.resolved.backward)
        transfers = self.transfers((s for s in steps if isinstance(s, Move)), self._overlap)
        transfers = self._at_hand(tuple(map(_dispatched, transfers)))
        updates = self.transfers(self.resolved.update, self._overlap)
        matrices = () if self.whole else self._matrices()
        # an embedding or a head is not worth recomputing: its arrays live for one microbatch only
        plans = {p: remat(program, "none" if self.whole else p) for p in policies}
        inputs = [a for a in program.arrays if a.role == "input" and not a.dtype.startswith("int")]
        narrow = narrow_arrays(program) if self.recipe.matmul and not self.whole else frozenset[str]()
        saved = {
            p: self.sum(self._kept(a, narrow) for a in (inputs if self.whole else map(program.array, r.saved)))
            for p, r in plans.items()
        }
        working = {p: self._moments(() if self.whole else r.saved) for p, r in plans.items()}
        weights = program.weights
        if "lm_head" not in {w.name for w in weights} and self.program.ops[-1].kind == "loss":
            weights = tuple(w for w in weights if w.name != "embedding")  # tied: held once, by the embedding
        residual = next((a for a in program.arrays if a.layout == "residual"), program.arrays[0])
        fields = dict(
            works=works,
            transfers=transfers,
            updates=(*updates, *self._exchanges(matrices)),
            orthogonal=self.sum(flops for _, flops in matrices),
            recomputed={p: frozenset(r.recomputed) for p, r in plans.items()},
            moved_again={p: _moved_again(transfers, frozenset(r.recomputed)) for p, r in plans.items()},
            weights=self.layout(weights, "weight", dtype_bytes(self.recipe.weights)),
            weights_at_use=self.layout(program.weights, "weight_use", dtype_bytes(self.recipe.compute)),
            brought=self.layout(program.weights, "weight", dtype_bytes(self.recipe.weights)),
            gradients=self.layout(weights, "gradient", dtype_bytes(self.recipe.gradients)),
            optimizer=self.sum(size for w in weights for size in self._states(w)),
            saved=saved,
            working=working,
            boundary=self.add(self.block(residual)),
        )
        return Compiled(name=program.name, sizes=self.sizes, **fields)  # type: ignore[arg-type]

    def _works(self) -> tuple[Work, ...]:
        """Kernels of both passes, matmuls in their precision."""
        passes = [self._unbalanced(steps) for steps in (self.resolved.forward, self.resolved.backward)]
        low = None if self.whole else self.recipe.matmul
        if low is None:
            return tuple(w for steps in passes for w in self.works(steps))
        narrow = self.recipe.low_gradients
        steps = tuple(lowered(self.program, itertools.chain(*passes), low, weight_gradients=narrow))
        back = [s for s in steps if s.phase == "backward"]  # type: ignore[attr-defined]
        there = [s for s in steps if s.phase == "forward"]  # type: ignore[attr-defined]
        ops = low_ops(self.program)
        return tuple(
            replace(w, weight=low) if w.name in ops and w.matmul and (narrow or not w.weight_gradient) else w
            for w in (*self.works(there), *self.works(back))
        )

    def _overlap(self, move: Move) -> str:
        """What a transfer may hide under: keys and values under attention where they are passed around a ring."""
        if move.role in ("weight", "gradient"):
            return "prefetch"
        keys = set(move.collective.axes) <= {"context"} and move.collective.kind != "all_to_all"
        return "ring" if keys and self.chosen.context_kind == "ring" else "critical"

    def _unbalanced(self, steps: Iterable[Step]) -> tuple[Step, ...]:
        """The steps of the chip with the last tokens: of causal attention to all keys it has (2n - 1)/n times the mean of n."""
        if self.chosen.causal == "balanced" or self.chosen.context_kind == "ulysses":
            return tuple(steps)
        causal = {op.name for op in self.program.ops if 0.5 <= op.fraction < 0.75 and op.fused}
        some = Size(-1.0, (), (("context", -1),))
        result: list[Step] = []
        for step in steps:
            result.append(step)
            if isinstance(step, LocalOp) and step.op in causal and step.flops is not None:
                # twice the mean, less one n-th of it
                result[-1] = replace(step, flops=step.flops * 2.0)
                result.append(replace(step, flops=step.flops * some, reads=(), writes=()))
        return tuple(result)

    def _kept(self, array: Array, narrow: frozenset[str]) -> Size:
        """Bytes that a chip keeps of an activation for the backward pass."""
        block = self.block(array)
        if array.name not in narrow or self.recipe.matmul is None or not self.recipe.low_gradients:
            return block
        return block * (dtype_bytes(self.recipe.matmul) / dtype_bytes(array.dtype))

    def _states(self, weight: Array) -> Iterable[Size]:
        """Bytes of a weight's optimizer states on a chip."""
        kind, size = optimizer(self.recipe.optimizer), moment_bytes(self.recipe.moments)
        lies = weight_sharding(weight, self.rules, "optimizer")
        matrix = matrix_axes(self.program, weight)
        if kind.factored and len(weight.axes) > 1:
            # sums over the rows and over the columns; of a table over its last two axes
            for gone in matrix or ((weight.axes[-1],), (weight.axes[-2],)):
                kept = [(a, m) for a, m in zip(weight.axes, lies.axes, strict=True) if a not in gone]
                yield Size.of([a for a, _ in kept], [m for _, names in kept for m in names], size)
            per_parameter = self.recipe.master_bytes
        else:
            moments = kind.moments if matrix is None or self.whole else kind.matrix_moments
            per_parameter = moments * size + self.recipe.master_bytes
        if per_parameter:
            yield Size.of(weight.axes, lies.used, per_parameter)

    def _matrices(self) -> list[tuple[Array, Size]]:
        """Weights whose updates are orthogonalised, and a chip's FLOPs for it: the matrices are shared out over all chips that
        hold parts of their states.
        """
        if not optimizer(self.recipe.optimizer).orthogonal:
            return []
        result = []
        for weight in self.program.weights:
            axes = matrix_axes(self.program, weight)
            if axes is None:
                continue
            known = {n: int(s) for n, s in self.program.axes.items() if isinstance(s, int)}
            rows, columns = (math.prod(known[a] for a in side) for side in axes)
            many = math.prod(known[a] for a in weight.axes) / (rows * columns)
            flops = many * newton_schulz_flops(min(rows, columns), max(rows, columns))
            used = weight_sharding(weight, self.rules, "optimizer").used
            result.append((weight, Size.of((), used, float(flops))))
        return result

    def _exchanges(self, matrices: Iterable[tuple[Array, Size]]) -> Iterable[Transfer]:
        """Momenta go to the chips that orthogonalise whole matrices, and updates come back, in the dtype of the matmuls."""
        together: dict[tuple[str, ...], list[Size]] = {}
        for weight, _ in matrices:
            used = weight_sharding(weight, self.rules, "optimizer").used
            axes = tuple(sorted(set(used), key=INNER_AXES.index))
            if axes:
                together.setdefault(axes, []).append(Size.of(weight.axes, (), 2 * dtype_bytes("bf16")))
        for axes, sizes in together.items():
            yield Transfer(
                "AllToAll momenta and updates", "all_to_all", axes, outer_name(axes), "update", "update", "critical", self.sum(sizes)
            )  # fmt: skip

    def _at_hand(self, transfers: tuple[Transfer, ...]) -> tuple[Transfer, ...]:
        """A head's backward pass follows its forward pass at once: what was gathered for the one is at hand for the other."""
        if not self.whole:
            return transfers
        gathered = {(t.title, t.axes) for t in transfers if t.phase == "forward" and t.kind == "all_gather"}
        return tuple(t for t in transfers if t.phase == "forward" or (t.title, t.axes) not in gathered)

    def _moments(self, saved: Iterable[str]) -> tuple[tuple[tuple[int, float], ...], ...]:
        """What is alive at each op of the backward pass, beside what was saved: recomputed arrays that are still to be
        read, gradients on their way, gathered copies.
        """
        kept = set(saved)
        alive: dict[int, float] = {}
        moments: dict[tuple[tuple[int, float], ...], dict[int, float]] = {}
        for begins, beside in self._backward:
            # a forward array is needed until the backward pass has gone past its first reader
            for name, index, count in begins:
                if name not in kept:
                    alive[index] = alive.get(index, 0.0) + count
            moment = dict(beside)
            for index, count in alive.items():
                moment[index] = moment.get(index, 0.0) + count
            if moment:
                moments.setdefault(tuple(sorted(moment.items())), moment)
        largest = sorted(moments.items(), key=lambda m: -len(m[1]))
        return tuple(m for m, sizes in moments.items() if not any(_covers(o, sizes) for k, o in largest if k != m))

    @functools.cached_property
    def _backward(self) -> list[tuple[list[tuple[str, int, float]], dict[int, float]]]:
        """For each op: the arrays that it is the first to read, with their sizes; and the sizes of gradients and gathered copies
        that are alive when its gradient is made.
        """
        program, private = self.program, fused_only(self.program)
        gathered: dict[str, list[Size]] = {}
        for step in self.resolved.backward:
            if isinstance(step, Move) and step.role == "activation" and step.collective.kind == "all_gather":
                bytes = step.collective.bytes
                if self._overlap(step) == "ring":  # beside the block in use the one on its way
                    bytes = bytes * Size(1.0, (), (("context", -1),))
                gathered.setdefault(step.op, []).append(bytes)
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for position, op in enumerate(program.ops):
            for name in op.inputs:
                last[name] = position
                if not op.linear:
                    first.setdefault(name, position)
        maker = {op.output: position for position, op in enumerate(program.ops)}
        activations = {a.name: a for a in program.arrays if a.role == "activation" and a.name not in private}

        def sizes(arrays: Iterable[Size]) -> dict[int, float]:
            return {self.add(size): n for size, n in self.like(arrays).items()}

        block = {name: sizes([self.block(a)]) for name, a in activations.items()}
        result = []
        for position, op in enumerate(program.ops):
            begins = [(n, i, c) for n, p in first.items() if p == position and n in block for i, c in block[n].items()]
            beside = sizes(gathered.get(op.name, ()))
            for name, each in block.items():
                # a gradient lives from its array's last reader down to its maker
                if maker.get(name, -1) <= position <= last.get(name, -1):
                    for index, count in each.items():
                        beside[index] = beside.get(index, 0.0) + count
            result.append((begins, beside))
        return result


def _dispatched(transfer: Transfer) -> Transfer:
    """Tokens on their way to experts and back are copies, of which a domain needs one."""
    routed = transfer.kind == "all_to_all" and transfer.op in ("experts.dispatch", "experts.combine", "experts.down")
    return replace(transfer, kind="dispatch") if routed else transfer


def _moved_again(transfers: Iterable[Transfer], recomputed: frozenset[str]) -> frozenset[int]:
    """Forward transfers that run again. What is gathered for an op that runs again is at hand for its gradient right after,
    where the backward pass gathers it anyway; weights are gathered once for both.
    """
    every = list(enumerate(transfers))
    backward = {(t.title, t.axes) for _, t in every if t.phase == "backward" and t.kind == "all_gather"}
    return frozenset(
        i
        for i, t in every
        if t.phase == "forward" and t.overlap != "prefetch" and t.op in recomputed and (t.title, t.axes) not in backward
    )


def _covers(larger: Mapping[int, float], smaller: Mapping[int, float]) -> bool:
    """Whether one moment holds at least what another one holds, for any sizes."""
    return len(larger) >= len(smaller) and all(larger.get(i, 0.0) >= n for i, n in smaller.items())
