"""Families of config.json against an independent count of each: that of the library that most of them are written for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rooftop.errors import InputError
from rooftop.transformer import families, from_config, kv_bytes_per_token, kv_cache_bytes, parameters, programs

#: What Transformers 5.24 builds from the configuration that it has for each family, and from variations of it (the second
#: word names what varies); of the fields those that matter.
FAMILIES = json.loads((Path(__file__).parent / "data/families.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_exactly_the_parameters_that_the_library_builds(name):
    model = from_config(FAMILIES[name]["config"], name="m")
    # vectors that correct the router's choice are no parameters there, and in the published counts they are
    assert parameters(model).total == FAMILIES[name]["parameters"] + FAMILIES[name].get("buffers", 0)
    assert programs(model, 128).blocks


def test_most_families_that_are_read_exactly_are_checked_so():
    checked = {name.split()[0] for name in FAMILIES}
    assert len(checked) >= 75
    assert len(set(families()) & checked) >= 60


def test_configs_saved_by_newer_versions_of_the_library_are_the_same_models():
    """DeepSeek-V4 and hybrids name each layer's kind there; their first files had a list of ratios or a pattern."""
    new = FAMILIES["deepseek_v4"]["config"]
    rates = {"sliding_attention": 0, **new["compress_rates"]}
    old = {k: v for k, v in new.items() if k not in ("layer_types", "compress_rates", "mlp_layer_types")}
    old |= {"compress_ratios": [rates[k] for k in new["layer_types"]], "num_hash_layers": 3}
    assert from_config(old, name="m").stack == from_config(new, name="m").stack
    hybrid = FAMILIES["nemotron_h"]["config"]
    assert hybrid["layers_block_type"] == ["linear_attention", "moe", "full_attention", "mlp"]
    old = {k: v for k, v in hybrid.items() if k != "layers_block_type"} | {"hybrid_override_pattern": "ME*-"}
    assert from_config(old, name="m").stack == from_config(hybrid, name="m").stack


@pytest.mark.parametrize("act", ["relu2", "gelu", "xielu", "quick_gelu"])
def test_an_unknown_family_whose_mlp_may_have_two_matrices_is_refused(act):
    config = FAMILIES["llama"]["config"] | {"model_type": "new", "hidden_act": act}
    with pytest.raises(InputError, match="gated") as error:
        from_config(config, name="m")
    assert error.value.field == "hidden_act"
    read = from_config(config | {"hidden_act": "silu"}, name="m")
    assert any("not known" in note for note in read.notes)


def test_short_convolutions_keep_a_few_taps_and_no_keys():
    """LFM2-8B-A1B in small: the first two layers are dense; the library holds the router's corrections apart."""
    config = {
        "model_type": "lfm2_moe", "vocab_size": 65536, "hidden_size": 2048, "intermediate_size": 7168, "moe_intermediate_size": 1792,
        "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8, "conv_L_cache": 3, "num_dense_layers": 2,
        "num_experts_per_tok": 4, "num_experts": 32, "layer_types": ["conv", "conv", "full_attention", "conv"],
    }  # fmt: skip
    model = from_config(config, name="m")
    assert parameters(model).total == 987_926_656 + 2 * 32
    assert kv_bytes_per_token(model) == 2 * 2 * 8 * 64
    assert kv_cache_bytes(model, 1024) - 1024 * kv_bytes_per_token(model) == 3 * 2 * 2048 * 2
    bias = parameters(from_config(config | {"conv_bias": True}, name="m")).total
    assert bias - parameters(model).total == 3 * (3 * 2048 + 2048 + 2048)


def test_sizes_of_single_layers_are_read_and_what_else_they_name_is_refused():
    """Gemma 4 as newer versions of the library save it: global layers have larger heads and fewer of them for keys."""
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    config = {
        "model_type": "gemma4_text", "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 6,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "sliding_window": 128, "layer_types": kinds,
    }  # fmt: skip
    old = from_config(config | {"global_head_dim": 128, "num_global_key_value_heads": 2}, name="m")
    own = {"05": {"head_dim": 128, "num_key_value_heads": 2}}
    assert from_config(config | {"per_layer_config": own}, name="m").stack == old.stack
    for wrong in ({"6": own["05"]}, {"x": own["05"]}, {"05": {"head_dim": 128, "novel": 1}}, {"05": 3}):
        with pytest.raises(InputError, match="per_layer_config"):
            from_config(config | {"per_layer_config": wrong}, name="m")


def test_mixers_side_by_side_have_the_counts_of_both():
    model = from_config(FAMILIES["falcon_h1"]["config"], name="m")
    assert [type(m).__name__ for m in model.mixers[:2]] == ["Attention", "Mamba2"]
    block = programs(model, 128).blocks[0]
    assert {c.name for c in block.caches} >= {"k", "v"}
    assert kv_bytes_per_token(model) == model.layers * 2 * 8 * 128 * 2
