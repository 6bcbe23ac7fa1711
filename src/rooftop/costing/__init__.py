"""Resolved programs priced on chips and links: mesh axes, terms, seconds. Training and serving stand on it."""

from rooftop.costing._axes import (
    BATCH,
    INNER_AXES,
    MESH_AXES,
    PLACEMENT_ORDER,
    TENSOR,
    Links,
    axis_bandwidth,
    batch_groups,
    inner_mesh,
    links_of,
    narrowed,
    outer_axes,
    outer_name,
)
from rooftop.costing._kernels import Kernel, kernels
from rooftop.costing._terms import Collector, Terms, Transfer, Work
from rooftop.costing._time import (
    Direction,
    Rates,
    direction,
    exposed_seconds,
    rates_of,
    transfer_seconds,
    work_seconds,
)

__all__ = [
    "BATCH",
    "INNER_AXES",
    "MESH_AXES",
    "PLACEMENT_ORDER",
    "TENSOR",
    "Collector",
    "Direction",
    "Kernel",
    "Links",
    "Rates",
    "Terms",
    "Transfer",
    "Work",
    "axis_bandwidth",
    "batch_groups",
    "direction",
    "exposed_seconds",
    "inner_mesh",
    "kernels",
    "links_of",
    "narrowed",
    "outer_axes",
    "outer_name",
    "rates_of",
    "transfer_seconds",
    "work_seconds",
]
