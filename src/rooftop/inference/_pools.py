"""Separate pools of chips for prefill and for generation: the transfer of caches between them, and the best ratio."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rooftop.costing import axis_bandwidth
from rooftop.errors import InputError, NoAnswer
from rooftop.formula import Number, formula, maximum
from rooftop.hardware import Slice, Torus, outer_switch
from rooftop.inference._answer import Point, point
from rooftop.inference._evaluate import usd_per_million
from rooftop.inference._question import BATCHES, Problem, Question, assumptions, problem_of
from rooftop.inference._search import Limits, search
from rooftop.roofline import Calibration
from rooftop.shown import Shown
from rooftop.transformer import kv_cache_bytes
from rooftop.units import format_seconds


@formula("prefill:generate", "pools", "book, section 8: prefill servers that keep one generate server busy")
def pool_ratio(prefill_seconds: Number, prompts: Number, batch: Number, step_seconds: Number, steps: Number) -> Number:
    """Prefill pools for each generate pool: `prompts` are read in `prefill_seconds`, a batch ends after `steps` steps."""
    return (prefill_seconds / prompts) * batch / (step_seconds * steps)


@formula("finished", "sequences", "book, section 8: a batch whose sequences end one after the other")
def finished_per_step(batch: Number, output: Number) -> Number:
    """Sequences of a batch that end in a step, on average."""
    return batch / output


@formula("evicted", "tokens", "book, section 8: those that end take their prompt and output along")
def evicted_per_step(batch: Number, prompt: Number, output: Number) -> Number:
    """Tokens of the cache that are given free in a step, on average."""
    return finished_per_step(batch, output) * (prompt + output)


@formula(
    "T_transfer", "s", "cache of a prompt over the network between the pools; every chip of the smaller pool sends"
)
def transfer_seconds(bytes: Number, chips: Number, bandwidth: Number, latency: Number) -> Number:
    """Seconds to hand a cache over, `bandwidth` bytes/s for each of so many chips."""
    return maximum(bytes / (chips * bandwidth), latency)


def outer_bandwidth(where: Slice) -> tuple[float, float, str]:
    """(bytes/s of a chip, seconds of latency, name) of the network that leaves a slice: the outermost switched level of the
    chip's wiring, else its torus. Raises InputError for a chip that has none.
    """
    outer = outer_switch(where.chip.name)
    if outer is not None:
        return outer.bandwidth, outer.latency, outer.name
    if where.levels and isinstance(where.levels[0], Torus):
        return axis_bandwidth(where), where.levels[0].hop_latency, where.levels[0].name
    raise InputError(f"{where.name} has no network over which caches could go to another pool", field="prefill_on")


@dataclass(frozen=True, slots=True)
class Pools(Shown):
    """One kind of prefill pool and one of generate pool, in whole numbers of each.

    ttft: prefill and transfer of the cache, seconds (bound, expected). requests_per_second: of all pools together.
    """

    prefill: Point
    generate: Point
    prefill_pools: int
    generate_pools: int
    ratio: float
    transfer_bytes: float
    transfer_seconds: tuple[float, float]
    network: str
    ttft: tuple[float, float]
    requests_per_second: float
    usd: float | None  # per million tokens generated, prefill included
    assumptions: tuple[str, ...] = ()

    @property
    def chips(self) -> int:
        """Chips of all pools."""
        return (
            self.prefill_pools * self.prefill.problem.slice.chips
            + self.generate_pools * self.generate.problem.slice.chips
        )


def disaggregate(question: Question, prefill_on: Slice, limits: Limits | None = None, *, most: int = 64) -> Pools:
    """The best pair of pools within the limits, and how many of each: up to `most` pools in all.

    question.slice is one generate pool, prefill_on one prefill pool. The prefill configuration reads most prompts a second of those
    within --ttft, the generate one is the fastest in tokens a second of those within --tpot. Raises NoAnswer if none is.
    """
    limits = limits or Limits()
    first, second = problem_of(replace(question, slice=prefill_on)), problem_of(question)
    reading = _reading(first, limits)
    found = search(second, question.batches or BATCHES, replace(limits, ttft=None))
    if not found.by_batch:
        raise NoAnswer(
            f"no generate pool on {second.slice.name} holds {second.model.name} within the limits", field="on"
        )
    best = max(found.by_batch.values(), key=lambda c: c.tokens_per_second)
    generating = point(second, best.at, best.batch)
    bytes = kv_cache_bytes(second.model, question.prompt, second.precision.kv)
    chips = min(first.slice.chips, second.slice.chips)
    bandwidth, latency, network = outer_bandwidth(second.slice)
    achieved: Calibration = second.calibration
    moved = (
        float(transfer_seconds(bytes, chips, bandwidth, latency)),
        float(
            transfer_seconds(
                bytes,
                chips,
                bandwidth * achieved.network_efficiency(network),
                latency + achieved.network_latency(network),
            )
        ),
    )
    ttft = float(reading.prefill.bound) + moved[0], float(reading.prefill.expected) + moved[1]
    if limits.ttft is not None and ttft[1] > limits.ttft:
        raise NoAnswer(
            f"the first token comes after {format_seconds(ttft[1])}, {format_seconds(moved[1])} of it for the cache to cross"
            f" {network}; the limit is {format_seconds(limits.ttft)}",
            field="ttft",
        )
    reads = float(reading.prefill.prompts / reading.prefill.expected)
    ends = generating.tokens_per_second / question.output
    ratio = float(
        pool_ratio(
            reading.prefill.expected,
            reading.prefill.prompts,
            generating.batch,
            generating.generate.tpot[1],
            question.output,
        )
    )
    n, m = _whole(reads, ends, first.slice.chips, second.slice.chips, most)
    rate = min(n * reads, m * ends)
    prices = first.price, second.price
    usd = None
    if prices[0] is not None and prices[1] is not None:
        hourly = n * first.slice.chips * prices[0] + m * second.slice.chips * prices[1]
        usd = float(usd_per_million(1, hourly, rate * question.output))
    told = (
        *assumptions(second),
        "the cache of a prompt is sent when it is whole; all chips of the smaller pool send at once",
    )
    return Pools(reading, generating, n, m, ratio, bytes, moved, network, ttft, rate, usd, told)


def _reading(problem: Problem, limits: Limits) -> Point:
    """The configuration that reads most prompts a second of those within --ttft."""
    best = search(problem, (1,), replace(limits, tpot=None, usd=None)).reader
    if best is None:
        raise NoAnswer(
            f"no prefill pool on {problem.slice.name} holds {problem.model.name} within the limits", field="prefill_on"
        )
    return point(problem, best.at, 1)


def _whole(reads: float, ends: float, first: int, second: int, most: int) -> tuple[int, int]:
    """Whole numbers of pools, `most` in all, that serve most requests a second for each chip; the fewest of equally good ones."""
    pairs = [(n, m) for n in range(1, most) for m in range(1, most - n + 1)]
    return max(
        pairs, key=lambda p: (round(min(p[0] * reads, p[1] * ends) / (p[0] * first + p[1] * second), 12), -sum(p))
    )
