"""Every checkable answer of the book's chapters on inference and on serving Llama, asked of Rooftop.

`data/book/serving.jsonl` holds the answers; each has one function here, named by its id. Where the book errs, the function is
marked with what is right, and docs/errata.md has the derivation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_book import WRONG, agree

from rooftop.costing import axis_bandwidth
from rooftop.hardware import chip, peak, slice_of
from rooftop.inference import (
    Configuration,
    Layout,
    Limits,
    Question,
    Scene,
    critical_batch,
    evicted_per_step,
    finished_per_step,
    flops_per_usd,
    pool_ratio,
    problem_of,
    search,
    serve_with,
    smallest_slice,
    tensor_limit,
    token_seconds,
    two_dimensional_from,
    weight_seconds,
)
from rooftop.roofline import attention_intensity, gather_seconds, math_seconds, memory_seconds
from rooftop.training import tensor_limit as training_tensor_limit
from rooftop.transformer import (
    architecture,
    flops_per_token,
    kv_bytes_per_token,
    kv_cache_bytes,
    parameters,
    weight_bytes,
)

ROWS = {
    row["id"]: row
    for row in map(json.loads, (Path(__file__).parent / "data/book/serving.jsonl").read_text().splitlines())
}
ASKED: dict[str, tuple[Callable[[dict[str, Any]], Any], Any]] = {}


def asks(*ids: str, instead: Any = WRONG) -> Callable[[Callable[[dict[str, Any]], Any]], None]:
    """Register the question behind answers; `instead` is the right answer where the book's is wrong."""

    def register(function: Callable[[dict[str, Any]], Any]) -> None:
        for each in ids:
            ASKED[each] = (function, instead)

    return register


@pytest.mark.parametrize("row", ROWS)
def test_answer(row: str) -> None:
    function, instead = ASKED[row]
    agree(
        function(ROWS[row]["inputs"]), ROWS[row]["expected"] if instead is WRONG else instead, ROWS[row]["rel_tol"], row
    )


def test_every_answer_is_asked_for() -> None:
    assert set(ASKED) == set(ROWS)


QUIZ = "layers=64,d_model=4096,heads=32,kv_heads=8,head_dim=256,d_ff=16384,vocab=32128,tied=true"
MOE = QUIZ + ",experts=16,active=2"
INT8 = {"weights": "int8", "kv": "int8"}
V5E_4X4 = Configuration({"fsdp": 2, "tensor": 8}, ({"tensor": 4}, {"tensor": 2, "fsdp": 2}), Layout(cache="sequence"))
V5E_4X2 = Configuration({"tensor": 8}, ({"tensor": 4}, {"tensor": 2}), Layout())


def asked(model: str, on: str, context: int, **options: Any) -> Question:
    """A question on requests that end at `context`, timed there."""
    return Question(
        architecture(model),
        slice_of(on),
        prompt=max(1, context - 64),
        output=min(64, context),
        context=context,
        **options,
    )


def holds(question: Question, batch: int = 1) -> int:
    """Chips of the smallest slice that holds a model with the caches of a batch."""
    name = smallest_slice(question, batch=batch)
    assert name is not None
    return slice_of(name).chips


def caches(question: Question) -> int:
    return search(problem_of(question), (1,)).caches


# -- inference


@asks("inference.bcrit_v5e")
def _(given: dict[str, Any]) -> Any:
    def batch(weights: str, activations: str) -> float:
        of = problem_of(asked("llama-2-13b", "v5e:4x2", 8192, weights=weights, activations=activations))
        return float(critical_batch(Scene(of, V5E_4X2)))

    return {"bf16": batch("bf16", "bf16"), "int8_weights": batch("int8", "bf16"), "int8": batch("int8", "int8")}


@asks("inference.mha_intensity")
def _(given: dict[str, Any]) -> Any:
    assert attention_intensity(1024, 1024, 1) == 512  # prefill: T/2
    return attention_intensity(given["T"], given["S"], 1)


@asks("inference.quiz_small", "inference.quiz_big")
def _(given: dict[str, Any]) -> Any:
    v5e = chip("v5e")
    return token_seconds(given["batch"], 8192 * 100e3, 30e9, 30e9, 16 * peak(v5e, "bf16"), 16 * v5e.hbm_bandwidth)


