"""A serving question in the user's terms, and the problem that it poses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rooftop.costing import Rates, matmuls_of, rates_of
from rooftop.errors import InputError
from rooftop.hardware import Slice, peak
from rooftop.inference._precision import WEIGHTS, Precision, multiplied, precision, stored
from rooftop.roofline import Calibration, Dimension, calibration_for, dimensions
from rooftop.transformer import Architecture, parameters

#: Batches that are tried where the user names none.
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True, slots=True)
class Question:
    """What to serve, on what, for which requests. See `serve`.

    prompt, output: tokens of a request. context: position at which a generate step is timed (the middle of the output
    unless given). prefix_hits: share of a prompt whose cache is there already. chunk: prompts are read in chunks of so
    many tokens (0: whole). block: tokens of a page of the cache; reserve: positions that every sequence holds, used or not.
    draft, draft_tokens, acceptance: a draft model (or the model's own extra heads, "mtp") proposes so many tokens, each of
    which is accepted with this probability. offload: share of the caches that lie in host memory. price: USD per chip-hour.
    """

    model: Architecture
    slice: Slice
    prompt: int = 2048
    output: int = 512
    context: int | None = None
    batches: tuple[int, ...] = ()
    weights: str | None = None
    activations: str | None = None
    kv: str | None = None
    prefix_hits: float = 0.0
    chunk: int = 0
    block: int = 16
    reserve: int = 0
    draft: Architecture | str | None = None
    draft_tokens: int = 0
    acceptance: float = 0.0
    offload: float = 0.0
    price: float | None = None
    headroom: float = 0.0
    calibration: Calibration | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """A checked question, with its defaults filled in."""

    question: Question
    model: Architecture
    draft: Architecture | None  # the model itself where its extra heads draft
    slice: Slice
    precision: Precision
    calibration: Calibration
    context: int
    cached: int  # tokens of a prompt that need no prefill
    fresh: int  # those that do

    @property
    def capacity(self) -> float:
        """Bytes of HBM that may be used on each chip."""
        return self.slice.chip.hbm_bytes * (1 - self.question.headroom)

    @property
    def host_capacity(self) -> float:
        """Bytes of host memory for each chip."""
        return self.slice.chip.host_memory_bytes / self.slice.chip.chips_per_host

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The dimensions of the network, innermost first."""
        return dimensions(self.slice.levels)

    @property
    def price(self) -> float | None:
        """USD per chip-hour: the user's, or the chip's."""
        if self.question.price is not None:
            return self.question.price
        return self.slice.chip.price.usd_per_hour if self.slice.chip.price else None

    @property
    def positions(self) -> int:
        """Positions of the cache that a whole request holds: whole pages, or what is reserved."""
        total, block = self.question.prompt + self.question.output, self.question.block
        return max(self.question.reserve, -(-total // block) * block)

    @property
    def rates(self) -> Rates:
        """Peak and achieved rates of the chip for each dtype that a weight is stored in."""
        calibration = self.calibration
        return self._rates(calibration, calibration.serving["op"])

    @property
    def prompt_rates(self) -> Rates:
        """The same for passes over prompts, whose kernels are launched one by one."""
        return self._rates(self.calibration, self.calibration.serving["prompt_op"])

    def _rates(self, calibration: Calibration, op: float) -> Rates:
        chip = self.slice.chip
        base = replace(
            rates_of(chip, "bf16" if "bf16" in chip.flops else next(iter(chip.flops)), calibration), op_overhead=op
        )
        table = {w: rate_of(chip.flops, w, self.precision.activations) for w in WEIGHTS}
        return replace(base, by_weight={w: matmuls_of(peak(chip, d), d, calibration, op=op) for w, d in table.items()})


def rate_of(flops: Mapping[str, float], weights: str, activations: str) -> str:
    """The dtype at whose rate a chip multiplies: that of the wider operand, or the next wider one that the chip has."""
    wanted = multiplied(weights, activations)
    order = {"fp4": ("fp4", "fp8", "bf16", "fp16"), "int4": ("int4", "int8", "bf16", "fp16"), "fp8": ("fp8", "bf16", "fp16"),
             "int8": ("int8", "bf16", "fp16"), "bf16": ("bf16", "fp16", "fp32"), "fp16": ("fp16", "bf16", "fp32"), "fp32": ("fp32", "bf16")}  # fmt: skip
    return next((name for name in order[wanted] if name in flops), next(iter(flops)))


def problem_of(question: Question) -> Problem:
    """The problem behind a question. Raises InputError, naming the field, for what is out of range."""
    q, model = question, question.model
    if model.head != "lm":
        raise InputError(f"{model.name} has no head that predicts tokens, so it cannot generate", field="model")
    for field, value, least, most in (
        ("prompt", q.prompt, 1, 10**8), ("output", q.output, 1, 10**8), ("chunk", q.chunk, 0, 10**8), ("block", q.block, 1, 10**6),
        ("reserve", q.reserve, 0, 10**8), ("draft_tokens", q.draft_tokens, 0, 64),
    ):  # fmt: skip
        if not (isinstance(value, int) and least <= value <= most):
            raise InputError(
                f"{field}={value} is out of range; give a whole number from {least} to {most:,}", field=field
            )
    for field, share, below in (
        ("prefix_hits", q.prefix_hits, 1.0), ("headroom", q.headroom, 1.0), ("acceptance", q.acceptance, 1.0 + 1e-12),
        ("offload", q.offload, 1.0 + 1e-12),
    ):  # fmt: skip
        if not 0 <= share < below:
            raise InputError(
                f"{field}={share} is not a share; give 0 to {'below ' if below == 1 else ''}1", field=field
            )
    if any(not isinstance(b, int) or not 1 <= b <= 10**7 for b in q.batches):
        raise InputError(
            f"batches {q.batches} are out of range; give whole numbers of sequences from 1 on", field="batch"
        )
    context = q.prompt + q.output // 2 if q.context is None else q.context
    if not 1 <= context <= 10**8:
        raise InputError(f"context={context} is out of range; give a position from 1 to 100M", field="context")
    if model.positions and q.prompt + q.output > model.positions:
        raise InputError(
            f"{model.name} has learned positions for {model.positions} tokens; --prompt and --output ask for"
            f" {q.prompt + q.output}",
            field="prompt",
        )
    chosen = precision(q.weights, q.activations, q.kv)
    chip = q.slice.chip
    activations = chosen.activations
    if activations not in ("bf16", "fp16") and activations not in chip.flops:
        raise InputError(
            f"{chip.name} does not multiply {activations} (its rates: {', '.join(chip.flops)}); use --activations bf16",
            field="activations",
        )
    cached = math.floor(q.prompt * q.prefix_hits)
    return Problem(
        question, model, _draft(q), q.slice, chosen, q.calibration or calibration_for(chip.name, chip.family),
        context, cached, q.prompt - cached,
    )  # fmt: skip


def _draft(q: Question) -> Architecture | None:
    if q.draft is None:
        if q.draft_tokens:
            raise InputError("draft_tokens need a draft: name a model, or mtp", field="draft")
        return None
    if not q.draft_tokens:
        raise InputError("a draft needs the number of tokens that it proposes, such as 3", field="draft_tokens")
    if isinstance(q.draft, Architecture):
        if q.draft.vocab != q.model.vocab:
            raise InputError(
                f"{q.draft.name} has a vocabulary of {q.draft.vocab:,} tokens and {q.model.name} of {q.model.vocab:,}; a draft"
                " model needs the same one",
                field="draft",
            )
        return q.draft
    if q.draft != "mtp":
        raise InputError(f"the draft {q.draft!r} is neither a model nor mtp", field="draft")
    if not q.model.extra_heads:
        raise InputError(f"{q.model.name} has no heads that predict further ahead; name a draft model", field="draft")
    return q.model


def assumptions(problem: Problem) -> tuple[str, ...]:
    """What an answer rests on, as sentences."""
    q, spec = problem.question, problem.precision
    parts = {stored(problem.model, spec, part) for part in parameters(problem.model).parts}
    result = [
        f"weights in {', '.join(sorted(parts))}; matmuls take activations in {spec.activations}; the cache in {spec.kv};"
        " attention, the residual stream and collectives in bf16",
        f"a generate step is timed at position {problem.context}; memory is that of whole requests"
        f" ({problem.positions} positions in pages of {q.block})",
        f"calibration: {problem.calibration.name} ({problem.calibration.provenance})",
    ]
    if problem.model.experts is not None:
        result.append(
            "tokens choose experts at random; experts that none chooses are not read; the expected time is that of the chips whose"
            " experts are chosen most, the bound that of their mean"
        )
    if problem.model.towers:
        result.append("only text is served: encoders of images or sound are not loaded")
    if q.prefix_hits:
        result.append(f"{problem.cached} of {q.prompt} tokens of a prompt are in the cache already")
    if q.chunk:
        result.append(f"prompts are read in chunks of {q.chunk} tokens")
    if q.draft_tokens:
        who = "the model's extra head" if q.draft == "mtp" else problem.draft.name  # type: ignore[union-attr]
        result.append(f"{who} drafts {q.draft_tokens} tokens, each accepted with probability {q.acceptance:g}")
    if q.offload:
        result.append(f"{q.offload:.0%} of the caches lie in host memory and cross PCIe at every step")
    price = problem.slice.chip.price
    if q.price is None and price is not None:
        result.append(f"price: {price.usd_per_hour:g} USD a chip-hour, {price.terms}, {price.region}, {price.date}")
    return tuple(result)
