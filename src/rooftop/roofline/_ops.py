"""Time of one op on one chip and of one collective on one group: the roofline, and what is expected of it."""

from __future__ import annotations

from rooftop.formula import Number, ceil, formula, maximum, minimum
from rooftop.roofline._network import Group


@formula("T_math", "s", "book, section 1: T_math = FLOPs / accelerator FLOPs per second")
def math_seconds(flops: Number, peak: Number) -> Number:
    """FLOPs over the dense peak rate of the dtype (FLOP/s)."""
    return flops / peak


@formula("T_hbm", "s", "book, section 1: T_comms = bytes / bandwidth")
def memory_seconds(bytes: Number, bandwidth: Number) -> Number:
    """Bytes read and written over the memory's bandwidth (bytes/s)."""
    return bytes / bandwidth


@formula("T_lower", "s", "book, section 1: at best arithmetic and transfers overlap perfectly")
def overlapped_seconds(first: Number, second: Number) -> Number:
    """The lower bound: the slower of two resources."""
    return maximum(first, second)


@formula("T_upper", "s", "book, section 1: at worst nothing overlaps; at most twice the lower bound")
def serial_seconds(first: Number, second: Number) -> Number:
    """The upper bound: one resource after the other."""
    return first + second


@formula("I", "FLOP/byte", "book, section 1: arithmetic intensity")
def intensity(flops: Number, bytes: Number) -> Number:
    """FLOPs per byte moved."""
    return flops / bytes


@formula("B_crit", "FLOP/byte", "book, section 1: peak intensity of the hardware, where the roofs meet")
def ridge(peak: Number, bandwidth: Number) -> Number:
    """The intensity from which an op is bound by arithmetic; for bf16 and B << D, F also the critical token batch."""
    return peak / bandwidth


@formula("I_attention", "FLOP/byte", "book, section 4: queries, keys, values and outputs move once, scores never")
def attention_intensity(queries: Number, keys: Number, group: Number) -> Number:
    """Intensity of fused attention in 16 bits: `queries` (T) on `keys` (S), `group` (G) query heads a KV head.

    4·T·S·G·K·H FLOPs over 2·(2·T·G + 2·S)·K·H bytes; without a causal mask.
    """
    return queries * keys * group / (queries * group + keys)


def padded(size: Number, tile: float) -> Number:
    """`size` rounded up to whole tiles."""
    return ceil(size / tile) * tile


@formula("waves", "", "tiles of the result run on all cores at once, wave by wave; the last wave may be part empty")
def wave_factor(tiles: Number, cores: Number, share: Number) -> Number:
    """How much longer a matmul takes since its tiles do not fill the last wave; share: how much of that is not recovered
    (by smaller tiles, or by splitting the contraction). At most 8 times the part of a wave counts.
    """
    return 1.0 + share * (minimum(ceil(tiles / cores) * cores / tiles, 8.0) - 1.0)


@formula(
    "T_op",
    "s",
    "the roofline with achieved rates; a part of the faster resource's time does not hide; a kernel's overhead",
)
def expected_op_seconds(
    flops: Number, bytes: Number, peak: Number, bandwidth: Number, overhead: Number, unhidden: Number = 0.0
) -> Number:
    """Expected time of one op whose rates (FLOP/s, bytes/s) are those achieved."""
    math, memory = flops / peak, bytes / bandwidth
    return maximum(math, memory) + unhidden * minimum(math, memory) + overhead


def _regimes(moving: Number, latency: Number, unhidden: Number) -> Number:
    """The larger of two regimes, and where messages are not ideal a part of the smaller one on top."""
    return maximum(moving, latency) + unhidden * minimum(moving, latency)


@formula(
    "T_gather", "s", "book, section 3: V·(n-1)/n bytes must enter every chip; one hop at a time when messages are small"
)
def gather_seconds(bytes: Number, rate: Number, latency: Number, unhidden: Number = 0.0) -> Number:
    """AllGather or ReduceScatter of an array of `bytes` (the whole array of one group)."""
    return _regimes(bytes * rate, latency, unhidden)


@formula("T_allreduce", "s", "book, section 3: a ReduceScatter, then an AllGather")
def all_reduce_seconds(bytes: Number, rate: Number, latency: Number, unhidden: Number = 0.0) -> Number:
    """AllReduce of an array of `bytes`, or one pass through switches that add."""
    return _regimes(bytes * rate, latency, unhidden)


@formula("T_alltoall", "s", "book, section 3: each chip sends V/n² to each other, over n/4 hops on average in a ring")
def all_to_all_seconds(bytes: Number, rate: Number, latency: Number, unhidden: Number = 0.0) -> Number:
    """AllToAll of an array of `bytes` held over the group."""
    return _regimes(bytes * rate, latency, unhidden)


@formula("T_permute", "s", "book, section 3: one block over one link")
def permute_seconds(bytes: Number, rate: Number, latency: Number, unhidden: Number = 0.0) -> Number:
    """CollectivePermute of one block of `bytes` to a neighbour."""
    return _regimes(bytes * rate, latency, unhidden)


#: Kind of collective -> its formula and the attributes of a group with its rate (s/byte) and its latency (s).
_COLLECTIVES = {
    "all_gather": (gather_seconds, "gather_rate", "gather_latency"),
    "reduce_scatter": (gather_seconds, "gather_rate", "gather_latency"),
    "broadcast": (gather_seconds, "gather_rate", "gather_latency"),
    "all_reduce": (all_reduce_seconds, "all_reduce_rate", "all_reduce_latency"),
    "all_to_all": (all_to_all_seconds, "all_to_all_rate", "gather_latency"),
    "dispatch": (all_to_all_seconds, "dispatch_rate", "gather_latency"),
    "permute": (permute_seconds, "permute_rate", "permute_latency"),
}


def collective_seconds(kind: str, bytes: Number, group: Group) -> Number:
    """Time of a collective; `bytes` is the whole array of one group, or the block for a permute.

    Bandwidth and latency regimes as in the book: the larger of the two. Kinds: all_gather, reduce_scatter,
    all_reduce, all_to_all, dispatch, permute, broadcast.
    """
    if kind not in _COLLECTIVES:
        raise ValueError(f"no collective {kind!r}")
    seconds, rate, latency = _COLLECTIVES[kind]
    return seconds(bytes, getattr(group, rate), getattr(group, latency), group.unhidden)
