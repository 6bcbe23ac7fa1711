"""Megatron-LM's arguments, in both directions, and NeMo's configuration of the same run.

Expert ways are ways of data parallelism in Megatron; the vocabulary is padded to a multiple of a divisor and the tensor ways.
"""

from __future__ import annotations

import math
from typing import Any

from rooftop.errors import InputError
from rooftop.frameworks._facts import Facts
from rooftop.frameworks._reader import Reader, Run, precision, rest
from rooftop.transformer import architecture, catalogue_name

_STRATEGY = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_CONTEXT = {"p2p": "ring", "allgather": "gather", "a2a": "ulysses"}
_OPTIMIZERS = {"adam": "adamw", "lion": "lion", "muon": "muon"}
#: Arguments of low precision by recipe.
_LOW: dict[str, dict[str, str]] = {
    "fp8": {"fp8-format": "hybrid"}, "mxfp8": {"fp8-format": "e4m3", "fp8-recipe": "mxfp8"}, "nvfp4": {"fp4-format": "e2m1"},
}  # fmt: skip
_OF_NUMBERS = ("layers", "d_model", "heads", "kv_heads", "head_dim", "d_ff", "vocab", "gated", "tied", "qkv_bias", "out_bias", "mlp_bias",
               "qk_norm", "norm_weights", "positions", "experts", "active", "shared_d_ff")  # fmt: skip
#: Vocabularies of tokenizers that Megatron knows by name.
_VOCABULARIES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
#: Arguments of models that are not plain attention in layers that are alike.
_OTHER_MODELS = (
    "multi-latent-attention", "hybrid-layer-pattern", "hybrid-override-pattern", "window-size", "softmax-type", "is-hybrid-model",
    "linear-attention-type", "experimental-attention-variant", "heterogeneous-layers-config-path", "encoder-num-layers",
)  # fmt: skip
#: Arguments that change nothing that is planned, beside those of a model that is named.
_INERT = (
    "reset-position-ids",
    "reset-attention-mask",
    "sequence-parallel",
    "use-mcore-models",
    "max-position-embeddings",
    "untie-embeddings-and-output-weights",
)


def write(f: Facts) -> dict[str, Any]:
    """Arguments of a plan, without their dashes."""
    plan, ways = f.plan, f.ways
    result = _model(f) | {
        "tensor-model-parallel-size": ways["tensor"], "pipeline-model-parallel-size": ways["pipeline"],
        "context-parallel-size": ways["context"], "expert-model-parallel-size": f.expert_ways,
        "sequence-parallel": ways["tensor"] > 1, "micro-batch-size": plan.sequences, "global-batch-size": plan.batch_sequences,
        "optimizer": f.optimizer({v: k for k, v in _OPTIMIZERS.items()}), **_dtypes(f), **_sharding(f),
    }  # fmt: skip
    if "tensor" in f.folded:
        result["expert-tensor-parallel-size"] = 1
    f.no(
        ways["expert"] > 1 and f.choices.zero > 0 and not f.choices.expert_zero,
        "what is no expert: Megatron splits its optimizer states over expert ways, too, as expert_zero=1 does",
    )
    if ways["context"] > 1:
        result["cp-comm-type"] = next(k for k, v in _CONTEXT.items() if v == f.choices.context_kind)
    again: dict[str, dict[str, Any]] = {
        "none": {}, "dots": {"recompute-granularity": "selective"}, "selective": {"recompute-granularity": "selective"},
        "full": {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1},
    }  # fmt: skip
    result |= again.get(f.choices.remat, {"recompute-granularity": "selective"})
    if f.choices.chunks > 1:
        result["num-virtual-stages-per-pipeline-rank"] = f.choices.chunks
    f.no(f.choices.schedule != "1f1b", f"schedule {f.choices.schedule}: Megatron-LM runs 1F1B")
    f.no(
        f.choices.remat not in ("none", "full"),
        f"remat {f.choices.remat}: Megatron's selective keeps all but the core of attention",
    )
    if f.packed:
        result |= {"reset-position-ids": True, "reset-attention-mask": True}
    if "optimizer" in f.away:
        result |= {
            "optimizer-cpu-offload": True,
            "optimizer-offload-fraction": 1.0,
            "use-precision-aware-optimizer": True,
        }
        f.no(True, "optimizer states in host memory: Megatron-LM updates on the host, the plan on the chip")
    for what in ("params", "activations"):
        f.no(what in f.away, f"{what} in host memory is not written")
    f.kept("zero", "outer_zero", "context_kind", "remat", "schedule", "chunks", "offload", "expert_fold",
           "expert_zero")  # fmt: skip
    return result


