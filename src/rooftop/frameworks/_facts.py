"""What the writers of configurations read of a plan, and the list of what their framework cannot be told."""

from __future__ import annotations

import math
from typing import Any

from rooftop.costing import MESH_AXES
from rooftop.training import RECIPES, Plan, Problem
from rooftop.transformer import MLP, Attention, MoE, numbers_of

#: Dtypes as PyTorch and JAX name them.
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


class Facts:
    """A plan and its problem. unsaid: what the framework cannot be told, in sentences."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem, self.plan, self.recipe, self.choices = problem, plan, problem.recipe, plan.choices
        self.unsaid: list[str] = []
        self.ways = {axis: plan.mesh.get(axis, 1) for axis in MESH_AXES}
        self.model = problem.model
        self.numbers = numbers_of(self.model) or {}
        first = self.model.stack[0]
        self.mixer = first.mixer if isinstance(first.mixer, Attention) else None
        parts = [layer.feed_forward for layer in self.model.stack]
        self.moe = next((p for p in parts if isinstance(p, MoE)), None)
        self.mlp = next((p for p in parts if isinstance(p, MLP)), None)
        self.no(
            not self.numbers,
            f"layers of {self.model.name} are not all plain attention and alike: name its model in the framework",
        )
        idle = problem.slice.chips - plan.chips
        self.no(idle > 0, f"{idle} chips of {problem.slice.name} stay idle: start {plan.chips} processes")
        self.no(
            any(len([n for n in f.values() if n > 1]) > 1 for f in plan.factors),
            "which chips of the network each mesh axis has is the framework's own choice",
        )

    @property
    def precision(self) -> str | None:
        """The named recipe, optimizer aside; None where its dtypes were changed."""
        bare = [n for n, r in RECIPES.items() if _dtypes(r) == _dtypes(self.recipe)]
        return bare[0] if bare else None

    @property
    def packed(self) -> bool:
        """Whether sequences hold several documents, which attention must not cross."""
        return self.problem.documents is not None and self.problem.packing == "packed"

    @property
    def expert_ways(self) -> int:
        """Ways that experts lie over, those of other axes that are folded into them included."""
        return self.ways["expert"] * math.prod(self.ways[a] for a in self.folded)

    @property
    def folded(self) -> tuple[str, ...]:
        """Axes over which whole experts lie beside expert."""
        return tuple(a for a in self.choices.expert_fold.split(",") if a in self.ways)

    @property
    def away(self) -> frozenset[str]:
        """What lies in host memory: of optimizer, params, activations."""
        return self.choices.offloads

    def no(self, condition: bool, text: str) -> None:
        """Say what cannot be said."""
        if condition:
            self.unsaid.append(text)

    def kept(self, *expressed: str) -> None:
        """Say which choices are not at their default and not among those that were expressed."""
        from rooftop.training import choices

        for field in choices():
            value = getattr(self.choices, field.name)
            if field.name not in expressed and value != field.default:
                axis = field.metadata["axis"]
                said = f"{axis}={self.ways[axis]}" if field.metadata["follows"] else f"{field.name}={value}"
                self.unsaid.append(f"{said} has no key")

    def only_numbers(self, *keys: str) -> None:
        """Say which numbers of the model the framework has no key for."""
        for key in self.numbers:
            if key not in keys:
                self.unsaid.append(f"{key}={str(self.numbers[key]).lower()} of {self.model.name} is not written")

    def optimizer(self, names: dict[str, str]) -> str:
        """The optimizer as the framework names it."""
        name = self.recipe.optimizer
        self.no(name not in names, f"the optimizer {name} is not written; {names['adamw']} is")
        return names.get(name, names["adamw"])


def _dtypes(recipe: Any) -> tuple[Any, ...]:
    return (
        recipe.compute,
        recipe.weights,
        recipe.gradients,
        recipe.moments,
        recipe.master,
        recipe.reduction,
        recipe.matmul,
    )
