"""The terminal: one console, tables, bars. Rich is imported only when something is drawn."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table


def console(*, stderr: bool = False) -> Console:
    """The console: colour only on a terminal, 110 columns when the output goes elsewhere."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None
    if "COLUMNS" in os.environ or not stream.isatty():
        width = max(40, shutil.get_terminal_size((110, 24)).columns)
    return Console(file=stream, width=width, highlight=False, soft_wrap=False)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str | None = None) -> Table:
    """A table; columns whose name starts with '>' are aligned right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    result = Table(
        title=Text(title) if title else None, caption=Text(caption) if caption else None, box=box.SIMPLE_HEAD,
        title_justify="left", caption_justify="left", title_style="bold", pad_edge=False,
        show_header=any(c.strip("> ") for c in columns),
    )  # fmt: skip
    for column in columns:
        result.add_column(Text(column.removeprefix(">")), justify="right" if column.startswith(">") else "left")
    for row in rows:
        result.add_row(*(Text(cell) for cell in row))
    return result


def bar(value: float, maximum: float, width: int = 24) -> str:
    """A bar of blocks, `width` characters at the maximum."""
    if maximum <= 0:
        return ""
    eighths = round(max(0.0, min(1.0, value / maximum)) * width * 8)
    whole, part = divmod(eighths, 8)
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
    if "utf" not in encoding:
        return "#" * (whole + (part >= 4))
    return "█" * whole + ("" if part == 0 else " ▏▎▍▌▋▊▉"[part])


def heading(text: str) -> RenderableType:
    """A line that stands out."""
    from rich.text import Text

    return Text(text, style="bold")


def lines(title: str, items: Sequence[str]) -> RenderableType:
    """A titled list of sentences."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    return Group(Text(title, style="bold"), *(Padding(Text(f"- {item}"), (0, 0, 0, 2)) for item in items))


def group(*parts: RenderableType) -> RenderableType:
    """Parts below each other, a blank line between them."""
    from rich.console import Group

    spaced: list[RenderableType] = []
    for part in parts:
        if spaced:
            spaced.append("")
        spaced.append(part)
    return Group(*spaced)
