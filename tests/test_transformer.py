"""Architectures: published parameter counts, config files of each family, exact counts of causal attention."""

import json
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rooftop.errors import InputError
from rooftop.transformer import (
    Attention,
    architecture,
    attended,
    flops_per_token,
    from_config,
    kv_bytes_per_token,
    kv_cache_bytes,
    models,
    parameters,
    programs,
    read_config,
    training_flops_per_token,
    uniform,
)

PUBLISHED = [name for name in models() if architecture(name).published_parameters]


def test_the_catalogue_is_published():
    assert len(PUBLISHED) > 20
    assert all(architecture(name).source and architecture(name).date for name in models())


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_equal_the_published_number(name):
    model = architecture(name)
    counted = parameters(model)
    assert counted.total == model.published_parameters
    assert sum(counted.parts.values()) == counted.total


def test_palm_has_the_parameters_of_its_paper_to_its_digits():
    assert parameters(architecture("palm-540b")).total // 10**7 == 54035


@pytest.mark.parametrize("name", models())
def test_aliases_lead_to_the_model(name):
    for alias in architecture(name).aliases:
        assert architecture(alias) == architecture(name)


def llama(**changes):
    return {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
        "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, **changes,
    }  # fmt: skip


def test_llama_config():
    model = from_config(llama(), name="mine")
    assert (model.attention, model.tied, model.windows, model.max_seq) == (Attention(8, 2, 8), False, (), 2048)
    attention = 64 * 64 * 2 + 64 * 16 * 2
    assert parameters(model).total == 2 * 1000 * 64 + 4 * (attention + 3 * 64 * 128 + 2 * 64) + 64


def test_missing_kv_heads_mean_one_for_each_head():
    config = llama()
    del config["num_key_value_heads"]
    assert from_config(config, name="mine").attention.kv_heads == 8


def test_attention_bias_of_llama_is_on_all_four_projections():
    plain, biased = (parameters(from_config(llama(attention_bias=b), name="m")).total for b in (False, True))
    assert biased - plain == 4 * (64 + 16 + 16 + 64)


def test_mistral_config_has_a_window_everywhere():
    model = from_config(llama(model_type="mistral", sliding_window=256), name="m")
    assert model.windows == (256,) * 4
    assert from_config(llama(model_type="mistral", sliding_window=None), name="m").windows == ()


def test_qwen2_config_has_biases_on_queries_keys_and_values_only():
    model = from_config(llama(model_type="qwen2", use_sliding_window=False, sliding_window=128), name="m")
    assert (model.attention.bias, model.windows) == ("qkv", ())
    assert parameters(model).total - parameters(from_config(llama(), name="m")).total == 4 * (64 + 16 + 16)
    late = from_config(
        llama(model_type="qwen2", use_sliding_window=True, sliding_window=128, max_window_layers=2), name="m"
    )
    assert late.windows == (0, 0, 128, 128)


def test_qwen3_config_has_head_norms():
    model = from_config(llama(model_type="qwen3", head_dim=16), name="m")
    assert (model.attention.qk_norm, model.attention.head_dim, model.attention.bias) == ("head", 16, "")


def test_gemma_configs():
    assert from_config(llama(model_type="gemma", head_dim=256), name="m").tied
    second = from_config(llama(model_type="gemma2", sliding_window=512), name="m")
    assert (second.tied, second.stack[0].norms, second.windows) == (True, "both", (512, 0, 512, 0))
    text = llama(model_type="gemma3_text", num_hidden_layers=7, sliding_window=512, sliding_window_pattern=6)
    third = from_config(text, name="m")
    assert (third.attention.qk_norm, third.stack[0].norms, third.windows) == (
        "head",
        "both",
        (512, 512, 512, 512, 512, 0, 512),
    )
    inner = {k: v for k, v in text.items() if k != "vocab_size"}
    seeing = {"model_type": "gemma3", "text_config": inner, "vision_config": {"hidden_size": 1152, "patch_size": 14}}
    whole = from_config(seeing, name="m")
    assert whole.vocab == 262208
    assert parameters(whole).parts["vision"] > 4e8
    with pytest.raises(InputError, match="head_dim = 0"):
        from_config({**seeing, "vision_config": {"hidden_size": 3}}, name="m")


def test_layer_types_decide_windows():
    kinds = ["full_attention", "sliding_attention"] * 2
    assert from_config(llama(sliding_window=64, layer_types=kinds), name="m").windows == (0, 64, 0, 64)


