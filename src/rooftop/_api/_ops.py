"""Single things: a model, a chip, a slice, an op, a sharded matmul, a collective."""

from __future__ import annotations

from collections.abc import Mapping

from rooftop import hardware, roofline
from rooftop._api._words import model_of, number, where_of
from rooftop.arrays import Expression, parse
from rooftop.hardware import Chip, Slice
from rooftop.roofline import CollectiveTime, MatmulTime, OpRoofline
from rooftop.transformer import Architecture, Model


def model(name: str | Architecture, *, seq: int = 4096) -> Model:
    """Parameters, FLOPs and caches of a model; see `rooftop model --help`. seq: tokens of a sequence, for attention."""
    return Model(model_of(name), seq)


def chip(name: str) -> Chip:
    """What is known of a chip, each figure with its source; see `rooftop chip --help`. Raises InputError for an unknown name."""
    return hardware.chip(name)


def slice(name: str) -> Slice:
    """Chips and networks of a slice such as "v5p:8x8x16*4"; see `rooftop slice --help`. Raises InputError for what there is not."""
    return hardware.slice_of(name)


def roofline_of(
    expression: str | Expression,
    on: str | Chip,
    *,
    sizes: Mapping[str, int] | None = None,
    dtype: str | None = None,
    memory: str = "hbm",
) -> OpRoofline:
    """The roofline of one op on one chip; see `rooftop roofline --help`.

    sizes: of axes that have none in the expression; memory: where the operands are, "hbm", "fast" or "host".
    """
    parsed = parse(expression) if isinstance(expression, str) else expression
    there = where_of(on).chip if isinstance(on, str) else on
    return roofline.op_roofline(parsed, sizes or {}, there, dtype=dtype, memory=memory)


def matmul(
    expression: str | Expression, on: str | Slice, mesh: Mapping[str, int], *, sizes: Mapping[str, int] | None = None
) -> MatmulTime:
    """A sharded matmul, or a resharding: the collectives that shardings force, their time, other ways; see `rooftop matmul --help`.

    mesh: sizes of mesh axes; sizes: of array axes that have none in the expression.
    """
    parsed = parse(expression) if isinstance(expression, str) else expression
    return roofline.matmul_time(parsed, sizes or {}, mesh, where_of(on))


def collective(
    kind: str, on: str | Slice, bytes: float | str, axes: Mapping[str, int], *, one_way: bool = False
) -> CollectiveTime:
    """One collective on a slice; see `rooftop collective --help`.

    bytes: the whole array of one group (a number or "34MB"); axes: mesh axes and their sizes; one_way: rings send one way only.
    """
    return roofline.collective_time(kind, number("bytes", bytes), axes, where_of(on), one_way=one_way)
