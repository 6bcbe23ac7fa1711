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
from rooftop.arrays._resolve import LocalEinsum, Way
from rooftop.arrays._types import Mesh, Sharding

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
