"""Writing a program of named-axis ops by hand: the same tool that the built-in architectures use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rooftop.arrays import Array, Op, Program, Size
from rooftop.errors import InputError
from rooftop.transformer._documents import Documents, Seen


@dataclass(frozen=True, slots=True)
class Cache:
    """What one layer keeps of each sequence while it generates.

    axes: of the array kept, without the position axis. every: tokens for one entry (1, or a compression ratio). window:
    most entries kept (0: all of them). fixed: one state, whatever the length. dtype: if it is not that of the cache.
    """

    name: str
    axes: tuple[str, ...]
    every: int = 1
    window: int = 0
    fixed: bool = False
    dtype: str = ""


class Builder:
    """Collects arrays and ops of one program; each method returns the name of the array that it makes.

    suffix: what names of new arrays and axes end with, so that two mixers can stand in one program.

    context: 0 for whole sequences (training, prefill), else the positions before the token that is generated.
    documents: what sequences are filled with, where they are not one document each; attention stays inside of them.

    Arrays of the residual stream have layout "residual", weights layout "weight", all others layout "inner": the rows of
    a plan's sharding table.
    """

    def __init__(
        self, axes: Mapping[str, int | Size], *, norm_weights: int = 1, streams: int = 1, context: int = 0,
        documents: Documents | None = None,
    ) -> None:  # fmt: skip
        self.context, self.documents = context, documents
        tokens = axes.get("T", 1)
        self.tokens = tokens if isinstance(tokens, int) else 1
        self.suffix = ""
        self.axes: dict[str, int | Size] = dict(axes)
        self.norm_weights = norm_weights
        self.streams = streams
        self.arrays: dict[str, Array] = {}
        self.ops: list[Op] = []
        self.caches: list[Cache] = []
        self._biases: tuple[str, ...] = ()

    def axis(self, name: str, size: int | Size) -> str:
        """Give an axis its size. Raises InputError if it has another one already."""
        name += self.suffix
        if self.axes.setdefault(name, size) != size:
            raise InputError(f"axis {name} has size {self.axes[name]} and {size}; use another name", field=name)
        return name

    def array(self, name: str, *axes: str, role: str = "activation", layout: str = "inner", dtype: str = "bf16") -> str:
        """A new array. Raises InputError if the name is taken."""
        name += self.suffix
        if name in self.arrays:
            raise InputError(f"two arrays are called {name}; use another name", field=name)
        self.arrays[name] = Array(name, axes, dtype, role, layout)
        return name

    def input(self, name: str, *axes: str, layout: str = "inner", dtype: str = "bf16") -> str:
        """An array that comes from outside."""
        return self.array(name, *axes, role="input", layout=layout, dtype=dtype)

    def weight(self, name: str, *axes: str, layout: str = "weight") -> str:
        """A trained array."""
        return self.array(name, *axes, role="weight", layout=layout)

    def residual(self, name: str) -> str:
        """An array of the residual stream: [B, T, D]."""
        return self.array(name, "B", "T", "D", layout="residual")

    def stream(self, name: str) -> str:
        """The residual stream itself, which may have several parallel streams: [B, T, W, D]."""
        axes = ("B", "T", "D") if self.streams == 1 else ("B", "T", "W", "D")
        return self.array(name, *axes, layout="residual")

    def einsum(
        self, name: str, inputs: tuple[str, ...], output: str, part: str, *, fused: str | None = None,
        fraction: float | Seen = 1.0,
    ) -> str:  # fmt: skip
        """The sum of products over all axes that the output lacks. fraction: the part of its points that is computed."""
        seen = fraction if isinstance(fraction, Seen) else Seen(fraction)
        self.ops.append(
            Op(name, "einsum", inputs, output, fused=fused, fraction=seen.part, uneven=seen.uneven, part=part)
        )
        return output

    def matmul(
        self, name: str, x: str, weight: str, output: str, axes: tuple[str, ...], part: str, layout: str = "inner"
    ) -> str:
        """A matrix times an activation: x[B, T, ..] * weight -> output[B, T, axes]."""
        return self.einsum(name, (x, weight), self.array(output, "B", "T", *axes, layout=layout), part)

    def map(
        self, name: str, inputs: tuple[str, ...], output: str, part: str, flops: float, *, fused: str | None = None,
        linear: bool = False,
    ) -> str:  # fmt: skip
        """An elementwise or normalising op, `flops` for each element of the output."""
        self.ops.append(Op(name, "map", inputs, output, flops=flops, fused=fused, part=part, linear=linear))
        return output

    def keep(
        self, name: str, inputs: tuple[str, ...], output: str, axes: tuple[str, ...], part: str, flops: float, *,
        linear: bool = False, positions: str = "S", window: int = 0, every: int = 1,
    ) -> str:  # fmt: skip
        """A map to what attention reads of all positions: output[B, S, axes].

        While a token is generated only its own entry is made, and all others come from a cache of the layer.
        """
        self.caches.append(Cache(output, axes, every=every, window=window))
        if not self.context:
            return self.map(name, inputs, self.array(output, "B", positions, *axes), part, flops, linear=linear)
        self.map(name, inputs, self.array(f"{output}_new", "B", "T", *axes), part, flops, linear=linear)
        return self.array(output, "B", positions, *axes, role="cache", layout="cache")

    def state(
        self, name: str, inputs: tuple[str, ...], axes: tuple[str, ...], part: str, flops: float
    ) -> tuple[str, ...]:
        """The state of a recurrence while a token is generated: read, and written anew; nothing for whole sequences."""
        self.caches.append(Cache("state", axes, fixed=True, dtype="fp32"))
        if not self.context:
            return ()
        old = self.array("state", "B", *axes, role="cache", layout="cache", dtype="fp32")
        new = self.array("state_new", "B", *axes, layout="cache", dtype="fp32")
        self.map(name, (old, *inputs), new, part, flops, fused="recurrence")
        return (old,)

    def op(
        self, name: str, kind: str, inputs: tuple[str, ...], output: str, part: str, flops: float = 0.0,
        fused: str | None = None,
    ) -> str:  # fmt: skip
        """An op of any kind (lookup, route, scan, loss)."""
        self.ops.append(Op(name, kind, inputs, output, flops=flops, part=part, fused=fused))
        return output

    def norm(self, name: str, x: str, output: str, part: str = "norm") -> str:
        """A norm over d_model, with as many vectors of weights as the architecture's norms have."""
        weights = self.vectors(name, self.norm_weights, "D")
        return self.map(name, (x, *self.biases(), *weights), self.residual(output), part, 4.0)

    def late_bias(self, name: str, *axes: str) -> None:
        """A bias on what was made last, added by whatever reads it next: a norm or the sum with the residual stream."""
        self._biases += (self.weight(name, *axes),)

    def biases(self) -> tuple[str, ...]:
        """The late biases, to be added now."""
        found, self._biases = self._biases, ()
        return found

    def vectors(self, name: str, count: int, *axes: str) -> tuple[str, ...]:
        """The weights of a norm: a scale, and perhaps a shift."""
        return tuple(self.weight(f"{name}{suffix}", *axes) for suffix in ("", "_bias")[:count])

    def program(self, name: str) -> Program:
        """What was collected."""
        return Program(name, self.axes, tuple(self.arrays.values()), tuple(self.ops))
