"""The space of training plans: which parts of a slice to use, how to factor them over mesh axes, and where each lies.

The space that is searched, exactly:
- used chips: the whole slice, or a part of it with whole hosts: any even number of chips along a side of a torus, whole
  switched domains, and of the outermost switched level any number k·2^j with k < 32; at least half of the slice;
- mesh: every way to write the number of chips as data x fsdp x tensor x context x expert x pipeline whose parts divide
  what they split (heads, d_model, d_ff, vocabulary, sequence, experts), with no more stages than layers; tensor_transpose has one
  way unless it is fixed or opened;
- placement: every way to factor each side of the torus and each switched level over those axes, innermost first in the
  order tensor, tensor_transpose, context, expert, fsdp, data, pipeline;
- microbatches: per data-parallel group either a fixed number of microbatches or of sequences in each, from a list; the
  batch is the nearest that splits evenly;
- choices: every combination of the values of `Choices` that a search tries (`tried`, or what the user allows), each once: a
  choice about a mesh axis is at its default where that axis has one way;
- stages: as `_schedule.rules` demand them.

What is left out. On a side of a torus that several mesh axes share, only that order is tried: another one would give other
axes the neighbouring chips. On switched levels the order changes no collective's time. Experts lie over the expert axis, which
outside of experts splits the batch like data and fsdp: data x fsdp x expert is what others call the data-parallel degree, of
which the expert ways are a part. Within an expert, `tensor` splits the feed-forward axis, unless `expert_fold` lays whole experts over it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooftop.costing import ASKED_AXES, MESH_AXES, batch_groups, inner_mesh
from rooftop.roofline import Dimension, divisors
from rooftop.training._choices import Choices, applies, combinations
from rooftop.training._schedule import holds, rules
from rooftop.training._structure import Structure

IntArray = NDArray[np.int64]
Array = NDArray[np.float64]

#: Fixed numbers of microbatches that are tried, and fixed numbers of sequences in a microbatch.
MICROBATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256)
SEQUENCES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the user restricts: values of choices to try (all, where none is named), the part of the slice to use at least."""

    allowed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    microbatches: int | None = None
    least_used: float = 0.5
    opened: tuple[str, ...] = ()  # mesh axes of ASKED_AXES that are to be tried
    ignore_memory: bool = False

    @property
    def choices(self) -> tuple[Choices, ...]:
        """Every combination to try."""
        return tuple(combinations(self.values))

    @property
    def values(self) -> Mapping[str, tuple[Any, ...]]:
        """`allowed`, with what opened axes bring along."""
        return {**self.allowed, "grid": (True,)} if "tensor_transpose" in self.opened else self.allowed

    def on(self, fixed: Mapping[str, int]) -> Limits:
        """The same with the axes opened that are fixed to several ways."""
        more = tuple(a for a in ASKED_AXES if fixed.get(a, 1) > 1 and a not in self.opened)
        return replace(self, opened=(*self.opened, *more)) if more else self

    def applies(self, chosen: Choices, model: Structure, ways: Mapping[str, Any], microbatches: Any) -> Any:
        """Whether a combination is one to try on a mesh with so many microbatches; ways and microbatches may be arrays."""
        tried = applies(chosen, self.values, ways)
        return tried & holds(rules(chosen, model.layers, ways, microbatches))

    @property
    def layouts(self) -> tuple[Choices, ...]:
        """Their distinct layouts."""
        return tuple(dict.fromkeys(c.layout for c in self.choices))


@dataclass(frozen=True, slots=True)
class Batch:
    """How many sequences a step may have: `target` if that splits evenly, else the nearest from `least` to `most`."""

    target: float
    least: float
    most: float

    @staticmethod
    def within(target: float, tolerance: float, most: float = math.inf) -> Batch:
        """Whole numbers of sequences within a tolerance (a share) of a target, at most so many."""
        most = math.floor(min(target * (1 + tolerance), most) + 1e-9)
        return Batch(target, max(1.0, math.ceil(target * (1 - tolerance) - 1e-9)), float(most))

    def splits(self, groups: IntArray) -> NDArray[np.bool_]:
        """Whether so many data-parallel groups can share some batch evenly."""
        return np.asarray(np.floor(self.most / groups) * groups >= self.least)


