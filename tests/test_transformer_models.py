"""Models that people run: published counts, config files as published, and laws that hold for every kind of layer."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooftop.arrays import Size, fused_only
from rooftop.cli import run
from rooftop.errors import InputError
from rooftop.training import POLICIES, remat
from rooftop.transformer import (
    Attention,
    DeltaNet,
    LatentAttention,
    Mamba2,
    MoE,
    absorbed,
    architecture,
    attended,
    axis_size,
    families,
    flops_per_token,
    from_config,
    generation,
    kv_bytes_per_token,
    kv_cache_bytes,
    models,
    parameters,
    programs,
    read_config,
    training_flops_per_token,
    weight_bytes,
    with_capacity,
    with_vocabulary,
)

CONFIGS = sorted((Path(__file__).parent / "data/configs").glob("*.json"))
ACTIVE = [name for name in models() if architecture(name).published_active]


def config(name):
    return next(path for path in CONFIGS if path.stem.endswith(name))


def test_the_catalogue_covers_what_people_run():
    assert len(models()) >= 60
    published = [name for name in models() if architecture(name).published_parameters]
    assert len(published) >= 100
    assert {a.family for a in map(architecture, models())} >= {
        "gpt2", "opt", "bloom", "falcon", "mixtral", "deepseek_v2", "deepseek_v3", "qwen3_moe", "gpt_oss", "llama4", "dbrx",
        "jamba", "mamba", "nemotron_h", "t5", "bert", "gemma3", "kimi_k3", "deepseek_v4", "glm_moe_dsa",
    }  # fmt: skip


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_within_the_publishers_rounding(name):
    """Publishers count the embedding table, leave it out, or leave out the head, too; they round or cut off the last digit that they give."""
    model = architecture(name)
    count = parameters(model)
    embedding = 0 if model.tied else model.vocab * model.d_model
    candidates = [count.active, count.active - embedding, count.active - 2 * embedding]
    digits = 0.1e9 if model.published_active % 1e9 else 1e9
    assert min(abs(c - model.published_active) for c in candidates) <= digits


#: What a name says, in billions (the whole checkpoint of a model with towers has them).
NAMED = {
    "Qwen3.5-397B-A17B": 397, "Qwen3.5-27B": 27, "GLM-5.3": 744, "DeepSeek-V3": 671, "DeepSeek-V3.2": 671, "gpt-oss-20b": 21,
    "gpt-oss-120b": 117, "gemma-4-26B-A4B": 26, "Gemma-4-31B-IT-NVFP4": 31, "Nemotron-3-Super-120B-A12B-FP8": 120.5,
    "Nemotron-3-Ultra-550B-A55B-BF16": 550, "Nemotron-H-56B-Base-8K": 56, "Llama-3_3-Nemotron-Super-49B-v1": 49.9,
    "Llama-4-Maverick-17B-128E-Instruct": 400, "Llama-4-Scout-17B-16E-Instruct": 108, "Meta-Llama-3.1-405B": 405.5,
    "MiMo-V2-Flash": 309, "MiMo-7B-Base": 7.6, "Kimi-K2-Instruct": 1026, "Mixtral-8x7B-v0.1": 46.7, "Qwen3-0.6B": 0.6,
    # NVIDIA's model card: 31.6B parameters; the name rounds down
    "Nemotron-3-Nano-30B-A3B-BF16": 31.6,
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_a_published_config_has_the_parameters_that_its_name_says(name):
    billions = parameters(read_config(config(name))).total / 1e9
    assert abs(billions - NAMED[name]) <= max(1.0 if NAMED[name] > 50 else 0.5, 0.005 * NAMED[name])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_published_configs_are_read_without_a_silent_guess(path):
    model = read_config(path)
    assert not any("not used" in note or "not known" in note for note in model.notes), model.notes
    count = parameters(model)
    assert 0 < count.active <= count.total == sum(count.parts.values())
    stored = weight_bytes(model)
    assert set(stored) == {*count.parts, *count.beside}
    assert all(bytes <= 2 * (count.parts | count.beside)[part] for part, bytes in stored.items())


def test_a_config_that_leaves_out_the_kv_heads_of_windows_counts_the_same():
    """Transformers 5 saves MiMo-V2-Flash without `swa_*`: its class gives layers with a window twice the KV heads, and sinks."""
    published = json.loads(config("MiMo-V2-Flash").read_text())
    kinds = ["sliding_attention" if w else "full_attention" for w in published["hybrid_layer_pattern"]]
    gone = ("swa_", "hybrid_", "add_", "attention_chunk_size", "sliding_window_size")
    saved = {k: v for k, v in published.items() if not k.startswith(gone)} | {"layer_types": kinds}
    first, second = (from_config(data, name="m") for data in (published, saved))
    assert first.stack == second.stack
    assert first.stack[1].mixer.kv_heads == 2 * first.stack[0].mixer.kv_heads == 8
    assert (first.stack[0].mixer.sinks, first.stack[1].mixer.sinks) == (False, True)


def step():
    """The language model of Step-3.7-Flash and of Step-3.5-Flash, in the fields of the published checkpoint."""
    return {
        "model_type": "step3p5", "hidden_size": 4096, "num_hidden_layers": 45, "num_attention_heads": 64, "num_attention_groups": 8,
        "head_dim": 128, "intermediate_size": 11264, "vocab_size": 128896, "sliding_window": 512, "att_impl_type": "GQA",
        "layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 12, "use_head_wise_attn_gate": True, "use_moe": True,
        "attention_other_setting": {
            "attention_type": "sliding_attention", "num_attention_heads": 96, "num_attention_groups": 8, "head_dim": 128,
        },
        "moe_num_experts": 288, "moe_top_k": 8, "moe_intermediate_size": 1280, "share_expert_dim": 1280, "use_moe_router_bias": True,
        "moe_layers_enum": ",".join(map(str, range(3, 45))), "num_nextn_predict_layers": 3,
    }  # fmt: skip


def test_step_has_more_heads_in_layers_with_a_window():
    """StepFun's card: 196B parameters (196.81B in its table), about 11B active, 12 layers of 45 see all tokens."""
    model = from_config({"model_type": "step3p7", "text_config": step()}, name="m")
    assert [note for note in model.notes if "vision tower is not in this config" not in note] == []
    assert [layer.mixer.heads for layer in model.stack].count(96) == 33
    count = parameters(model)
    assert abs(count.total / 196.81e9 - 1) < 0.001
    assert round((count.active - 2 * model.vocab * model.d_model) / 1e9) == 11
    ahead = model.extra_heads
    assert len(ahead) == 3
    assert not isinstance(ahead[0].feed_forward, MoE)
    silent = from_config({k: v for k, v in step().items() if k != "attention_other_setting"}, name="m")
    assert "attention_other_setting is missing" in silent.notes[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"moe_layers_enum": "3,x"}, {"att_impl_type": "MFA"}, {"attention_other_setting": {"attention_type": "odd"}},
        {"attention_other_setting": 3}, {"layer_types": ["full_attention"] * 47},
    ],
    ids=str,
)  # fmt: skip
def test_what_a_step_config_may_not_say(changes):
    with pytest.raises(InputError):
        from_config(step() | changes, name="m")


