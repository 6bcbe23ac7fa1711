"""Towers of multimodal configs: images beside the language model, from `vision_config`."""

from __future__ import annotations

from dataclasses import replace

from rooftop.errors import InputError
from rooftop.transformer._fields import Fields
from rooftop.transformer._layers import MLP, Attention, Layer, Projection, Tower


def towers(f: Fields, family: str, d_model: int) -> tuple[Tower, ...]:
    """The towers that a config describes; what cannot be counted is said in a note."""
    return (*_vision(f, family, d_model), *_audio(f, family, d_model))


def _vision(f: Fields, family: str, d_model: int) -> tuple[Tower, ...]:
    config = f.object("vision_config")
    if not config:
        if family == "step3p7":
            f.notes.append("the family's vision tower is not in this config, and is not counted")
        return ()
    v = f.inside("vision_config", config)
    if family.startswith(("qwen3_vl", "qwen3_5")):
        return (_qwen(v),)
    if family == "qwen2_vl":
        return (_qwen2(v, d_model),)
    if family in ("llava", "llava_next"):
        return (_clip(f, v, d_model, newline=family == "llava_next"),)
    if family == "qwen2_5_vl":
        return (_qwen_gated(v),)
    if family == "mistral3":
        return (_pixtral(v, d_model),)
    if family == "paligemma":
        return (_siglip(v, d_model, (Projection("project", v.integer("hidden_size", default=1152), d_model),)),)
    if family in ("idefics3", "smolvlm"):
        wide = v.integer("hidden_size", default=1152) * f.integer("scale_factor", default=2) ** 2
        return (_siglip(v, d_model, (Projection("project", wide, d_model, bias=False),)),)
    if family in ("glm4v", "glm46v"):
        return (_glm(v),)
    if family.startswith("gemma3") and family != "gemma3n":
        return (_siglip(v, d_model),)
    if family == "gemma4":
        return (_gemma4(v, d_model),)
    if family == "llama4":
        return (_llama4(v, d_model),)
    if family.startswith("kimi"):
        return (_moonvit(v, d_model),)
    if family in ("internvl", "internvl_chat"):
        return (_internvl(f, v, d_model),)
    if family == "mllama":
        return (_mllama(v, d_model),)
    if family == "step3p7":
        return (_step(v, d_model),)
    f.notes.append(f"only the language model is counted, not the vision tower of the {family[:40]} config")
    return ()


def _audio(f: Fields, family: str, d_model: int) -> tuple[Tower, ...]:
    config = f.object("audio_config")
    if not config:
        return ()
    if family in ("qwen2_audio", "voxtral"):
        return (_whisper(f.inside("audio_config", config), family, d_model),)
    f.notes.append("the audio tower of the config is not counted")
    return ()


