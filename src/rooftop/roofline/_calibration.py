"""What well-tuned programs achieve of the data sheet: a few coefficients per chip, from a data file with provenance."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from rooftop.errors import InputError
from rooftop.units import dtype_bytes


@dataclass(frozen=True, slots=True)
class Calibration:
    """Achieved fractions of peak rates, latencies on top of the data sheet's, and what overlaps.

    matmul: fraction of the peak by dtype ("default": any other). hbm, vector: fractions of the peak; attention: of the 16-bit peak,
    for fused attention, attention_overhead: seconds of its kernel on top of op_overhead. unhidden: part of the faster of arithmetic and memory that does not hide under the slower one. waves:
    part of a matmul's last wave of tiles that is lost where it is not full. cast: seconds of a matmul in fewer than 16 bits, more
    than the overhead of others, for the conversion of its operand. sustained: part of the matmul rate that long dense runs keep
    (clocks fall at the power limit). networks: fraction of the bandwidth by network name. latencies: seconds
    added to each hop; reduction_latency: latencies of an all-reduce, 2 where it is
    two passes, less where kernels send all at once; messages: part of the shorter of latency and transfer that does not hide. op_overhead: seconds per kernel. step_overhead: seconds per training step. serving: the same two where
    graphs of kernels are launched at once ("op", "step", which includes scheduling), for kernels of a pass over prompts ("prompt_op"),
    and seconds of a request outside of the engine ("request"). elementwise: part of the achieved HBM rate that elementwise kernels
    keep, as frameworks pass over arrays more than once; experts: part of the matmul rate that grouped matmuls of experts keep;
    all_to_all: part of the network rate that an all-to-all keeps. interval: of nine published training steps in ten, measured over expected lies between
    these, on sources that the fit left out. overlap: the part
    of the compute time under which a class of collectives can hide: "prefetch" (weight gathers, gradient reductions),
    "critical" (between two matmuls that need it). reduction_gain: how much faster an all-reduce is where switches add.
    """

    name: str
    matmul: Mapping[str, float]
    hbm: float
    vector: float
    networks: Mapping[str, float]
    latencies: Mapping[str, float]
    op_overhead: float
    step_overhead: float
    overlap: Mapping[str, float]
    attention: float
    provenance: str
    reduction_gain: float = 1.0
    sources: Mapping[str, str] = field(default_factory=dict)
    serving: Mapping[str, float] = field(
        default_factory=lambda: {"op": 0.0, "step": 0.0, "prompt_op": 0.0, "request": 0.0}
    )
    unhidden: float = 0.0
    waves: float = 0.0
    cast: float = 0.0
    messages: float = 0.0
    interval: tuple[float, float] | None = None
    reduction_latency: float = 2.0
    attention_overhead: float = 0.0
    sustained: float = 1.0
    elementwise: float = 1.0
    experts: float = 1.0
    all_to_all: float = 1.0

    def matmul_fraction(self, dtype: str) -> float:
        """The achieved part of the peak of matmuls in a dtype."""
        return self.matmul.get(dtype, self.matmul["default"])

    def matmul_overhead(self, dtype: str) -> float:
        """Seconds of a matmul kernel on top of its arithmetic and its bytes."""
        return self.op_overhead + (self.cast if dtype_bytes(dtype) < 2 else 0.0)

    def network_efficiency(self, network: str) -> float:
        """The achieved fraction of a network's bandwidth."""
        return self.networks.get(network, self.networks.get("default", 1.0))

    def network_latency(self, network: str) -> float:
        """Seconds on top of the data sheet's latency, per hop of a torus or message through a switch."""
        return self.latencies.get(network, self.latencies.get("default", 0.0))


_FRACTIONS = ("hbm", "vector", "attention", "sustained")


def calibration_for(chip_name: str, family: str) -> Calibration:
    """The calibration of a chip, or of its family where the chip has none of its own (its name then says so)."""
    table = _table()
    row = dict(table["family"].get(family, table["family"]["gpu"]))
    own = table.get("chip", {}).get(chip_name)
    name = f"{family} family"
    sources = dict(row.pop("sources", {}))
    if own:
        own = dict(own)
        sources.update(own.pop("sources", {}))
        for key, value in own.items():
            row[key] = {**row[key], **value} if isinstance(value, dict) else value
        name = f"{chip_name} (rest from the {family} family)"
    return _checked(name, row, sources)


def ideal() -> Calibration:
    """A calibration that achieves every peak and overlaps all that may be overlapped."""
    return Calibration(
        "ideal",
        {"default": 1.0},
        1.0,
        1.0,
        {},
        {},
        0.0,
        0.0,
        {"prefetch": 1.0, "critical": 0.0},
        1.0,
        "no losses at all",
        reduction_gain=2.0,
    )


def _checked(name: str, row: dict[str, Any], sources: dict[str, str]) -> Calibration:
    fractions = {key: row[key] for key in _FRACTIONS if key in row} | {
        f"matmul.{k}": v for k, v in row["matmul"].items()
    }
    for key, value in fractions.items():
        if not 0 < value <= 1:
            raise InputError(f"calibration {name}: {key}={value} is not a fraction; give a number above 0, at most 1")
    interval = row.pop("interval", None)
    return Calibration(name=name, sources=sources, interval=tuple(interval) if interval else None, **row)


@functools.cache
def _table() -> dict[str, Any]:
    text = resources.files("rooftop.roofline").joinpath("data/calibration.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
