"""Sizes as monomials in array axes and mesh axes: `2·B·T·D/(fsdp·tensor)`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Powers = tuple[tuple[str, int], ...]


def _merge(a: Powers, b: Powers, sign: int = 1) -> Powers:
    powers = dict(a)
    for name, power in b:
        powers[name] = powers.get(name, 0) + sign * power
    return tuple(sorted((n, p) for n, p in powers.items() if p))


@dataclass(frozen=True, slots=True)
class Size:
    """coefficient x product of array-axis sizes x product of mesh-axis sizes, each to an integer power.

    A local size divides by mesh axes, so mesh powers are mostly negative. Evaluating takes numbers, NumPy arrays,
    traced quantities or sympy symbols alike.
    """

    coefficient: float = 1.0
    axes: Powers = field(default=())
    mesh: Powers = field(default=())

    @staticmethod
    def of(axes: Iterable[str], mesh: Iterable[str] = (), coefficient: float = 1.0) -> Size:
        """The size of a block with the array axes `axes`, split over the mesh axes `mesh`."""
        above, below = Counter([*axes]), Counter([*mesh])
        return Size(coefficient, tuple(sorted(above.items())), tuple((n, -p) for n, p in sorted(below.items())))

    def __mul__(self, other: Size | float) -> Size:
        if isinstance(other, Size):
            return Size(
                self.coefficient * other.coefficient, _merge(self.axes, other.axes), _merge(self.mesh, other.mesh)
            )
        return Size(self.coefficient * other, self.axes, self.mesh)

    __rmul__ = __mul__

    def __truediv__(self, other: Size | float) -> Size:
        if isinstance(other, Size):
            return Size(
                self.coefficient / other.coefficient,
                _merge(self.axes, other.axes, -1),
                _merge(self.mesh, other.mesh, -1),
            )
        return Size(self.coefficient / other, self.axes, self.mesh)

    def inverse(self) -> Size:
        """One over this size."""
        return Size() / self

    def __call__(self, axes: Mapping[str, Any], mesh: Mapping[str, Any] | None = None) -> Any:
        """The value, given the size of every array axis and of every mesh axis that occurs."""
        above: Any = self.coefficient
        below: Any = None
        for powers, sizes in ((self.axes, axes), (self.mesh, mesh or {})):
            for name, power in powers:
                for _ in range(abs(power)):
                    if power > 0:
                        above = above * sizes[name]
                    else:
                        below = sizes[name] if below is None else below * sizes[name]
        return above if below is None else above / below

    def __str__(self) -> str:
        def part(powers: Iterable[tuple[str, int]]) -> list[str]:
            return [name if power == 1 else f"{name}^{power}" for name, power in powers]

        every = (*self.axes, *self.mesh)
        above = part((n, p) for n, p in every if p > 0)
        below = part((n, -p) for n, p in every if p < 0)
        if self.coefficient != 1 or not above:
            above.insert(0, f"{float(self.coefficient):g}")
        text = "·".join(above)
        if below:
            text += "/" + (below[0] if len(below) == 1 else "(" + "·".join(below) + ")")
        return text
