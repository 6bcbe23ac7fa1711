"""One request, from its arrival to its last token."""

from __future__ import annotations

from typing import Any

#: A part of a prompt: what its tokens are, by any name, and where it ends in the prompt. Two prompts share tokens for as
#: long as their parts have the same names; neighbours of one name are one part.
Part = tuple[str | int, int]


class Request:
    """What a client asks for, and how far an engine has come with it.

    `target` tokens must be in the KV cache before a token can be generated, `done` are; `generated` of `output` tokens were
    when the request began to decode (again). Times are in seconds since the start, NaN before they are known.
    """

    __slots__ = (
        "admitted",
        "arrival",
        "cached",
        "client",
        "done",
        "drawn",
        "finish",
        "finish_step",
        "first",
        "generated",
        "growing",
        "id",
        "input",
        "node",
        "output",
        "own",
        "parts",
        "preemptions",
        "priority",
        "replica",
        "reserved",
        "start_step",
        "swapped",
        "target",
    )  # fmt: skip

    def __init__(
        self, id: int, arrival: float, input: int, output: int, parts: tuple[Part, ...] = (), priority: int = 0,
        client: str = "",
    ) -> None:  # fmt: skip
        self.id = id
        self.arrival = arrival
        self.input = input
        self.output = output
        self.parts = parts
        self.priority = priority
        self.client = client
        self.target = input
        self.done = 0
        self.generated = 0
        self.own = 0  # blocks of its own, not shared through the prefix cache
        self.reserved = False  # its blocks were all taken at admission
        self.growing = 0  # where in a block it stands, while it decodes
        self.node: Any = None  # the deepest node of the prefix cache that it holds
        self.drawn: Any = None  # with speculation, tokens after each step
        self.swapped = 0  # tokens in host memory
        self.start_step = 0
        self.finish_step = -1
        self.preemptions = 0
        self.cached = 0
        self.replica = -1
        self.admitted = self.first = self.finish = float("nan")

    def order(self) -> tuple[float, int]:
        """Its place in the order of arrival."""
        return self.arrival, self.id

    def segments(self, block: int, tokens: int) -> list[Part]:
        """Its first `tokens` tokens as parts that end in whole blocks. What no other request can share bears its own name."""
        found: list[Part] = []
        last = tokens // block
        for name, end in self.parts:
            stop = min(end // block, last)
            if found and name == found[-1][0]:
                found[-1] = (name, stop)
            elif not found or stop > found[-1][1]:
                found.append((name, stop))
        if not found or found[-1][1] < last:
            found.append((-1 - self.id, last))
        return [part for part in found if part[1] > 0]
