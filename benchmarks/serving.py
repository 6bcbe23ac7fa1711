"""Predict published serving measurements and state the errors: `python benchmarks/serving.py [SERVING_CSV]`.

`tests/data/measured/inference.csv` has maximum-load throughput of TensorRT-LLM (its performance overview) and two numbers of the PaLM
inference paper (arXiv 2211.05102). `tests/data/measured/serving.csv` is a sample of times to the first and between tokens that
aiconfigurator-core 0.12.0 (Apache-2.0) ships as `serving` validation data; the path of the whole table can be given instead. Nothing
here is fitted to any of them.
"""

from __future__ import annotations

import csv
import functools
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "src"))

from rooftop.hardware import slice_of  # noqa: E402
from rooftop.inference import Configuration, Layout, Limits, Point, Question, Scene, point, problem_of, search  # noqa: E402
from rooftop.transformer import Architecture, architecture, uniform  # noqa: E402

ROWS = HERE.parent / "tests/data/measured/inference.csv"
SERVING = HERE.parent / "tests/data/measured/serving.csv"
MODELS = {"deepseek-r1-0528": "deepseek-r1", "llama-3.3-70b": "llama-3-70b"}
#: weights, activations, cache. NVFP4 checkpoints multiply in fp4; caches are fp8, as the page says of experts on Blackwell.
PRECISIONS = {"fp4": ("nvfp4", "fp4", "fp8"), "fp8": ("fp8", "fp8", "fp8")}


@dataclass(frozen=True)
class Row:
    """One measurement with its prediction: tokens/s/chip, or seconds of a step, or MFU; `bound` is what none can beat."""

    id: str
    kind: str
    measured: float
    expected: float
    bound: float

    @property
    def better_is(self) -> str:
        return "lower" if self.kind in ("decode", "tpot", "ttft") else "higher"

    @property
    def beats_bound(self) -> bool:
        return self.measured < self.bound if self.better_is == "lower" else self.measured > self.bound

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.expected / self.measured - 1


def predictions(rows: list[dict[str, str]], *, bound_only: bool = False) -> Iterator[Row]:
    """Every row that states a throughput, a time or a utilisation; `expected` is not computed with bound_only."""
    for row in rows:
        if row["kind"] == "serve-offline":
            yield offline(row, bound_only=bound_only)
        elif row["model"] == "palm-540b" and row["kind"] in ("decode", "prefill"):
            yield palm(row)


