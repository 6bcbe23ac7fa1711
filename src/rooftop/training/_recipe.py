"""Numbers' formats in training: what weights, gradients and optimizer states are kept in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rooftop.errors import InputError, nearest
from rooftop.training._lowered import RATES
from rooftop.training._optimizer import MOMENTS, moment_bytes, optimizer
from rooftop.units import dtype, dtype_bytes

#: Dtypes of gradients.
GRADIENTS = ("fp32", "bf16", "fp16")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Dtypes of a training run and its optimizer; a master copy of the weights where asked.

    These change what is learnt, not only how fast: so a search takes them as given. gradients: as accumulated; reduction: as they
    cross the network.
    """

    compute: str = "bf16"
    weights: str = "bf16"
    gradients: str = "bf16"
    moments: str = "fp32"
    master: str | None = None
    optimizer: str = "adamw"
    reduction: str = "bf16"
    #: of the matmuls of blocks with weights, where narrower than `compute`; and whether gradients of weights are among them
    matmul: str | None = None
    low_gradients: bool = True

    @property
    def low_rate(self) -> str | None:
        """The chip's rate that low matmuls run at."""
        return None if self.matmul is None else RATES[self.matmul][0]

    def missing(self, rates: Mapping[str, float]) -> str | None:
        """A rate that the recipe needs and a chip with these rates has not."""
        needs = (self.compute, *(RATES[self.matmul] if self.matmul else ()))
        return next((n for n in needs if n is not None and n not in rates), None)

    @property
    def optimizer_bytes(self) -> float:
        """Bytes of optimizer state for each parameter that is no matrix of a block."""
        return optimizer(self.optimizer).moments * moment_bytes(self.moments) + self.master_bytes

    @property
    def master_bytes(self) -> float:
        """Bytes of a parameter's master copy."""
        return dtype_bytes(self.master) if self.master else 0.0

    def sentence(self) -> str:
        """The recipe in words, for the assumptions of a result."""
        master = f", master weights in {self.master}" if self.master else ", no master copy of the weights"
        matmuls = f"matmuls in {self.compute}"
        if self.matmul is not None:
            gradients = "" if self.low_gradients else ", gradients of weights aside"
            matmuls = (
                f"matmuls of blocks with their weights in {self.matmul}{gradients}, operands cast each time; all else, and"
                f" what crosses the network, in {self.compute}"
            )
        return (
            f"{matmuls}; weights in {self.weights}, gradients in {self.gradients},"
            f" reduced in {self.reduction}, states of {self.optimizer} in {self.moments}{master}"
        )


RECIPES = {
    "bf16": Recipe(),
    "bf16-mixed": Recipe(gradients="fp32", master="fp32"),
    "bf16-pure": Recipe(moments="bf16"),
    "fp16-mixed": Recipe("fp16", "fp16", "fp16", "fp32", "fp32"),
    **{low: Recipe(gradients="fp32", master="fp32", matmul=low) for low in ("fp8", "mxfp8", "nvfp4")},
    "int8": Recipe(gradients="fp32", master="fp32", matmul="int8", low_gradients=False),
    "fp32": Recipe(compute="fp32", weights="fp32", gradients="fp32", reduction="fp32"),
}


def recipe(
    name: str,
    *,
    moments: str | None = None,
    optimizer_name: str = "adamw",
    gradients: str | None = None,
    reduction: str | None = None,
) -> Recipe:
    """A named recipe, with the optimizer and the dtypes of its states, of gradients and of their reduction where given."""
    try:
        base = RECIPES[name]
    except KeyError:
        raise InputError(
            f"unknown precision {name!r}{nearest(name, RECIPES)}; use one of {', '.join(RECIPES)}", field="precision"
        ) from None
    optimizer(optimizer_name)
    return replace(
        base,
        optimizer=optimizer_name,
        moments=_among("optimizer_dtype", moments, MOMENTS) or base.moments,
        gradients=_among("gradient_dtype", gradients, GRADIENTS) or base.gradients,
        reduction=_among("reduction_dtype", reduction, GRADIENTS) or base.reduction,
    )


def _among(field: str, name: str | None, allowed: tuple[str, ...]) -> str | None:
    found = None if name is None else dtype(name)
    if found is not None and found not in allowed:
        raise InputError(f"{field}={name} is not kept so; use one of {', '.join(allowed)}", field=field)
    return found
