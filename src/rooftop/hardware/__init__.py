"""Chips, networks and slices, from data files."""

from rooftop.hardware._load import chip, chips
from rooftop.hardware._slice import outer_switch, peak, slice_of, standard_slices
from rooftop.hardware._types import Chip, Level, Memory, Price, Slice, Source, Switch, Torus

__all__ = [
    "Chip",
    "Level",
    "Memory",
    "Price",
    "Slice",
    "Source",
    "Switch",
    "Torus",
    "chip",
    "chips",
    "outer_switch",
    "peak",
    "slice_of",
    "standard_slices",
]
