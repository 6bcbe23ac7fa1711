"""A directive that runs a rooftop command when the docs are built, and shows it with its output."""

from __future__ import annotations

import contextlib
import io
import shlex
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from sphinx.errors import ExtensionError

from rooftop.cli import run


class Rooftop(Directive):
    """`{rooftop} plan llama-3-8b --on v5e:4x4`: the output in the page is that of the code that the page documents.

    Option `table`: only the tables whose title begins so; `first`: only so many lines of it.
    """

    required_arguments = 1
    final_argument_whitespace = True
    has_content = False
    option_spec: ClassVar[dict[str, Any]] = {"table": directives.unchanged, "first": directives.positive_int}

    def run(self) -> list[nodes.Node]:
        """Run the command; a failure fails the build."""
        command = self.arguments[0].replace("\n", " ")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = run(shlex.split(command))
        if code:
            raise ExtensionError(f"rooftop {command} exits with {code}")
        lines = [line.rstrip() for line in out.getvalue().splitlines()]
        if "table" in self.options:
            start = next((n for n, line in enumerate(lines) if line.startswith(self.options["table"])), None)
            if start is None:
                raise ExtensionError(f"rooftop {command} prints no table {self.options['table']!r}")
            lines = lines[start:]
        lines = lines[: self.options.get("first")]
        text = "\n".join(lines).strip("\n")
        block = nodes.literal_block(text, f"$ rooftop {command}\n{text}")
        block["language"] = "text"
        return [block]


def setup(app: Any) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("rooftop", Rooftop)
    return {"parallel_read_safe": True}
