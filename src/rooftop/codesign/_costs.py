"""What a chip and its network take: silicon, power, money; a model in a data file that users can replace.

Every number of a chip may be a NumPy array, and so are the costs then.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooftop._files import read_text
from rooftop.errors import InputError, nearest
from rooftop.hardware import Chip, Level, Torus

Array = NDArray[np.float64]
_MOST_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Costs:
    """Coefficients by table and name, as in `data/costs.toml`, where each names its unit and source."""

    name: str
    process: str
    values: Mapping[str, float]
    sources: Mapping[str, str]

    def __getitem__(self, name: str) -> float:
        return self.values[name]


@dataclass(frozen=True, slots=True)
class Ports:
    """What leaves a chip, in bytes a second one way: links of a torus, of a switched domain, and of the network beyond.

    stages: of switches between any two chips of the domain.
    """

    torus: Any = 0.0
    domain: Any = 0.0
    scaleout: Any = 0.0
    stages: Any = 1


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one chip with its part of everything around it. mm2: silicon, in `dies`. chip_watts: of the package alone.

    usd: what it takes to buy and to run it for the years of the cost model; capital: to buy it, with its place in a building.
    """

    mm2: Any
    dies: Any
    chip_watts: Any
    watts: Any
    capital: Any
    usd: Any


def costs(path: Path | None = None) -> Costs:
    """The cost model that comes with Rooftop, or with the numbers of a file in place of its own. Raises InputError."""
    shipped = _shipped()
    if path is None:
        return shipped
    try:
        data = tomllib.loads(read_text(path, _MOST_BYTES))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; give a TOML file", field="costs") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a TOML file: {str(error)[:120]}", field="costs") from None
    own = _flat(data, str(path))
    for name, value in own.items():
        if name not in shipped.values:
            raise InputError(
                f"{path}: unknown number {name!r}{nearest(name, shipped.values)}; known are {', '.join(shipped.values)}",
                field="costs",
            )
        if not 0 <= value <= 1e12 or (value == 0 and name in _ABOVE_ZERO):
            raise InputError(f"{path}: {name} = {value:g} is out of range; give a number above 0", field="costs")
    told = data.get("sources", {})
    sources = {k: str(v)[:400] for k, v in told.items()} if isinstance(told, dict) else {}
    changed = {name: sources.get(name, f"as given in {path.name}") for name in own}
    return Costs(
        path.stem, str(data.get("process", shipped.process))[:200], {**shipped.values, **own}, {**shipped.sources, **changed}
    )  # fmt: skip


_ABOVE_ZERO = ("area.reticle", "area.most_dies", "area.stacks_per_die", "price.wafer_mm", "network.domain_radix", "stack.bandwidth", "power.overhead",
               "price.margin")  # fmt: skip


