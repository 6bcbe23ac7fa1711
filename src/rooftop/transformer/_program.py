"""The programs of an architecture: embedding, each kind of layer, head, as ops on named-axis arrays.

Axes: B sequences, T query positions, S key positions, D d_model, F d_ff, K KV heads, G query heads of one KV head,
H head size, V vocabulary, E experts, C slots of an expert; more in the modules of the layers' parts.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, replace

from rooftop.arrays import Program
from rooftop.errors import InputError
from rooftop.transformer._architecture import Architecture
from rooftop.transformer._attention import attention, compressed_attention, latent_attention
from rooftop.transformer._builder import Builder, Cache
from rooftop.transformer._documents import Documents
from rooftop.transformer._feed_forward import mlp, moe
from rooftop.transformer._layers import (
    Attention,
    Beside,
    CompressedAttention,
    Custom,
    DeltaNet,
    LatentAttention,
    Layer,
    LinearAttention,
    Mamba1,
    Mamba2,
    Mixer,
    MoE,
    Recurrence,
    ShortConvolution,
)
from rooftop.transformer._tower import tower_programs


@dataclass(frozen=True, slots=True)
class Block:
    """One kind of layer, how often it occurs, and what one layer of it keeps of each sequence."""

    program: Program
    count: int
    caches: tuple[Cache, ...] = ()


@dataclass(frozen=True, slots=True)
class Programs:
    """A whole model. towers: encoders of images or sound; extra: layers that predict further ahead. Neither is run for
    a token of text, and `every` has neither. order: which of the blocks each layer of the (decoder's) stack is.
    """

    embed: Program
    blocks: tuple[Block, ...]
    head: Program
    towers: tuple[Block, ...] = ()
    extra: tuple[Block, ...] = ()
    order: tuple[int, ...] = ()

    @property
    def every(self) -> tuple[tuple[Program, int], ...]:
        """All programs of a training step on text, with how often each runs for one batch."""
        return ((self.embed, 1), *((b.program, b.count) for b in self.blocks), (self.head, 1))


@functools.lru_cache(maxsize=256)
def programs(arch: Architecture, seq: int, documents: Documents | None = None) -> Programs:
    """The programs at a sequence length (of the encoder and the decoder, where there are two). documents: the pieces of
    documents that fill the sequences, each one document unless given. Raises InputError where documents have no meaning.
    """
    if documents is not None and (arch.encoder or any(layer.cross is not None for layer in arch.stack)):
        raise InputError(
            f"{arch.name} reads what an encoder made: how documents of one share sequences with those of the other is not modelled;"
            " leave the lengths of documents out",
            field="lengths",
        )
    blocks: list[Block] = []
    if arch.encoder:
        blocks += _kinds(arch, arch.encoder, seq, "encoder")
        blocks.append(Block(_encoder_end(arch, seq), 1))
    order = _order(arch, seq, len(blocks))
    blocks += _kinds(arch, arch.stack, seq, "", documents=documents)
    towers = tuple(Block(program, count) for t in arch.towers for program, count in tower_programs(t, _layer))
    extra: tuple[Block, ...] = ()
    if arch.extra_heads:
        extra = (*_kinds(arch, arch.extra_heads, seq, "extra"), Block(_extra_end(arch, seq), len(arch.extra_heads)))
    return Programs(_embed(arch, seq), tuple(blocks), _head(arch, seq), towers, extra, order)


@functools.lru_cache(maxsize=256)
def generation(arch: Architecture, context: int, tokens: int = 1) -> Programs:
    """The programs that generate one token of each sequence at its position `context`: T is 1, S what a layer has kept.

    With more `tokens`, that many positions of each sequence at once, the first of which is `context` (a draft that is
    verified, a chunk of a prompt). What was kept are arrays of role "cache"; latent attention is in its absorbed form; an
    encoder has run before. There is no loss: the head ends with the token that is sampled. `extra` predicts one token further ahead.
    """
    blocks = _kinds(arch, arch.stack, tokens, "", context)
    extra: tuple[Block, ...] = ()
    if arch.extra_heads:
        extra = (*_kinds(arch, arch.extra_heads[:1], tokens, "extra", context), Block(_extra_end(arch, tokens), 1))
    order = _order(arch, context + tokens - 1)
    return Programs(_embed(arch, tokens), tuple(blocks), _head(arch, tokens, loss=False), extra=extra, order=order)


@functools.lru_cache(maxsize=256)
def prefill(arch: Architecture, tokens: int, cached: int = 0) -> Programs:
    """The programs that read `tokens` of each prompt after `cached` ones whose caches are there; logits of the last one."""
    if cached:
        inside = generation(arch, cached + 1, tokens)
        return Programs(inside.embed, inside.blocks, _head(arch, 1, loss=False), order=inside.order)
    whole = programs(arch, tokens)
    return Programs(whole.embed, whole.blocks, _head(arch, 1, loss=False), order=whole.order)


def _kinds(
    arch: Architecture, stack: tuple[Layer, ...], seq: int, prefix: str, context: int = 0,
    documents: Documents | None = None,
) -> list[Block]:  # fmt: skip
    """Equal layers together, in the order in which they first occur; a window as long as the sequence is none."""
    counts = Counter(_at(layer, context + seq - 1 if context else seq) for layer in stack)
    names = _names(list(counts), prefix)
    return [
        _block(arch, layer, seq, name, count, context, documents)
        for (layer, count), name in zip(counts.items(), names, strict=True)
    ]


def _order(arch: Architecture, seq: int, first: int = 0) -> tuple[int, ...]:
    """Which block each layer of the stack is, where the first kind of its layers is block `first`."""
    kinds = list(dict.fromkeys(_at(layer, seq) for layer in arch.stack))
    return tuple(first + kinds.index(_at(layer, seq)) for layer in arch.stack)


def _at(layer: Layer, seq: int) -> Layer:
    mixer = layer.mixer
    if isinstance(mixer, Attention) and (mixer.window >= seq or mixer.chunk >= seq) and mixer.causal:
        mixer = replace(
            mixer, window=mixer.window if mixer.window < seq else 0, chunk=mixer.chunk if mixer.chunk < seq else 0
        )
        return replace(layer, mixer=mixer)
    return layer


def _names(kinds: list[Layer], prefix: str) -> list[str]:
    """A short name for each kind of layer, different from all others."""
    if len(kinds) == 1:
        return [prefix or "block"]
    found: list[str] = []
    several_mixers = len({type(k.mixer) if not isinstance(k.mixer, Attention) else bool(k.mixer.window or k.mixer.chunk)
                          for k in kinds}) > 1  # fmt: skip
    several_parts = len({type(k.feed_forward) for k in kinds}) > 1
    for layer in kinds:
        words = [prefix] if prefix else []
        if layer.mixer is not None and (several_mixers or not several_parts):
            words.append(_mixer_name(layer.mixer))
        if layer.feed_forward is not None and (several_parts or layer.mixer is None):
            words.append("moe" if isinstance(layer.feed_forward, MoE) else "dense")
        name = " ".join(words) or "block"
        found.append(name if name not in found else f"{name} {sum(f.startswith(name) for f in found) + 1}")
    return found


def _mixer_name(mixer: Mixer) -> str:
    match mixer:
        case Attention():
            return "local" if mixer.window or mixer.chunk else "global"
        case CompressedAttention():
            return f"1/{mixer.ratio}" if mixer.ratio else "local"
        case LatentAttention():
            return "latent"
        case DeltaNet():
            return "delta"
        case Custom():
            return mixer.name
        case ShortConvolution():
            return "convolution"
        case LinearAttention():
            return "linear"
        case Beside():
            return " and ".join(_mixer_name(m) for m in mixer.mixers)
        case _:
            return "mamba"


def _block(
    arch: Architecture, layer: Layer, seq: int, name: str, count: int, context: int, documents: Documents | None
) -> Block:
    keys = _kept(layer, context) + seq - 1 if context else seq
    b = Builder(
        {"T": seq, "S": keys, "D": arch.d_model}, norm_weights=arch.norm_weights, streams=layer.streams, context=context,
        documents=documents,
    )  # fmt: skip
    axes = ("B", "T", "D") if layer.streams == 1 else ("B", "T", b.axis("W", layer.streams), "D")
    _layer(b, layer, b.input("x", *axes, layout="residual"), keys)
    return Block(b.program(name), count, tuple(b.caches))


def _kept(layer: Layer, context: int) -> int:
    """Positions whose keys a layer has after `context` tokens."""
    mixer = layer.mixer
    limit = 0
    if isinstance(mixer, Attention):
        limit = mixer.window or mixer.chunk
    elif isinstance(mixer, CompressedAttention):
        limit = mixer.window
    return min(context, limit) if limit else context


def _layer(b: Builder, layer: Layer, x: str, seq: int) -> str:
    """One layer from x to x_out."""
    mixer, kind = layer.mixer, _kind(layer.mixer)
    parts: list[str] = []
    if mixer is not None:
        parts.append(kind)
    if layer.cross is not None:
        parts.append("cross")
    if layer.feed_forward is not None:
        parts.append("mlp")
    if not parts:
        return b.map("pass", (x,), b.stream("x_out"), "norm", 0.0, linear=True)
    if layer.parallel:
        return _parallel(b, layer, x, seq, kind)
    for position, part in enumerate(parts, 1):
        last = "x_out" if position == len(parts) and not layer.per_layer else f"x{position}"
        x = _sub_layer(b, layer, part, x, seq, last)
    return _per_layer(b, layer, x) if layer.per_layer else x


def _kind(mixer: Mixer | None) -> str:
    return "recurrence" if isinstance(mixer, Recurrence) else "attention"


def _run(b: Builder, layer: Layer, part: str, x: str, y: str, seq: int) -> str:
    if part == "mlp":
        spec = layer.feed_forward
        if isinstance(spec, Custom):
            return spec.build(b, y, seq)
        return moe(b, spec, x, y) if isinstance(spec, MoE) else mlp(b, spec, y)  # type: ignore[arg-type]
    if part == "cross":
        return attention(b, layer.cross, y, seq, "cross")  # type: ignore[arg-type]
    return _mixed(b, layer.mixer, y, seq)


def _mixed(b: Builder, mixer: Mixer | None, y: str, seq: int) -> str:
    """One mixer on y."""
    from rooftop.transformer import _recurrent as recurrent

    match mixer:
        case Custom():
            return mixer.build(b, y, seq)
        case Beside():
            made = []
            for place, one in enumerate(mixer.mixers, 1):
                b.suffix = "" if place == 1 else str(place)
                made.append(_mixed(b, one, y, seq))
            b.suffix = ""
            outs = tuple(made)
            return b.map("beside.add", outs, b.residual("beside_out"), "norm", 1.0, linear=True)
        case Attention():
            return attention(b, mixer, y, seq)
        case LatentAttention():
            return latent_attention(b, mixer, y, seq)
        case CompressedAttention():
            return compressed_attention(b, mixer, y, seq)
        case DeltaNet():
            return recurrent.delta_net(b, mixer, y)
        case Mamba2():
            return recurrent.mamba2(b, mixer, y)
        case Mamba1():
            return recurrent.mamba1(b, mixer, y)
        case ShortConvolution():
            return recurrent.short_convolution(b, mixer, y)
        case LinearAttention():
            return recurrent.linear_attention(b, mixer, y)
        case _:
            raise TypeError(mixer)


def _sub_layer(b: Builder, layer: Layer, part: str, x: str, seq: int, output: str) -> str:
    """Norm, part, perhaps norm, and the sum with the stream."""
    y, mix = x, ""
    if layer.streams > 1:
        y, mix = _mix_in(b, part, x, layer.streams)
    if layer.look_back:
        more = (b.weight(f"{part}_look_query", "D"), b.weight(f"{part}_look_norm", "D"))
        y = b.map(f"{part}.look_back", (y, *more), b.residual(f"{part}_looked"), "norm", 4.0 + 4 * layer.look_back)
    inner = y
    if layer.norms in ("pre", "both", "sandwich") or (layer.norms == "later" and part == "mlp"):
        inner = b.norm(f"{part}_norm", y, f"{part}_in")
    out = _run(b, layer, part, y, inner, seq)
    sandwiched = layer.norms == "sandwich" and part == "mlp" and isinstance(layer.feed_forward, MoE)
    if layer.norms in ("post", "both") or sandwiched:
        out = b.norm(f"{part}_post_norm", out, f"{part}_normed")
    # the op that adds a bias, a gain and the stream is one kernel
    if layer.streams > 1:
        return b.map(f"{part}.mix_out", (x, out, mix, *b.biases()), b.stream(output), "norm", 2.0 * layer.streams + 2)
    if layer.norms == "after":
        summed = b.map(f"{part}.add", (x, out, *b.biases()), b.residual(f"{part}_sum"), "norm", 1.0, linear=True)
        return b.norm(f"{part}_norm", summed, output)
    if layer.gains:
        gain = b.weight(f"{part}_gain", "D" if layer.gains == "vector" else b.axis("one", 1))
        return b.map(f"{part}.add_scaled", (x, out, gain, *b.biases()), b.stream(output), "norm", 2.0)
    return b.map(f"{part}.add", (x, out, *b.biases()), b.stream(output), "norm", 1.0, linear=True)


def _parallel(b: Builder, layer: Layer, x: str, seq: int, kind: str) -> str:
    """Mixer and feed-forward part side by side on the same stream (GPT-J, PaLM, Falcon)."""
    y = b.norm(f"{kind}_norm", x, f"{kind}_in")
    z = y if layer.parallel == "one" else b.norm("mlp_norm", x, "mlp_in")
    first = _run(b, layer, kind, x, y, seq)
    second = _run(b, layer, "mlp", x, z, seq)
    return b.map(f"{kind}.add", (x, first, second, *b.biases()), b.stream("x_out"), "norm", 2.0, linear=True)


def _per_layer(b: Builder, layer: Layer, x: str) -> str:
    """What a token's own embedding for this layer adds: a gate, a projection back, a norm."""
    p = b.axis("Pl", layer.per_layer)
    own = b.input("per_layer", "B", "T", p, layout="residual")
    gate = b.matmul(
        "per_layer.gate", x, b.weight("w_per_layer_gate", "D", p), "per_layer_gate", (p,), "mlp", "residual"
    )
    mixed = b.array("per_layer_gated", "B", "T", p, layout="residual")
    b.map("per_layer.gating", (gate, own), mixed, "mlp", 4.0)
    w = b.weight("w_per_layer", p, "D")
    out = b.einsum("per_layer.project", (mixed, w), b.residual("per_layer_out"), "mlp")
    out = b.norm("per_layer_norm", out, "per_layer_normed")
    return b.map("per_layer.add", (x, out), b.stream("x_out"), "norm", 1.0, linear=True)


def _mix_in(b: Builder, part: str, x: str, streams: int) -> tuple[str, str]:
    """Manifold-constrained hyper-connections (DeepSeek-V4): weights from all streams, then one stream out of them.

    For n streams: n weights to read, n to write, n x n to carry over; a matrix [n D, 2n + n^2], as many biases, 3 scales.
    """
    n = b.axis("Mix", streams * (2 + streams))
    mix0 = b.einsum(
        f"{part}.mix", (x, b.weight(f"{part}_w_mix", "W", "D", n)),
        b.array(f"{part}_mix0", "B", "T", n, layout="residual"), "norm",
    )  # fmt: skip
    vectors = (b.weight(f"{part}_b_mix", n), b.weight(f"{part}_mix_scale", b.axis("three", 3)))
    mix = b.map(
        f"{part}.balance", (mix0, *vectors), b.array(f"{part}_mix", "B", "T", n, layout="residual"), "norm", 80.0
    )
    return b.map(f"{part}.mix_in", (x, mix), b.residual(f"{part}_mixed"), "norm", 2.0 * streams), mix


def _embed(arch: Architecture, seq: int) -> Program:
    """Tokens to x; those of the encoder to source, where there is one."""
    b = Builder({"T": seq, "D": arch.d_model, "V": arch.vocab + arch.spare_rows}, norm_weights=arch.norm_weights)
    streams = arch.stack[0].streams
    b.input("tokens", "B", "T", dtype="int32")
    narrow = b.axis("De", arch.embed_dim) if arch.embed_dim else "D"
    table = b.weight("embedding", "V", narrow)
    more = [n for n, there in (("position", arch.positions), ("type", arch.token_types)) if there]
    plain = not (more or arch.embed_norm or arch.embed_dim or streams > 1)
    x = b.residual("x" if plain else "embedded") if narrow == "D" else b.array("embedded", "B", "T", narrow)
    b.op("embedding", "lookup", (table, "tokens"), x, "embedding")
    if arch.embed_dim:
        x = b.einsum(
            "embed_projection", (x, b.weight("w_embed", narrow, "D")), b.residual("embedded_wide"), "embedding"
        )
    for name in more:
        rows = b.axis(
            "P" if name == "position" else "Types", arch.positions if name == "position" else arch.token_types
        )
        index = b.input(f"{name}s", "B", "T", dtype="int32")
        found = b.op(
            f"{name}_embedding",
            "lookup",
            (b.weight(f"{name}_embedding", rows, "D"), index),
            b.residual(name),
            "embedding",
        )
        last = name == more[-1] and not arch.embed_norm and streams == 1
        x = b.map(
            f"add_{name}s", (x, found), b.residual("x" if last else f"with_{name}"), "embedding", 1.0, linear=True
        )
    if arch.embed_norm:
        x = b.norm("embedding_norm", x, "x" if streams == 1 else "embedded_normed", "embedding")
    if streams > 1:
        wide = b.array("x", "B", "T", b.axis("W", streams), "D", layout="residual")
        b.map("widen", (x,), wide, "embedding", 0.0, linear=True)
    elif arch.embed_dim and not more and not arch.embed_norm:
        b.map("embedded", (x,), b.residual("x"), "embedding", 0.0, linear=True)
    if arch.per_layer_vocab:
        own = b.axis("Pl", arch.stack[0].per_layer)
        layers, rows = (
            b.axis("Layers", arch.layers),
            b.axis("V" if arch.per_layer_vocab == arch.vocab else "Vl", arch.per_layer_vocab),
        )
        index = b.input("own_tokens", "B", "T", dtype="int32")

        def for_layers(name: str) -> str:
            return b.array(name, "B", "T", layers, own, layout="residual")

        table = b.weight("per_layer_embedding", rows, layers, own, layout="latent_weight")
        found = b.op(
            "per_layer_embedding", "lookup", (table, index), for_layers("per_layer_found"), "per_layer_embedding"
        )
        w = b.weight("w_per_layer_all", "D", layers, own)
        made = b.einsum("per_layer.project", ("x", w), for_layers("per_layer_made"), "per_layer_embedding")
        norm = b.weight("per_layer_all_norm", own)
        b.map("per_layer.add", (made, found, norm), for_layers("per_layer"), "per_layer_embedding", 6.0)
    if arch.encoder:
        b.input("source_tokens", "B", "T", dtype="int32")
        b.op("source_embedding", "lookup", (table, "source_tokens"), b.residual("source"), "embedding")
    return b.program("embed")


def _encoder_end(arch: Architecture, seq: int) -> Program:
    b = Builder({"T": seq, "D": arch.d_model}, norm_weights=arch.norm_weights)
    b.norm("encoder_norm", b.input("x", "B", "T", "D", layout="residual"), "memory")
    return b.program("encoder end")


def _head(arch: Architecture, seq: int, *, loss: bool = True) -> Program:
    """x to logits and loss, or what an encoder ends with."""
    b = Builder({"T": seq, "D": arch.d_model, "V": arch.vocab}, norm_weights=arch.norm_weights)
    streams = arch.stack[0].streams
    x = b.input("x", *(("B", "T", "D") if streams == 1 else ("B", "T", b.axis("W", streams), "D")), layout="residual")
    if streams > 1:
        n = b.axis("Mix", streams)
        mix0 = b.einsum(
            "head.mix",
            (x, b.weight("head_w_mix", "W", "D", n)),
            b.array("mix0", "B", "T", n, layout="residual"),
            "head",
        )
        vectors = (b.weight("head_b_mix", n), b.weight("head_mix_scale", b.axis("one", 1)))
        x = b.map("head.mix_in", (x, mix0, *vectors), b.residual("x_mixed"), "head", 2.0 * streams)
    if arch.stack[0].look_back:
        more = (b.weight("head_look_query", "D"), b.weight("head_look_norm", "D"))
        x = b.map("head.look_back", (x, *more), b.residual("x_looked"), "head", 4.0 + 8 * arch.stack[0].look_back)
    y = b.norm("final_norm", x, "normed", "head") if arch.final_norm else x
    if arch.head == "pooler":
        out = b.axis("Dp", arch.d_model)
        pooled = b.einsum("pooler", (y, b.weight("w_pooler", "D", out)), b.array("pooled0", "B", "T", out), "head")
        b.map("pooler.activation", (pooled, b.weight("b_pooler", out)), b.array("pooled", "B", "T", out), "head", 4.0)
        return b.program("head")
    if arch.head == "none":
        b.map("output", (y,), b.residual("output"), "head", 0.0, linear=True)
        return b.program("head")
    narrow = "D"
    if arch.embed_dim:
        narrow = b.axis("De", arch.embed_dim)
        y = b.einsum(
            "head_projection", (y, b.weight("w_unembed", "D", narrow)), b.array("narrowed", "B", "T", narrow), "head"
        )
    table = b.weight("embedding" if arch.tied else "lm_head", "V", narrow)
    logits = b.einsum("lm_head", (y, table), b.array("logits", "B", "T", "V", dtype="fp32"), "head")
    bias = (b.weight("lm_head_bias", "V"),) if arch.head_bias else ()
    if not loss:
        b.op("sampling", "loss", (logits, *bias), b.array("token", "B", "T", dtype="int32"), "sampling", 5.0)
        return b.program("head")
    b.op("loss", "loss", (logits, *bias), b.array("loss", "B", "T", dtype="fp32"), "head", 5.0)
    return b.program("head")


def _extra_end(arch: Architecture, seq: int) -> Program:
    """What each layer that predicts further ahead has beside the layer: norms of its two inputs, their projection, a norm
    at the end (DeepSeek-V3, section 2.2). The embedding and the head are those of the model unless it has own ones.
    """
    b = Builder({"T": seq, "D": arch.d_model, "V": arch.vocab}, norm_weights=arch.norm_weights)
    x = b.input("x", "B", "T", "D", layout="residual")
    ahead = b.input("next", "B", "T", "D", layout="residual")
    b.norm("hidden_norm", x, "hidden_in", "extra")
    b.norm("ahead_norm", ahead, "ahead_in", "extra")
    joined = b.array("joined", "B", "T", b.axis("D2", 2 * arch.d_model), layout="residual")
    b.map("join", ("hidden_in", "ahead_in"), joined, "extra", 0.0, linear=True)
    out = b.einsum("extra.project", (joined, b.weight("w_join", "D2", "D")), b.residual("joined_out"), "extra")
    b.norm("extra_norm", out, "extra_out", "extra")
    if arch.extra_embeddings:
        b.op("extra.embedding", "lookup", (b.weight("extra_embedding", "V", "D"), b.input("tokens", "B", "T", dtype="int32")),
             b.residual("extra_embedded"), "extra")  # fmt: skip
    return b.program("extra end")