@asks("inference.llama13b_kv")
def _(given: dict[str, Any]) -> Any:
    return kv_cache_bytes(architecture("llama-2-13b"), given["T"])


@asks(*(f"inference.llama13b_b{b}" for b in (1, 8, 16, 32, 64, 240)))
def _(given: dict[str, Any]) -> Any:
    (p,) = serve_with(asked("llama-2-13b", "v5e:4x2", 8192), V5E_4X2, (given["batch"],))
    memory = p.generate.memory
    assert p.bottleneck == "hbm"
    assert p.fits == (given["batch"] < 16)  # 133 GB on chips of 16e9 bytes: 128 GB in all
    return {
        "kv_gb": 8 * memory["kv cache"] / 1e9,
        "total_gb": 8 * (memory["kv cache"] + memory["weights"]) / 1e9,
        "step_ms": 1e3 * p.generate.step.bound,
        "tokens_per_second": given["batch"] / p.generate.step.bound,
    }


@asks(*(f"inference.llama13b_gqa_b{b}" for b in (1, 8, 64, 240)))
def _(given: dict[str, Any]) -> Any:
    model, v5e = architecture("llama-2-13b"), chip("v5e")
    count = parameters(model).total
    cache = kv_cache_bytes(model, 8192) / 5
    seconds = token_seconds(given["batch"], cache, 2 * count, count, 8 * peak(v5e, "bf16"), 8 * v5e.hbm_bandwidth)
    return {"step_ms": 1e3 * seconds, "tokens_per_second": given["batch"] / seconds}


@asks("inference.tp_latency", instead=16384 / 32 * 9e10 / 8.1e11)  # F/(B·W_hbm/W_ici), the ratio not rounded to 8
def _(given: dict[str, Any]) -> Any:
    return tensor_limit(slice_of("v5e:16x16"), given["F"], given["B"])


@asks("inference.q1_params")
def _(given: dict[str, Any]) -> Any:
    model = architecture(QUIZ)
    return {"parameters": parameters(model).total, "kv_bytes_per_token": kv_bytes_per_token(model, "int8")}


@asks("inference.q2_batch")
def _(given: dict[str, Any]) -> Any:
    short = caches(asked(QUIZ, "v5e:4x4", 8192, chunk=1024, **INT8))
    assert short == pytest.approx(110, rel=0.03)
    return {
        "kv_per_sequence": kv_cache_bytes(architecture(QUIZ), given["context"], "int8"),
        "batch": caches(asked(QUIZ, "v5e:4x4", given["context"], chunk=1024, **INT8)),
    }


@asks("inference.q3_load")
def _(given: dict[str, Any]) -> Any:
    return weight_seconds(Scene(problem_of(asked(QUIZ, "v5e:4x4", 8192, **INT8)), V5E_4X4))


@asks("inference.q5_moe_params")
def _(given: dict[str, Any]) -> Any:
    assert parameters(architecture(MOE)).active == pytest.approx(31.2e9, rel=0.01)
    return parameters(architecture(MOE)).total


@asks("inference.q5_bcrit")
def _(given: dict[str, Any]) -> Any:
    return critical_batch(Scene(problem_of(asked(MOE, "v5e:4x4", 8192)), V5E_4X4), "experts")


@asks("inference.q5_flops")
def _(given: dict[str, Any]) -> Any:
    return flops_per_token(architecture(MOE), 1).matmul


@asks("inference.q6_load")
def _(given: dict[str, Any]) -> Any:
    of = problem_of(asked(MOE, "v5e:8x16", 64, **INT8))
    found = search(of, (1,)).lightest
    assert found is not None
    scene = Scene(of, found.at)
    bytes = scene.memory(1)["weights"]
    return {"bytes_per_chip": bytes, "seconds": weight_seconds(scene), "free": of.capacity - bytes}


@asks("inference.q6_smallest")
def _(given: dict[str, Any]) -> Any:
    return holds(asked(MOE, "v5e", 64, **INT8))


@asks("inference.q7_2d")
def _(given: dict[str, Any]) -> Any:
    return two_dimensional_from(slice_of("v5p:4x4x4"), 4096, 4 * 4096)


# -- serving Llama


