"""How the requests that decode grow, over many steps at once.

While the batch stays the same, everything that the engine needs to know of the next k steps is a closed form: the tokens and
blocks that are added, the seconds that they take, and how many of them end within a time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rooftop.simulation._request import Request


@dataclass(frozen=True, slots=True)
class Speculation:
    """A draft of `tokens` tokens in every step, each accepted with probability `acceptance` if those before it were.

    A step then yields 1 to tokens + 1 tokens of a sequence, (1 - acceptance^(tokens + 1)) / (1 - acceptance) on average
    (Leviathan et al., 2023, "Fast Inference from Transformers via Speculative Decoding", equation 1); drafting takes
    draft_seconds for each token of the draft, for the whole batch.
    """

    tokens: int
    acceptance: float
    draft_seconds: float = 0.0


class Growth(Protocol):
    """The decoding requests together. Steps are counted from the start of the simulation; step s is the next one."""

    width: int
    extra: float

    def join(self, request: Request, held: int, step: int) -> int:
        """A request that holds `held` tokens decodes from `step` on; the step after which it has all of its output."""

    def leave(self, request: Request, step: int) -> int:
        """It decodes no more, after the steps before `step`; tokens that it has generated since it joined."""

    def play(self, batch: int, step: int, steps: int) -> tuple[int, int]:
        """Tokens and blocks that are added in so many steps, which are then over."""

    def blocks(self, step: int, steps: int) -> int:
        """Blocks that are begun in so many steps."""

    def seconds(self, base: float, slope: float, batch: int, step: int, steps: int) -> float:
        """The sum over steps of base + slope * (tokens added by the steps before)."""

    def steps_within(self, base: float, slope: float, batch: int, step: int, seconds: float, most: int) -> int:
        """The fewest steps, 1 to `most`, that take at least `seconds`."""


class Steady:
    """One token a step for every request."""

    width = 1
    extra = 0.0

    def __init__(self, block: int) -> None:
        self._block = block
        self._requests = 0
        self._begun = [0] * (2 * block)  # requests that begin a block in steps of each remainder; twice, to take slices

    def join(self, request: Request, held: int, step: int) -> int:
        """One step for each token that is missing."""
        if not request.reserved:
            at = (step - held) % self._block  # the step that finds its last block full
            request.growing = at
            self._begun[at] += 1
            self._begun[at + self._block] += 1
            self._requests += 1
        return step + request.output - request.generated

    def leave(self, request: Request, step: int) -> int:
        """One a step."""
        if not request.reserved:
            at = request.growing
            self._begun[at] -= 1
            self._begun[at + self._block] -= 1
            self._requests -= 1
        return step - request.start_step

    def play(self, batch: int, step: int, steps: int) -> tuple[int, int]:
        """One token a step and request."""
        return batch * steps, self.blocks(step, steps)

    def blocks(self, step: int, steps: int) -> int:
        """Every request begins a block once in as many steps as a block has tokens."""
        at = step % self._block
        if steps == 1:
            return self._begun[at]
        whole, rest = divmod(steps, self._block)
        return whole * self._requests + (sum(self._begun[at : at + rest]) if rest else 0)

    def seconds(self, base: float, slope: float, batch: int, step: int, steps: int) -> float:
        """An arithmetic series."""
        return steps * base + slope * batch * (steps * (steps - 1) // 2)

    def steps_within(self, base: float, slope: float, batch: int, step: int, seconds: float, most: int) -> int:
        """The root of a quadratic, made exact."""
        if seconds <= base:
            return 1
        half = 0.5 * slope * batch
        linear = base - half
        root = math.sqrt(linear * linear + 4.0 * half * seconds)
        # of the two forms of the root, the one that subtracts nothing
        found = 2.0 * seconds / (linear + root) if linear >= 0.0 else (root - linear) / (2.0 * half)
        steps = min(most, max(1, math.ceil(found)))
        while steps > 1 and self.seconds(base, slope, batch, step, steps - 1) >= seconds:
            steps -= 1
        while steps < most and self.seconds(base, slope, batch, step, steps) < seconds:
            steps += 1
        return steps


class Drawn:
    """With speculation: how many tokens of each draft are accepted is drawn when a request joins."""

    def __init__(self, block: int, speculation: Speculation, seed: int) -> None:
        self.width = speculation.tokens + 1
        self.extra = speculation.tokens * speculation.draft_seconds
        self._block = block
        self._acceptance = speculation.acceptance
        self._random = np.random.default_rng(seed)
        self._tokens: defaultdict[int, int] = defaultdict(int)  # step -> tokens that it adds
        self._blocks: defaultdict[int, int] = defaultdict(int)

    def join(self, request: Request, held: int, step: int) -> int:
        """Draw the steps of its output."""
        missing = request.output - request.generated
        drawn: list[int] = []
        at = 0
        while at < missing:
            for uniform in self._random.random(max(4, 2 * (missing - at) // self.width)).tolist():
                # accepted >= n with probability acceptance^n
                accepted = (
                    self.width - 1
                    if self._acceptance >= 1.0 or uniform <= 0.0
                    else min(self.width - 1, int(math.log(uniform) / math.log(self._acceptance)))
                    if self._acceptance > 0.0
                    else 0
                )
                at = min(missing, at + 1 + accepted)
                drawn.append(at)
                if at == missing:
                    break
        request.drawn = drawn
        self._plan(request, held, step, 0, 1)
        return step + len(drawn)

    def leave(self, request: Request, step: int) -> int:
        """Take what it would still have added out of the coming steps."""
        done = step - request.start_step
        generated = int(request.drawn[done - 1]) if done else 0
        self._plan(request, request.target + generated, step, done, -1)
        request.drawn = None
        return generated

    def _plan(self, request: Request, held: int, step: int, done: int, sign: int) -> None:
        block = self._block
        before = request.drawn[done - 1] if done else 0
        tokens = held
        for number, total in enumerate(request.drawn[done:], step):
            added = total - before
            self._tokens[number] += sign * added
            if not request.reserved:
                self._blocks[number] += sign * (-(-(tokens + added) // block) - -(-tokens // block))
            tokens += added
            before = total

    def play(self, batch: int, step: int, steps: int) -> tuple[int, int]:
        """As drawn."""
        over = range(step, step + steps)
        return sum(self._tokens.pop(number, 0) for number in over), sum(self._blocks.pop(number, 0) for number in over)

    def blocks(self, step: int, steps: int) -> int:
        """As drawn."""
        return sum(self._blocks.get(number, 0) for number in range(step, step + steps))

    def seconds(self, base: float, slope: float, batch: int, step: int, steps: int) -> float:
        """Step by step."""
        added, total = 0, 0
        for number in range(step, step + steps - 1):
            added += self._tokens[number]
            total += added
        return steps * base + slope * total

    def steps_within(self, base: float, slope: float, batch: int, step: int, seconds: float, most: int) -> int:
        """By bisection: more steps take longer."""
        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            if self.seconds(base, slope, batch, step, middle) >= seconds:
                high = middle
            else:
                low = middle + 1
        return low
