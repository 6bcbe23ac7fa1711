"""Rematerialisation: which forward arrays are kept for the backward pass, and which ops run again."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rooftop.arrays import Op, Program, Size, fused_only
from rooftop.errors import InputError, nearest
from rooftop.units import dtype_bytes

#: What may be kept. none: every array that the backward pass reads (never scores inside a fused attention kernel).
#: dots: the outputs of all matmuls, attention's among them. selective: those of matmuls with weights (book, section 4: seven in a
#: gated block). full: the block's input.
POLICIES = ("none", "dots", "selective", "full")
#: A policy that keeps named arrays begins so: save:q,k,v keeps these three, wherever a block has them.
SAVE = "save:"
#: What asks a search for the best set of named arrays.
AUTO = "auto"
#: Groups of arrays among which the best set is looked for: all subsets of so many are tried.
_MOST = 7


@dataclass(frozen=True, slots=True)
class Remat:
    """Names of the arrays kept from forward to backward, and of the ops that run a second time."""

    policy: str
    saved: tuple[str, ...]
    recomputed: tuple[str, ...]


def remat(program: Program, policy: str) -> Remat:
    """What a policy keeps and recomputes of a program."""
    made = {op.output: op for op in program.ops}
    private = fused_only(program)
    needed = _read_by_backward(program) - private  # a fused kernel makes its inside again by itself
    if policy == "none":
        kept = set(needed)
    elif policy in ("dots", "selective"):
        dots = (op for op in program.ops if op.kind == "einsum" and (policy == "dots" or _has_weight(program, op)))
        kept = {op.output for op in dots} & _ancestors(program, needed, made)
    elif policy.startswith(SAVE):
        kept = set(names_of(policy))
    else:
        kept = set()
    kept = {name for name in kept if name in made} - private
    again: set[str] = set()
    todo = [name for name in needed if name not in kept]
    while todo:
        op = made.get(todo.pop())
        if op is None or op.name in again:
            continue
        again.add(op.name)
        todo += [name for name in op.inputs if name not in kept]
    if policy not in ("none", "full"):  # keep only what stops a recomputation
        used = {name for op in program.ops if op.name in again for name in op.inputs} | needed
        kept &= used
    inputs = {a.name for a in program.arrays if a.role == "input" and a.dtype != "int32"}
    return Remat(
        policy,
        tuple(a.name for a in program.arrays if a.name in kept or a.name in inputs),
        tuple(op.name for op in program.ops if op.name in again),
    )


def names_of(policy: str) -> tuple[str, ...]:
    """The arrays that a policy keeps by name."""
    return tuple(policy.removeprefix(SAVE).split(",")) if policy.startswith(SAVE) else ()


def check_names(blocks: Iterable[Program], policy: str) -> None:
    """Refuse names of arrays that no block makes."""
    known = sorted({name for block in blocks for name in _made(block)})
    for name in names_of(policy):
        if name not in known:
            raise InputError(
                f"remat {policy[:60]}: no block makes {name[:40]!r}{nearest(name, known)}; it can keep {', '.join(known)}",
                field="remat",
            )


def sets(blocks: Sequence[tuple[int, Program]]) -> tuple[str, ...]:
    """The policies among which `auto` chooses: every set of groups of arrays, of those that recompute the same the smallest.

    blocks: how often each kind of block comes, and its program. A group is what one kernel reads of a block for the first time:
    keeping a part of it still makes the rest again. Beyond seven groups, the one of fewest bytes joins its neighbour.
    """
    groups = _groups(blocks)
    found: dict[tuple[object, ...], str] = {}
    for size in range(len(groups) + 1):
        for some in itertools.combinations(groups, size):
            policy = SAVE + ",".join(itertools.chain(*some)) if some else "full"
            does = tuple(remat(block, policy).recomputed for _, block in blocks)
            found.setdefault(does, policy)
    return tuple(found.values())


def _groups(blocks: Sequence[tuple[int, Program]]) -> list[tuple[str, ...]]:
    reader: dict[str, str] = {}
    bytes: dict[str, float] = {}
    for count, block in blocks:
        needed = _read_by_backward(block) & _made(block)
        for op in block.ops:
            if op.linear or op.kind in ("lookup", "route"):
                continue
            for name in op.inputs:
                if name in needed:
                    reader.setdefault(name, op.fused or op.name)
        for name in needed:
            reader.setdefault(name, name)
            bytes[name] = bytes.get(name, 0.0) + count * _bytes(block, name)
    groups: dict[str, list[str]] = {}
    for name, by in reader.items():
        groups.setdefault(by, []).append(name)
    result = list(groups.values())
    while len(result) > _MOST:
        least = min(range(len(result)), key=lambda i: sum(bytes[n] for n in result[i]))
        into = least - 1 if least else 1
        result[into] = result[into] + result[least]
        del result[least]
    return [tuple(group) for group in result]


def _bytes(program: Program, name: str) -> float:
    """Bytes of an array for one sequence."""
    known: Mapping[str, int] = {n: s for n, s in program.axes.items() if isinstance(s, int)} | {"B": 1}
    array = program.array(name)
    sizes = (program.axes.get(a, 1) for a in array.axes)
    return math.prod(float(s(known, {})) if isinstance(s, Size) else s for s in sizes) * dtype_bytes(array.dtype)


def _made(program: Program) -> set[str]:
    """Arrays that a block makes and that leave their kernel."""
    return {op.output for op in program.ops} - fused_only(program)


def _read_by_backward(program: Program) -> set[str]:
    names: set[str] = set()
    for op in program.ops:
        if op.kind in ("lookup", "route") or op.linear:
            continue
        names.update(op.inputs)
        if op.kind in ("scan",):
            names.add(op.output)
    return {name for name in names if program.array(name).role != "weight"}


def _ancestors(program: Program, names: set[str], made: dict[str, Op]) -> set[str]:
    result: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in result:
            continue
        result.add(name)
        if name in made:
            todo += made[name].inputs
    return result


def _has_weight(program: Program, op: Op) -> bool:
    return op.kind == "einsum" and any(program.array(name).role == "weight" for name in op.inputs)
