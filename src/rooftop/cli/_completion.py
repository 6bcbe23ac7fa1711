"""rooftop completion, and the names that shells complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType


class Named(ParamType):
    """A name that is looked up later, such as a model's: any text, completed with those that are known, and with files."""

    name = "text"

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self.names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Known names that begin so; where none does, files."""
        found = [CompletionItem(name) for name in self.names() if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]


def _models() -> Iterable[str]:
    from rooftop.transformer import models

    return models()


def _chips() -> Iterable[str]:
    from rooftop.hardware import chips

    return chips()


def _slices() -> Iterable[str]:
    from rooftop.hardware import chips, standard_slices

    for chip in chips():
        yield chip
        yield from standard_slices(chip)


def _collectives() -> Iterable[str]:
    from rooftop.roofline import COLLECTIVES

    return (kind.replace("_", "-") for kind in COLLECTIVES)


#: Parameter, in whichever command -> what completes it.
_NAMED: Mapping[str, Named] = {
    "model": Named(_models), "names": Named(_models), "draft": Named(_models), "where": Named(_slices), "prefill_on": Named(_slices),
    "name": Named(_chips), "kind": Named(_collectives),
}  # fmt: skip


def completed(command: click.Command) -> click.Command:
    """The command, with the names that its parameters stand for."""
    for param in command.params:
        if param.name in _NAMED and isinstance(param.type, click.types.StringParamType):
            param.type = _NAMED[param.name]
    return command


@click.command(
    "completion",
    epilog="""\b
Examples:
  eval "$(rooftop completion bash)"                             in ~/.bashrc
  eval "$(rooftop completion zsh)"                              in ~/.zshrc
  rooftop completion fish > ~/.config/fish/completions/rooftop.fish
""",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """The script that lets SHELL complete commands, options, and the names of models, chips and slices."""
    from rooftop.cli import _COMPLETE, group

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(group, {}, "rooftop", _COMPLETE).source())
