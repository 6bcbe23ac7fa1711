"""What lets a result show itself: printed, in a notebook, as plain data. The views are above all results, so they come late."""

from __future__ import annotations

from typing import Any


class Shown:
    """A result that prints what its command prints, draws itself in a notebook, and gives what `--json` gives."""

    __slots__ = ()

    def __str__(self) -> str:
        from rooftop.views._results import result_text

        return result_text(self)

    def _repr_html_(self) -> str:
        from rooftop.views._results import result_html

        return result_html(self)

    def json(self) -> dict[str, Any]:
        """Numbers, texts, lists and dicts: the document that `--json` prints."""
        from rooftop.views._plain import plain
        from rooftop.views._results import view_of

        data: dict[str, Any] = plain(view_of(self)[1](self))
        return data
