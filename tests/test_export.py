"""Plans as other frameworks' configurations: their products are the chips and the batch of the plan."""

from __future__ import annotations

import json
import tomllib

import pytest

from rooftop.cli import run
from rooftop.lower import FRAMEWORKS

STEP = "step llama-3-8b --on h100:64 --mesh data=2,fsdp=4,tensor=8 --batch 1M --remat full --save"


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    assert run([*STEP.split(), str(path)]) == 0
    return path


def exported(plan, name, capsys):
    capsys.readouterr()
    assert run(["export", str(plan), "--to", name, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


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
