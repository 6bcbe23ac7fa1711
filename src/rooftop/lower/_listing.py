"""What a program does, op by op, whoever tells it: a traced JAX function or a compiler's own listing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective of one op: `axes` are mesh axes, `bytes` the whole array of one group, `size` the members of a group.

    asynchronous: it starts and ends in different ops, with others between.
    """

    kind: str  # all_gather, reduce_scatter, all_reduce, all_to_all, permute
    axes: tuple[str, ...]
    bytes: float
    size: int
    asynchronous: bool = False

    @property
    def moved(self) -> float:
        """Bytes that each member must send: what every algorithm of the kind needs at least."""
        return moved_bytes(self.kind, self.bytes, self.size)


def moved_bytes(kind: str, bytes: float, size: float) -> float:
    """Bytes that each of `size` members sends in a collective on a whole array of so many bytes (book, section 3).

    An all-reduce is a reduce-scatter and an all-gather; an all-to-all keeps its own share of its share.
    """
    share = bytes * (1 - 1 / max(size, 1))
    return {"all_reduce": 2 * share, "all_to_all": share / max(size, 1), "permute": bytes}.get(kind, share)


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
