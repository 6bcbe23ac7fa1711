"""What well-tuned programs achieve of the data sheet: a few coefficients per chip, from a data file with provenance."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from rooftop.errors import InputError


@dataclass(frozen=True, slots=True)
class Calibration:
    """Achieved fractions of peak rates, latencies on top of the data sheet's, and what overlaps.

    matmul, hbm, vector: fractions of the peak. networks: fraction of the bandwidth by network name. latencies: seconds
    added to each hop. op_overhead: seconds per kernel. step_overhead: seconds per training step. serving: the same two where
    graphs of kernels are launched at once ("op", "step", which includes scheduling). overlap: the part
    of the compute time under which a class of collectives can hide: "prefetch" (weight gathers, gradient reductions),
    "critical" (between two matmuls that need it). reduction_gain: how much faster an all-reduce is where switches add.
    """

    name: str
    matmul: float
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
    serving: Mapping[str, float] = field(default_factory=lambda: {"op": 0.0, "step": 0.0})

    def network_efficiency(self, network: str) -> float:
        """The achieved fraction of a network's bandwidth."""
        return self.networks.get(network, self.networks.get("default", 1.0))

    def network_latency(self, network: str) -> float:
        """Seconds on top of the data sheet's latency, per hop of a torus or message through a switch."""
        return self.latencies.get(network, self.latencies.get("default", 0.0))


_FRACTIONS = ("matmul", "hbm", "vector", "attention")


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
        1.0,
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
    for key in _FRACTIONS:
        if not 0 < row[key] <= 1:
            raise InputError(
                f"calibration {name}: {key}={row[key]} is not a fraction; give a number above 0, at most 1"
            )
    return Calibration(name=name, sources=sources, **row)


@functools.cache
def _table() -> dict[str, Any]:
    text = resources.files("rooftop.roofline").joinpath("data/calibration.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
