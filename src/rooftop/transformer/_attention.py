"""Softmax attention of every kind as named-axis ops: grouped heads, latent, compressed, windows, sparse, cross."""

from __future__ import annotations

from typing import Any

from rooftop.transformer._builder import Builder, Cache
from rooftop.transformer._documents import Seen
from rooftop.transformer._layers import Attention, CompressedAttention, Indexer, LatentAttention

PART = "attention"
_NOTHING: tuple[str, ...] = ()


def attended(seq: int, window: int = 0, chunk: int = 0) -> float:
    """The part of all seq x seq points that causal attention computes: exactly T(T+1)/2 without a limit.

    window: each query sees that many keys at most, itself included. chunk: attention stays inside chunks of so many.
    """
    if 0 < chunk < seq or 0 < window < seq:
        return float(causal_points(seq, window, chunk) / float(seq) ** 2)
    return (seq + 1) / (2 * seq)


def causal_points(tokens: Any, window: int = 0, chunk: int = 0) -> Any:
    """Points that causal attention computes over so many tokens (a number or an array); limits as in `attended`."""
    if chunk:
        whole, rest = tokens // chunk, tokens % chunk
        return (whole * chunk * (chunk + 1) + rest * (rest + 1)) / 2
    if window:
        beyond = (tokens - window) * (tokens > window)
        near = tokens - beyond
        return near * (near + 1) / 2 + beyond * window
    return tokens * (tokens + 1) / 2


def attended_after(before: int, tokens: int, limit: int = 0) -> float:
    """The part of tokens x (before + tokens) points that causal attention computes for tokens that come after `before`
    others; each query sees `limit` keys at most, itself included.
    """
    rising = min(max(limit - before, 0), tokens) if limit else tokens
    return (rising * before + rising * (rising + 1) / 2 + (tokens - rising) * limit) / (tokens * (before + tokens))


def _seen(b: Builder, seq: int, window: int = 0, chunk: int = 0, top: int = 0) -> Seen:
    """The part of all points that is computed. A token that is generated sees what its layer keeps, or the `top` best."""
    if b.context:
        return Seen(attended_after(seq - b.tokens, b.tokens, top or window or chunk))
    plain = attended(seq, top or window, chunk)
    if b.documents is None:
        return Seen(plain)
    return b.documents.seen(lambda n: causal_points(n, top or window, 0 if top else chunk), plain, seq)


def _seen_both_ways(b: Builder, seq: int, window: int) -> Seen:
    """The same where tokens see what comes after them, too; window: so many to each side."""
    plain = min(1.0, (2 * window + 1) / seq) if window else 1.0
    if b.documents is None:
        return Seen(plain)

    def points(n: Any) -> Any:
        return n * (n - (n - 2 * window - 1) * (n > 2 * window + 1)) if window else n * n

    return b.documents.seen(points, plain, seq)


