"""Named axes, sharded arrays, their notation, and what a sharding makes devices compute and exchange."""

from rooftop.arrays._collective import KINDS, Collective, link_bytes
from rooftop.arrays._notation import Expression, Term, parse, parse_array, show
from rooftop.arrays._passes import resolve_program
from rooftop.arrays._program import LocalOp, Move, ResolvedProgram, Step, fused_only, saved, weight_sharding
from rooftop.arrays._reshard import reshard
from rooftop.arrays._resolve import LocalEinsum, Resolution, Way, resolve
from rooftop.arrays._size import Size
from rooftop.arrays._types import Array, Axis, Mesh, Op, Program, Rules, Sharding, checked, local_size, shard

__all__ = [
    "KINDS",
    "Array",
    "Axis",
    "Collective",
    "Expression",
    "LocalEinsum",
    "LocalOp",
    "Mesh",
    "Move",
    "Op",
    "Program",
    "Resolution",
    "ResolvedProgram",
    "Rules",
    "Sharding",
    "Size",
    "Step",
    "Term",
    "Way",
    "checked",
    "fused_only",
    "link_bytes",
    "local_size",
    "parse",
    "parse_array",
    "reshard",
    "resolve",
    "resolve_program",
    "saved",
    "shard",
    "show",
    "weight_sharding",
]