@asks("applied-inference.flops_per_usd")
def _(given: dict[str, Any]) -> Any:
    chips = {name: chip(name) for name in ("h100", "v5p", "v5e")}
    return {name: flops_per_usd(peak(c, "bf16"), c.price.usd_per_hour) for name, c in chips.items() if c.price}


@asks("applied-inference.kv_token")
def _(given: dict[str, Any]) -> Any:
    return kv_bytes_per_token(architecture(given["model"]), "int8")


@asks("applied-inference.kv_32k")
def _(given: dict[str, Any]) -> Any:
    one = kv_cache_bytes(architecture("llama-3-70b"), 32768, "int8")
    return {"sequence": one, "batch240": 240 * one}


def bytes_of(model: str, dtype: str, context: int, batch: int) -> float:
    """Weights and caches together."""
    arch = architecture(model)
    return sum(weight_bytes(arch, dtype).values()) + batch * kv_cache_bytes(arch, context, dtype)


@asks("applied-inference.min_chips_240")
def _(given: dict[str, Any]) -> Any:
    return math.ceil(bytes_of("llama-3-70b", "int8", 32768, 240) / chip("v5e").hbm_bytes)


# 70.6e9 + 42.9e9 = 113.5e9 bytes are 1.5e9 more than seven chips have
@asks("applied-inference.b32_memory", instead={"bytes": 113.5e9, "chips": 8, "slice": "4x2"})
def _(given: dict[str, Any]) -> Any:
    whole = bytes_of("llama-3-70b", "int8", 8192, 32)
    name = smallest_slice(asked("llama-3-70b", "v5e", 8192, chunk=1024, **INT8), batch=32)
    assert name is not None
    sides = sorted(name.split(":")[1].split("x"), reverse=True)
    return {"bytes": whole, "chips": math.ceil(whole / chip("v5e").hbm_bytes), "slice": "x".join(sides)}


@asks("applied-inference.b32_4x2")
def _(given: dict[str, Any]) -> Any:
    (p,) = serve_with(asked("llama-3-70b", "v5e:4x2", 8192, **INT8), V5E_4X2, (32,))
    seconds = p.generate.step.bound
    return {"seconds": seconds, "tokens_per_second_per_chip": 32 / seconds / 8}


@asks("applied-inference.b32_4x4")
def _(given: dict[str, Any]) -> Any:
    (p,) = serve_with(asked("llama-3-70b", "v5e:4x4", 8192, **INT8), V5E_4X4, (32,))
    return p.generate.step.bound


@asks("applied-inference.min_slice")
def _(given: dict[str, Any]) -> Any:
    return {w: holds(asked("llama-3-70b", "v5e", 1, weights=w)) for w in ("bf16", "int8", "int4")}


@asks("applied-inference.full_hbm_step")
def _(given: dict[str, Any]) -> Any:
    one = chip(given["chip"])
    return memory_seconds(one.hbm_bytes, one.hbm_bandwidth)


def room(on: str, weights: str) -> tuple[float, int]:
    """Bytes left beside the weights, and caches of 8,192 tokens that fit there."""
    question = asked("llama-3-70b", on, 8192, weights=weights, kv=weights, chunk=512)
    model = architecture("llama-3-70b")
    left = question.slice.chips * question.slice.chip.hbm_bytes - sum(weight_bytes(model, weights).values())
    return left, caches(question)


def queries(on: str, weights: str) -> tuple[int, float]:
    """(caches that fit, queries/s/chip of 512 tokens at the bound of a step with that batch)."""
    _, batch = room(on, weights)
    question = asked("llama-3-70b", on, 8192, weights=weights, kv=weights, chunk=512)
    found = search(problem_of(question), (batch,), Limits(weights=("stationary",))).by_batch[batch]
    (p,) = serve_with(question, found.at, (batch,))
    return batch, batch / p.generate.step.bound / 512 / question.slice.chips


@asks("applied-inference.bf16_4x4_batch")
def _(given: dict[str, Any]) -> Any:
    left, count = room("v5e:4x4", "bf16")
    return {"left": left, "caches": count}


# int8 on 4x2: 8·16e9 - 70.6e9 = 57.4e9 bytes are 42 caches, not the 52 that 0.66 stands for
@asks("applied-inference.qps", instead={"bf16": 0.27, "int8": 42 / (128e9 / 8 / 8.1e11 * 512 * 8)})
def _(given: dict[str, Any]) -> Any:
    return {"bf16": queries("v5e:4x4", "bf16")[1], "int8": queries("v5e:4x2", "int8")[1]}


