"""How a quantised checkpoint stores its weights: bits by part of the model, from `quantization_config`."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rooftop.errors import InputError
from rooftop.transformer._fields import Fields

#: A parameter's name in a checkpoint for each part of a model that a quantiser may leave alone.
_NAMES: dict[str, tuple[str, ...]] = {
    "embedding": ("model.embed_tokens", "embed"),
    "head": ("lm_head", "head"),
    "router": ("model.layers.9.mlp.gate", "model.layers.9.mlp.router", "model.layers.9.block_sparse_moe.gate"),
    "attention": ("model.layers.9.self_attn.q_proj", "layers.9.attn.wq", "backbone.layers.9.mixer.q_proj"),
    "recurrence": ("model.layers.9.linear_attn.in_proj_qkv", "backbone.layers.9.mixer.in_proj"),
    "mlp": ("model.layers.9.mlp.down_proj", "model.layers.9.mlp.up_proj"),
    "experts": (
        "model.layers.9.mlp.experts.9.up_proj", "layers.9.ffn.experts.9.w1", "model.layers.9.block_sparse_moe.experts.9.w1",
    ),
    "shared_experts": (
        "model.layers.9.mlp.shared_experts.up_proj", "model.layers.9.mlp.shared_expert.up_proj",
        "layers.9.ffn.shared_experts.w1",
    ),
}  # fmt: skip

#: Where a family calls a part otherwise.
_OTHERWISE: dict[str, dict[str, tuple[str, ...]]] = {
    "gemma4_text": {"experts": ("model.layers.9.experts.9.up_proj",)},
    "kimi_linear": {"recurrence": _NAMES["attention"]},
}


def formats(f: Fields, layers: int) -> tuple[str, tuple[tuple[str, float], ...]]:
    """The name of a checkpoint's format and bits of a stored weight, with its share of scales, by part.

    Raises InputError for a method that is not known: its bytes would be a guess.
    """
    config = f.object("quantization_config")
    if not config:
        return "", ()
    q = f.inside("quantization_config", config)
    method = q.word("quant_method", default="")
    name, bits = _bits(q, config, method)
    skipped = _patterns(config, layers)
    names = _NAMES | _OTHERWISE.get(f.family, {})
    parts = {
        part: bits.get(part, bits.get("", 0.0))
        for part in ("attention", "recurrence", "mlp", "experts", "shared_experts")
        if not any(_matches(pattern, known) for pattern in skipped for known in names[part])
    }
    algorithm = q.word("moe_quant_algo", default="").upper()
    expert = f.word("expert_dtype", default="")
    if algorithm == "NVFP4" or (expert == "fp4" and not algorithm):
        # NVFP4: a scale byte for 16 values; MXFP4: for 32
        parts["experts"] = 4.5 if algorithm else 4.25
        name = f"{name}, experts {'nvfp4' if algorithm else 'fp4'}"
    if method == "mxfp4":  # only experts are stored so
        parts = {part: b for part, b in parts.items() if part == "experts"}
    return name, tuple((part, b) for part, b in parts.items() if b)


def _bits(q: Fields, config: Mapping[str, Any], method: str) -> tuple[str, dict[str, float]]:
    """A name, and bits by part; "" stands for all other parts."""
    algorithm = str(config.get("quant_algo") or "").upper()
    if method == "fp8" or (method == "modelopt" and algorithm == "FP8"):
        block = q.integers("weight_block_size")
        # one f32 scale for each block, or for each matrix
        return "fp8", {"": 8 + (32 / (block[0] * block[1]) if block and len(block) == 2 and min(block) > 0 else 0)}
    if method == "mxfp4":
        return "mxfp4", {"": 4 + 8 / 32}
    if method in ("awq", "gptq"):
        width, group = (
            q.integer("bits", "w_bit", default=4),
            q.integer("group_size", "q_group_size", default=128, least=-1),
        )
        # a 16-bit scale and a zero point of the same width for each group
        return f"{method} int{width}", {"": width + ((16 + width) / group if group > 0 else 0)}
    if method == "bitsandbytes":
        if not config.get("load_in_4bit"):
            return "bitsandbytes int8", {"": 8.0}
        # QLoRA (Dettmers et al. 2023, section 3): an f32 scale for 64 weights; double: 8-bit scales, an f32 for 256 of them
        scale = 8 / 64 + 32 / (64 * 256) if config.get("bnb_4bit_use_double_quant") else 32 / 64
        return "bitsandbytes 4 bit", {"": 4 + scale}
    if method in ("modelopt", "compressed-tensors", "nvfp4") or algorithm:
        return _groups(q, config, method, algorithm)
    raise InputError(
        f"{q.where}: quant_method = {method[:40]!r} is not known; known are fp8, mxfp4, nvfp4 (modelopt), awq, gptq,"
        " bitsandbytes, compressed-tensors",
        field="quantization_config",
    )


def _groups(q: Fields, config: Mapping[str, Any], method: str, algorithm: str) -> tuple[str, dict[str, float]]:
    """Bits of a config that lists groups of layers, each with its targets: "Linear", or names of modules."""
    found: dict[str, float] = {}
    labels: list[str] = []
    groups = config.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            continue
        w = q.inside("weights", weights)
        width, size = w.integer("num_bits", default=16), w.integer("group_size", default=0, least=0)
        kind = "fp" if w.word("type", default="int") == "float" else "int"
        scale = 8 if kind == "fp" and width == 4 else 16
        bits = width + (scale / size if size else 0)
        labels.append("nvfp4" if (kind, width, size) == ("fp", 4, 16) else f"{kind}{width}")
        targets = group.get("targets")
        names = [t for t in targets[:50_000] if isinstance(t, str)] if isinstance(targets, list) else ["Linear"]
        if any(len(t) < 40 and "." not in t for t in names):
            found[""] = bits
        for part, known in _NAMES.items():
            if {_plain(t).replace("language_model.", "") for t in names}.intersection(known):
                found[part] = bits
    if found:
        return f"{method} {' + '.join(dict.fromkeys(labels))}", found
    widths = {"NVFP4": 4.5, "FP8": 8.0, "W4A16": 4 + 16 / 128, "INT8": 8.0, "NVFP4_AWQ": 4.5}
    if algorithm not in widths:
        raise InputError(
            f"{q.where}: neither config_groups nor a known quant_algo ({algorithm[:40] or 'none'})",
            field="quantization_config",
        )
    return f"{method} {algorithm.lower()}", {"": widths[algorithm]}


def _plain(name: str) -> str:
    """A module's name with 9 for every number."""
    return ".".join("9" if word.isdigit() else word for word in name.split("."))


