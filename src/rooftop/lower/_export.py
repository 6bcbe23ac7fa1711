"""A training plan as another framework's configuration, in its own keys; what it has no key for is said.

Keys are those of MaxText's base.yml, Megatron-LM's arguments, torchtitan's job configuration, DeepSpeed's JSON, NeMo's Megatron
configuration, and the server arguments of vLLM, SGLang and TensorRT-LLM.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rooftop.errors import InputError
from rooftop.training import Plan, Problem, names_of
from rooftop.transformer import MLP, Attention, MoE

_TORCH = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True, slots=True)
class Exported:
    """settings: by key, perhaps nested; text: the file; unsaid: what the framework cannot be told, in sentences."""

    framework: str
    settings: Mapping[str, Any]
    text: str
    unsaid: tuple[str, ...]


def export(problem: Problem, plan: Plan, framework: str) -> Exported:
    """A plan for one of FRAMEWORKS. Raises InputError for others."""
    if framework not in FRAMEWORKS:
        raise InputError(f"no framework is called {framework[:40]!r}; use {', '.join(FRAMEWORKS)}", field="to")
    make, write = FRAMEWORKS[framework]
    facts = _Facts(problem, plan)
    settings = make(facts)
    return Exported(framework, settings, write(settings), tuple(dict.fromkeys(facts.unsaid)))


class _Facts:
    """What the exporters read, and the list of what they could not say."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem, self.plan, self.recipe = problem, plan, problem.recipe
        self.unsaid: list[str] = []
        self.ways = {a: plan.mesh.get(a, 1) for a in ("data", "fsdp", "tensor", "context", "expert", "pipeline")}
        model = problem.model
        first = model.stack[0]
        self.mixer = first.mixer if isinstance(first.mixer, Attention) else None
        parts = [layer.feed_forward for layer in model.stack]
        self.moe = next((p for p in parts if isinstance(p, MoE)), None)
        self.mlp = next((p for p in parts if isinstance(p, MLP)), None)
        if self.mixer is None or len(set(model.stack)) > 1:
            self.unsaid.append(
                f"layers of {model.name} are not all plain attention and alike: name its model in the framework"
            )
        if plan.chips < problem.slice.chips:
            self.unsaid.append(
                f"{problem.slice.chips - plan.chips} chips of {problem.slice.name} stay idle: start {plan.chips} processes"
            )
        if any(len([n for n in f.values() if n > 1]) > 1 for f in plan.factors):
            self.unsaid.append("which chips of the network each mesh axis has is the framework's own choice")

    @property
    def global_batch(self) -> int:
        """Sequences of a step."""
        return self.plan.batch_sequences

    @property
    def packed(self) -> bool:
        """Whether sequences hold several documents, which attention must not cross."""
        return self.problem.documents is not None and self.problem.packing == "packed"

    def no(self, condition: bool, text: str) -> None:
        """Say what cannot be said."""
        if condition:
            self.unsaid.append(text)


#: Arrays as MaxText's custom remat policy names them.
_MAXTEXT_NAMES = {"q": "query_proj", "k": "key_proj", "v": "value_proj", "o": "context", "attention_out": "out_proj",
                  "gate": "mlpwi_0", "up": "mlpwi_1"}  # fmt: skip


