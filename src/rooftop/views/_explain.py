"""An explanation as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.formula import Explanation
from rooftop.views._terminal import lines

if TYPE_CHECKING:
    from rich.console import RenderableType


def explanation_json(explanation: Explanation) -> dict[str, Any]:
    """The derivation as nested objects."""
    return {
        "name": explanation.name,
        "value": explanation.value,
        "unit": explanation.unit,
        "formula": explanation.formula,
        "substitution": explanation.substitution,
        "source": explanation.source,
        "note": explanation.note,
        "inputs": [explanation_json(e) for e in explanation.inputs],
    }


def explanation_text(explanation: Explanation) -> RenderableType:
    """The derivation as an indented outline."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    rows: list[RenderableType] = []
    for depth, each in explanation.walk():
        head = Text(f"{each.name} = {_number(each.value)}" + (f" {each.unit}" if each.unit else ""), style="bold")
        rows.append(Padding(head, (0, 0, 0, 4 * depth)))
        body = []
        if each.formula:
            body.append(f"= {each.formula}")
        if each.substitution and each.substitution != each.formula:
            body.append(f"= {each.substitution}")
        if each.source:
            body.append(f"source: {each.source}")
        if each.note:
            body.append(f"note: {each.note}")
        rows += [Padding(Text(line), (0, 0, 0, 4 * depth + 2)) for line in body]
    return Group(*rows)


def _number(value: float) -> str:
    return f"{value:.5g}"


__all__ = ["explanation_json", "explanation_text", "lines"]
