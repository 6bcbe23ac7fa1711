"""From chip to chip, from host to chip: what single links carry."""

from __future__ import annotations

from collections.abc import Sequence

from rooftop.errors import InputError
from rooftop.formula import Number, formula
from rooftop.hardware import Chip, Slice, Torus


def _torus(where: Slice) -> Torus:
    level = where.levels[0] if where.levels else None
    if not isinstance(level, Torus):
        raise InputError(f"{where.name} is not a torus; ask about a TPU slice such as v5e:4x4", field="on")
    return level


def _inside(level: Torus, at: Sequence[int], where: Slice) -> None:
    if len(at) != len(level.dims) or any(not 0 <= c < n for c, n in zip(at, level.dims, strict=False)):
        raise InputError(
            f"{tuple(at)} is not a chip of {where.name}; give {len(level.dims)} coordinates below {level.dims}",
            field="chip",
        )


def hops_between(where: Slice, start: Sequence[int], end: Sequence[int]) -> int:
    """Links on a shortest way between two chips of a torus, around the ring where a side wraps (book, section 2)."""
    level = _torus(where)
    _inside(level, start, where)
    _inside(level, end, where)
    hops = 0
    for a, b, n, wrap in zip(start, end, level.dims, level.wrap, strict=True):
        straight = abs(a - b)
        hops += min(straight, n - straight) if wrap else straight
    return hops


def ports(where: Slice, chip: Sequence[int]) -> int:
    """Links of a chip: two along a side that wraps, one at the end of a side that does not."""
    level = _torus(where)
    _inside(level, chip, where)
    count = 0
    for at, n, wrap in zip(chip, level.dims, level.wrap, strict=True):
        if n > 1:
            count += 2 if wrap or 0 < at < n - 1 else 1
    return count


def first_byte_seconds(where: Slice, start: Sequence[int], end: Sequence[int]) -> float:
    """When the first byte arrives: one latency a hop (book, section 2)."""
    return hops_between(where, start, end) * _torus(where).hop_latency


def send_seconds(where: Slice, bytes: float, start: Sequence[int], end: Sequence[int]) -> float:
    """Time to send bytes from one chip to another over all links that both have: latency, then bandwidth (book, section 2)."""
    links = min(ports(where, start), ports(where, end))
    return float(stream_seconds(bytes, links * _torus(where).link_bandwidth)) + first_byte_seconds(where, start, end)


def gather_to_one_seconds(where: Slice, bytes: float, chip: Sequence[int]) -> float:
    """Time for one chip to receive an array that is spread over the slice: all but its own part enters by its links."""
    rest = bytes * (where.chips - 1) / where.chips
    return float(stream_seconds(rest, ports(where, chip) * _torus(where).link_bandwidth))


@formula("T_stream", "s", "book, section 2: bytes over bandwidth")
def stream_seconds(bytes: Number, bandwidth: Number) -> Number:
    """Bytes over a pipe of some bandwidth (bytes/s)."""
    return bytes / bandwidth


def host_load_seconds(where: Slice, bytes: float) -> float:
    """Time to bring an array, spread evenly, from the memory of the hosts to all chips of a slice, each by its own PCIe."""
    return float(stream_seconds(bytes / where.chips, where.chip.pcie_bandwidth))


def memory_bandwidth(chip: Chip, memory: str) -> float:
    """Bandwidth of one of a chip's memories: hbm, fast (VMEM, SMEM) or host (over PCIe, one way)."""
    known = {"hbm": chip.hbm_bandwidth, "fast": chip.fast_memory.bandwidth, "host": chip.pcie_bandwidth}
    if memory not in known:
        raise InputError(f"unknown memory {memory!r}; use one of {', '.join(known)}", field="memory")
    return known[memory]
