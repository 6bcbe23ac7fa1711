"""A plan, the problem that it solves, and the environment in which its formulas are evaluated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rooftop.costing import Rates, batch_groups, inner_mesh, matmuls_of, rates_of
from rooftop.formula import Number
from rooftop.hardware import Slice, peak
from rooftop.roofline import Calibration, Dimension, dimensions
from rooftop.training._choices import DEFAULT, Choices
from rooftop.training._recipe import Recipe
from rooftop.training._structure import Structure, structure
from rooftop.transformer import Documents, pieces_of

#: What becomes of documents that are shorter than a sequence: laid end to end and cut where a sequence ends, or padded.
PACKING = ("packed", "padded")


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to train: a mesh with its place on the network, and a schedule.

    mesh: ways by mesh axis. factors: for each dimension of the slice's network, ways by mesh axis (their product is the
    part of the dimension that is used). microbatches: per step. sequences: in one microbatch of one data-parallel group.
    choices: ZeRO stage, rematerialisation and the like.
    """

    mesh: Mapping[str, int]
    factors: tuple[Mapping[str, int], ...]
    microbatches: int
    sequences: int
    choices: Choices = DEFAULT

    @property
    def chips(self) -> int:
        """Chips used."""
        return math.prod(self.mesh.values())

    @property
    def groups(self) -> int:
        """Groups of chips that see different sequences."""
        return int(batch_groups(self.mesh))

    @property
    def batch_sequences(self) -> int:
        """Sequences in a step."""
        return self.groups * self.microbatches * self.sequences


@dataclass(frozen=True, slots=True)
class Problem:
    """What to train, on what, and the rules of the search."""

    model: Any  # transformer.Architecture
    slice: Slice
    seq: int
    batch_tokens: float
    batch_within: float
    recipe: Recipe
    calibration: Calibration
    headroom: float = 0.0  # part of HBM that must stay free
    max_batch_tokens: float = math.inf
    documents: Documents | None = None  # of which sequences are made; each one document unless given
    packing: str = "packed"

    def structure(self, chosen: Choices, *, fold: bool = True, keep: tuple[str, ...] = ()) -> Structure:
        """The model under the choices of a plan; see `_structure.structure`. keep: more remat policies of named arrays."""
        inside = self.pieces if self.packing == "packed" else None
        return structure(
            self.model, self.seq, chosen.layout, self.recipe, inside, fold=fold, keep=(*chosen.sets, *keep)
        )

    @property
    def pieces(self) -> Documents | None:
        """Documents as sequences hold them, those that are too long in pieces."""
        return None if self.documents is None else pieces_of(self.documents, self.seq, self.packing == "packed")

    @property
    def filled(self) -> float:
        """The part of all positions that hold tokens; the others are padding."""
        return 1.0 if self.pieces is None or self.packing == "packed" else self.pieces.mean / self.seq

    @property
    def capacity(self) -> float:
        """Bytes of HBM that a plan may use on each chip."""
        return self.slice.chip.hbm_bytes * (1 - self.headroom)

    @property
    def host_capacity(self) -> float:
        """Bytes of host memory of each chip: an even share of its host's."""
        return self.slice.chip.host_memory_bytes / self.slice.chip.chips_per_host

    @property
    def copies(self) -> int:
        """How often a token goes to an expert in one layer."""
        return 1 if self.model.experts is None else int(self.model.experts.active)

    @property
    def rates(self) -> Rates:
        """Peak and achieved rates of the chip for the recipe's dtypes."""
        rates = rates_of(self.slice.chip, self.recipe.compute, self.calibration, sustained=True)
        low = self.recipe.low_rate
        if low is None or self.recipe.matmul is None:
            return rates
        of = matmuls_of(peak(self.slice.chip, low), low, self.calibration, sustained=True)
        return replace(rates, by_weight={self.recipe.matmul: of})

    @property
    def peak(self) -> float:
        """FLOP/s of the chip at the lowest precision of the recipe's matmuls: what utilisation refers to."""
        return peak(self.slice.chip, self.recipe.low_rate or self.recipe.compute)

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The dimensions of the network, innermost first."""
        return dimensions(self.slice.levels)


def environment(
    mesh: Mapping[str, Number], sequences: Number, kv_heads: int, axes: Mapping[str, int]
) -> tuple[dict[str, Number], dict[str, Number]]:
    """(sizes of array axes, sizes of inner mesh axes) of one microbatch; B counts sequences over all groups."""
    inner = inner_mesh(mesh, kv_heads)
    return {**axes, "B": sequences * batch_groups(inner)}, inner
