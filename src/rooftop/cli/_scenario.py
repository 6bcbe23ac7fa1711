"""What `sweep` and `whatif` share: the scenario that the user names, and where it is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rooftop.cli._common import SIZES, model_named
from rooftop.errors import InputError

if TYPE_CHECKING:
    from rooftop.codesign import Scenario, Vary

F = TypeVar("F", bound=Callable[..., Any])


def scenario_options(function: F) -> F:
    """Add MODEL, --on, --of, --mesh, --set, --workload."""
    for option in reversed(
        (
            click.argument("model"),
            click.option("--on", "where", required=True, metavar="SLICE", help="Where: v5p:8x8x8, h100:64, a hardware file."),
            click.option(
                "--of", "ask", type=click.Choice(["plan", "step", "serve", "simulate"]), default="plan", show_default=True,
                help="What is asked: the best plan, the plan of --mesh, serving, serving a workload.",
            ),
            click.option("--mesh", type=SIZES, help="Ways of mesh axes: the plan of step; fixed ones of the others."),
            click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set a parameter: seq=8192."),
            click.option("--workload", metavar="FILE", help="Of simulate: a trace, or poisson:rate=8,input=1000,output=200."),
        )
    ):  # fmt: skip
        function = option(function)
    return function


def engine_options(function: F) -> F:
    """Add --engine, --workers, --address."""
    for option in reversed(
        (
            click.option(
                "--engine", default="local", type=click.Choice(["local", "ray"]), show_default=True,
                help="Processes of this machine, or a Ray cluster.",
            ),
            click.option("--workers", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Processes."),
            click.option("--address", help="Of a running Ray cluster.  [default: one is started on this machine]"),
        )
    ):  # fmt: skip
        function = option(function)
    return function


def scenario_of(
    model: str, where: str, ask: str, mesh: dict[str, int] | None, settings: Sequence[str], workload: str | None
) -> Scenario:
    """The scenario that the options name."""
    from rooftop import codesign
    from rooftop.hardware import slice_of

    options = {} if workload is None else {"workload": workload}
    if workload is not None and ask != "simulate":
        raise InputError("--workload is for --of simulate; leave it out", field="workload")
    scenario = codesign.Scenario(ask, model_named(model), slice_of(where), options)
    for axis, ways in (mesh or {}).items():
        scenario = codesign.changed(scenario, {codesign.canonical(scenario, f"mesh.{axis}"): ways})
    for setting in settings:
        vary = vary_of(scenario, setting)
        if len(vary.values) != 1:
            raise InputError(
                f"--set {setting[:60]!r} has {len(vary.values)} values; give one, or use --vary", field="set"
            )
        scenario = codesign.changed(scenario, {n: codesign.resolved(scenario, n, vary.values[0]) for n in vary.names})
    return scenario


def vary_of(scenario: Scenario, text: str) -> Vary:
    """One --vary, its names in full."""
    from rooftop import codesign

    named, equals, values = text.partition("=")
    names = [codesign.canonical(scenario, n.strip()) for n in named.split("+")] if equals else [named]
    full = f"{'+'.join(names)}{equals}{values}"
    return codesign.parse_vary(full, lambda name: codesign.reader(name, scenario.ask))
