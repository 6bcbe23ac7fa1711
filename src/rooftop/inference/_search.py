"""Every configuration of a slice at once: meshes, placements, layouts and batches as NumPy arrays.

The space, exactly: all chips of the slice; every way to write their number as data x fsdp x tensor x context x expert
whose parts divide what they split; every placement of those ways on the network; both ways to treat weights over fsdp and
both ways to lay the cache and the experts (`_layouts`). Nothing is left out by a guess: a layout that differs from another one only over an
axis of one way is the same configuration, and is evaluated once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooftop.errors import InputError
from rooftop.inference._evaluate import Configuration, Scene
from rooftop.inference._layouts import CACHES, EXPERTS, SERVING_AXES, WEIGHTS, Layout
from rooftop.inference._question import Problem
from rooftop.inference._structure import structure
from rooftop.roofline import divisors, placements

Array = NDArray[np.float64]
_ROWS = 4096  # placements at a time


@dataclass(frozen=True, slots=True)
class Limits:
    """What the user restricts: layouts to try, ways of some mesh axes, the largest times and prices."""

    weights: tuple[str, ...] = WEIGHTS
    caches: tuple[str, ...] = CACHES
    experts: tuple[str, ...] = EXPERTS
    fixed: Mapping[str, int] | None = None
    ttft: float | None = None
    tpot: float | None = None
    usd: float | None = None  # per million tokens of output


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration at a batch, with what the search knows of it."""

    at: Configuration
    batch: int
    tpot: float
    ttft: float
    prompts_per_second: float
    tokens_per_second: float
    memory_bytes: float


@dataclass(slots=True)
class Outcome:
    """What a search found. by_batch: for each batch the fastest that fits within the limits; lightest: what needs the least
    memory of all; reader: what reads most prompts a second within the limits; caches: the most sequences that some configuration holds.
    """

    by_batch: dict[int, Candidate]
    fitting: dict[int, Candidate]  # the fastest that fits, whatever the limits
    fastest: dict[int, Candidate]  # the fastest of all, whatever it needs
    lightest: Candidate | None
    reader: Candidate | None
    caches: int
    configurations: int


def search(problem: Problem, batches: Sequence[int], limits: Limits | None = None) -> Outcome:
    """Evaluate every configuration at every batch."""
    limits = limits or Limits()
    outcome = Outcome({}, {}, {}, None, None, 0, 0)
    columns = np.array(sorted(batches), dtype=np.float64)[None, :]
    for layout, mesh, factors in configurations(problem, limits):
        for start in range(0, len(mesh), _ROWS):
            _evaluate(
                problem, layout, mesh[start : start + _ROWS], factors[start : start + _ROWS], columns, limits, outcome
            )
    return outcome


