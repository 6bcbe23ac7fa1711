"""What a program does, op by op, whoever tells it: a traced JAX function or a compiler's own listing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective of one op: `axes` are mesh axes, `bytes` the whole array of one group, `size` the members of a group."""

    kind: str  # all_gather, reduce_scatter, all_reduce, all_to_all, permute
    axes: tuple[str, ...]
    bytes: float
    size: int


@dataclass(frozen=True, slots=True)
class Op:
    """One kernel, as often as `times` says; everything else is of one time, on one device.

    flops: on the matrix unit; vector: elementwise. bytes: read and written if neighbours fuse; unfused: if each primitive
    reads its inputs and writes its outputs. matmul: (rows, contraction, columns, batch) where it is one.
    """

    name: str
    kind: str  # matmul, fusion, memory, network, kernel or unknown
    times: float = 1.0
    dtype: str = "fp32"
    flops: float = 0.0
    vector: float = 0.0
    bytes: float = 0.0
    unfused: float = 0.0
    matmul: tuple[float, float, float, float] | None = None
    transfer: Transfer | None = None
    scope: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """A whole program on one device. mesh: ways of its mesh axes; notes: what could not be told, in sentences."""

    name: str
    ops: tuple[Op, ...]
    mesh: Mapping[str, int] = field(default_factory=dict)
    inputs: float = 0.0  # bytes of the arguments
    outputs: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def flops(self) -> float:
        """FLOPs on the matrix unit."""
        return sum(op.times * op.flops for op in self.ops)

    @property
    def vector(self) -> float:
        """Elementwise FLOPs."""
        return sum(op.times * op.vector for op in self.ops)

    @property
    def bytes(self) -> float:
        """Bytes to and from HBM where neighbours fuse."""
        return sum(op.times * op.bytes for op in self.ops)

    @property
    def unfused(self) -> float:
        """Bytes to and from HBM where nothing fuses."""
        return sum(op.times * op.unfused for op in self.ops)

    def communicated(self) -> dict[tuple[str, tuple[str, ...]], tuple[float, float]]:
        """(count, bytes of whole arrays) by kind of collective and mesh axes."""
        result: dict[tuple[str, tuple[str, ...]], tuple[float, float]] = {}
        for op in self.ops:
            if op.transfer is not None:
                key = op.transfer.kind, op.transfer.axes
                count, bytes = result.get(key, (0.0, 0.0))
                result[key] = count + op.times, bytes + op.times * op.transfer.bytes
        return result
