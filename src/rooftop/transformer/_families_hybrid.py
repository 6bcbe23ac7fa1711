"""Families whose layers differ in kind: recurrences beside attention, experts in some layers, parts left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rooftop.errors import InputError
from rooftop.transformer._families import Read, Reader, Traits, latent, mixture_of_experts, sparse_layers
from rooftop.transformer._fields import Fields
from rooftop.transformer._layers import (
    MLP,
    Attention,
    Beside,
    DeltaNet,
    FeedForward,
    Layer,
    LinearAttention,
    Mamba1,
    Mamba2,
    Mixer,
    MoE,
    ShortConvolution,
)

#: What newer versions of the library that saves a config call these kinds of layers.
SAVED = {"linear_attention": "mamba", "full_attention": "attention"}


def kimi_linear(f: Fields) -> Read:
    """Kimi Linear and Kimi K3: delta-rule layers with a decay for each channel, and latent attention in some layers."""
    layers, d_model = f.integer("num_hidden_layers"), f.integer("hidden_size")
    config, named = f.object("linear_attn_config"), f.kinds("layer_types", layers, tuple(SAVED))
    if config is None and named is not None:  # as newer versions of the library save it
        config = {
            "full_attn_layers": [i + 1 for i, kind in enumerate(named) if kind == "full_attention"],
            "num_heads": f.integer("linear_num_heads"), "head_dim": f.integer("linear_head_dim"),
            "short_conv_kernel_size": f.integer("linear_conv_kernel_dim", default=4),
        }  # fmt: skip
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
    look_back = 0
    if f.has("attn_res_block_size"):
        # each block of layers adds a sum to look back at, beside the embedding: so many on average
        look_back = 1 + layers // f.integer("attn_res_block_size") // 2
        f.notes.append(
            f"attention over earlier layers' sums is taken with {look_back} of them, the average, in every layer"
        )
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
        kinds = [SAVED.get(str(k), str(k)[:20]) for k in listed]
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
    else:  # sizes of experts that no layer has
        f.find(
            "n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size", "moe_latent_size"
        )
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
    kinds = f.kinds("layer_types", layers, ("mamba", "attention", *SAVED))
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
        "stack": tuple(Layer(mamba if SAVED.get(kind, kind) == "mamba" else attention, part) for kind in kinds),
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


def mamba2(f: Fields) -> Read:
    """Mamba-2 (and Codestral Mamba): one part a layer."""
    d_model = f.integer("hidden_size", "d_model")
    heads, size = f.integer("num_heads"), f.integer("head_dim", default=64)
    groups = f.integer("n_groups", default=8)
    if heads * size != f.integer("expand", default=2) * d_model:
        raise InputError(
            f"{f.where}: num_heads = {heads} heads of {size} are not expand times hidden_size {d_model}",
            field="num_heads",
        )
    _divides(f, groups, heads)
    spec = Mamba2(
        heads, size, groups, f.integer("state_size", default=128), f.integer("conv_kernel", default=4),
        f.integer("chunk_size", default=256), f.flag("use_conv_bias", default=True), f.flag("use_bias"),
    )  # fmt: skip
    f.find("time_step_rank", "rms_norm", "norm_before_gate", "use_mambapy")
    return {
        "d_model": d_model, "vocab": f.integer("vocab_size"), "tied": f.flag("tie_word_embeddings"),
        "stack": (Layer(spec, None),) * min(10_001, f.integer("num_hidden_layers")), "max_seq": 1_048_576,
    }  # fmt: skip


def bamba(f: Fields) -> Read:
    """Bamba: Mamba-2 in most layers, attention in those listed, an MLP in each."""
    layers, d_model = f.integer("num_hidden_layers"), f.integer("hidden_size")
    heads, groups = f.integer("num_attention_heads"), f.integer("mamba_n_groups", default=1)
    attention = Attention(
        heads, f.integer("num_key_value_heads", default=heads), d_model // heads, bias="qkvo" if f.flag("attention_bias") else ""
    )  # fmt: skip
    many = f.integer("mamba_n_heads", default=128)
    size = f.find("mamba_d_head")[1]
    wide = f.integer("mamba_expand", default=2) * d_model
    spec = Mamba2(
        many, wide // many if size in (None, "auto") else f.integer("mamba_d_head"), groups, f.integer("mamba_d_state", default=256),
        f.integer("mamba_d_conv", default=4), f.integer("mamba_chunk_size", default=256), f.flag("mamba_conv_bias", default=True),
        f.flag("mamba_proj_bias"),
    )  # fmt: skip
    _divides(f, groups, many)
    listed = f.integers("attn_layer_indices") or ()
    mlp = MLP(f.integer("intermediate_size"), True, f.flag("mlp_bias"))
    f.find("attn_rotary_emb", "num_logits_to_keep", "z_loss_coefficient")
    return {
        "d_model": d_model, "vocab": f.integer("vocab_size"), "tied": f.flag("tie_word_embeddings"),
        "stack": tuple(Layer(attention if i in listed else spec, mlp) for i in range(min(10_001, layers))),
        "max_seq": f.integer("max_position_embeddings", default=262144),
    }  # fmt: skip


def _divides(f: Fields, groups: int, heads: int) -> None:
    if heads % groups:
        raise InputError(f"{f.where}: {groups} groups do not divide {heads} heads of Mamba", field="n_groups")


def lfm2(f: Fields) -> Read:
    """LFM2: gated short convolutions, attention with normalised queries and keys in some layers; experts in the larger ones."""
    layers, d_model = f.integer("num_hidden_layers"), f.integer("hidden_size")
    named = f.kinds("layer_types", layers, ("conv", "full_attention"))
    listed = f.integers("full_attn_idxs") or ()
    kinds = named or tuple("full_attention" if i in listed else "conv" for i in range(min(layers, 10_001)))
    heads = f.integer("num_attention_heads")
    attention = Attention(
        heads, f.integer("num_key_value_heads", default=heads), f.integer("head_dim", default=d_model // heads), qk_norm="head"
    )  # fmt: skip
    f.find(
        "conv_dim", "conv_dim_out", "conv_use_xavier_init", "use_pos_enc", "block_dim", "block_use_swiglu", "num_heads"
    )
    conv = ShortConvolution(d_model, f.integer("conv_L_cache", default=3), f.flag("conv_bias"))
    width = f.integer("block_ff_dim", "intermediate_size")
    if f.flag("block_auto_adjust_ff_dim", default=f.family == "lfm2"):
        # two thirds, times a factor, up to a multiple (as the library's code has it)
        width = int(f.number("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
        multiple = f.integer("block_multiple_of", default=256)
        width += -width % multiple
    part: FeedForward = MLP(width)
    first = layers
    if f.family == "lfm2_moe":
        correction = int(f.flag("use_expert_bias", default=True))
        part = mixture_of_experts(f, Traits(moe=True, router_weights=correction))
        first = f.integer("num_dense_layers", default=2, least=0)
    return {
        "d_model": d_model, "vocab": f.integer("vocab_size"), "tied": f.flag("tie_word_embeddings", "tie_embedding", default=True),
        "stack": tuple(
            Layer(attention if kind == "full_attention" else conv, MLP(width) if i < first else part) for i, kind in enumerate(kinds)
        ),
        "max_seq": f.integer("max_position_embeddings", default=128000),
    }  # fmt: skip


def falcon_h1(f: Fields) -> Read:
    """Falcon-H1: attention and Mamba-2 side by side on one input, then an MLP."""
    layers, d_model = f.integer("num_hidden_layers"), f.integer("hidden_size")
    heads, many = f.integer("num_attention_heads"), f.integer("mamba_n_heads", default=128)
    groups = f.integer("mamba_n_groups", default=1)
    attention = Attention(
        heads, f.integer("num_key_value_heads", default=heads), f.integer("head_dim", default=d_model // heads),
        bias="qkvo" if f.flag("attention_bias") else "",
    )  # fmt: skip
    inner = f.integer("mamba_d_ssm", default=f.integer("mamba_expand", default=2) * d_model)
    if inner % many:
        raise InputError(f"{f.where}: {many} heads of Mamba do not divide mamba_d_ssm = {inner}", field="mamba_d_ssm")
    _divides(f, groups, many)
    spec = Mamba2(
        many, inner // many, groups, f.integer("mamba_d_state", default=256), f.integer("mamba_d_conv", default=4),
        f.integer("mamba_chunk_size", default=256), f.flag("mamba_conv_bias", default=True), f.flag("mamba_proj_bias"),
        f.flag("mamba_rms_norm"),
    )  # fmt: skip
    mlp = MLP(f.integer("intermediate_size"), True, f.flag("mlp_bias"))
    f.find(
        "mamba_d_head",
        "mamba_expand",
        "mamba_norm_before_gate",
        "mamba_use_mlp",
        "projectors_bias",
        "num_logits_to_keep",
    )
    return {
        "d_model": d_model, "vocab": f.integer("vocab_size"), "tied": f.flag("tie_word_embeddings"),
        "stack": (Layer(Beside((attention, spec)), mlp),) * min(10_001, layers),
        "max_seq": f.integer("max_position_embeddings", default=8192),
    }  # fmt: skip


def minimax(f: Fields) -> Read:
    """MiniMax-Text-01 and M1: lightning attention in most layers, softmax attention in each eighth, experts in all."""
    layers, d_model = f.integer("num_hidden_layers"), f.integer("hidden_size")
    heads = f.integer("num_attention_heads")
    size = f.integer("head_dim", default=d_model // heads)
    named = f.kinds("layer_types", layers, ("linear_attention", "full_attention"))
    listed = f.integers("attn_type_list", layers)
    kinds = named or tuple("full_attention" if kind else "linear_attention" for kind in listed or ())
    if not kinds:
        raise InputError(
            f"{f.where}: layer_types is missing; it names linear_attention or full_attention for each layer",
            field="layer_types",
        )
    attention = Attention(heads, f.integer("num_key_value_heads", default=heads), size)
    linear = LinearAttention(heads, size, f.integer("block_size", default=256))
    part = mixture_of_experts(f, Traits(moe=True))
    f.find("shared_intermediate_size", "shared_moe_mode", "rotary_dim", "postnorm")
    for name in ("full_attn", "linear_attn", "mlp"):  # weights of sums, which are constants
        for suffix in ("alpha_factor", "beta_factor"):
            f.find(
                f"{name}_{suffix}",
                f"layernorm_{name.replace('full_attn', 'full_attention').replace('linear_attn', 'linear_attention')}_{suffix.split('_')[0]}",
            )
    return {
        "d_model": d_model, "vocab": f.integer("vocab_size"), "tied": f.flag("tie_word_embeddings"),
        "stack": tuple(Layer(attention if kind == "full_attention" else linear, part) for kind in kinds),
        "max_seq": f.integer("max_position_embeddings", default=131072),
    }  # fmt: skip


HYBRIDS: dict[str, Reader] = {
    "kimi_linear": kimi_linear, "nemotron_h": nemotron_h, "nemotron-nas": nemotron_nas, "granitemoehybrid": granite_hybrid,
    "jamba": jamba, "mamba": mamba, "falcon_mamba": mamba, "mamba2": mamba2, "bamba": bamba,
    "lfm2": lfm2, "lfm2_moe": lfm2, "falcon_h1": falcon_h1, "minimax": minimax, "minimax_text_01": minimax,
    "minimax_m1": minimax,
}  # fmt: skip
