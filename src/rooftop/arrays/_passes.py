"""The forward and the backward pass of a program, op by op. The rules are in `_program`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rooftop.arrays._collective import Collective
from rooftop.arrays._place import Placement, place
from rooftop.arrays._program import (
    LocalOp,
    Move,
    ResolvedProgram,
    Step,
    fused_only,
    trained,
    weight_sharding,
)
from rooftop.arrays._reshard import Space, collective, path, path_elements
from rooftop.arrays._resolve import groups
from rooftop.arrays._size import Size
from rooftop.arrays._types import Array, Mesh, Op, Program, Rules, Sharding, checked, shard
from rooftop.units import dtype_bytes

#: What is inside a fused kernel cannot be moved between devices; a placement that would is the last choice.
_INSIDE = 1e12

Block = tuple[Array, Sharding]


def resolve_program(
    program: Program,
    rules: Rules,
    sizes: Mapping[str, int],
    mesh: Mesh | Mapping[str, int],
    *,
    gradient_unreduced: Sequence[str] = (),
    gradient_dtype: str | None = None,
    forward_only: bool = False,
) -> ResolvedProgram:
    """Resolve `program` forward and backward under `rules`; with `forward_only` there is neither backward pass nor update.

    `sizes` (of every axis) and `mesh` are examples: where two ways are both sensible they decide by bytes sent; every
    Size in the answer holds for any sizes and any mesh. Rows of `rules`: one for each layout of the program's arrays
    ("weight": as stored), "weight_use" (weights as ops use them), "gradient" (gradients of weights as accumulated)
    and "optimizer" (its states). A weight of layout `expert_weight` looks for `expert_weight_use` and so on first.
    Without a row, use and gradients are as stored, and the optimizer's states as the gradients. Over the mesh axes
    `gradient_unreduced` the sum of weight gradients waits for the update. Gradients of weights have the weight's
    dtype or `gradient_dtype`.

    Raises InputError for a mesh axis of the rules that `mesh` lacks.
    """
    mesh = mesh if isinstance(mesh, Mesh) else Mesh.of(mesh)
    return _Passes(program, rules, sizes, mesh, tuple(gradient_unreduced), gradient_dtype).resolved(forward_only)


class _Passes:
    """Resolves one program. `at_hand` holds the shardings in which each array is available in the current pass."""

    def __init__(
        self,
        program: Program,
        rules: Rules,
        sizes: Mapping[str, int],
        mesh: Mesh,
        unreduced: tuple[str, ...],
        gradient_dtype: str | None,
    ) -> None:
        self.program, self.rules, self.sizes, self.mesh = program, rules, sizes, mesh
        self.unreduced, self.gradient_dtype = unreduced, gradient_dtype
        self.private = fused_only(program)
        self.trained = trained(program)
        self.placements: dict[str, Placement] = {}
        self.gradients: dict[str, Sharding] = {}
        self.divisible: dict[tuple[str, tuple[str, ...]], None] = {}
        self._start("forward")

    def resolved(self, forward_only: bool = False) -> ResolvedProgram:
        """The program, resolved."""
        for array in self.program.arrays:
            self._note(array, checked(array, shard(array, self.rules), None, self.mesh))
        forward = self._forward()
        backward, update = ((), ()) if forward_only else (self._backward(), self._update())
        return ResolvedProgram(self.program, forward, backward, update, self.gradients, tuple(sorted(self.divisible)))

    def _start(self, phase: str) -> None:
        self.phase = phase
        self.steps: list[Step] = []
        self.at_hand: dict[str, list[Sharding]] = {}
        self.parts: dict[str, list[Sharding]] = {}
        self.read_by_kernel: set[tuple[str, str]] = set()

    # Passes

    def _forward(self) -> tuple[Step, ...]:
        for op in self.program.ops:
            wanted = shard(self.program.array(op.output), self.rules)
            for name in op.inputs:
                self._have(name, op)
            self.placements[op.name] = place(op, self.program, self.at_hand, wanted, [*self.mesh.sizes], self._price)
            self._run(op)
        return tuple(self.steps)

    def _backward(self) -> tuple[Step, ...]:
        self._start("backward")
        read = {name for op in self.program.ops for name in op.inputs}
        for op in self.program.ops:
            # What no op reads is an output of the program; its gradient comes from outside.
            if op.output not in read and op.kind != "loss" and op.output in self.trained:
                self.parts[op.output] = [shard(self.program.array(op.output), self.rules)]
        first_user = {name: op.name for op in reversed(self.program.ops) for name in op.inputs}
        kernels: set[str] = set()
        for op in reversed(self.program.ops):
            if op.kind != "loss" and op.output not in self.parts:
                continue
            if op.kind != "loss":
                self._complete(op.output, self.placements[op.name].output.axes, op)
            if op.fused is not None and op.fused not in kernels:
                kernels.add(op.fused)
                self._run_again(op.fused)
            self._differentiate(op)
            for name in dict.fromkeys(op.inputs):
                array = self.program.array(name)
                if first_user[name] != op.name or name not in self.parts:
                    continue
                if array.role == "weight":
                    self._complete_weight(array, op)
                elif array.role == "input":
                    self._complete(name, shard(array, self.rules).axes, op)
        return tuple(self.steps)

    def _update(self) -> tuple[Move, ...]:
        self._start("update")
        op = Op("update", "update", (), "", part="optimizer")
        for weight in self.program.weights:
            if weight.name not in self.gradients:
                continue
            stored = weight_sharding(weight, self.rules, "weight")
            states = weight_sharding(weight, self.rules, "optimizer")
            gradient = self._gradient(weight)
            self._move(gradient, self._path(gradient, self.gradients[weight.name], states), op, "gradient")
            self._move(weight, self._path(weight, states, stored), op, "weight")
        return tuple(step for step in self.steps if isinstance(step, Move))

    # Bringing arrays to where they are needed

    def _have(self, name: str, op: Op) -> list[Sharding]:
        """The shardings in which an array is at hand; a weight comes into its layout of use first."""
        if name not in self.at_hand:
            array = self.program.array(name)
            start = shard(array, self.rules)
            if array.role == "weight":
                start = weight_sharding(array, self.rules, "weight")
                use = weight_sharding(array, self.rules, "weight_use")
                self._note(array, use)
                self._move(array, self._path(array, start, use), op, "weight")
                start = use
            self.at_hand[name] = [start]
        return self.at_hand[name]

    def _bring(self, array: Array, goal: Sharding, op: Op) -> None:
        versions = self._have(array.name, op)
        if goal not in versions:
            start = min(versions, key=lambda version: self._price(array, version, goal))
            role = "weight" if array.role == "weight" else "activation"
            self._move(array, self._path(array, start, goal), op, role)
            versions.append(goal)

    def _space(self, array: Array) -> Space:
        return Space(tuple(self.sizes[axis] for axis in array.axes), tuple(self.mesh.sizes.items()), structural=True)

    def _path(self, array: Array, start: Sharding, goal: Sharding) -> list[Collective]:
        return [collective(array, step) for step in path(start, goal, self._space(array))]

    def _price(self, array: Array, start: Sharding, goal: Sharding) -> float:
        inside = _INSIDE if array.name in self.private else 1.0
        return path_elements(start, goal, self._space(array)) * dtype_bytes(array.dtype) * inside

    def _move(self, array: Array, steps: Sequence[Collective], op: Op, role: str) -> None:
        for step in steps:
            self._note(array, step.after)
            if step.kind != "slice":
                self.steps.append(Move(step, op.name, self.phase, role, op.part))

    def _note(self, array: Array, sharding: Sharding) -> None:
        for axis, names in zip(array.axes, sharding.axes, strict=True):
            if names:
                self.divisible[axis, names] = None

    # Forward

    def _run(self, op: Op, *, again: bool = False) -> None:
        """Bring an op's inputs to its placement, do its local work, and bring the output to its layout."""
        placement = self.placements[op.name]
        inputs = [self.program.array(name) for name in op.inputs]
        output = self.program.array(op.output)
        for array, goal in zip(inputs, placement.inputs, strict=True):
            self._bring(array, goal, op)
        self._note(output, placement.output)
        blocks = list(zip(inputs, placement.inputs, strict=True))
        if op.kind == "einsum":
            self._local_einsum(op, blocks, (output, placement.output), again)
        else:
            self._local(op, output.name, 1.0, blocks, [(output, placement.output)], again)
        wanted = shard(output, self.rules)
        if op.kind == "loss":
            self._normalise(op)
        else:
            self._move(output, self._path(output, placement.output, wanted), op, "activation")
        self.at_hand[output.name] = [wanted]

    def _local_einsum(self, op: Op, inputs: Sequence[Block], output: Block, again: bool = False) -> None:
        split = self.placements[op.name].split
        size = {axis: Size.of((axis,), names) for axis, names in split.items()}
        batch, rows, contraction, columns = groups([array.axes for array, _ in inputs], output[0].axes, size)
        self.steps.append(
            LocalOp(
                op.name,
                op.kind,
                self.phase,
                output[0].name,
                takes=_named(inputs),
                gives=_named([output]),
                flops=self.placements[op.name].size * (len(inputs) * op.fraction),
                reads=self._bytes(inputs, op, read=True),
                writes=self._bytes([output], op),
                batch=batch,
                rows=rows,
                contraction=contraction,
                columns=columns,
                fused=op.fused,
                part=op.part,
                again=again,
                dtype=inputs[0][0].dtype,
            )
        )

    def _local(
        self,
        op: Op,
        makes: str,
        times: float,
        read: Sequence[Block],
        written: Sequence[Block],
        again: bool = False,
    ) -> None:
        """Work that is not an einsum: `times` what the op does forward."""
        placement = self.placements[op.name]
        output = self.program.array(op.output)
        points = Size.of(output.axes, placement.output.used)
        if op.kind == "loss":
            points = Size.of(self.program.array(op.inputs[0]).axes, placement.inputs[0].used)
        work = points * (op.flops * times) if op.flops else None
        reads, writes = self._bytes(read, op, read=True), self._bytes(written, op)
        if op.kind == "lookup":
            # A device has the rows of its part of the table, for some of the tokens: on average its share of them.
            share = Size.of((), placement.output.unreduced)
            rows = points * dtype_bytes(output.dtype) * share
            reads = (rows,) if self.phase == "forward" else reads
            writes = (rows,) if self.phase == "backward" else writes
        self.steps.append(
            LocalOp(
                op.name,
                op.kind,
                self.phase,
                makes,
                takes=_named(read),
                gives=_named(written),
                flops=work if op.kind == "scan" else None,
                vector_flops=None if op.kind == "scan" else work,
                reads=reads,
                writes=writes,
                fused=op.fused,
                part=op.part,
                again=again,
                dtype=output.dtype,
            )
        )

    def _bytes(self, blocks: Sequence[Block], op: Op, *, read: bool = False) -> tuple[Size, ...]:
        sizes = []
        for array, sharding in blocks:
            if op.fused is not None:
                key = (op.fused, array.name)
                if array.name.removeprefix("d_") in self.private or (read and key in self.read_by_kernel):
                    continue
                if read:
                    self.read_by_kernel.add(key)
            sizes.append(Size.of(array.axes, sharding.used) * dtype_bytes(array.dtype))
        return tuple(sizes)

    def _normalise(self, op: Op) -> None:
        """A loss over a split vocabulary sums two numbers a token over its parts: the maximum and the exponentials."""
        logits = self.program.array(op.inputs[0])
        have = self.placements[op.name].inputs[0]
        if have.axes and have.axes[-1]:
            sums = Array(f"{logits.name} sums", logits.axes[:-1], "fp32")
            before, after = Sharding(have.axes[:-1], have.axes[-1]), Sharding(have.axes[:-1])
            steps = [replace(step, size=step.size * 2) for step in self._path(sums, before, after)]
            self._move(sums, steps, op, "activation")

    # Backward

    def _gradient(self, array: Array) -> Array:
        dtype = self.gradient_dtype if array.role == "weight" and self.gradient_dtype else array.dtype
        return replace(array, name=f"d_{array.name}", role="activation", dtype=dtype)

    def _differentiate(self, op: Op) -> None:
        """The gradients of an op's inputs, each summed over this device's part of the op's work."""
        placement = self.placements[op.name]
        inputs = [self.program.array(name) for name in op.inputs]
        output = self.program.array(op.output)
        incoming: Block = (self._gradient(output), Sharding(placement.output.axes))
        blocks = list(zip(inputs, placement.inputs, strict=True))
        wanted = [i for i, array in enumerate(inputs) if array.name in self.trained]
        for i in wanted:
            self.parts.setdefault(inputs[i].name, []).append(placement.gradient(i))
        if op.kind == "einsum":
            for i in wanted:
                others = [block if j != i else incoming for j, block in enumerate(blocks)]
                for array, goal in others:
                    self._bring(array, goal, op)
                self._local_einsum(op, others, (self._gradient(inputs[i]), placement.gradient(i)))
            return
        made = [(self._gradient(inputs[i]), placement.gradient(i)) for i in wanted]
        read: list[Block] = [] if op.kind == "loss" else [incoming]
        needed = blocks if not op.linear and op.kind != "route" else []
        for array, goal in needed[1:] if op.kind == "lookup" else needed:
            self._bring(array, goal, op)
            read.append((array, goal))
        if made:
            self._local(op, made[0][0].name, 1.0 if op.linear else 2.0, read, made)

    def _complete(self, name: str, goal: tuple[tuple[str, ...], ...], op: Op) -> None:
        """Sum all parts of a gradient and bring it into the sharding in which it is needed."""
        gradient = self._gradient(self.program.array(name))
        for axes, unreduced in self._summed(name).items():
            self._move(gradient, self._path(gradient, Sharding(axes, unreduced), Sharding(goal)), op, "activation")
        self.at_hand[gradient.name] = [Sharding(goal)]

    def _complete_weight(self, weight: Array, op: Op) -> None:
        """Bring a weight's gradient into its layout; sums that wait for the update stay open."""
        gradient = self._gradient(weight)
        layout = weight_sharding(weight, self.rules, "gradient")
        summed = self._summed(weight.name)
        waiting = tuple(
            name for name in self.unreduced if name not in layout.used and any(name in u for u in summed.values())
        )
        self.gradients[weight.name] = Sharding(layout.axes, waiting)
        for axes, unreduced in summed.items():
            waits = tuple(name for name in waiting if name in unreduced)
            self._move(
                gradient, self._path(gradient, Sharding(axes, unreduced), Sharding(layout.axes, waits)), op, "gradient"
            )

    def _summed(self, name: str) -> dict[tuple[tuple[str, ...], ...], tuple[str, ...]]:
        """The parts of a gradient, those of one split added up on each device."""
        together: dict[tuple[tuple[str, ...], ...], tuple[str, ...]] = {}
        for part in self.parts[name]:
            together[part.axes] = tuple(dict.fromkeys((*together.get(part.axes, ()), *part.unreduced)))
        return together

    def _run_again(self, kernel: str) -> None:
        for op in self.program.ops:
            if op.fused == kernel and op.output in self.private:
                self._run(op, again=True)


def _named(blocks: Sequence[Block]) -> tuple[tuple[str, Sharding], ...]:
    return tuple((array.name, sharding) for array, sharding in blocks)
