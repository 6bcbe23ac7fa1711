"""One engine: continuous batching over a paged KV memory.

An engine is either idle or in a *run*: one step with prompts, or several steps in which nothing but decoding happens, which
are one event. A run ends with the step after which something changes: a request has all its tokens, blocks run out, or (see
`submit`) a request has come that could be admitted.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from rooftop.errors import NoAnswer
from rooftop.simulation._growth import Drawn, Growth, Steady
from rooftop.simulation._memory import Memory
from rooftop.simulation._prefix import PrefixTree
from rooftop.simulation._queue import QUEUES
from rooftop.simulation._replica import Replica
from rooftop.simulation._request import Request
from rooftop.simulation._settings import Scheduling

#: What an engine reports of a run: start, end, requests that ran and waited, blocks used.
Period = tuple[float, float, int, float, int]


class Engine:
    """A replica that serves requests by the policies of `scheduling`.

    Whoever drives it submits requests in the order of time and calls `advance` at `end`. `leave(request, engine)` is called
    for each request that has its last token or, with `prefill_only`, its first; its blocks are held until `release`.
    """

    def __init__(
        self, replica: Replica, scheduling: Scheduling, leave: Callable[[Request, Engine], None], *, number: int = 0,
        seed: int = 0, prefill_only: bool = False,
    ) -> None:  # fmt: skip
        self.replica = replica
        self.scheduling = scheduling
        self.number = number
        self.prefill_only = prefill_only
        self.now = 0.0
        self.end = math.inf  # of the run in progress
        self.runs = 0  # that were planned or cut: tells a stale event from the present one
        self.busy_seconds = 0.0
        self.steps_played = 0
        self.preemptions = 0
        self.periods: list[Period] = []
        self._leave = leave
        self._queue = QUEUES[scheduling.queue]()
        self._memory = Memory(
            replica.kv_tokens // scheduling.block, scheduling.block, PrefixTree() if scheduling.prefix_cache else None
        )
        self._most = self._memory.capacity * scheduling.block  # tokens that surely fit
        self._reserve = int(scheduling.watermark * self._memory.capacity)
        self._growth: Growth
        if scheduling.speculation is None:
            self._growth = Steady(scheduling.block)
        else:
            self._growth = Drawn(scheduling.block, scheduling.speculation, seed)
        self._host_free = replica.host_tokens
        self._prefilling: dict[Request, None] = {}
        self._decoding: dict[Request, None] = {}
        self._held = 0  # tokens of the decoding requests
        self._step = 0  # steps in which requests decoded
        self._finishes: list[tuple[int, int, Request]] = []  # a heap; an entry is stale if its request was preempted
        self._joined = 0
        self._moving = 0.0  # seconds of swaps that the next run waits for
        # the run in progress
        self._start = 0.0
        self._running = self._waiting = 0
        self._steps = 0  # in which requests decode
        self._chunks: list[tuple[Request, int]] = []
        self._base = 0.0
        self._slope = 0.0

    # -- what others see

    @property
    def outstanding(self) -> int:
        """Requests that wait or run."""
        return self._queue.size + len(self._prefilling) + len(self._decoding)

    @property
    def blocks(self) -> int:
        """Blocks of its memory."""
        return self._memory.capacity

    @property
    def blocks_used(self) -> int:
        """Blocks taken by requests and the prefix cache."""
        return self._memory.used

    @property
    def blocks_cached(self) -> int:
        """Blocks of the prefix cache that no request holds."""
        return 0 if self._memory.tree is None else self._memory.tree.idle

    def cached_tokens(self, request: Request) -> int:
        """Tokens of a prompt that its prefix cache holds."""
        tree, block = self._memory.tree, self.scheduling.block
        if tree is None:
            return 0
        return tree.match(request.segments(block, request.input), (request.input - 1) // block) * block

    def refusal(self, request: Request) -> str | None:
        """Why a request can never be served, if it cannot."""
        tokens = request.input + (0 if self.prefill_only else request.output - 1)
        block = self.scheduling.block
        if -(-tokens // block) <= self._memory.capacity:
            return None
        return (
            f"request {request.id} of {request.input} input and {request.output} output tokens needs "
            f"{-(-tokens // block)} KV blocks of {block} tokens, and {self.replica.name} has {self._memory.capacity}; "
            "give it more memory or leave the request out"
        )

    # -- events

    def submit(self, request: Request, now: float) -> None:
        """A request comes. Steps that have begun are ended before it can be admitted."""
        if request.input + request.output > self._most and (reason := self.refusal(request)) is not None:
            raise NoAnswer(reason, field="workload")
        queue = self._queue
        queue.push(request)
        if self.end == math.inf:
            self._wake(now)
        elif self._steps > 1 and queue.first() is request:
            steps = self._growth.steps_within(
                self._base, self._slope, len(self._decoding), self._step, now - self._start, self._steps
            )
            if steps < self._steps:
                self._steps = steps
                self.runs += 1
                self._set_end()

    def advance(self) -> None:
        """The run in progress has ended: count its tokens, let go who is done, and begin the next one."""
        now = self.now = self.end
        self.busy_seconds += now - self._start
        steps, memory = self._steps, self._memory
        used = memory.used
        if steps:
            growth, step = self._growth, self._step
            tokens, blocks = growth.play(len(self._decoding), step, steps)
            self._held += tokens
            if blocks:
                memory.take(blocks)
                used = memory.used
            self._step = step = step + steps
            self.steps_played += steps
            finishes = self._finishes
            while finishes and finishes[0][0] <= step:
                request = heapq.heappop(finishes)[2]
                if request.finish_step == step:
                    self._finish(request)
        elif self._chunks:
            self.steps_played += 1
        for request, count in self._chunks:
            request.done += count
            if request.done == request.target:
                self._first_token(request)
        if now > self._start:
            self.periods.append((self._start, now, self._running, (self._waiting + self._queue.size) / 2, used))
        self._plan()

    def release(self, request: Request, now: float) -> None:
        """Give back the blocks of a request that left after its first token."""
        self._memory.release(request)
        if self.end == math.inf and self._queue.size:
            self._wake(now)

    def _wake(self, now: float) -> None:
        """End idleness with a run of no length, so that all that happens now is in time for the next one."""
        self._start = self.end = now
        self._running = self._waiting = 0
        self.runs += 1

    # -- one run after the other

    def _plan(self) -> None:
        """Begin the next run at `now`, if there is anything to do."""
        mixed = self.scheduling.first == "decode"
        chunks: list[tuple[Request, int]] = []
        self._chunks = chunks
        self.runs += 1
        calm = not (mixed and self._decoding and self._make_room())
        if self._prefilling or self._queue.size:
            self._take_prompts(chunks, mixed, admit=calm)
        if not mixed and not chunks and self._decoding:
            calm = not self._make_room()
        batch = len(self._decoding) if mixed or not chunks else 0
        self._running = batch + len(self._prefilling)
        self._waiting = self._queue.size
        self._start = self.now + self._moving
        self._moving = 0.0
        if chunks:
            self._steps = 1 if batch else 0
            self.end = self._start + self._seconds_of(chunks, batch)
        elif batch:
            self._plan_decoding(batch, self.scheduling.jump and calm)  # what was preempted left room for others
        else:
            self._steps = 0
            self.end = math.inf

    def _seconds_of(self, chunks: list[tuple[Request, int]], batch: int) -> float:
        """Seconds of a step with prompts."""
        growth = self._growth
        tokens = pairs = 0
        for request, count in chunks:
            tokens += count
            pairs += count * request.done + count * (count + 1) // 2
        if not batch:
            return self.replica.steps.seconds(tokens, pairs, 0, 0)
        width = growth.width
        return growth.extra + self.replica.steps.seconds(tokens, pairs, batch, self._held + batch * width, width)

    def _plan_decoding(self, batch: int, jump: bool) -> None:
        """A run of steps that only decode, up to the first that changes the batch or that lacks blocks."""
        growth = self._growth
        width = growth.width
        context = self._held + batch * width
        base, slope, until = self.replica.steps.decode_line(batch, context, width)
        self._base = base + growth.extra + slope * context
        self._slope = slope
        steps = 1
        if jump:
            finishes = self._finishes
            while finishes[0][0] != finishes[0][2].finish_step:
                heapq.heappop(finishes)
            steps = finishes[0][0] - self._step
            if until != math.inf:
                steps = min(steps, 1 + max(0, int((until - context) // (batch * width))))
            room = self._memory.available()
            # every request begins a block in its first step at most, and then one for each `block` tokens
            if batch * width * (1 + steps // self.scheduling.block) > room and growth.blocks(self._step, steps) > room:
                low, high = 1, steps  # the first step has its blocks
                while high - low > 1:
                    middle = (low + high) // 2
                    low, high = (middle, high) if growth.blocks(self._step, middle) <= room else (low, middle)
                steps = low
        self._steps = steps
        self._set_end()

    def _set_end(self) -> None:
        self.end = self._start + self._growth.seconds(
            self._base, self._slope, len(self._decoding), self._step, self._steps
        )

    def _take_prompts(self, chunks: list[tuple[Request, int]], mixed: bool, admit: bool) -> None:
        """Give what is left of the step's tokens to prompts: those begun first, then those that can be admitted."""
        scheduling = self.scheduling
        width = self._growth.width
        left = scheduling.max_tokens - (len(self._decoding) * width if mixed else 0)
        for request in self._prefilling:
            tokens = self._share(request, left, chunks)
            if tokens == 0:
                return
            chunks.append((request, tokens))
            left -= tokens
        queue, memory = self._queue, self._memory
        while admit and left > 0 and queue.size:
            running = len(self._decoding) + len(self._prefilling)
            if running >= scheduling.max_batch:
                return
            request = queue.first()
            if (
                request.done == request.target
            ):  # its keys and values were swapped out or transferred: it only needs room
                if mixed and left < width:
                    return
            elif not scheduling.chunked and request.target - self.cached_tokens(request) > left and chunks:
                return
            reserved = scheduling.admit == "whole" and not self.prefill_only
            whole = request.input + request.output - 1
            tokens = whole if reserved else request.target
            spare = self._growth.blocks(self._step, 1) if self._decoding else 0
            if request.done == request.target and not reserved:  # it decodes in this very step
                block = self.scheduling.block
                spare += -(-min(whole, tokens + width) // block) - -(-tokens // block)
            if running:
                spare += self._reserve
            if not memory.admit(request, tokens, spare):
                return
            queue.pop()
            request.reserved = reserved
            self._admitted(request)
            if request.done == request.target:
                self._decode(request)
                left -= width if mixed else 0
                continue
            self._prefilling[request] = None
            tokens = self._share(request, left, chunks)
            if tokens == 0:
                return
            chunks.append((request, tokens))
            left -= tokens

    def _share(self, request: Request, left: int, chunks: list[tuple[Request, int]]) -> int:
        """Tokens of a prompt that this step computes."""
        tokens = request.target - request.done
        if tokens <= left or (not self.scheduling.chunked and not chunks):
            return tokens
        return max(0, left) if self.scheduling.chunked else 0

    def _admitted(self, request: Request) -> None:
        if request.admitted != request.admitted:  # NaN: for the first time
            request.admitted = self.now
            request.cached = request.done if request.generated == 0 else 0
        request.replica = self.number
        if request.swapped:
            self._moving += self.replica.swap_seconds(request.swapped)
            self._host_free += request.swapped
            request.swapped = 0

    # -- the life of a request

    def _first_token(self, request: Request) -> None:
        """Its prompt (or, after a preemption, all that it had) is computed, which gives it one more token."""
        del self._prefilling[request]
        memory = self._memory
        if memory.tree is not None:
            memory.share(request, request.target)
        request.generated += 1
        if request.first != request.first:
            request.first = self.now
        if request.generated >= request.output:
            request.finish = self.now
            self._queue.served(request, 1)
            memory.release(request)
            self._leave(request, self)
        elif self.prefill_only:
            self._leave(request, self)
        else:
            self._decode(request)

    def _decode(self, request: Request) -> None:
        held = request.target
        request.start_step = step = self._step
        request.finish_step = finish = self._growth.join(request, held, step)
        self._joined += 1
        heapq.heappush(self._finishes, (finish, self._joined, request))
        self._decoding[request] = None
        self._held += held

    def _stop_decoding(self, request: Request) -> int:
        """Take a request out of the batch; the tokens that it holds."""
        held = request.target
        generated = self._growth.leave(request, self._step)
        del self._decoding[request]
        self._held -= held + generated
        request.finish_step = -1
        request.generated += generated
        block = self.scheduling.block
        if not request.reserved:
            request.own += -(-(held + generated) // block) - -(-held // block)
        return held + generated

    def _finish(self, request: Request) -> None:
        held = self._stop_decoding(request)
        request.finish = self.now
        if self._memory.tree is not None:
            self._memory.share(request, held)
        self._queue.served(request, request.output)
        self._memory.release(request)
        self._leave(request, self)

    def _make_room(self) -> bool:
        """Preempt until every decoding request has the block that its next token needs; whether any had to give way."""
        growth, memory = self._growth, self._memory
        if memory.capacity - memory.used >= len(self._decoding) * growth.width:
            return False  # there is one for each
        before = self.preemptions
        while growth.blocks(self._step, 1) > memory.available():
            self._preempt(max([*self._decoding, *self._prefilling], key=self._seniority))
        return self.preemptions > before

    def _seniority(self, request: Request) -> tuple[int, float, int]:
        """The order in which requests keep their places; the last one gives way."""
        return (request.priority if self.scheduling.queue == "priority" else 0, request.arrival, request.id)

    def _preempt(self, request: Request) -> None:
        self.preemptions += 1
        request.preemptions += 1
        if request in self._prefilling:
            del self._prefilling[request]
            request.done = 0
        else:
            held = self._stop_decoding(request)
            if self.scheduling.preempt == "swap" and self._host_free >= held:
                self._host_free -= held
                request.swapped = held
                request.target = request.done = held
                self._moving += self.replica.swap_seconds(held)
            else:
                request.target = request.input + request.generated
                request.done = 0
        self._memory.release(request)
        self._queue.push(request)
