"""Fit the calibration that the package ships: `python scripts/fit.py SYSTEMS_DATA [--folds]`.

SYSTEMS_DATA: the folder systems/data of an installed aiconfigurator-core (Apache-2.0), 0.12.0. Three fits, each of few physical
coefficients, by SciPy's robust least squares of logarithms:

1. operators of each chip, on the tables of operators (`rooftop.measure._fit_operators`);
2. what whole training steps add, on the training rows: shared by a family, or by a generation of chips;
3. what serving adds, on the serving rows: per family.

--folds: also leave out one source of training rows after the other, and print the errors on it. Writes
src/rooftop/roofline/data/calibration.toml.
"""

from __future__ import annotations

import collections
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "src"))

from rooftop.errors import RooftopError  # noqa: E402
from rooftop.hardware import chip, chips  # noqa: E402
from rooftop.measure import published  # noqa: E402
from rooftop.measure._fit_operators import fit_operators  # noqa: E402
from rooftop.measure._operators import SYSTEMS, read_operators  # noqa: E402
from rooftop.measure._training import benchmark, measured_seconds, planned  # noqa: E402
from rooftop.roofline import Calibration, calibration_for  # noqa: E402
from rooftop.training import Prepared  # noqa: E402

OUT = HERE.parent / "src/rooftop/roofline/data/calibration.toml"
GENERATIONS = {
    "ampere": ("a100-80g", "a100-40g"), "hopper": ("h100", "h200", "h800"), "blackwell": ("b200", "gb200", "b300", "gb300"),
    "v4": ("v4",), "v5p": ("v5p",), "v6e": ("v6e",),
}  # fmt: skip
OF = {c: g for g, names in GENERATIONS.items() for c in names}


@dataclass(frozen=True)
class Free:
    """A coefficient: where it lies in a calibration, its start, its range, and whether a generation has its own."""

    path: str
    start: float
    least: float
    most: float
    own: tuple[str, ...] = ()
    unit: float = 1.0


TRAINING = {
    "gpu": (
        Free("sustained", 0.85, 0.4, 1.0, ("ampere", "hopper", "blackwell")),
        Free("matmul.fp8", 0.7, 0.3, 0.85, ("hopper", "blackwell")),
        Free("matmul.fp4", 0.6, 0.2, 1.0, ("blackwell",)),
        Free("attention", 0.45, 0.1, 0.75, ("ampere", "hopper", "blackwell")),
        Free("elementwise", 0.6, 0.1, 1.0),
        Free("experts", 0.7, 0.1, 1.0),
        Free("all_to_all", 0.7, 0.1, 1.0),
        Free("overlap.prefetch", 0.8, 0.5, 0.95),
        Free("networks.nvlink", 0.7, 0.5, 0.85),
        Free("networks.ib", 0.7, 0.4, 0.9),
        Free("step_overhead", 10.0, 0.0, 400.0, unit=1e-3),
        Free("op_overhead", 5.0, 0.0, 60.0, unit=1e-6),
    ),
    "tpu": (
        Free("sustained", 0.85, 0.4, 1.0, ("v4", "v5p", "v6e")),
        Free("attention", 0.5, 0.2, 0.8),
        Free("overlap.prefetch", 0.9, 0.7, 0.99),
        Free("networks.default", 0.85, 0.6, 0.98),
        Free("step_overhead", 5.0, 0.0, 100.0, unit=1e-3),
    ),
}
#: How strongly coefficients stay at their start, in a range, beside one row.
PRIOR = 0.3


def put(calibration: Calibration, path: str, value: float) -> Calibration:
    """The calibration with one coefficient changed."""
    name, _, key = path.partition(".")
    return replace(calibration, **{name: {**getattr(calibration, name), key: value} if key else value})


def names_of(free: tuple[Free, ...]) -> list[tuple[Free, str]]:
    return [(f, g) for f in free for g in (f.own or ("",))]


