"""Figures in HTML that needs nothing else: the scripts and the style are in it."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from html import escape
from importlib import resources

from rooftop.errors import MissingExtra
from rooftop.figures._figure import Figure, figure_json


@functools.cache
def plotly_script() -> str:
    """The script that draws, from the plotly package. Raises MissingExtra without it."""
    try:
        return (resources.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    except (ModuleNotFoundError, FileNotFoundError):
        raise MissingExtra("figures are drawn by plotly; install rooftop[figures]") from None


@functools.cache
def asset(name: str) -> str:
    """A script or a style of this room."""
    return (resources.files("rooftop.figures") / "assets" / name).read_text(encoding="utf-8")


@functools.cache
def asset_names() -> frozenset[str]:
    """The scripts and styles of this room."""
    return frozenset(entry.name for entry in (resources.files("rooftop.figures") / "assets").iterdir())


def scripts() -> str:
    """Everything that `figure_html` needs on its page."""
    return f"<style>{asset('figures.css')}</style><script>{plotly_script()}</script><script>{''.join(asset(name) for name in ('figures.js', 'player.js', 'scene.js', 'systolic.js'))}</script>"


def figure_html(figure: Figure) -> str:
    """One figure: what draws it, its words, and its numbers for who does not see it."""
    # in a script element only "<" could end it or begin a comment
    data = json.dumps(figure_json(figure), allow_nan=False).replace("<", "\\u003c")
    return (
        f'<figure class="rt-figure" data-name="{escape(figure.name)}"><script type="application/json">{data}</script>'
        f"<noscript>{escape(figure.title)}: {escape(figure.caption)}</noscript></figure>"
    )


def notebook_html(figures: Sequence[Figure], before: str = "") -> str | None:
    """Figures for the output of a notebook's cell; None where plotly is not installed, so that the text is shown."""
    try:
        head = scripts() if not _shown else ""
    except MissingExtra:
        return None
    _shown.append(True)
    return f'<div class="rt-notebook">{head}{before}{"".join(map(figure_html, figures))}<script>rooftopFigures.drawAll()</script></div>'


#: Whether this process has shown the scripts: the page of a notebook needs them once.
_shown: list[bool] = []
