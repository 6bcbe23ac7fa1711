"""The roofs of a device: rates that an op can at most reach, from the chip's data or from what the profile states."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rooftop.errors import InputError
from rooftop.hardware import Slice, chips, slice_of
from rooftop.profiles._events import Device

#: What profilers call chips. A name that is not here has no roof unless --on names the chip.
_NAMES = (
    (r"TPU v6 ?(Lite|e)", "v6e"), (r"TPU v5 ?(Lite|e)", "v5e"), (r"TPU v5p?$", "v5p"), (r"TPU v4$", "v4"), (r"TPU v3", "v3"),
    (r"TPU v2", "v2"), (r"TPU ?v?7", "tpu7x"), (r"H100 (80GB|SXM)", "h100"), (r"H200", "h200"), (r"H800", "h800"),
    (r"GB200", "gb200"), (r"\bB200", "b200"), (r"A100.*80GB", "a100-80g"), (r"A100.*40GB", "a100-40g"), (r"V100", "v100"),
    (r"NVIDIA compute 7\.0, 80 SMs", "v100"), (r"MI300X", "mi300x"), (r"AMD 304 cores", "mi300x"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Roof:
    """Rates in FLOP/s (by dtype) and bytes/s; `source` says where they come from. where: the slice, for collectives."""

    name: str
    flops: Mapping[str, float]
    bandwidth: float
    source: str
    where: Slice | None = None
    host_bandwidth: float = 0.0

    def peak(self, dtype: str) -> float | None:
        """The dense peak for a dtype; unknown dtypes count as the chip's 16-bit rate, which none of them exceeds by much."""
        if dtype in self.flops:
            return self.flops[dtype]
        if dtype == "fp16":
            return self.flops.get("bf16")
        if dtype == "tf32":
            return self.flops.get("bf16", 0.0) / 2 or None
        return self.flops.get("bf16") or self.flops.get("fp16")


def roof_for(device: Device, on: str | None) -> Roof | None:
    """The roof of a device of a profile; of `on` where that is given. None where nobody knows it."""
    if on is not None:
        where = slice_of(on)
        return Roof(where.chip.name, where.chip.flops, where.chip.hbm_bandwidth, f"data of {where.chip.title} (--on)", where,
                    where.chip.pcie_bandwidth)  # fmt: skip
    name = chip_of(device)
    if name is not None:
        where = slice_of(name)
        return Roof(name, where.chip.flops, where.chip.hbm_bandwidth, f"data of {where.chip.title}, which the profile names",
                    host_bandwidth=where.chip.pcie_bandwidth)  # fmt: skip
    if device.flops and device.bandwidth:
        return Roof(device.name, {"bf16": device.flops}, device.bandwidth, "the profile")
    return None


def chip_of(device: Device) -> str | None:
    """The name of a chip of ours for what a profiler calls a device."""
    known = set(chips())
    for pattern, name in _NAMES:
        if re.search(pattern, device.name) and name in known:
            return name
    if "A100" in device.name and device.memory_bytes:
        return "a100-40g" if device.memory_bytes < 50e9 else "a100-80g"
    return None


def collective_bound(roof: Roof, kind: str, bytes: float, members: int) -> float | None:
    """Seconds that no schedule of a collective beats over `members` neighbouring chips; None where no such slice exists."""
    from rooftop.roofline import collective_time

    if members < 2 or bytes <= 0 or not kind:
        return None
    if roof.where is not None and roof.where.chips == members:
        return collective_time(kind, bytes, {"x": members}, roof.where).bound
    for name in (f"{roof.name}:{members}", f"{roof.name}:{members}x1", f"{roof.name}:{members}x1x1"):
        try:
            return collective_time(kind, bytes, {"x": members}, slice_of(name)).bound
        except InputError:
            continue
    return None