def with_values(calibration: Calibration, name: str, free, vector) -> Calibration:
    for (f, generation), value in zip(names_of(free), vector, strict=True):
        if generation in ("", OF.get(name, "")):
            calibration = put(calibration, f.path, float(value) * f.unit)
    return calibration


def solve(free, residuals):
    """residuals(vector) of logarithms -> the vector."""
    every = [f for f, _ in names_of(free)]
    start = np.array([f.start for f in every])
    span = np.array([f.most - f.least for f in every])

    def with_prior(vector):
        return np.concatenate([residuals(vector), PRIOR * (vector - start) / span])

    return least_squares(
        with_prior, start, bounds=([f.least for f in every], [f.most for f in every]), loss="soft_l1", f_scale=0.1,
        x_scale=span, diff_step=1e-2, max_nfev=12,
    ).x  # fmt: skip


def operator_calibrations(root: Path) -> tuple[dict[str, Calibration], dict[str, object]]:
    """Stage 1: each chip's own where there are tables, and what the family has otherwise: the median."""
    fits = {name: fit_operators(name, read_operators(root, name)) for name in SYSTEMS}
    keys = sorted({k for f in fits.values() for k in f.coefficients})
    middle = {k: float(np.median([f.coefficients[k] for f in fits.values() if k in f.coefficients])) for k in keys}
    result = {}
    for name in chips():
        calibration = calibration_for(name, chip(name).family)
        if chip(name).family == "gpu":
            c = {**middle, **(fits[name].coefficients if name in fits else {})}
            matmul = {k.partition(".")[2]: v for k, v in c.items() if k.startswith("matmul.")}
            calibration = replace(
                calibration, matmul={"default": c["matmul.bf16"], **matmul},
                networks={"default": 0.7, "nvlink": c["network"]}, latencies={**calibration.latencies, "nvlink": c["latency"]},
                **{k: c[k] for k in ("hbm", "unhidden", "waves", "op_overhead", "attention", "attention_overhead", "cast",
                                     "messages", "reduction_gain", "reduction_latency")},
            )  # fmt: skip
        result[name] = calibration
    return result, fits


def training_cases():
    cases = []
    for row in published("training"):
        try:
            best, _ = planned(row)
            cases.append((row, Prepared(best.problem, best.plan), measured_seconds(row, best.problem.model)))
        except RooftopError:
            continue
    return cases


def errors(cases, expected) -> str:
    off = np.array([float(e) / m - 1 for (_, _, m), e in zip(cases, expected, strict=True)])
    size = np.abs(off)
    return (
        f"{len(off)} rows: bias {np.median(off):+.1%}, median {np.median(size):.1%}, 90% {np.quantile(size, 0.9):.1%}"
    )


def fit_training(cases, base, family):
    free = TRAINING[family]
    groups = collections.Counter((benchmark(r), p.chip.name) for r, p, _ in cases)
    weight = np.array([groups[benchmark(r), p.chip.name] ** -0.25 for r, p, _ in cases])

    def residuals(vector):
        changed = {n: with_values(c, n, free, vector) for n, c in base.items()}
        return weight * np.log([p.expected(changed[p.chip.name]) / m for _, p, m in cases])

    return solve(free, residuals)


