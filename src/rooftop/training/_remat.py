"""Rematerialisation: which forward arrays are kept for the backward pass, and which ops run again."""

from __future__ import annotations

from dataclasses import dataclass

from rooftop.arrays import Op, Program, fused_only

#: What may be kept. none: every array that the backward pass reads (never scores inside a fused attention kernel).
#: dots: the outputs of all matmuls, attention's among them. selective: those of matmuls with weights (book, section 4: seven in a
#: gated block). full: the block's input.
POLICIES = ("none", "dots", "selective", "full")


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
    if policy in ("dots", "selective"):  # keep only what stops a recomputation
        used = {name for op in program.ops if op.name in again for name in op.inputs} | needed
        kept &= used
    inputs = {a.name for a in program.arrays if a.role == "input" and a.dtype != "int32"}
    return Remat(
        policy,
        tuple(a.name for a in program.arrays if a.name in kept or a.name in inputs),
        tuple(op.name for op in program.ops if op.name in again),
    )


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
