"""Machines that could be built: a chip from a few numbers, so many of them, and the network between them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rooftop.codesign._costs import Costs, Ports, stages
from rooftop.codesign._values import parse_vary
from rooftop.errors import InputError, nearest
from rooftop.hardware import Chip, Level, Slice, Switch, Torus
from rooftop.units import parse_bytes, parse_count

#: Networks that are tried unless some are named.
NETWORKS = ("torus2", "torus3", "mesh3", "switch-8", "switch-64", "switch-all")
_NETWORK = re.compile(r"(torus|mesh)([123])\Z|switch-(all|\d{1,6})\Z")

#: Numbers of a chip and its network that are searched, and their values unless some are given: multiples of the base chip's FLOP/s;
#: stacks of HBM and the bytes of one; bytes a second of a link of a torus, of a chip into its switched domain, and beyond it.
VALUES: Mapping[str, tuple[float, ...]] = {
    "flops": (0.25, 0.5, 1.0, 1.5, 2.0, 3.0),
    "stacks": (2, 4, 6, 8, 12),
    "stack_bytes": (16e9, 24e9, 36e9),
    "link": (25e9, 50e9, 100e9, 200e9),
    "domain": (100e9, 225e9, 450e9, 900e9),
    "scaleout": (12.5e9, 50e9, 200e9),
}
TORUS, SWITCHED = ("flops", "stacks", "stack_bytes", "link"), ("flops", "stacks", "stack_bytes", "domain", "scaleout")


@dataclass(frozen=True, slots=True)
class Network:
    """torus or mesh (a torus whose sides never close) of so many dimensions, or switched domains of `size` chips, 0: of all."""

    name: str
    dims: int = 0
    wrap: bool = False
    size: int = 0

    @property
    def searched(self) -> tuple[str, ...]:
        """Numbers that a machine with it has."""
        if self.dims:
            return TORUS
        return SWITCHED if self.size else SWITCHED[:-1]


def network(text: str) -> Network:
    """Read `torus3`, `mesh2`, `switch-64`, `switch-all`. Raises InputError."""
    match = _NETWORK.match(text)
    if match is None:
        raise InputError(
            f"unknown network {text[:40]!r}; use torus2, torus3, mesh2, mesh3, switch-8 or any other size, switch-all",
            field="networks",
        )
    if match[1]:
        return Network(text, int(match[2]), match[1] == "torus")
    size = 0 if match[3] == "all" else int(match[3])
    if match[3] != "all" and (size < 2 or size & (size - 1)):
        raise InputError(
            f"a domain of {size} chips; give a power of two from 2 on, such as switch-64", field="networks"
        )
    return Network(text, size=size)


def sides(chips: int, dims: int) -> tuple[int, ...]:
    """The sides of a torus of so many chips (a power of two), as even as can be."""
    power = chips.bit_length() - 1
    return tuple(2 ** ((power + i) // dims) for i in range(dims))


def levels(net: Network, chips: int, numbers: Mapping[str, Any], costs: Costs) -> tuple[Level, ...]:
    """The network of so many chips. A side of a torus closes to a ring from 4 chips on."""
    if chips == 1:
        return ()
    if net.dims:
        dims = sides(chips, net.dims)
        wrap = tuple(net.wrap and n >= 4 for n in dims)
        return (Torus("ici", dims, wrap, numbers["link"], costs["network.torus_hop"]),)
    inner = min(chips, net.size or chips)
    latency = costs["network.domain_latency"] * float(stages(inner, costs))
    result: list[Level] = [Switch("nvlink", inner, numbers["domain"], latency)]
    if chips > inner:
        result.append(Switch("ib", chips // inner, numbers["scaleout"], costs["network.scaleout_latency"]))
    return tuple(result)


def ports(net: Network, chips: Any, numbers: Mapping[str, Any], costs: Costs) -> Ports:
    """What leaves a chip of a machine of so many, whether the machine is large enough to use all of it or not."""
    if net.dims:
        return Ports(torus=2 * net.dims * numbers["link"])
    inner = np.minimum(chips, net.size) if net.size else chips
    return Ports(domain=numbers["domain"], scaleout=numbers.get("scaleout", 0.0), stages=stages(inner, costs))


def chip_like(base: Chip, numbers: Mapping[str, Any], costs: Costs) -> Chip:
    """A chip of the kind of another one. Rates of all dtypes, vector rates, cores of GPUs and the rate of the memory on the chip go with
    the FLOP/s; bandwidth and bytes of HBM with its stacks; all else stays.
    """
    share = numbers["flops"]
    return replace(
        base,
        name="candidate",
        title=f"a chip like {base.name}",
        flops={name: rate * share for name, rate in base.flops.items()},
        vector_flops=base.vector_flops * share,
        cores=base.cores if base.family == "tpu" else np.maximum(1, np.round(base.cores * share)),
        fast_memory=replace(base.fast_memory, bandwidth=base.fast_memory.bandwidth * share),
        hbm_bandwidth=numbers["stacks"] * costs["stack.bandwidth"],
        hbm_bytes=numbers["stacks"] * numbers["stack_bytes"],
        price=None,
    )  # fmt: skip


def machine(base: Chip, net: Network, chips: int, numbers: Mapping[str, Any], costs: Costs) -> Slice:
    """So many chips on their network; numbers may be arrays of candidates."""
    chip = chip_like(base, numbers, costs)
    return Slice(f"{chips} x {net.name}", chip, levels(net, chips, numbers, costs))


def power_of_two(limit: Any) -> Any:
    """The largest power of two up to a number; 0 below 1."""
    return np.where(limit >= 1, 2.0 ** np.floor(np.log2(np.maximum(limit, 1)) + 1e-12), 0.0)


def parse_values(texts: Sequence[str]) -> dict[str, list[float]]:
    """What `--vary NAME=VALUES` says of numbers of a machine. Raises InputError."""
    found: dict[str, list[float]] = {}
    for text in texts:
        name = text.partition("=")[0].strip()
        if name not in VALUES:
            raise InputError(
                f"unknown number {name[:40]!r}{nearest(name, VALUES)}; use {', '.join(VALUES)}", field="vary"
            )
        if name in found:
            raise InputError(f"{name} is varied twice; give each number once", field="vary")
        read = parse_count if name in ("flops", "stacks") else parse_bytes
        each = parse_vary(text, lambda _, read=read: read).values  # type: ignore[misc]
        if any(v.relative or not v.value > 0 for v in each):
            raise InputError(
                f"{name}: give numbers above 0, not multiples (flops are multiples of the chip's)", field="vary"
            )
        found[name] = [float(v.value) for v in each]
    return found
