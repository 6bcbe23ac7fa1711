"""The same model with another kind of attention."""

from __future__ import annotations

import re
from dataclasses import replace

from rooftop.codesign._budget import renamed
from rooftop.errors import InputError
from rooftop.transformer import Architecture, Attention, Beside, LatentAttention, Layer

KINDS = ("mha", "gqa-N", "mqa", "mla", "mla-RANK", "window-TOKENS")
_KIND = re.compile(r"(mha|mqa|mla|(gqa|mla|window)-(\d{1,8}))\Z")


def with_attention(model: Architecture, kind: str) -> Architecture:
    """A model whose attention is of one of KINDS in all layers that have softmax attention. Raises InputError.

    mha: as many KV heads as heads; gqa-8: eight KV heads; mqa: one; window-4096: each query sees the last 4096 keys. mla: keys and
    values of each head made from a vector of rank 4 head dimensions and one rotated key of half a head dimension, which are all
    that is cached (DeepSeek-V2, 2024, section 2.1); queries straight from the input; mla-512: of that rank. Heads stay; norms
    and biases of projections go with the kind that had them.
    """
    match = _KIND.match(kind)
    if match is None:
        raise InputError(f"unknown attention {kind[:40]!r}; use {', '.join(KINDS)}", field="attention")
    word, number = (match[2], int(match[3])) if match[2] else (match[1], 0)
    changed = 0

    def of(part: object) -> object:
        nonlocal changed
        if isinstance(part, Beside):
            return Beside(tuple(of(each) for each in part.mixers))  # type: ignore[misc]
        if isinstance(part, Attention) and part.keys == "own":
            changed += 1
            return _converted(part, word, number)
        if isinstance(part, LatentAttention) and part.indexer is None:
            changed += 1
            width = part.v_head_dim
            return _converted(Attention(part.heads, part.heads, width), word, number) if word != "mla" else (
                replace(part, kv_rank=number) if number else part
            )  # fmt: skip
        return part

    def layer(each: Layer) -> Layer:
        return replace(each, mixer=of(each.mixer))  # type: ignore[arg-type]

    once = {each: layer(each) for each in dict.fromkeys((*model.stack, *model.extra_heads))}
    if not changed:
        raise InputError(
            f"{model.name} has no plain or latent attention that could become {kind}; leave it out", field="attention"
        )
    return renamed(
        replace(
            model,
            stack=tuple(once[one] for one in model.stack),
            extra_heads=tuple(once[one] for one in model.extra_heads),
        ),
        f"{model.name}[attention={kind}]",
    )


def _converted(part: Attention, word: str, number: int) -> Attention | LatentAttention:
    if word == "mla":
        rank, rotated = number or 4 * part.head_dim, max(2, part.head_dim // 2)
        values = part.v_head_dim or part.head_dim
        return LatentAttention(part.heads, 0, rank, part.head_dim, rotated, values, gate=part.gate)
    if word == "window":
        if not number:
            raise InputError("a window of 0 tokens; give 1 or more, such as window-4096", field="attention")
        return replace(part, window=number, chunk=0)
    kv_heads = {"mha": part.heads, "mqa": 1}.get(word, number)
    if kv_heads < 1 or part.heads % kv_heads:
        raise InputError(
            f"{kv_heads} KV heads do not divide {part.heads} heads; give a divisor, such as gqa-{max(1, part.heads // 8)}",
            field="attention",
        )
    return replace(part, kv_heads=kv_heads)
