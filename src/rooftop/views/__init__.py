"""One renderer per kind of result, for the terminal and as JSON. Nothing is computed here."""

from rooftop.views._terminal import bar, console, group, heading, lines, table

__all__ = ["bar", "console", "group", "heading", "lines", "table"]