def _model(f: Facts) -> dict[str, Any]:
    model, numbers = f.model, f.numbers
    biased = [numbers.get(k, False) for k in ("qkv_bias", "out_bias", "mlp_bias")]
    result: dict[str, Any] = {
        "num-layers": len(model.stack), "hidden-size": model.d_model, "seq-length": f.problem.seq,
        "max-position-embeddings": model.positions or max(model.max_seq, f.problem.seq), "vocab-size": model.vocab,
        "make-vocab-size-divisible-by": 1, "untie-embeddings-and-output-weights": not model.tied,
        "normalization": "RMSNorm" if model.norm_weights == 1 else "LayerNorm",
        "position-embedding-type": "learned_absolute" if model.positions else "rope",
        "disable-bias-linear": not all(biased), "add-qkv-bias": biased == [True, False, False],
    }  # fmt: skip
    f.no(
        bool(numbers) and biased not in ([False] * 3, [True] * 3, [True, False, False]),
        f"biases of {model.name}: Megatron has them everywhere, nowhere, or on queries, keys and values",
    )
    f.no(bool(model.vocab % f.ways["tensor"]), "Megatron pads the vocabulary to a multiple of the tensor ways")
    if f.mixer is not None:
        grouped = f.mixer.kv_heads != f.mixer.heads
        result |= {
            "num-attention-heads": f.mixer.heads, "kv-channels": f.mixer.head_dim, "group-query-attention": grouped,
            "qk-layernorm": bool(f.mixer.qk_norm),
        }  # fmt: skip
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
        if f.moe.capacity_factor != 1.0:
            result["moe-expert-capacity-factor"] = f.moe.capacity_factor
    f.only_numbers(*_OF_NUMBERS)
    return result


def _dtypes(f: Facts) -> dict[str, Any]:
    recipe = f.recipe
    result: dict[str, Any] = {"bf16": recipe.compute == "bf16", "fp16": recipe.compute == "fp16"}
    if recipe.matmul is not None:
        f.no(recipe.matmul not in _LOW, f"matmuls in {recipe.matmul} have no argument")
        result |= _LOW.get(recipe.matmul, {})
    half = recipe.compute != "fp32"
    f.no(
        half and recipe.master != "fp32", "no master copy of the weights: Megatron's mixed precision keeps one in fp32"
    )
    if recipe.compute == "bf16":
        pair = (recipe.gradients, recipe.reduction)
        result["grad-reduce-in-bf16"] = pair == ("bf16", "bf16")
        f.no(
            pair not in (("bf16", "bf16"), ("fp32", "fp32")),
            f"gradients in {pair[0]}, reduced in {pair[1]}: Megatron does both in fp32, or both in bf16",
        )
    if recipe.moments != "fp32":
        f.no(recipe.moments not in ("bf16", "fp16", "fp8"), f"moments in {recipe.moments} have no argument")
        result |= {
            "use-precision-aware-optimizer": True,
            "exp-avg-dtype": recipe.moments,
            "exp-avg-sq-dtype": recipe.moments,
        }
    return result


def _sharding(f: Facts) -> dict[str, Any]:
    zero, ways = f.choices.zero, f.ways
    if ways["fsdp"] * ways["context"] == 1:
        return {}
    result: dict[str, Any] = {}
    if zero > 0:
        result["use-distributed-optimizer"] = True
    if zero > 1:
        strategy = next(k for k, v in _STRATEGY.items() if v == zero)
        result |= {"use-megatron-fsdp": True, "data-parallel-sharding-strategy": strategy}
        if f.choices.outer_zero:
            result["outer-dp-sharding-strategy"] = "optim"
            f.no(zero != 3, "states split over data ways, too: Megatron-FSDP does so with stage 3 only")
    else:
        f.no(bool(f.choices.outer_zero), "states split over data ways beside fsdp ways need Megatron-FSDP")
        f.no(zero == 0 and ways["fsdp"] > 1, "fsdp ways of ZeRO stage 0 are written as data parallelism")
    if ways["data"] > 1 and zero > 0:
        result["num-distributed-optimizer-instances"] = ways["data"]
    return result