def test_exact_counts_of_checkpoints_with_heads_that_predict_ahead():
    """GLM-4.5 stores its extra layer with copies of the embedding and the head; GLM-5.3 without."""
    glm = architecture("glm-4.5")
    count = parameters(glm)
    assert count.total + sum(count.beside.values()) + 2 * glm.vocab * glm.d_model == 358_337_791_296
    count = parameters(architecture("qwen3.5-27b"))
    assert count.total + sum(count.beside.values()) == 27_781_427_952
    count = parameters(read_config(config("GLM-5.3")))
    assert count.total + sum(count.beside.values()) == 753_329_940_480


# Laws


@pytest.mark.parametrize("name", models())
def test_programs_are_well_formed(name):
    model = architecture(name)
    parts = programs(model, 256)
    every = [*parts.every, *((b.program, b.count) for b in (*parts.towers, *parts.extra))]
    assert sum(b.count for b in parts.blocks) >= model.layers
    assert len({p.name for p, _ in every}) == len(every)
    for program, count in every:
        assert count >= 1
        assert len({op.name for op in program.ops}) == len(program.ops)
        made = {op.output for op in program.ops}
        read = {name for op in program.ops for name in op.inputs}
        assert len(made) == len(program.ops)
        known = {a.name for a in program.arrays if a.role in ("weight", "input")}
        for op in program.ops:
            assert op.part
            assert set(op.inputs) <= known, op
            known.add(op.output)
            axes = {axis for name in op.inputs for axis in program.array(name).axes}
            if op.kind == "einsum":
                assert set(program.array(op.output).axes) <= axes, op
                assert 0 < op.fraction <= 1
        for array in program.arrays:
            assert all(axis == "B" or axis in program.axes for axis in array.axes), array
            assert (array.name in made) != (array.role in ("weight", "input"))
            assert array.name in read or array.role != "weight", array
    for block in parts.blocks:
        names = {a.name: a for a in block.program.arrays}
        if "x_out" in names:
            assert names["x_out"].axes == names["x"].axes
            assert names["x"].layout == names["x_out"].layout == "residual"
        assert {a for c in block.caches for a in c.axes} <= set(block.program.axes)


