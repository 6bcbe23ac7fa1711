"""What the terminal shows as a page of its own: headings, tables that fit the width, figures. No requests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from rooftop.figures import Figure, figure_html, scripts

if TYPE_CHECKING:
    from rich.console import RenderableType

_STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--paper:#fff;--line:#d8dde4;--soft:#5b6673;--accent:#2f6db5}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--paper:#14181f;--line:#333b47;--soft:#a3adba;--accent:#79aef0}}
@media print{:root{--ink:#1c2430;--paper:#fff;--line:#d8dde4;--soft:#5b6673}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0 auto;padding:1.5rem;max-width:72rem;overflow-wrap:break-word}
h1{font-size:1.5rem;line-height:1.25;margin:.2rem 0 1rem}h2{font-size:1.15rem;margin:2rem 0 .4rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.92rem}
th,td{padding:.25rem .9rem .25rem 0;text-align:left;vertical-align:top}thead th{border-bottom:1px solid var(--line);color:var(--soft);font-weight:600}
th.r,td.r{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
tbody tr+tr td{border-top:1px solid color-mix(in srgb,var(--line) 55%,transparent)}
.note{color:var(--soft);font-size:.88rem;max-width:75ch}.bar{display:inline-block;height:.7rem;border-radius:2px;background:var(--accent);min-width:1px}
td.mono{font-family:ui-monospace,monospace;white-space:pre;letter-spacing:0}ul{margin:.3rem 0;padding-left:1.2rem;max-width:85ch}
footer{margin-top:2.5rem;color:var(--soft);font-size:.85rem}
"""
#: The page may draw, and do nothing else: no request leaves it.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_BLOCKS = re.compile("[█▏▎▍▌▋▊▉]+|#+")


def html_page(renderable: RenderableType, figures: Sequence[Figure] = ()) -> str:
    """A self-contained page: the heading, the first table, the figures, then the other tables and notes."""
    from rooftop import __version__

    parts = list(_parts(renderable))
    title = next((text for kind, text in parts if kind == "heading"), "Rooftop")
    done = False
    body = []
    for kind, text in parts:
        if kind == "heading":
            body.append(f"<h1>{escape(text)}</h1>" if text is title else f"<h2>{escape(text)}</h2>")
            continue
        body.append(text)
        if figures and not done and kind == "table":
            body += map(figure_html, figures)
            done = True
    if figures and not done:
        body += map(figure_html, figures)
    head = scripts() if figures else ""
    tail = "<script>rooftopFigures.drawAll();matchMedia('(prefers-color-scheme: dark)').addEventListener('change',()=>rooftopFigures.drawAll())</script>"
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>{escape(title)}</title><style>{_STYLE}</style>{head}'
        f"</head><body><main>{''.join(body)}</main><footer>Rooftop {__version__}</footer>{tail if figures else ''}</body></html>\n"
    )


def body_html(renderable: RenderableType, *, folded: bool = True) -> str:
    """What a renderer made, perhaps folded away under its heading, for a cell of a notebook."""
    parts = list(_parts(renderable))
    title = next((text for kind, text in parts if kind == "heading"), "")
    rest = "".join(
        f"<h4>{escape(text)}</h4>" if kind == "heading" else text for kind, text in parts if text is not title
    )
    told = f"<details><summary>All numbers</summary>{rest}</details>" if folded else rest
    return f"<h3>{escape(title)}</h3>{told}" if title else told


def _parts(item: Any) -> Iterator[tuple[str, str]]:
    """(kind, HTML or, of a heading, text) of what a renderer made, in order."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    if isinstance(item, Table):
        yield "table", _table(item)
    elif isinstance(item, Group):
        parts = item.renderables
        listed = bool(parts) and isinstance(parts[0], Text) and all(isinstance(p, Padding) for p in parts[1:])
        if listed and len(parts) > 1:
            told = "".join(f"<li>{escape(_plain(p).removeprefix('- '))}</li>" for p in parts[1:])
            yield "list", f"<h2>{escape(_plain(parts[0]))}</h2><ul>{told}</ul>"
            return
        for part in parts:
            yield from _parts(part)
    elif isinstance(item, Padding):
        for kind, text in _parts(item.renderable):
            inside = f"<p>{escape(text)}</p>" if kind == "heading" else text
            yield "text", f'<div style="margin-left:{item.left / 2:g}rem">{inside}</div>'
    elif isinstance(item, Text) and "bold" in str(item.style):
        yield "heading", item.plain
    elif _plain(item).strip():
        yield "text", f'<p class="note">{escape(_plain(item))}</p>'


def _plain(item: Any) -> str:
    from rich.padding import Padding

    if isinstance(item, Padding):
        return _plain(item.renderable)
    return str(getattr(item, "plain", item))


def _table(table: Any) -> str:
    columns = [
        (_plain(c.header).strip(), c.justify == "right", [_plain(cell) for cell in c.cells]) for c in table.columns
    ]
    longest = max((len(cell) for _, _, cells in columns for cell in cells if _BLOCKS.fullmatch(cell)), default=1)
    head = ""
    if table.show_header:
        told = "".join(
            f'<th scope="col"{" class=r" if right else ""}>{escape(name)}</th>' for name, right, _ in columns
        )
        head = f"<thead><tr>{told}</tr></thead>"
    rows = []
    for cells in zip(*(cells for _, _, cells in columns), strict=True):
        told = "".join(_cell(cell, right, longest) for cell, (_, right, _) in zip(cells, columns, strict=True))
        rows.append(f"<tr>{told}</tr>")
    title = f"<h2>{escape(_plain(table.title))}</h2>" if table.title is not None else ""
    note = f'<p class="note">{escape(_plain(table.caption))}</p>' if table.caption is not None else ""
    return f'{title}<div class="scroll"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>{note}'


def _cell(cell: str, right: bool, longest: int) -> str:
    if _BLOCKS.fullmatch(cell):
        return f'<td><span class="bar" style="width:{9 * len(cell) / longest:.2f}rem"></span></td>'
    mono = len(cell) > 40 and " " not in cell.strip()
    kind = " class=r" if right else " class=mono" if mono else ""
    return f"<td{kind}>{escape(cell)}</td>"
