"""Waiting requests, in the order of a policy."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Protocol

from rooftop.simulation._request import Request


class Queue(Protocol):
    """Requests that wait, `size` of them. `first` is the next to be admitted; nothing overtakes it, however small."""

    size: int

    def push(self, request: Request) -> None:
        """Add a request; one that was preempted gets its old place."""

    def first(self) -> Request:
        """The next request."""

    def pop(self) -> Request:
        """Remove the next request, to serve it."""

    def served(self, request: Request, tokens: int) -> None:
        """So many tokens were generated for a request."""


class Ordered:
    """Requests in the order of a key that does not change while they wait."""

    def __init__(self, key: Callable[[Request], tuple[Any, ...]]) -> None:
        self._key = key
        self.size = 0
        self._heap: list[tuple[tuple[Any, ...], Request]] = []

    def push(self, request: Request) -> None:
        """Add a request."""
        heapq.heappush(self._heap, (self._key(request), request))
        self.size += 1

    def first(self) -> Request:
        """The next request."""
        return self._heap[0][1]

    def pop(self) -> Request:
        """Remove the next request."""
        self.size -= 1
        return heapq.heappop(self._heap)[1]

    def served(self, request: Request, tokens: int) -> None:
        """The order does not depend on it."""


class Fair:
    """The client that was served least is next: virtual token counters (Sheng et al., 2024, "Fairness in Serving LLMs").

    A prompt token counts 1, a generated one 2, as in the paper; a prompt is counted when it is admitted, generated
    tokens when the request finishes, where the paper counts each as it comes. A client that had nothing
    waiting starts at the least counter of those who had, so that it cannot save up.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, Ordered] = {}
        self._counters: dict[str, float] = {}
        self.size = 0
        self._next: str | None = None

    def push(self, request: Request) -> None:
        """Add a request."""
        if request.client not in self._waiting:
            least = min((self._counters[c] for c in self._waiting), default=0.0)
            self._counters[request.client] = max(self._counters.get(request.client, 0.0), least)
            self._waiting[request.client] = Ordered(Request.order)
        self._waiting[request.client].push(request)
        self.size += 1
        self._next = None

    def first(self) -> Request:
        """The next request of the client with the least counter."""
        if self._next is None:
            self._next = min(self._waiting, key=lambda c: (self._counters[c], self._waiting[c].first().order()))
        return self._waiting[self._next].first()

    def pop(self) -> Request:
        """Remove the next request, and count its prompt."""
        client = self.first().client
        request = self._waiting[client].pop()
        if not self._waiting[client].size:
            del self._waiting[client]
        if not request.preemptions:
            self._counters[client] += request.input
        self.size -= 1
        self._next = None
        return request

    def served(self, request: Request, tokens: int) -> None:
        """Count generated tokens."""
        self._counters[request.client] = self._counters.get(request.client, 0.0) + 2 * tokens
        self._next = None


#: Policy -> an empty queue.
QUEUES: dict[str, Callable[[], Queue]] = {
    "fcfs": lambda: Ordered(Request.order),
    "priority": lambda: Ordered(lambda r: (r.priority, r.arrival, r.id)),
    "shortest": lambda: Ordered(lambda r: (r.target, r.arrival, r.id)),
    "fair": Fair,
}
