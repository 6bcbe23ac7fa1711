"""The families of config.json: how the fields of each describe its layers.

One reader covers everything that looks like a decoder of attention and feed-forward layers; what a family assumes
without saying so is in its `Traits`. Families of another shape have a reader of their own in `_families_other`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rooftop.errors import InputError
from rooftop.transformer._fields import Fields
from rooftop.transformer._layers import (
    MLP,
    Attention,
    DeltaNet,
    FeedForward,
    Indexer,
    LatentAttention,
    Layer,
    Mixer,
    MoE,
)

#: What `layer_types` may name.
LAYER_TYPES = (
    "full_attention", "sliding_attention", "chunked_attention", "linear_attention", "deepseek_sparse_attention",
    "indexed_attention", "attention",
)  # fmt: skip
#: Fields of the architecture that a reader returns, beside its stack.
Read = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Traits:
    """What a family does without a field for it.

    bias: projections with biases where `attention_bias` is not there; biased: those that `attention_bias` gives one.
    window: which layers have the window if `layer_types` does not say: "all", "even" (every second one, from the first),
    "pattern" (all but each n-th), "late" (from max_window_layers on), "" none.
    """

    bias: str = ""
    biased: str = "qkvo"
    qk_norm: str = ""
    qk_norm_weights: int = 1
    norms: str = "pre"
    norm_weights: int = 1
    parallel: str = ""
    gated: bool = True
    mlp_bias: bool = False
    tied: bool = False
    window: str = ""
    pattern: int = 6
    positions: bool = False
    head_bias: bool = False
    embed_norm: bool = False
    moe: bool = False
    router_weights: int = 0
    expert_bias: bool = False
    sinks: bool = False
    window_sinks: bool = False  # sinks in layers with a window
    window_kv: int = 1  # KV heads of layers with a window, as a multiple of those of the others
    shared_gate: bool = False
    output_gate: str = ""
    latent: bool = False
    unknown: bool = False  # a family that is not known may have anything that has a familiar name
    activation_weights: int = 0  # learned scalars of an MLP's activation
    width: int = 0  # d_ff as a multiple of d_model where no field says so
    extra: bool = True
    extra_dense: bool = False  # layers that predict further ahead are as the last one without experts


T = Traits
_GPT = T(bias="qkvo", norm_weights=2, gated=False, mlp_bias=True)
_LATENT = T(moe=True, latent=True, router_weights=1)
_STEP = T(moe=True, router_weights=1, qk_norm="head", extra_dense=True)
TRAITS: dict[str, Traits] = {
    "llama": T(), "mistral": T(window="all"), "ministral": T(window="all"), "mimo": T(bias="qkv", biased="qkv"),
    "qwen2": T(bias="qkv", biased="qkv", window="late"), "qwen3": T(qk_norm="head", window="late"),
    "gemma": T(tied=True), "gemma2": T(tied=True, norms="both", window="even"),
    "gemma3": T(tied=True, norms="both", window="pattern", qk_norm="head"),
    "gemma3_text": T(tied=True, norms="both", window="pattern", qk_norm="head"),
    "phi3": T(window="all"), "smollm3": T(tied=True), "seed_oss": T(biased="qkv"), "ernie4_5": T(tied=True), "exaone": T(), "internlm2": T(),
    "olmo": T(norm_weights=0), "olmo2": T(norms="post", qk_norm="full"),
    "olmo3": T(norms="post", qk_norm="full", window="pattern", pattern=4),
    "olmoe": T(moe=True, qk_norm="full"),
    "granite": T(), "granitemoe": T(moe=True), "stablelm": T(norm_weights=2, biased="qkv"),
    "starcoder2": replace(_GPT, tied=True, window="all"),
    "cohere": T(tied=True, parallel="one"), "cohere2": T(tied=True, parallel="one", window="pattern", pattern=4),
    "glm": T(biased="qkv"), "glm4": T(norms="both", biased="qkv"), "glm4v_text": T(norms="both", bias="qkv", biased="qkv"),
    "nemotron": T(norm_weights=2, gated=False),
    "gpt2": replace(_GPT, tied=True, positions=True, width=4), "gpt_neox": replace(_GPT, parallel="two"),
    "gptj": T(norm_weights=2, gated=False, mlp_bias=True, parallel="one", head_bias=True, width=4),
    "phi": replace(_GPT, parallel="one", head_bias=True, qk_norm_weights=2),
    "bloom": replace(_GPT, tied=True, embed_norm=True, width=4),
    "mpt": T(gated=False, tied=True, width=4),
    "mixtral": T(moe=True, window="all"), "phimoe": T(moe=True, norm_weights=2, bias="qkvo", head_bias=True, window="all"),
    "qwen2_5_vl": T(bias="qkv", biased="qkv", window="late"),
    "qwen2_moe": T(moe=True, bias="qkv", biased="qkv", shared_gate=True, window="late"),
    "qwen3_moe": T(moe=True, qk_norm="head", window="late"),
    "qwen3_vl_text": T(qk_norm="head"), "qwen3_vl_moe_text": T(moe=True, qk_norm="head"),
    "qwen3_next": T(moe=True, qk_norm="head", shared_gate=True, output_gate="full"),
    "qwen3_5_text": T(qk_norm="head", output_gate="full"),
    "qwen3_5_moe_text": T(moe=True, qk_norm="head", shared_gate=True, output_gate="full"),
    "gpt_oss": T(moe=True, bias="qkvo", expert_bias=True, router_weights=1, sinks=True, window="even"),
    "deepseek_v2": replace(_LATENT, router_weights=0), "deepseek_v3": _LATENT, "deepseek_v32": _LATENT, "kimi_k2": _LATENT,
    "glm_moe_dsa": _LATENT,
    "glm4_moe": T(moe=True, biased="qkv", router_weights=1), "ernie4_5_moe": T(moe=True, tied=True, router_weights=1),
    "minimax_m2": T(moe=True, qk_norm="full", router_weights=1, extra=False), "minimax_m3": T(moe=True, router_weights=1),
    "mimo_v2_flash": T(moe=True, router_weights=1, window_kv=2, window_sinks=True),
    "step3p5": _STEP, "step3p7": _STEP,
    "hunyuan_v1_moe": T(moe=True, qk_norm="head"), "bailing_moe": T(moe=True),
    "qwen2_vl": T(bias="qkv", biased="qkv", window="late"), "qwen2_vl_text": T(bias="qkv", biased="qkv", window="late"),
    "qwen2_5_vl_text": T(bias="qkv", biased="qkv", window="late"),
    "exaone4": T(norms="post", qk_norm="head", window="pattern", pattern=4),
    "exaone_moe": T(moe=True, qk_norm="head", router_weights=1, window="pattern", pattern=4),
    "flex_olmo": T(moe=True, norms="post", qk_norm="full"),
    "hunyuan_v1_dense": T(qk_norm="head"), "hy_v3": T(moe=True, qk_norm="head", router_weights=1),
    "arcee": T(gated=False), "nanochat": T(gated=False, norm_weights=0), "helium": T(biased="qkv"),
    "persimmon": T(bias="qkvo", norm_weights=2, gated=False, mlp_bias=True, qk_norm="head", qk_norm_weights=2),
    "gpt_bigcode": replace(_GPT, tied=True, positions=True, width=4),
    "codegen": T(norm_weights=2, gated=False, mlp_bias=True, parallel="one", head_bias=True, width=4),
    "afmoe": T(moe=True, norms="both", qk_norm="head", router_weights=1, output_gate="full", window="pattern", pattern=4),
    "dots1": T(moe=True, qk_norm="head", router_weights=1, window="late"), "minicpm3": T(tied=True, latent=True),
    "apertus": T(gated=False, qk_norm="head", activation_weights=2), "granitemoeshared": T(moe=True),
    "solar_open": T(moe=True, biased="qkv", router_weights=1), "ministral3": T(window="all"), "vaultgemma": T(tied=True),
    "glm4_moe_lite": T(moe=True, latent=True, router_weights=1), "internlm3": T(), "cwm": T(),
    "kolibri1": T(moe=True, norms="both", qk_norm="head", router_weights=1), "flint": T(moe=True, qk_norm="head", sinks=True),
    "axk1": replace(_LATENT, norms="sandwich"),
}  # fmt: skip


def decoder(f: Fields, traits: Traits) -> Read:
    """A decoder of attention and feed-forward layers, from fields that most families share."""
    layers = f.integer("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if layers > 10_000:
        raise InputError(
            f"{f.where}: num_hidden_layers = {layers} is out of range; at most 10,000", field="num_hidden_layers"
        )
    d_model = f.integer("hidden_size", "n_embd", "d_model")
    kinds = _kinds(f, traits, layers)
    mixers = [_mixer(f, traits, d_model, kind, i) for i, kind in enumerate(kinds)]
    parts = _feed_forwards(f, traits, d_model, layers)
    stack = tuple(
        Layer(mixer, part, norms=traits.norms, parallel=_parallel(f, traits))
        for mixer, part in zip(mixers, parts, strict=True)
    )
    stack = _overridden(f, stack)
    vocab = f.integer("vocab_size", "padded_vocab_size")
    positions = f.integer("n_positions", "max_position_embeddings") if traits.positions else 0
    return {
        "d_model": d_model,
        "vocab": vocab,
        "stack": stack,
        "tied": f.flag("tie_word_embeddings", default=traits.tied),
        "norm_weights": traits.norm_weights,
        "positions": positions,
        "embed_norm": traits.embed_norm,
        "head_bias": f.flag("lm_head_bias", default=traits.head_bias),
        "max_seq": f.integer("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", default=131072),
        "extra_heads": extra_heads(f, stack, traits),
    }


def _overridden(f: Fields, stack: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The stack with the sizes that `per_layer_config` gives some layers, as newer versions of the library save them."""
    config = f.object("per_layer_config")
    if not config:
        return stack
    found = list(stack)
    for key, sizes in config.items():
        where = f"per_layer_config: {str(key)[:20]}"
        if not str(key).isdecimal() or len(str(key)) > 6 or int(key) >= len(stack) or not isinstance(sizes, Mapping):
            raise InputError(f"{f.where}: {where} is not a layer with its sizes", field="per_layer_config")
        layer, of = found[int(key)], f.inside(where, sizes)
        mixer, part = layer.mixer, layer.feed_forward
        if isinstance(mixer, Attention):
            heads = of.integer("num_attention_heads", default=mixer.heads)
            mixer = replace(
                mixer, heads=heads, head_dim=of.integer("head_dim", default=mixer.head_dim),
                kv_heads=of.integer("num_key_value_heads", default=mixer.kv_heads),
            )  # fmt: skip
        if isinstance(part, MLP):
            part = replace(part, d_ff=of.integer("intermediate_size", default=part.d_ff))
        left = sorted(k for k in sizes if k not in of.used)
        if left:
            raise InputError(f"{of.where}: {left[0][:40]} of one layer is not modelled", field="per_layer_config")
        found[int(key)] = replace(layer, mixer=mixer, feed_forward=part)
    return tuple(found)


