"""A model: parameters, FLOPs, KV cache, activations, as tables and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.arrays import Size
from rooftop.training import POLICIES, remat
from rooftop.transformer import (
    Architecture,
    flops_per_token,
    kv_bytes_per_token,
    kv_cache_bytes,
    parameters,
    programs,
)
from rooftop.units import dtype_bytes, format_bytes, format_count, format_flops
from rooftop.views._terminal import bar, group, heading, lines, table

if TYPE_CHECKING:
    from rich.console import RenderableType


def saved_bytes_per_token(arch: Architecture, seq: int, policy: str) -> float:
    """Activation bytes that one token leaves behind for the backward pass, over all layers."""
    total = 0.0
    for block in programs(arch, seq).blocks:
        program = block.program
        sizes = {"B": 1.0, **{n: float(s) for n, s in program.axes.items() if not isinstance(s, Size)}}
        for name in remat(program, policy).saved:
            array = program.array(name)
            total += block.count * float(Size.of(array.axes)(sizes)) * dtype_bytes(array.dtype) / seq
    return total


def overtakes(arch: Architecture) -> float:
    """Sequence length from which the exact causal attention products cost more FLOPs than all matmuls with weights."""
    one = flops_per_token(arch, 4096)
    if any(arch.windows):
        low, high = 1.0, 2.0**34
        if flops_per_token(arch, int(high)).attention < one.matmul:
            return float("inf")
        while high / low > 1.001:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if flops_per_token(arch, int(middle)).attention < one.matmul else (low, middle)
        return high
    # attention grows with T + 1
    return one.matmul / (one.attention / 4097) - 1


def model_assumptions(arch: Architecture, seq: int) -> list[str]:
    """What the numbers take for granted."""
    return [
        "FLOPs: 2 for each multiply-add; training is three times the forward pass; matmuls with weights, the embedding is a lookup",
        f"attention FLOPs are given at {seq} tokens, exactly for the causal mask and by the book's convention (not halved)",
        "KV cache in bf16; activations in bf16, saved by FlashAttention without scores",
        f"source: {arch.source or 'given inline'}" + (f", {arch.date}" if arch.date else ""),
        *arch.notes,
    ]


def model_json(arch: Architecture, seq: int) -> dict[str, Any]:
    """All counts of a model."""
    count, flops = parameters(arch), flops_per_token(arch, seq)
    return {
        "name": arch.name,
        "architecture": {
            "layers": arch.layers, "d_model": arch.d_model, "heads": arch.heads, "kv_heads": arch.kv_heads,
            "head_dim": arch.head_dim, "d_ff": arch.d_ff, "vocab": arch.vocab, "gated": arch.gated, "tied": arch.tied,
        },
        "parameters": {"total": count.total, "active": count.active, "parts": dict(count.parts)},
        "flops_per_token": {"forward": flops.matmul, "training": 3 * flops.matmul},
        "attention_flops_per_token": {
            "seq": seq, "forward": flops.attention, "training": 3 * flops.attention, "forward_book": flops.attention_book,
        },
        "kv_bytes_per_token": kv_bytes_per_token(arch),
        "kv_cache_bytes": {str(n): kv_cache_bytes(arch, n) for n in _lengths(arch)},
        "saved_activation_bytes_per_token": {p: saved_bytes_per_token(arch, seq, p) for p in POLICIES},
        "attention_overtakes_at_tokens": overtakes(arch),
        "assumptions": model_assumptions(arch, seq),
    }  # fmt: skip


def _lengths(arch: Architecture) -> list[int]:
    most = max(arch.max_seq, 131072)
    return [n for n in (1024, 4096, 16384, 65536, 131072, 1048576) if n <= most]


def _drawing(arch: Architecture) -> str:
    kinds: dict[int, int] = {}
    for w in arch.windows or (0,) * arch.layers:
        kinds[w] = kinds.get(w, 0) + 1
    layers = ", ".join(f"{n} with {'full attention' if not w else f'a window of {w}'}" for w, n in kinds.items())
    kind = "MHA" if arch.kv_heads == arch.heads else ("MQA" if arch.kv_heads == 1 else "GQA")
    extras = [
        x for flag, x in ((arch.qk_norm, "QK-norm"), (arch.qkv_bias, "biases"), (arch.post_norms, "post-norms")) if flag
    ]
    mlp = "gate, up, down" if arch.gated else "up, down"
    return (
        f"tokens -> embedding V={arch.vocab:,} x D={arch.d_model:,}{' (tied)' if arch.tied else ''}\n"
        f"  -> {arch.layers} layers ({layers})\n"
        f"       norm -> {kind} N={arch.heads} heads, K={arch.kv_heads} KV heads of H={arch.head_dim}"
        f"{' with ' + ', '.join(extras) if extras else ''} -> +\n"
        f"       norm -> MLP F={arch.d_ff:,} ({mlp}) -> +\n"
        f"  -> norm -> logits V={arch.vocab:,}"
    )


def model_text(arch: Architecture, seq: int) -> RenderableType:
    """A model for a person."""
    count, flops = parameters(arch), flops_per_token(arch, seq)
    parts = sorted(count.parts.items(), key=lambda kv: -kv[1])
    top = parts[0][1]
    rows = [(n, format_count(v), f"{v / count.total:.1%}", bar(v, top)) for n, v in parts]
    rows.append(("total", f"{count.total:,}", "100.0%", ""))
    work = [
        (n, format_flops(v), f"{v / flops.forward:.1%}") for n, v in sorted(flops.parts.items(), key=lambda kv: -kv[1])
    ]
    work += [
        ("forward, matmuls with weights", format_flops(flops.matmul), ""),
        (f"attention products at {seq}, causal", format_flops(flops.attention), ""),
        (f"attention products at {seq}, the book's convention", format_flops(flops.attention_book), ""),
        ("training, matmuls with weights", format_flops(3 * flops.matmul), ""),
        ("training, with causal attention", format_flops(3 * flops.forward), ""),
    ]
    cache = [
        (f"{n:,}", format_bytes(kv_cache_bytes(arch, n)), format_bytes(kv_cache_bytes(arch, n, "int8")))
        for n in _lengths(arch)
    ]
    kept = [(p, format_bytes(saved_bytes_per_token(arch, seq, p))) for p in POLICIES]
    at = overtakes(arch)
    note = (
        f"attention overtakes all matmuls with weights at {at:,.0f} tokens"
        if at < 1e9
        else "attention never overtakes the matmuls"
    )
    return group(
        heading(f"{arch.name}: {count.total:,} parameters"),
        _drawing(arch),
        table("Parameters", ("part", ">number", ">share", ""), rows),
        table(f"FLOPs per token, forward, sequences of {seq}", ("part", ">FLOPs", ">share"), work, caption=note),
        table("KV cache of one sequence", (">tokens", ">bf16", ">int8"), cache,
              caption=f"{format_bytes(kv_bytes_per_token(arch))} a token in bf16" + ("; windows level off" if any(arch.windows) else "")),
        table("Activations saved for the backward pass, a token over all layers", ("remat", ">bytes"), kept),
        lines("Assumptions", model_assumptions(arch, seq)),
    )  # fmt: skip