@pytest.mark.parametrize("name", models())
def test_matmul_flops_are_two_for_each_weight_that_a_token_meets(name):
    model = architecture(name)
    if model.encoder:
        pytest.skip("a token of an encoder-decoder model meets half of it")
    met = 0.0
    for program, count in programs(model, 512).every:
        in_einsums = {n for op in program.ops if op.kind == "einsum" for n in op.inputs}
        for weight in program.weights:
            if weight.name in in_einsums:
                size = 1.0
                for axis in weight.axes:
                    size *= program.axes[axis]
                slots = program.axes.get("C")
                if "E" in weight.axes:
                    assert isinstance(slots, Size)
                    size *= slots.coefficient / program.axes["E"]
                met += count * size
    assert flops_per_token(model, 512).matmul == pytest.approx(2 * met, rel=1e-9)


@pytest.mark.parametrize("name", models())
@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_kept_can_be_kept(name, policy):
    for block in programs(architecture(name), 256).blocks:
        chosen = remat(block.program, policy)
        inside = fused_only(block.program)
        assert not inside.intersection(chosen.saved)
        assert policy != "none" or not chosen.recomputed
        if policy == "full":
            assert all(block.program.array(n).role == "input" for n in chosen.saved)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(models()), st.integers(1, 10**6))
def test_caches_grow_by_at_most_the_bytes_of_a_token(name, seq):
    model = architecture(name)
    grown = kv_cache_bytes(model, seq + 1) - kv_cache_bytes(model, seq)
    assert -1e-6 <= grown <= kv_bytes_per_token(model) * 128 + 1e-6
    assert kv_cache_bytes(model, 10**6, "int8") <= kv_cache_bytes(model, 10**6)
    assert training_flops_per_token(model, 64) == pytest.approx(3 * flops_per_token(model, 64).forward)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 80), st.integers(1, 90))
