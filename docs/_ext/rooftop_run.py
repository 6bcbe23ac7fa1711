"""Directives of the documentation: commands that run when it is built, with their figures; answers that unfold."""

from __future__ import annotations

import contextlib
import html
import importlib
import io
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode

import click
from docutils import nodes
from docutils.parsers.rst import Directive, directives
from sphinx.errors import ExtensionError

from rooftop.cli import run
from rooftop.cli._common import SINK
from rooftop.figures import Figure, asset, figure_html, plotly_script

#: Command -> the view of the page that answers the same question.
VIEWS = {"plan": "train", "step": "step", "serve": "serve", "simulate": "simulate", "matmul": "matmul",
         "collective": "topology", "roofline": "roofline"}  # fmt: skip
#: Characters that a line of the page holds.
_WIDTH = 92
_SCRIPT, _STYLE = "rooftop-figures.js", "rooftop-figures.css"


class Rooftop(Directive):
    """`{rooftop} plan llama-3-8b --on v5e:4x4`: the output in the page is that of the code that the page documents.

    Options. `table`: from the first line that begins so; `first`: only so many lines of it; `figures`: names of the figures to
    draw below it, or `all`; `quiet`: the figures alone; `open`: a link to the same question in the page of `rooftop web`.
    """

    required_arguments = 1
    final_argument_whitespace = True
    has_content = False
    option_spec: ClassVar[dict[str, Any]] = {
        "table": directives.unchanged, "first": directives.positive_int, "figures": directives.unchanged_required,
        "quiet": directives.flag, "open": directives.flag,
    }  # fmt: skip

    def run(self) -> list[nodes.Node]:
        """Run the command; a failure fails the build."""
        command = self.arguments[0].replace("\n", " ")
        words = shlex.split(command)
        found: list[nodes.Node] = []
        if "quiet" not in self.options:
            found.append(self._block(command, words))
        if "figures" in self.options:
            wanted = self.options["figures"].split()
            figures = {figure.name: figure for figure in figures_of(words)}
            names = list(figures) if wanted == ["all"] else wanted
            missing = [name for name in names if name not in figures]
            if missing:
                raise ExtensionError(
                    f"rooftop {command} has no figure {missing[0]}, but {', '.join(figures) or 'none'}"
                )
            found += [nodes.raw("", figure_html(figures[name]), format="html") for name in names]
        if "open" in self.options:
            link = html.escape(address(words))
            text = "Ask this in the page (while <code>rooftop web</code> runs)"
            found.append(nodes.raw("", f'<p class="rooftop-open"><a href="{link}">{text}</a></p>', format="html"))
        return found

    def _block(self, command: str, words: list[str]) -> nodes.Node:
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        with contextlib.redirect_stdout(out), _columns(_WIDTH):
            code = run(words)
        out.seek(0)
        if code:
            raise ExtensionError(f"rooftop {command} exits with {code}")
        lines = [line.rstrip() for line in out.read().splitlines()]
        if "table" in self.options:
            start = next((n for n, line in enumerate(lines) if line.lstrip().startswith(self.options["table"])), None)
            if start is None:
                raise ExtensionError(f"rooftop {command} prints no table {self.options['table']!r}")
            lines = lines[start:]
        lines = lines[: self.options.get("first")]
        text = "\n".join(lines).strip("\n")
        block = nodes.literal_block(text, f"$ rooftop {command}\n{text}")
        block["language"] = "text"
        return block


class Answer(Directive):
    """The answer of an exercise, folded until the reader asks for it."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """What is inside, between the two ends of an HTML element."""
        inside = nodes.container()
        self.state.nested_parse(self.content, self.content_offset, inside)
        start = nodes.raw("", '<details class="rooftop-answer"><summary>Answer</summary>', format="html")
        return [start, *inside.children, nodes.raw("", "</details>", format="html")]


@contextlib.contextmanager
def _columns(width: int) -> Iterator[None]:
    """A terminal as wide as the column of text."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(width)
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _command(name: str) -> click.Command:
    command: click.Command = importlib.import_module(f"rooftop.cli._{name}").command
    return command


def figures_of(words: list[str]) -> list[Figure]:
    """The figures of a command's answer."""
    found: list[Figure] = []
    command = _command(words[0])
    with command.make_context(words[0], list(words[1:])) as context:
        context.meta[SINK] = lambda _data, figures: found.extend(figures())
        command.invoke(context)
    return found


def address(words: list[str]) -> str:
    """The question in the address of the local page: its fields are the options as they were written."""
    command = _command(words[0])
    options = {flag: parameter for parameter in command.params for flag in parameter.opts}
    arguments = [p.name for p in command.params if isinstance(p, click.Argument)]
    asked: dict[str, str] = {}
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        option = options.get(word)
        if isinstance(option, click.Option):
            name = next(flag for flag in option.opts if flag.startswith("--")).removeprefix("--").replace("-", "_")
            asked[name] = "true" if option.is_flag else rest.pop(0)
        else:
            asked[str(arguments.pop(0))] = word
    return f"http://localhost:8765/#{VIEWS[words[0]]}?{urlencode(asked)}"


def write_assets(app: Any, exception: Exception | None) -> None:
    """What draws the figures, beside the pages."""
    if exception is not None or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    static.mkdir(exist_ok=True)
    draw = 'addEventListener("DOMContentLoaded", () => rooftopFigures.drawAll());'
    parts = (plotly_script(), asset("scene.js"), asset("figures.js"), draw)
    (static / _SCRIPT).write_text(";\n".join(parts), encoding="utf-8")
    (static / _STYLE).write_text(asset("figures.css"), encoding="utf-8")


def use_assets(app: Any, page: str, template: str, context: Any, doctree: Any) -> None:
    """Only pages with figures load the script."""
    if doctree is not None and any("rt-figure" in node.astext() for node in doctree.findall(nodes.raw)):
        app.add_css_file(_STYLE)
        app.add_js_file(_SCRIPT)


def setup(app: Any) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("rooftop", Rooftop)
    app.add_directive("answer", Answer)
    app.connect("html-page-context", use_assets)
    app.connect("build-finished", write_assets)
    return {"parallel_read_safe": True}