def _whisper(a: Fields, family: str, d_model: int) -> Tower:
    """The encoder of Whisper: two convolutions over spectra (the second halves the length), no biases on keys."""
    d, heads = (
        a.integer("d_model", "hidden_size", default=1280),
        a.integer("encoder_attention_heads", "num_attention_heads", default=20),
    )
    width = a.integer("encoder_ffn_dim", "intermediate_size", default=5120)
    layer = Layer(Attention(heads, heads, d // heads, causal=False, bias="qvo"), MLP(width, False, True))
    ends: tuple[Projection, ...] = (Projection("convolution", 3 * d, d),)
    if family == "voxtral":  # four frames are one token of the language model
        ends += (
            Projection("project", width, d_model, bias=False),
            Projection("project again", d_model, d_model, bias=False),
        )
    else:
        ends += (Projection("project", d, d_model),)
    places = a.integer("max_source_positions", default=1500)
    return Tower(
        "audio", d, (layer,) * min(1000, a.integer("encoder_layers", "num_hidden_layers", default=32)),
        3 * a.integer("num_mel_bins", default=128), places, positions=places, norms_at_ends=1, projections=ends,
    )  # fmt: skip


def _internvl(f: Fields, v: Fields, d_model: int) -> Tower:
    """InternViT: a vector for the class, learned gains of each part, four patches shuffled into one, two matrices."""
    d, heads = v.integer("hidden_size", default=1024), v.integer("num_attention_heads", default=16)
    biased = v.flag("attention_bias", "qkv_bias")
    norm = v.flag("use_qk_norm", "qk_normalization")
    layer = Layer(
        Attention(heads, heads, d // heads, causal=False, bias="qkvo" if biased else "o", qk_norm="full" if norm else ""),
        MLP(v.integer("intermediate_size", default=4096), False, True), gains="vector",
    )  # fmt: skip
    patch, image = _pair(v, "patch_size", 14), _pair(v, "image_size", 448)
    places = (image // patch) ** 2 + 1
    root = v.word("norm_type", default="layer_norm") == "rms_norm"
    ratio = f.number("downsample_ratio", 0.5)
    merged = int(d / ratio**2) if ratio else d
    return Tower(
        "vision", d, (layer,) * min(1000, v.integer("num_hidden_layers", default=24)), 3 * patch**2, places, positions=places,
        norm_weights=1 if root else 2, norms_at_ends=0 if v.flag("use_mean_pooling", default=True) else 1, vectors=1,
        projections=(
            Projection("merge", merged, d_model, norm=merged, norm_weights=2), Projection("project", d_model, d_model),
        ),
    )  # fmt: skip


def _pair(v: Fields, name: str, default: int) -> int:
    """A side in pixels, given once or for both sides."""
    if isinstance(v.find(name)[1], list):
        sides = v.integers(name, 2)
        assert sides is not None
        return sides[0]
    return v.integer(name, default=default)


def _mllama(v: Fields, d_model: int) -> Tower:
    """Llama 3.2 Vision: layers of each tile, layers over all tiles with gates, positions of tiles."""
    d, heads = v.integer("hidden_size", default=1280), v.integer("attention_heads", "num_attention_heads", default=16)
    layer = Layer(
        Attention(heads, heads, d // heads, causal=False),
        MLP(v.integer("intermediate_size", default=5120), False, True),
    )
    gated = replace(layer, gains="one")
    patch, image, tiles = (
        v.integer("patch_size", default=14),
        v.integer("image_size", default=448),
        v.integer("max_num_tiles", default=4),
    )
    places = (image // patch) ** 2 + 1
    ratios = v.find("supported_aspect_ratios")[1]
    shapes = (len(ratios) if isinstance(ratios, list) else 8) + 1
    v.find("intermediate_layers_indices", "max_aspect_ratio_id")
    return Tower(
        "vision", d, (layer,) * min(1000, v.integer("num_hidden_layers", default=32))
        + (gated,) * min(1000, v.integer("num_global_layers", default=8)),
        3 * patch**2, places * tiles, patch_bias=False, positions=places + shapes * tiles * (places + 2), norms_at_ends=2, vectors=1,
        projections=(
            Projection("project", v.integer("vision_output_dim", default=6 * d), d_model),
            Projection("gates of positions", 1, 3, bias=False),
        ),
    )  # fmt: skip


def _step(v: Fields, d_model: int) -> Tower:
    """Step-3.7: learned gains of each part, two convolutions that halve the sides, one matrix."""
    d, heads = v.integer("hidden_size", "width", default=1536), v.integer("num_attention_heads", "heads", default=16)
    layer = Layer(
        Attention(heads, heads, d // heads, causal=False, bias="qkvo"), MLP(v.integer("intermediate_size", default=8960), False, True),
        gains="vector",
    )  # fmt: skip
    patch, image = v.integer("patch_size", default=14), v.integer("image_size", default=728)
    places = (image // patch) ** 2
    return Tower(
        "vision", d, (layer,) * min(1000, v.integer("num_hidden_layers", "layers", default=47)), 3 * patch**2, places, patch_bias=False,
        positions=places, norms_at_ends=1, projections=(
            Projection("downsample", 9 * d, 2 * d), Projection("downsample again", 18 * d, 4 * d),
            Projection("project", 4 * d, d_model, bias=False),
        ),
    )  # fmt: skip


def _patch(v: Fields, size: int | None = None, *, frames: int = 1) -> int:
    """Values of a patch: colours x frames x pixels. `size` and `frames` are the family's where the config is silent."""
    colours = v.integer("in_channels", "in_chans", "num_channels", default=3)
    return colours * v.integer("temporal_patch_size", default=frames) * v.integer("patch_size", default=size) ** 2


def _qwen(v: Fields) -> Tower:
    d, heads = v.integer("hidden_size"), v.integer("num_heads")
    merged = d * v.integer("spatial_merge_size", default=2) ** 2
    out = v.integer("out_hidden_size")
    deep = len(v.integers("deepstack_visual_indexes") or ())
    layer = Layer(
        Attention(heads, heads, d // heads, causal=False, bias="qkvo"), MLP(v.integer("intermediate_size"), False, True)
    )
    merge: tuple[Projection, ...] = (Projection("merge", merged, merged, norm=d), Projection("project", merged, out))
    if deep:
        merge += (Projection("merge deep", merged, merged, norm=merged, count=deep),)
        merge += (Projection("project deep", merged, out, count=deep),)
    positions = v.integer("num_position_embeddings", default=0, least=0)
    patch = _patch(v, frames=2)
    return Tower(
        "vision",
        d,
        (layer,) * min(1000, v.integer("depth")),
        patch,
        positions or 2304,
        positions=positions,
        projections=merge,
    )


def _qwen2(v: Fields, d_model: int) -> Tower:
    """Qwen2-VL: `embed_dim` is the width of the tower, `hidden_size` that of the language model."""
    d, heads = v.integer("embed_dim", default=1280), v.integer("num_heads", default=16)
    merged = d * v.integer("spatial_merge_size", default=2) ** 2
    layer = Layer(
        Attention(heads, heads, d // heads, causal=False, bias="qkvo"), MLP(v.integer("mlp_ratio", default=4) * d, False, True)
    )  # fmt: skip
    return Tower(
        "vision", d, (layer,) * min(1000, v.integer("depth", default=32)), _patch(v, 14, frames=2), 4096,
        patch_bias=False, projections=(
            Projection("merge", merged, merged, norm=d), Projection("project", merged, v.integer("hidden_size", default=d_model)),
        ),
    )  # fmt: skip


def _clip(f: Fields, v: Fields, d_model: int, *, newline: bool) -> Tower:
    """CLIP as LLaVA has it: a vector for the class, norms at both ends, a projector of two matrices."""
    d, heads = v.integer("hidden_size", default=768), v.integer("num_attention_heads", default=12)
    patch, image = v.integer("patch_size", default=32), v.integer("image_size", default=224)
    layer = Layer(
        Attention(heads, heads, d // heads, causal=False, bias="qkvo"), MLP(v.integer("intermediate_size", default=3072), False, True)
    )  # fmt: skip
    kind = v.word("model_type", default="clip_vision_model")
    if kind != "clip_vision_model":
        raise InputError(
            f"{v.where}: model_type = {kind[:40]} is not modelled; clip_vision_model is", field="vision_config"
        )
    bias = f.flag("multimodal_projector_bias", default=True)
    places = (image // patch) ** 2 + 1
    ends: tuple[Projection, ...] = (
        Projection("project", d, d_model, bias=bias),
        Projection("project again", d_model, d_model, bias=bias),
    )
    if newline:  # a vector of the language model's width that ends a row of patches
        ends += (Projection("newline", 1, d_model, bias=False),)
    return Tower(
        "vision", d, (layer,) * min(1000, v.integer("num_hidden_layers", default=12)), _patch(v, 32),
        places, patch_bias=False, positions=places, norms_at_ends=2, vectors=1, projections=ends,
    )  # fmt: skip


def _qwen_gated(v: Fields) -> Tower:
    """Qwen2.5-VL: RMS norms and gated MLPs with biases."""
    d, heads = v.integer("hidden_size"), v.integer("num_heads")
    merged = d * v.integer("spatial_merge_size", default=2) ** 2
    layer = Layer(
        Attention(heads, heads, d // heads, causal=False, bias="qkvo"), MLP(v.integer("intermediate_size"), True, True)
    )
    patch = _patch(v, 14, frames=2)
    merge = (Projection("merge", merged, merged, norm=d), Projection("project", merged, v.integer("out_hidden_size")))
    return Tower(
        "vision",
        d,
        (layer,) * min(1000, v.integer("depth")),
        patch,
        4096,
        patch_bias=False,
        norm_weights=1,
        projections=merge,
    )


def _pixtral(v: Fields, d_model: int) -> Tower:
    """The encoder of Mistral Small 3.1 and later: no biases, a norm before the layers, patches merged by four."""
    d, heads = v.integer("hidden_size"), v.integer("num_attention_heads")
    layer = Layer(
        Attention(heads, heads, v.integer("head_dim", default=d // heads), causal=False),
        MLP(v.integer("intermediate_size")),
    )
    merge = (
        Projection("merge", 4 * d, d, bias=False, norm=d), Projection("project", d, d_model, bias=False),
        Projection("project again", d_model, d_model, bias=False),
    )  # fmt: skip
    return Tower(
        "vision", d, (layer,) * min(1000, v.integer("num_hidden_layers")), _patch(v), 4096, patch_bias=False,
        norm_weights=1, norms_at_ends=1, projections=merge,
    )  # fmt: skip


def _siglip(v: Fields, d_model: int, projections: tuple[Projection, ...] = ()) -> Tower:
    d, heads = v.integer("hidden_size", default=1152), v.integer("num_attention_heads", default=16)
    patch, image = v.integer("patch_size", default=14), v.integer("image_size", default=896)
    layer = Layer(
        Attention(heads, heads, d // heads, causal=False, bias="qkvo"),
        MLP(v.integer("intermediate_size", default=4304), False, True),
    )
    places = (image // patch) ** 2
    projection = Projection("project", d, d_model, bias=False, norm=d, norm_weights=1)
    return Tower(
        "vision", d, (layer,) * min(1000, v.integer("num_hidden_layers", default=27)), _patch(v, 14), places, positions=places,
        norms_at_ends=1, projections=projections or (projection,),
    )  # fmt: skip


def _glm(v: Fields) -> Tower:
    """GLM-4.1V: gated MLPs as wide as the output, a convolution that merges four patches, a gated MLP at the end."""
    d, heads, out = v.integer("hidden_size"), v.integer("num_heads"), v.integer("out_hidden_size")
    bias = "qkv" if v.flag("attention_bias") else ""
    layer = Layer(Attention(heads, heads, d // heads, causal=False, bias=bias), MLP(out))
    patch = _patch(v, frames=2)
    places = (v.integer("image_size") // v.integer("patch_size")) ** 2
    width = v.integer("intermediate_size")
    return Tower(
        "vision", d, (layer,) * min(1000, v.integer("depth")), patch, places, positions=places, norm_weights=1, norms_at_ends=2,
        projections=(
            Projection("downsample", d * v.integer("spatial_merge_size", default=2) ** 2, out),
            Projection("project", out, out, bias=False, norm=out, norm_weights=2),
            Projection("widen", out, width, bias=False, count=2), Projection("narrow", width, out, bias=False),
        ),
    )  # fmt: skip


def _gemma4(v: Fields, d_model: int) -> Tower:
    d, heads = v.integer("hidden_size"), v.integer("num_attention_heads")
    layer = Layer(
        Attention(heads, v.integer("num_key_value_heads", default=heads), v.integer("head_dim", default=d // heads), causal=False, qk_norm="head"),
        MLP(v.integer("intermediate_size")), norms="both",
    )  # fmt: skip
    return Tower(
        "vision", d, (layer,) * min(1000, v.integer("num_hidden_layers")), _patch(v), 2520, patch_bias=False,
        positions=2 * v.integer("position_embedding_size", default=10240), norm_weights=1,
        projections=(Projection("project", d, d_model, bias=False),),
    )  # fmt: skip


def _moonvit(v: Fields, d_model: int) -> Tower:
    d, heads = v.integer("vt_hidden_size"), v.integer("vt_num_attention_heads")
    plain = v.find("linear_bias")[1] is False
    root = v.word("norm_type", default="layernorm") == "rmsnorm"
    inner = v.integer("qkv_hidden_size", default=d)
    merge = v.integers("merge_kernel_size") or (2, 2)
    merged = d * merge[0] * merge[-1]
    layer = Layer(
        Attention(heads, heads, inner // heads, causal=False, bias="" if v.find("attn_bias")[1] is False else "qkvo"),
        MLP(v.integer("vt_intermediate_size"), False, not plain),
    )
    places = v.integer("init_pos_emb_height", default=64) * v.integer("init_pos_emb_width", default=64)
    return Tower(
        "vision", d, (layer,) * min(1000, v.integer("vt_num_hidden_layers")), _patch(v), places,
        patch_bias=v.find("patch_embed_proj_bias")[1] is not False, positions=places, norm_weights=1 if root else 2, norms_at_ends=1,
        projections=(Projection("merge", merged, merged, norm=d), Projection("project", merged, d_model)),
    )  # fmt: skip


def _llama4(v: Fields, d_model: int) -> Tower:
    """Llama 4: a vector for the class beside the patches, four patches shuffled into one, an adapter of two matrices."""
    d, heads = v.integer("hidden_size", default=768), v.integer("num_attention_heads", default=16)
    patch, image = v.integer("patch_size", default=14), v.integer("image_size", default=448)
    inner, out = v.integer("projector_input_dim", default=4096), v.integer("projector_output_dim", default=4096)
    places = (image // patch) ** 2 + 1
    width = v.integer("intermediate_size", default=5632)
    layer = Layer(Attention(heads, heads, d // heads, causal=False, bias="qkvo"), MLP(width, False, True))
    v.find("pixel_shuffle_ratio")
    return Tower(
        "vision", d, (layer,) * min(1000, v.integer("num_hidden_layers", default=34)),
        _patch(v, 14), places, patch_bias=False, positions=places, norms_at_ends=2, vectors=1,
        projections=(
            Projection("adapter", width, inner, bias=False), Projection("adapter out", inner, out, bias=False),
            Projection("project", v.integer("vision_output_dim", default=out), d_model, bias=False),
        ),
    )  # fmt: skip
