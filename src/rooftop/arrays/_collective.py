"""What devices must exchange, as data: which array, over which mesh axes, how many elements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rooftop.arrays._size import Size
from rooftop.arrays._types import Sharding
from rooftop.units import dtype_bytes

#: Kind of a collective -> its name in the notation.
KINDS = {
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_reduce": "AllReduce",
    "all_to_all": "AllToAll",
    "permute": "Permute",
    "slice": "Slice",
}


def subscript(names: Iterable[str]) -> str:
    """Mesh axes as the notation writes them behind an underscore: `XY`, `fsdp`, `{fsdp,tensor}`."""
    names = tuple(names)
    if all(len(name) == 1 and name.isascii() and name.isupper() for name in names):
        return "".join(names)
    if len(names) == 1 and not names[0].isupper():
        return names[0]
    return "{" + ",".join(names) + "}"


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective on one array, the same on every group of devices that differ in the mesh axes `axes` only.

    `size` is in elements: the whole array of one group, that is what an all-gather ends with, a reduce-scatter or an
    all-reduce starts with and an all-to-all holds over the group; for a permute (and the free slice), one device's
    block before it. `axis` names the array axis that is gathered, scattered or (all-to-all) moved from, several ones
    joined by a comma; `to_axis` the one that an all-to-all moves to. Printed as `AllGather_X A`.
    """

    kind: str
    array: str
    axes: tuple[str, ...]
    size: Size
    dtype: str
    before: Sharding
    after: Sharding
    axis: str = ""
    to_axis: str = ""

    @property
    def bytes(self) -> Size:
        """`size` in bytes."""
        return self.size * dtype_bytes(self.dtype)

    def __str__(self) -> str:
        return f"{KINDS[self.kind]}_{subscript(self.axes)} {self.array}"


def link_bytes(collective: Collective, sizes: Mapping[str, Any], mesh: Mapping[str, Any]) -> Any:
    """Bytes that each device sends over its links, on numbers, arrays or symbols alike.

    V (n-1)/n for an all-gather or a reduce-scatter of V bytes over n devices, twice that for an all-reduce, a further
    1/n for an all-to-all (a device sends all but its own n-th of its block V/n), a block for a permute, nothing for a
    slice. This is what any algorithm must send at least; how far the bytes travel is the topology's affair.
    """
    if collective.kind == "slice":
        return 0.0 * collective.bytes(sizes, mesh)
    whole = collective.bytes(sizes, mesh)
    if collective.kind == "permute":
        return whole
    n = math.prod(mesh[name] for name in collective.axes)
    factor = {"all_reduce": 2, "all_to_all": 1 / n}.get(collective.kind, 1)
    return whole * factor * (n - 1) / n
