"""A whole program under sharding rules, forward and backward: local ops and the collectives that the algebra forces.

Rules that are stated once and used throughout:
- every array that an op makes ends in the sharding of its layout, unless it stays unreduced until all parts of a
  gradient are there;
- within one pass an array that was gathered stays gathered; nothing gathered is kept from forward to backward;
- weights are stored by layout "weight" and used by layout "weight_use": a gather between the two is ZeRO-3;
- gradients of weights end in layout "gradient", unreduced over the axes whose sum waits for the end of the step;
- a gradient that is whole on every chip of an axis joins one that is unreduced over it by being zeroed on all chips but
  one, which costs nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rooftop.arrays._resolve import Collective, Way, reshard, resolve
from rooftop.arrays._size import Size
from rooftop.arrays._types import Array, Op, Program, Rules, Sharding, shard
from rooftop.units import dtype_bytes

Phase = Literal["forward", "backward", "update"]
ONE = Size()


@dataclass(frozen=True, slots=True)
class LocalOp:
    """What one chip computes in one op of one phase. All sizes are of one chip's blocks, as monomials.

    `op` is the name of the program's op; `phase` is "forward" or "backward"; `makes` names the array that it makes (`d_W`
    is the gradient of W). `flops` run on the matrix unit, `vector_flops` on the vector unit. `reads` and `writes` are in
    bytes, one entry an array, without arrays that live and die inside a fused kernel. For an einsum, `batch` are the axes
    in both inputs and the output, `rows` those of the first input and the output, `columns` those of the second input
    and the output, `contraction` those that are summed. `again` marks an op of the forward pass that a fused kernel
    computes a second time in the backward pass because it did not keep what is inside it.
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
    """The steps of a program in order. `update` is what the end of a step costs once, whatever the microbatches:
    gradients into the optimizer's sharding, and the new weights out of it.
    """

    program: Program
    forward: tuple[Step, ...]
    backward: tuple[Step, ...]
    update: tuple[Move, ...]

    def moves(self, phase: str) -> tuple[Move, ...]:
        """The collectives of a phase."""
        steps = {"forward": self.forward, "backward": self.backward, "update": self.update}[phase]
        return tuple(step for step in steps if isinstance(step, Move))


def fused_only(program: Program) -> set[str]:
    """Arrays made and read inside one fused kernel only: they are never in memory."""
    readers: dict[str, set[str | None]] = {}
    for op in program.ops:
        for name in op.inputs:
            readers.setdefault(name, set()).add(op.fused)
    return {op.output for op in program.ops if op.fused is not None and readers.get(op.output, set()) == {op.fused}}


def resolve_program(
    program: Program,
    rules: Rules,
    sizes: Mapping[str, int],
    mesh: Mapping[str, int],
    *,
    gradient_unreduced: Sequence[str] = (),
) -> ResolvedProgram:
    """Resolve a program under rules. sizes and mesh are representative: every size must divide, and ways are chosen by
    them; the sizes in the result are monomials that hold for any.
    """
    resolver = _Resolver(program, rules, sizes, mesh, tuple(gradient_unreduced))
    forward = resolver.forward()
    backward = resolver.backward()
    update = update_steps(program.weights, rules, sizes, mesh, gradient_unreduced)
    return ResolvedProgram(program, forward, backward, update)


def update_steps(
    weights: Sequence[Array],
    rules: Rules,
    sizes: Mapping[str, int],
    mesh: Mapping[str, int],
    gradient_unreduced: Sequence[str] = (),
) -> tuple[Move, ...]:
    """The end of a step: gradients into the optimizer's sharding, updated weights back into the stored one."""
    result: list[Move] = []
    for weight in weights:
        layout = _layout(weight, rules)
        start = shard(replace(weight, layout=layout["gradient"]), rules)
        optimizer = shard(replace(weight, layout=layout["optimizer"]), rules)
        stored = shard(weight, rules)
        pending = tuple(a for a in gradient_unreduced if a not in start.used)
        gradient = replace(weight, name=f"d_{weight.name}")
        for c in reshard(gradient, Sharding(start.axes, pending), optimizer, sizes, mesh):
            result.append(Move(c, "update", "update", "gradient"))
        for c in reshard(weight, optimizer, stored, sizes, mesh):
            result.append(Move(c, "update", "update", "weight"))
    return tuple(t for t in result if t.collective.kind != "slice")


