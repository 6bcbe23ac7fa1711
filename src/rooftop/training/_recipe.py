"""Numbers' formats in training: what weights, gradients and optimizer states are kept in."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rooftop.errors import InputError, nearest
from rooftop.units import dtype, dtype_bytes


@dataclass(frozen=True, slots=True)
class Recipe:
    """Dtypes of a training run with AdamW: two moments for each parameter, and a master copy where asked."""

    compute: str = "bf16"
    weights: str = "bf16"
    gradients: str = "bf16"
    moments: str = "fp32"
    master: str | None = None

    @property
    def optimizer_bytes(self) -> float:
        """Bytes of optimizer state for each parameter."""
        return 2 * dtype_bytes(self.moments) + (dtype_bytes(self.master) if self.master else 0.0)

    def sentence(self) -> str:
        """The recipe in words, for the assumptions of a result."""
        master = f", master weights in {self.master}" if self.master else ", no master copy of the weights"
        return (
            f"matmuls in {self.compute}; weights in {self.weights}, gradients in {self.gradients},"
            f" AdamW moments in {self.moments}{master}"
        )


RECIPES = {
    "bf16": Recipe(),
    "bf16-mixed": Recipe(gradients="fp32", master="fp32"),
    "bf16-pure": Recipe(moments="bf16"),
    "fp16-mixed": Recipe("fp16", "fp16", "fp16", "fp32", "fp32"),
    "fp32": Recipe(compute="fp32", weights="fp32", gradients="fp32"),
}


def recipe(name: str, *, moments: str | None = None) -> Recipe:
    """A named recipe, with the optimizer's dtype replaced where given."""
    try:
        base = RECIPES[name]
    except KeyError:
        raise InputError(
            f"unknown precision {name!r}{nearest(name, RECIPES)}; use one of {', '.join(RECIPES)}", field="precision"
        ) from None
    return base if moments is None else replace(base, moments=dtype(moments))
