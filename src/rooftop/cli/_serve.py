"""rooftop serve."""

from __future__ import annotations

from typing import Any

import click

from rooftop.cli._common import (
    COUNT,
    INTEGER,
    SECONDS,
    SIZES,
    USD,
    USD_PER_HOUR,
    emit,
    explain_options,
    json_option,
    model_named,
)
from rooftop.errors import InputError


@click.command(
    "serve",
    epilog="""\b
Examples:
  rooftop serve llama-3-70b --on v5e:4x4 --weights int8 --kv int8 --prompt 8192 --output 512
  rooftop serve llama-3-70b --on h100:8 --weights fp8 --activations fp8 --tpot 20ms --ttft 1s
  rooftop serve deepseek-v3 --on h200:32 --draft mtp --draft-tokens 1 --acceptance 0.8
  rooftop serve llama-3-8b --on h100:1 --batch 32 --explain tpot
""",
)
@click.argument("model")
@click.option("--on", "where", required=True, metavar="SLICE", help="Where: v5e:4x4, h100:8, a hardware file.")
@click.option("--prompt", type=INTEGER, default=2048, help="Tokens of a prompt.  [default: 2048]")
@click.option("--output", type=INTEGER, default=512, help="Tokens generated for a request.  [default: 512]")
@click.option("--context", type=INTEGER, help="Position at which steps are timed.  [default: prompt + output/2]")
@click.option("--batch", "batches", help="Sequences in a step: 32, or 1,8,64.  [default: powers of two that fit]")
@click.option("--weights", help="Dtype of weights: bf16, fp8, int8, int4, mxfp4, nvfp4.  [default: the checkpoint's]")
@click.option("--activations", help="Dtype in which matmuls take activations: bf16, fp8, int8, fp4.  [default: bf16]")
@click.option("--kv", help="Dtype of the cache: bf16, fp8, int8, int4.  [default: bf16]")
@click.option("--mesh", type=SIZES, help="Fix ways of some mesh axes: tensor=8,data=2.")
@click.option(
    "--layout", type=click.Choice(["stationary", "gathered"]), help="How fsdp ways treat weights.  [default: both]"
)
@click.option(
    "--cache",
    type=click.Choice(["heads", "sequence"]),
    help="What tensor ways beyond the KV heads split.  [default: both]",
)
@click.option(
    "--experts", type=click.Choice(["width", "whole"]), help="What tensor ways split of experts.  [default: both]"
)
@click.option("--prefix-hits", type=float, default=0.0, help="Share of a prompt that is in the cache already.")
@click.option("--chunk", type=INTEGER, default=0, help="Read prompts in chunks of so many tokens.")
@click.option("--block", type=INTEGER, default=16, help="Tokens of a page of the cache.  [default: 16]")
@click.option("--reserve", type=INTEGER, default=0, help="Positions that every sequence holds, used or not.")
@click.option("--draft", help="A draft model of the same vocabulary, or mtp: the model's own extra head.")
@click.option("--draft-tokens", type=INTEGER, default=0, help="Tokens that the draft proposes in a step.")
@click.option("--acceptance", type=float, help="Probability that a proposed token is accepted.  [default: 0.7]")
@click.option("--offload", type=float, default=0.0, help="Share of the caches in host memory.")
@click.option("--ttft", type=SECONDS, help="Longest time to the first token: 500ms.")
@click.option("--tpot", type=SECONDS, help="Longest time from token to token: 20ms.")
@click.option("--usd", type=USD, help="Most USD for a million tokens generated.")
@click.option("--load", type=COUNT, help="Requests a second: find the smallest slice of the chip that sustains them.")
@click.option(
    "--prefill-on",
    metavar="SLICE",
    help="Read prompts on pools of this slice, generate on pools of --on; the best ratio.",
)
@click.option(
    "--pools", "most", type=click.IntRange(2, 512), default=64, help="Most pools of both kinds.  [default: 64]"
)
@click.option("--price", type=USD_PER_HOUR, help="USD per chip-hour, instead of the list price.")
@click.option("--headroom", type=float, default=0.0, help="Part of HBM to leave free.")
@json_option
@explain_options
def command(
    model: str,
    where: str,
    as_json: bool,
    explain: str | None,
    depth: int,
    batches: str | None,
    mesh: dict[str, int] | None,
    layout: str | None,
    cache: str | None,
    experts: str | None,
    draft: str | None,
    acceptance: float | None,
    draft_tokens: int,
    ttft: float | None,
    tpot: float | None,
    usd: float | None,
    load: float | None,
    prefill_on: str | None,
    most: int,
    **options: Any,
) -> None:
    """Latency, throughput, memory and cost of serving MODEL: a table over batches, the frontier, the best within limits.

    MODEL is a name of the catalogue, the path of a config.json or of its folder, or numbers.
    """
    from rooftop import inference
    from rooftop.figures import serving_figures
    from rooftop.hardware import slice_of
    from rooftop.inference._layouts import CACHES, EXPERTS, WEIGHTS
    from rooftop.units import parse_integer
    from rooftop.views._explain import explanation_json, explanation_text
    from rooftop.views._serve import pools_json, pools_text, serving_json, serving_text

    if batches is not None and len(batches) > 1000:
        raise InputError("--batch is a short list such as 1,8,64", field="batch")
    if draft is None and (acceptance is not None or draft_tokens):
        raise InputError(
            "--draft-tokens and --acceptance are for --draft; give a draft model or mtp too", field="draft"
        )
    question = inference.Question(
        model_named(model), slice_of(where),
        batches=tuple(parse_integer(b, "batch") for b in batches.split(",")) if batches else (),
        draft=model_named(draft) if draft not in (None, "mtp") else draft,
        draft_tokens=draft_tokens or (1 if draft == "mtp" else 0), acceptance=0.0 if draft is None else 0.7 if acceptance is None else acceptance, **options,
    )  # fmt: skip
    limits = inference.Limits(
        weights=WEIGHTS if layout is None else (layout,), caches=CACHES if cache is None else (cache,), experts=EXPERTS if experts is None else (experts,),
        fixed=mesh, ttft=ttft, tpot=tpot, usd=usd,
    )  # fmt: skip
    if prefill_on is not None:
        if load is not None or explain is not None:
            raise InputError("--prefill-on answers for pools; leave out --load and --explain", field="prefill_on")
        pools = inference.disaggregate(question, slice_of(prefill_on), limits, most=most)
        emit(pools_json(pools), lambda: pools_text(pools), as_json)
        return
    answer = inference.serve(question, limits) if load is None else inference.fewest(question, load, limits)
    if explain is None:
        emit(serving_json(answer), lambda: serving_text(answer), as_json, lambda: serving_figures(answer))
        return
    found = inference.explain_point(answer.best, explain, depth)
    emit({**serving_json(answer), "explanation": explanation_json(found)}, lambda: explanation_text(found), as_json)