def extra_heads(f: Fields, stack: tuple[Layer, ...], traits: Traits) -> tuple[Layer, ...]:
    """Layers that predict further ahead: as the last layer of the stack, unless the family says otherwise."""
    count = f.integer("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0, least=0)
    if f.flag("use_mtp") and not count:
        count = f.integer("num_mtp_modules", default=0, least=0) * f.integer("mtp_transformer_layers", default=1)
    f.find("num_mtp_modules", "mtp_transformer_layers", "mtp_use_dedicated_embeddings", "mtp_loss_factor")
    if count and not traits.extra:
        f.notes.append(
            f"{count} layers that predict further ahead are in the config and not in the published checkpoint"
        )
    if not traits.extra:
        return ()
    dense = [layer for layer in stack if isinstance(layer.feed_forward, MLP)] if traits.extra_dense else []
    return (_full_indexer((dense or stack)[-1]),) * min(count, 64)


def _full_indexer(layer: Layer) -> Layer:
    """The layer with an indexer of its own, where it shares one."""
    mixer = layer.mixer
    if isinstance(mixer, LatentAttention) and mixer.indexer is not None:
        mixer = replace(mixer, indexer=replace(mixer.indexer, shared=False))
    return replace(layer, mixer=mixer)


def _parallel(f: Fields, traits: Traits) -> str:
    if traits.parallel == "two" and not f.flag("use_parallel_residual", default=True):
        return ""
    return traits.parallel


def _kinds(f: Fields, traits: Traits, layers: int) -> tuple[str, ...]:
    """For each layer "full", or the kind of limit that it has."""
    further = f.integer("num_nextn_predict_layers", default=0, least=0) if traits is _STEP else 0
    listed = f.find("layer_types")[1]
    longer = isinstance(listed, list) and len(listed) == layers + further
    named = f.kinds("layer_types", layers + further if longer else layers, LAYER_TYPES)
    if named is not None:
        f.find(
            "full_attention_interval", "sliding_window_pattern", "hybrid_layer_pattern", "global_attn_every_n_layers"
        )
        if "chunked_attention" not in named and "sliding_attention" in named:
            f.find("attention_chunk_size")  # what one family calls its window, too
        return tuple(kind.removesuffix("_attention") for kind in named[:layers])
    linear = f.integer("full_attention_interval", default=0, least=0)
    if linear:
        return tuple("full" if (i + 1) % linear == 0 else "linear" for i in range(layers))
    pattern = f.integers("hybrid_layer_pattern", layers)
    if pattern is not None:
        f.find("attention_chunk_size")  # what one family calls its window, too
        return tuple("sliding" if kind else "full" for kind in pattern)
    off = (f.find("use_sliding_window")[1] is False) | (f.find("sliding_window")[1] is None)
    if not off and not traits.window:
        f.notes.append(f"sliding_window is not used: layers of {f.family[:40]} attend to all tokens")
    if off or not traits.window:
        return ("full",) * layers
    if traits.window == "all":
        return ("sliding",) * layers
    if traits.window == "even":
        return tuple("full" if i % 2 else "sliding" for i in range(layers))
    if traits.window == "pattern":
        every = f.integer(
            "sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers", default=traits.pattern
        )
        return tuple("sliding" if (i + 1) % every else "full" for i in range(layers))
    if not f.flag("use_sliding_window"):
        return ("full",) * layers
    first = f.integer("max_window_layers", default=layers, least=0)
    return tuple("sliding" if i >= first else "full" for i in range(layers))


def _mixer(f: Fields, traits: Traits, d_model: int, kind: str, layer: int) -> Mixer:
    if kind == "linear":
        return delta_net(f)
    if (traits.latent or traits.unknown) and f.has("kv_lora_rank"):
        return latent(f, layer)
    local = kind in ("sliding", "chunked")
    heads = f.integer("num_attention_heads", "n_head", "n_heads")
    if local:
        heads = f.integer("swa_num_attention_heads", default=heads)
    other = _other_attention(f, traits) if local else None
    size = f.find("head_dim", "attention_head_dim", "kv_channels", "head_dimension")[1]
    if size is None and d_model % heads:
        raise InputError(
            f"{f.where}: {heads} heads do not divide hidden_size {d_model}; head_dim is missing", field="head_dim"
        )
    head_dim = f.integer("head_dim", "attention_head_dim", "kv_channels", default=max(1, d_model // heads))
    kv_heads = _kv_heads(f, heads)
    v_head_dim = f.integer("v_head_dim", default=0, least=0)
    if local:
        kv_heads = f.integer("swa_num_key_value_heads", default=traits.window_kv * kv_heads)
        head_dim, v_head_dim = (
            f.integer("swa_head_dim", default=head_dim),
            f.integer("swa_v_head_dim", default=v_head_dim, least=0),
        )
    if other is not None:
        heads = other.integer("num_attention_heads", default=heads)
        kv_heads = other.integer("num_attention_groups", default=kv_heads)
        head_dim = other.integer("head_dim", default=head_dim)
    biased = f.flag("attention_bias", "qkv_bias", "use_qkv_bias", default=bool(traits.bias))
    sinks = f.flag(
        "add_swa_attention_sink_bias" if local else "add_full_attention_sink_bias",
        default=traits.sinks or (local and traits.window_sinks),
    )
    f.find("add_swa_attention_sink_bias", "add_full_attention_sink_bias")
    letters = (traits.bias or traits.biased) if biased else ""
    if "o" not in letters and f.flag("attention_out_bias"):
        letters += "o"
    gated = traits.output_gate and f.flag("attn_output_gate", "attention_output_gate", default=True)
    if gated and letters:
        raise InputError(
            f"{f.where}: attention_bias is set; attention with an output gate and biases is not modelled",
            field="attention_bias",
        )
    gate = (
        traits.output_gate
        if f.flag("attn_output_gate", "attention_output_gate", default=bool(traits.output_gate))
        else ""
    )
    if f.flag("use_head_wise_attn_gate"):
        gate = "head"
    return Attention(
        heads, kv_heads, head_dim,
        v_head_dim=v_head_dim if v_head_dim != head_dim else 0,
        window=f.integer("sliding_window", "sliding_window_size") if kind == "sliding" else 0,
        chunk=f.integer("attention_chunk_size") if kind == "chunked" else 0,
        bias=letters,
        qk_norm=_qk_norm(f, traits),
        qk_norm_weights=traits.qk_norm_weights,
        sinks=sinks,
        gate=gate,
        indexer=_block_indexer(f, layer),
    )  # fmt: skip


def _other_attention(f: Fields, traits: Traits) -> Fields | None:
    """What Step-3.5 and 3.7 say of their layers with a window: more query heads than the others have."""
    if traits is not _STEP:
        return None
    implementation = f.word("att_impl_type", default="GQA")
    if implementation != "GQA":
        raise InputError(
            f"{f.where}: att_impl_type = {implementation[:40]} is not modelled; GQA is", field="att_impl_type"
        )
    config = f.object("attention_other_setting")
    if config is None:
        f.notes.append(
            "attention_other_setting is missing: layers with a window are counted with as many heads as the others, and"
            " without gates of heads unless use_head_wise_attn_gate is there (the published model has 96 heads, and gates)"
        )
        return None
    other = f.inside("attention_other_setting", config)
    kind = other.word("attention_type", default="sliding_attention")
    if kind != "sliding_attention":
        raise InputError(
            f"{other.where}: attention_type = {kind[:40]} is not modelled; sliding_attention is",
            field="attention_other_setting",
        )
    return other


def _kv_heads(f: Fields, heads: int) -> int:
    if f.family == "gpt_bigcode":  # one for all, or one for each
        f.find("num_key_value_heads")
        return 1 if f.flag("multi_query", default=True) else heads
    if f.find("multi_query")[1] is True and f.find("num_key_value_heads")[1] is None:
        return f.integer("multi_query_group_num", default=1)
    return f.integer(
        "num_key_value_heads",
        "n_head_kv",
        "num_kv_heads",
        "multi_query_group_num",
        "num_attention_groups",
        default=heads,
    )


def _qk_norm(f: Fields, traits: Traits) -> str:
    if f.family == "llama4_text":  # normalised without weights
        f.find("use_qk_norm")
        return ""
    if not f.flag("use_qk_norm", "qk_layernorm", default=bool(traits.qk_norm)):
        return ""
    kind = f.word("qk_norm_type", default="")
    return {
        "per_layer": "full",
        "per_head": "head",
        "": traits.qk_norm or ("full" if f.family in ("cohere", "stablelm") else "head"),
    }.get(kind, "head")


def _block_indexer(f: Fields, layer: int) -> Indexer | None:
    """Learned choice of blocks of keys (MiniMax-M3): as many index heads as KV heads, one key, norms for both."""
    config = f.object("sparse_attention_config")
    if not config:
        return None
    s = f.inside("sparse_attention_config", config)
    if not s.flag("use_sparse_attention"):
        return None
    where = s.integers("sparse_attention_freq")
    if where is not None and not (layer < len(where) and where[layer]):
        return None
    block = s.integer("sparse_block_size")
    return Indexer(
        s.integer("sparse_num_index_heads"), s.integer("sparse_index_dim"), block * s.integer("sparse_topk_blocks"), block,
        from_input=True, norm_weights=2, head_weights=False,
    )  # fmt: skip


def latent(f: Fields, layer: int) -> LatentAttention:
    """Multi-head latent attention, with an indexer where the config has one."""
    f.find("head_dim", "num_key_value_heads")
    indexer = None
    if f.has("index_topk"):
        kinds = f.find("indexer_types")[1]
        shared = isinstance(kinds, list) and layer < len(kinds) and kinds[layer] == "shared"
        indexer = Indexer(
            f.integer("index_n_heads"), f.integer("index_head_dim"), f.integer("index_topk"), shared=shared
        )
    return LatentAttention(
        f.integer("num_attention_heads"), f.integer("q_lora_rank", default=0, least=0), f.integer("kv_lora_rank"),
        f.integer("qk_nope_head_dim"), f.integer("qk_rope_head_dim"), f.integer("v_head_dim"),
        gate="full" if f.flag("mla_use_output_gate") else "", indexer=indexer,
    )  # fmt: skip


def delta_net(f: Fields) -> DeltaNet:
    """Gated DeltaNet of Qwen3-Next and Qwen3.5."""
    return DeltaNet(
        f.integer("linear_num_key_heads"), f.integer("linear_num_value_heads"), f.integer("linear_key_head_dim"),
        f.integer("linear_value_head_dim"), conv=f.integer("linear_conv_kernel_dim", default=4),
    )  # fmt: skip


def _feed_forwards(f: Fields, traits: Traits, d_model: int, layers: int) -> list[FeedForward]:
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    experts = f.find(*names)[1] if traits.moe or traits.unknown else None
    sparse = sparse_layers(f, layers) if experts not in (None, 0, 1) else (False,) * layers
    if traits.moe and experts is None:
        raise InputError(f"{f.where}: num_experts is missing; a {f.family[:40]} config needs it", field="num_experts")
    dense: MLP | None = None
    if not all(sparse):
        width = f.integer(
            "dense_intermediate_size", "intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim",
            default=traits.width * d_model or None,
        )  # fmt: skip
        dense = MLP(width, traits.gated, _mlp_bias(f, traits), traits.activation_weights)
    mixture = mixture_of_experts(f, traits) if any(sparse) else None
    return [mixture if s else dense for s in sparse]  # type: ignore[misc]


def _mlp_bias(f: Fields, traits: Traits) -> bool:
    return f.flag(
        "mlp_bias", "use_mlp_bias", "use_bias" if f.family == "starcoder2" else "mlp_bias", default=traits.mlp_bias
    )


def sparse_layers(f: Fields, layers: int) -> tuple[bool, ...]:
    """Which layers have experts."""
    if f.find("use_moe")[1] is False:
        return (False,) * layers
    kinds = f.find("mlp_layer_types")[1]
    if kinds is not None:
        named = f.kinds("mlp_layer_types", layers, ("dense", "sparse", "moe", "hash_moe"))
        assert named is not None
        f.find("first_k_dense_replace", "moe_layer_freq")
        return tuple(kind != "dense" for kind in named)
    if isinstance(f.find("moe_layer_freq")[1], list):
        where = f.integers("moe_layer_freq", layers)
        assert where is not None
        f.find("first_k_dense_replace")
        return tuple(bool(x) for x in where)
    listed = f.integers("moe_layers") or _numbers(f, "moe_layers_enum")
    if listed:
        return tuple(i in listed for i in range(layers))
    first = f.integer("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers", default=0, least=0)
    step = f.integer(
        "interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_freq", "moe_layer_interval", default=1
    )
    only = f.integers("mlp_only_layers") or ()
    offset = 0 if f.find("moe_layer_freq")[1] is not None else 1
    return tuple(i >= first and i not in only and (i + offset) % step == 0 for i in range(layers))


def _numbers(f: Fields, name: str) -> tuple[int, ...] | None:
    """Whole numbers in one text with commas between them, or None if it is not there."""
    words = [word.strip() for word in f.word(name).split(",")]
    if words == [""]:
        return None
    if not all(word.isascii() and word.isdigit() and len(word) < 6 for word in words):
        raise InputError(f"{f.where}: {name} must be numbers of layers with commas between them", field=name)
    return tuple(int(word) for word in words)


def mixture_of_experts(f: Fields, traits: Traits) -> MoE:
    """The experts of a layer, from the names that families give them."""
    experts = f.integer("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    active = f.integer(
        "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_top_k", "moe_topk", "moe_k",
    )  # fmt: skip
    f.find("num_local_experts", "n_routed_experts", "experts_per_token", "num_experts")
    width = f.integer("moe_intermediate_size", "expert_intermediate_size", "intermediate_size")
    shared = f.integer("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", default=0, least=0) * width
    alone = f.integer(
        "shared_expert_intermediate_size",
        "share_expert_dim",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
        default=0,
        least=0,
    )
    if alone:
        count = f.integer("n_shared_experts", default=1, least=0) or 1
        shared = alone * (count if traits is _STEP else 1)
    correction = traits.router_weights
    for name in ("use_routing_bias", "use_moe_router_bias", "moe_use_aux_free"):
        if f.find(name)[1] is False:
            correction = 0
    return MoE(
        experts, active, width, traits.gated, traits.expert_bias, shared, traits.shared_gate and shared > 0,
        router_weights=correction,
    )  # fmt: skip


Reader = Callable[[Fields], Read]


def reader(family: str) -> Reader | None:
    """The reader of a family, or None if the family is not known."""
    from rooftop.transformer._families_other import OTHERS

    if family in OTHERS:
        return OTHERS[family]
    if family in TRAITS:
        return lambda f: decoder(f, TRAITS[family])
    return None


def families() -> tuple[str, ...]:
    """The families that are read exactly."""
    from rooftop.transformer._families_other import OTHERS

    return tuple(sorted({*TRAITS, *OTHERS}))