def _folded(r: Reader, tensor: int, context: int, expert: int, chips: int | None) -> tuple[list[str], int]:
    """(axes over which whole experts lie beside data parallelism, expert ways that are left of the latter). chips: of a stage."""
    folded: list[str] = []
    width = r.integer("expert-tensor-parallel-size", default=tensor) or tensor
    if width == 1 and tensor > 1 and expert % tensor == 0:
        folded.append("tensor")
        expert //= tensor
    elif width != tensor:
        r.note("expert-tensor-parallel-size: experts are taken to be split over the tensor ways, too")
    across = context > 1 and expert % context == 0
    if across and chips is not None and chips % (tensor * context * expert):
        folded.append("context")
        expert //= context
    return folded, expert


def read(r: Reader) -> Run:
    """A run from arguments."""
    tensor, pipeline = (r.integer(f"{k}-model-parallel-size", default=1) or 1 for k in ("tensor", "pipeline"))
    context = r.integer("context-parallel-size", default=1) or 1
    expert = r.integer("expert-model-parallel-size", default=1) or 1
    each, nodes = r.integer("nproc_per_node", "nproc-per-node", "gpus-per-node"), r.integer("nnodes", "num-nodes")
    chips = r.integer("world-size") or ((each or 8) * (nodes or 1) if each or nodes else None)
    folded, expert = _folded(r, tensor, context, expert, None if chips is None else chips // pipeline)
    minimum = tensor * pipeline * context * expert
    whole = chips if chips is not None and chips % minimum == 0 else None
    where = r.slice(None, whole, minimum)
    mesh = {"data": 1, "fsdp": 1, "tensor": tensor, "context": context, "expert": expert, "pipeline": pipeline}
    left = rest(mesh, where.chips, "fsdp", r.title)
    choices: dict[str, Any] = {"zero": _zero(r), "remat": _remat(r)}
    if folded:
        choices["expert_fold"] = ",".join(folded)
    if r.flag("optimizer-cpu-offload"):
        choices["offload"] = "optimizer"
        if r.number("optimizer-offload-fraction", default=1.0) != 1.0:
            r.note("optimizer-offload-fraction: all optimizer states are taken to lie in host memory")
    instances = r.integer("num-distributed-optimizer-instances", default=1) or 1
    if left % instances:
        raise r.wrong("num-distributed-optimizer-instances", instances, f"a divisor of {left} data-parallel groups")
    mesh |= {"fsdp": left // instances, "data": instances} if choices["zero"] else {"data": left}
    if mesh["fsdp"] * context == 1:
        choices["zero"] = 3  # there is nothing to split, and 3 is what a plan says that says nothing
    outer = r.text("outer-dp-sharding-strategy", default="no_shard")
    if outer == "optim" and mesh["data"] > 1:
        choices["outer_zero"] = 1
    if context > 1:
        kind = r.raw("cp-comm-type")
        choices["context_kind"] = r.among("cp-comm-type", str(kind or "p2p"), _CONTEXT)
    if pipeline > 1:
        chunks = r.integer("num-virtual-stages-per-pipeline-rank")
        layers = r.integer("num-layers-per-virtual-pipeline-stage")
        if chunks is None and layers is not None:
            chunks = r.needed("num-layers") // pipeline // layers
        if chunks is not None and chunks > 1:
            choices["chunks"] = chunks
    sequences = r.integer("micro-batch-size", default=1) or 1
    groups = mesh["data"] * mesh["fsdp"] * expert
    batch = r.integer("global-batch-size", default=sequences * groups) or 1
    if batch % (sequences * groups):
        raise InputError(
            f"{r.title}: global-batch-size {batch} is no multiple of micro-batch-size {sequences} times {groups} data-parallel groups;"
            " give the slice that it runs on with --on",
            field="global-batch-size",
        )
    model, words = _architecture(r, tensor)
    seq = r.given_seq or r.needed("seq-length")
    r.inert(*_INERT)
    return Run(model, words, where, seq, mesh, batch, batch // (sequences * groups), choices, _options(r))


def _zero(r: Reader) -> int:
    distributed = r.flag("use-distributed-optimizer")
    if r.flag("use-megatron-fsdp"):
        told = r.text("data-parallel-sharding-strategy", default="optim_grads_params")
        return int(r.among("data-parallel-sharding-strategy", told, _STRATEGY))
    return 3 if r.flag("use-torch-fsdp2") else 1 if distributed else 0


def _remat(r: Reader) -> str:
    kind = r.text("recompute-granularity") or ("selective" if r.flag("recompute-activations") else "none")
    method, layers = r.text("recompute-method"), r.integer("recompute-num-layers", default=1)
    modules = r.text("recompute-modules")
    if kind == "full" and (method == "block" or layers != 1):
        r.note(f"recompute-method {method or 'uniform'} of {layers} layers is read as every layer by itself")
    if kind == "selective" and modules:
        r.note("recompute-modules: selective is read as keeping the outputs of matmuls with weights")
    return str(r.among("recompute-granularity", kind, {"none": "none", "selective": "selective", "full": "full"}))


def _architecture(r: Reader, tensor: int) -> tuple[Any, str]:
    slots = r.number("moe-expert-capacity-factor", default=1.0) or 1.0
    if r.model is not None:
        return r.architecture(capacity=slots)
    odd = next((key for key in _OTHER_MODELS if r.raw(key) is not None), None)
    if odd is not None:
        raise InputError(
            f"{r.title}: with {odd} its layers are not plain attention and alike; name the model with --model",
            field=odd,
        )
    heads, d_model = r.needed("num-attention-heads"), r.needed("hidden-size")
    swish, gelu = r.flag("swiglu"), r.flag("quick-geglu")
    gated = swish or gelu
    groups = r.integer("num-query-groups", default=1) if r.flag("group-query-attention") else heads
    nowhere, some = r.flag("disable-bias-linear"), r.flag("add-qkv-bias")
    layer_norm = r.text("normalization", default="LayerNorm") == "LayerNorm"
    learned = r.text("position-embedding-type", default="learned_absolute") == "learned_absolute"
    experts = r.integer("num-experts")
    wide = r.integer("ffn-hidden-size", default=4 * d_model)
    numbers: dict[str, Any] = {
        "layers": r.needed("num-layers"), "d_model": d_model, "heads": heads, "kv_heads": groups,
        "head_dim": r.integer("kv-channels", default=d_model // heads), "d_ff": wide, "vocab": _vocabulary(r, tensor),
        "gated": gated, "tied": not r.flag("untie-embeddings-and-output-weights"), "qkv_bias": some or not nowhere,
        "out_bias": not nowhere, "mlp_bias": not nowhere, "qk_norm": r.flag("qk-layernorm"),
        "norm_weights": 2 if layer_norm else 1,
    }  # fmt: skip
    if learned and not r.flag("no-position-embedding"):
        numbers["positions"] = r.needed("max-position-embeddings")
    if experts is not None:
        frequency = str(r.raw("moe-layer-freq") or "1")
        if frequency != "1":
            raise InputError(
                f"{r.title}: its layers are not alike (moe-layer-freq); name the model with --model MODEL",
                field="model",
            )
        numbers |= {
            "experts": experts, "active": r.integer("moe-router-topk", default=2), "d_ff": r.integer("moe-ffn-hidden-size", default=wide),
            "shared_d_ff": r.integer("moe-shared-expert-intermediate-size", default=0, least=0),
        }  # fmt: skip
    if r.integer("mtp-num-layers", default=0, least=0):
        r.note("mtp-num-layers: heads that predict further ahead are left out")
    return r.architecture(
        numbers={k: v for k, v in numbers.items() if v not in (False, 0)} | {"gated": gated}, capacity=slots
    )


def _vocabulary(r: Reader, tensor: int) -> int:
    size = r.integer("padded-vocab-size", "vocab-size")
    kind, tokenizer = r.text("tokenizer-type"), r.text("tokenizer-model")
    if size is None:
        of = catalogue_name(tokenizer)
        size = _VOCABULARIES.get(kind) if of is None else architecture(of).vocab
        if size is not None:
            r.note(f"the vocabulary of {tokenizer if of else kind} is taken to be {size:,}")
    if size is None:
        raise InputError(
            f"{r.title}: nothing says how large the vocabulary is; add --vocab-size to it, or give --model",
            field="vocab-size",
        )
    multiple = (r.integer("make-vocab-size-divisible-by", default=128) or 128) * tensor
    padded = math.ceil(size / multiple) * multiple
    if padded != size:
        r.note(f"the vocabulary of {size:,} is padded to {padded:,}, a multiple of {multiple}, as Megatron does")
    return padded


def _options(r: Reader) -> dict[str, Any]:
    wide, half = r.flag("bf16"), r.flag("fp16")
    compute = "bf16" if wide else "fp16" if half else "fp32"
    low = "fp8" if r.text("fp8-format") else "nvfp4" if r.text("fp4-format") else None
    if low == "fp8" and r.text("fp8-recipe") == "mxfp8":
        low = "mxfp8"
    narrow = r.flag("grad-reduce-in-bf16")
    r.inert("accumulate-allreduce-grads-in-fp32")
    gradients = None if compute != "bf16" else "bf16" if narrow else "fp32"
    moments = r.text("exp-avg-dtype", default="fp32") if r.flag("use-precision-aware-optimizer") else "fp32"
    r.inert("exp-avg-sq-dtype")
    optimizer = r.among("optimizer", r.text("optimizer", default="adam"), _OPTIMIZERS)
    return precision(
        compute, "fp32", moments=moments, gradients=gradients, reduction=gradients, matmul=low
    ) | {"optimizer": optimizer}  # fmt: skip


_NEMO_NAMES = {
    "seq-length": "encoder_seq_length", "recompute-granularity": "activations_checkpoint_granularity",
    "recompute-method": "activations_checkpoint_method", "recompute-num-layers": "activations_checkpoint_num_layers",
    "num-virtual-stages-per-pipeline-rank": "virtual_pipeline_model_parallel_size", "num-experts": "num_moe_experts",
    "add-qkv-bias": "add_qkv_bias", "cp-comm-type": "cp_comm_type",
}  # fmt: skip
#: What NeMo says otherwise, or has no key for.
_NOT_NEMO = (
    "bf16", "fp16", "swiglu", "group-query-attention", "untie-embeddings-and-output-weights", "vocab-size", "use-megatron-fsdp",
    "data-parallel-sharding-strategy", "outer-dp-sharding-strategy", "num-distributed-optimizer-instances",
    "use-distributed-optimizer", "normalization", "optimizer", "grad-reduce-in-bf16", "use-precision-aware-optimizer",
    "optimizer-cpu-offload", "optimizer-offload-fraction", "exp-avg-dtype", "exp-avg-sq-dtype", "disable-bias-linear", "fp8-format", "fp8-recipe", "fp4-format",
)  # fmt: skip


def write_nemo(f: Facts) -> dict[str, Any]:
    """NeMo's Megatron configuration of a plan."""
    flat = write(f)
    model: dict[str, Any] = {_NEMO_NAMES.get(k, k.replace("-", "_")): v for k, v in flat.items() if k not in _NOT_NEMO}
    model |= {
        "share_embeddings_and_output_weights": f.model.tied, "bias": not flat["disable-bias-linear"],
        "normalization": "rmsnorm" if flat["normalization"] == "RMSNorm" else "layernorm",
        "activation": "fast-swiglu" if flat.get("swiglu") else "gelu",
        "optim": {"name": "distributed_fused_adam" if f.ways["fsdp"] > 1 else "fused_adam"},
    }  # fmt: skip
    f.unsaid = [text for text in f.unsaid if not text.startswith("optimizer states in host")]
    f.no("optimizer" in f.away, "optimizer in host memory is not written")
    f.no(True, "the vocabulary is that of the tokenizer: set model.tokenizer")
    f.no(f.recipe.matmul not in (None, "fp8"), f"matmuls in {f.recipe.matmul} have no key")
    f.no(f.recipe.moments != "fp32", f"moments in {f.recipe.moments} have no key")
    if f.recipe.matmul == "fp8":
        model |= {"transformer_engine": True, "fp8": True, "fp8_hybrid": True}
    if f.ways["fsdp"] > 1 and f.choices.zero > 1:
        full = "hybrid" if f.ways["data"] > 1 else "full"
        model |= {"fsdp": True, "fsdp_sharding_strategy": "grad" if f.choices.zero == 2 else full}
    hosts = max(1, f.plan.chips // f.problem.slice.chip.chips_per_host)
    kind = {"bf16": "bf16", "fp16": "16", "fp32": "32"}[f.recipe.compute]
    return {"trainer": {"num_nodes": hosts, "devices": f.plan.chips // hosts, "precision": kind}, "model": model}
