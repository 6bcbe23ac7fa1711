"""Figures of what-ifs: what limits, and how far each number moves the answer."""

from __future__ import annotations

from typing import Any

from rooftop.codesign import FIXED, Sensitivity, Whatif
from rooftop.figures._figure import COLOURS, Figure, axis, colour

_MOST_BARS = 24


def whatif_figures(found: Whatif) -> list[Figure]:
    """All that shows a what-if."""
    shares = [shares_chart(found)] if found.shares else []
    return [*shares, tornado_chart(found)]


def _words(measure: str) -> str:
    return measure.replace("_", " ").replace(".", ", ")


def _shade(name: str) -> str:
    """The colour of the resource that a number of hardware belongs to."""
    kinds = {
        "chip.flops": "compute",
        "chip.vector_flops": "vector",
        "chip.hbm_bandwidth": "hbm",
        "chip.pcie_bandwidth": "host",
    }
    return COLOURS["muted"] if name == FIXED else colour(kinds.get(name, "network"))


def shares_chart(found: Whatif) -> Figure:
    """The shares of the time by hardware number, as one bar."""
    data = [
        {
            "type": "bar", "orientation": "h", "name": name, "x": [share * 100], "y": ["time"], "text": [f"{share:.0%}"],
            "marker": {"color": _shade(name), "line": {"width": 1, "color": "rgba(255,255,255,0.6)"}},
            "hovertemplate": f"{name}: {share:.1%}<extra></extra>",
        }
        for name, share in found.shares.items()
    ]  # fmt: skip
    first = next(iter(found.shares))
    caption = (
        f"Shares of {_words(found.measure)}: {first} has {found.shares[first]:.0%}. Twice the rate takes half of a share,"
        " as long as nothing else begins to bind."
    )
    layout = {"barmode": "stack", "height": 200, "xaxis": axis("% of the time", range=[0, 100]), "yaxis": {"visible": False}}  # fmt: skip
    return Figure(
        "limits",
        "What limits it",
        caption,
        ("number", "share"),
        [(n, s) for n, s in found.shares.items()],
        data,
        layout,
    )


def tornado_chart(found: Whatif) -> Figure:
    """How much the measure moves with each number at the two values beside it, the widest bars on top."""
    replanned = any(m.best is not None for n in found.numbers for m in n.moves)

    def change(n: Sensitivity, i: int, best: bool) -> float | None:
        return found.change(n.moves[i].best if best else n.moves[i].fixed)

    def width(n: Sensitivity) -> float:
        both = [change(n, i, best) for i in (0, 1) for best in ((True, False) if replanned else (False,))]
        return max((abs(c) for c in both if c is not None), default=0.0)

    shown = sorted((n for n in found.numbers if width(n) > 5e-4), key=width)[-_MOST_BARS:]
    labels = [n.name for n in shown]
    by = f"{found.by:g}"
    data: list[dict[str, Any]] = []
    for i, (title, shade) in enumerate(((f"1/{by} of it", COLOURS["network"]), (f"{by} times it", COLOURS["compute"]))):
        values = [change(n, i, replanned) for n in shown]
        data.append({
            "type": "bar", "orientation": "h", "name": title + (", planned anew" if replanned else ""), "y": labels,
            "x": [None if v is None else v * 100 for v in values], "marker": {"color": shade},
            "hovertemplate": f"%{{y}}, {title}: %{{x:+.1f}} %<extra></extra>",
        })  # fmt: skip
        if replanned:
            kept = [change(n, i, False) for n in shown]
            data.append({
                "type": "scatter", "mode": "markers", "name": f"{title}, kept as it is", "y": labels,
                "x": [None if v is None else v * 100 for v in kept],
                "marker": {"symbol": "diamond", "size": 10, "color": shade, "line": {"width": 2, "color": "white"}},
                "hovertemplate": f"%{{y}}, {title}, kept: %{{x:+.1f}} %<extra></extra>",
            })  # fmt: skip
    rows = [
        (n.name, n.value, n.elasticities.get(found.measure), *(change(n, i, False) for i in (0, 1)),
         *(change(n, i, True) for i in (0, 1)))
        for n in reversed(shown)
    ]  # fmt: skip
    columns = ("number", "value", "slope", f"1/{by} kept", f"{by}x kept", f"1/{by} best", f"{by}x best")
    layout = {
        "barmode": "overlay", "height": 160 + 26 * len(shown), "xaxis": axis(f"% change of {_words(found.measure)}", zeroline=True),
        "yaxis": {"automargin": True, "type": "category", "categoryorder": "array", "categoryarray": labels},
    }  # fmt: skip
    caption = (
        f"Each number at 1/{by} and {by} times what it is; to the left is less. Bars are the best anew, marks what is kept as it"
        " is; a bar without a mark has no answer there unless the plan changes."
        if replanned
        else f"Each number at 1/{by} and {by} times what it is, the plan kept; to the left is less."
    )
    return Figure("tornado", "How far each number moves it", caption, columns, rows, data, layout)
