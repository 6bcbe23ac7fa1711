"""What lets a result draw itself in a notebook, where the figures are installed."""

from __future__ import annotations


class Shown:
    """A result whose representation in a notebook is that of `rooftop.views`."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        from rooftop.views._notebook import result_html  # above all results: imported when one is shown

        return result_html(self)