def configurations(problem: Problem, limits: Limits) -> Iterator[tuple[Layout, NDArray[np.int64], NDArray[np.int64]]]:
    """For each layout: meshes, shape [n, axes], and their factors, shape [n, dimensions, axes]."""
    sizes = [d.size for d in problem.dimensions]
    fixed = limits.fixed or {}
    for name in fixed:
        if name not in SERVING_AXES:
            raise InputError(f"serving has no mesh axis {name!r}; use {', '.join(SERVING_AXES)}", field="mesh")
    axes = len(SERVING_AXES)
    every = _grid(problem.slice.chips, fixed)
    if not len(every):
        raise InputError(
            f"no mesh of {problem.slice.chips} chips has {', '.join(f'{a}={n}' for a, n in fixed.items())}; choose ways whose"
            f" product divides {problem.slice.chips}",
            field="mesh",
        )
    ways = {a: every[:, i] for i, a in enumerate(SERVING_AXES)}
    for layout in _layouts(limits):
        s = structure(problem.model, "generate", 1, problem.context, layout, problem.precision)
        keep = np.ones(len(every), dtype=np.bool_)
        for model in dict.fromkeys((problem.model, problem.draft or problem.model)):
            each = structure(model, "generate", 1, problem.context, layout, problem.precision)
            kv = np.gcd(ways["tensor"], each.kv_heads)
            inner = {**ways, "tensor_kv": kv, "tensor_q": ways["tensor"] // kv}
            for size, names in each.divisible:
                keep &= size % np.prod([inner[n] for n in names], axis=0) == 0
        # what differs over axes of one way only is one configuration
        if not s.experts:
            keep &= ways["expert"] == 1
        if layout.weights == "gathered" and "stationary" in limits.weights:
            keep &= ways["fsdp"] > 1
        if layout.cache == "sequence" and "heads" in limits.caches:
            kv = np.gcd(ways["tensor"], s.kv_heads)
            spare = ways["tensor"] if s.latent else ways["tensor"] // kv
            keep &= spare * (ways["fsdp"] if layout.weights == "stationary" else 1) > 1
        if layout.experts == "whole" and "width" in limits.experts:
            keep &= (ways["tensor"] > 1) & bool(s.experts)
        meshes = every[keep]
        if len(meshes):
            index, factors = placements(sizes, meshes)
            yield layout, meshes[index], factors.reshape(len(index), len(sizes), axes)


def _layouts(limits: Limits) -> Iterator[Layout]:
    for parts in itertools.product(limits.weights, limits.caches, limits.experts):
        yield Layout(*parts)


def _grid(chips: int, fixed: Mapping[str, int]) -> NDArray[np.int64]:
    """All ways to write the number of chips as a product of one factor for each mesh axis; [n, axes]."""
    rows: list[tuple[tuple[int, ...], int]] = [((), chips)]
    for i, axis in enumerate(SERVING_AXES):
        last = i == len(SERVING_AXES) - 1
        rows = [
            ((*row, d), rest // d)
            for row, rest in rows
            for d in ([rest] if last else divisors(rest))
            if axis not in fixed or fixed[axis] == d
        ]
    return np.array([row for row, _ in rows], dtype=np.int64).reshape(len(rows), len(SERVING_AXES))


def configuration(layout: Layout, mesh: Any, factors: Any) -> Configuration:
    """One row as a configuration of plain numbers."""
    return Configuration(
        {a: int(n) for a, n in zip(SERVING_AXES, mesh, strict=True)},
        tuple({a: int(n) for a, n in zip(SERVING_AXES, row, strict=True) if n > 1} for row in factors),
        layout,
    )


def arrays(layout: Layout, mesh: NDArray[np.int64], factors: NDArray[np.int64]) -> Configuration:
    """Many rows as one configuration of columns."""
    wide = mesh.astype(np.float64)
    return Configuration(
        {a: wide[:, i : i + 1] for i, a in enumerate(SERVING_AXES)},
        tuple(
            {a: factors[:, d, i : i + 1].astype(np.float64) for i, a in enumerate(SERVING_AXES)}
            for d in range(factors.shape[1])
        ),
        layout,
    )


def _evaluate(
    problem: Problem, layout: Layout, mesh: NDArray[np.int64], factors: NDArray[np.int64], batches: Array, limits: Limits,
    outcome: Outcome,
) -> None:  # fmt: skip
    scene = Scene(problem, arrays(layout, mesh, factors))
    shape = len(mesh), batches.shape[1]
    generated = scene.generate(batches, detail=False)
    tpot = np.broadcast_to(np.asarray(generated.tpot[1], dtype=np.float64), shape)
    memory = np.broadcast_to(np.asarray(generated.memory_bytes, dtype=np.float64), shape)
    prefill = scene.prefill(detail=False)
    ttft = np.broadcast_to(np.asarray(prefill.expected, dtype=np.float64), (shape[0], 1))
    reads = np.broadcast_to(np.asarray(prefill.prompts / prefill.expected, dtype=np.float64), (shape[0], 1))
    rate = batches / tpot
    outcome.configurations += len(mesh)
    fits = (memory <= problem.capacity) & (generated.host_bytes <= problem.host_capacity)
    allowed = fits.copy()
    if limits.tpot is not None:
        allowed &= tpot <= limits.tpot
    if limits.ttft is not None:
        allowed &= ttft <= limits.ttft
    if limits.usd is not None and problem.price is not None:
        allowed &= problem.slice.chips * problem.price / 3600 / rate * 1e6 <= limits.usd

    def candidate(row: int, column: int) -> Candidate:
        return Candidate(
            configuration(layout, mesh[row], factors[row]), int(batches[0, column]), float(tpot[row, column]),
            float(ttft[row, 0]), float(reads[row, 0]), float(rate[row, column]), float(memory[row, column]),
        )  # fmt: skip

    for table, mask in (
        (outcome.by_batch, allowed), (outcome.fitting, fits), (outcome.fastest, np.ones(shape, dtype=np.bool_)),
    ):  # fmt: skip
        timed = np.where(mask, tpot, np.inf)
        rows = np.argmin(timed, axis=0)
        for column, row in enumerate(rows.tolist()):
            batch = int(batches[0, column])
            if np.isfinite(timed[row, column]) and (batch not in table or timed[row, column] < table[batch].tpot):
                table[batch] = candidate(row, column)
    least = divmod(int(np.argmin(memory)), shape[1])
    if outcome.lightest is None or memory[least] < outcome.lightest.memory_bytes:
        outcome.lightest = candidate(*least)
    reading = np.where(allowed[:, 0], reads[:, 0], 0.0)
    row = int(np.argmax(reading))
    if reading[row] > 0 and (outcome.reader is None or reading[row] > outcome.reader.prompts_per_second):
        outcome.reader = candidate(row, 0)
    outcome.caches = max(outcome.caches, most_sequences(scene, problem))


def most_sequences(scene: Scene, problem: Problem) -> int:
    """The most sequences whose caches some configuration holds beside the weights."""
    step = scene.ways(scene.layout.spread)

    def left(rounds: Any) -> Any:
        """Rounds of sequences for which there is still room."""
        parts, more = scene.memory(rounds * step), scene.memory((rounds + 1) * step)
        hbm = problem.capacity - parts["weights"] - parts["kv cache"] - parts["working set"]
        host = problem.host_capacity - parts["host"]
        spare = hbm / np.maximum(more["kv cache"] - parts["kv cache"], 1e-9)
        return np.minimum(spare, host / np.maximum(more["host"] - parts["host"], 1e-9))

    rounds = np.maximum(np.floor(left(0.0 * step) + 1e-9), 0.0)
    rounds = np.maximum(
        rounds + np.floor(np.minimum(left(rounds), 0.0) + 1e-9), 0.0
    )  # activations grow with the batch, too
    return int(min(np.max(rounds * step), 1e12))


__all__ = ["Candidate", "Limits", "Outcome", "arrays", "configuration", "configurations", "most_sequences", "search"]