def offline(row: dict[str, str], *, bound_only: bool = False) -> Row:
    """Maximum load: requests in all stages of their output, as many as the memory holds at their mean length."""
    weights, activations, kv = PRECISIONS[row["precision"]]
    prompt, output, chips = int(row["input_tokens"]), int(row["output_tokens"]), int(row["chips"])
    where = slice_of(f"{row['chip']}:{chips}" if chips > 1 else row["chip"])
    question = Question(
        architecture(MODELS.get(row["model"], row["model"])), where, prompt=prompt, output=output, weights=weights,
        activations=activations, kv=kv, chunk=min(8192, prompt), headroom=0.1,
    )  # fmt: skip
    axis = "expert" if row["layout"].startswith("DEP") else "tensor"
    limits = Limits(fixed={axis: chips}, weights=("stationary",), caches=("heads",), experts=("width",))
    # a request holds its mean length: the pages of later tokens are not there yet
    mean = replace(question, prompt=prompt + output // 2, output=1)
    whole = search(problem_of(replace(mean, headroom=0.0)), (1,), limits)
    at = next(iter(whole.by_batch.values())).at
    best = point(problem_of(question), at, whole.caches)
    per_chip = output / chips
    expected = math.nan
    if not bound_only:
        expected = best_rate(question, at, search(problem_of(mean), (1,), limits).caches) * per_chip
    measured = float(row["output_tokens_per_second_per_chip"])
    return Row(row["id"], row["kind"], measured, expected, best.most_requests_per_second * per_chip)


def best_rate(question: Question, at: Configuration, most: int) -> float:
    """Requests/s at the batch that serves most of them: runs at maximum load are tuned to it."""
    sizes = {min(most, 2**k) for k in range(0, 15)} | {most}
    problem = problem_of(question)
    return max(point(problem, at, b).requests_per_second for b in sizes if b <= 16384)


def palm_540b() -> Architecture:
    """PaLM 540B as the paper runs it: 118 parallel layers, heads padded from 48 to 64, one KV head (arXiv 2204.02311)."""
    return Architecture("palm-540b", 18432, 256000, uniform(118, 64, 1, 256, 73728, parallel="one"), tied=True)


def palm(row: dict[str, str]) -> Row:
    """The best configuration of 64 chips of TPU v4."""
    if row["kind"] == "decode":
        question = Question(palm_540b(), slice_of("v4:4x4x4"), prompt=2048, output=64, context=2048, weights="int8")
        batch = int(row["batch"])
        best = search(problem_of(question), (batch,)).by_batch[batch]
        p: Point = point(problem_of(question), best.at, batch)
        lowest = min(
            float(point(problem_of(question), c, batch).generate.step.bound) for c in every_configuration(question)
        )
        return Row(row["id"], row["kind"], float(row["step_seconds"]), float(p.generate.step.expected), lowest)
    question = Question(palm_540b(), slice_of("v4:4x4x4"), prompt=2048, output=1, weights="bf16")
    reader = search(problem_of(question), (1,)).reader
    assert reader is not None
    p = point(problem_of(question), reader.at, 1)
    mfu = p.prefill.resources["compute"] / p.prefill.expected
    return Row(row["id"], row["kind"], float(row["mfu"]), float(mfu), 1.0)


def every_configuration(question: Question) -> Iterator[Configuration]:
    """All meshes in one dimension and two, as they lie on a torus in order."""
    for fsdp in (1, 4, 16):
        tensor = 64 // fsdp
        sides = (
            {"fsdp": min(4, fsdp), "tensor": 4 // min(4, fsdp)},
            {"fsdp": fsdp // 4 or 1, "tensor": 4 // (fsdp // 4 or 1)},
        )
        yield Configuration({"fsdp": fsdp, "tensor": tensor}, (*sides, {"tensor": 4}), Layout())


SERVED = {
    "deepseek-ai/DeepSeek-R1": "deepseek-r1", "deepseek-ai/DeepSeek-V3": "deepseek-v3", "Qwen/Qwen3-32B": "qwen3-32b",
    "openai/gpt-oss-120b": "gpt-oss-120b", "meta-llama/Llama-3.1-70B": "llama-3-70b", "MiniMaxAI/MiniMax-M2.5": "minimax-m2.5",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3-8b", "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "Qwen/Qwen3.5-397B-A17B": "qwen3.5-397b-a17b", "moonshotai/Kimi-K2.5": "kimi-k2.5",
}  # fmt: skip
SYSTEMS = {"h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "gb200": "gb200"}
QUANTISED: dict[str, tuple[str | None, str | None, str | None]] = {
    "": (None, None, None), "fp8": ("fp8", "fp8", "fp8"), "fp8_block": ("fp8", "fp8", "fp8"), "nvfp4": ("nvfp4", "fp4", "fp8"),
}  # fmt: skip


def layout_of(row: dict[str, str], moe: bool) -> tuple[str, int, str] | None:
    """(mesh axis, ways, experts) of a row; None where its columns do not describe up to 8 chips of one layout."""
    tensor, data, width, whole = (
        int(row[name] or 1) for name in ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    )
    chips = tensor * data
    if not 1 <= chips <= 8 or (tensor > 1 and data > 1) or (data > 1 and not moe):
        return None
    if moe and width * whole not in (1, chips):
        return None
    if data > 1:
        return "expert", chips, "width"
    return "tensor", chips, "whole" if moe and whole == chips > 1 else "width"


@functools.cache
def served(
    name: str, where: str, quantised: str, prompt: int, output: int, axis: str, ways: int, experts: str
) -> Scene:
    """A model under load on a node, caches in fp8 where weights are quantised."""
    weights, activations, kv = QUANTISED[quantised]
    question = Question(
        architecture(name), slice_of(where), prompt=prompt, output=output, weights=weights, activations=activations, kv=kv,
        chunk=min(8192, prompt),
    )  # fmt: skip
    factors = ({axis: ways},) if ways > 1 else ()
    return Scene(problem_of(question), Configuration({axis: ways}, factors, Layout(experts=experts)))


def online(row: dict[str, str]) -> tuple[Row, Row] | None:
    """Time between tokens and to the first one at a concurrency; None for a row that the rule of `layout_of` rejects.

    The bound of the time between tokens is that of the sequences which generate at once: by Little's law the measured share of a
    request's time that it generates, of the concurrency. The first token cannot come before the prompt is read, without queueing.
    """
    if row["mode"] != "agg" or row["model_path"] not in SERVED or row["system"] not in SYSTEMS:
        return None
    name, chip = SERVED[row["model_path"]], SYSTEMS[row["system"]]
    found = layout_of(row, architecture(name).experts is not None)
    prompt, output, concurrency = (int(row[c] or 0) for c in ("isl", "osl", "batch_size"))
    if found is None or output < 16 or (row["gemm_quant_mode"] == "nvfp4" and "fp4" not in slice_of(chip).chip.flops):
        return None
    axis, ways, experts = found
    where = f"{chip}:{ways}" if ways > 1 else chip
    scene = served(name, where, row["gemm_quant_mode"], prompt, output, axis, ways, experts)
    first, between = float(row["silicon_ttft_ms"]) / 1e3, float(row["silicon_tpot_ms"]) / 1e3
    generating = concurrency * between * (output - 1) / (first + between * (output - 1))
    step = scene.generate(max(1, math.floor(generating)), detail=False).step.bound
    prefill = scene.prefill()
    p = Point(
        scene.problem, Configuration({axis: ways}, (), scene.layout), concurrency, scene.generate(concurrency), prefill
    )
    return (
        Row(row["id"], "tpot", between, p.tpot_mixed, float(step)),
        Row(row["id"], "ttft", first, float(prefill.expected), float(prefill.bound)),
    )


def summary(title: str, found: Sequence[Row]) -> str:
    """How far predictions are off, and how many measurements beat their bound."""
    ratios = [math.log(r.expected / r.measured) for r in found]
    return (
        f"{title:34} {len(found):5} rows; predicted/measured {math.exp(statistics.mean(ratios)):.2f} (geometric mean);"
        f" median error {math.exp(statistics.median(map(abs, ratios))) - 1:.0%}; {sum(r.beats_bound for r in found)} beat their bound"
    )


def main() -> None:
    """Print a line a row of the first table, and the errors of both."""
    found = list(predictions(list(csv.DictReader(ROWS.read_text().splitlines()))))
    print(f"{'row':55} {'measured':>10} {'expected':>10} {'bound':>10} {'error':>7}")
    for r in found:
        print(f"{r.id:55} {r.measured:10.4g} {r.expected:10.4g} {r.bound:10.4g} {r.error:+7.0%}")
    print(summary("maximum load, PaLM", found))
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else SERVING
    rows = list(csv.DictReader(path.read_text().splitlines()))
    pairs = [(row, pair) for row in rows if (pair := online(row)) is not None]
    print(f"{path.name}: {len(pairs)} of {len(rows)} rows describe up to 8 chips of a known model and layout")
    print(summary("time between tokens", [pair[0] for _, pair in pairs]))
    for column in ("model_path", "system", "backend", "gemm_quant_mode"):
        for value in sorted({row[column] for row, _ in pairs}):
            print(summary(f"  {value or 'as published'}", [pair[0] for row, pair in pairs if row[column] == value]))
    print(summary("time to the first token", [pair[1] for _, pair in pairs]), "(measured with queueing)")


if __name__ == "__main__":
    main()
