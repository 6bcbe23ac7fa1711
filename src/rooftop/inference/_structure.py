"""A model's programs of one phase resolved under a layout, compiled to terms. Resolved once; questions fill in numbers.

Open are the numbers of sequences (B), of experts that some token meets (E), and the ways of every mesh axis.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rooftop.arrays import Array, Move, Program, ResolvedProgram, Rules, Size, fused_only, resolve_program, shard
from rooftop.costing import INNER_AXES, Collector, Terms
from rooftop.inference._layouts import Layout, layouts
from rooftop.inference._precision import Precision, typed
from rooftop.transformer import Architecture, Cache, generation, prefill


@dataclass(frozen=True, slots=True)
class Compiled(Terms):
    """One program of a pass: what it does and holds, as indices into its distinct sizes (bytes of one chip)."""

    weights: tuple[int, ...]  # stored
    used: tuple[int, ...]  # as matmuls use them, where they are gathered for it
    read: Mapping[str, tuple[int, ...]]  # weights that must come out of HBM, in their stored shares, by part
    caches: tuple[int, ...]  # what it reads of the cache
    kept: tuple[int, ...]  # what it keeps of each sequence
    working: tuple[tuple[int, ...], ...]  # activations that are alive together


@dataclass(frozen=True, slots=True)
class Structure:
    """A phase of a model under one layout. counts: how often each program runs in one pass.

    draft: programs of the layers that predict further ahead, with the head, which run once for each token they draft.
    """

    programs: tuple[Compiled, ...]
    counts: Mapping[str, int]
    draft: Mapping[str, int]
    kv_heads: int
    experts: int
    active: float
    latent: bool  # caches have no KV heads
    tokens: int  # of each sequence in a pass
    groups: tuple[tuple[str, ...], ...]
    divisible: tuple[tuple[int, tuple[str, ...]], ...]


@functools.lru_cache(maxsize=512)
def structure(
    model: Architecture, phase: str, tokens: int, context: int, layout: Layout, spec: Precision, *, fold: bool = True
) -> Structure:
    """Resolve and compile one phase.

    "generate": `tokens` of each sequence at once (1, or more to verify a draft), the first at position `context`.
    "prefill": `tokens` of each prompt after `context` of them whose caches are there.
    """
    parts = generation(model, context, tokens) if phase == "generate" else prefill(model, tokens, context)
    kept = [c for b in parts.blocks for c in b.caches]
    latent = not any("K" in c.axes for c in kept)
    positions = ("S", "N") if any(c.every > 1 for c in kept) else ("S",)
    rules = layouts(layout, phase, latent=latent, positions=positions)
    every = [(parts.embed, 1, ()), *((b.program, b.count, b.caches) for b in parts.blocks), (parts.head, 1, ())]
    extra = [(b.program, b.count, b.caches) for b in parts.extra]
    compiled: list[Compiled] = []
    counts: dict[str, int] = {}
    for program, count, caches in (*every, *extra):
        opened = _opened(typed(program, model, spec))
        held = tuple(_held(c, spec.kv) for c in caches)
        own = {n: s for n, s in opened.axes.items() if isinstance(s, int)}
        compiler = _Compiler(_resolve(opened, rules), rules, held, tied=model.tied, fold=fold)
        compiled.append(replace(compiler.compiled(), own=own))
        counts[program.name] = count
    main = {p.name for p, _, _ in every}
    draft = {n: k for n, k in counts.items() if n not in main}
    if draft:
        draft[parts.head.name] = 1
    heads = [p.axes["K"] for p, _, _ in every if isinstance(p.axes.get("K"), int)]
    moe = model.experts
    return Structure(
        programs=tuple(compiled),
        counts={n: k for n, k in counts.items() if n in main},
        draft=draft,
        kv_heads=math.gcd(*heads) if heads else 1,  # type: ignore[arg-type]
        experts=moe.experts if moe else 0,
        active=moe.active * moe.capacity_factor if moe else 0.0,
        latent=latent,
        tokens=tokens,
        groups=tuple(sorted({t.axes for c in compiled for t in c.transfers})),
        divisible=tuple(sorted({pair for p, _, _ in every for pair in _divisible(p, rules)})),
    )


def _held(cache: Cache, dtype: str) -> Array:
    """What a layer keeps of all sequences, as an array: positions or entries of each, or a state."""
    positions = () if cache.fixed else ("S",) if cache.every == 1 else ("N",)
    return Array(cache.name, ("B", *positions, *cache.axes), cache.dtype or dtype, "cache", "cache")


def _opened(program: Program) -> Program:
    """The number of experts left open like the number of sequences: what matters is how many a batch meets."""
    return replace(program, axes={n: s for n, s in program.axes.items() if n != "E"}, _by_name={})


#: Axes that may be split unevenly: sequences, positions, slots.
_UNEVEN = {"B", "T", "S", "N", "C"}


def _resolve(program: Program, rules: Rules) -> ResolvedProgram:
    """Resolve at representative sizes: two ways of each mesh axis, and the program's own sizes made divisible."""
    mesh = dict.fromkeys(INNER_AXES, 2)
    known = {n: -(-s // 128) * 128 for n, s in program.axes.items() if isinstance(s, int)}
    known |= {"B": 128, "E": 128}
    sizes = {**known, **{n: int(s(known, {})) * 128 for n, s in program.axes.items() if isinstance(s, Size)}}
    return resolve_program(program, rules, sizes, mesh, forward_only=True)


def _divisible(program: Program, rules: Rules) -> Iterable[tuple[int, tuple[str, ...]]]:
    for array in program.arrays:
        for axis, names in zip(array.axes, shard(array, rules).axes, strict=True):
            size = program.axes.get(axis)
            if names and isinstance(size, int) and axis not in _UNEVEN:
                yield size, names


class _Compiler(Collector):
    """Compiles one resolved program. kept: what the program's layer keeps of each sequence."""

    def __init__(
        self, resolved: ResolvedProgram, rules: Rules, kept: tuple[Array, ...], *, tied: bool, fold: bool
    ) -> None:
        super().__init__(resolved, rules, fold=fold)
        self.resolved, self.kept, self.tied = resolved, kept, tied

    def compiled(self) -> Compiled:
        """Work, transfers, and what is held."""
        program = self.program
        steps = self.resolved.forward
        works = tuple(self.works(steps))
        transfers = self.transfers((s for s in steps if isinstance(s, Move)), self._overlap)
        looked_up = {op.inputs[0] for op in program.ops if op.kind == "lookup"}
        weights = program.weights
        part_of = {name: op.part for op in program.ops for name in op.inputs if program.array(name).role == "weight"}
        stored = [w for w in weights if not (self.tied and w.name == "embedding" and w.name not in looked_up)]
        gathered = [s for s in steps if isinstance(s, Move) and s.role == "weight"]
        caches = [a for a in program.arrays if a.role == "cache"]
        return Compiled(
            name=program.name,
            works=works,
            transfers=transfers,
            weights=self.sum(self.block(w) for w in stored),
            used=self.sum(m.collective.bytes for m in gathered),
            read={
                part: self.sum(self.block(w) for w in weights if w.name not in looked_up and part_of[w.name] == part)
                for part in dict.fromkeys(part_of.values())
            },
            caches=self.sum(self.block(a) for a in caches),
            kept=self.sum(self.block(a) for a in self.kept),
            working=self._moments(),
            sizes=self.sizes,
        )

    def _overlap(self, move: Move) -> str:
        if move.role == "weight":
            return "prefetch"
        op = next(o for o in self.program.ops if o.name == move.op)
        return "ring" if op.fused is not None and move.collective.kind == "all_gather" else "critical"

    def _moments(self) -> tuple[tuple[int, ...], ...]:
        """Activations alive at each op, from the op that makes them to the last that reads them."""
        program, private = self.program, fused_only(self.program)
        maker = {op.output: i for i, op in enumerate(program.ops)}
        last = {name: i for i, op in enumerate(program.ops) for name in op.inputs}
        arrays: list[Array] = [a for a in program.arrays if a.role in ("activation", "input") and a.name not in private]
        moments = []
        for position in range(len(program.ops)):
            alive = [a for a in arrays if maker.get(a.name, 0) <= position <= last.get(a.name, maker.get(a.name, 0))]
            moments.append(self.sum(self.block(a) for a in alive))
        return tuple(dict.fromkeys(moments))