def test_unknown_fields_are_told_and_unknown_families_refused():
    assert "flux" in from_config(llama(flux=3), name="m").notes[0]
    assert "read like llama" in from_config(llama(model_type="lama"), name="m").notes[0]
    with pytest.raises(InputError, match="not known"):
        from_config(llama(model_type="lama", flux=3), name="m")


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": None}, {"model_type": 3}, {"hidden_size": None}, {"hidden_size": "64"}, {"hidden_size": 0}, {"hidden_size": -64},
        {"hidden_size": 64.5}, {"hidden_size": True}, {"hidden_size": 10**30}, {"num_hidden_layers": 10**8}, {"num_attention_heads": 7},
        {"num_key_value_heads": 3}, {"num_key_value_heads": "x"}, {"tie_word_embeddings": "yes"}, {"num_local_experts": 8}, {"kv_lora_rank": 512}, {"compress_ratios": [4]},
        {"quantization_config": {"bits": 4}}, {"quantization_config": 4}, {"sliding_window": "x", "model_type": "mistral"}, {"layer_types": ["odd"], "sliding_window": 4},
        {"layer_types": 3, "sliding_window": 4}, {"model_type": "gemma3"}, {"vocab_size": []}, {"head_dim": 0},
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4, "max_window_layers": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_configs_that_are_refused(changes):
    config = {k: v for k, v in llama(**changes).items() if v is not None}
    with pytest.raises(InputError) as refused:
        from_config(config, name="m", where="config.json")
    assert "\n" not in refused.value.message
    assert len(refused.value.message) < 500


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2), max_leaves=4,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from([*llama(), "sliding_window", "layer_types", "text_config", "head_dim", "max_window_layers"]), JUNK,
                       max_size=3), st.sampled_from(["llama", "mistral", "qwen2", "gemma2", "gemma3", "gemma3_text"]))  # fmt: skip
def test_any_config_is_read_or_refused(changes, family):
    try:
        model = from_config(llama(model_type=family, use_sliding_window=True) | changes, name="m")
    except InputError as error:
        assert "\n" not in error.message
    else:
        assert model.layers >= 1


def test_files(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(llama()))
    assert architecture(str(tmp_path)) == read_config(tmp_path / "config.json")
    assert architecture(str(tmp_path)).name == tmp_path.name
    table = tmp_path / "own.toml"
    table.write_text("layers = 2\nd_model = 64\nheads = 4\nd_ff = 128\nvocab = 100\ntied = true\n")
    assert (architecture(str(table)).name, architecture(str(table)).tied) == ("own", True)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"3", b'"x"', b"\xff\xfe", b"{" * 100_000, b"[" * 100_000, b" " * 1_100_000, b"NaN"]
)
def test_files_that_are_refused(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        architecture(str(path))
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("lama-3-70b", "did you mean"), ("none.json", "cannot read"), ("layers=2", "lacks d_model"), ("layer=2", "unknown number"),
        ("layers=2,d_model=65,heads=4,d_ff=1,vocab=1", "do not divide"), ("layers=2,d_model=64,heads=4,d_ff=1,vocab=1,tied=maybe", "not true"),
        ("layers=0,d_model=64,heads=4,d_ff=1,vocab=1", "out of range"), ("layers=2,d_model=64,heads=4,kv_heads=3,d_ff=1,vocab=1", "do not divide"),
        ("x" * 5000, "5000 characters"), ("layers=2,d_model=64,heads=0,d_ff=1,vocab=1", "divide|range"), ("", "unknown model"),
    ],
)  # fmt: skip
def test_models_that_are_refused(text, part):
    with pytest.raises(InputError, match=part) as refused:
        architecture(text)
    assert "\n" not in refused.value.message


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(0, 70))
def test_attended_points_are_counted_exactly(seq, window):
    pairs = sum(1 for q in range(seq) for k in range(q + 1) if not window or q - k < window)
    assert attended(seq, window) * seq * seq == pytest.approx(pairs, rel=1e-12)


def test_flops_of_llama_3_70b():
    model = architecture("llama-3-70b")
    flops = flops_per_token(model, 4096)
    in_matmuls = parameters(model).total - model.vocab * model.d_model - (2 * model.layers + 1) * model.d_model
    assert flops.matmul == 2 * in_matmuls
    assert flops.attention_book == 4 * 4096 * model.attention.heads * model.attention.head_dim * model.layers
    assert flops.attention == pytest.approx(flops.attention_book * 4097 / 8192, rel=1e-12)
    assert training_flops_per_token(model, 4096) == 3 * flops.forward
    assert sum(flops.parts.values()) == pytest.approx(flops.forward, rel=1e-12)


def test_kv_cache_of_llama_3_70b():
    model = architecture("llama-3-70b")
    assert kv_bytes_per_token(model) == 2 * 80 * 8 * 128 * 2
    assert kv_bytes_per_token(model, "int8") == 2 * 80 * 8 * 128
    assert kv_cache_bytes(model, 8192) == 8192 * kv_bytes_per_token(model)


def test_windows_bound_the_cache():
    model = replace(architecture("llama-3-8b"), stack=uniform(32, 32, 8, 128, 14336, windows=(1024,) * 16 + (0,) * 16))
    each = 2 * 8 * 128 * 2
    assert kv_cache_bytes(model, 4096) == each * (16 * 1024 + 16 * 4096)
    assert kv_cache_bytes(model, 512) == each * 32 * 512
    assert [b.count for b in programs(model, 4096).blocks] == [16, 16]
    assert len(programs(model, 1024).blocks) == 1


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(models()), st.integers(1, 10**5), st.integers(1, 10**5))
def test_longer_sequences_never_cost_a_token_less(name, first, second):
    model = architecture(name)
    assume(
        not any(isinstance(m, Attention) and m.chunk for m in model.mixers)
    )  # a token that opens a chunk sees little
    short, long = sorted((first, second))
    assert flops_per_token(model, short).forward <= flops_per_token(model, long).forward * (1 + 1e-12)
    assert flops_per_token(model, long).attention <= flops_per_token(model, long).attention_book
    assert kv_cache_bytes(model, short) <= kv_cache_bytes(model, long)
