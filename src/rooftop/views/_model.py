"""A model: parameters, FLOPs, KV cache, activations, as tables and as JSON; several models side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rooftop.training import POLICIES, remat
from rooftop.transformer import (
    MLP,
    Architecture,
    Attention,
    Beside,
    CompressedAttention,
    Custom,
    DeltaNet,
    Flops,
    LatentAttention,
    Layer,
    LinearAttention,
    Mamba1,
    Mamba2,
    MoE,
    Recurrence,
    ShortConvolution,
    axis_size,
    flops_per_token,
    kv_bytes_per_token,
    kv_cache_bytes,
    parameters,
    programs,
    weight_bytes,
)
from rooftop.units import dtype_bytes, format_bytes, format_count, format_flops
from rooftop.views._terminal import bar, group, heading, lines, table

if TYPE_CHECKING:
    from rich.console import RenderableType

_NEVER = float("inf")


def saved_bytes_per_token(arch: Architecture, seq: int, policy: str) -> float:
    """Activation bytes that one token leaves behind for the backward pass, over all layers."""
    total = 0.0
    for block in programs(arch, seq).blocks:
        program = block.program
        for name in remat(program, policy).saved:
            array = program.array(name)
            size = 1.0
            for axis in array.axes:
                size *= axis_size(program, axis)
            total += block.count * size * dtype_bytes(array.dtype) / seq
    return total


def overtakes(arch: Architecture, what: Callable[[Flops], float]) -> float:
    """Sequence length from which the exact attention products cost more FLOPs than `what` (which knows no length)."""
    one, two = flops_per_token(arch, 4096), flops_per_token(arch, 8192)
    goal = what(one)
    if not goal or not one.attention:
        return _NEVER
    if abs(two.attention / one.attention * 4097 / 8193 - 1) < 1e-9:
        return goal / (one.attention / 4097) - 1  # attention grows with T + 1
    low, high = 1.0, 2.0**34
    if flops_per_token(arch, int(high)).attention < goal:
        return _NEVER
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if flops_per_token(arch, int(middle)).attention < goal else (low, middle)
    return high


def _matmuls(flops: Flops) -> float:
    return flops.matmul


def _mlp(flops: Flops) -> float:
    return sum(flops.parts.get(part, 0.0) for part in ("mlp", "experts", "shared_experts", "router"))


def model_assumptions(arch: Architecture, seq: int) -> list[str]:
    """What the numbers take for granted."""
    moe = arch.experts
    found = [
        "FLOPs: 2 for each multiply-add; training is three times the forward pass; matmuls with weights, the embedding is a lookup",
        f"attention FLOPs are given at {seq} tokens, exactly for the causal mask and by the book's convention (not halved)",
        "KV cache in bf16; activations in bf16, saved by FlashAttention without scores",
    ]
    if moe is not None:
        load = (
            "dropless with even load" if moe.capacity_factor == 1 else f"a capacity factor of {moe.capacity_factor:g}"
        )
        found.append(
            f"each of {moe.experts} experts sees 1 of {moe.experts / moe.active:g} tokens: its critical batch, in tokens of the"
            f" model, is {moe.experts / moe.active:g} times that of a dense layer"
        )
        found.append(f"experts: {load}; active parameters include the embedding table, which publishers may leave out")
    if arch.towers:
        found.append(
            "FLOPs and active parameters are those of a token of text: towers for other senses are not met by it"
        )
    if arch.extra_heads:
        found.append(
            f"{len(arch.extra_heads)} heads that predict further ahead are counted beside the total, not in it"
        )
    if any(isinstance(m, Recurrence) for m in arch.mixers):
        found.append("recurrences: FLOPs of the chunked form; states in f32, of fixed size for each sequence")
    return [*found, f"source: {arch.source or 'given inline'}" + (f", {arch.date}" if arch.date else ""), *arch.notes]


def model_json(arch: Architecture, seq: int) -> dict[str, Any]:
    """All counts of a model."""
    count, flops = parameters(arch), flops_per_token(arch, seq)
    embedding = count.parts.get("embedding", 0) if not arch.tied else 0
    return {
        "name": arch.name,
        "architecture": _described(arch),
        "parameters": {
            "total": count.total, "active": count.active, "active_without_embedding": count.active - embedding,
            "parts": dict(count.parts), "beside": dict(count.beside),
        },
        "weight_bytes": {"total": sum(weight_bytes(arch).values()), "parts": weight_bytes(arch), "format": arch.quantization or "bf16"},
        "flops_per_token": {"forward": flops.matmul, "training": 3 * flops.matmul, "parts": dict(flops.parts)},
        "attention_flops_per_token": {
            "seq": seq, "forward": flops.attention, "training": 3 * flops.attention, "forward_book": flops.attention_book,
        },
        "recurrence_flops_per_token": {"forward": flops.scan, "training": 3 * flops.scan},
        "kv_bytes_per_token": kv_bytes_per_token(arch),
        "kv_cache_bytes": {str(n): kv_cache_bytes(arch, n) for n in _lengths(arch)},
        "saved_activation_bytes_per_token": {p: saved_bytes_per_token(arch, seq, p) for p in POLICIES},
        "attention_overtakes_at_tokens": _finite(overtakes(arch, _matmuls)),
        "attention_overtakes_mlp_at_tokens": _finite(overtakes(arch, _mlp)),
        "assumptions": model_assumptions(arch, seq),
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return value if value < _NEVER else None


def _described(arch: Architecture) -> dict[str, Any]:
    first, part, moe = arch.attention, arch.feed_forward, arch.experts
    found: dict[str, Any] = {"layers": arch.layers, "d_model": arch.d_model, "vocab": arch.vocab, "tied": arch.tied}
    if first is not None:
        found |= {"heads": first.heads, "kv_heads": first.kv_heads, "head_dim": first.head_dim}
    if isinstance(part, MLP | MoE):
        found |= {"d_ff": part.d_ff, "gated": part.gated}
    if moe is not None:
        found |= {
            "experts": moe.experts,
            "tokens_per_expert": moe.active / moe.experts,
            "active_experts": moe.active,
            "expert_d_ff": moe.d_ff,
            "shared_d_ff": moe.shared_d_ff,
        }
    if arch.encoder:
        found["encoder_layers"] = len(arch.encoder)
    return found | {
        "kinds": [
            {"count": n, "mixer": _mixer_text(k.mixer), "feed_forward": _part_text(k)}
            for k, n in Counter(arch.stack).items()
        ]
    }


def _lengths(arch: Architecture) -> list[int]:
    most = max(arch.max_seq, 131072)
    return [n for n in (1024, 4096, 16384, 65536, 131072, 1048576) if n <= most]


def _mixer_text(mixer: object) -> str:
    match mixer:
        case None:
            return ""
        case Custom():
            return mixer.name
        case Attention():
            kind = "MHA" if mixer.kv_heads == mixer.heads else ("MQA" if mixer.kv_heads == 1 else "GQA")
            limit = (
                f", window of {mixer.window}" if mixer.window else (f", chunks of {mixer.chunk}" if mixer.chunk else "")
            )
            extras = [
                text for there, text in (
                    (mixer.qk_norm, "QK-norm"), (mixer.bias, "biases"), (mixer.sinks, "sinks"), (mixer.gate, "output gate"),
                    (mixer.values == "keys", "values are keys"), (mixer.indexer, "chosen keys"), (mixer.keys == "memory", "keys of another input"),
                    (not mixer.causal and mixer.keys != "memory", "both directions"),
                ) if there
            ]  # fmt: skip
            sizes = f"N={mixer.heads} heads, K={mixer.kv_heads} KV heads of H={mixer.head_dim}"
            if mixer.v_head_dim:
                sizes += f" (values {mixer.v_head_dim})"
            return f"{kind} {sizes}{limit}{' with ' + ', '.join(extras) if extras else ''}"
        case LatentAttention():
            index = f", {mixer.indexer.top} chosen keys" if mixer.indexer else ""
            return (
                f"MLA N={mixer.heads} heads of {mixer.nope_dim}+{mixer.rope_dim} (values {mixer.v_head_dim}),"
                f" latent of {mixer.kv_rank}{f', queries of {mixer.q_rank}' if mixer.q_rank else ''}{index}"
            )
        case CompressedAttention():
            far = f", one entry for {mixer.ratio} tokens" if mixer.ratio else ""
            index = f", {mixer.indexer.top} chosen" if mixer.indexer else ""
            return f"compressed attention N={mixer.heads} heads of H={mixer.head_dim}, window of {mixer.window}{far}{index}"
        case DeltaNet():
            kind = "Kimi delta attention" if mixer.decay == "channel" else "gated delta rule"
            return (
                f"{kind} {mixer.heads} key heads of {mixer.head_dim}, {mixer.v_heads} value heads of {mixer.v_head_dim}"
            )
        case Mamba2():
            return f"Mamba-2 {mixer.heads} heads of {mixer.head_dim}, {mixer.groups} groups, state of {mixer.state}"
        case ShortConvolution():
            return f"gated convolution {mixer.width:,} channels, {mixer.taps} taps"
        case LinearAttention():
            return f"linear attention N={mixer.heads} heads of H={mixer.head_dim}"
        case Beside():
            return " beside ".join(_mixer_text(m) for m in mixer.mixers)
        case Mamba1():
            return f"Mamba {mixer.inner:,} channels, state of {mixer.state}"
    return type(mixer).__name__


def _part_text(layer: Layer) -> str:
    part = layer.feed_forward
    if isinstance(part, MLP):
        return f"MLP F={part.d_ff:,} ({'gate, up, down' if part.gated else 'up, down'})"
    if isinstance(part, MoE):
        beside = f" + shared {part.shared_d_ff:,}" if part.shared_d_ff else ""
        beside += f" + MLP F={part.dense.d_ff:,}" if part.dense else ""
        latent = f" in a projection of {part.latent:,}" if part.latent else ""
        return f"{part.active} of E={part.experts} experts F={part.d_ff:,}{latent}{beside}"
    return part.name if part is not None else ""


def _drawing(arch: Architecture) -> str:
    """The model as a column of text, from tokens to logits."""
    rows = [f"tokens -> embedding V={arch.vocab:,} x D={arch.d_model:,}{' (tied)' if arch.tied else ''}"]
    if arch.encoder:
        rows += _layers(arch.encoder, "encoder layers")
    rows += _layers(arch.stack, "layers" if not arch.encoder else "decoder layers")
    end = {"lm": f"logits V={arch.vocab:,}", "pooler": "pooling layer", "none": "output"}[arch.head]
    rows.append(f"  -> {'norm -> ' if arch.final_norm else ''}{end}")
    rows += [f"beside: {t.name} tower, {len(t.stack)} layers of D={t.d_model:,}" for t in arch.towers]
    if arch.extra_heads:
        rows.append(f"beside: {len(arch.extra_heads)} layers that predict further ahead")
    return "\n".join(rows)


def _layers(stack: Sequence[Layer], title: str) -> list[str]:
    kinds = Counter(stack)
    rows = [f"  -> {len(stack)} {title}"]
    for layer, count in kinds.items():
        mixer, part = _mixer_text(layer.mixer), _part_text(layer)
        before = "norm -> " if layer.norms in ("pre", "both", "sandwich") else ""
        after = {"post": " -> norm", "both": " -> norm"}.get(layer.norms, "")
        plus = "+ -> norm" if layer.norms == "after" else "+"
        lead = f"       {count} x " if len(kinds) > 1 else "       "
        texts = [t for t in (mixer, f"cross-attention {layer.cross.heads} heads" if layer.cross else "", part) if t]
        if layer.streams > 1:
            plus = f"mixed into {layer.streams} streams"
        if layer.parallel:
            rows.append(f"{lead}norm -> {' and '.join(texts)} in parallel -> +")
            continue
        for i, text in enumerate(texts or ["nothing"]):
            first = "norm -> " if layer.norms == "later" and i else before
            rows.append(f"{lead if i == 0 else ' ' * len(lead)}{first}{text}{after} -> {plus}")
    return rows


def model_text(arch: Architecture, seq: int) -> RenderableType:
    """A model for a person."""
    count, flops = parameters(arch), flops_per_token(arch, seq)
    stored = weight_bytes(arch)
    parts = sorted(count.parts.items(), key=lambda kv: -kv[1])
    top = parts[0][1]
    rows = [(n, format_count(v), f"{v / count.total:.1%}", bar(v, top), format_bytes(stored[n])) for n, v in parts]
    rows.append(("total", f"{count.total:,}", "100.0%", "", format_bytes(sum(stored[n] for n in count.parts))))
    if count.active != count.total:
        rows.append(("active", f"{count.active:,}", f"{count.active / count.total:.1%}", "", ""))
    rows += [(f"beside: {n}", format_count(v), "", "", format_bytes(stored[n])) for n, v in count.beside.items()]
    work = [
        (n, format_flops(v), f"{v / flops.forward:.1%}") for n, v in sorted(flops.parts.items(), key=lambda kv: -kv[1])
    ]
    work += [
        ("forward, matmuls with weights", format_flops(flops.matmul), ""),
        (f"attention products at {seq}, causal", format_flops(flops.attention), ""),
        (f"attention products at {seq}, the book's convention", format_flops(flops.attention_book), ""),
        *([("recurrences", format_flops(flops.scan), "")] if flops.scan else []),
        ("training, matmuls with weights", format_flops(3 * flops.matmul), ""),
        ("training, with causal attention", format_flops(3 * flops.forward), ""),
    ]
    caches = [kv_cache_bytes(arch, n) for n in _lengths(arch)]
    cache = [
        (f"{n:,}", format_bytes(kept), format_bytes(kv_cache_bytes(arch, n, "int8")), bar(kept, max(caches)))
        for n, kept in zip(_lengths(arch), caches, strict=True)
    ]
    saved = [(p, format_bytes(saved_bytes_per_token(arch, seq, p))) for p in POLICIES]
    notes = [_note("the MLP", overtakes(arch, _mlp)), _note("all matmuls with weights", overtakes(arch, _matmuls))]
    active = f", {format_count(count.active)} active" if count.active != count.total else ""
    level = "; windows level off" if any(c.window for b in programs(arch, 4096).blocks for c in b.caches) else ""
    return group(
        heading(f"{arch.name}: {count.total:,} parameters{active}"),
        _drawing(arch),
        table("Parameters", ("part", ">number", ">share", "", f">{arch.quantization or 'bf16'}"), rows),
        table(f"FLOPs per token, forward, sequences of {seq}", ("part", ">FLOPs", ">share"), work, caption="; ".join(notes)),
        table("KV cache of one sequence", (">tokens", ">bf16", ">int8", ""), cache,
              caption=f"{format_bytes(kv_bytes_per_token(arch))} a token in bf16{level}"),
        table("Activations saved for the backward pass, a token over all layers", ("remat", ">bytes"), saved),
        lines("Assumptions", model_assumptions(arch, seq)),
    )  # fmt: skip


def _note(what: str, at: float) -> str:
    return f"attention overtakes {what} at {at:,.0f} tokens" if at < 1e9 else f"attention never overtakes {what}"


def compare_json(models: Sequence[Architecture], seq: int) -> dict[str, Any]:
    """Several models, each as `model_json` has it."""
    return {"models": [model_json(arch, seq) for arch in models]}


def compare_text(models: Sequence[Architecture], seq: int) -> RenderableType:
    """Several models side by side: one column each."""
    counts = [parameters(a) for a in models]
    flops = [flops_per_token(a, seq) for a in models]
    experts = [a.experts for a in models]
    rows: list[tuple[str, ...]] = [
        ("parameters", *(format_count(c.total) for c in counts)),
        ("active", *(format_count(c.active) for c in counts)),
        ("layers", *(str(a.layers) for a in models)),
        ("D", *(f"{a.d_model:,}" for a in models)),
        ("kinds of layers", *(str(len(set(a.stack))) for a in models)),
        ("mixer", *(_short(a) for a in models)),
        ("F", *(f"{a.feed_forward.d_ff:,}" if isinstance(a.feed_forward, MLP | MoE) else "-" for a in models)),
        ("experts", *(f"{m.active} of {m.experts}" if m else "-" for m in experts)),
        ("vocabulary", *(f"{a.vocab:,}" for a in models)),
        ("weights", *(format_bytes(sum(weight_bytes(a).values())) for a in models)),
        ("stored as", *(a.quantization or "bf16" for a in models)),
        ("forward FLOPs a token", *(format_flops(f.matmul) for f in flops)),
        (f"attention FLOPs at {seq}", *(format_flops(f.attention) for f in flops)),
        ("KV bytes a token", *(format_bytes(kv_bytes_per_token(a)) for a in models)),
        *((f"KV cache at {n:,}", *(format_bytes(kv_cache_bytes(a, n)) for a in models)) for n in (4096, 131072)),
        ("attention overtakes the MLP at", *(_tokens(overtakes(a, _mlp)) for a in models)),
        ("longest sequence", *(f"{a.max_seq:,}" if a.max_seq else "-" for a in models)),
    ]
    notes = [note for a in models for note in a.notes]
    shown = table("Side by side", ("", *(f">{a.name}" for a in models)), rows)
    return group(shown, lines("Notes", notes)) if notes else shown


def _tokens(value: float) -> str:
    return f"{value:,.0f}" if value < 1e9 else "never"


def _short(arch: Architecture) -> str:
    names: dict[type, str] = {
        Attention: "GQA",
        LatentAttention: "MLA",
        CompressedAttention: "compressed",
        DeltaNet: "delta",
        LinearAttention: "linear",
        Mamba1: "Mamba",
        ShortConvolution: "convolution",
        Mamba2: "Mamba-2",
    }
    return " + ".join(dict.fromkeys(m.name if isinstance(m, Custom) else names[type(m)] for m in arch.mixers)) or "-"
