"""Model parts and layers from scopes: `jit(f)/transpose(jvp(model))/layers_3/mlp/dot_general`, `DecoderLayer_3/MLP_3`."""

from __future__ import annotations

import functools
import re

_WRAPPER = re.compile(
    r"^(?:jit|pjit|jvp|transpose|vmap|remat|checkpoint|custom_jvp|custom_vjp|named|pmap|shard_map)\((.*)\)$"
)
_NOISE = {
    "main",
    "while",
    "body",
    "cond",
    "closed_call",
    "checkpoint",
    "rematted_computation",
    "remat",
    "custom_vjp_call",
    "custom_jvp_call",
}
_LAYER = re.compile(r"(?:layers?|blocks?|h|stage|encoder|decoder)\w*?[_.\[]?(\d{1,4})\]?$", re.IGNORECASE)
_NUMBER = re.compile(r"[_.]?\d+\b|\[\d+\]")


@functools.lru_cache(maxsize=65536)
def part_and_layer(scope: str, xla: bool) -> tuple[str, str]:
    """(part, layer) of a scope; numbers are left out of parts so that layers add up. ("", "") for none.

    xla: the last piece of the scope is the primitive, not a part.
    """
    pieces = [_bare(p) for p in _split(scope.rstrip(":"))]
    if xla and pieces:
        pieces = pieces[1:-1] if len(pieces) > 1 else []
    kept = [p for p in pieces if p and p not in _NOISE and "->" not in p]
    layer = ""
    for piece in kept:
        match = _LAYER.search(piece)
        if match is not None:
            layer = match[1]
    names: list[str] = []
    for piece in kept:
        name = _NUMBER.sub("", piece)
        if name and (not names or names[-1] != name):
            names.append(name)
    return "/".join(names[-3:]), layer


def _split(scope: str) -> list[str]:
    """Pieces between slashes outside of brackets."""
    pieces, depth, current = [], 0, ""
    for c in scope[:2000]:
        depth += (c in "([") - (c in ")]")
        if c == "/" and depth <= 0:
            pieces.append(current)
            current = ""
        else:
            current += c
    return [*pieces, current]


def _bare(piece: str) -> str:
    for _ in range(8):
        match = _WRAPPER.match(piece)
        if match is None:
            return piece
        piece = match[1]
    return piece