def attention(b: Builder, spec: Attention, y: str, seq: int, prefix: str = "attention") -> str:
    """Self-attention on y[B, T, D], or cross-attention to the encoder's memory[B, S, D]; returns o * w_o [B, T, D].

    Axes: K KV heads, G query heads of one KV head, H head size, Hv value size where it differs.
    """
    sub = "" if prefix == "attention" else f"{prefix}_"
    k_axis, g, h = b.axis("K", spec.kv_heads), b.axis("G", spec.heads // spec.kv_heads), b.axis("H", spec.head_dim)
    hv = b.axis("Hv", spec.v_head_dim) if spec.v_head_dim not in (0, spec.head_dim) else h
    positions = "S" if spec.keys == "memory" else "T"

    def weight(name: str, *axes: str) -> str:
        return b.weight(f"{sub}{name}", *axes)

    def extra(letter: str, norm: bool, heads: tuple[str, ...], size: str) -> tuple[str, ...]:
        bias = (weight(f"b_{letter}", *heads, size),) if letter in spec.bias else ()
        if not norm or not spec.qk_norm:
            return bias
        axes = (size,) if spec.qk_norm == "head" else (*heads, size)
        return (*bias, *b.vectors(f"{sub}{letter}_norm", spec.qk_norm_weights, *axes))

    def mapped(name: str, x: str, more: tuple[str, ...], output: str, axes: tuple[str, ...], flops: float) -> str:
        # a rotation or a bias needs no input again in its backward pass; a norm in the same map does
        made = b.array(f"{sub}{output}", *axes)
        return b.map(f"{prefix}.{name}", (x, *more), made, PART, flops, linear=not spec.qk_norm)

    q0 = b.matmul(f"{prefix}.q", y, weight("w_q", "D", k_axis, g, h), f"{sub}q0", (k_axis, g, h), PART)
    q_more = extra("q", True, (k_axis, g), h)
    stored = spec.keys == "memory" and bool(b.context)
    k0 = v0 = ""
    if spec.keys != "shared" and not stored:
        source = b.input("memory", "B", "S", "D", layout="residual") if spec.keys == "memory" else y

        def made(letter: str, size: str) -> str:
            out = b.array(f"{sub}{letter}0", "B", positions, k_axis, size)
            return b.einsum(f"{prefix}.{letter}", (source, weight(f"w_{letter}", "D", k_axis, size)), out, PART)

        k0 = made("k", h)
        v0 = made("v", hv) if spec.values == "own" else k0
    q = mapped("rotate_q", q0, q_more, "q", ("B", "T", k_axis, g, h), 3.0)
    if spec.keys == "shared" or stored:
        where = {"role": "cache", "layout": "cache"} if b.context else {"role": "input"}
        k = b.array(f"{sub}k", "B", "S", k_axis, h, **where)
        v = b.array(f"{sub}v", "B", "S", k_axis, hv, **where) if spec.values == "own" else k
        if stored:
            b.caches += [Cache(k, (k_axis, h)), Cache(v, (k_axis, hv))]
    else:
        k_more = extra("k", True, (k_axis,), h)
        bias = extra("v", False, (k_axis,), hv)
        if spec.keys == "memory" or spec.causal:
            kept = (spec.window or spec.chunk) if spec.keys == "own" else 0
            k = b.keep(
                f"{prefix}.rotate_k",
                (k0, *k_more),
                f"{sub}k",
                (k_axis, h),
                PART,
                3.0,
                linear=not spec.qk_norm,
                window=kept,
            )
            v = b.keep(
                f"{prefix}.v_keys",
                (v0, *bias),
                f"{sub}v",
                (k_axis, hv),
                PART,
                1.0 if bias else 0.0,
                linear=True,
                window=kept,
            )
        else:
            k = mapped("rotate_k", k0, k_more, "k", ("B", "S", k_axis, h), 3.0)
            values = b.array(f"{sub}v", "B", "S", k_axis, hv)
            v = b.map(f"{prefix}.v_keys", (v0, *bias), values, PART, 1.0 if bias else 0.0, linear=True)
    seen, learned = Seen(1.0), _NOTHING
    if spec.keys != "memory" and spec.causal:
        seen = _seen(b, seq, spec.window, spec.chunk)
    elif not spec.causal:
        seen = _seen_both_ways(b, seq, spec.window)
    if spec.indexer is not None:
        seen, learned = _indexer(b, spec.indexer, y, None, seq)
    if spec.sinks:
        learned += (weight("sinks", k_axis, g),)
    if spec.buckets:
        learned += (weight("relative_bias", b.axis("buckets", spec.buckets), k_axis, g),)
    o = _core(b, prefix, sub, q, k, v, (k_axis, g), (k_axis, g, hv), seen, learned)
    o = _gated(b, spec.gate, y, o, (k_axis, g), hv, prefix, sub)
    if "o" in spec.bias:
        b.late_bias(f"{sub}b_o", "D")
    return b.einsum(f"{prefix}.o", (o, weight("w_o", k_axis, g, hv, "D")), b.residual(f"{prefix}_out"), PART)


def _core(
    b: Builder, prefix: str, sub: str, q: str, k: str, v: str, heads: tuple[str, ...], out: tuple[str, ...],
    seen: Seen, learned: tuple[str, ...], keys: str = "S", tag: str = "",
) -> str:  # fmt: skip
    """softmax(q k) v in one fused kernel."""
    kernel = f"{prefix}{tag}"
    points = ("B", *heads, "T", keys)
    s = b.einsum(
        f"{prefix}.scores{tag}", (q, k), b.array(f"{sub}scores{tag}", *points), PART, fused=kernel, fraction=seen
    )
    p = b.map(
        f"{prefix}.softmax{tag}",
        (s, *learned),
        b.array(f"{sub}weights{tag}", *points),
        PART,
        5.0 * seen.part,
        fused=kernel,
    )
    return b.einsum(
        f"{prefix}.values{tag}", (p, v), b.array(f"{sub}o{tag}", "B", "T", *out), PART, fused=kernel, fraction=seen
    )


def _gated(
    b: Builder, gate: str, y: str, o: str, heads: tuple[str, ...], value: str, prefix: str = "attention", sub: str = ""
) -> str:
    if not gate:
        return o
    axes = (*heads, value) if gate == "full" else heads
    g = b.matmul(f"{prefix}.gate", y, b.weight(f"{sub}w_gate_o", "D", *axes), f"{sub}gate_o", axes, PART)
    return b.map(f"{prefix}.gating", (o, g), b.array(f"{sub}o_gated", "B", "T", *heads, value), PART, 3.0)


def _indexer(b: Builder, spec: Indexer, y: str, compressed: str | None, seq: int) -> tuple[Seen, tuple[str, ...]]:
    """Score all keys with small heads (axes I, J) and choose: the part of all points that the main attention computes,
    and the array of choices.

    DeepSeek-V3.2-Exp, section 2: each query keeps its `top` best keys, so that it computes what a window of `top` would.
    """
    seen = _seen(b, seq, top=spec.top)
    if spec.shared:
        return seen, ()
    i, j = b.axis("I", spec.heads), b.axis("J", spec.head_dim)
    if compressed is None or spec.from_input:
        w_q = b.weight("w_index_q", "D", i, j)
    else:
        w_q = b.weight("w_index_q", "Q", i, j, layout="latent_weight")
    q = b.matmul("indexer.q", y if "D" in b.arrays[w_q].axes else str(compressed), w_q, "index_q", (i, j), PART)
    k0 = b.matmul("indexer.k", y, b.weight("w_index_k", "D", j), "index_k0", (j,), PART)
    norms = b.vectors("index_norm", spec.norm_weights, j)
    k = b.keep("indexer.rotate_k", (k0, *norms), "index_k", (j,), PART, 7.0)
    return seen, (_choose(b, spec, q, k, y, "S", _seen(b, seq), min(spec.top, seq)),)


def _choose(b: Builder, spec: Indexer, q: str, k: str, y: str, keys: str, seen: Seen, top: int) -> str:
    """Scores of all keys by every small head, summed with learned weights; the best `top` are chosen."""
    i = b.axis("I", spec.heads)
    points = b.array("index_heads", "B", "T", i, keys)
    scores = b.einsum("indexer.scores", (q, k), points, PART, fused="indexer", fraction=seen)
    mixed: tuple[str, ...] = (scores,)
    if spec.head_weights:
        weights = b.matmul("indexer.weights", y, b.weight("w_index_heads", "D", i), "index_weights", (i,), PART)
        mixed = (scores, weights)
    chosen = b.array("index_choice", "B", "T", b.axis("Top", top))
    return b.map("indexer.choose", mixed, chosen, PART, 3.0 * spec.heads, fused="indexer")


def latent_attention(b: Builder, spec: LatentAttention, y: str, seq: int) -> str:
    """Multi-head latent attention (DeepSeek-V2, section 2.1).

    Every head has keys of its own, so that K is the number of heads and G is 1. Axes: Q and L, the ranks of queries and
    of keys and values; Hn, the part of a head without rotation; R, the rotated key that all heads share.
    """
    k_axis, g = b.axis("K", spec.heads), b.axis("G", 1)
    hn, r, rank = b.axis("Hn", spec.nope_dim), b.axis("R", spec.rope_dim), b.axis("L", spec.kv_rank)
    hv = b.axis("Hv", spec.v_head_dim)
    source, rows, layout = y, "D", "weight"
    compressed = None
    if spec.q_rank:
        rows, layout = b.axis("Q", spec.q_rank), "latent_weight"
        down = b.matmul("attention.q_down", y, b.weight("w_q_down", "D", rows), "q_down", (rows,), PART)
        latent = b.array("q_latent", "B", "T", rows)
        source = compressed = b.map("attention.q_norm", (down, b.weight("q_norm", rows)), latent, PART, 4.0)
    down = b.matmul("attention.kv_down", y, b.weight("w_kv_down", "D", rank), "kv_down", (rank,), PART)
    rotated = b.matmul("attention.k_shared", y, b.weight("w_k_shared", "D", r), "k_shared", (r,), PART)
    w_k = b.weight("w_k", rank, k_axis, hn, layout="latent_weight")
    w_v = b.weight("w_v", rank, k_axis, hv, layout="latent_weight")
    seen, chosen = _seen(b, seq), _NOTHING
    if spec.indexer is not None:
        seen, chosen = _indexer(b, spec.indexer, y, compressed, seq)
    norm = b.weight("kv_norm", rank)
    latent = b.keep("attention.kv_norm", (down, norm), "kv_latent", (rank,), PART, 4.0)
    k_r = b.keep("attention.rotate_k", (rotated,), "k_r", (r,), PART, 3.0, linear=True)
    if spec.absorbed or b.context:
        q_n = b.matmul(
            "attention.q", source, b.weight("w_q", rows, k_axis, g, hn, layout=layout), "q0", (k_axis, g, hn), PART
        )
        w_q_r = b.weight("w_q_rotated", rows, k_axis, g, r, layout=layout)
        q_r0 = b.matmul("attention.q_rotated", source, w_q_r, "q_r0", (k_axis, g, r), PART)
        q_r = b.map("attention.rotate_q", (q_r0,), b.array("q_r", "B", "T", k_axis, g, r), PART, 3.0, linear=True)
        q = b.matmul("attention.absorb_k", q_n, w_k, "q", (k_axis, g, rank), PART)
        o_latent = _absorbed_core(b, q, q_r, latent, k_r, (k_axis, g), seen, chosen)
        o = b.matmul("attention.absorb_v", o_latent, w_v, "o", (k_axis, g, hv), PART)
    else:
        h = b.axis("H", spec.nope_dim + spec.rope_dim)
        q0 = b.matmul(
            "attention.q", source, b.weight("w_q", rows, k_axis, g, h, layout=layout), "q0", (k_axis, g, h), PART
        )
        q = b.map("attention.rotate_q", (q0,), b.array("q", "B", "T", k_axis, g, h), PART, 3.0, linear=True)
        k_n = b.einsum("attention.k", (latent, w_k), b.array("k_n", "B", "S", k_axis, hn), PART)
        k = b.map("attention.join_k", (k_n, k_r), b.array("k", "B", "S", k_axis, h), PART, 1.0, linear=True)
        v = b.einsum("attention.v", (latent, w_v), b.array("v", "B", "S", k_axis, hv), PART)
        o = _core(b, "attention", "", q, k, v, (k_axis, g), (k_axis, g, hv), seen, chosen)
    o = _gated(b, spec.gate, y, o, (k_axis, g), hv)
    return b.einsum("attention.o", (o, b.weight("w_o", k_axis, g, hv, "D")), b.residual("attention_out"), PART)


def _absorbed_core(
    b: Builder, q: str, q_r: str, keys: str, k_r: str, heads: tuple[str, ...], seen: Seen, chosen: tuple[str, ...]
) -> str:
    """Attention to the compressed vectors themselves, which are keys and values of all heads."""
    points = ("B", *heads, "T", "S")

    def product(name: str, inputs: tuple[str, str], output: str, *axes: str) -> str:
        made = b.array(output, *axes)
        return b.einsum(f"attention.{name}", inputs, made, PART, fused="attention", fraction=seen)

    s = product("scores", (q, keys), "scores", *points)
    s_r = product("scores_rotated", (q_r, k_r), "scores_rotated", *points)
    p = b.map(
        "attention.softmax", (s, s_r, *chosen), b.array("weights", *points), PART, 6.0 * seen.part, fused="attention"
    )
    return product("values", (p, keys), "o_latent", "B", "T", *heads, "L")


def compressed_attention(b: Builder, spec: CompressedAttention, y: str, seq: int) -> str:
    """Attention of DeepSeek-V4: a window of keys and, beside it, entries that each stand for `ratio` tokens.

    K, the number of output groups, and G, the heads of one, are all heads together; the one key-value head has neither.
    The compressor pools `ratio` tokens with learned weights (twice as many, overlapping, where an indexer chooses).
    """
    k_axis, g = b.axis("K", spec.groups), b.axis("G", spec.heads // spec.groups)
    h, low, r = b.axis("H", spec.head_dim), b.axis("Q", spec.q_rank), b.axis("Lo", spec.o_rank)
    down = b.matmul("attention.q_down", y, b.weight("w_q_down", "D", low), "q_down", (low,), PART)
    compressed = b.map(
        "attention.q_norm", (down, b.weight("q_norm", low)), b.array("q_latent", "B", "T", low), PART, 4.0
    )
    w_q = b.weight("w_q", low, k_axis, g, h, layout="latent_weight")
    q0 = b.matmul("attention.q", compressed, w_q, "q0", (k_axis, g, h), PART)
    q = b.map("attention.rotate_q", (q0,), b.array("q", "B", "T", k_axis, g, h), PART, 7.0)
    k0 = b.matmul("attention.kv", y, b.weight("w_kv", "D", h), "k0", (h,), PART)
    k = b.keep("attention.rotate_k", (k0, b.weight("kv_norm", h)), "k", (h,), PART, 7.0, window=spec.window)
    sinks = b.weight("sinks", k_axis, g)
    o = _core(b, "attention", "", q, k, k, (k_axis, g), (k_axis, g, h), _seen(b, seq, spec.window), (sinks,))
    if spec.ratio:
        overlap = 2 if spec.indexer is not None else 1
        entries = _compressor(b, y, "compressed", spec.ratio, spec.head_dim, "H", overlap, seq)
        reach = b.context + b.tokens - 1 if b.context else seq
        count = max(1, reach // spec.ratio)
        seen, chosen = _seen(b, reach), _NOTHING
        index = spec.indexer
        if index is not None:
            small = _compressor(b, y, "index_k", spec.ratio, index.head_dim, b.axis("J", index.head_dim), 2, seq)
            w_index = b.weight("w_index_q", low, b.axis("I", index.heads), "J", layout="latent_weight")
            index_q = b.matmul("indexer.q", compressed, w_index, "index_q", ("I", "J"), PART)
            # a query sees an entry for `ratio` tokens before it, and at most `top`: a window of top x ratio tokens
            seen = _seen(b, reach, top=index.top * spec.ratio)
            chosen = (_choose(b, index, index_q, small, y, "N", _seen(b, reach), min(index.top, count)),)
        far = _core(b, "attention", "", q, entries, entries, (k_axis, g), (k_axis, g, h), seen, chosen, "N", "_far")
        o = b.map("attention.join", (o, far), b.array("o_joined", "B", "T", k_axis, g, h), PART, 3.0)
    w_a = b.weight("w_o_down", k_axis, g, h, r, layout="latent_weight")
    low_out = b.matmul("attention.o_down", o, w_a, "o_low", (k_axis, r), PART)
    return b.einsum("attention.o", (low_out, b.weight("w_o", k_axis, r, "D")), b.residual("attention_out"), PART)


def _compressor(b: Builder, y: str, name: str, ratio: int, dim: int, axis: str, overlap: int, seq: int) -> str:
    """Pools of `ratio` tokens: entries[B, N, axis], weighted by a learned gate and a bias for each place in the pool."""
    n, c = b.axis("N", max(1, (b.context or seq) // ratio)), b.axis("M", ratio)
    wide = axis if overlap == 1 else b.axis(f"{axis}2", overlap * dim)
    kv = b.matmul(f"{name}.kv", y, b.weight(f"w_{name}_kv", "D", wide), f"{name}_kv", (wide,), PART)
    gate = b.matmul(f"{name}.gate", y, b.weight(f"w_{name}_gate", "D", wide), f"{name}_gate", (wide,), PART)
    places = b.weight(f"{name}_places", c, wide)
    # while generating, a token adds its share of an entry
    flops = 6.0 * overlap * (1 if b.context else ratio)
    inputs = (kv, gate, places, b.weight(f"{name}_norm", axis))
    return b.keep(f"{name}.pool", inputs, name, (axis,), PART, flops, positions=n, every=ratio)
