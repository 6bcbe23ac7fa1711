"""What commands share: option types that read sizes, --json, --explain, output."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rooftop import units
from rooftop.errors import InputError
from rooftop.views._plain import plain

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rooftop.figures import Figure
    from rooftop.transformer import Architecture

    ParamType = click.ParamType[Any]
else:  # generic only since click 8.4
    ParamType = click.ParamType

_FILES = {"html": "rooftop.html", "pdf": "rooftop.pdf"}
#: Where a caller other than a terminal wants the answer: a function of its data and its figures.
SINK = "rooftop.sink"

F = TypeVar("F", bound=Callable[..., Any])


class Parsed(ParamType):
    """An option read by one of the parsers of `units`."""

    def __init__(self, name: str, parse: Callable[[str, str | None], Any]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a text; errors name the option."""
        if not isinstance(value, str):
            return value
        option = param.opts[0] if param is not None and param.opts else None
        try:
            return self.parse(value, option)
        except InputError as error:
            label = f"{option}: " if option and option.startswith("-") else ""
            raise InputError(f"{label}{error.message}", field=error.field) from None


COUNT = Parsed("number", units.parse_count)
INTEGER = Parsed("number", units.parse_integer)
BYTES = Parsed("bytes", units.parse_bytes)
USD_PER_HOUR = Parsed("usd", units.parse_usd_per_hour)
SECONDS = Parsed("seconds", units.parse_seconds)
USD = Parsed("usd", units.parse_usd)
DAYS = Parsed("days", lambda text, field: units.parse_seconds(text if text[-1:].isalpha() else f"{text}d", field))
#: Tokens of a run, or the word for what a model is worth.
TOKENS = Parsed("number", lambda text, field: text if text == "chinchilla" else units.parse_count(text, field))
#: Bytes per second; the /s may be left out.
BANDWIDTH = Parsed("bytes/s", lambda text, field: units.parse_bytes(text.removesuffix("/s"), field))
SIZES = Parsed("name=size,...", units.parse_sizes)


def json_option(function: F) -> F:
    """Add `--json` (parameter `as_json`), `--html FILE` and `--pdf FILE` (kept for `emit`)."""
    for name, what in (("pdf", "as PDF, printed by an installed Chromium"), ("html", "as a self-contained HTML page")):
        function = click.option(
            f"--{name}",
            type=click.Path(dir_okay=False, writable=True),
            expose_value=False,
            callback=_keep_file,
            help=f"Also write the answer {what}.",
        )(function)
    return click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")(function)


def _keep_file(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[_FILES[str(param.name)]] = value


def model_named(name: str) -> Architecture:
    """The model that a user means; a warning on stderr where its family is a guess."""
    from rooftop.transformer import architecture

    found = architecture(name)
    if found.warning:
        click.echo(f"rooftop: warning: {found.warning}", err=True)
    return found


def refuse_given(*options: str, why: str) -> None:
    """Refuse options that the user gave where they would change nothing."""
    context = click.get_current_context()
    for param in context.command.params:
        name = param.opts[0] if param.opts else ""
        source = context.get_parameter_source(param.name or "")
        if name in options and source is click.core.ParameterSource.COMMANDLINE:
            raise InputError(f"{name} would change nothing here: {why}; leave it out", field=param.name)


def explain_options(function: F) -> F:
    """Add `--explain [QUANTITY]` and `--depth`."""
    function = click.option(
        "--depth", default=2, show_default=True, type=click.IntRange(0, 20), help="Levels of --explain."
    )(function)
    return click.option(
        "--explain", "explain", is_flag=False, flag_value="step_seconds", metavar="[QUANTITY]",
        help="Derive a quantity: formula, numbers, sources.",
    )(function)  # fmt: skip


def emit(
    data: Mapping[str, Any],
    render: Callable[[], RenderableType],
    as_json: bool,
    figures: Callable[[], Sequence[Figure]] = tuple,
) -> None:
    """Print the answer: as JSON, or as rendered for a person; and write it with its figures to the files of `--html`, `--pdf`."""
    context = click.get_current_context(silent=True)
    meta = context.meta if context is not None else {}
    if SINK in meta:
        meta[SINK](data, figures)
        return
    html, pdf = meta.get(_FILES["html"]), meta.get(_FILES["pdf"])
    if html is not None or pdf is not None:
        _write_page(html, pdf, render, figures)
    if as_json:
        click.echo(json.dumps(plain(data), allow_nan=False))
        return
    from rooftop.views import console

    console().print(render())


def _write_page(
    html: str | None, pdf: str | None, render: Callable[[], RenderableType], figures: Callable[[], Sequence[Figure]]
) -> None:
    from rooftop.views._html import html_page
    from rooftop.views._pdf import write_pdf

    page = html_page(render(), figures())
    if html is not None:
        try:
            with open(html, "w", encoding="utf-8") as file:
                file.write(page)
        except OSError as error:
            raise InputError(
                f"--html: cannot write {html}: {error.strerror or error}; give a file that can be written", field="html"
            ) from None
    if pdf is not None:
        write_pdf(page, pdf)
