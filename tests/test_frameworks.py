"""Plans as other frameworks' configurations and back: keys that the frameworks have, and the plan that comes back."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rooftop.cli import run
from rooftop.errors import InputError
from rooftop.frameworks import FRAMEWORKS, export, import_plan
from rooftop.hardware import slice_of
from rooftop.training import Choices, Question, choices, named_plan, problem_of
from rooftop.transformer import architecture, catalogue_name, models, numbers_of, words_of, words_of_numbers

STEP = "step llama-3-8b --on h100:64 --mesh data=2,fsdp=4,tensor=8 --batch 1M --remat full --save"
KEYS = tomllib.loads((Path(__file__).parent / "data" / "framework-keys.toml").read_text())
READ = [name for name, f in FRAMEWORKS.items() if f.read is not None]
SUFFIX = {"maxtext": "yml", "megatron": "sh", "torchtitan": "toml", "deepspeed": "json"}

pytest.importorskip("yaml")


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    assert run([*STEP.split(), str(path)]) == 0
    return path


def exported(plan, name, capsys):
    capsys.readouterr()
    assert run(["export", str(plan), "--to", name, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def posed(
    model="llama-3-8b", on="h100:64", mesh=None, batch=2**21, seq=4096, chosen=None, microbatches=None, **options
):
    question = Question(architecture(model), slice_of(on), batch=batch, seq=seq, **options)
    mesh = mesh or {"fsdp": slice_of(on).chips}
    return problem_of(question), named_plan(question, mesh, choices=chosen or Choices(), microbatches=microbatches)


def flat(settings, prefix=""):
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            if key.startswith("offload_"):  # a table of its own
                yield prefix + key
            else:
                yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def back(problem, plan, name, tmp_path, **more):
    path = tmp_path / f"run.{SUFFIX[name]}"
    path.write_text(export(problem, plan, name).text)
    return import_plan(path, on=problem.slice.name, **more)


PLANS = [
    {"mesh": {"data": 2, "fsdp": 4, "tensor": 8}},
    {"mesh": {"fsdp": 8, "tensor": 4, "pipeline": 2}, "chosen": Choices(chunks=2, remat="full"), "microbatches": 8},
    {"mesh": {"fsdp": 8, "context": 4, "tensor": 2}, "chosen": Choices(context_kind="ulysses", remat="dots")},
    {"mesh": {"data": 8, "fsdp": 8}, "chosen": Choices(zero=1, outer_zero=1, remat="selective")},
    {"model": "mixtral-8x7b", "mesh": {"fsdp": 8, "expert": 8}, "chosen": Choices(zero=2, remat="full")},
    {"model": "qwen1.5-moe-a2.7b", "mesh": {"fsdp": 16, "expert": 4}, "optimizer": "muon"},
    {"model": "gpt2", "mesh": {"data": 64}, "precision": "fp16-mixed", "seq": 1024, "chosen": Choices(zero=0)},
    {"model": "qwen3-8b", "mesh": {"fsdp": 64}, "precision": "fp8", "optimizer_dtype": "bf16"},
    {"model": "gemma-2-9b", "mesh": {"fsdp": 32, "tensor": 2}, "precision": "fp32", "optimizer": "lion"},
    {"mesh": {"fsdp": 64}, "chosen": Choices(offload="optimizer,params,activations", remat="full")},
    {"on": "v5p:4x4x4*2", "mesh": {"data": 2, "fsdp": 16, "tensor": 4}, "precision": "bf16-pure", "optimizer": "adafactor"},
]  # fmt: skip


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_all_keys_are_keys_of_the_framework(name):
    known = set(KEYS[name]["keys"].split())
    for case in PLANS:
        found = set(flat(export(*posed(**case), name).settings))
        assert found <= known, found - known


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_framework_has_a_file(plan, name, capsys):
    data = exported(plan, name, capsys)
    assert data["text"].strip()
    if name in ("vllm", "sglang", "tensorrt-llm"):
        assert any("fsdp=4" in text for text in data["not_expressed"])


def test_the_numbers_are_those_of_the_plan(plan, capsys):
    saved = json.loads(plan.read_text())
    sequences = 8 * saved["microbatches"] * saved["microbatch_sequences"]
    maxtext = exported(plan, "maxtext", capsys)["settings"]
    assert maxtext["per_device_batch_size"] * 64 * maxtext["gradient_accumulation_steps"] == sequences
    assert (maxtext["base_emb_dim"], maxtext["base_num_kv_heads"], maxtext["ici_tensor_parallelism"]) == (4096, 8, 8)
    megatron = exported(plan, "megatron", capsys)
    assert megatron["settings"]["global-batch-size"] == sequences
    assert "--data-parallel-sharding-strategy optim_grads_params" in megatron["text"]
    assert "--num-query-groups 8" in megatron["text"]
    titan = tomllib.loads(exported(plan, "torchtitan", capsys)["text"])
    ways = titan["parallelism"]
    assert (
        ways["data_parallel_replicate_degree"] * ways["data_parallel_shard_degree"] * ways["tensor_parallel_degree"]
        == 64
    )
    speed = json.loads(exported(plan, "deepspeed", capsys)["text"])
    assert (
        speed["train_batch_size"] == 8 * speed["train_micro_batch_size_per_gpu"] * speed["gradient_accumulation_steps"]
    )


def test_no_file_is_overwritten(plan, tmp_path, capsys):
    path = tmp_path / "there"
    path.write_text("mine")
    assert run(["export", str(plan), "--to", "nemo", "--out", str(path)]) == 2
    assert path.read_text() == "mine"


#: What a framework can be told: axes, values of choices, and recipes whose dtypes it has.
SAID = {
    "maxtext": ({"data", "fsdp", "tensor", "context", "expert"}, {"zero": (3,), "remat": ("dots", "selective", "full"),
                "context_kind": ("ring", "gather", "ulysses"), "outer_zero": (0, 1), "offload": ("none", "optimizer", "optimizer,params")}, ("bf16", "bf16-mixed", "bf16-pure", "fp32", "fp8")),
    "megatron": ({"data", "fsdp", "tensor", "context", "expert", "pipeline"}, {"zero": (1, 2, 3), "remat": ("none", "selective", "full"),
                 "context_kind": ("ring", "gather", "ulysses"), "chunks": (1, 2), "offload": ("none", "optimizer")}, ("fp32", "bf16-mixed", "fp8", "mxfp8", "nvfp4")),
    "torchtitan": ({"data", "fsdp", "tensor", "context", "expert", "pipeline"}, {"zero": (2, 3), "remat": ("none", "selective", "full"),
                   "context_kind": ("ring", "gather"), "chunks": (1, 2), "schedule": ("1f1b", "gpipe")}, ("fp32", "bf16-mixed")),
    "deepspeed": ({"data", "fsdp", "tensor"}, {"zero": (3,), "remat": ("none",), "offload": ("none", "optimizer", "params,activations")},
                  ("bf16-mixed", "fp32", "fp16-mixed")),
}  # fmt: skip


@st.composite
def plans(draw, name):
    axes, values, recipes = SAID[name]
    chosen, left, mesh = {}, 64, {}
    for axis in draw(st.permutations(sorted(axes))):
        n = draw(st.sampled_from([n for n in (1, 2, 4, 8) if left % n == 0]))
        mesh[axis], left = n, left // n
    mesh["fsdp" if name != "deepspeed" else "data"] *= left
    if name == "deepspeed" and mesh["fsdp"] == 1:
        mesh["fsdp"], mesh["data"] = mesh["data"], 1
    for f in choices():
        if f.name in values and (f.metadata["axis"] is None or mesh.get(f.metadata["axis"], 1) > 1):
            chosen[f.name] = draw(st.sampled_from(values[f.name]))
    if mesh["fsdp"] * mesh.get("context", 1) == 1:
        chosen["zero"] = 3  # nothing to split
    if chosen.get("schedule") == "gpipe":
        chosen.pop("chunks", None)
    mixture = mesh.get("expert", 1) > 1
    return mesh, Choices(**chosen), draw(st.sampled_from(recipes)), "mixtral-8x7b" if mixture else "llama-3-8b"


@pytest.mark.parametrize("name", READ)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_is_exported_comes_back(name, data, tmp_path):
    mesh, chosen, precision, model = data.draw(plans(name))
    try:
        problem, plan = posed(model, mesh=mesh, batch=2**22, chosen=chosen, precision=precision, reduction_dtype="fp32",
                              on="b200:64")  # fmt: skip
    except InputError:
        return  # this mesh is none for this model
    found = back(problem, plan, name, tmp_path, model=model if name in ("torchtitan", "deepspeed") else None)
    assert words_of(found.question.model) == model
    assert (found.plan.mesh, found.plan.microbatches, found.plan.sequences) == (
        plan.mesh,
        plan.microbatches,
        plan.sequences,
    )
    assert found.plan.choices == plan.choices
    assert (found.question.seq, found.question.slice) == (4096, problem.slice)
    assert not found.unread
    got, was = problem_of(found.question).recipe, problem.recipe
    assert (got.compute, got.master or got.weights, got.moments, got.matmul) == (
        was.compute, was.master or was.weights, was.moments, was.matmul,
    )  # fmt: skip


def test_tpu_slices_come_back_by_their_topology(tmp_path):
    for case in ({"on": "v5p:4x4x4*2", "mesh": {"data": 2, "fsdp": 16, "tensor": 4}}, {"on": "v5e:16x16"}):
        problem, plan = posed(**case)
        path = tmp_path / "run.yml"
        path.write_text(export(problem, plan, "maxtext").text)
        assert import_plan(path).question.slice == problem.slice


@pytest.mark.parametrize(
    "model", ["llama-3-70b", "mixtral-8x7b", "qwen3-8b", "qwen2.5-7b", "gpt3-175b", "olmo-2-7b", "gemma-2-9b"]
)
def test_a_model_comes_back_or_is_said_not_to(model, tmp_path):
    for name in ("maxtext", "megatron"):
        problem, plan = posed(model, mesh={"fsdp": 64}, seq=2048)
        said = export(problem, plan, name)
        path = tmp_path / f"run.{SUFFIX[name]}"
        path.write_text(said.text)
        incomplete = any(problem.model.name in text for text in said.unsaid)
        try:
            found = words_of(import_plan(path, on="h100:64").question.model)
        except InputError:
            found = None
        assert incomplete or found == model, (name, said.unsaid)


SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"4"}
DISTRIBUTED=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
)
MODEL=(
    --num-layers 32   # of decoder
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention --num-query-groups 8
    --seq-length 8192 --max-position-embeddings 8192
    --position-embedding-type rope --normalization RMSNorm --swiglu
    --untie-embeddings-and-output-weights --disable-bias-linear
    --vocab-size 128256 --make-vocab-size-divisible-by 128
)
TRAINING=" \\
    --micro-batch-size 2 \\
    --global-batch-size=256 \\
    --bf16 --use-distributed-optimizer --lr 3e-4 \\
    "
# --recompute-granularity full
torchrun ${DISTRIBUTED[@]} pretrain_gpt.py ${MODEL[@]} $TRAINING \\
    --tensor-model-parallel-size 2 --sequence-parallel "--split 99,1,0"
"""