def _maxtext(f: _Facts) -> dict[str, Any]:
    model, plan, ways = f.problem.model, f.plan, f.ways
    slices = plan.factors[-1] if len(f.problem.slice.levels) > 1 else {}
    result: dict[str, Any] = {
        "base_emb_dim": model.d_model, "base_num_decoder_layers": len(model.stack), "vocab_size": model.vocab,
        "logits_via_embedding": model.tied, "max_target_length": f.problem.seq,
        "hardware": "gpu" if f.problem.slice.chip.family == "gpu" else "tpu",
        "per_device_batch_size": plan.sequences * plan.groups / plan.chips,
        "gradient_accumulation_steps": 1 if ways["pipeline"] > 1 else plan.microbatches,
        "dtype": _TORCH[f.recipe.compute], "weight_dtype": _TORCH[f.recipe.master or f.recipe.weights],
        "mu_dtype": _TORCH.get(f.recipe.moments, "float32"),
        "opt_type": "adamw", "remat_policy": "full" if plan.choices.remat == "full" else "minimal",
    }  # fmt: skip
    if f.mixer is not None:
        result |= {
            "base_num_query_heads": f.mixer.heads,
            "base_num_kv_heads": f.mixer.kv_heads,
            "head_dim": f.mixer.head_dim,
        }
    if f.moe is not None:
        result |= {"num_experts": f.moe.experts, "num_experts_per_tok": f.moe.active, "base_mlp_dim": f.moe.d_ff,
                   "capacity_factor": f.moe.capacity_factor}  # fmt: skip
    elif f.mlp is not None:
        result["base_mlp_dim"] = f.mlp.d_ff
    if f.problem.documents is not None:
        result["packing"] = f.packed
    for axis, n in ways.items():
        outer = int(slices.get(axis, 1))
        result |= {f"ici_{axis}_parallelism": n // outer, f"dcn_{axis}_parallelism": outer}
    if ways["pipeline"] > 1:
        result["num_pipeline_microbatches"] = plan.microbatches
        result["per_device_batch_size"] = plan.sequences * plan.groups * plan.microbatches / plan.chips
    f.no(
        plan.choices.zero != 3 and ways["fsdp"] > 1,
        f"ZeRO stage {plan.choices.zero}: MaxText's fsdp splits weights too (stage 3)",
    )
    f.no(plan.choices.remat == "none", "remat none: the nearest policy that saves outputs of matmuls is minimal")
    result |= {
        key: True
        for what, key in (
            ("optimizer", "optimizer_memory_host_offload"),
            ("params", "parameter_memory_host_offload"),
        )
        if what in plan.choices.offloads
    }
    if plan.choices.sets:
        kept = {_MAXTEXT_NAMES[n]: "device" for n in names_of(plan.choices.remat) if n in _MAXTEXT_NAMES}
        result |= {"remat_policy": "custom", **kept}
        unknown = [n for n in names_of(plan.choices.remat) if n not in _MAXTEXT_NAMES]
        f.no(bool(unknown), f"remat: MaxText has no names for {', '.join(unknown)}, which it recomputes")
        f.no("activations" in plan.choices.offloads, "activations in host memory are not written with named arrays")
    elif "activations" in plan.choices.offloads and plan.choices.remat == "full":
        result |= {"remat_policy": "custom", "decoder_layer_input": "offload"}
    elif "activations" in plan.choices.offloads:
        result["remat_policy"] = "minimal_offloaded"
    return result


def _megatron_model(f: _Facts) -> dict[str, Any]:
    model = f.problem.model
    result: dict[str, Any] = {
        "num-layers": len(model.stack), "hidden-size": model.d_model, "seq-length": f.problem.seq,
        "max-position-embeddings": max(model.max_seq, f.problem.seq), "vocab-size": model.vocab,
        "untie-embeddings-and-output-weights": not model.tied,
        "normalization": "RMSNorm" if model.norm_weights == 1 else "LayerNorm", "position-embedding-type": "rope",
    }  # fmt: skip
    if f.mixer is not None:
        grouped = f.mixer.kv_heads != f.mixer.heads
        result |= {
            "num-attention-heads": f.mixer.heads,
            "kv-channels": f.mixer.head_dim,
            "group-query-attention": grouped,
        }
        if grouped:
            result["num-query-groups"] = f.mixer.kv_heads
    if f.mlp is not None:
        result |= {"ffn-hidden-size": f.mlp.d_ff, "swiglu": f.mlp.gated}
    if f.moe is not None:
        result |= {"num-experts": f.moe.experts, "moe-router-topk": f.moe.active, "moe-ffn-hidden-size": f.moe.d_ff,
                   "swiglu": f.moe.gated}  # fmt: skip
        result.setdefault("ffn-hidden-size", f.moe.d_ff)
        if f.moe.shared_d_ff:
            result["moe-shared-expert-intermediate-size"] = f.moe.shared_d_ff
    return result


def _megatron(f: _Facts) -> dict[str, Any]:
    plan, ways = f.plan, f.ways
    sharded = ways["fsdp"] > 1
    boundaries = {"reset-position-ids": True, "reset-attention-mask": True} if f.packed else {}
    result = boundaries | _megatron_model(f) | {
        "tensor-model-parallel-size": ways["tensor"], "pipeline-model-parallel-size": ways["pipeline"],
        "context-parallel-size": ways["context"], "expert-model-parallel-size": ways["expert"],
        "sequence-parallel": ways["tensor"] > 1, "micro-batch-size": plan.sequences, "global-batch-size": f.global_batch,
        "bf16": f.recipe.compute == "bf16", "fp16": f.recipe.compute == "fp16",
    }  # fmt: skip
    if sharded:
        result["use-distributed-optimizer"] = True
        if plan.choices.zero > 1:
            result |= {"use-megatron-fsdp": True,
                       "data-parallel-sharding-strategy": {2: "optim_grads", 3: "optim_grads_params"}[plan.choices.zero]}  # fmt: skip
        if ways["data"] > 1:
            result["num-distributed-optimizer-instances"] = ways["data"]
    again: dict[str, dict[str, Any]] = {
        "none": {}, "dots": {}, "selective": {"recompute-granularity": "selective"},
        "full": {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1},
    }  # fmt: skip
    result |= again.get(plan.choices.remat, {"recompute-granularity": "selective"})
    if plan.choices.chunks > 1:
        result["num-virtual-stages-per-pipeline-rank"] = plan.choices.chunks
    f.no(
        ways["pipeline"] > 1 and plan.choices.schedule != "1f1b",
        f"schedule {plan.choices.schedule}: Megatron-LM runs 1F1B",
    )
    if "optimizer" in plan.choices.offloads:
        result |= {
            "optimizer-cpu-offload": True,
            "optimizer-offload-fraction": 1.0,
            "use-precision-aware-optimizer": True,
        }
        f.no(True, "optimizer states in host memory: Megatron-LM updates on the host, the plan on the chip")
    for what in ("params", "activations"):
        f.no(what in plan.choices.offloads, f"{what} in host memory is not written")
    f.no(plan.choices.remat == "dots", "remat dots: no recomputation is written")
    f.no(bool(plan.choices.sets), f"remat {plan.choices.remat}: Megatron's selective recomputation is written")
    f.no(
        plan.choices.remat == "selective",
        "remat selective: Megatron's keeps all but the core of attention, the plan's all outputs of matmuls",
    )
    return result


def _nemo(f: _Facts) -> dict[str, Any]:
    flat = _megatron(f)
    names = {
        "seq-length": "encoder_seq_length", "recompute-granularity": "activations_checkpoint_granularity",
        "recompute-method": "activations_checkpoint_method", "recompute-num-layers": "activations_checkpoint_num_layers",
        "num-virtual-stages-per-pipeline-rank": "virtual_pipeline_model_parallel_size", "moe-router-topk": "moe_router_topk",
        "num-experts": "num_moe_experts",
    }  # fmt: skip
    left = ("bf16", "fp16", "swiglu", "group-query-attention", "untie-embeddings-and-output-weights", "vocab-size",
            "use-megatron-fsdp", "data-parallel-sharding-strategy", "num-distributed-optimizer-instances",
            "use-distributed-optimizer", "normalization", "optimizer-cpu-offload", "optimizer-offload-fraction",
            "use-precision-aware-optimizer")  # fmt: skip
    model: dict[str, Any] = {names.get(k, k.replace("-", "_")): v for k, v in flat.items() if k not in left}
    model |= {
        "share_embeddings_and_output_weights": f.problem.model.tied,
        "normalization": "rmsnorm" if flat["normalization"] == "RMSNorm" else "layernorm",
        "activation": "fast-swiglu" if flat.get("swiglu") else "gelu",
        "optim": {"name": "distributed_fused_adam" if f.ways["fsdp"] > 1 else "fused_adam"},
    }
    if f.ways["fsdp"] > 1 and f.plan.choices.zero > 1:
        model |= {
            "fsdp": True,
            "fsdp_sharding_strategy": {2: "grad", 3: "hybrid" if f.ways["data"] > 1 else "full"}[f.plan.choices.zero],
        }
    f.unsaid = [text for text in f.unsaid if not text.startswith("optimizer states in host")]
    f.no("optimizer" in f.plan.choices.offloads, "optimizer in host memory is not written")
    hosts = max(1, f.plan.chips // f.problem.slice.chip.chips_per_host)
    precision = {"bf16": "bf16", "fp16": "16", "fp32": "32"}[f.recipe.compute]
    return {
        "trainer": {"num_nodes": hosts, "devices": f.plan.chips // hosts, "precision": precision}, "model": model
    }  # fmt: skip


def _torchtitan(f: _Facts) -> dict[str, Any]:
    plan, ways = f.plan, f.ways
    f.no(
        plan.choices.zero == 1 and ways["fsdp"] > 1, "ZeRO stage 1: FSDP2 splits gradients at least; stage 2 is written"
    )
    f.no(f.packed, "attention inside of documents: choose a flavor of the model with block-causal attention")
    f.no(True, "the sizes of the model: set model.name and model.flavor to a model of torchtitan's")
    schedule = {"1f1b": "Interleaved1F1B" if plan.choices.chunks > 1 else "1F1B", "gpipe": "GPipe"}.get(
        plan.choices.schedule
    )
    f.no(
        schedule is None and ways["pipeline"] > 1,
        f"schedule {plan.choices.schedule} has another name, if any; 1F1B is written",
    )
    away = plan.choices.offloads
    f.no(
        bool(away & {"optimizer", "params"}),
        f"{', '.join(sorted(away & {'optimizer', 'params'}))} in host memory: torchtitan moves weights, gradients and optimizer"
        " states there together, and updates on the host",
    )
    f.no("activations" in away, "activations in host memory is not written")
    # its selective mode saves outputs of matmuls, "op" by "op"
    mode = {"none": "none", "full": "full"}.get(plan.choices.remat, "selective")
    f.no(
        mode == "selective",
        f"remat {plan.choices.remat}: torchtitan's selective mode keeps the outputs of most matmuls",
    )
    return {
        "training": {
            **({"enable_cpu_offload": True} if away & {"optimizer", "params"} else {}),
            "local_batch_size": plan.sequences * plan.microbatches if ways["pipeline"] > 1 else plan.sequences,
            "global_batch_size": f.global_batch, "seq_len": f.problem.seq,
            "mixed_precision_param": _TORCH[f.recipe.compute], "mixed_precision_reduce": "float32",
        },
        "parallelism": {
            "data_parallel_replicate_degree": ways["data"], "data_parallel_shard_degree": ways["fsdp"] * ways["expert"],
            "tensor_parallel_degree": ways["tensor"], "context_parallel_degree": ways["context"],
            "pipeline_parallel_degree": ways["pipeline"], "expert_parallel_degree": ways["expert"],
            "pipeline_parallel_schedule": schedule or "1F1B",
            "fsdp_reshard_after_forward": "always" if plan.choices.zero == 3 else "never",
        },
        "activation_checkpoint": {"mode": mode, "selective_ac_option": "op"},
        "optimizer": {"name": "AdamW"},
    }  # fmt: skip


def _deepspeed(f: _Facts) -> dict[str, Any]:
    plan, ways = f.plan, f.ways
    f.no(f.packed, "attention inside of documents is chosen in the model's code")
    f.no(ways["pipeline"] > 1, f"{ways['pipeline']} pipeline stages are PipelineModule(num_stages=...) in code")
    f.no(ways["expert"] > 1, f"{ways['expert']} ways of experts are MoE(ep_size=...) in code")
    f.no(ways["context"] > 1, f"{ways['context']} ways of context are sequence parallelism (Ulysses) in code")
    f.no(plan.choices.remat != "none", f"remat {plan.choices.remat} is chosen in the model's code")
    zero: dict[str, Any] = {"stage": plan.choices.zero if ways["fsdp"] > 1 else 0}
    if ways["data"] > 1 and ways["fsdp"] > 1:
        zero["mics_shard_size"] = ways["fsdp"]
    away = plan.choices.offloads
    host = {"device": "cpu", "pin_memory": True}
    if "optimizer" in away:
        zero["offload_optimizer"] = host
        f.no(
            True,
            "optimizer states in host memory: DeepSpeed sends gradients there and updates on the host, the plan on the chip",
        )
    if "params" in away and zero["stage"] == 3:
        zero["offload_param"] = host
    f.no("params" in away and zero["stage"] != 3, "params in host memory: DeepSpeed has it with stage 3 only")
    result: dict[str, Any] = {
        "train_batch_size": f.global_batch, "train_micro_batch_size_per_gpu": plan.sequences,
        "gradient_accumulation_steps": plan.microbatches, "zero_optimization": zero,
        "bf16": {"enabled": f.recipe.compute == "bf16"}, "fp16": {"enabled": f.recipe.compute == "fp16"},
        "optimizer": {"type": "AdamW", "params": {}},
    }  # fmt: skip
    if ways["tensor"] > 1:
        result["tensor_parallel"] = {"autotp_size": ways["tensor"]}
    if "activations" in away:
        result["activation_checkpointing"] = {"cpu_checkpointing": True}
    return result


def _served(f: _Facts) -> tuple[int, int, int]:
    """(tensor, pipeline, replicas) of a server, with what of a training plan means nothing there."""
    ways = f.ways
    f.no(True, "the plan is one of training: rooftop serve finds the best layout for serving")
    f.no(
        ways["fsdp"] > 1,
        f"fsdp={ways['fsdp']}: a server keeps whole weights of its tensor group; written as data parallelism",
    )
    f.no(ways["context"] > 1, f"context={ways['context']} is not written")
    return ways["tensor"], ways["pipeline"], ways["data"] * ways["fsdp"]


def _vllm(f: _Facts) -> dict[str, Any]:
    tensor, pipeline, replicas = _served(f)
    return {
        "model": f.problem.model.source or f.problem.model.name, "tensor-parallel-size": tensor, "pipeline-parallel-size": pipeline,
        "data-parallel-size": replicas * f.ways["expert"], "enable-expert-parallel": f.ways["expert"] > 1,
        "max-model-len": f.problem.seq, "dtype": _TORCH[f.recipe.compute],
    }  # fmt: skip


def _sglang(f: _Facts) -> dict[str, Any]:
    tensor, pipeline, replicas = _served(f)
    return {
        "model-path": f.problem.model.source or f.problem.model.name, "tensor-parallel-size": tensor * f.ways["expert"],
        "pipeline-parallel-size": pipeline, "data-parallel-size": replicas, "expert-parallel-size": f.ways["expert"],
        "context-length": f.problem.seq, "dtype": _TORCH[f.recipe.compute],
    }  # fmt: skip


def _tensorrt(f: _Facts) -> dict[str, Any]:
    tensor, pipeline, replicas = _served(f)
    f.no(replicas > 1, f"{replicas} replicas: start as many servers")
    return {
        "tensor_parallel_size": tensor * f.ways["expert"], "pipeline_parallel_size": pipeline,
        "moe_expert_parallel_size": f.ways["expert"], "max_seq_len": f.problem.seq, "dtype": _TORCH[f.recipe.compute],
    }  # fmt: skip


def _yaml(settings: Mapping[str, Any], indent: str = "") -> str:
    lines = []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            lines.append(f"{indent}{key}:\n{_yaml(value, indent + '  ')}")
        else:
            lines.append(f"{indent}{key}: {json.dumps(value)}\n")  # what JSON writes of a scalar is YAML
    return "".join(lines)


def _toml(settings: Mapping[str, Any]) -> str:
    return "\n".join(
        f"[{table}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in rows.items())
        for table, rows in settings.items()
    )


def _arguments(settings: Mapping[str, Any]) -> str:
    rows = [
        f"--{key}" if value is True else f"--{key} {value}" for key, value in settings.items() if value is not False
    ]
    return "\n".join(rows) + "\n"


def _json(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, indent=2) + "\n"


#: (settings of a plan, how they are written) by framework.
FRAMEWORKS: dict[str, tuple[Callable[[_Facts], dict[str, Any]], Callable[[Mapping[str, Any]], str]]] = {
    "maxtext": (_maxtext, _yaml), "megatron": (_megatron, _arguments), "torchtitan": (_torchtitan, _toml),
    "deepspeed": (_deepspeed, _json), "nemo": (_nemo, _yaml), "vllm": (_vllm, _yaml), "sglang": (_sglang, _yaml),
    "tensorrt-llm": (_tensorrt, _yaml),
}  # fmt: skip
