"""Sharded arrays and their collectives carried out on NumPy blocks, one for each device of a mesh.

Slow and exact: this is what the resolver is checked against, and a way to see what a collective does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rooftop.arrays._collective import Collective
from rooftop.arrays._place import renaming
from rooftop.arrays._program import LocalOp, Move, ResolvedProgram, Step, weight_sharding
from rooftop.arrays._reshard import Space, collective, path
from rooftop.arrays._resolve import LocalEinsum, Way
from rooftop.arrays._types import Array, Mesh, Op, Rules, Sharding, shard

#: A device is its coordinates in the mesh, in the order of the mesh axes.
Device = tuple[int, ...]
Block = NDArray[np.int64]
Blocks = dict[Device, Block]


def devices(mesh: Mesh) -> list[Device]:
    """All devices of a mesh."""
    return list(itertools.product(*(range(axis.size) for axis in mesh.axes)))


def distribute(whole: Block, sharding: Sharding, mesh: Mesh, seed: int = 0) -> Blocks:
    """The block of each device. Where the sharding is unreduced, random blocks that sum to the array."""
    rng = np.random.default_rng(seed)
    parts = {}
    positions = list(itertools.product(*(range(mesh.sizes[name]) for name in sharding.unreduced)))
    for position in positions[1:]:
        parts[position] = rng.integers(-9, 10, whole.shape)
    parts[positions[0]] = whole - sum(parts.values(), np.zeros_like(whole))
    blocks = {}
    for device in devices(mesh):
        at = dict(zip(mesh.sizes, device, strict=True))
        block = parts[tuple(at[name] for name in sharding.unreduced)]
        blocks[device] = _sliced(block, device, sharding.axes, mesh)
    return blocks


def collect(blocks: Blocks, sharding: Sharding, mesh: Mesh) -> Block:
    """The array that the blocks hold. Raises AssertionError if devices that must agree do not."""
    sums = _summed(blocks, sharding.unreduced, mesh)
    whole = sums
    for axis, names in enumerate(sharding.axes):
        whole = _gathered(whole, axis, names, mesh)
    first, *others = whole.values()
    for other in others:
        np.testing.assert_array_equal(first, other)
    return first


def execute(collective: Collective, blocks: Blocks, mesh: Mesh) -> Blocks:
    """The blocks after a collective."""
    before, after, axes = collective.before, collective.after, collective.axes
    lost = [b[len(a) :] for b, a in zip(before.axes, after.axes, strict=True)]
    got = [a[len(b) :] for b, a in zip(before.axes, after.axes, strict=True)]
    match collective.kind:
        case "slice":
            return {device: _sliced(block, device, got, mesh) for device, block in blocks.items()}
        case "all_gather":
            for axis, names in enumerate(lost):
                blocks = _gathered(blocks, axis, names, mesh)
            return blocks
        case "all_reduce":
            return _summed(blocks, axes, mesh)
        case "reduce_scatter":
            return {device: _sliced(block, device, got, mesh) for device, block in _summed(blocks, axes, mesh).items()}
        case "all_to_all":
            return _exchanged(
                blocks, next(i for i, n in enumerate(lost) if n), next(i for i, n in enumerate(got) if n), axes, mesh
            )
        case "permute":
            return _permuted(blocks, before, after, axes, mesh)
    raise AssertionError(collective.kind)


def emulate(way: Way, inputs: Mapping[str, Blocks], mesh: Mesh) -> Blocks:
    """The output blocks of a way, from the input blocks by array name."""
    blocks = dict(inputs)
    for step in way.before:
        blocks[step.array] = execute(step, blocks[step.array], mesh)
    if way.local is None:
        return next(iter(blocks.values()))
    output = local(way.local, blocks, mesh)
    for step in way.after:
        output = execute(step, output, mesh)
    return output


def local(einsum: LocalEinsum, blocks: Mapping[str, Blocks], mesh: Mesh) -> Blocks:
    """The local einsum on every device."""
    indices = [array.axes for array in einsum.inputs]
    return {
        device: contract([blocks[array.name][device] for array in einsum.inputs], indices, einsum.output.axes)
        for device in devices(mesh)
    }


def contract(operands: Sequence[Block], indices: Sequence[tuple[str, ...]], output: tuple[str, ...]) -> Block:
    """`numpy.einsum` with named axes."""
    number = {axis: i for i, axis in enumerate(dict.fromkeys(axis for axes in indices for axis in axes))}
    arguments = [
        part
        for operand, axes in zip(operands, indices, strict=True)
        for part in (operand, [number[axis] for axis in axes])
    ]
    return np.asarray(np.einsum(*arguments, [number[axis] for axis in output]))


def _rank(device: Device, names: Sequence[str], mesh: Mesh) -> int:
    at = dict(zip(mesh.sizes, device, strict=True))
    rank = 0
    for name in names:
        rank = rank * mesh.sizes[name] + at[name]
    return rank


def _members(device: Device, names: Sequence[str], mesh: Mesh) -> list[Device]:
    """The devices of the group of `device`, in the order of their rank along `names` (major to minor)."""
    order = list(mesh.sizes)
    members = []
    for position in itertools.product(*(range(mesh.sizes[name]) for name in names)):
        member = list(device)
        for name, at in zip(names, position, strict=True):
            member[order.index(name)] = at
        members.append(tuple(member))
    return members


def _sliced(block: Block, device: Device, axes: Sequence[tuple[str, ...]], mesh: Mesh) -> Block:
    for axis, names in enumerate(axes):
        ways = math.prod(mesh.sizes[name] for name in names)
        block = np.split(block, ways, axis)[_rank(device, names, mesh)]
    return block


def _gathered(blocks: Blocks, axis: int, names: tuple[str, ...], mesh: Mesh) -> Blocks:
    return (
        {
            device: np.concatenate([blocks[member] for member in _members(device, names, mesh)], axis)
            for device in blocks
        }
        if names
        else blocks
    )


def _summed(blocks: Blocks, names: tuple[str, ...], mesh: Mesh) -> Blocks:
    return {device: np.sum([blocks[member] for member in _members(device, names, mesh)], axis=0) for device in blocks}


def _exchanged(blocks: Blocks, source: int, target: int, names: tuple[str, ...], mesh: Mesh) -> Blocks:
    ways = math.prod(mesh.sizes[name] for name in names)
    parts = {device: np.split(block, ways, target) for device, block in blocks.items()}
    return {
        device: np.concatenate(
            [parts[member][_rank(device, names, mesh)] for member in _members(device, names, mesh)], source
        )
        for device in blocks
    }


def _permuted(blocks: Blocks, before: Sharding, after: Sharding, names: tuple[str, ...], mesh: Mesh) -> Blocks:
    def index(device: Device, sharding: Sharding) -> list[int]:
        return [_rank(device, axis, mesh) for axis in sharding.axes]

    return {
        device: next(
            blocks[member] for member in _members(device, names, mesh) if index(member, before) == index(device, after)
        )
        for device in blocks
    }


class ProgramRun:
    """A resolved program carried out on the blocks of every device, forward, backward and update.

    Maps stand for simple functions of their kind: a linear one is the sum of its inputs, any other one their product.
    Then the program is multilinear in its weights, and gradients can be checked exactly. Losses and routes are not
    carried out.
    """

    def __init__(self, resolved: ResolvedProgram, rules: Rules, mesh: Mesh, arrays: Mapping[str, Block]) -> None:
        self.resolved, self.rules, self.mesh = resolved, rules, mesh
        self.program = resolved.program
        self.ops = {op.name: op for op in self.program.ops}
        self.versions: dict[str, dict[Sharding, Blocks]] = {}
        for name, whole in arrays.items():
            self.put(name, whole)

    def put(self, name: str, whole: Block) -> None:
        """Distribute an array, or the gradient of one, as the rules say."""
        sharding = shard(self._array(name), self.rules)
        self.versions[name] = {sharding: distribute(whole, sharding, self.mesh)}

    def get(self, name: str, sharding: Sharding) -> Block:
        """The whole array, from the version in that sharding."""
        return collect(self._need(name, sharding), sharding, self.mesh)

    def forward(self) -> None:
        """Run the forward pass, and keep of each array what its layout says."""
        for step in self.resolved.forward:
            self._step(step)
        for array in self.program.arrays:
            if array.name in self.versions:
                layout = shard(array, self.rules)
                self.versions[array.name] = {layout: self._need(array.name, layout)}

    def backward(self) -> None:
        """Run the backward pass; the gradients of the program's outputs are there already."""
        for step in self.resolved.backward:
            self._step(step)

    def update(self) -> None:
        """Run the collectives of the update; the new weights are the old ones, as the optimizer holds them."""
        for weight in self.program.weights:
            states = weight_sharding(weight, self.rules, "optimizer")
            have = self.get(weight.name, shard(weight, self.rules))
            self.versions[weight.name] = {states: distribute(have, states, self.mesh)}
        for step in self.resolved.update:
            self._step(step)

    def _array(self, name: str) -> Array:
        return self.program.array(name.removeprefix("d_"))

    def _step(self, step: Step) -> None:
        if isinstance(step, Move):
            c = step.collective
            self.versions[c.array][c.after] = execute(c, self._need(c.array, c.before), self.mesh)
            return
        op = self.ops[step.op]
        taken = [(name, sharding, self._need(name, sharding)) for name, sharding in step.takes]
        for name, sharding in step.gives:
            blocks = {
                device: self._local(op, step, name, [(n, s, b[device]) for n, s, b in taken], device)
                for device in devices(self.mesh)
            }
            if name.startswith("d_"):
                self._add(name, sharding, blocks)
            else:
                self.versions[name] = {sharding: blocks}

    def _need(self, name: str, sharding: Sharding) -> Blocks:
        """A version of an array, sliced from another one where that is all it takes."""
        for have, blocks in list(self.versions[name].items()):
            if have.axes == sharding.axes and set(have.unreduced) == set(sharding.unreduced):
                return blocks
        space = Space((0,) * len(sharding.axes), tuple(self.mesh.sizes.items()), structural=True)
        for have, blocks in list(self.versions[name].items()):
            steps = path(have, sharding, space) if set(sharding.unreduced) <= set(have.unreduced) else ()
            if steps and all(step.kind == "slice" for step in steps):
                for step in steps:
                    blocks = execute(collective(self._array(name), step), blocks, self.mesh)
                return blocks
        raise AssertionError(f"{name} is not at hand as {sharding}, only as {list(self.versions[name])}")

    def _add(self, name: str, sharding: Sharding, blocks: Blocks) -> None:
        """Add a part of a gradient; parts that are whole count on the first device of a mesh axis only."""
        if name not in self.versions:
            self.versions[name] = {sharding: blocks}
            return
        ((have, others),) = self.versions[name].items()
        assert have.axes == sharding.axes, f"parts of {name} are split differently: {have} and {sharding}"
        union = tuple(dict.fromkeys((*have.unreduced, *sharding.unreduced)))
        first = _masked(others, [n for n in union if n not in have.unreduced], self.mesh)
        second = _masked(blocks, [n for n in union if n not in sharding.unreduced], self.mesh)
        self.versions[name] = {Sharding(have.axes, union): {d: first[d] + second[d] for d in first}}

    def _local(
        self, op: Op, step: LocalOp, name: str, taken: list[tuple[str, Sharding, Block]], device: Device
    ) -> Block:
        blocks = [block for _, _, block in taken]
        axes = [self._array(taken_name).axes for taken_name, _, _ in taken]
        output = self.program.array(op.output)
        made = self._array(name)
        if op.kind == "einsum":
            return contract(blocks, axes, made.axes)
        if op.kind == "lookup":
            return self._lookup(op, step, blocks, device)
        renamed = [renaming(self._array(n), output) for n, _, _ in taken]
        if not op.linear:
            # The derivative of a product by an input is the product of the others.
            kept = [i for i, (n, _, _) in enumerate(taken) if n != name.removeprefix("d_")]
            target = renaming(made, output) if step.phase == "backward" and not step.again else output.axes
            return contract([blocks[i] for i in kept], [renamed[i] for i in kept], target)
        if step.phase == "backward":
            return contract(blocks[:1], [output.axes], renaming(made, output))
        total = np.zeros_like(blocks[0], shape=[self._extent(axis, taken, renamed) for axis in output.axes])
        for block, names in zip(blocks, renamed, strict=True):
            shape = [block.shape[names.index(axis)] if axis in names else 1 for axis in output.axes]
            total = total + block.reshape(shape)
        return total

    @staticmethod
    def _extent(axis: str, taken: list[tuple[str, Sharding, Block]], renamed: list[tuple[str, ...]]) -> int:
        return next(int(b.shape[n.index(axis)]) for (_, _, b), n in zip(taken, renamed, strict=True) if axis in n)

    def _lookup(self, op: Op, step: LocalOp, blocks: list[Block], device: Device) -> Block:
        """Rows of this device's part of the table (or the gradients summed into them), zero for all other tokens."""
        table = self.program.array(op.inputs[0])
        split = (step.takes if step.phase == "forward" else step.gives)[0][1]
        extent = self.program.axes[table.axes[0]]
        assert isinstance(extent, int)
        rows = extent // math.prod(self.mesh.sizes[n] for n in split.axes[0])
        tokens = blocks[1] - rows * _rank(device, split.axes[0], self.mesh)
        here = (tokens >= 0) & (tokens < rows)
        if step.phase == "forward":
            return np.asarray(np.where(here[..., None], blocks[0][np.where(here, tokens, 0)], 0))
        gradient = np.zeros((rows, blocks[0].shape[-1]), blocks[0].dtype)
        np.add.at(gradient, tokens[here], blocks[0][here])
        return gradient


def _masked(blocks: Blocks, names: Sequence[str], mesh: Mesh) -> Blocks:
    return {d: block if _rank(d, names, mesh) == 0 else np.zeros_like(block) for d, block in blocks.items()}