def allows(model: Structure, ways: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Whether every array axis of a model divides evenly; ways by inner mesh axis, all of one shape."""
    shape = np.broadcast_shapes(*(np.shape(w) for w in ways.values()))
    result = np.ones(shape, dtype=np.bool_)
    for size, names in model.divisible:
        product: Any = 1
        for name in names:
            product = product * ways.get(name, 1)
        result &= size % product == 0
    return result


def options(model: Structure, axis: str, candidates: Sequence[int]) -> list[int]:
    """Candidate ways of one mesh axis that divide what that axis splits when it is alone."""
    n = np.array(candidates, dtype=np.int64)
    if axis in ("tensor", "tensor_transpose"):
        keep = allows(model, inner_mesh({axis: n}, model.kv_heads))
    elif axis == "pipeline":
        keep = n <= model.layers
    elif axis == "expert" and not any("expert" in names for _, names in model.divisible):
        keep = n == 1
    else:
        keep = allows(model, {axis: n})
    return [int(x) for x in n[keep]]


def used_sizes(dimensions: Sequence[Dimension], fraction: float = 0.5) -> Iterator[tuple[int, ...]]:
    """Sizes of the parts of a network that a plan may use, the whole first, then by falling number of chips."""
    choices: list[list[int]] = []
    for index, dimension in enumerate(dimensions):
        size = dimension.size
        if dimension.torus:
            sides = [d for d in range(2, size, 2) if d * 2 >= size]
            choices.append([*sides, size])
        elif index == len(dimensions) - 1 and size > 1:
            choices.append([n for n in range(1, size + 1) if n * 2 >= size and (n == size or _short(n))])
        else:
            choices.append([size])
    whole = math.prod(d.size for d in dimensions)
    parts = [p for p in itertools.product(*choices) if math.prod(p) >= fraction * whole]
    parts.sort(key=lambda p: (-math.prod(p), p))
    yield from parts


def _short(n: int) -> bool:
    while n % 2 == 0:
        n //= 2
    return n < 32


def meshes(
    chips: int, model: Structure, fixed: Mapping[str, int], max_groups: int, opened: Sequence[str] = ()
) -> IntArray:
    """All meshes of `chips` chips as rows of ways in the order of MESH_AXES; shape [n, axes]. opened: those of ASKED_AXES to try."""
    every = divisors(chips)
    names = MESH_AXES[1:]
    choices = []
    for axis in names:
        if axis in ASKED_AXES and axis not in (*fixed, *opened):
            candidates = [1]
        else:
            candidates = [n for n in every if axis not in fixed or n == fixed[axis]]
        choices.append(options(model, axis, candidates))
    if not all(choices):
        return np.zeros((0, len(MESH_AXES)), dtype=np.int64)
    grid = np.stack(np.meshgrid(*choices, indexing="ij"), axis=-1).reshape(-1, len(names)).astype(np.int64)
    product = grid.prod(axis=1)
    keep = chips % product == 0
    grid, product = grid[keep], product[keep]
    rows = np.concatenate([(chips // product)[:, None], grid], axis=1)
    ways = {axis: rows[:, i] for i, axis in enumerate(MESH_AXES)}
    keep = allows(model, inner_mesh(ways, model.kv_heads))
    keep &= batch_groups(ways) <= max_groups
    if "data" in fixed:
        keep &= ways["data"] == fixed["data"]
    return np.asarray(rows[keep])


def microbatchings(groups: IntArray, batch: Batch, only: int | None = None) -> tuple[IntArray, Array, Array]:
    """All ways to cut the batch of so many data-parallel groups, shape [meshes], into microbatches; each of shape [n].

    Returns (index into groups, ascending; microbatches; sequences in each); only: this number of microbatches.
    """
    g = groups[:, None].astype(np.float64)
    m_fixed = np.array(MICROBATCHES, dtype=np.float64)[None, :]
    b_fixed = np.array(SEQUENCES, dtype=np.float64)[None, :]
    b = np.maximum(1.0, np.rint(batch.target / (g * m_fixed)))
    m = np.maximum(1.0, np.rint(batch.target / (g * b_fixed)))
    microbatches = np.concatenate([np.broadcast_to(m_fixed, b.shape), m], axis=1)
    sequences = np.concatenate([b, np.broadcast_to(b_fixed, m.shape)], axis=1)
    whole = g * microbatches * sequences
    valid = (whole <= batch.most) & (whole >= batch.least)
    if only is not None:
        valid &= microbatches == only
    # a pair that both rules give counts once
    fixed = len(MICROBATCHES)
    for i in range(fixed, microbatches.shape[1]):
        valid[:, i] &= ~(
            valid[:, :i] & (microbatches[:, :i] == m[:, i - fixed, None]) & (sequences[:, :i] == b_fixed[0, i - fixed])
        ).any(axis=1)
    mesh, option = np.nonzero(valid)
    return mesh, microbatches[mesh, option], sequences[mesh, option]
