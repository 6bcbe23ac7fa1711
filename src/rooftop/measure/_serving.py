"""Serving rows: times to the first and between tokens at a concurrency, of one pool of workers or of two.

Users who each send a request, wait for its answer and send the next are simulated on the configuration of the row.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

from rooftop.errors import InputError
from rooftop.inference import Configuration, Limits, Question, Scene, problem_of, search
from rooftop.measure._models import model_of
from rooftop.measure._result import Prediction
from rooftop.measure._table import Row
from rooftop.measure._training import where_of
from rooftop.simulation import Fleet, Lengths, Replica, Scheduling, Setup, Synthetic, replica_at, simulate
from rooftop.transformer import Architecture

#: How a backend schedules: what runs first, tokens of a step.
_BACKENDS = {"vllm": ("decode", 8192), "trtllm": ("decode", 8192), "sglang": ("prefill", 16384)}
#: Sources that draw lengths uniformly from this part of the stated ones up to all of them (their benchmark's range ratio).
_DRAWN = re.compile(r"^(db-dump/|source_file=\d{4}-\d\d-\d\d\.csv)")
_SHORTEST = 0.8
#: Rounds of requests that each user sends: times are those of a loaded engine, not of its start alone.
_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Worker:
    """One engine of a row: attention split over `tensor` ways and run by `data` groups, experts over all of them."""

    model: Architecture
    chip: str
    tensor: int
    data: int
    experts: str  # "width" or "whole"
    precision: str

    @property
    def chips(self) -> int:
        """Chips of the engine."""
        return self.tensor * self.data


def serving(row: Row) -> tuple[Prediction, ...]:
    """Times to the first token and between tokens. Raises InputError with the rule by which they cannot be predicted."""
    model = model_of(row.text("model_path"))
    prompt, output = row.needed("isl"), row.needed("osl")
    mode = row.text("mode") or "agg"
    readings: list[str] = []
    if mode not in ("agg", "disagg"):
        raise InputError(f"mode {mode[:40]} is neither agg nor disagg", field="mode")
    if mode == "agg":
        decoder = worker(row, model, "", readings)
        engines, readers, reader = 1, 0, None
    else:
        decoder, reader = worker(row, model, "decode_", readings), worker(row, model, "prefill_", readings)
        engines, readers = (_stated(row, f"{part}_num_workers") for part in ("decode", "prefill"))
    users = _users(row, decoder, engines)
    if users > 32768 or prompt + output > 1_000_000:
        raise InputError("more than 32,768 requests at once or a million tokens each", field="batch_size")
    first, budget = _BACKENDS.get(row.text("backend").lower(), _BACKENDS["vllm"])
    shortest = _SHORTEST if _DRAWN.match(row.text("silicon_data_source")) else 1.0
    if shortest < 1:
        readings.append(f"lengths: uniform from {_SHORTEST:g} of the stated ones to all of them")
    mean = round(prompt * (1 + shortest) / 2), max(2, round(output * (1 + shortest) / 2))
    each = math.ceil(users / engines)
    batch = min(budget, 2 ** math.ceil(math.log2(max(2, each))))
    scheduling = Scheduling(max_batch=batch, max_tokens=budget, first=first)
    setup = Setup(
        _replica(decoder, scheduling, *mean), scheduling, Fleet(engines, readers, "least-loaded"),
        prefill_replica=None if reader is None else _replica(reader, scheduling, mean[0], 2),
    )  # fmt: skip
    ttft, tpot = _simulated(setup, users, prompt, output, shortest)
    # what a request waits outside of the engine, which the simulation does not play
    ttft += _scene(decoder, *mean, budget).problem.calibration.serving["request"]
    found = []
    measured = {"ttft_seconds": row.number("silicon_ttft_ms"), "tpot_seconds": row.number("silicon_tpot_ms")}
    seconds = {name: ms / 1e3 for name, ms in measured.items() if ms is not None}
    if not seconds:
        raise InputError("neither a time to the first token nor between tokens is published", field="silicon_tpot_ms")
    lowest = _bounds(decoder, reader, mean, each, (ttft, tpot), seconds)
    expected = {"ttft_seconds": ttft, "tpot_seconds": tpot}
    how = {"mesh": {"tensor": decoder.tensor, "expert": decoder.data}, "workers": engines, "users": users}
    how |= {"input_tokens": mean[0], "output_tokens": mean[1]}
    if reader is not None:
        how |= {"prefill_mesh": {"tensor": reader.tensor, "expert": reader.data}, "prefill_workers": readers}
    for name, value in seconds.items():
        found.append(
            Prediction(
                row.id, row.table, mode, source(row), row.text("model_path"), setup.replica.name.rpartition(" on ")[2].partition(":")[0],
                f"{decoder.chip}:{decoder.chips}", name, value, lowest[name], expected[name], how, tuple(readings),
            )
        )  # fmt: skip
    return tuple(found)


def source(row: Row) -> str:
    """The table that a row was taken from."""
    return row.text("silicon_data_source").partition(";")[0].removeprefix("source_file=") or "not stated"


def _stated(row: Row, column: str) -> int:
    count = row.count(column)
    if count is None:
        raise InputError(f"{column} is not published: how many engines share the requests is not known", field=column)
    return count


def _users(row: Row, decoder: Worker, engines: int) -> int:
    """Requests at once: as the source states them, or the batch of each attention group times the groups."""
    told = re.search(r"silicon_concurrency=(\d{1,9})", row.text("silicon_data_source"))
    if told:
        return max(1, int(told[1]))
    batch = row.count("batch_size") or row.count("decode_batch_size")
    if batch is None:
        raise InputError("neither a concurrency nor a batch is published", field="batch_size")
    return batch * decoder.data * engines


def worker(row: Row, model: Architecture, prefix: str, readings: list[str]) -> Worker:
    """The engine that some columns describe.

    The tables write experts' ways into attention's: where experts are split both ways alike, or attention is split and copied
    alike, an engine has only one of them.
    """

    def ways(column: str) -> int:
        return 1 if row.text(f"{prefix}{column}") in ("", "0") else row.needed(f"{prefix}{column}")

    tensor = row.needed(f"{prefix}tp_size")
    data, width, whole = (ways(c) for c in ("attention_dp_size", "moe_tp_size", "moe_ep_size"))
    if ways("pp_size") > 1:
        raise InputError("pipeline parallelism of serving is not modelled", field=f"{prefix}pp_size")
    moe = model.experts is not None
    if moe and width == whole > 1 and tensor * data == width * whole:
        tensor, data = (width, 1) if data == 1 else (1, width)
        width, whole = 1, width
        readings.append(f"{prefix}ways: {width * whole} chips, whole experts on each")
    elif moe and tensor == data > 1 and width * whole == tensor * data:
        tensor, width, whole = 1, 1, data
        readings.append(f"{prefix}ways: {data} chips with attention of their own each")
    chips = tensor * data
    if not moe and data > 1:
        raise InputError("attention groups of a dense model are engines of their own", field="attention_dp_size")
    if moe and width * whole not in (1, chips):
        raise InputError(f"experts over {width * whole} chips, attention over {chips}", field=f"{prefix}moe_ep_size")
    experts = "whole" if moe and whole > 1 and tensor > 1 else "width"
    if moe and ((width > 1 and whole > 1) or (data > 1 and width > 1)):
        readings.append("experts split both ways are read as whole on each chip")
        experts = "whole"
    return Worker(model, row.text("system"), tensor, data, experts, row.text("gemm_quant_mode").lower())


@functools.lru_cache(maxsize=64)
def _scene(at: Worker, prompt: int, output: int, chunk: int) -> Scene:
    """A worker with its model, its precision and its place."""
    where = where_of(at.chip.lower().removesuffix("_sxm"), at.chips, 1)
    weights, activations, kv = _dtypes(at, where.chip.flops)
    question = Question(
        at.model, where, prompt, output, weights=weights, activations=activations, kv=kv, chunk=min(prompt, chunk),
        headroom=0.1,
    )  # fmt: skip
    fixed = {"tensor": at.tensor, "expert": at.data}
    limits = Limits(fixed=fixed, weights=("stationary",), caches=("heads",), experts=(at.experts,))
    problem = problem_of(question)
    found = search(problem, (1,), limits).fastest
    if not found:
        raise InputError(f"{at.tensor} x {at.data} ways do not divide {at.model.name}", field="tp_size")
    return Scene(problem, Configuration(found[1].at.mesh, found[1].at.factors, found[1].at.layout))


def _dtypes(at: Worker, rates: object) -> tuple[str | None, str | None, str | None]:
    """Dtypes of weights (None: those of the checkpoint), of activations in matmuls, of the cache."""
    four = at.precision in ("nvfp4", "fp4", "mxfp4")
    able = "fp4" in rates if four else "fp8" in rates  # type: ignore[operator]
    if at.precision in ("", "bf16", "float16", "fp16"):
        return (None if at.model.formats else "bf16"), None, None
    if four or at.precision in ("fp8", "fp8_block"):
        # a checkpoint in four bits keeps all but its experts in 16
        own = four and dict(at.model.formats).get("experts", 16.0) < 5
        weights = None if own else "nvfp4" if four else "fp8"
        return weights, ("fp4" if four else "fp8") if able else None, "fp8" if able else None
    raise InputError(f"gemm_quant_mode {at.precision[:40]} is not known", field="gemm_quant_mode")


@functools.lru_cache(maxsize=64)
def _replica(at: Worker, scheduling: Scheduling, prompt: int, output: int) -> Replica:
    return replica_at(_scene(at, prompt, output, scheduling.max_tokens), scheduling)


def _simulated(setup: Setup, users: int, prompt: int, output: int, shortest: float) -> tuple[float, float]:
    """Mean times to the first token and between tokens of users who wait for their answers."""

    def drawn(tokens: int) -> Lengths:
        least = max(1, int(tokens * shortest))
        return (
            Lengths(str(tokens), "fixed", tokens) if least == tokens else Lengths(str(tokens), "uniform", least, tokens)
        )

    count = min(_ROUNDS * users, max(2 * users, 4000))
    work = Synthetic("closed", drawn(prompt), drawn(output), count=count, users=users)
    record = simulate(setup, work).record
    ttft, tpot = record.ttft.mean, record.tpot.mean
    assert ttft is not None
    return ttft, tpot if tpot is not None else math.nan


def _bounds(
    decoder: Worker, reader: Worker | None, mean: tuple[int, int], each: int, expected: tuple[float, float],
    measured: dict[str, float],
) -> dict[str, float]:  # fmt: skip
    """No first token comes before its prompt is read; no token faster than a step of those requests that generate at once.

    By Little's law these are the share of a request's time in which it generates, of the concurrency: the smaller of the shares
    measured and expected.
    """
    shares = []
    for ttft, tpot in (
        expected,
        (measured.get("ttft_seconds", expected[0]), measured.get("tpot_seconds", expected[1])),
    ):
        generating = tpot * (mean[1] - 1)
        shares.append(generating / (ttft + generating))
    batch = max(1, math.floor(each * min(shares)))
    scene = _scene(decoder, *mean, 8192)
    first = _scene(reader or decoder, mean[0], mean[1] if reader is None else 2, 8192)
    step = float(scene.generate(batch, mean[0], detail=False).step.bound)
    return {
        "ttft_seconds": min(float(first.prefill(detail=False).bound), expected[0]),
        "tpot_seconds": min(step, expected[1]),
    }


__all__ = ["serving", "source", "worker"]
