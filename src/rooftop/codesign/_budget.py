"""What models of different shape can have in common: parameters, FLOPs, caches; and models fitted to have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from rooftop.codesign._models import model_numbers, with_number
from rooftop.codesign._scenario import Scenario, current
from rooftop.errors import InputError
from rooftop.transformer import Architecture, flops_per_token, kv_cache_bytes, parameters

#: What can be held equal: (a model, tokens of a sequence) -> an amount.
BUDGETS: Mapping[str, Callable[[Architecture, int], float]] = {
    "parameters": lambda model, seq: parameters(model).total,
    "active": lambda model, seq: parameters(model).active,
    "flops": lambda model, seq: flops_per_token(model, seq).forward,
    "kv": lambda model, seq: kv_cache_bytes(model, seq),
}


def sequence(scenario: Scenario) -> int:
    """Tokens of a sequence of training, or of a whole request."""
    if scenario.ask == "serve":
        return int(current(scenario, "prompt")) + int(current(scenario, "output"))
    return int(current(scenario, "seq"))


def fitted(
    model: Architecture, budget: str, amount: float, seq: int, *, number: str = "d_ff", multiple: int = 1
) -> Architecture:
    """The model with one number, a multiple of `multiple`, that brings it as near as can be to an amount of a budget.

    All budgets but caches are lines in the width of feed-forward parts, so two values of it tell the third. Raises InputError
    where the model lacks the number, where the budget does not depend on it, or where it would be below one multiple.
    """
    of = BUDGETS[budget]
    now = model_numbers(model).get(number)
    if now is None:
        raise InputError(f"{model.name} has no {number} that could be fitted to equal {budget}", field="equal")
    other = with_number(model, number, 2 * now)
    slope = (of(other, seq) - of(model, seq)) / now
    if slope <= 0:
        raise InputError(f"{budget} of {model.name} do not depend on {number}; hold parameters equal", field="equal")
    wanted = now + (amount - of(model, seq)) / slope
    value = round(wanted / multiple) * multiple
    if value < multiple:
        raise InputError(
            f"{model.name} has more {budget} than {amount:.4g} without any {number}; give it fewer of other numbers",
            field="equal",
        )
    return model if value == now else with_number(model, number, value)


def renamed(model: Architecture, name: str) -> Architecture:
    """The same under another name: one that nothing published is about."""
    return replace(model, name=name, published_parameters=0, published_active=0, aliases=())
