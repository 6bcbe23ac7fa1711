"""A matmul on the systolic array of a TPU, cell by cell."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rooftop.figures._figure import Figure
from rooftop.roofline import OpRoofline

#: What is drawn: rows of the input, and cells of the array along the contraction and the output's columns.
ROWS, INNER, COLUMNS = 6, 4, 4


def systolic_figures(r: OpRoofline) -> list[Figure]:
    """How the matrix unit of a TPU does a matmul; nothing for other ops and chips."""
    return [systolic_chart(r)] if r.shape is not None and r.chip.family == "tpu" else []


def busy(step: int, rows: int, inner: int, columns: int) -> Iterator[tuple[int, int, int]]:
    """(row, place along the contraction, column) of each product of a step, counted from 1: a cell further on is a step later."""
    for k in range(inner):
        for n in range(columns):
            row = step - 1 - k - n
            if 0 <= row < rows:
                yield row, k, n


def pass_steps(rows: int, inner: int, columns: int) -> int:
    """Steps from the first product to the last one of a tile."""
    return rows + inner + columns - 2


def systolic_chart(r: OpRoofline) -> Figure:
    """A tile of weights stands in the array, inputs enter from the left, sums leave below; drawn small."""
    assert r.shape is not None
    rows, inner, columns = r.shape
    _, height, width = r.chip.tile
    down, across = math.ceil(inner / height), math.ceil(columns / width)
    filled = inner * columns / (down * height * across * width)
    steps = pass_steps(rows, height, width)
    caption = (
        f"An array of {height} x {width} cells holds a tile of the weights; each step, inputs move a cell right and sums a cell down. Drawn with"
        f" {INNER} x {COLUMNS} cells and {ROWS} rows. This matmul has {down:,} x {across:,} tiles, of whose cells {filled:.0%} hold weights;"
        f" {rows:,} rows pass through each in {steps:,} steps, {height + width - 2:,} of them to fill and to drain: alone, a pass keeps"
        f" {rows / steps:.0%} of the cells busy, and passes that follow each other share what it takes to fill."
    )
    total = pass_steps(ROWS, INNER, COLUMNS)
    table = []
    for step in range(1, total + 1):
        now = list(busy(step, ROWS, INNER, COLUMNS))
        done = [f"Y[{row}, {n}]" for row, k, n in now if k == INNER - 1]
        table.append((step, len(now), len(now) / (INNER * COLUMNS), " ".join(done)))
    return Figure(
        "systolic", f"The matrix unit of {r.chip.title}", caption, ("step", "busy_cells", "share", "finished"), table,
        scene={"systolic": True, "kind": "matmul", "rows": ROWS, "inner": INNER, "columns": COLUMNS, "steps": total},
    )  # fmt: skip
