"""torchtitan's job configuration (the TOML of its 0.2 releases), in both directions.

Expert ways are ways of sharded data parallelism, and of context and tensor parallelism beside it.
"""

from __future__ import annotations

from typing import Any

from rooftop.frameworks._facts import DTYPES, Facts
from rooftop.frameworks._reader import Reader, Run, precision, rest

_SCHEDULES = {"1F1B": "1f1b", "Interleaved1F1B": "1f1b", "GPipe": "gpipe"}
_CONTEXT = {"alltoall": "ring", "allgather": "gather"}
_REMAT = {"none": "none", "selective": "selective", "full": "full"}


def write(f: Facts) -> dict[str, Any]:
    """Tables of a plan."""
    plan, ways, recipe, chosen = f.plan, f.ways, f.recipe, f.choices
    piped = ways["pipeline"] > 1
    stored = recipe.master or recipe.weights
    f.no(True, "the sizes of the model: set model.name and model.flavor to a model of torchtitan's")
    f.no(
        chosen.zero < 2 and ways["fsdp"] * ways["context"] > 1,
        f"ZeRO stage {chosen.zero}: FSDP2 splits gradients at least; 2 is written",
    )
    f.no(
        chosen.schedule not in _SCHEDULES.values(),
        f"schedule {chosen.schedule} has another name, if any; 1F1B is written",
    )
    f.no(chosen.context_kind == "ulysses", "context_kind=ulysses has no key; alltoall passes keys around")
    mode = chosen.remat if chosen.remat in ("none", "selective", "full") else "selective"
    f.no(mode != chosen.remat, f"remat {chosen.remat}: written as selective, which keeps every second matmul's output")
    f.no(recipe.compute == "fp16" or stored == "fp16", "fp16 is none of its dtypes; bfloat16 is written")
    f.no(recipe.matmul is not None, f"matmuls in {recipe.matmul}: add a converter to model.converters")
    f.no(
        (recipe.moments, recipe.gradients) != (stored, stored),
        f"gradients in {recipe.gradients} and moments in {recipe.moments}: torchtitan has both in the weights' {stored}",
    )
    f.no(recipe.reduction != "fp32", f"gradients reduced in {recipe.reduction}: torchtitan reduces in fp32")
    f.no(f.packed, "attention inside of documents: choose a flavor of the model with block-causal attention")
    states = f.away & {"optimizer", "params"}
    f.no(
        bool(states),
        f"{', '.join(sorted(states))} in host memory: torchtitan moves weights, gradients and optimizer states there together, and"
        " updates on the host",
    )
    f.no("activations" in f.away, "activations in host memory is not written")
    f.kept("offload", "zero", "context_kind", "causal", "remat", "schedule", "chunks", "embed_layers", "head_layers",
           "expert_fold", "expert_zero")  # fmt: skip
    f.no(
        ways["expert"] > 1 and not chosen.expert_zero,
        "what is no expert: torchtitan splits it over expert ways, too, as expert_zero=1 does",
    )
    parallelism: dict[str, Any] = {
        "data_parallel_replicate_degree": ways["data"], "data_parallel_shard_degree": ways["fsdp"] * ways["expert"],
        "tensor_parallel_degree": ways["tensor"], "context_parallel_degree": ways["context"],
        "pipeline_parallel_degree": ways["pipeline"], "expert_parallel_degree": f.expert_ways,
        "expert_tensor_parallel_degree": ways["tensor"] if ways["expert"] > 1 and "tensor" not in f.folded else 1,
        "fsdp_reshard_after_forward": "always" if chosen.zero == 3 else "never",
    }  # fmt: skip
    if ways["context"] > 1:
        parallelism["context_parallel_rotate_method"] = "allgather" if chosen.context_kind == "gather" else "alltoall"
        f.no(chosen.causal == "contiguous", "causal=contiguous: set context_parallel_load_balancer to nothing")
    if piped:
        interleaved = chosen.chunks > 1
        parallelism |= {
            "pipeline_parallel_schedule": "GPipe" if chosen.schedule == "gpipe" else "Interleaved1F1B" if interleaved else "1F1B",
            "pipeline_parallel_microbatch_size": plan.sequences,
            "pipeline_parallel_first_stage_less_layers": chosen.embed_layers,
            "pipeline_parallel_last_stage_less_layers": chosen.head_layers,
        }  # fmt: skip
        if interleaved:
            parallelism["pipeline_parallel_layers_per_stage"] = -(
                -len(f.model.stack) // (ways["pipeline"] * chosen.chunks)
            )
    long = {**DTYPES, "fp16": "bfloat16"}
    return {
        "training": {
            **({"enable_cpu_offload": True} if states else {}),
            "local_batch_size": plan.sequences * (plan.microbatches if piped else 1),
            "global_batch_size": plan.batch_sequences, "seq_len": f.problem.seq, "dtype": long[stored],
            "mixed_precision_param": long[recipe.compute], "mixed_precision_reduce": "float32",
        },
        "parallelism": parallelism,
        "activation_checkpoint": {"mode": mode, "selective_ac_option": "op"},
        "optimizer": {"name": f.optimizer({"adamw": "AdamW"})},
    }  # fmt: skip


