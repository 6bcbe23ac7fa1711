"""Families whose config.json needs a reader of its own: compressed attention, encoders, nested configs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rooftop.errors import InputError
from rooftop.transformer._families import Read, Reader, Traits, decoder, mixture_of_experts
from rooftop.transformer._families_hybrid import HYBRIDS
from rooftop.transformer._fields import Fields
from rooftop.transformer._layers import (
    MLP,
    Attention,
    CompressedAttention,
    Indexer,
    Layer,
    MoE,
)


def llama4(f: Fields) -> Read:
    """Llama 4: chunked attention except in each n-th layer, experts in each n-th layer, one shared expert as wide."""
    layers = f.integer("num_hidden_layers")
    every = 4
    listed = f.find("no_rope_layers")[1]
    rope = [bool(x) for x in listed] if isinstance(listed, list) and len(listed) == layers else [
        bool((i + 1) % every) for i in range(layers)
    ]  # fmt: skip
    read = decoder(f, Traits(moe=True))
    width = f.integer("intermediate_size")
    dense = f.integer("intermediate_size_mlp", default=width)
    chunk = f.integer("attention_chunk_size", default=8192)
    stack = []
    for i, layer in enumerate(read["stack"]):
        part = layer.feed_forward
        part = replace(part, shared_d_ff=width, d_ff=width) if isinstance(part, MoE) else MLP(dense)
        stack.append(replace(layer, mixer=replace(layer.mixer, chunk=chunk if rope[i] else 0), feed_forward=part))
    return read | {"stack": tuple(stack)}


def gemma4(f: Fields) -> Read:
    """Gemma 4: global layers have larger heads, fewer KV heads and perhaps values that are the keys; experts stand beside
    an MLP, with norms of their own.
    """
    layers = f.integer("num_hidden_layers")
    own = f.integer("hidden_size_per_layer_input", default=0, least=0)
    shared = min(layers, f.integer("num_kv_shared_layers", default=0, least=0))
    rows = f.integer("vocab_size_per_layer_input", default=f.integer("vocab_size"))
    wide = f.flag("use_double_wide_mlp")
    f.find("enable_moe_block", "num_experts", "top_k_experts", "expert_intermediate_size", "moe_intermediate_size")
    sparse = f.flag("enable_moe_block")
    read = decoder(_without(f, "num_experts"), Traits(tied=True, norms="both", qk_norm="head", window="pattern"))
    listed = f.has("per_layer_config")
    size = f.integer("global_head_dim", default=0 if listed else 512, least=0)
    kv = f.integer("num_global_key_value_heads", default=0, least=0)
    keys = "keys" if f.flag("attention_k_eq_v") else "own"
    stack = []
    for i, layer in enumerate(read["stack"]):
        mixer = layer.mixer
        if not mixer.window:
            mixer = replace(mixer, head_dim=size or mixer.head_dim, kv_heads=kv or mixer.kv_heads, values=keys)
        part = layer.feed_forward
        if i >= layers - shared > 0:
            mixer = replace(mixer, keys="shared")
            part = replace(part, d_ff=2 * part.d_ff) if wide else part
        if sparse:
            part = MoE(
                f.integer("num_experts"), f.integer("top_k_experts"), f.integer("moe_intermediate_size"), dense=part,
                router_weights=1, router_inputs=1,
            )  # fmt: skip
        stack.append(replace(layer, mixer=mixer, feed_forward=part, per_layer=own))
    return read | {"stack": tuple(stack), "per_layer_vocab": rows if own else 0}


def _without(f: Fields, *names: str) -> Fields:
    """The same fields without some; what is read is remembered in both."""
    inner = Fields({k: v for k, v in f.data.items() if k not in names}, f.where, f.family)
    inner.used, inner.notes = f.used, f.notes
    return inner


def _rates(f: Fields, layers: int) -> tuple[int, ...] | None:
    """Tokens of a compressed entry in each layer, as newer versions of the library save them: kinds, and a rate of each."""
    config = f.object("compress_rates")
    if not config:
        return None
    rates = f.inside("compress_rates", config)
    known = {"sliding_attention": 0}
    known |= {
        k: rates.integer(k) for k in ("compressed_sparse_attention", "heavily_compressed_attention") if k in config
    }
    named = f.kinds("layer_types", layers, tuple(known))
    return tuple(known[kind] for kind in named) if named is not None else None


def deepseek_v4(f: Fields) -> Read:
    """DeepSeek-V4: a window and compressed entries in each layer, parallel residual streams, experts in all layers."""
    layers = f.integer("num_hidden_layers")
    ratios = f.integers("compress_ratios") or _rates(f, layers)
    if ratios is None or len(ratios) < layers:
        raise InputError(f"{f.where}: compress_ratios must list at least {layers} numbers", field="compress_ratios")
    parts = f.kinds("mlp_layer_types", layers, ("moe", "hash_moe")) or ()
    hashed = f.integer("num_hash_layers", default=0, least=0) or parts.count("hash_moe")
    if "hash_moe" in parts[hashed:]:
        raise InputError(
            f"{f.where}: mlp_layer_types has hash_moe after moe, which is not modelled", field="mlp_layer_types"
        )
    moe = mixture_of_experts(f, Traits(moe=True, router_weights=1))
    f.find("hc_sinkhorn_iters", "hc_eps", "compress_rope_theta", "num_key_value_heads", "qk_rope_head_dim")

    def layer(ratio: int, part: MoE) -> Layer:
        indexer = (
            Indexer(f.integer("index_n_heads"), f.integer("index_head_dim"), f.integer("index_topk"))
            if ratio == 4
            else None
        )
        mixer = CompressedAttention(
            f.integer("num_attention_heads"), f.integer("head_dim"), f.integer("q_lora_rank"), f.integer("o_groups"),
            f.integer("o_lora_rank"), f.integer("sliding_window"), ratio, indexer,
        )  # fmt: skip
        return Layer(mixer, part, streams=f.integer("hc_mult", default=1))

    extra = f.integer("num_nextn_predict_layers", default=0, least=0)
    if extra:
        f.notes.append("the extra heads are counted without their stream mixing")
    return {
        "d_model": f.integer("hidden_size"), "vocab": f.integer("vocab_size"),
        "stack": tuple(layer(r, replace(moe, router_weights=0) if i < hashed else moe) for i, r in enumerate(ratios[:layers])),
        "tied": f.flag("tie_word_embeddings"), "max_seq": f.integer("max_position_embeddings", default=131072),
        "extra_heads": (replace(layer(ratios[layers] if len(ratios) > layers else 0, moe), streams=1),) * min(extra, 64),
    }  # fmt: skip


def dbrx(f: Fields) -> Read:
    """DBRX: experts in all layers, norms without shifts, nested configs."""
    attn = f.inside("attn_config", f.object("attn_config") or {})
    ffn = f.inside("ffn_config", f.object("ffn_config") or {})
    heads, d_model = f.integer("n_heads"), f.integer("d_model")
    moe = MoE(ffn.integer("moe_num_experts"), ffn.integer("moe_top_k"), ffn.integer("ffn_hidden_size"))
    layer = Layer(Attention(heads, attn.integer("kv_n_heads", default=heads), d_model // heads), moe)
    return {
        "d_model": d_model, "vocab": f.integer("vocab_size"), "stack": (layer,) * min(10_001, f.integer("n_layers")),
        "tied": f.flag("tie_word_embeddings"), "max_seq": f.integer("max_seq_len", default=32768),
    }  # fmt: skip


def grok(f: Fields) -> Read:
    """Grok-1: experts in all layers, a norm before and after each part."""
    return decoder(f, Traits(moe=True, norms="both", tied=True))


def falcon(f: Fields) -> Read:
    """Falcon: attention and MLP in parallel, from one norm (7B) or two (40B, 180B)."""
    d_model, heads = f.integer("hidden_size"), f.integer("num_attention_heads", "n_head")
    new = f.flag("new_decoder_architecture")
    kv = (
        f.integer("num_kv_heads", "n_head_kv", default=heads)
        if new
        else (1 if f.flag("multi_query", default=True) else heads)
    )
    f.find("num_kv_heads", "n_head_kv", "multi_query")
    bias = f.flag("bias")
    norms = f.integer("num_ln_in_parallel_attn", default=2 if new else 1)
    parallel = ("two" if norms == 2 and new else "one") if f.flag("parallel_attn", default=True) or new else ""
    layer = Layer(
        Attention(heads, kv, d_model // heads, bias="qkvo" if bias else ""),
        MLP(f.integer("ffn_hidden_size", "intermediate_size", default=4 * d_model), False, bias), parallel=parallel,
    )  # fmt: skip
    f.find("alibi", "activation")
    return {
        "d_model": d_model, "vocab": f.integer("vocab_size"), "norm_weights": 2,
        "stack": (layer,) * min(10_001, f.integer("num_hidden_layers", "n_layer")),
        "tied": f.flag("tie_word_embeddings", default=True), "max_seq": f.integer("max_position_embeddings", default=2048),
    }  # fmt: skip


def opt(f: Fields) -> Read:
    """OPT: learned positions with two spare ones, biases everywhere."""
    d_model, heads = f.integer("hidden_size"), f.integer("num_attention_heads")
    narrow = f.integer("word_embed_proj_dim", default=d_model)
    before = f.flag("do_layer_norm_before", default=True)
    layer = Layer(
        Attention(heads, heads, d_model // heads, bias="qkvo"), MLP(f.integer("ffn_dim"), False, True),
        norms="pre" if before else "after",
    )  # fmt: skip
    length = f.integer("max_position_embeddings", default=2048)
    f.find("enable_bias", "layer_norm_elementwise_affine", "_remove_final_layer_norm", "layerdrop", "prefix")
    return {
        "d_model": d_model, "vocab": f.integer("vocab_size"), "norm_weights": 2, "positions": length + 2,
        "stack": (layer,) * min(10_001, f.integer("num_hidden_layers")), "tied": f.flag("tie_word_embeddings", default=True),
        "embed_dim": narrow if narrow != d_model else 0, "final_norm": before, "max_seq": length,
    }  # fmt: skip


def bert(f: Fields) -> Read:
    """BERT and RoBERTa: an encoder; norms on sums, two kinds of segments, a pooling layer at the end."""
    d_model, heads = f.integer("hidden_size"), f.integer("num_attention_heads")
    layer = Layer(
        Attention(heads, heads, d_model // heads, causal=False, bias="qkvo"), MLP(f.integer("intermediate_size"), False, True),
        norms="after",
    )  # fmt: skip
    positions = f.integer("max_position_embeddings", default=512)
    f.find("position_embedding_type", "gradient_checkpointing", "tie_word_embeddings")
    f.notes.append("an encoder: it is counted with its pooling layer and without a head for masked tokens")
    return {
        "d_model": d_model, "vocab": f.integer("vocab_size"), "stack": (layer,) * min(10_001, f.integer("num_hidden_layers")),
        "norm_weights": 2, "positions": positions, "token_types": f.integer("type_vocab_size", default=2), "embed_norm": True,
        "final_norm": False, "head": "pooler", "max_seq": positions,
    }  # fmt: skip


def t5(f: Fields) -> Read:
    """T5 and its kin: an encoder and a decoder with cross-attention; relative positions in the first layer of each."""
    d_model, heads, size = f.integer("d_model"), f.integer("num_heads"), f.integer("d_kv")
    buckets = f.integer("relative_attention_num_buckets", default=32)
    kind = f.word("feed_forward_proj", default="relu")
    mlp = MLP(f.integer("d_ff"), kind.startswith("gated"))
    f.find(
        "is_gated_act",
        "dense_act_fn",
        "relative_attention_max_distance",
        "n_positions",
        "is_encoder_decoder",
        "decoder_start_token_id",
    )
    layers = f.integer("num_layers")
    cross = Attention(heads, heads, size, causal=False, keys="memory")

    def stack(count: int, causal: bool) -> tuple[Layer, ...]:
        first = Layer(Attention(heads, heads, size, causal=causal, buckets=buckets), mlp, cross if causal else None)
        rest = Layer(Attention(heads, heads, size, causal=causal), mlp, cross if causal else None)
        return (first, *(rest,) * min(10_000, count - 1))

    f.notes.append("encoder and decoder are taken at the same length")
    return {
        "d_model": d_model, "vocab": f.integer("vocab_size"), "encoder": stack(layers, False),
        "stack": stack(f.integer("num_decoder_layers", default=layers), True),
        "tied": f.flag("tie_word_embeddings", default=True), "max_seq": f.integer("n_positions", default=512),
    }  # fmt: skip


def mpt(f: Fields) -> Read:
    """MPT: no biases, ALiBi."""
    heads, d_model = f.integer("n_heads"), f.integer("d_model")
    ratio = f.integer("expansion_ratio", default=4)
    config: Mapping[str, Any] = f.object("attn_config") or {}
    kv = config.get("kv_n_heads")
    layer = Layer(
        Attention(heads, kv if isinstance(kv, int) and kv > 0 else heads, d_model // heads), MLP(ratio * d_model, False)
    )
    f.find(
        "no_bias",
        "norm_type",
        "logit_scale",
        "learned_pos_emb",
        "init_config",
        "init_device",
        "emb_pdrop",
        "verbose",
        "embedding_fraction",
    )
    return {
        "d_model": d_model, "vocab": f.integer("vocab_size"), "stack": (layer,) * min(10_001, f.integer("n_layers")),
        "tied": f.flag("tie_word_embeddings", default=True), "max_seq": f.integer("max_seq_len", default=2048),
    }  # fmt: skip


def gpt_neo(f: Fields) -> Read:
    """GPT-Neo: no biases on queries, keys and values; layers with and without a window."""
    d_model, heads = f.integer("hidden_size"), f.integer("num_heads", default=16)
    layers, window = f.integer("num_layers"), f.integer("window_size", default=256)
    kinds = f.find("attention_layers")[1]
    if not isinstance(kinds, list):
        types = f.find("attention_types")[1]
        try:
            kinds = [kind for pattern, times in types for _ in range(min(int(times), layers)) for kind in pattern]
        except (TypeError, ValueError):
            kinds = []
    f.find("attention_types")
    if len(kinds) != layers or any(kind not in ("global", "local") for kind in kinds):
        raise InputError(
            f"{f.where}: attention_types must name global or local for {layers} layers", field="attention_types"
        )
    mlp = MLP(f.integer("intermediate_size", default=4 * d_model), False, True)
    length = f.integer("max_position_embeddings", default=2048)
    f.find("embed_dropout", "resid_dropout")
    return {
        "d_model": d_model, "vocab": f.integer("vocab_size"), "tied": f.flag("tie_word_embeddings", default=True),
        "norm_weights": 2, "positions": length, "max_seq": length, "stack": tuple(
            Layer(Attention(heads, heads, d_model // heads, bias="o", window=window if kind == "local" else 0), mlp)
            for kind in kinds
        ),
    }  # fmt: skip


def distilbert(f: Fields) -> Read:
    """DistilBERT: half the layers of BERT, neither kinds of segments nor a pooling layer."""
    d_model, heads = f.integer("dim", default=768), f.integer("n_heads", default=12)
    layer = Layer(
        Attention(heads, heads, d_model // heads, causal=False, bias="qkvo"), MLP(f.integer("hidden_dim", default=3072), False, True),
        norms="after",
    )  # fmt: skip
    positions = f.integer("max_position_embeddings", default=512)
    f.find(
        "activation", "sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_", "tie_word_embeddings"
    )
    f.notes.append("an encoder: it is counted without a head for masked tokens")
    return {
        "d_model": d_model, "vocab": f.integer("vocab_size"), "stack": (layer,) * min(10_001, f.integer("n_layers", default=6)),
        "norm_weights": 2, "positions": positions, "embed_norm": True, "final_norm": False, "head": "none", "max_seq": positions,
    }  # fmt: skip


def mllama(f: Fields) -> Read:
    """The language model of Llama 3.2 Vision: a Llama, some of whose layers attend to the image instead of the text."""
    layers = f.integer("num_hidden_layers", default=40)
    where = set(f.integers("cross_attention_layers") or (3, 8, 13, 18, 23, 28, 33, 38))
    read = decoder(f, Traits())
    stack = tuple(
        replace(layer, mixer=replace(layer.mixer, keys="memory", causal=False, qk_norm="head"), gains="one") if i in where else layer
        for i, layer in enumerate(read["stack"])
    )  # fmt: skip
    assert len(stack) == layers
    f.notes.append("layers that attend to the image are taken with as many image tokens as text tokens")
    return read | {"stack": stack, "spare_rows": 8}


def modernbert(f: Fields) -> Read:
    """ModernBERT: an encoder with gated MLPs, windows in two of three layers, no norm before the first attention."""
    layers, d_model, heads = f.integer("num_hidden_layers"), f.integer("hidden_size"), f.integer("num_attention_heads")
    every, window = f.integer("global_attn_every_n_layers", default=3), f.integer("local_attention", default=128)
    named = f.kinds("layer_types", layers, ("full_attention", "sliding_attention"))
    biased = "qkvo" if f.flag("attention_bias") else ""
    mlp = MLP(f.integer("intermediate_size"), True, f.flag("mlp_bias"))
    if f.flag("norm_bias"):
        raise InputError(f"{f.where}: norm_bias is set, which is not modelled", field="norm_bias")

    def layer(i: int) -> Layer:
        local = named[i] == "sliding_attention" if named else bool(i % every)
        mixer = Attention(heads, heads, d_model // heads, causal=False, bias=biased, window=window // 2 if local else 0)
        return Layer(mixer, mlp, norms="pre" if i else "later")

    f.find(
        "classifier_bias", "classifier_pooling", "classifier_activation", "decoder_bias", "sparse_prediction", "sparse_pred_ignore_index",
        "reference_compile", "repad_logits_with_grad", "position_embedding_type", "tie_word_embeddings",
    )  # fmt: skip
    f.notes.append("an encoder: it is counted without a head for masked tokens")
    return {
        "d_model": d_model, "vocab": f.integer("vocab_size"), "stack": tuple(layer(i) for i in range(min(10_001, layers))),
        "embed_norm": True, "head": "none", "max_seq": f.integer("max_position_embeddings", default=8192),
    }  # fmt: skip


OTHERS: dict[str, Reader] = HYBRIDS | {
    "llama4_text": llama4, "gemma4_text": gemma4, "deepseek_v4": deepseek_v4, "deepseek_ref": deepseek_v4, "dbrx": dbrx,
    "grok-1": grok, "falcon": falcon, "opt": opt, "bert": bert, "roberta": bert, "t5": t5, "mt5": t5, "mpt": mpt,
    "gpt_neo": gpt_neo, "distilbert": distilbert, "xlm-roberta": bert, "camembert": bert, "mllama": mllama, "mllama_text_model": mllama,
    "modernbert": modernbert,
}  # fmt: skip
