"""Servers' arguments from a plan of training: its tensor, pipeline and expert ways; all else is another question."""

from __future__ import annotations

from typing import Any

from rooftop.frameworks._facts import DTYPES, Facts


def write_vllm(f: Facts) -> dict[str, Any]:
    """Arguments of `vllm serve`, as its --config reads them."""
    tensor, pipeline, replicas = _served(f)
    return {
        "model": _model(f), "tensor-parallel-size": tensor, "pipeline-parallel-size": pipeline,
        "data-parallel-size": replicas * f.ways["expert"], "enable-expert-parallel": f.ways["expert"] > 1,
        "max-model-len": f.problem.seq, "dtype": DTYPES[f.recipe.compute],
    }  # fmt: skip


def write_sglang(f: Facts) -> dict[str, Any]:
    """Arguments of SGLang's server, as its --config reads them."""
    tensor, pipeline, replicas = _served(f)
    return {
        "model-path": _model(f), "tensor-parallel-size": tensor * f.ways["expert"],
        "pipeline-parallel-size": pipeline, "data-parallel-size": replicas, "expert-parallel-size": f.ways["expert"],
        "context-length": f.problem.seq, "dtype": DTYPES[f.recipe.compute],
    }  # fmt: skip


def write_tensorrt(f: Facts) -> dict[str, Any]:
    """Options of TensorRT-LLM's LLM API."""
    tensor, pipeline, replicas = _served(f)
    f.no(replicas > 1, f"{replicas} replicas: start as many servers")
    return {
        "tensor_parallel_size": tensor * f.ways["expert"], "pipeline_parallel_size": pipeline,
        "moe_expert_parallel_size": f.ways["expert"], "max_seq_len": f.problem.seq, "dtype": DTYPES[f.recipe.compute],
    }  # fmt: skip


def _model(f: Facts) -> str:
    """The hub id of a model, if one of its names is one."""
    return next((str(a) for a in f.model.aliases if "/" in a), str(f.model.name))


def _served(f: Facts) -> tuple[int, int, int]:
    """(tensor, pipeline, replicas) of a server, with what of a training plan means nothing there."""
    ways = f.ways
    f.no(True, "the plan is one of training: rooftop serve finds the best layout for serving")
    f.no(ways["tensor_transpose"] > 1, f"tensor_transpose={ways['tensor_transpose']} has no key")
    f.no(
        ways["fsdp"] > 1,
        f"fsdp={ways['fsdp']}: a server keeps whole weights of its tensor group; written as data parallelism",
    )
    f.no(ways["context"] > 1, f"context={ways['context']} is not written")
    return ways["tensor"], ways["pipeline"], ways["data"] * ways["fsdp"]
