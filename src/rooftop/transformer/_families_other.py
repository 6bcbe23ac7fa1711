"""Families whose config.json needs a reader of its own: hybrids, compressed attention, encoders, nested configs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rooftop.errors import InputError
from rooftop.transformer._families import Read, Reader, Traits, decoder, latent, mixture_of_experts, sparse_layers
from rooftop.transformer._families_more import MORE
from rooftop.transformer._fields import Fields
from rooftop.transformer._layers import (
    MLP,
    Attention,
    CompressedAttention,
    DeltaNet,
    FeedForward,
    Indexer,
    Layer,
    Mamba1,
    Mamba2,
    Mixer,
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
    for name in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        if f.integer(name, default=0, least=0):
            raise InputError(
                f"{f.where}: {name} is set; Gemma 4 models with per-layer inputs are not modelled", field=name
            )
    f.find("vocab_size_per_layer_input", "use_double_wide_mlp")
    f.find("enable_moe_block", "num_experts", "top_k_experts", "expert_intermediate_size", "moe_intermediate_size")
    sparse = f.flag("enable_moe_block")
    read = decoder(_without(f, "num_experts"), Traits(tied=True, norms="both", qk_norm="head", window="pattern"))
    size, kv = f.integer("global_head_dim", default=512), f.integer("num_global_key_value_heads", default=0, least=0)
    keys = "keys" if f.flag("attention_k_eq_v") else "own"
    stack = []
    for layer in read["stack"]:
        mixer = layer.mixer
        if not mixer.window:
            mixer = replace(mixer, head_dim=size, kv_heads=kv or mixer.kv_heads, values=keys)
        part = layer.feed_forward
        if sparse:
            part = MoE(
                f.integer("num_experts"), f.integer("top_k_experts"), f.integer("moe_intermediate_size"), dense=part,
                router_weights=1, router_inputs=1,
            )  # fmt: skip
        stack.append(replace(layer, mixer=mixer, feed_forward=part))
    assert len(stack) == layers
    return read | {"stack": tuple(stack)}


def _without(f: Fields, *names: str) -> Fields:
    """The same fields without some; what is read is remembered in both."""
    inner = Fields({k: v for k, v in f.data.items() if k not in names}, f.where, f.family)
    inner.used, inner.notes = f.used, f.notes
    return inner


def deepseek_v4(f: Fields) -> Read:
    """DeepSeek-V4: a window and compressed entries in each layer, parallel residual streams, experts in all layers."""
    layers = f.integer("num_hidden_layers")
    ratios = f.integers("compress_ratios")
    if ratios is None or len(ratios) < layers:
        raise InputError(f"{f.where}: compress_ratios must list at least {layers} numbers", field="compress_ratios")
    hashed = f.integer("num_hash_layers", default=0, least=0)
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


def kimi_linear(f: Fields) -> Read:
    """Kimi Linear and Kimi K3: delta-rule layers with a decay for each channel, and latent attention in some layers."""
    layers, d_model = f.integer("num_hidden_layers"), f.integer("hidden_size")
    config = f.object("linear_attn_config")
    if config is None:
        raise InputError(
            f"{f.where}: linear_attn_config is missing; a kimi_linear config needs it", field="linear_attn_config"
        )
    lin = f.inside("linear_attn_config", config)
    full = lin.integers("full_attn_layers", least=1) or ()
    heads, size = lin.integer("num_heads"), lin.integer("head_dim")
    rank = 0 if lin.flag("use_full_rank_gate") else size
    delta = DeltaNet(
        heads, heads, size, size, lin.integer("short_conv_kernel_size", default=4), decay="channel", gate_rank=rank
    )
    part = mixture_of_experts(f, Traits(moe=True, router_weights=1))
    narrow = f.integer("routed_expert_hidden_size", default=0, least=0)
    part = replace(
        part, latent=narrow if narrow != d_model else 0, latent_norm=f.flag("latent_moe_use_norm") and bool(narrow)
    )
    dense = MLP(f.integer("intermediate_size"))
    look_back = f.has("attn_res_block_size")
    if look_back:
        f.notes.append("attention over earlier layers' sums: its weights are counted, its few products are not")
    stack = tuple(
        Layer(latent(f, i) if i + 1 in full else delta, part if sparse else dense, look_back=look_back)
        for i, sparse in enumerate(sparse_layers(f, layers))
    )
    f.find(
        "activation_situ_beta",
        "activation_situ_linear_beta",
        "mla_use_nope",
        "num_key_value_heads",
        "num_nextn_predict_layers",
    )
    return {
        "d_model": d_model, "vocab": f.integer("vocab_size"), "stack": stack, "tied": f.flag("tie_word_embeddings"),
        "max_seq": f.integer("max_position_embeddings", "model_max_length", default=131072),
    }  # fmt: skip


def nemotron_h(f: Fields) -> Read:
    """Nemotron-H and Nemotron 3: each layer is one part, Mamba-2, attention, an MLP or experts."""
    d_model = f.integer("hidden_size")
    listed = f.find("layers_block_type", "layer_types")[1]
    names = {"M": "mamba", "-": "mlp", "*": "attention", "E": "moe"}
    if isinstance(listed, list):
        kinds = [str(k)[:20] for k in listed]
    else:
        pattern = f.word("hybrid_override_pattern")
        kinds = [names.get(letter, letter) for letter in pattern]
    f.find("hybrid_override_pattern", "num_hidden_layers")
    if not 1 <= len(kinds) <= 10_000 or any(k not in names.values() for k in kinds):
        raise InputError(
            f"{f.where}: hybrid_override_pattern must name a part for each layer: M mamba, * attention, - MLP, E experts",
            field="hybrid_override_pattern",
        )
    count = f.find("num_hidden_layers")[1]
    if count is not None and count != len(kinds):
        raise InputError(
            f"{f.where}: num_hidden_layers = {str(count)[:20]}, and {len(kinds)} layers are listed",
            field="num_hidden_layers",
        )
    heads = f.integer("num_attention_heads")
    attention = Attention(
        heads, f.integer("num_key_value_heads", default=heads), f.integer("head_dim", "attention_head_dim", default=d_model // heads),
        bias="qkvo" if f.flag("attention_bias") else "",
    )  # fmt: skip
    mamba = Mamba2(
        f.integer("mamba_num_heads"), f.integer("mamba_head_dim"), f.integer("n_groups"), f.integer("ssm_state_size"),
        f.integer("conv_kernel", default=4), f.integer("chunk_size", default=128), f.flag("use_conv_bias", default=True),
        f.flag("use_bias", "mamba_proj_bias"),
    )  # fmt: skip
    parts: dict[str, tuple[Mixer | None, FeedForward | None]] = {"mamba": (mamba, None), "attention": (attention, None)}
    if "mlp" in kinds:
        parts["mlp"] = (None, MLP(f.integer("intermediate_size"), False, f.flag("mlp_bias")))
    if "moe" in kinds:
        moe = mixture_of_experts(f, Traits(moe=True, gated=False, router_weights=1))
        parts["moe"] = (None, replace(moe, latent=f.integer("moe_latent_size", default=0, least=0)))
    f.find(
        "intermediate_size",
        "mamba_proj_bias",
        "expand",
        "time_step_rank",
        "mtp_hybrid_override_pattern",
        "mtp_layers_block_type",
    )
    stack = tuple(Layer(*parts[kind]) for kind in kinds)
    extra = f.integer("num_nextn_predict_layers", default=0, least=0)
    ahead = tuple(Layer(*parts[k]) for k in ("attention", "moe") if k in parts) * min(extra, 64)
    return {
        "d_model": d_model, "vocab": f.integer("vocab_size"), "stack": stack, "tied": f.flag("tie_word_embeddings"),
        "max_seq": f.integer("max_position_embeddings", default=131072), "extra_heads": ahead,
    }  # fmt: skip


def nemotron_nas(f: Fields) -> Read:
    """Llama-Nemotron: a Llama whose layers were pruned one by one; some have no attention or no MLP."""
    layers, d_model = f.integer("num_hidden_layers"), f.integer("hidden_size")
    blocks = f.find("block_configs")[1]
    if not isinstance(blocks, list) or len(blocks) != layers or not all(isinstance(b, Mapping) for b in blocks):
        raise InputError(f"{f.where}: block_configs must list {layers} objects", field="block_configs")
    heads = f.integer("num_attention_heads")
    f.find("intermediate_size", "num_key_value_heads", "attention_bias", "mlp_bias")
    stack = []
    for i, block in enumerate(blocks):
        b = f.inside(f"block_configs[{i}]", block)
        a = b.inside("attention", b.object("attention") or {})
        p = b.inside("ffn", b.object("ffn") or {})
        for part in (a, p):
            if part.flag("replace_with_linear"):
                raise InputError(f"{part.where}: replace_with_linear is not modelled", field="block_configs")
        mixer = None
        if not a.flag("no_op"):
            group = a.integer("n_heads_in_group")
            if heads % group:
                raise InputError(f"{a.where}: {group} heads in a group do not divide {heads}", field="block_configs")
            mixer = Attention(
                heads, heads // group, d_model // heads, window=a.integer("window_length", default=0, least=0)
            )
        mlp = None
        if not p.flag("no_op"):
            # two thirds of the multiple, up to a multiple of 256 (as DeciLM's code has it)
            width = int(2 * p.number("ffn_mult", 0.0) * d_model / 3)
            mlp = MLP(width + -width % 256)
        stack.append(Layer(mixer, mlp))
    return {
        "d_model": d_model, "vocab": f.integer("vocab_size"), "stack": tuple(stack), "tied": f.flag("tie_word_embeddings"),
        "max_seq": f.integer("max_position_embeddings", default=131072),
    }  # fmt: skip


def granite_hybrid(f: Fields) -> Read:
    """Granite 4 hybrids: Mamba-2 or attention, then experts and a shared MLP, or an MLP alone."""
    layers, d_model = f.integer("num_hidden_layers"), f.integer("hidden_size")
    kinds = f.kinds("layer_types", layers, ("mamba", "attention"))
    if kinds is None:
        raise InputError(
            f"{f.where}: layer_types is missing; it names mamba or attention for each layer", field="layer_types"
        )
    heads = f.integer("num_attention_heads")
    attention = Attention(
        heads,
        f.integer("num_key_value_heads", default=heads),
        d_model // heads,
        bias="qkvo" if f.flag("attention_bias") else "",
    )
    mamba = Mamba2(
        f.integer("mamba_n_heads"), f.integer("mamba_d_head"), f.integer("mamba_n_groups", default=1), f.integer("mamba_d_state"),
        f.integer("mamba_d_conv", default=4), f.integer("mamba_chunk_size", default=256), f.flag("mamba_conv_bias", default=True),
        f.flag("mamba_proj_bias"),
    )  # fmt: skip
    shared = f.integer("shared_intermediate_size")
    f.find(
        "mamba_expand", "num_experts_per_tok", "intermediate_size", "position_embedding_type", "normalization_function"
    )
    part: FeedForward = MLP(shared)
    if f.has("num_local_experts"):
        part = MoE(
            f.integer("num_local_experts"),
            f.integer("num_experts_per_tok"),
            f.integer("intermediate_size"),
            shared_d_ff=shared,
        )
    return {
        "d_model": d_model, "vocab": f.integer("vocab_size"), "tied": f.flag("tie_word_embeddings"),
        "stack": tuple(Layer(mamba if kind == "mamba" else attention, part) for kind in kinds),
        "max_seq": f.integer("max_position_embeddings", default=131072),
    }  # fmt: skip


def jamba(f: Fields) -> Read:
    """Jamba: attention in each n-th layer, Mamba elsewhere; experts in each m-th layer."""
    layers, d_model = f.integer("num_hidden_layers"), f.integer("hidden_size")
    heads = f.integer("num_attention_heads")
    attention = Attention(heads, f.integer("num_key_value_heads", default=heads), d_model // heads)
    inner = f.integer("mamba_expand", default=2) * d_model
    rank = f.find("mamba_dt_rank")[1]
    mamba = Mamba1(
        inner, f.integer("mamba_d_state", default=16),
        -(-d_model // 16) if rank in (None, "auto") else f.integer("mamba_dt_rank"), f.integer("mamba_d_conv", default=4),
        f.flag("mamba_conv_bias", default=True), f.flag("mamba_proj_bias"), norms=True,
    )  # fmt: skip
    width = f.integer("intermediate_size")
    moe = MoE(f.integer("num_experts"), f.integer("num_experts_per_tok"), width)
    period, offset = f.integer("attn_layer_period", default=8), f.integer("attn_layer_offset", default=4, least=0)
    every, start = f.integer("expert_layer_period", default=2), f.integer("expert_layer_offset", default=1, least=0)
    stack = tuple(
        Layer(
            attention if i % period == offset else mamba, moe if i % every == start and moe.experts > 1 else MLP(width)
        )
        for i in range(layers)
    )
    f.find("use_mamba_kernels", "mamba_inner_layernorms", "num_logits_to_keep")
    return {
        "d_model": d_model, "vocab": f.integer("vocab_size"), "stack": stack, "tied": f.flag("tie_word_embeddings"),
        "max_seq": f.integer("max_position_embeddings", default=262144),
    }  # fmt: skip


def mamba(f: Fields) -> Read:
    """Mamba: one part a layer."""
    d_model = f.integer("hidden_size", "d_model")
    inner = f.integer("intermediate_size", "d_inner", default=f.integer("expand", default=2) * d_model)
    rank = f.find("time_step_rank")[1]
    spec = Mamba1(
        inner, f.integer("state_size", default=16), -(-d_model // 16) if rank in (None, "auto") else f.integer("time_step_rank"),
        f.integer("conv_kernel", default=4), f.flag("use_conv_bias", default=True), f.flag("use_bias"),
    )  # fmt: skip
    f.find("expand", "d_model", "n_layer", "d_inner", "ssm_cfg", "fused_add_norm", "pad_vocab_size_multiple")
    return {
        "d_model": d_model, "vocab": f.integer("vocab_size"), "tied": f.flag("tie_word_embeddings", default=True),
        "stack": (Layer(spec, None),) * min(10_001, f.integer("num_hidden_layers", "n_layer")), "max_seq": 1_048_576,
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


OTHERS: dict[str, Reader] = {
    "llama4_text": llama4, "gemma4_text": gemma4, "deepseek_v4": deepseek_v4, "deepseek_ref": deepseek_v4,
    "kimi_linear": kimi_linear, "nemotron_h": nemotron_h, "nemotron-nas": nemotron_nas, "jamba": jamba, "granitemoehybrid": granite_hybrid, "mamba": mamba,
    "dbrx": dbrx, "grok-1": grok, "falcon": falcon, "opt": opt, "bert": bert, "roberta": bert, "t5": t5, "mt5": t5, "mpt": mpt,
    "falcon_mamba": mamba, "xlm-roberta": bert, "camembert": bert, **MORE,
}  # fmt: skip
