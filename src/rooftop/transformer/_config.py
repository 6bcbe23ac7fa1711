"""Hugging Face `config.json`: outside data, read with suspicion. Nothing is executed, nothing is silently dropped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rooftop.errors import InputError, nearest
from rooftop.transformer._architecture import Architecture

_MOST_BYTES = 1_000_000

#: Families read exactly.
FAMILIES = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gemma3_text",
)  # fmt: skip

#: Fields that do not change the arithmetic counted here.
_HARMLESS = {
    "architectures", "attention_dropout", "attn_logit_softcapping", "final_logit_softcapping", "bos_token_id",
    "eos_token_id", "pad_token_id", "unk_token_id", "cache_implementation", "hidden_act", "hidden_activation",
    "hidden_dropout", "initializer_range", "max_position_embeddings", "max_window_layers", "model_type", "pretraining_tp",
    "query_pre_attn_scalar", "resid_pdrop", "embd_pdrop", "rms_norm_eps", "layer_norm_eps", "rope_scaling", "rope_theta",
    "rope_local_base_freq", "rope_parameters", "torch_dtype", "dtype", "transformers_version", "use_cache", "_name_or_path",
    "attention_probs_dropout_prob", "hidden_dropout_prob", "output_router_logits", "tokenizer_class", "auto_map",
    "use_bidirectional_attention", "_sliding_window_pattern", "chunk_size_feed_forward", "return_dict", "use_mrope",
    "mlp_dropout", "classifier_dropout", "id2label", "label2id", "task_specific_params", "is_decoder", "begin_suppress_tokens",
    "output_attentions", "output_hidden_states", "torchscript", "image_token_index", "boi_token_index", "eoi_token_index",
    "mm_tokens_per_image", "vision_config", "transformers.js_config", "quantization", "rope_interleaved", "head_size",
}  # fmt: skip
_USED = {
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
    "vocab_size", "tie_word_embeddings", "attention_bias", "mlp_bias", "sliding_window", "use_sliding_window",
    "sliding_window_pattern", "layer_types", "text_config",
}  # fmt: skip
#: Fields that change the arithmetic in ways that are not modelled: a value that switches them on is refused.
_CHANGES = (
    "num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size", "q_lora_rank", "kv_lora_rank",
    "num_experts_per_tok", "n_shared_experts", "ssm_state_size", "mamba_d_state", "linear_num_value_heads", "index_topk",
    "attention_chunk_size", "num_nextn_predict_layers", "quantization_config", "is_encoder_decoder", "cross_attention",
    "num_kv_shared_layers", "hidden_size_per_layer_input", "parallel_attn", "partial_rotary_factor",
)  # fmt: skip


def read_config(path: Path) -> Architecture:
    """An architecture from a config.json or the folder that holds one. Raises InputError in one line for anything odd."""
    if path.is_dir():
        path = path / "config.json"
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise InputError(f"{path} has {size:,} bytes; a config.json has at most {_MOST_BYTES:,}", field="model")
        data = json.loads(path.read_text(encoding="utf-8"))
    except InputError:
        raise
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}; give a model's name or a config.json", field="model"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {str(error)[:120]}; give a config.json", field="model") from None
    if not isinstance(data, dict):
        raise InputError(f"{path} holds a {type(data).__name__}, not an object; give a config.json", field="model")
    name = path.parent.name if path.name == "config.json" else path.stem
    return from_config(data, name=name or "model", where=str(path))


def from_config(data: Mapping[str, Any], *, name: str, where: str = "config") -> Architecture:
    """An architecture from the fields of a config.json."""
    family = data.get("model_type")
    if not isinstance(family, str):
        raise InputError(f"{where}: model_type is missing; it names the family, such as llama", field="model_type")
    notes: list[str] = []
    if family == "gemma3" or ("text_config" in data and "hidden_size" not in data):
        inner = data.get("text_config")
        if not isinstance(inner, Mapping):
            raise InputError(
                f"{where}: text_config is missing; it describes the language model of a {family}", field="text_config"
            )
        if "vision_config" in data:
            notes.append(f"{name}: only the language model is counted, not the vision tower of the config")
        data = {**{k: v for k, v in data.items() if k in ("tie_word_embeddings",)}, **_gemma3_defaults(family), **inner}
        family = str(data.get("model_type", family))
    for field in _CHANGES:
        if data.get(field):
            raise InputError(
                f"{where}: {field} = {str(data[field])[:40]} changes the arithmetic of {family[:40]} in a way that is not modelled;"
                " dense decoders of the families " + ", ".join(FAMILIES) + " are",
                field=field,
            )
    unknown = sorted(k for k in data if k not in _HARMLESS and k not in _USED and k not in _CHANGES)
    if family not in FAMILIES and unknown:
        raise InputError(
            f"{where}: the family {family[:40]!r}{nearest(family, FAMILIES)} is not known, and neither is what"
            f" {', '.join(u[:40] for u in unknown[:4])} change; families read exactly are {', '.join(FAMILIES)}",
            field="model_type",
        )
    if family not in FAMILIES:
        notes.append(
            f"{name}: the family {family[:40]!r}{nearest(family, FAMILIES)} is not known and is read like llama from"
            f" {', '.join(sorted(k for k in _USED if k in data))}"
        )
    if unknown:
        notes.append(f"{name}: fields not used: {', '.join(u[:40] for u in unknown[:12])}")
    return _build(data, family, name, where, notes)


def _gemma3_defaults(family: str) -> dict[str, Any]:
    """What the Gemma 3 configuration class assumes where a config.json of its first months is silent."""
    if family != "gemma3":
        return {}
    return {"vocab_size": 262208, "head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4,
            "sliding_window_pattern": 6, "model_type": "gemma3_text"}  # fmt: skip


def _build(data: Mapping[str, Any], family: str, name: str, where: str, notes: list[str]) -> Architecture:
    def integer(key: str, default: int | None = None) -> int:
        value = data.get(key, default)
        if value is None:
            raise InputError(f"{where}: {key} is missing; a {family[:40]} config needs it", field=key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(f"{where}: {key} = {str(value)[:40]!r} is not a whole number", field=key)
        if not 1 <= value <= 10**9:
            raise InputError(
                f"{where}: {key} = {str(value)[:40]} is out of range; give a whole number from 1 to 1e9", field=key
            )
        return value

    def flag(key: str, default: bool) -> bool:
        value = data.get(key, default)
        if not isinstance(value, bool):
            raise InputError(f"{where}: {key} = {str(value)[:40]!r} is not true or false", field=key)
        return value

    gemma = family.startswith("gemma")
    heads = integer("num_attention_heads")
    d_model = integer("hidden_size")
    layers = integer("num_hidden_layers")
    if data.get("head_dim") is None and d_model % heads:
        raise InputError(
            f"{where}: {heads} heads do not divide hidden_size {d_model}; head_dim is missing", field="head_dim"
        )
    head_dim = integer("head_dim", d_model // heads) if data.get("head_dim") is not None else d_model // heads
    bias = flag("attention_bias", family == "qwen2")
    return Architecture(
        name=name,
        layers=layers,
        d_model=d_model,
        heads=heads,
        kv_heads=integer("num_key_value_heads", heads) if data.get("num_key_value_heads") is not None else heads,
        head_dim=head_dim,
        d_ff=integer("intermediate_size"),
        vocab=integer("vocab_size"),
        tied=flag("tie_word_embeddings", gemma),
        qkv_bias=bias,
        out_bias=bias and family != "qwen2",
        mlp_bias=flag("mlp_bias", False),
        qk_norm=family in ("qwen3", "gemma3", "gemma3_text"),
        post_norms=family in ("gemma2", "gemma3", "gemma3_text"),
        windows=_windows(data, family, layers, where, integer),
        max_seq=integer("max_position_embeddings", 131072),
        source=where,
        notes=tuple(notes),
    )


def _windows(data: Mapping[str, Any], family: str, layers: int, where: str, integer: Any) -> tuple[int, ...]:
    if data.get("sliding_window") is None or data.get("use_sliding_window") is False:
        return ()
    window = integer("sliding_window")
    kinds = data.get("layer_types")
    if kinds is not None:
        known = ("full_attention", "sliding_attention")
        if not isinstance(kinds, list) or len(kinds) != layers or any(k not in known for k in kinds):
            raise InputError(f"{where}: layer_types must list {layers} of {', '.join(known)}", field="layer_types")
        return tuple(window if k == "sliding_attention" else 0 for k in kinds)
    if family == "gemma2":
        return tuple(window if i % 2 == 0 else 0 for i in range(layers))
    if family in ("gemma3", "gemma3_text"):
        pattern = integer("sliding_window_pattern", 6)
        return tuple(window if (i + 1) % pattern else 0 for i in range(layers))
    if family == "mistral":
        return (window,) * layers
    if family in ("qwen2", "qwen3"):
        # Qwen's own rule: with use_sliding_window the layers from max_window_layers on have the window
        if not data.get("use_sliding_window"):
            return ()
        first = data.get("max_window_layers", layers)
        if isinstance(first, bool) or not isinstance(first, int):
            raise InputError(
                f"{where}: max_window_layers = {str(first)[:40]!r} is not a whole number", field="max_window_layers"
            )
        return tuple(window if i >= first else 0 for i in range(layers))
    return ()
