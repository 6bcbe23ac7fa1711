"""Hugging Face `config.json`: outside data, read with suspicion. Nothing is executed, nothing is silently dropped."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from rooftop._files import read_text
from rooftop.errors import InputError, nearest
from rooftop.transformer._architecture import Architecture
from rooftop.transformer._families import Traits, decoder, families, reader
from rooftop.transformer._fields import Fields
from rooftop.transformer._quantization import formats
from rooftop.transformer._senses import towers

_MOST_BYTES = 1_000_000

#: Fields that change the arithmetic: one that a reader has not used must say "no".
_CHANGES = (
    "num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size", "q_lora_rank", "kv_lora_rank",
    "num_experts_per_tok", "n_shared_experts", "ssm_state_size", "mamba_d_state", "linear_num_value_heads", "index_topk",
    "num_nextn_predict_layers", "cross_attention", "num_kv_shared_layers", "hidden_size_per_layer_input", "parallel_attn",
    "sparse_attention_config", "linear_attn_config", "hc_mult", "compress_ratios", "block_configs", "altup_num_inputs",
    "attention_bias", "mlp_bias", "is_encoder_decoder", "layer_types", "attention_chunk_size", "add_bias_linear",
    "use_bias",
)  # fmt: skip


@functools.cache
def _harmless() -> frozenset[str]:
    """Fields that change no count."""
    text = resources.files("rooftop.transformer").joinpath("data/config-fields.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if not line.startswith("#"))


def read_config(path: Path) -> Architecture:
    """An architecture from a config.json or the folder that holds one. Raises InputError in one line for anything odd."""
    if path.is_dir():
        path = path / "config.json"
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise InputError(f"{path} has {size:,} bytes; a config.json has at most {_MOST_BYTES:,}", field="model")
        data = json.loads(read_text(path, _MOST_BYTES))
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


def from_config(data: Mapping[str, Any], *, name: str, where: str = "config", **known: Any) -> Architecture:
    """An architecture from the fields of a config.json; `known` adds what a catalogue knows beside it."""
    family = data.get("model_type")
    if not isinstance(family, str):
        raise InputError(f"{where}: model_type is missing; it names the family, such as llama", field="model_type")
    outer = Fields(data, where, family)
    f, kind = outer, family
    if family in ("gemma3", "gemma4", "llama4", "paligemma") or (
        "text_config" in data and not {"hidden_size", "num_hidden_layers"} <= set(data)
    ):
        inner = outer.object("text_config")
        if inner is None:
            raise InputError(
                f"{where}: text_config is missing; it describes the language model of a {family[:40]}",
                field="text_config",
            )
        shared = {k: v for k, v in data.items() if k in ("tie_word_embeddings", "quantization_config")}
        merged = {**_gemma3_defaults(family), **inner, **shared}
        kind = str(merged.get("model_type", family))
        f = Fields(merged, f"{where}: text_config", kind)
        f.notes = outer.notes
    read = reader(kind)
    if read is None:
        _gated_activation(f)
    fields = read(f) if read else decoder(f, Traits(unknown=True))
    label, bits = formats(f, len(fields["stack"]))
    fields["towers"] = towers(outer, family, fields["d_model"])
    notes = _account(outer, f, kind, family, exact=read is not None, where=where)
    warning = "" if read else f"{name}: {notes[-1]}"
    if label:
        notes.append(f"weights are stored as {label}")
    elif any(word in name.upper() for word in ("FP8", "FP4", "AWQ", "GPTQ", "INT4", "INT8")):
        notes.append("the name says that weights are quantised, the config does not say how: they are counted in bf16")
    return Architecture(
        name=name, family=family, warning=warning, source=known.pop("source", where), quantization=label, formats=bits,
        notes=tuple(f"{name}: {note}" for note in dict.fromkeys(notes)), **fields, **known,
    )  # fmt: skip


def _gated_activation(f: Fields) -> None:
    """Refuse a family that is not known if its activation leaves open whether its MLPs have two matrices or three."""
    name = f.word("hidden_act", "hidden_activation", "activation_function", default="silu")
    if name not in ("silu", "swish", "swiglu"):
        raise InputError(
            f"{f.where}: the family {f.family[:40]!r}{nearest(f.family, families())} is not known, and hidden_act = {name[:40]} does"
            " not say whether its MLPs are gated; give a model of a known family, or numbers",
            field="hidden_act",
        )


def _account(outer: Fields, f: Fields, kind: str, family: str, *, exact: bool, where: str) -> list[str]:
    """Say what was not understood; refuse what changes the arithmetic."""
    notes = list(outer.notes)
    known = {*_harmless(), *outer.used, *f.used}
    both = {**outer.data, **f.data} if f is not outer else dict(f.data)
    for field in _CHANGES:
        if both.get(field) and field not in f.used and field not in outer.used:
            raise InputError(
                f"{where}: {field} = {str(both[field])[:40]} changes the arithmetic of {kind[:40]} in a way that is not modelled;"
                " give a model of one of the families that docs/reference/models lists",
                field=field,
            )
    unknown = sorted(k for k in both if k not in known and k != "text_config" and both[k] not in (None, False, [], {}))
    if not exact:
        names = nearest(kind, families())
        if unknown:
            raise InputError(
                f"{where}: the family {kind[:40]!r}{names} is not known, and neither is what"
                f" its fields change: {', '.join(u[:40] for u in unknown[:4])}; give a model of one of the families that"
                " docs/reference/models lists, or numbers",
                field="model_type",
            )
        used = ", ".join(sorted(k for k in f.data if k in f.used))
        ignored = ", ".join(sorted(both.keys() - f.used - outer.used - {"model_type"}))
        notes.append(
            f"the family {kind[:40]!r}{names} is not known and is read like llama from {used[:600]};"
            f" ignored: {ignored[:600] or 'nothing'}"
        )
    elif unknown:
        notes.append(f"fields not used: {', '.join(u[:40] for u in unknown[:12])}")
    return notes


def _gemma3_defaults(family: str) -> dict[str, Any]:
    """What the Gemma 3 configuration class assumes where a config.json of its first months is silent."""
    if family != "gemma3":
        return {}
    return {"vocab_size": 262208, "head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4,
            "sliding_window_pattern": 6, "model_type": "gemma3_text"}  # fmt: skip