def main() -> None:
    root = Path(sys.argv[1])
    base, fits = operator_calibrations(root)
    every = training_cases()
    report: dict[str, dict[str, str]] = {"gpu": {}, "tpu": {}}
    final = dict(base)
    residual: dict[str, list[float]] = {"gpu": [], "tpu": []}
    for family, free in TRAINING.items():
        cases = [c for c in every if c[1].chip.family == family]
        vector = fit_training(cases, base, family)
        for name in base:
            if chip(name).family == family:
                final[name] = with_values(base[name], name, free, vector)
        print(family, {f"{f.path} {g}": round(float(v), 3) for (f, g), v in zip(names_of(free), vector, strict=True)})
        report[family]["fitted"] = errors(cases, [p.expected(final[p.chip.name]) for _, p, _ in cases])
        print(family, "all", report[family]["fitted"])
        if "--folds" in sys.argv:
            left_cases, left_expected = [], []
            for source in sorted({benchmark(r) for r, _, _ in cases}):
                kept = [c for c in cases if benchmark(c[0]) != source]
                left = [c for c in cases if benchmark(c[0]) == source]
                if not kept:
                    continue
                part = fit_training(kept, base, family)
                expected = [p.expected(with_values(base[p.chip.name], p.chip.name, free, part)) for _, p, _ in left]
                print("  left out:", source, errors(left, expected))
                left_cases += left
                left_expected += expected
            report[family]["left_out"] = errors(left_cases, left_expected)
            residual[family] = [float(np.log(m / e)) for (_, _, m), e in zip(left_cases, left_expected, strict=True)]
            print(family, "left out, together:", report[family]["left_out"])
    write(final, fits, report, residual)


def number(value: float) -> str:
    return f"{value:.4g}"


def toml(value) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {toml(v)}" for k, v in value.items()) + " }"
    return f'"{value}"' if isinstance(value, str) else number(float(value))


FIELDS = (
    "matmul", "hbm", "vector", "attention", "attention_overhead", "unhidden", "waves", "cast", "sustained", "elementwise", "experts",
    "all_to_all", "op_overhead", "step_overhead", "networks", "latencies", "messages", "reduction_gain", "reduction_latency",
    "overlap", "serving",
)  # fmt: skip
WHERE = {
    "gpu": "operators: tables of aiconfigurator-core 0.12.0",
    "tpu": "HBM measured on TPU v6e, matmul start from v6e",
}


def write(final, fits, report, residual) -> None:
    """The data file: a family's coefficients, and of each chip what it has otherwise."""
    old = OUT.read_text(encoding="utf-8")
    lines = [
        "# Coefficients of `expected`, written by scripts/fit.py; those of CPUs by hand. Seconds, and parts of peaks.",
        "",
    ]
    for family in ("tpu", "gpu"):
        members = [n for n in final if chip(n).family == family]
        typical = typical_of([final[n] for n in members if n in (OF if family == "tpu" else fits)])
        told = report[family].get("left_out", "not cross-validated")
        lines += [f"[family.{family}]"]
        lines += [f"{f} = {toml(typical[f])}" for f in FIELDS]
        lines += [
            f'provenance = "{WHERE[family]}; fitted to {report[family]["fitted"]}; on sources left out, {told}"',
        ]
        spread = residual[family]
        if spread:
            low, high = np.quantile(spread, [0.05, 0.95])
            lines += [f"interval = [{number(float(np.exp(low)))}, {number(float(np.exp(high)))}]"]
        lines += [""]
        for name in members:
            mine = {f: getattr(final[name], f) for f in FIELDS}
            own = {}
            for f in FIELDS:
                if isinstance(mine[f], dict):
                    part = {k: v for k, v in mine[f].items() if number(v) != number(typical[f].get(k, -1))}
                    if part:
                        own[f] = part
                elif number(mine[f]) != number(typical[f]):
                    own[f] = mine[f]
            if own and (name in fits or name in OF):
                lines += [f"[chip.{name}]", *(f"{f} = {toml(v)}" for f, v in own.items()), ""]
    lines += [old[old.index("[family.cpu]") :]]
    OUT.write_text("\n".join(lines), encoding="utf-8")


def typical_of(calibrations):
    result = {}
    for f in FIELDS:
        values = [getattr(c, f) for c in calibrations]
        if isinstance(values[0], dict):
            keys = list(dict.fromkeys(k for v in values for k in v))
            result[f] = {k: float(np.median([v[k] for v in values if k in v])) for k in keys}
        else:
            result[f] = float(np.median(values))
    return result


if __name__ == "__main__":
    main()
