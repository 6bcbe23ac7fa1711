"""Step times from the serving model: a model on a slice as a replica."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypedDict, Unpack

import numpy as np

from rooftop.errors import NoAnswer
from rooftop.hardware import Slice
from rooftop.inference import Limits, Pass, Question, Scene, serve
from rooftop.simulation._record import Slo
from rooftop.simulation._replica import Line, Replica
from rooftop.simulation._settings import Scheduling
from rooftop.simulation._workload import Typical
from rooftop.transformer import Architecture, kv_bytes_per_token

#: Positions at which decode steps are evaluated; between them, and beyond the last, times are lines.
_POSITIONS = tuple(2**n for n in range(7, 18))


@dataclass(slots=True)
class ModelledSteps:
    """Tables of the passes of one configuration, read between their knots along lines.

    A decode step is that of `generate` for its batch at the mean position. A step with prompts is one pass over all its
    tokens, those of decoding sequences among them, and what attention to the caches takes: the positions that prompt tokens
    attend to at the slope of prefill, those of decoding sequences as in a decode step.
    """

    scene: Scene
    max_batch: int
    max_tokens: int
    prompt: int
    bound: bool = False
    _decode: dict[int, tuple[list[int], list[list[float]]]] = field(
        default_factory=dict
    )  # knots; seconds, [knot][batch - 1]
    _lines: dict[tuple[int, int], list[Line]] = field(default_factory=dict)
    _tokens: list[int] = field(default_factory=list)
    _prompts: list[tuple[float, float, float, float]] = field(
        default_factory=list
    )  # at a knot: seconds, per pair; and slopes

    def __post_init__(self) -> None:
        self._table()
        self._steps(1)

    def _seconds(self, passed: Pass) -> np.ndarray:
        return np.asarray(passed.bound if self.bound else passed.expected, dtype=float)

    def _steps(self, width: int) -> tuple[list[int], list[list[float]]]:
        """Positions, and seconds of a decode step of each batch at each."""
        if width not in self._decode:
            most = self.scene.problem.model.positions or math.inf
            knots = [p for p in _POSITIONS if p <= most]
            if len(knots) < 2:
                knots = [1, int(most)]
            batch = np.arange(1, self.max_batch + 1, dtype=float)
            sequences = self.scene.whole(batch, self.scene.layout.spread)
            table = []
            for position in knots:
                structure = self.scene.structure(self.scene.problem.model, "generate", width, position)
                passed = self.scene.run(structure, sequences, batch, detail=False)
                table.append(np.broadcast_to(self._seconds(passed), batch.shape).tolist())
            self._decode[width] = knots, table
        return self._decode[width]

    def _lines_of(self, batch: int, width: int) -> list[Line]:
        """The lines of a batch, one from each position on but the last."""
        found = self._lines.get((batch, width))
        if found is None:
            knots, table = self._steps(width)
            found = []
            for k in range(len(knots) - 1):
                low, high = table[k][batch - 1], table[k + 1][batch - 1]
                slope = (high - low) / ((knots[k + 1] - knots[k]) * batch)
                until = knots[k + 1] * batch if k + 2 < len(knots) else math.inf
                found.append(Line(low - slope * knots[k] * batch, slope, until))
            self._lines[batch, width] = found
        return found

    def decode_line(self, batch: int, context: int, width: int = 1) -> Line:
        """The line of a batch around its mean position."""
        lines = self._lines_of(batch, width)
        if context <= lines[0].until:
            return lines[0]
        return lines[min(len(lines), bisect_right(self._decode[width][0], context / batch)) - 1]

    def _table(self) -> None:
        """Passes over so many prompt tokens: from the first position on, and after `prompt` others."""
        groups = int(self.scene.ways(self.scene.layout.groups))
        knots, most = [1], self.max_tokens + self.max_batch
        while knots[-1] < most:
            knots.append(max(8, 2 * knots[-1]))
        values = []
        for n in knots:
            each = -(-n // groups)  # a step's tokens are spread over the groups that see different sequences
            times = []
            for before in (0, self.prompt):
                times.append(float(self._seconds(self.scene.read(each, before, detail=False))))
            per_pair = max(0.0, times[1] - times[0]) / (groups * each * self.prompt)
            values.append((max(0.0, times[0] - per_pair * groups * each * (each + 1) / 2), per_pair))
        self._tokens = knots[:-1]
        for (low, pair), (high, next_pair), start, stop in zip(values, values[1:], knots, knots[1:], strict=False):
            self._prompts.append((low, pair, (high - low) / (stop - start), (next_pair - pair) / (stop - start)))

    def seconds(self, tokens: int, pairs: int, batch: int, context: int, width: int = 1) -> float:
        """Seconds of a step; see StepModel."""
        if not tokens:
            line = self.decode_line(batch, context, width)
            return line.base + line.slope * context
        computed = tokens + batch * width
        k = bisect_right(self._tokens, computed) - 1
        beyond = computed - self._tokens[k]
        base, pair, base_slope, pair_slope = self._prompts[k]
        total = base + base_slope * beyond + (pair + pair_slope * beyond) * pairs
        if batch:
            line = self.decode_line(batch, context, width)
            total += max(0.0, line.base + line.slope * context - self._lines_of(batch, width)[0].base)
        return total


class Deployed(TypedDict, total=False):
    """How a replica is deployed; the defaults are those of the command line."""

    weights: str | None  # dtypes
    activations: str | None
    kv: str | None
    mesh: Mapping[str, int] | None  # fixes ways of some mesh axes; data is 1 unless it says otherwise
    price: float | None  # USD per chip-hour
    headroom: float  # part of HBM left free
    bound: bool  # times are lower bounds, not those to expect
    transfer_bandwidth: (
        float  # bytes/s of one chip towards another replica; the outermost network of the slice unless given
    )


def modelled(
    model: Architecture,
    where: Slice,
    scheduling: Scheduling,
    requests: Typical,
    *,
    replicas: int = 1,
    within: Slo | None = None,
    **options: Unpack[Deployed],
) -> Replica:
    """One replica of a model on all chips of a slice, as one would deploy it for such requests, shared out over `replicas`.

    The configuration is the one with the least time between tokens that sustains its share of the rate; for users who wait, the
    fastest at as many requests as it has users; with `within`, the one with the highest throughput within these limits. Where
    there is none, it is the one with the highest throughput. Raises NoAnswer where the model does not fit.
    """
    prompt = requests.prompt
    headroom, bound = options.get("headroom", 0.1), options.get("bound", False)
    question = Question(
        model, where, prompt, requests.output, weights=options.get("weights"), activations=options.get("activations"),
        kv=options.get("kv"), price=options.get("price"), headroom=headroom, block=scheduling.block,
        chunk=min(prompt, scheduling.max_tokens),
    )  # fmt: skip
    limits = Limits(fixed={"data": 1, **(options.get("mesh") or {})})
    asked, wanted, load = question, limits, None
    if within is not None:
        wanted = replace(limits, ttft=within.ttft, tpot=within.tpot)
    elif requests.users is not None:
        asked = replace(question, batches=(min(max(1, requests.users // replicas), scheduling.max_batch),))
    elif requests.rate is not None:
        load = requests.rate / replicas
    try:
        answer = serve(asked, wanted, load=load, look_around=False)
    except NoAnswer:
        answer = serve(question, limits, look_around=False)
    return replica_at(
        Scene(answer.best.problem, answer.best.at), scheduling, bound=bound,
        transfer_bandwidth=options.get("transfer_bandwidth"),
    )  # fmt: skip


def replica_at(
    scene: Scene, scheduling: Scheduling, *, bound: bool = False, transfer_bandwidth: float | None = None
) -> Replica:
    """One replica in a configuration that the caller names. Raises NoAnswer where it leaves no memory for a cache."""
    problem, layout, mesh = scene.problem, scene.layout, scene.mesh
    model, where, headroom = problem.model, problem.slice, problem.question.headroom
    spread = 1
    for axis in layout.spread:
        spread *= int(mesh[axis])
    memory = scene.memory(float(spread))
    left = problem.capacity - float(memory["weights"]) - float(memory["working set"])
    tokens = int(left / float(memory["kv cache"]) * spread * problem.positions)
    if tokens < scheduling.block:
        raise NoAnswer(f"{model.name} leaves no memory for a KV cache on {where.name}; use more chips", field="on")
    chip, held = where.chip, kv_bytes_per_token(model, problem.precision.kv)
    link = transfer_bandwidth or (problem.dimensions[-1].bandwidth if problem.dimensions else chip.pcie_bandwidth)
    ways = ", ".join(f"{a}={n:g}" for a, n in mesh.items() if n != 1) or "one chip"
    return Replica(
        ModelledSteps(scene, scheduling.max_batch, scheduling.max_tokens, problem.question.prompt, bound),
        kv_tokens=tokens,
        kv_bytes_per_token=held,
        chips=where.chips,
        host_tokens=int(where.chips / max(1, chip.chips_per_host) * chip.host_memory_bytes / held) if held else 0,
        host_bandwidth=where.chips * chip.pcie_bandwidth or math.inf,
        transfer_bandwidth=where.chips * link,
        usd_per_chip_hour=problem.price,
        name=f"{model.name} on {where.name}",
        assumptions=(
            f"step times: {'bounds' if bound else 'expected'}, {ways}, {layout.weights} weights",
            f"{tokens:,} tokens of KV cache, {headroom:.0%} of HBM left free",
            f"weights in {problem.precision.weights or 'the dtype of the checkpoint'}, cache in {problem.precision.kv}",
            f"calibration: {problem.calibration.name} ({problem.calibration.provenance})",
        ),
    )
