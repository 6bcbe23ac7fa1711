"""What failures cost a run: checkpoints, lost work, restarts (Daly, 2006: a higher order estimate of the optimum interval)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rooftop.errors import InputError, nearest
from rooftop.formula import Number, formula
from rooftop.training._solve import lowest
from rooftop.units import parse_count

#: Mean hours between failures of one chip, from published runs.
PRESETS: dict[str, tuple[float, str]] = {
    "llama-3": (
        54 * 24 * 16384 / 419,
        "Llama 3 405B: 419 unexpected interruptions in 54 days on 16,384 H100 (Llama Team, 2024, section 3.3.4; from memory)",
    ),
    "opt-175b": (
        60 * 24 * 992 / 105,
        "OPT-175B: at least 35 manual and over 70 automatic restarts in two months on 992 A100 (Zhang et al., 2022, section 2.5; from memory)",
    ),
}


@dataclass(frozen=True, slots=True)
class Failures:
    """How often a chip fails, and what a checkpoint and a restart take (seconds). interval: None for the best one."""

    chip_hours: float  # mean time between failures of one chip
    checkpoint_seconds: float = 30.0
    restart_seconds: float = 600.0
    interval_seconds: float | None = None
    source: str = "as given"
    storage_bandwidth: float | None = None  # bytes/s of all storage together; the checkpoint's seconds follow from it
    spares: int | None = None  # chips in reserve; None: a failed chip is replaced within the restart
    repair_seconds: float = 86400.0

    def writing(self, checkpoint_bytes: float) -> Failures:
        """The same with the seconds of a checkpoint of so many bytes, where a bandwidth says them."""
        if self.storage_bandwidth is None:
            return self
        if self.storage_bandwidth <= 0:
            raise InputError(
                "a checkpoint bandwidth must be above 0; give one such as 100GB", field="checkpoint_bandwidth"
            )
        return replace(self, checkpoint_seconds=checkpoint_bytes / self.storage_bandwidth)


@dataclass(frozen=True, slots=True)
class Goodput:
    """The part of the time that makes progress, and how often to write a checkpoint for it."""

    fraction: float
    interval_seconds: float
    failures: float  # expected in the run
    system_seconds: float  # mean time between failures of all chips
    checkpoint_seconds: float = 0.0
    available: tuple[float, ...] = ()  # part of the time in which enough chips work, with 0, 1, ... chips in reserve


def failure_rate(text: str) -> tuple[float, str]:
    """(mean hours between failures of a chip, source): a preset or a number of hours. Raises InputError."""
    if text in PRESETS:
        return PRESETS[text]
    try:
        hours = parse_count(text, "failures")
    except InputError:
        raise InputError(
            f"{text[:40]!r}{nearest(text, PRESETS)} is not a failure rate; give {' or '.join(PRESETS)}, or the mean hours between failures of"
            " a chip, such as 50000",
            field="failures",
        ) from None
    if hours <= 0:
        raise InputError("a mean time between failures must be above 0 hours; give one such as 50000", field="failures")
    return hours, "as given"


def availability(failing: float, spares: int) -> tuple[float, ...]:
    """Part of the time in which at most n chips are out, for n = 0 .. spares; `failing`: chips out on average.

    Chips under repair are a queue M/G/inf: their number is Poisson, whatever the distribution of the repair time.
    """
    if failing > 700:  # e^-failing is nothing; a normal distribution is exact enough
        return tuple(0.5 * math.erfc((failing - n - 0.5) / math.sqrt(2 * failing)) for n in range(spares + 1))
    term = below = math.exp(-failing)
    result = [below]
    for n in range(1, spares + 1):
        term *= failing / n
        below += term
        result.append(min(1.0, below))
    return tuple(result)


@formula("goodput", "", "Daly, 2006, equation 13: exponential failures, also during checkpoints and restarts")
def goodput_fraction(interval: Number, checkpoint: Number, restart: Number, between_failures: Number) -> Number:
    """Useful part of the time with a checkpoint after every `interval` of work (all in seconds).

    An interval takes M·e^(R/M)·(e^((tau + delta)/M) - 1) with its failures.
    """
    m = between_failures
    return interval / (m * math.exp(restart / m) * math.expm1((interval + checkpoint) / m))


def best_interval(checkpoint: float, restart: float, between_failures: float) -> float:
    """The interval of the highest goodput; about sqrt(2·delta·M) (Young, 1974)."""
    if checkpoint <= 0:
        return 1.0
    # no sensible interval is longer than a hundred times the time between failures
    longest = min(20 * math.sqrt(2 * checkpoint * between_failures) + 10.0, 100 * between_failures + 1.0)
    return lowest(lambda x: -float(goodput_fraction(x, checkpoint, restart, between_failures)), 1.0, longest)


def goodput(failures: Failures, chips: int, run_seconds: float) -> Goodput:
    """Goodput of a run that would take `run_seconds` without failures. Raises InputError where no progress is possible."""
    for name in ("checkpoint_seconds", "restart_seconds"):
        if not 0 <= getattr(failures, name) <= 1e7:
            raise InputError(
                f"{name} = {getattr(failures, name):g} is out of range; give seconds, such as 60", field=name
            )
    system = failures.chip_hours * 3600 / chips
    interval = failures.interval_seconds
    if interval is not None and interval <= 0:
        raise InputError(
            f"a checkpoint interval of {interval:g} s is not possible; give one such as 30min", field="interval"
        )
    if ((interval or 0.0) + failures.checkpoint_seconds + failures.restart_seconds) / system > 50:
        raise InputError(
            f"{chips:,} chips fail every {system:.3g} s on average, which no interval survives; give a shorter one, or a longer"
            " time between failures",
            field="failures",
        )
    if interval is None:
        interval = best_interval(failures.checkpoint_seconds, failures.restart_seconds, system)
    fraction = float(goodput_fraction(interval, failures.checkpoint_seconds, failures.restart_seconds, system))
    available: tuple[float, ...] = ()
    if failures.spares is not None:
        if not 0 <= failures.spares <= 100_000 or not 0 < failures.repair_seconds <= 1e9:
            raise InputError(
                "spares and the repair time are out of range; give chips such as 16, and 1d", field="spares"
            )
        available = availability(failures.repair_seconds / system, failures.spares)
        if available[-1] < 0.01:
            raise InputError(
                f"on average {failures.repair_seconds / system:,.1f} chips are under repair, and {failures.spares} in reserve"
                " leave no time to train; give more --spares",
                field="spares",
            )
        fraction *= available[-1]
    return Goodput(fraction, interval, run_seconds / fraction / system, system, failures.checkpoint_seconds, available)
