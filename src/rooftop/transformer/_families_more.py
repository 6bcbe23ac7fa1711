"""More families with a reader of their own: recurrences alone or between attention, small encoders."""

from __future__ import annotations

from rooftop.errors import InputError
from rooftop.transformer._families import Read, Reader
from rooftop.transformer._fields import Fields
from rooftop.transformer._layers import MLP, Attention, Layer, Mamba2


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


MORE: dict[str, Reader] = {"mamba2": mamba2, "bamba": bamba, "gpt_neo": gpt_neo, "distilbert": distilbert}
