"""The kernels of a pass one by one: what each does, how long it takes, what binds it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rooftop.costing._terms import Terms, Work
from rooftop.costing._time import Rates, work_seconds
from rooftop.formula import Number, total
from rooftop.roofline import math_seconds, memory_seconds


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel on one chip. flops, bytes and seconds are those of one run; it runs `count` times.

    shape: rows, contraction, columns and batch of a matmul. unit: what computes it, matrix or vector. peak: FLOP/s of that.
    """

    name: str
    program: str
    phase: str
    count: float
    unit: str
    shape: tuple[float, float, float, float] | None
    flops: float
    bytes: float
    peak: float
    math: float
    hbm: float
    expected: float

    @property
    def bound(self) -> float:
        """The slower of arithmetic and memory, in seconds."""
        return max(self.math, self.hbm)

    @property
    def binds(self) -> str:
        """The resource that takes longest: compute or hbm."""
        return "compute" if self.math >= self.hbm else "hbm"

    @property
    def text(self) -> str:
        """The shape as a person writes it; empty for what is no matmul."""
        if self.shape is None:
            return ""
        rows, contraction, columns, batch = (f"{n:,.0f}" for n in self.shape)
        return f"{rows} × {contraction} × {columns}" + (f", {batch} times" if batch != "1" else "")


def kernels(terms: Terms, sizes: Sequence[Number], rates: Rates, count: float) -> Iterator[Kernel]:
    """The kernels of a program whose distinct sizes have been evaluated; `count`: how often the program runs."""
    for work, expected in zip(terms.works, work_seconds(terms, sizes, rates), strict=True):
        yield _kernel(work, terms.name, sizes, rates, count, float(expected))


def _kernel(work: Work, program: str, sizes: Sequence[Number], rates: Rates, count: float, expected: float) -> Kernel:
    bytes = float(total(sizes[i] for i in work.bytes))
    matrix = bool(work.flops)
    flops = float(total(sizes[i] for i in (work.flops if matrix else work.vector)))
    peak = float(rates.matmul(work.weight).peak if matrix else rates.vector)
    shape = None
    if work.matmul is not None:
        rows, contraction, columns, batch = (float(sizes[i]) for i in work.matmul)
        shape = (rows, contraction, columns, batch)
    return Kernel(
        name=work.name, program=program, phase=work.phase, count=count, unit="matrix" if matrix else "vector",
        shape=shape, flops=flops, bytes=bytes, peak=peak, math=float(math_seconds(flops, peak)),
        hbm=float(memory_seconds(bytes, float(rates.hbm))), expected=expected,
    )  # fmt: skip
