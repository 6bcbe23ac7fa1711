"""Ways to do the same: what `--way` and `--ways` of `rooftop compare` name, as scenarios beside the one that is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rooftop.codesign._attention import with_attention
from rooftop.codesign._budget import BUDGETS, fitted, sequence
from rooftop.codesign._scenario import Scenario, canonical, changed, reader, resolved
from rooftop.codesign._values import parse_vary
from rooftop.errors import InputError, nearest
from rooftop.training import RECIPES, values_of

GIVEN = "as given"


def way(scenario: Scenario, text: str) -> Scenario:
    """The scenario that `NAME=VALUE,NAME=VALUE` makes of another one; `attention=KIND` and any parameter. Raises InputError."""
    ask = scenario.ask
    for item in (part.strip() for part in text.split(",")):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not name or not value:
            raise InputError(
                f"--way {text[:60]!r} is not NAME=VALUE,...; write one such as weights=fp8,kv=fp8", field="way"
            )
        if name == "attention":
            scenario = changed_model(scenario, value)
            continue
        full = canonical(scenario, name)
        vary = parse_vary(f"{full}={value}", lambda n: reader(n, ask))
        if len(vary.values) != 1:
            raise InputError(f"--way {item[:60]!r} has {len(vary.values)} values; give one a way", field="way")
        scenario = changed(scenario, {full: resolved(scenario, full, vary.values[0])})
    return scenario


def changed_model(scenario: Scenario, kind: str) -> Scenario:
    """The scenario with another kind of attention in its model."""
    return replace(scenario, model=with_attention(scenario.model, kind))


def at_equal(scenario: Scenario, given: Scenario, budget: str) -> Scenario:
    """The scenario with its feed-forward width fitted, so that its model has as much of a budget as the given one."""
    if budget not in BUDGETS:
        raise InputError(
            f"unknown budget {budget[:40]!r}{nearest(budget, BUDGETS)}; use {', '.join(BUDGETS)}", field="equal"
        )
    if scenario.model == given.model:
        return scenario
    seq = sequence(given)
    amount = BUDGETS[budget](given.model, seq)
    return replace(scenario, model=fitted(scenario.model, budget, amount, seq, multiple=given.slice.chip.tile[2]))


def ways(scenario: Scenario, kind: str) -> list[str]:
    """The ways of a kind that suit a scenario, as texts for `way`. Raises InputError for a kind that does not."""
    if kind not in KINDS:
        raise InputError(f"unknown ways {kind[:40]!r}{nearest(kind, KINDS)}; use {', '.join(KINDS)}", field="ways")
    found = KINDS[kind](scenario)
    if not found:
        raise InputError(f"{scenario.ask} has no ways of {kind}; use another kind, or --way NAME=VALUE", field="ways")
    return found


def _attention(scenario: Scenario) -> list[str]:
    model = scenario.model
    heads = model.attention.heads if model.attention else 0
    groups = [f"attention=gqa-{n}" for n in (8,) if heads % n == 0 and heads > n]
    window = max(256, sequence(scenario) // 4)
    return ["attention=mha", *groups, "attention=mqa", "attention=mla", f"attention=window-{window}"]


def _precision(scenario: Scenario) -> list[str]:
    rates = scenario.slice.chip.flops
    if scenario.ask != "serve":
        return [f"precision={name}" for name, recipe in RECIPES.items() if recipe.missing(rates) is None]
    found = ["weights=bf16"]
    for low in ("fp8", "int8"):
        if low in rates:
            found += [f"weights={low}", f"weights={low},activations={low}", f"weights={low},activations={low},kv={low}"]
    return [*found, "weights=int4"]


def _of_training(name: str, *values: str) -> Callable[[Scenario], list[str]]:
    return lambda scenario: [] if scenario.ask == "serve" else [f"{name}={v}" for v in values]


def _schedule(scenario: Scenario) -> list[str]:
    if scenario.ask == "serve":
        return []
    _needs_ways(scenario, "pipeline", "schedules")
    return [*(f"schedule={v}" for v in values_of("schedule")), "schedule=1f1b,chunks=2"]


def _context(scenario: Scenario) -> list[str]:
    if scenario.ask == "serve":
        return []
    _needs_ways(scenario, "context", "context kinds")
    return [f"context_kind={v}" for v in values_of("context_kind")]


def _needs_ways(scenario: Scenario, axis: str, what: str) -> None:
    if scenario.mesh.get(axis, 1) < 2:
        raise InputError(f"{what} differ with {axis} ways only; give some, such as --mesh {axis}=4", field="mesh")


#: Kind of ways -> those that suit a scenario.
KINDS: Mapping[str, Callable[[Scenario], list[Any]]] = {
    "attention": _attention,
    "precision": _precision,
    "overlap": _of_training("collective_matmul", "false", "true"),
    "remat": _of_training("remat", *map(str, values_of("remat"))),
    "zero": _of_training("zero", *map(str, values_of("zero"))),
    "schedule": _schedule,
    "context": _context,
}