def read(r: Reader) -> Run:
    """A run from a job configuration."""
    where = r.slice(None)
    degrees = {
        axis: r.integer(f"parallelism.{key}_parallel_degree", default=1) or 1
        for axis, key in (("tensor", "tensor"), ("context", "context"), ("pipeline", "pipeline"), ("expert", "expert"))
    }  # fmt: skip
    data = r.integer("parallelism.data_parallel_replicate_degree", default=1) or 1
    told = r.integer("parallelism.data_parallel_shard_degree", default=-1, least=-1) or 1
    expert, across = degrees["expert"], r.integer("parallelism.expert_tensor_parallel_degree", default=1)
    folded = across == 1 and degrees["tensor"] > 1 and expert > 1 and expert % degrees["tensor"] == 0
    if folded:
        expert //= degrees["tensor"]
    whole = {"data": data, "fsdp": 1, **degrees, "expert": 1}
    shard = rest(whole, where.chips, "fsdp", r.title) if told == -1 else told
    if shard % expert:
        raise r.wrong(
            "parallelism.expert_parallel_degree", expert, f"a divisor of {shard} ways of sharded data parallelism"
        )
    if expert > 1 and not folded and degrees["tensor"] > 1 and across != degrees["tensor"]:
        r.note("expert_tensor_parallel_degree: experts are taken to be split over the tensor ways, too")
    mesh = {**whole, "fsdp": shard // expert, "expert": expert}
    model, words = r.architecture(f"{r.text('model.name')} {r.text('model.flavor')}")
    choices = _choices(r, mesh, len(model.stack)) | ({"expert_fold": "tensor"} if folded else {})
    local = r.integer("training.local_batch_size", default=8) or 8
    groups = data * shard
    batch = r.integer("training.global_batch_size", default=-1, least=-1)
    batch = local * groups if batch in (None, -1) else int(batch or 1)
    each = local
    if mesh["pipeline"] > 1:
        each = r.integer("parallelism.pipeline_parallel_microbatch_size", default=1) or 1
    if batch % (groups * local) or local % each:
        raise r.wrong(
            "training.global_batch_size", batch, f"a multiple of {local} sequences on {groups} data-parallel groups"
        )
    seq = r.given_seq or r.integer("training.seq_len", default=2048) or 2048
    r.inert("activation_checkpoint.selective_ac_option", "training.mixed_precision_reduce")
    return Run(model, words, where, seq, mesh, batch, batch // (groups * each), choices, _options(r))


def _choices(r: Reader, mesh: dict[str, int], layers: int) -> dict[str, Any]:
    reshard = r.text("parallelism.fsdp_reshard_after_forward", default="default")
    always = r.among("parallelism.fsdp_reshard_after_forward", reshard,
                     {"default": mesh["pipeline"] == 1, "always": True, "never": False})  # fmt: skip
    mode = r.text("activation_checkpoint.mode", default="selective")
    result: dict[str, Any] = {
        "zero": 3 if always or mesh["fsdp"] * mesh["context"] == 1 else 2,
        "remat": r.among("activation_checkpoint.mode", mode, _REMAT),
    }
    if mode == "selective" and r.text("activation_checkpoint.selective_ac_option", default="2") != "op":
        r.note("selective_ac_option: selective is read as keeping the outputs of matmuls with weights in every layer")
    if r.flag("training.enable_cpu_offload"):
        result["offload"] = "optimizer,params"
    if mesh["context"] > 1:
        method = r.text("parallelism.context_parallel_rotate_method", default="allgather")
        result["context_kind"] = r.among("parallelism.context_parallel_rotate_method", method, _CONTEXT)
    if mesh["pipeline"] > 1:
        name = r.text("parallelism.pipeline_parallel_schedule", default="1F1B")
        result["schedule"] = r.among("parallelism.pipeline_parallel_schedule", name, _SCHEDULES)
        each = r.integer("parallelism.pipeline_parallel_layers_per_stage")
        if name == "Interleaved1F1B":
            result["chunks"] = 2 if each is None else max(1, round(layers / (mesh["pipeline"] * each)))
        for choice, end in (("embed_layers", "first"), ("head_layers", "last")):
            result[choice] = r.integer(f"parallelism.pipeline_parallel_{end}_stage_less_layers", default=1, least=0)
    return result


def _options(r: Reader) -> dict[str, Any]:
    short = {long: name for name, long in DTYPES.items()}
    stored = r.among("training.dtype", r.text("training.dtype", default="float32"), short)
    compute = r.among(
        "training.mixed_precision_param", r.text("training.mixed_precision_param", default="bfloat16"), short
    )
    if stored == "bf16":
        compute = "bf16"
    name = r.text("optimizer.name", default="AdamW")
    r.among("optimizer.name", name, {"AdamW": "adamw", "Adam": "adamw"})
    return precision(compute, stored, moments=stored, gradients=stored, reduction="fp32") | {"optimizer": "adamw"}
