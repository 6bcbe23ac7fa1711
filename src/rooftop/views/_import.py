"""A run of another framework as Rooftop reads it, as a terminal page and as JSON."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from rooftop.training import choices
from rooftop.views._terminal import group, heading, lines, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rooftop.frameworks import Imported

#: Keys that a page names.
_MOST_KEYS = 80


def import_json(found: Imported) -> dict[str, Any]:
    """The plan, the words that ask about it, and what was not understood."""
    plan = found.plan
    return {
        "framework": found.framework,
        "command": list(found.words),
        "for": dict(found.made_for),
        "mesh": {a: n for a, n in plan.mesh.items() if n > 1},
        "microbatches": plan.microbatches,
        "microbatch_sequences": plan.sequences,
        "choices": {f.name: getattr(plan.choices, f.name) for f in choices()},
        "not_read": list(found.unread),
        "notes": list(found.notes),
    }


def import_text(found: Imported) -> RenderableType:
    """The page that `rooftop import` prints."""
    plan, asked = found.plan, found.made_for
    mesh = ", ".join(f"{a}={n}" for a, n in plan.mesh.items() if n > 1) or "one chip"
    changed = [
        f"{f.name}={getattr(plan.choices, f.name)}" for f in choices() if getattr(plan.choices, f.name) != f.default
    ]
    rows = [
        ("model", asked["model"]),
        ("slice", asked["slice"]),
        ("mesh", mesh),
        ("batch", f"{plan.batch_sequences:,} sequences of {asked['seq']:,} tokens, {plan.microbatches:,} microbatches of"
                  f" {plan.sequences:,} on {plan.groups:,} groups of chips"),
        ("choices", ", ".join(changed) or "those of a plan that says nothing"),
        ("precision", ", ".join(f"{k}={v}" if k != "precision" else str(v) for k, v in found.question_options.items())),
    ]  # fmt: skip
    parts: list[RenderableType] = [
        heading(f"A run of {found.framework}"),
        table("What it says", ("", ""), rows),
        lines("Ask about it", (shlex.join(found.words),)),
    ]
    if found.notes:
        parts.append(lines("How it was read", found.notes))
    if found.unread:
        more = len(found.unread) - _MOST_KEYS
        shown = [*found.unread[:_MOST_KEYS], *([f"and {more} more, which --json names"] if more > 0 else [])]
        parts.append(lines(f"Not read ({len(found.unread)})", (", ".join(shown),)))
    return group(*parts)
