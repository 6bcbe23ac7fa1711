"""Named axes: arrays, meshes, shardings, programs, and what they force. Knows nothing of time."""
from rooftop.arrays._size import Size
from rooftop.arrays._types import *
from rooftop.arrays._types import Axis, Array, Mesh, Sharding, Rules, Op, Program, shard, checked, local_size
from rooftop.arrays._resolve import *
from rooftop.arrays._collective import Collective
from rooftop.arrays._program import LocalOp, Move, ResolvedProgram, resolve_program, fused_only