def test_chunked_attention_is_counted_exactly(seq, chunk):
    pairs = sum(1 for q in range(seq) for k in range(q + 1) if q // chunk == k // chunk)
    assert attended(seq, chunk=chunk) * seq * seq == pytest.approx(pairs, rel=1e-12)


@pytest.mark.parametrize("name", models())
@pytest.mark.parametrize("context", [1, 5000])
def test_a_generated_token_reads_what_was_kept(name, context):
    """The caches that the programs of generation read are those that are counted; all other arrays are of one token."""
    model = architecture(name)
    read = 0.0
    for block in generation(model, context).blocks:
        program = block.program
        for array in program.arrays:
            elements = math.prod(axis_size(program, axis) for axis in array.axes)
            if array.role == "cache":
                read += block.count * elements * (4 if array.dtype == "fp32" else 2)
        assert program.axes["T"] == 1
        made = {op.output for op in program.ops}
        assert all((a.name in made) != (a.role in ("weight", "input", "cache")) for a in program.arrays)
    kept = kv_cache_bytes(model, context)
    for block in programs(model, context).blocks:
        for cache in block.caches:
            if "conv" in cache.name:  # the few values of a convolution are not read as an array
                kept -= block.count * 2 * math.prod(axis_size(block.program, axis) for axis in cache.axes)
            elif context < cache.every:  # the programs have at least one entry
                read -= block.count * 2 * math.prod(axis_size(block.program, axis) for axis in cache.axes)
    assert read == pytest.approx(kept)


@pytest.mark.parametrize(
    "name", ["llama-3-70b", "mixtral-8x7b", "gemma-3-27b", "gpt-oss-120b", "jamba-v0.1", "falcon-40b"]
)
def test_generation_has_the_weights_of_training(name):
    model = architecture(name)

    def weights(parts):
        return {(p.name, w.name, w.axes, w.layout) for p, _ in parts.every for w in p.weights}

    assert weights(generation(model, 3000)) == weights(programs(model, 3000))


# Facts of single kinds


def test_mixtral():
    model = architecture("mixtral-8x7b")
    assert model.experts == MoE(8, 2, 14336)
    assert flops_per_token(model, 4096).parts["experts"] == 2 * 2 * 3 * 4096 * 14336 * 32
    assert kv_bytes_per_token(model) == 2 * 32 * 8 * 128 * 2


def test_deepseek_v3_caches_a_latent_vector_and_a_rotated_key():
    model = architecture("deepseek-v3")
    assert kv_bytes_per_token(model) == 61 * (512 + 64) * 2
    assert sum(isinstance(layer.feed_forward, MoE) for layer in model.stack) == 58
    naive, direct = flops_per_token(model, 4096), flops_per_token(absorbed(model), 4096)
    heads = 61 * 128
    # causal points: 4097 of 2 x 4096; q k over 128 + 64 and p v over 128 values, against 512 + 64 and 512
    assert naive.attention == pytest.approx(2 * heads * (192 + 128) * 4097 / 2)
    assert direct.attention == pytest.approx(2 * heads * (576 + 512) * 4097 / 2)
    assert parameters(absorbed(model)) == parameters(model)


def test_an_indexer_bounds_what_a_query_attends_to():
    model = architecture("deepseek-v3.2")
    long = flops_per_token(model, 131072)
    index = 61 * 2 * 64 * 128 * 131073 / 2
    main = 61 * 2 * 128 * 320 * attended(131072, 2048) * 131072
    assert long.attention == pytest.approx(index + main)
    assert kv_bytes_per_token(model) == 61 * (512 + 64 + 128) * 2
    shared = architecture("glm-5.2")
    assert sum(m.indexer.shared for m in shared.mixers) > 40


def test_windows_of_gpt_oss_level_off():
    model = architecture("gpt-oss-20b")
    assert model.windows == (128, 0) * 12
    each = 2 * 8 * 64 * 2
    assert kv_cache_bytes(model, 131072) == each * 12 * (128 + 131072)
    assert weight_bytes(model)["experts"] == parameters(model).parts["experts"] * 4.25 / 8


def test_llama_4_attends_in_chunks_but_for_every_fourth_layer():
    model = architecture("llama-4-scout")
    chunks = [m.chunk for m in model.mixers]
    assert chunks == [8192, 8192, 8192, 0] * 12
    maverick = architecture("llama-4-maverick")
    assert [isinstance(layer.feed_forward, MoE) for layer in maverick.stack] == [False, True] * 24


def test_hybrids_cache_keys_in_a_few_layers_and_states_in_the_others():
    model = architecture("qwen3.5-397b-a17b")
    assert sum(isinstance(m, DeltaNet) for m in model.mixers) == 45
    assert kv_bytes_per_token(model) == 15 * 2 * 2 * 256 * 2
    state = 45 * (64 * 128 * 128 * 4 + 3 * 2 * (2 * 16 * 128 + 64 * 128))
    assert kv_cache_bytes(model, 1000) == 1000 * kv_bytes_per_token(model) + state
    nemotron = architecture("nemotron-3-nano-30b-a3b")
    mamba = next(m for m in nemotron.mixers if isinstance(m, Mamba2))
    assert (mamba.heads, mamba.groups, mamba.state) == (64, 8, 128)
    assert len(nemotron.mixers) == 29
    assert flops_per_token(nemotron, 4096).scan == flops_per_token(nemotron, 8192).scan > 0


def test_compressed_entries_are_kept_for_several_tokens():
    model = architecture("deepseek-v4-flash")
    entries = 21 * (512 + 128) / 4 + 20 * 512 / 128
    assert kv_bytes_per_token(model) == 2 * (43 * 512 + entries)
    assert kv_cache_bytes(model, 131072) == 2 * 131072 * entries + 2 * 43 * 512 * 128


def test_an_encoder_and_a_decoder_share_the_table():
    model = architecture("t5-base")
    parts = programs(model, 128)
    assert [b.count for b in parts.blocks] == [1, 11, 1, 1, 11]
    assert model.tied
    assert not any(isinstance(m, LatentAttention) for m in model.mixers)
    assert kv_bytes_per_token(model) == 2 * 2 * 12 * 12 * 64 * 2  # own keys and values, and those of the encoder


def test_a_tower_is_counted_and_not_met_by_text():
    model = architecture("qwen3-vl-8b")
    count = parameters(model)
    assert count.active == count.total - count.parts["vision"] == parameters(architecture("qwen3-8b")).total
    assert flops_per_token(model, 4096) == flops_per_token(architecture("qwen3-8b"), 4096)


def test_an_uneven_load_has_more_slots_and_neither_parameters_nor_useful_flops():
    model = architecture("qwen3-30b-a3b")
    worse = with_capacity(model, 1.5)
    assert parameters(worse) == parameters(model)
    assert flops_per_token(worse, 64) == flops_per_token(model, 64)
    slots = [programs(m, 64).blocks[0].program.axes["C"] for m in (model, worse)]
    assert slots[1] == 1.5 * slots[0]
    with pytest.raises(InputError, match="capacity factor"):
        with_capacity(model, 0)


def test_a_padded_vocabulary():
    model = architecture("gpt2")
    padded = with_vocabulary(model, 128)
    assert padded.vocab == 50304
    assert parameters(padded).total - parameters(model).total == (50304 - 50257) * 768


def test_layers_that_use_the_keys_of_another_keep_none_and_each_layer_has_an_embedding():
    text = {
        "model_type": "gemma4_text", "hidden_size": 1536, "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 1,
        "head_dim": 256, "global_head_dim": 512, "sliding_window": 512, "sliding_window_pattern": 5, "vocab_size": 262144,
        "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 20, "use_double_wide_mlp": True, "intermediate_size": 6144,
    }  # fmt: skip
    model = from_config({"model_type": "gemma4", "text_config": text}, name="e2b")
    count = parameters(model)
    assert [m.keys for m in model.mixers] == ["own"] * 15 + ["shared"] * 20
    assert kv_bytes_per_token(model) == 2 * 2 * (12 * 256 + 3 * 512)
    assert count.parts["per_layer_embedding"] == 262144 * 35 * 256 + 1536 * 35 * 256 + 256
    assert sum(layer.feed_forward.d_ff for layer in model.stack) == 6144 * 55
    # Gemma 4 E2B: 2.3B parameters beside the tables of embeddings for each layer, says its model card
    assert count.total - 262144 * 35 * 256 == pytest.approx(2.3e9, abs=0.05e9)


def test_parallel_layers_have_one_norm_or_two():
    one, two = architecture("falcon-7b"), architecture("falcon-40b")
    assert (one.stack[0].parallel, two.stack[0].parallel) == ("one", "two")
    ops = [op.name for op in programs(one, 64).blocks[0].program.ops]
    assert ops.count("attention_norm") == 1
    assert "mlp_norm" not in ops


# Config files


def moe(**changes):
    return {
        "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 16, "intermediate_size": 128, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2,
        "vocab_size": 1000, **changes,
    }  # fmt: skip


def test_layers_without_experts():
    assert [isinstance(layer.feed_forward, MoE) for layer in from_config(moe(mlp_only_layers=[1]), name="m").stack] == [
        True,
        False,
        True,
        True,
    ]
    assert [
        isinstance(layer.feed_forward, MoE) for layer in from_config(moe(decoder_sparse_step=2), name="m").stack
    ] == [False, True] * 2


def test_an_unknown_family_of_a_familiar_shape_is_read_with_a_warning():
    model = from_config(moe(model_type="qwen9_moe"), name="m")
    (note,) = model.notes
    assert "not known" in note
    assert "num_experts" in note
    assert isinstance(model.stack[0].feed_forward, MoE)
    with pytest.raises(InputError, match="flux_size"):
        from_config(moe(model_type="qwen9_moe", flux_size=128), name="m")


@pytest.mark.parametrize(
    "changes",
    [
        {"num_experts_per_tok": 9}, {"num_experts_per_tok": 0}, {"num_experts": -1}, {"moe_intermediate_size": "x"}, {"mlp_only_layers": ["x"]},
        {"decoder_sparse_step": 0}, {"num_experts_per_tok": None}, {"hc_mult": 4}, {"kv_lora_rank": 64},
        {"quantization_config": {"quant_method": "odd"}}, {"quantization_config": {"quant_method": "gptq", "bits": 10**9, "group_size": "x"}},
        {"layer_types": ["linear_attention"] * 4}, {"layer_types": ["odd"] * 4}, {"model_type": "deepseek_v4"}, {"model_type": "nemotron_h"},
        {"model_type": "kimi_linear"}, {"model_type": "t5"}, {"model_type": "dbrx"}, {"model_type": "jamba", "num_attention_heads": 10**9},
        {"model_type": "nemotron-nas", "block_configs": [{}] * 4}, {"model_type": "gemma4_text", "hidden_size_per_layer_input": -1},
        {"vision_config": 3, "text_config": 3, "model_type": "gemma3"}, {"sparse_attention_config": {"use_sparse_attention": True}},
    ],
    ids=str,
)  # fmt: skip
def test_configs_that_are_refused(changes):
    data = {k: v for k, v in moe(**changes).items() if v is not None}
    with pytest.raises(InputError) as refused:
        parameters(from_config(data, name="m", where="config.json"))
    assert "\n" not in refused.value.message
    assert len(refused.value.message) < 700


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**12) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2), max_leaves=4,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(CONFIGS), st.data())
def test_a_broken_config_is_read_or_refused_in_one_line(path, data):
    fields = json.loads(path.read_text())
    inner = fields.get("text_config", fields)
    for key in data.draw(st.lists(st.sampled_from(sorted(inner)), max_size=3)):
        inner[key] = data.draw(JUNK)
    try:
        parameters(from_config(fields, name="m"))
    except InputError as error:
        assert "\n" not in error.message


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 128**2),
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, 4.127),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
    ],
    ids=str,
)
def test_quantised_weights(quantization, bits):
    model = from_config(moe(quantization_config=quantization), name="m")
    count, stored = parameters(model).parts, weight_bytes(model)
    assert stored["experts"] == pytest.approx(count["experts"] * bits / 8, rel=1e-4)
    assert stored["attention"] == pytest.approx(count["attention"] * bits / 8, rel=1e-4)
    for part in ("embedding", "head", "norm", "router"):
        assert stored[part] == 2 * count[part]


