"""Time of an op on a chip and of a collective on a topology: bound by physics, and expected by calibration."""

from rooftop.roofline._calibration import Calibration, calibration_for, ideal
from rooftop.roofline._network import Dimension, Group, Placement, dimensions, group
from rooftop.roofline._placements import divisors, placements, placements_of, single_placements
from rooftop.roofline._ops import (
    all_reduce_seconds,
    all_to_all_seconds,
    collective_seconds,
    expected_op_seconds,
    gather_seconds,
    intensity,
    math_seconds,
    memory_seconds,
    overlapped_seconds,
    padded,
    permute_seconds,
    ridge,
    serial_seconds,
)

__all__ = [
    "Calibration",
    "Dimension",
    "Group",
    "Placement",
    "all_reduce_seconds",
    "all_to_all_seconds",
    "calibration_for",
    "collective_seconds",
    "dimensions",
    "divisors",
    "placements",
    "placements_of",
    "single_placements",
    "expected_op_seconds",
    "gather_seconds",
    "group",
    "ideal",
    "intensity",
    "math_seconds",
    "memory_seconds",
    "overlapped_seconds",
    "padded",
    "permute_seconds",
    "ridge",
    "serial_seconds",
]