@functools.cache
def _shipped() -> Costs:
    text = resources.files("rooftop.codesign").joinpath("data/costs.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    return Costs("costs of Rooftop", data["process"], _flat(data, "costs.toml"), data["sources"])


def _flat(data: Mapping[str, Any], where: str) -> dict[str, float]:
    """Numbers by table and name: `area.base`."""
    found: dict[str, float] = {}
    for table, values in data.items():
        if table in ("sources", "process"):
            continue
        if not isinstance(values, dict):
            raise InputError(f"{where}: {table} must be a table, [{table}]", field="costs")
        for name, value in values.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise InputError(f"{where}: {table}.{name} = {str(value)[:40]!r} is not a number", field="costs")
            found[f"{table}.{name}"] = float(value)
    return found


def stages(size: Any, model: Costs) -> Any:
    """Stages of switches that a message passes in a domain of so many chips: 1, then 3 (up, over, down), then 5."""
    radix = model["network.domain_radix"]
    if radix < 2:
        raise InputError("network.domain_radix joins fewer than 2 chips; give 2 or more", field="costs")
    tiers = np.maximum(1.0, np.ceil(np.log(np.maximum(size, 1)) / math.log(radix) - 1e-9))
    return 2 * tiers - 1


def ports_of(levels: tuple[Level, ...], model: Costs) -> Ports:
    """What leaves each chip of a slice: a torus has two links a dimension; the outermost of several levels is the network beyond."""
    torus: Any = 0.0
    domain: Any = 0.0
    scaleout: Any = 0.0
    passed: Any = 1
    for index, level in enumerate(levels):
        if isinstance(level, Torus):
            torus = torus + 2 * sum(n > 1 for n in level.dims) * level.link_bandwidth
        elif index == 0:
            domain, passed = level.bandwidth, stages(level.size, model)
        else:
            scaleout = scaleout + level.bandwidth
    return Ports(torus, domain, scaleout, passed)


def silicon(chip: Chip, ports: Ports, model: Costs) -> tuple[Any, Any]:
    """(mm2, dies) of a chip: the sum of what its parts take, on as few dies as the reticle and the stacks at their edges allow."""
    peak = next((chip.flops[d] for d in ("bf16", "fp16") if d in chip.flops), next(iter(chip.flops.values())))
    on_chip = chip.fast_memory.bytes + chip.units.get("l2_bytes", 0.0)
    parts = (
        model["area.per_tflops"] * peak / 1e12
        + model["area.per_sram_mb"] * on_chip / 1e6
        + model["area.per_hbm_tbps"] * chip.hbm_bandwidth / 1e12
        + model["area.per_link_gbps"] * (ports.torus + ports.domain + ports.scaleout) / 1e9
    )
    room = model["area.reticle"] - model["area.base"]
    if room <= 0:
        raise InputError("area.base leaves nothing of area.reticle; give a smaller one", field="costs")
    stacks = chip.hbm_bandwidth / model["stack.bandwidth"]
    dies = np.maximum(np.ceil(parts / room), np.ceil(stacks / model["area.stacks_per_die"] - 1e-9))
    return parts + dies * model["area.base"], dies


def cost_of(chip: Chip, ports: Ports, model: Costs) -> Cost:
    """What one chip takes with its part of server, network and building, all at full power.

    Dies of a wafer: pi·r²/A less those that its edge cuts, pi·d/sqrt(2·A); of these exp(-A·D) are good.
    """
    mm2, dies = silicon(chip, ports, model)
    peak = next((chip.flops[d] for d in ("bf16", "fp16") if d in chip.flops), next(iter(chip.flops.values())))
    links = ports.torus + ports.domain + ports.scaleout
    chip_watts = (
        model["power.pj_per_flop"] * 1e-12 * peak
        + model["power.pj_per_hbm_bit"] * 8e-12 * chip.hbm_bandwidth
        + model["power.pj_per_link_bit"] * 8e-12 * 2 * links
        + model["power.base"] * dies
    )
    watts = model["power.overhead"] * (
        chip_watts
        + model["power.host"]
        + model["power.domain_per_gbps"] * ports.stages * ports.domain / 1e9
        + model["power.scaleout_per_gbps"] * ports.scaleout / 1e9
    )
    die, wide = mm2 / dies, model["price.wafer_mm"]
    on_wafer = np.maximum(math.pi * wide**2 / 4 / die - math.pi * wide / np.sqrt(2 * die), 1.0)
    good = np.exp(-die * model["price.defects_per_mm2"])
    made = (
        dies * model["price.wafer"] / on_wafer / good
        + model["price.package_per_mm2"] * mm2
        + model["price.per_hbm_gb"] * chip.hbm_bytes / 1e9
    )
    capital = (
        model["price.margin"] * made
        + model["price.host"]
        + model["price.torus_per_gbps"] * ports.torus / 1e9
        + model["price.domain_per_gbps"] * ports.stages * ports.domain / 1e9
        + model["price.scaleout_per_gbps"] * ports.scaleout / 1e9
        + model["price.building_per_watt"] * watts
    )
    energy = watts / 1000 * 24 * 365.25 * model["price.years"] * model["price.per_kwh"]
    return Cost(mm2, dies, chip_watts, watts, capital, capital + energy)