def test_a_script_is_read_and_not_run(tmp_path):
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    found = import_plan(path, on="h100")
    assert (found.framework, found.question.slice.name, found.made_for["model"]) == (
        "megatron",
        "h100:32",
        "llama-3-8b",
    )
    assert {a: n for a, n in found.plan.mesh.items() if n > 1} == {"fsdp": 16, "tensor": 2}
    # 256 sequences over 16 groups of chips, 2 at a time
    assert (found.plan.microbatches, found.plan.sequences) == (8, 2)
    assert (found.plan.choices.zero, found.plan.choices.remat) == (1, "none")
    assert set(found.unread) >= {"lr", "split"}
    assert problem_of(found.question).recipe.master == "fp32"


def test_the_words_ask_about_the_same_run(tmp_path, capsys):
    path, saved = tmp_path / "train.sh", tmp_path / "plan.json"
    path.write_text(SCRIPT)
    assert run(["import", str(path), "--on", "h100", "--json", "--save", str(saved)]) == 0
    words = json.loads(capsys.readouterr().out)["command"]
    assert words[0] == "rooftop"
    assert run([*words[1:], "--json"]) in (0, 1)
    by_words = json.loads(capsys.readouterr().out)["best"]
    assert run(["step", "--plan", str(saved), "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["best"]["step_seconds"] == by_words["step_seconds"]


def test_a_command_of_maxtext_is_read(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        "python3 -m MaxText.train MaxText/configs/base.yml model_name=llama2-7b per_device_batch_size=4 \\\n"
        "  ici_fsdp_parallelism=-1 ici_tensor_parallelism=4 max_target_length=2048 remat_policy=minimal run_name=mine\n"
    )
    found = import_plan(path, on="v5e:8x8")
    assert (found.framework, found.made_for["model"]) == ("maxtext", "llama-2-7b")
    assert {a: n for a, n in found.plan.mesh.items() if n > 1} == {"fsdp": 16, "tensor": 4}
    assert found.plan.batch_sequences == 4 * 64
    assert found.unread == ("run_name",)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yml", "ici_fsdp_parallelism: many", "not a number"),
        ("a.yml", "ici_fsdp_parallelism: 300", "does not fit"),
        ("a.yml", "a: &x [1]\nici_fsdp_parallelism: *x", "aliases"),
        ("a.yml", "!!python/object/apply:os.system ['true']", "is not YAML"),
        ("a.yml", "- 1\n- 2", "no table"),
        ("a.yml", "hello: 1", "say which it is"),
        ("a.yml", "base_num_kv_heads: 7", "do not divide 16 heads"),
        ("a.yml", "remat_policy: mine", "remat_policy = 'mine'"),
        ("a.yml", "{" * 3000, "is not YAML"),
        ("a.toml", "[parallelism]\ntensor_parallel_degree = 0", "whole number from 1"),
        ("a.toml", "[model]\nname = 'mine'\nflavor = '7B'", "--model"),
        ("a.json", '{"zero_optimization": {"stage": 4}}', "stage from 0 to 3"),
        ("a.json", '{"train_batch_size": 1e400}', "is not"),
        ("a.json", "[" * 100000, "is not JSON"),
        ("a.sh", "--num-layers 2 --hidden-size $WIDTH --num-attention-heads 4", "give it a value"),
        ("a.sh", "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64", "vocabulary"),
        ("a.sh", "--num-layers 2 --micro-batch-size 3 --global-batch-size 100", "no multiple"),
        ("a.sh", "nothing here", "say which it is"),
        ("a.sh", "\x00", "say which it is"),
    ],
)  # fmt: skip
def test_what_is_not_well_formed_is_refused_in_a_line(name, text, said, tmp_path, capsys):
    path = tmp_path / name
    path.write_text(text)
    assert run(["import", str(path), "--on", "h100:16"]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_files_are_bounded(tmp_path, capsys):
    path = tmp_path / "a.yml"
    path.write_text("x: 1\n" * 300_000)
    assert run(["import", str(path), "--on", "h100:16"]) == 2
    assert "1,000,000 bytes" in capsys.readouterr().err
    assert run(["import", str(tmp_path), "--on", "h100:16"]) == 2
    assert run(["import", str(tmp_path / "none.yml"), "--on", "h100:16"]) == 2


def test_a_slice_is_needed_once(tmp_path, capsys):
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    assert run(["import", str(path)]) == 2
    assert "32 chips; give --on" in capsys.readouterr().err


def test_models_are_named_by_their_numbers():
    for name in models():
        arch = architecture(name)
        numbers = numbers_of(arch)
        if numbers is not None:
            again = architecture(words_of_numbers(numbers))
            assert (again.d_model, again.layers) == (arch.d_model, arch.layers)
            assert words_of(again) is not None
    assert words_of(architecture("layers=32,d_model=4096,heads=32,kv_heads=8,d_ff=14336,vocab=128256")) == "llama-3-8b"
    assert words_of(architecture("layers=3,d_model=64,heads=4,d_ff=256,vocab=100")) == (
        "layers=3,d_model=64,heads=4,kv_heads=4,head_dim=16,d_ff=256,vocab=100"
    )
    assert catalogue_name("Llama3.1-8B") == "llama-3-8b"
    assert catalogue_name("nobody's") is None