def test_parts_that_a_quantiser_leaves_alone():
    skip = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    assert dict(from_config(moe(quantization_config=skip), name="m").formats) == {
        "recurrence": 8,
        "mlp": 8,
        "experts": 8,
        "shared_experts": 8,
    }
    one = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.self_attn.q_proj"]}
    assert "attention" in dict(from_config(moe(quantization_config=one), name="m").formats)
    every = {"quant_method": "fp8", "modules_to_not_convert": [f"model.layers.{i}.self_attn*" for i in range(4)]}
    assert "attention" not in dict(from_config(moe(quantization_config=every), name="m").formats)


def test_hub_ids(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="HF_HUB_OFFLINE"):
        architecture("somebody/something")
    folder = tmp_path / "models--somebody--something" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(moe()))
    model = architecture("somebody/something")
    assert (model.name, model.source) == ("something", "config.json of somebody/something")
    assert architecture("Qwen/Qwen3-30B-A3B").name == "qwen3-30b-a3b"


def test_inline_mixtures():
    model = architecture("layers=2,d_model=64,heads=4,d_ff=128,vocab=100,experts=8,active=2,window=16,window_every=2")
    assert model.experts == MoE(8, 2, 128)
    assert model.windows == (16, 0)
    with pytest.raises(InputError, match="cannot use"):
        architecture("layers=2,d_model=64,heads=4,d_ff=128,vocab=100,experts=8,active=9")