# 32·16e9 - 141e9 = 371e9 bytes are 138 caches
@asks("applied-inference.qps_double", instead={"caches": 138, "qps_per_chip": 138 / (16e9 / 8.1e11 * 512 * 32)})
def _(given: dict[str, Any]) -> Any:
    count, rate = queries("v5e:4x8", "bf16")
    return {"caches": count, "qps_per_chip": rate}


@asks("applied-inference.tp_limit", instead=2 * 28672 / (1.97e14 / 9e10))  # 2550 is the ratio of v5p
def _(given: dict[str, Any]) -> Any:
    v5p = slice_of("v5p:4x4x4")
    assert training_tensor_limit(v5p.chip, axis_bandwidth(v5p, 2), 28672) == pytest.approx(22, rel=0.03)
    v5e = slice_of("v5e:16x16")
    return training_tensor_limit(v5e.chip, axis_bandwidth(v5e, 2), 28672)


@asks("applied-inference.4x8_times")
def _(given: dict[str, Any]) -> Any:
    where = slice_of("v5e:4x8")
    shapes = architecture("llama-3-70b")
    d, f = shapes.d_model, shapes.feed_forward.d_ff  # type: ignore[union-attr]
    return {
        "ici": gather_seconds(2 * 64 * d, 1 / axis_bandwidth(where), 0.0),
        "hbm": memory_seconds(2 * d * f / where.chips, where.chip.hbm_bandwidth),
        "math": math_seconds(2 * 64 * d * f / where.chips, peak(where.chip, "bf16")),
    }


@asks("applied-inference.prefill")
def _(given: dict[str, Any]) -> Any:
    flops = 8192 * flops_per_token(architecture("llama-3-70b"), 8192).matmul
    return math_seconds(flops, 16 * peak(chip("v5e"), "bf16") * 0.4)


@asks("applied-inference.evict")
def _(given: dict[str, Any]) -> Any:
    return {"sequences": finished_per_step(32, 4096), "tokens": evicted_per_step(32, 8192, 4096)}


@asks("applied-inference.disagg")
def _(given: dict[str, Any]) -> Any:
    return pool_ratio(0.91, 1, 32, 0.019, 512)


@asks(*(f"applied-inference.pareto_s{s}_b{b}" for s in (2048, 8192) for b in (1, 8, 32)))
def _(given: dict[str, Any]) -> Any:
    question = asked("llama-3-70b", "v5e:4x4", given["context"], **INT8)
    (p,) = serve_with(question, V5E_4X4, (given["batch"],))
    seconds = p.generate.step.bound
    return {"seconds": seconds, "tokens_per_second_per_chip": given["batch"] / seconds / 16, "fits": p.fits}


@asks("applied-inference.q1")
def _(given: dict[str, Any]) -> Any:
    model, v5e = architecture(given["model"]), chip("v5e")
    flops = flops_per_token(model, 1).matmul
    read = memory_seconds(sum(weight_bytes(model, "int8").values()), v5e.hbm_bandwidth)
    return {
        "flops": flops, "compute_seconds_times_N": math_seconds(flops, peak(v5e, "bf16")), "memory_seconds_times_N": read,
    }  # fmt: skip


@asks("applied-inference.q2")
def _(given: dict[str, Any]) -> Any:
    model = architecture(given["model"])
    return {
        "parameters": parameters(model).total,
        "kv": 240 * kv_cache_bytes(model, 8192, "int8"),
        "chips": holds(asked("llama-3-8b", "v5e", 8192, chunk=1024, **INT8), 240),
    }


@asks("applied-inference.q3")
def _(given: dict[str, Any]) -> Any:
    name = smallest_slice(asked("llama-3-405b", "v5e", 64, weights="int8"))
    assert name is not None
    of = problem_of(asked("llama-3-405b", name, 64, weights="int8"))
    best = search(of, (1,)).lightest
    assert best is not None
    assert weight_seconds(Scene(of, best.at)) * of.slice.chips / 64 < 15e-3  # the next larger slice is under 15 ms
    return {"chips": of.slice.chips, "seconds": weight_seconds(Scene(of, best.at))}
