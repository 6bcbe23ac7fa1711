"""Host memory as a second home of what a chip need not hold all the time: what crosses PCIe for it, and what stays behind.

| what | a microbatch takes in | gives out | the end of a step takes in | gives out | what stays on the chip |
| --- | --- | --- | --- | --- | --- |
| optimizer | - | - | states | states | buffers |
| params | its chip's part of a block's weights, in either pass | - | - | new weights | buffers |
| activations | saved activations, backward | the same, forward | - | - | buffers |

Buffers are two blocks' worth: of the block in use, and of the one on its way; where one array is larger, as an embedding is, that
array. The update runs on the chip, with states that stream through it (Rajbhandari et al., 2021 (ZeRO-Infinity), section 4.1:
states are read and written once a step); gradients stay there, since microbatches add to them. PCIe works in both directions at
once. Every chip has its own lanes and an even share of its host's memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rooftop.formula import Number, formula, maximum, named, total
from rooftop.training._choices import Choices
from rooftop.training._structure import Structure


@dataclass(frozen=True, slots=True)
class Crossing:
    """Bytes that a chip takes in from its host and gives out to it, at the same time."""

    into: Number = 0.0
    out: Number = 0.0

    def __add__(self, other: Crossing) -> Crossing:
        return Crossing(self.into + other.into, self.out + other.out)

    def seconds(self, bandwidth: Number) -> Number:
        """How long it takes at so many bytes/s one way."""
        return host_seconds(self.into, self.out, bandwidth)


@formula("T_host", "s", note="both ways of PCIe at once")
def host_seconds(into: Number, out: Number, bandwidth: Number) -> Number:
    """Seconds to take bytes in and give bytes out, at a bandwidth of each way."""
    return maximum(into, out) / bandwidth


@dataclass(frozen=True, slots=True)
class Crossings:
    """What one microbatch of one program moves between host and chip."""

    forward: Crossing
    backward: Crossing

    @property
    def both(self) -> Crossing:
        """Of two microbatches beside each other, one in either pass."""
        return self.forward + self.backward

    def seconds(self, bandwidth: Number) -> tuple[Number, Number, Number]:
        """Of the forward pass, of the backward pass, and of both beside each other, at so many bytes/s one way."""
        forward, backward, both = (x.seconds(bandwidth) for x in (self.forward, self.backward, self.both))
        return forward, backward, both


def crossings(structure: Structure, values: Mapping[str, list[Number]], chosen: Choices) -> dict[str, Crossings]:
    """By program; empty where nothing of a microbatch lies in host memory.

    An embedding is used in the forward pass only, and a head's backward pass follows at once: their weights come in once.
    """
    result: dict[str, Crossings] = {}
    if not chosen.offloads & {"params", "activations"}:
        return result
    for c in structure.programs:
        size = values[c.name]
        block = c in structure.blocks
        weights = total(size[i] for i in c.brought) if "params" in chosen.offloads else 0.0
        saved = total(size[i] for i in c.saved[chosen.remat]) if block and "activations" in chosen.offloads else 0.0
        weights = named(weights, f"weights from the host({c.name})", "B")
        saved = named(saved, f"saved({c.name}, {chosen.remat})", "B")
        back = Crossing(weights + saved) if block else Crossing()
        result[c.name] = Crossings(Crossing(weights, saved), back)
    return result


def update_crossing(states: Mapping[str, Number], chosen: Choices) -> Crossing:
    """At the end of a step: optimizer states in and out, new weights out. states: bytes of a chip by part."""
    optimizer = states["optimizer"] if "optimizer" in chosen.offloads else 0.0
    return Crossing(optimizer, optimizer + (states["weights"] if "params" in chosen.offloads else 0.0))