def test_families_are_listed():
    assert {"llama", "mixtral", "deepseek_v3", "nemotron_h", "t5"} <= set(families())
    assert all(isinstance(architecture(n).attention, Attention | None) for n in models())


def test_the_command_shows_one_model_several_or_the_catalogue(capsys):
    assert run(["model", "mixtral-8x7b", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["parameters"]["total"] == 46_702_792_704
    assert shown["parameters"]["active"] == sum(shown["parameters"]["parts"].values()) - 6 * 32 * 3 * 4096 * 14336
    assert shown["architecture"]["tokens_per_expert"] == 0.25
    assert any("critical batch" in line for line in shown["assumptions"])
    assert run(["model", "llama-3-8b", "gpt-oss-20b", "mamba-2.8b", "--json"]) == 0
    several = json.loads(capsys.readouterr().out)["models"]
    assert [m["name"] for m in several] == ["llama-3-8b", "gpt-oss-20b", "mamba-2.8b"]
    assert several[2]["attention_overtakes_at_tokens"] is None
    assert run(["model", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["models"]) == len(models())


@pytest.mark.parametrize(
    "name",
    [
        "deepseek-v4-flash", "kimi-k3", "jamba-v0.1", "t5-base", "bert-base", "qwen3-vl-8b", "falcon-40b", "nemotron-3-super-120b-a12b",
        "gemma-4-26b-a4b", "llama-4-scout", "deepseek-v3.2", "olmo-2-7b",
    ],
)  # fmt: skip
def test_a_model_is_drawn(name, capsys):
    assert run(["model", name]) == 0
    text = capsys.readouterr().out
    assert "tokens -> embedding" in text
    assert "Assumptions" in text
    assert run(["model", name, "llama-3-8b"]) == 0
    assert "Side by side" in capsys.readouterr().out


def test_a_model_that_is_read_by_guess_warns(tmp_path, capsys):
    """The warning names what was read and what was left aside, on stderr, so that --json stays one document."""
    fields = {"hidden_act": "silu", "initializer_range": 0.02, "model_type": "zorg"}
    shape = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 96,
    }
    path = tmp_path / "zorg.json"
    path.write_text(json.dumps(fields | shape))
    assert run(["model", str(path), "--json"]) == 0
    printed = capsys.readouterr()
    json.loads(printed.out)
    assert "rooftop: warning: zorg: the family 'zorg' is not known and is read like llama from" in printed.err
    assert "intermediate_size" in printed.err
    assert "ignored: initializer_range" in printed.err
