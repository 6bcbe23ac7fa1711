"""DeepSpeed's JSON, in both directions. Pipelines, experts and context ways are written in the model's code, not here."""

from __future__ import annotations

from typing import Any

from rooftop.frameworks._facts import Facts
from rooftop.frameworks._reader import Reader, Run, precision, rest

_OFFLOADED = {"optimizer": "offload_optimizer", "params": "offload_param"}
_OPTIMIZERS = {"AdamW": "adamw", "Adam": "adamw", "Lion": "lion", "Muon": "muon"}


def write(f: Facts) -> dict[str, Any]:
    """The configuration of a plan."""
    plan, ways, recipe = f.plan, f.ways, f.recipe
    f.no(True, f"the model and its sequences of {f.problem.seq} tokens are in code")
    f.no(ways["pipeline"] > 1, f"{ways['pipeline']} pipeline stages are PipelineModule(num_stages=...) in code")
    f.no(ways["expert"] > 1, f"{ways['expert']} ways of experts are MoE(ep_size=...) in code")
    f.no(ways["context"] > 1, f"{ways['context']} ways of context are sequence parallelism (Ulysses) in code")
    f.no(f.choices.remat != "none", f"remat {f.choices.remat} is chosen in the model's code")
    f.no(recipe.matmul is not None, f"matmuls in {recipe.matmul} are chosen in the model's code")
    half = recipe.compute != "fp32"
    f.no(half and recipe.master != "fp32", "no master copy of the weights: DeepSpeed keeps one in fp32")
    f.no(recipe.moments != "fp32", f"moments in {recipe.moments}: DeepSpeed keeps them in fp32")
    f.no(f.packed, "attention inside of documents is chosen in the model's code")
    f.kept("zero", "remat", "offload")
    zero: dict[str, Any] = {"stage": f.choices.zero if ways["fsdp"] > 1 else 0}
    if ways["data"] > 1 and ways["fsdp"] > 1:
        f.no(f.choices.zero != 3, "data ways beside fsdp ways (MiCS) need ZeRO stage 3")
        zero["mics_shard_size"] = ways["fsdp"]
    host = {"device": "cpu", "pin_memory": True}
    if "optimizer" in f.away:
        zero["offload_optimizer"] = host
        f.no(
            True,
            "optimizer states in host memory: DeepSpeed sends gradients there and updates on the host, the plan on the chip",
        )
    if "params" in f.away and zero["stage"] == 3:
        zero["offload_param"] = host
    f.no("params" in f.away and zero["stage"] != 3, "params in host memory: DeepSpeed has it with stage 3 only")
    names = {name: key for key, name in reversed(_OPTIMIZERS.items())}
    result: dict[str, Any] = {
        "train_batch_size": plan.batch_sequences, "train_micro_batch_size_per_gpu": plan.sequences,
        "gradient_accumulation_steps": plan.microbatches, "zero_optimization": zero,
        "bf16": {"enabled": recipe.compute == "bf16"}, "fp16": {"enabled": recipe.compute == "fp16"},
        "data_types": {"grad_accum_dtype": recipe.gradients}, "communication_data_type": recipe.reduction,
        "optimizer": {"type": f.optimizer(names), "params": {}},
    }  # fmt: skip
    if "activations" in f.away:
        result["activation_checkpointing"] = {"cpu_checkpointing": True}
    if ways["tensor"] > 1:
        result["tensor_parallel"] = {"autotp_size": ways["tensor"]}
    return result


def read(r: Reader) -> Run:
    """A run from a configuration; "auto" says nothing."""
    r.settings = {key: value for key, value in r.settings.items() if value != "auto"}
    where = r.slice(None)
    tensor = r.integer("tensor_parallel.autotp_size", default=1, least=0) or 1
    stage = r.integer("zero_optimization.stage", default=0, least=0) or 0
    if stage > 3:
        raise r.wrong("zero_optimization.stage", stage, "a stage from 0 to 3")
    mesh = {"data": 1, "fsdp": 1, "tensor": tensor}
    groups = rest(mesh, where.chips, "fsdp", r.title)
    shard = r.integer("zero_optimization.mics_shard_size", default=-1, least=-1) or -1
    split = 1 if stage == 0 else groups if shard == -1 else shard
    if groups % split:
        raise r.wrong("zero_optimization.mics_shard_size", split, f"a divisor of {groups} data-parallel groups")
    mesh |= {"fsdp": split, "data": groups // split}
    whole, each = r.integer("train_batch_size"), r.integer("train_micro_batch_size_per_gpu")
    steps = r.integer("gradient_accumulation_steps")
    if whole is None:
        each = each or 1
        whole = each * (steps or 1) * groups
        r.note(f"train_batch_size is {whole}: {each} sequences x {steps or 1} accumulated x {groups} groups")
    microbatches = steps if each is None else whole // (each * groups)
    if (each is not None and whole % (each * groups)) or (microbatches is not None and whole % (microbatches * groups)):
        raise r.wrong("train_batch_size", whole, f"a multiple of its microbatches on {groups} data-parallel groups")
    model, words = r.architecture()
    if r.given_seq is None:
        r.note("nothing says how long sequences are: 4096 tokens, unless --seq says")
    zero = stage if split > 1 else 3
    away = [
        *(
            what
            for what, key in _OFFLOADED.items()
            if r.text(f"zero_optimization.{key}.device", default="none") == "cpu"
        ),
        *(["activations"] if r.flag("activation_checkpointing.cpu_checkpointing") else []),
    ]
    r.inert(*(f"zero_optimization.{key}.pin_memory" for key in _OFFLOADED.values()))
    choices = {"zero": zero, "remat": "none", "offload": ",".join(away) or "none"}
    return Run(
        model,
        words,
        where,
        r.given_seq or 4096,
        mesh,
        whole,
        microbatches,
        choices,
        _options(r),
    )


def _options(r: Reader) -> dict[str, Any]:
    wide, half = r.flag("bf16.enabled"), r.flag("fp16.enabled")
    compute = "bf16" if wide else "fp16" if half else "fp32"
    gradients = r.text("data_types.grad_accum_dtype") or None
    reduction = r.text("communication_data_type") or None
    name = r.text("optimizer.type", default="AdamW")
    optimizer = r.among("optimizer.type", name, _OPTIMIZERS)
    return precision(compute, "fp32", gradients=gradients, reduction=reduction) | {"optimizer": optimizer}
