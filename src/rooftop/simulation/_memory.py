"""The paged KV memory of one engine: blocks of requests, and blocks of the prefix cache."""

from __future__ import annotations

from rooftop.simulation._prefix import PrefixTree
from rooftop.simulation._request import Request


class Memory:
    """`capacity` blocks of `block` tokens, of which `used` are taken: by requests, or by the prefix cache if there is one."""

    def __init__(self, capacity: int, block: int, tree: PrefixTree | None) -> None:
        self.capacity = capacity
        self.block = block
        self.tree = tree
        self.used = 0

    def available(self) -> int:
        """Blocks that are free, or are made free by eviction."""
        free = self.capacity - self.used
        return free if self.tree is None else free + self.tree.idle

    def take(self, blocks: int) -> None:
        """Take blocks, of which `available` has been asked."""
        missing = self.used + blocks - self.capacity
        if missing > 0:
            assert self.tree is not None, "more blocks were taken than there are"
            self.tree.evict(missing)
            self.used -= missing
        self.used += blocks

    def give(self, blocks: int) -> None:
        """Give blocks back."""
        self.used -= blocks

    def admit(self, request: Request, tokens: int, spare: int) -> bool:
        """Take the blocks of a request's first `tokens` tokens, if `spare` blocks remain; start after what is cached."""
        blocks = -(-tokens // self.block)
        tree = self.tree
        if tree is None:
            if blocks + spare > self.capacity - self.used:
                return False
            self.used += blocks
            request.own = blocks
            return True
        node, hit = None, 0
        if request.done < request.target:  # at least one token must be computed, to have its logits
            parts = request.segments(self.block, request.target)
            hit = tree.match(parts, (request.target - 1) // self.block)
            node = tree.lock(parts, hit)
        if blocks - hit + spare > self.available():
            if node is not None:
                tree.unlock(node)
            return False
        self.take(blocks - hit)
        request.own = blocks - hit
        request.node = node
        request.done = max(request.done, hit * self.block)
        return True

    def share(self, request: Request, tokens: int) -> None:
        """Put a request's first `tokens` tokens into the prefix cache; blocks that it has already are given back."""
        tree = self.tree
        if tree is None or request.node is None:
            return
        before = request.node.stop
        request.node, taken = tree.extend(request.segments(self.block, tokens), request.node)
        covered = request.node.stop - before
        request.own -= covered
        self.used -= covered - taken

    def release(self, request: Request) -> None:
        """Give all blocks of a request back; what is in the prefix cache stays until its room is needed."""
        self.used -= request.own
        request.own = 0
        if request.node is not None:
            assert self.tree is not None
            self.tree.unlock(request.node)
            request.node = None
