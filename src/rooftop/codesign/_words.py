"""Scenarios and what varies in them, as the user says it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rooftop.codesign._scenario import Scenario, canonical, changed, reader, resolved
from rooftop.codesign._values import Vary, parse_vary
from rooftop.errors import InputError


def told(
    scenario: Scenario, mesh: Mapping[str, int] | None = None, settings: Iterable[str] = (), workload: str | None = None
) -> Scenario:
    """A scenario with what is said beside the question. settings: `NAME=VALUE`. Raises InputError."""
    if workload is not None:
        if scenario.ask != "simulate":
            raise InputError("--workload is for --of simulate; leave it out", field="workload")
        scenario = replace(scenario, options={**scenario.options, "workload": workload})
    for axis, ways in (mesh or {}).items():
        scenario = changed(scenario, {canonical(scenario, f"mesh.{axis}"): ways})
    for setting in settings:
        vary = vary_of(scenario, setting)
        if len(vary.values) != 1:
            raise InputError(
                f"--set {setting[:60]!r} has {len(vary.values)} values; give one, or use --vary", field="set"
            )
        scenario = changed(scenario, {n: resolved(scenario, n, vary.values[0]) for n in vary.names})
    return scenario


def vary_of(scenario: Scenario, text: str) -> Vary:
    """`NAME+NAME=VALUES`, its names in full. Raises InputError."""
    named, equals, values = text.partition("=")
    names = [canonical(scenario, n.strip()) for n in named.split("+")] if equals else [named]
    return parse_vary(f"{'+'.join(names)}{equals}{values}", lambda name: reader(name, scenario.ask))
