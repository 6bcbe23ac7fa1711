"""How an engine schedules, and how a fleet of them is run: what a user can choose."""

from __future__ import annotations

from dataclasses import dataclass

from rooftop.errors import InputError, nearest
from rooftop.simulation._growth import Speculation
from rooftop.simulation._queue import QUEUES

FIRST = ("decode", "prefill")
ADMISSIONS = ("prompt", "whole")
PREEMPTIONS = ("recompute", "swap")


@dataclass(frozen=True, slots=True)
class Scheduling:
    """The policies of one engine.

    max_batch: requests that run together. max_tokens: tokens that one step computes.
    first: "decode" runs every decoding request in every step and fills what is left of max_tokens with prompts (mixed
    steps); "prefill" runs steps of prompts alone while there are any that can be admitted.
    chunked: a prompt may be cut to what is left of max_tokens; else prompts are whole, and one that is longer than what is
    left goes as the only prompt of a step.
    block: tokens of a KV block. admit: "prompt" takes the blocks of the prompt and grows, "whole" reserves those of the
    whole output, so that nothing is ever preempted. watermark: part of the blocks that admission leaves free, unless the
    engine is empty. preempt: what becomes of the KV cache of a request that must give way: "recompute" or "swap".
    queue: the order of waiting requests, a key of QUEUES. prefix_cache: whether prompts share blocks.
    """

    max_batch: int = 256
    max_tokens: int = 8192
    first: str = "decode"
    chunked: bool = True
    block: int = 16
    admit: str = "prompt"
    watermark: float = 0.01
    preempt: str = "recompute"
    queue: str = "fcfs"
    prefix_cache: bool = False
    speculation: Speculation | None = None
    jump: bool = True  # False plays every step by itself: the same answer, slowly

    def __post_init__(self) -> None:
        for name, value, most in (
            ("max_batch", self.max_batch, 10**6), ("max_tokens", self.max_tokens, 10**9), ("block", self.block, 10**6),
        ):  # fmt: skip
            if not 1 <= value <= most:
                raise InputError(f"{name} = {value} is not from 1 to {most}; give a whole number", field=name)
        for name, given, known in (
            ("first", self.first, FIRST), ("admit", self.admit, ADMISSIONS), ("preempt", self.preempt, PREEMPTIONS),
            ("queue", self.queue, tuple(QUEUES)),
        ):  # fmt: skip
            if given not in known:
                raise InputError(
                    f"unknown {name} {given[:40]!r}{nearest(given, known)}; use {' or '.join(known)}", field=name
                )
        if not 0 <= self.watermark < 1:
            raise InputError(f"watermark = {self.watermark} is not a part; give 0 to 0.99", field="watermark")
        s = self.speculation
        if s is not None:
            if not 1 <= s.tokens <= 64:
                raise InputError(f"a draft of {s.tokens} tokens is not from 1 to 64", field="speculate")
            if not 0 <= s.acceptance <= 1:
                raise InputError(f"acceptance = {s.acceptance} is not from 0 to 1", field="acceptance")
            if not 0 <= s.draft_seconds <= 3600:
                raise InputError(f"draft_seconds = {s.draft_seconds} is not from 0 to 3600", field="draft_seconds")
        if self.first == "decode" and self.max_tokens < self.max_batch * self.width:
            raise InputError(
                f"max_tokens = {self.max_tokens} is less than the {self.max_batch * self.width} tokens that a full batch "
                f"decodes in a step; give at least that, or a smaller max_batch",
                field="max_tokens",
            )

    @property
    def width(self) -> int:
        """Tokens that a decoding request computes in a step."""
        return 1 if self.speculation is None else 1 + self.speculation.tokens
