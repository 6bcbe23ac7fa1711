"""Which arrays to keep from forward to backward, for every row by itself: the set whose passes are the fastest, of those that fit.

The sets are all subsets of the groups of `_remat.sets`, each evaluated by the formulas of memory and of a pass, with transfers on
the best links that groups of so many chips could have: so a set is chosen before a placement is. Nothing is chosen by a ratio of
seconds to bytes, since sets share what they recompute, and what is alive in a backward pass is not a sum over arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rooftop.roofline import Group
from rooftop.training._choices import Choices
from rooftop.training._remat import POLICIES
from rooftop.training._scene import IntArray, Rows


def best_sets(
    rows: Rows, some: IntArray, chosen: Choices, links: Mapping[tuple[str, ...], Group]
) -> dict[Choices, IntArray]:
    """For some rows, which the choices with remat `auto` apply to: by choices with a set of arrays, the rows that it is best for.
    links: what groups can do at best, by row.
    """
    few = rows.take(some)
    seconds = few.through(chosen, {axes: few.picked(group) for axes, group in links.items()})
    structure = rows.scene.structures[chosen.layout]
    policies = [p for p in structure.blocks[0].recomputed if p not in POLICIES]
    best, least, which = np.full(len(some), np.inf), np.full(len(some), np.inf), np.full(len(some), -1)
    for i, policy in enumerate(policies):
        on_chip, on_host = few.memory(replace(chosen, remat=policy))
        fits = (on_chip <= rows.scene.capacity) & (on_host <= rows.scene.host_capacity)
        takes = seconds(policy)
        better = fits & ((takes < best) | ((takes == best) & (on_chip < least)))
        best, least, which = np.where(better, takes, best), np.where(better, on_chip, least), np.where(better, i, which)
    return {replace(chosen, remat=policies[i]): some[which == i] for i in np.unique(which).tolist() if i >= 0}