def _patterns(config: Mapping[str, Any], layers: int) -> list[str]:
    """Patterns of what is left alone. Those that name one layer count where at least half of the layers are named."""
    found: list[str] = []
    for key in ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules"):
        value = config.get(key)
        if isinstance(value, list):
            found += [v for v in value[:50_000] if isinstance(v, str) and len(v) < 300]
    count = Counter(
        _plain(p.removeprefix("re:").replace("\\.", ".").replace(".*", "*").replace("language_model.", ""))
        for p in found
    )
    return [
        pattern for pattern, n in count.items() if "9" not in pattern.replace("*", ".").split(".") or 2 * n >= layers
    ]


def _matches(pattern: str, name: str) -> bool:
    """Whether a quantiser's pattern means a module: its name, the start of it, or a wildcard."""
    if "*" in pattern or "(" in pattern:
        return any(fnmatch.fnmatch(name, form) or fnmatch.fnmatch(name, f"{form}.*") for form in _spelled(pattern))
    return name == pattern or name.startswith(f"{pattern}.") or f".{pattern}." in name or name.endswith(f".{pattern}")


def _spelled(pattern: str) -> list[str]:
    """Alternatives such as (gate|up)_proj one by one."""
    before, _, rest = pattern.partition("(")
    if not rest:
        return [pattern]
    inside, _, after = rest.partition(")")
    return [before + word + after for word in inside.split("|")[:50]]
