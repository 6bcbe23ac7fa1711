"""What `sweep` and `whatif` share: the scenario that the user names, and where it is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rooftop.cli._common import SIZES, model_named

if TYPE_CHECKING:
    from rooftop.codesign import Scenario

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
    from rooftop.codesign import Scenario, told
    from rooftop.hardware import slice_of

    return told(Scenario(ask, model_named(model), slice_of(where)), mesh, settings, workload)
