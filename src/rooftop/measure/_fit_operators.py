"""A chip's operator coefficients, fitted to measured operators through the product's own formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rooftop.errors import InputError
from rooftop.hardware import chip as chip_of
from rooftop.hardware import slice_of
from rooftop.measure._operators import Array, Operators
from rooftop.roofline import (
    Placement,
    calibration_for,
    collective_seconds,
    dimensions,
    expected_op_seconds,
    group,
    padded,
    wave_factor,
)

_SAMPLE = 3000  # measurements of a kind that are fitted


@dataclass(frozen=True, slots=True)
class Coefficient:
    """What a coefficient starts from, and the range that makes sense."""

    start: float
    least: float
    most: float


#: Coefficients of kernels. Seconds are microseconds here, so that all are near one.
KERNELS: Mapping[str, Coefficient] = {
    "hbm": Coefficient(0.8, 0.3, 1.0),
    "unhidden": Coefficient(0.3, 0.0, 1.0),
    "waves": Coefficient(0.2, 0.0, 1.0),
    "op_overhead": Coefficient(3.0, 0.0, 50.0),
    "attention": Coefficient(0.6, 0.05, 1.0),
    "attention_overhead": Coefficient(5.0, 0.0, 50.0),
    "cast": Coefficient(3.0, 0.0, 50.0),
    "matmul.bf16": Coefficient(0.7, 0.1, 1.0),
    "matmul.fp8": Coefficient(0.6, 0.1, 1.0),
    "matmul.fp4": Coefficient(0.5, 0.1, 1.0),
}
#: Coefficients of the innermost network.
NETWORK: Mapping[str, Coefficient] = {
    "network": Coefficient(0.8, 0.1, 1.0),
    "latency": Coefficient(4.0, 0.0, 100.0),
    "messages": Coefficient(1.0, 0.0, 2.0),
    "reduction_gain": Coefficient(1.3, 1.0, 2.0),
    "reduction_latency": Coefficient(1.0, 0.1, 2.0),
}


@dataclass(frozen=True, slots=True)
class OperatorErrors:
    """Errors on shapes that were left out: median and 90th percentile of their size, and the median with its sign."""

    kind: str
    dtype: str
    fitted: int
    left_out: int
    median: float
    p90: float
    bias: float


@dataclass(frozen=True, slots=True)
class OperatorFit:
    """Fitted coefficients of a chip, in SI units, and their errors."""

    chip: str
    coefficients: Mapping[str, float]
    errors: tuple[OperatorErrors, ...]


def fit_operators(chip: str, operators: Sequence[Operators], *, seed: int = 0) -> OperatorFit:
    """Least squares of the logarithms, robust to outliers. Half of the shapes of each operator, drawn at random, are left out."""
    random = np.random.default_rng(seed)
    kept: list[Operators] = []
    left: list[Operators] = []
    for each in operators:
        place = random.permutation(len(each.seconds)) % 2 == 0
        kept.append(_sample(each.some(place), random))
        left.append(_sample(each.some(~place), random))
    found: dict[str, float] = {}
    for table, member in ((KERNELS, _is_kernel), (NETWORK, lambda o: not _is_kernel(o))):
        some = [o for o in kept if member(o)]
        if some:
            found |= _solve(chip, some, table)
    errors = []
    for mine, other in zip(kept, left, strict=True):
        ratio = predicted(chip, other, found) / other.seconds - 1
        size = np.abs(ratio)
        errors.append(
            OperatorErrors(
                mine.kind, mine.dtype, len(mine.seconds), len(size), float(np.median(size)), float(np.quantile(size, 0.9)),
                float(np.median(ratio)),
            )
        )  # fmt: skip
    return OperatorFit(chip, found, tuple(errors))


def _is_kernel(o: Operators) -> bool:
    return o.kind in ("matmul", "attention", "decode")


def _sample(of: Operators, random: np.random.Generator) -> Operators:
    which: NDArray[np.bool_] = np.zeros(len(of.seconds), dtype=np.bool_)
    which[random.permutation(len(of.seconds))[:_SAMPLE]] = True
    return of.some(which)


def _solve(chip: str, operators: Sequence[Operators], table: Mapping[str, Coefficient]) -> dict[str, float]:
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise InputError("fitting needs SciPy; install rooftop[calibration]", field="fit") from None
    dtypes = {o.dtype for o in operators}
    names = [n for n in table if not n.startswith("matmul.") or n.removeprefix("matmul.") in dtypes]
    if not dtypes & {"fp8", "fp4"}:
        names = [n for n in names if n != "cast"]

    def named(vector: Array) -> dict[str, float]:
        return {n: float(v) * (1e-6 if table[n].most >= 50 else 1.0) for n, v in zip(names, vector, strict=True)}

    def residuals(vector: Array) -> Array:
        coefficients = named(vector)
        parts = []
        for o in operators:  # every kind of operator counts the same
            off = np.log(predicted(chip, o, coefficients) / o.seconds)
            parts.append(off * np.sqrt(_SAMPLE / len(off)))
        return np.concatenate(parts)

    solved = least_squares(
        residuals, [table[n].start for n in names], loss="soft_l1", f_scale=0.1,
        bounds=([table[n].least for n in names], [table[n].most for n in names]),
    )  # fmt: skip
    return named(solved.x)


def predicted(chip: str, o: Operators, c: Mapping[str, float]) -> Array:
    """Seconds of operators on a chip by the operator models with some coefficients."""
    of, columns = chip_of(chip), o.columns
    bandwidth = of.hbm_bandwidth * c.get("hbm", 1.0)
    if o.kind == "matmul":
        rows, contraction, out = (columns[n] for n in ("rows", "contraction", "columns"))
        flops = 2 * padded(rows, of.tile[0]) * padded(contraction, of.tile[1]) * padded(out, of.tile[2])
        tiles = np.ceil(rows / of.tile[0]) * np.ceil(out / of.tile[2])
        flops = flops * wave_factor(tiles, of.cores, c["waves"])
        overhead = c["op_overhead"] + (c["cast"] if o.dtype in ("fp8", "fp4") else 0.0)
        rate = of.flops[o.dtype] * c[f"matmul.{o.dtype}"]
        return np.asarray(expected_op_seconds(flops, columns["bytes"], rate, bandwidth, overhead, c["unhidden"]))
    if _is_kernel(o):
        rate = of.flops["bf16"] * c["attention"]
        return np.asarray(
            expected_op_seconds(
                columns["flops"],
                columns["bytes"],
                rate,
                bandwidth,
                c["op_overhead"] + c["attention_overhead"],
                c["unhidden"],
            )
        )
    result = np.zeros_like(o.seconds)
    for chips in np.unique(columns["chips"]):
        which = columns["chips"] == chips
        where = slice_of(f"{chip}:{int(chips)}")
        name = where.levels[0].name
        calibration = replace(
            calibration_for(of.name, of.family), networks={name: c["network"]}, latencies={name: c["latency"]},
            messages=c["messages"], reduction_gain=c["reduction_gain"], reduction_latency=c["reduction_latency"],
        )  # fmt: skip
        abilities = group(
            Placement(dimensions(where.levels), ({"data": int(chips)},), ("data",)), ("data",), calibration
        )
        result[which] = collective_seconds(o.kind, columns["bytes"][which], abilities)
    return result
