"""The prefix cache: a radix tree of prompts, counted in KV blocks, evicted from the leaves least recently used."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from rooftop.simulation._request import Part


class Node:
    """The blocks from `start` to `stop` of prompts that begin alike. `refs` requests hold it."""

    __slots__ = ("children", "name", "parent", "refs", "start", "stop", "used")

    def __init__(self, name: str | int, start: int, stop: int, parent: Node | None) -> None:
        self.name = name
        self.start = start
        self.stop = stop
        self.parent = parent
        self.children: dict[str | int, Node] = {}
        self.refs = 0
        self.used = 0


class PrefixTree:
    """`held` blocks are in the tree, `idle` of them held by no request."""

    def __init__(self) -> None:
        self.root = Node("", 0, 0, None)
        self.held = 0
        self.idle = 0
        self._clock = 0
        self._nodes = 0
        self._leaves: list[tuple[int, int, Node]] = []  # a heap; an entry is stale when its node was used since
        self._pushed = 0

    def match(self, parts: Sequence[Part], most: int) -> int:
        """Blocks of a prompt, at most `most`, that the tree holds."""
        node, at = self.root, 0
        for name, end in parts:
            end = min(end, most)
            while at < end:
                child = node.children.get(name)
                if child is None:
                    return at
                if child.stop > end:  # another prompt goes on with what this one does not have
                    return end
                node, at = child, child.stop
        return at

    def lock(self, parts: Sequence[Part], most: int) -> Node:
        """Hold the blocks that `match` counts; the node returned ends with the last of them."""
        node = self._walk(parts, most)
        self._clock += 1
        at: Node | None = node
        while at is not None and at.parent is not None:
            if at.refs == 0:
                self.idle -= at.stop - at.start
            at.refs += 1
            at.used = self._clock
            at = at.parent
        return node

    def unlock(self, node: Node) -> None:
        """Hold them no more; they stay until their room is needed."""
        self._clock += 1
        at: Node | None = node
        while at is not None and at.parent is not None:
            at.refs -= 1
            at.used = self._clock
            if at.refs == 0:
                self.idle += at.stop - at.start
                if not at.children:
                    self._push(at)
            at = at.parent

    def extend(self, parts: Sequence[Part], held: Node) -> tuple[Node, int]:
        """Hold all of a prompt instead of `held`; returns its last node and how many blocks the tree has taken over."""
        before = self.held
        node = self._walk(parts, parts[-1][1] if parts else 0)
        at = node.stop
        for name, end in parts:
            if end > at:
                child = Node(name, at, end, node)
                node.children[name] = child
                self.held += end - at
                self.idle += end - at
                self._nodes += 1
                node, at = child, end
        taken = self.held - before
        locked = self.lock(parts, at)
        self.unlock(held)
        return locked, taken

    def evict(self, blocks: int) -> None:
        """Drop so many idle blocks, those of the least recently used leaves first."""
        while blocks > 0:
            used, _, node = heapq.heappop(self._leaves)
            if node.used != used or node.refs or node.children or node.stop == node.start:
                continue
            parent = node.parent
            assert parent is not None
            dropped = min(blocks, node.stop - node.start)
            blocks -= dropped
            node.stop -= dropped
            self.held -= dropped
            self.idle -= dropped
            if node.stop > node.start:
                self._push(node)
                continue
            del parent.children[node.name]
            self._nodes -= 1
            if parent.refs == 0 and not parent.children and parent.parent is not None:
                self._push(parent)

    def _walk(self, parts: Sequence[Part], most: int) -> Node:
        """The node that ends with the last block that is shared; nodes are split where prompts part."""
        node = self.root
        for name, end in parts:
            end = min(end, most)
            while node.stop < end:
                child = node.children.get(name)
                if child is None:
                    return node
                node = child if child.stop <= end else self._split(child, end)
        return node

    def _split(self, node: Node, at: int) -> Node:
        parent = node.parent
        assert parent is not None
        upper = Node(node.name, node.start, at, parent)
        upper.refs, upper.used = node.refs, node.used
        upper.children[node.name] = node
        parent.children[node.name] = upper
        node.parent, node.start = upper, at
        self._nodes += 1
        return upper

    def _push(self, node: Node) -> None:
        self._pushed += 1
        heapq.heappush(self._leaves, (node.used, self._pushed, node))
        if len(self._leaves) > 1000 + 4 * self._nodes:  # drop the stale ones, so that memory stays bounded
            self._leaves = [e for e in self._leaves if e[2].used == e[0] and not e[2].refs and not e[2].children]
            heapq.heapify(self._leaves)