@functools.lru_cache(maxsize=1024)
def _ways(
    inputs: tuple[Array, ...],
    at_hand: tuple[tuple[Sharding, ...], ...],
    output: Array,
    wanted: Sharding,
    sizes: tuple[tuple[str, int], ...],
    mesh: tuple[tuple[str, int], ...],
) -> tuple[Way, ...]:
    """Ways of an einsum; plans that differ in how they store weights share most of them."""
    return resolve(inputs, at_hand, output, wanted, dict(sizes), dict(mesh)).ways


def _layout(weight: Array, rules: Rules) -> dict[str, str]:
    """Names of the layouts of a weight's gradient, optimizer state and use: `expert_weight` -> `expert_gradient`, ..."""
    prefix = weight.layout.removesuffix("weight")
    return {
        key: f"{prefix}{key}" if f"{prefix}{key}" in rules else key
        for key in ("gradient", "optimizer", "weight_use")
    }


class _Resolver:
    """The state of one resolution: where every array is at hand in the current pass."""

    def __init__(
        self, program: Program, rules: Rules, sizes: Mapping[str, int], mesh: Mapping[str, int], unreduced: tuple[str, ...]
    ) -> None:
        self.program, self.rules, self.sizes, self.mesh, self.unreduced = program, rules, sizes, mesh, unreduced
        self.at_hand: dict[str, list[Sharding]] = {}
        self.steps: list[Step] = []
        self.phase: Phase = "forward"
        self.private = fused_only(program)
        #: per einsum, the mesh axes that each index has in the local work, decided in the forward pass
        self.split: dict[str, dict[str, tuple[str, ...]]] = {}

    # -- passes

    def forward(self) -> tuple[Step, ...]:
        self.steps, self.at_hand, self.phase = [], {}, "forward"
        for op in self.program.ops:
            output = self.program.array(op.output)
            wanted = shard(output, self.rules)
            if op.kind == "einsum":
                self._forward_einsum(op, [self.program.array(n) for n in op.inputs], output, wanted)
            elif op.kind == "lookup":
                self._lookup(op, output, wanted)
            else:
                self._map(op, output, wanted)
        return tuple(self.steps)

    def backward(self) -> tuple[Step, ...]:
        self.steps, self.at_hand, self.phase = [], {}, "backward"
        self.parts: dict[str, list[Sharding]] = {}
        last = self.program.ops[-1]
        if last.kind != "loss":
            self.parts[last.output] = [shard(self.program.array(last.output), self.rules)]
        kernels: set[str] = set()
        for op in reversed(self.program.ops):
            if op.kind != "loss":
                if not self.parts.get(op.output):
                    continue
                self._complete(op.output, op.name)
            if op.fused is not None and op.fused not in kernels:
                kernels.add(op.fused)
                self._run_kernel_again(op.fused)
            if op.kind == "einsum":
                self._einsum_backward(op)
            elif op.kind == "lookup":
                self._lookup_backward(op)
            else:
                self._map_backward(op)
        for array in self.program.arrays:
            if array.role == "input" and self.parts.get(array.name):
                self._complete(array.name, self.program.ops[0].name)
        return tuple(self.steps)

    # -- arrays at hand

    def _have(self, array: Array, op: str) -> list[Sharding]:
        """Shardings in which an array is at hand, bringing a weight into its layout of use first."""
        if array.name not in self.at_hand:
            stored = shard(array, self.rules)
            self.at_hand[array.name] = [stored]
            if array.role == "weight":
                use = shard(replace(array, layout=_layout(array, self.rules)["weight_use"]), self.rules)
                if use != stored:
                    self._bring(array, use, op, "weight")
                    self.at_hand[array.name] = [use]
        return self.at_hand[array.name]

    def _bring(self, array: Array, goal: Sharding, op: str, role: str) -> None:
        """Reshard an array from the cheapest version at hand, and remember the result."""
        versions = self.at_hand[array.name]
        if goal in versions:
            return
        paths = [reshard(array, s, goal, self.sizes, self.mesh) for s in versions]
        best = min(paths, key=self._cost)
        self._emit(best, op, role)
        versions.append(goal)

    def _cost(self, path: Sequence[Collective]) -> float:
        total = 0.0
        for c in path:
            if c.kind != "slice":
                n = math.prod(self.mesh[a] for a in c.axes)
                total += c.bytes(self.sizes, self.mesh) * (n - 1) / n * (2 if c.kind == "all_reduce" else 1)
        return total

    def _emit(self, path: Sequence[Collective], op: str, role: str) -> None:
        self.steps += [Move(c, op, self.phase, role) for c in path if c.kind != "slice"]

    # -- einsums

    def _forward_einsum(self, op: Op, inputs: Sequence[Array], output: Array, wanted: Sharding) -> None:
        """Choose the cheapest way that leaves weights where the plan puts them, and do it."""
        at_hand = [self._have(a, op.name) for a in inputs]
        known = {axis: self.sizes[axis] for array in (*inputs, output) for axis in array.axes}
        ways = _ways(
            tuple(inputs), tuple(tuple(v) for v in at_hand), output, wanted,
            tuple(known.items()), tuple(self.mesh.items()),
        )  # fmt: skip
        way = next((w for w in ways if self._weights_stay(w)), ways[0])
        self.split[op.name] = {
            axis: axes
            for array, sharding in zip((*inputs, output), (*way.local.shardings, way.local.out), strict=True)
            for axis, axes in zip(array.axes, sharding.axes, strict=True)
        }
        self._local_einsum(op, inputs, output)
        self._emit(way.after, op.name, "activation")
        self.at_hand[output.name] = [wanted]

    def _weights_stay(self, way: Way) -> bool:
        """The plan says how weights lie when they are used; the algebra moves activations to them."""
        return all(
            goal in self.at_hand[array.name]
            for array, goal in zip(way.local.inputs, way.local.shardings, strict=True)
            if array.role == "weight"
        )

    def _local_einsum(self, op: Op, inputs: Sequence[Array], output: Array) -> Sharding:
        """Bring the inputs to where the op's work lies, do the local einsum; returns the sharding that it makes.

        The two einsums of the backward pass run over the same indices as the forward one, on the same chips.
        """
        split = self.split[op.name]
        shardings = [Sharding(tuple(split[axis] for axis in array.axes)) for array in inputs]
        for array, goal in zip(inputs, shardings, strict=True):
            self._have(array, op.name)
            self._bring(array, goal, op.name, "weight" if array.role == "weight" else "activation")
        summed = dict.fromkeys(axis for array in inputs for axis in array.axes if axis not in output.axes)
        out = Sharding(tuple(split[a] for a in output.axes), tuple(m for axis in summed for m in split[axis]))
        if op.kind == "lookup":
            return out

        def size(axes: Sequence[str], coefficient: float = 1.0) -> Size:
            return Size.of(axes, tuple(m for a in axes for m in split[a]), coefficient)

        first, second, made = inputs[0].axes, inputs[-1].axes, output.axes
        every = tuple(dict.fromkeys((*first, *second, *made)))
        self.steps.append(
            LocalOp(
                op.name,
                "einsum",
                self.phase,
                output.name,
                flops=size(every, 2.0 * op.fraction),
                reads=self._public(list(zip(inputs, shardings, strict=True)), op),
                writes=self._public([(output, out)], op),
                batch=size([a for a in every if a in first and a in second and a in made]),
                rows=size([a for a in every if a in first and a not in second]),
                contraction=size([a for a in every if a in first and a in second and a not in made]),
                columns=size([a for a in every if a in second and a not in first]),
                fused=op.fused,
                part=op.part,
                dtype=inputs[0].dtype,
            )
        )
        return out

    def _public(self, blocks: Sequence[tuple[Array, Sharding]], op: Op) -> tuple[Size, ...]:
        """Bytes of blocks, without those that stay inside a fused kernel."""
        return tuple(
            Size.of(array.axes, sharding.used, dtype_bytes(array.dtype))
            for array, sharding in blocks
            if op.fused is None or array.name.removeprefix("d_") not in self.private
        )

    def _einsum_backward(self, op: Op) -> None:
        gradient = self._gradient(op.output)
        arrays = [self.program.array(n) for n in op.inputs]
        for position, array in enumerate(arrays):
            if array.role == "input" and array.dtype.startswith("int"):
                continue
            made = self._gradient(array.name)
            # the gradient of the output takes the place of the input whose gradient is made
            inputs = [gradient if i == position else a for i, a in enumerate(arrays)]
            out = self._local_einsum(op, inputs, made)
            if array.role == "weight":
                self._reduce_weight(op, array, out)
            else:
                self._contribute(array.name, out)

    def _reduce_weight(self, op: Op, weight: Array, out: Sharding) -> None:
        """Bring a weight's gradient into its layout; sums that wait for the end of the step are left open."""
        layout = _layout(weight, self.rules)["gradient"]
        target = shard(replace(weight, layout=layout), self.rules)
        waiting = tuple(a for a in out.unreduced if a in self.unreduced and a not in target.used)
        made = self._gradient(weight.name)
        path = reshard(made, out, Sharding(target.axes, waiting), self.sizes, self.mesh)
        self._emit(path, op.name, "gradient")

    # -- gradients of activations

    def _gradient(self, name: str) -> Array:
        return replace(self.program.array(name), name=f"d_{name}", role="activation")

    def _contribute(self, name: str, sharding: Sharding) -> None:
        self.parts.setdefault(name, []).append(sharding)

    def _complete(self, name: str, op: str) -> None:
        """Add up all parts of a gradient, and bring it into its array's sharding."""
        goal = shard(self.program.array(name), self.rules)
        gradient = self._gradient(name)
        together: dict[tuple[tuple[str, ...], ...], tuple[str, ...]] = {}
        for part in self.parts[name]:
            before = together.get(part.axes, ())
            together[part.axes] = tuple(dict.fromkeys((*before, *part.unreduced)))
        for axes, unreduced in together.items():
            self._emit(reshard(gradient, Sharding(axes, unreduced), goal, self.sizes, self.mesh), op, "activation")
        self.at_hand[gradient.name] = [goal]

    # -- everything else

    def _positions(self, op: Op, array: Array, output: Array, out: Sharding) -> Sharding:
        """The sharding that an input needs for a map to run where its output lies."""
        if op.kind != "route" and len(array.axes) == len(output.axes):
            return Sharding(out.axes)
        row = dict(zip(output.axes, out.axes, strict=True))
        own = dict(zip(array.axes, shard(array, self.rules).axes, strict=True))
        return Sharding(tuple(row.get(a, own[a]) for a in array.axes))

    def _local(
        self,
        op: Op,
        makes: str,
        work: Size | None,
        read: Sequence[tuple[Array, Sharding]],
        written: Sequence[tuple[Array, Sharding]],
    ) -> None:
        matrix = op.kind == "scan"
        self.steps.append(
            LocalOp(
                op.name,
                op.kind,
                self.phase,
                makes,
                flops=work if matrix else None,
                vector_flops=None if matrix else work,
                reads=self._public(read, op),
                writes=self._public(written, op),
                fused=op.fused,
                part=op.part,
            )
        )

    def _map(self, op: Op, output: Array, wanted: Sharding) -> None:
        """Anything that is not an einsum: it runs where its output lies (a loss: where the logits lie)."""
        read: list[tuple[Array, Sharding]] = []
        for name in op.inputs:
            array = self.program.array(name)
            have = self._have(array, op.name)
            goal = have[0] if op.kind == "loss" else self._positions(op, array, output, wanted)
            self._bring(array, goal, op.name, "weight" if array.role == "weight" else "activation")
            read.append((array, goal))
        if op.kind == "loss":
            logits, out = read[0]
            self._local(op, output.name, Size.of(logits.axes, out.used, op.flops), read, ())
            return
        work = Size.of(output.axes, wanted.used, op.flops) if op.flops else None
        self._local(op, output.name, work, read, [(output, wanted)])
        self.at_hand[output.name] = [wanted]

    def _map_backward(self, op: Op) -> None:
        output = self.program.array(op.output)
        if op.kind == "loss":
            logits = self.program.array(op.inputs[0])
            out = shard(logits, self.rules)
            self._contribute(logits.name, out)
            work = Size.of(logits.axes, out.used, op.flops)
            self._local(op, f"d_{logits.name}", work, [(logits, out)], [(self._gradient(logits.name), out)])
            return
        out = self.at_hand[f"d_{op.output}"][0]
        read = [(self._gradient(op.output), out)]
        written: list[tuple[Array, Sharding]] = []
        for name in op.inputs:
            array = self.program.array(name)
            if array.role == "input" and array.dtype.startswith("int"):
                continue
            goal = self._positions(op, array, output, out)
            if not op.linear:
                self._have(array, op.name)
                self._bring(array, goal, op.name, "weight" if array.role == "weight" else "activation")
                read.append((array, goal))
            by_position = op.kind != "route" and len(array.axes) == len(output.axes)
            lost = () if by_position else tuple(
                m for a, axes in zip(output.axes, out.axes, strict=True) if a not in array.axes for m in axes
            )
            part = Sharding(goal.axes, tuple(m for m in lost if m not in goal.used))
            written.append((self._gradient(name), goal))
            if array.role == "weight":
                self._reduce_weight(op, array, part)
            else:
                self._contribute(name, part)
        work = Size.of(output.axes, out.used, (1.0 if op.linear else 2.0) * op.flops) if op.flops else None
        self._local(op, written[0][0].name if written else f"d_{op.output}", work, read, written)

    def _one_hot(self, op: Op) -> tuple[Array, Array]:
        """A lookup moves what the product of one-hot rows with the table would move."""
        table, tokens = (self.program.array(n) for n in op.inputs)
        return Array(f"one_hot({tokens.name})", (*tokens.axes, table.axes[0]), "int8", "activation", tokens.layout), table

    def _lookup(self, op: Op, output: Array, wanted: Sharding) -> None:
        rows, table = self._one_hot(op)
        use = self._have(table, op.name)[0]
        own = shard(rows, self.rules)
        self.at_hand[rows.name] = [Sharding((*own.axes[:-1], tuple(m for m in use.axes[0] if m not in own.used)))]
        self._forward_einsum(op, [rows, table], output, wanted)
        self._local(op, output.name, None, [(output, wanted)], [(output, wanted)])

    def _lookup_backward(self, op: Op) -> None:
        rows, table = self._one_hot(op)
        gradient = self._gradient(op.output)
        split = self.split[op.name]
        self.at_hand[rows.name] = [Sharding(tuple(split[a] for a in rows.axes))]
        out = self._local_einsum(op, [rows, gradient], self._gradient(table.name))
        have = self.at_hand[gradient.name][0]
        self._local(op, f"d_{table.name}", None, [(gradient, have)], [(gradient, have)])
        self._reduce_weight(op, table, out)

    def _run_kernel_again(self, kernel: str) -> None:
        """A fused kernel kept nothing of its inside: what its backward needs of it is computed once more."""
        inside = [op for op in self.program.ops if op.fused == kernel and op.output in self.private]
        for op in inside:
            start = len(self.steps)
            output = self.program.array(op.output)
            if op.kind == "einsum":
                self._local_einsum(op, [self.program.array(n) for n in op.inputs], output)
            else:
                self._map(op, output, shard(output, self.rules))
            self.steps[start:] = [replace(s, again=True) if isinstance(s, LocalOp) else s for s in self.steps[start:]]
