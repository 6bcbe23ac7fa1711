"""MaxText: keys of its base.yml, in both directions.

An `ici_` axis lies inside of a slice, a `dcn_` axis across slices (of GPUs: across the outermost network). One axis of each
may be -1: all that is left. `per_device_batch_size` counts sequences of one forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rooftop.costing import ASKED_AXES, MESH_AXES
from rooftop.errors import InputError
from rooftop.frameworks._facts import DTYPES, Facts
from rooftop.frameworks._reader import Reader, Run, precision
from rooftop.hardware import Slice, slice_of
from rooftop.training import SAVE, names_of

_REMAT = {"full": "full", "minimal": "selective", "minimal_with_context": "dots"}
#: Arrays that its custom remat policy can keep.
_NAMES = {"q": "query_proj", "k": "key_proj", "v": "value_proj", "o": "context", "attention_out": "out_proj", "gate": "mlpwi_0",
          "up": "mlpwi_1"}  # fmt: skip
_OFFLOADED = {"optimizer": "optimizer_memory_host_offload", "params": "parameter_memory_host_offload"}
_CONTEXT = {"ring": "ring", "all_gather": "gather", "ulysses": "ulysses"}
_OPTIMIZERS = {"adamw": "adamw", "muon": "muon"}
_QUANTIZATION = {"fp8": "fp8", "int8": "int8", "te_mxfp8": "mxfp8", "te_nvfp4": "nvfp4"}
#: Blocks that are plain attention and alike, with what their names say beside the numbers.
_BLOCKS: dict[str, dict[str, Any]] = {
    "default": {}, "llama2": {}, "mistral": {}, "mixtral": {}, "qwen2": {"qkv_bias": True}, "qwen3": {"qk_norm": True},
    "qwen3_moe": {"qk_norm": True},
}  # fmt: skip
#: Mesh axes as MaxText has them beside those of the same name.
_MORE = {"fsdp": ("fsdp_transpose",), "tensor": ("tensor_sequence",)}
_OF_NUMBERS = ("layers", "d_model", "heads", "kv_heads", "head_dim", "d_ff", "vocab", "gated", "tied", "experts", "active", "qk_norm",
               "qkv_bias")  # fmt: skip
_DEFAULTS = {"layers": 16, "d_model": 2048, "heads": 16, "kv_heads": 16, "head_dim": 128, "d_ff": 7168, "vocab": 32000}
#: TPUs whose name counts cores, two of a chip.
_CORES = {"v4": 2, "v5p": 2, "tpu7x": 2}


def write(f: Facts) -> dict[str, Any]:
    """base.yml's keys of a plan."""
    plan, ways, recipe = f.plan, f.ways, f.recipe
    result = _model(f) | {
        "max_target_length": f.problem.seq,
        "hardware": "gpu" if f.problem.slice.chip.family == "gpu" else "tpu",
        "per_device_batch_size": plan.sequences * plan.groups / plan.chips,
        "gradient_accumulation_steps": plan.microbatches,
        "dtype": DTYPES[recipe.compute], "weight_dtype": DTYPES[recipe.master or recipe.weights],
        "grad_dtype": DTYPES[recipe.gradients], "mu_dtype": DTYPES.get(recipe.moments, "float32"),
        "opt_type": f.optimizer({v: k for k, v in _OPTIMIZERS.items()}),
        "remat_policy": next((k for k, v in _REMAT.items() if v == f.choices.remat), "minimal_with_context"),
        "shard_optimizer_over_data": f.choices.outer_zero == 1,
    }  # fmt: skip
    if recipe.matmul is not None:
        result["quantization"] = next(k for k, v in _QUANTIZATION.items() if v == recipe.matmul)
    outer = plan.factors[-1] if len(f.problem.slice.levels) > 1 else {}
    for axis, n in ways.items():
        if axis in ASKED_AXES:  # tensor_transpose, which MaxText had up to version 0.2.3
            continue
        across = int(outer.get(axis, 1))
        result |= {f"ici_{axis}_parallelism": n // across, f"dcn_{axis}_parallelism": across}
    topology = _topology(f.problem.slice)
    if topology is not None and plan.chips == f.problem.slice.chips:
        result |= topology
    if ways["context"] > 1:
        result["context_parallel_strategy"] = next(k for k, v in _CONTEXT.items() if v == f.choices.context_kind)
        result["context_parallel_load_balance"] = f.choices.causal == "balanced"
    if ways["pipeline"] > 1:
        result["num_pipeline_microbatches"] = plan.microbatches
        result["per_device_batch_size"] = plan.sequences * plan.groups * plan.microbatches / plan.chips
        result["gradient_accumulation_steps"] = 1
        f.no(
            f.choices.schedule != "gpipe",
            f"schedule {f.choices.schedule}: MaxText runs all forward passes first, as gpipe",
        )
    f.no(
        f.choices.zero != 3 and ways["fsdp"] * ways["context"] > 1,
        f"ZeRO stage {f.choices.zero}: MaxText's fsdp splits weights too (stage 3)",
    )
    f.no(
        f.choices.remat == "none",
        "remat none: the nearest policy, which keeps outputs of matmuls, is minimal_with_context",
    )
    f.no(recipe.moments not in DTYPES, f"moments in {recipe.moments}: written as float32")
    if f.problem.documents is not None:
        result["packing"] = f.packed
    result |= {key: True for what, key in _OFFLOADED.items() if what in f.away}
    if "activations" in f.away and f.choices.remat == "full":
        result |= {"remat_policy": "custom", "decoder_layer_input": "offload"}
    elif f.choices.sets:
        kept = names_of(f.choices.remat)
        result |= {"remat_policy": "custom", **{key: "device" for name, key in _NAMES.items() if name in kept}}
        lost = [name for name in kept if name not in _NAMES]
        f.no(bool(lost), f"remat: MaxText has no names for {', '.join(lost)}, which it makes again")
        f.no("activations" in f.away, "activations in host memory are not written beside named ones")
    elif "activations" in f.away:
        result["remat_policy"] = "minimal_offloaded"
    f.kept("zero", "outer_zero", "context_kind", "causal", "remat", "schedule", "offload")
    return result


def _model(f: Facts) -> dict[str, Any]:
    model = f.model
    result: dict[str, Any] = {
        "base_emb_dim": model.d_model, "base_num_decoder_layers": len(model.stack), "vocab_size": model.vocab,
        "logits_via_embedding": model.tied,
    }  # fmt: skip
    if f.mixer is not None:
        result |= {
            "base_num_query_heads": f.mixer.heads, "base_num_kv_heads": f.mixer.kv_heads, "head_dim": f.mixer.head_dim,
            "use_qk_norm": bool(f.mixer.qk_norm),
        }  # fmt: skip
    part = f.moe or f.mlp
    if part is not None:
        result |= {"base_mlp_dim": part.d_ff, "mlp_activations": ["silu", "linear"] if part.gated else ["gelu"]}
    if f.moe is not None:
        slots = f.moe.capacity_factor
        result |= {
            "num_experts": f.moe.experts, "num_experts_per_tok": f.moe.active, "base_moe_mlp_dim": f.moe.d_ff,
            "capacity_factor": -1.0 if slots == 1.0 else slots,
        }  # fmt: skip
    f.only_numbers(*_OF_NUMBERS)
    moe, norm, bias = f.moe is not None, bool(f.numbers.get("qk_norm")), bool(f.numbers.get("qkv_bias"))
    result["decoder_block"] = (
        "qwen3_moe" if moe and norm else "mixtral" if moe else "qwen3" if norm else "qwen2" if bias else "llama2"
    )
    return result


def _topology(where: Slice) -> dict[str, Any] | None:
    """The keys of MaxText's compilation ahead of time for TPU slices of standard shape."""
    chip = where.chip
    if chip.family != "tpu" or not where.levels:
        return None
    inner, slices = where.levels[0].size, math.prod(level.size for level in where.levels[1:])
    try:
        if slice_of(f"{chip.name}:{inner}").levels[0] != where.levels[0]:
            return None
    except InputError:
        return None
    return {
        "compile_topology": f"{chip.name}-{inner * _CORES.get(chip.name, 1)}",
        "compile_topology_num_slices": slices,
    }


def read(r: Reader) -> Run:
    """A run from base.yml's keys; what they leave out has MaxText's defaults."""
    if r.text("base_config"):
        r.note(f"{r.text('base_config')[:60]} is not read: what it sets counts only where it is MaxText's default")
    where = r.slice(_slice(r))
    mesh = _mesh(r, where)
    chips = math.prod(mesh.values())
    each = r.number("per_device_batch_size")
    if each is None:
        each = 12.0
        r.note("per_device_batch_size is MaxText's default, 12")
    accumulated = r.integer("gradient_accumulation_steps", default=1) or 1
    passed = each * chips
    if passed != round(passed) or passed < 1:
        raise r.wrong("per_device_batch_size", each, f"a share of whole sequences on {chips} chips")
    microbatches = accumulated
    if mesh["pipeline"] > 1:
        told = r.integer("num_pipeline_microbatches", least=-1)
        microbatches = accumulated * (mesh["pipeline"] if told in (None, -1, 0) else int(told or 1))
    model, words = _architecture(r)
    remat, away = _remat(r)
    choices = {
        "remat": remat,
        "offload": away,
        "zero": 3,
        "outer_zero": int(r.flag("shard_optimizer_over_data") and mesh["data"] > 1),
    }
    if mesh["context"] > 1:
        choices["context_kind"] = r.among(
            "context_parallel_strategy", r.text("context_parallel_strategy", default="all_gather"), _CONTEXT
        )
        balanced = r.flag("context_parallel_load_balance", default=True)
        if choices["context_kind"] != "ulysses" and not balanced:
            choices["causal"] = "contiguous"
    if mesh["pipeline"] > 1:
        choices["schedule"] = "gpipe"
    r.inert("hardware", "decoder_block", "packing")
    seq = r.given_seq or r.integer("max_target_length", default=2048) or 2048
    return Run(
        model, words, where, seq, mesh, round(passed) * accumulated, microbatches, choices, _options(r),
    )  # fmt: skip


def _slice(r: Reader) -> str | None:
    topology = r.text("compile_topology")
    slices = r.integer("compile_topology_num_slices", "num_slices", default=1, least=-1) or 1
    if not topology:
        return None
    name, _, count = topology.partition("-")
    if not count.isdigit():
        raise r.wrong("compile_topology", topology, "a TPU and a number, such as v5e-256")
    return f"{name}:{max(1, int(count) // _CORES.get(name, 1))}" + (f"*{slices}" if slices > 1 else "")


def _mesh(r: Reader, where: Slice) -> dict[str, int]:
    """Ways by axis; -1 is what is left of a slice, or of the slices."""
    outer = where.levels[-1].size if len(where.levels) > 1 else 1
    mesh = dict.fromkeys(MESH_AXES, 1)
    for kind, chips, open_axis in (("ici", where.chips // outer, "fsdp"), ("dcn", outer, "data")):
        ways: dict[str, int] = {}
        for axis in MESH_AXES:
            for name in (axis, *_MORE.get(axis, ())):
                usual = -1 if name == open_axis else 1
                told = r.integer(f"{kind}_{name}_parallelism", default=usual, least=-1)
                ways[name] = usual if told is None else told
        _check_whole(r, kind, ways, chips)
        left = [name for name, n in ways.items() if n == -1]
        if left:
            ways[left[0]] = chips // math.prod(n for n in ways.values() if n > 0)
        for axis in MESH_AXES:
            mesh[axis] *= math.prod(ways[name] for name in (axis, *_MORE.get(axis, ())))
    return mesh


def _check_whole(r: Reader, kind: str, ways: Mapping[str, int], chips: int) -> None:
    open_axes = [name for name, n in ways.items() if n == -1]
    product = math.prod(n for n in ways.values() if n > 0)
    shown = ", ".join(f"{kind}_{a}_parallelism={n}" for a, n in ways.items() if n > 1)
    if len(open_axes) > 1 or 0 in ways.values():
        raise InputError(f"{r.title}: at most one {kind}_ axis may be -1, and none 0", field="mesh")
    if chips % product if open_axes else product > chips:
        raise InputError(
            f"{r.title}: {shown} does not fit on the {chips} chips of its network; name the slice that it runs on with --on",
            field="mesh",
        )


def _remat(r: Reader) -> tuple[str, str]:
    """(what runs again, what lies in host memory)."""
    policy = r.text("remat_policy", default="full")
    away = [what for what, key in _OFFLOADED.items() if r.flag(key)]
    inputs = r.text("decoder_layer_input", default="device")
    if policy == "minimal_offloaded" or (policy == "custom" and inputs == "offload"):
        away.append("activations")
        policy = "full" if policy == "custom" else "minimal_with_context"
    if policy == "custom":
        kept = [name for name, key in _NAMES.items() if r.text(key, default="remat") == "device"]
        return f"{SAVE}{','.join(kept)}" if kept else "full", ",".join(away) or "none"
    if policy in _REMAT:
        return _REMAT[policy], ",".join(away) or "none"
    if not policy.startswith(("save_dot", "save_qkv", "save_out")):
        raise r.wrong("remat_policy", policy, f"read; those that are: {', '.join(_REMAT)}, save_... as selective")
    r.note(f"remat_policy {policy} keeps less than the planner's nearest, selective")
    return "selective", ",".join(away) or "none"


def _architecture(r: Reader) -> tuple[Any, str]:
    name = r.text("model_name")
    if r.number("global_parameter_scale", default=1.0) != 1.0:
        raise r.wrong(
            "global_parameter_scale", r.raw("global_parameter_scale"), "1; write the sizes themselves, or give --model"
        )
    named = name not in ("", "default")
    told: dict[str, Any] = {
        "layers": r.integer("base_num_decoder_layers"), "d_model": r.integer("base_emb_dim"),
        "heads": r.integer("base_num_query_heads"), "kv_heads": r.integer("base_num_kv_heads"), "head_dim": r.integer("head_dim"),
        "d_ff": r.integer("base_mlp_dim"), "vocab": r.integer("vocab_size"),
    }  # fmt: skip
    numbers: dict[str, Any] = {} if named else dict(_DEFAULTS)
    numbers |= {k: v for k, v in told.items() if v is not None}
    experts = r.integer("num_experts", default=1) or 1
    wide = r.integer("base_moe_mlp_dim", least=-1)
    active = r.integer("num_experts_per_tok", default=1)
    if experts > 1:
        numbers |= {"experts": experts, "active": active}
        if wide and wide > 0:
            numbers["d_ff"] = wide
    activations = r.raw("mlp_activations")
    if activations is not None or not named:
        numbers["gated"] = activations is None or len(activations) > 1
    for key, number in (("logits_via_embedding", "tied"), ("use_qk_norm", "qk_norm")):
        if r.flag(key):
            numbers[number] = True
    block = r.text("decoder_block", default="llama2")
    if block not in _BLOCKS:
        if not named and r.model is None:
            raise r.wrong("decoder_block", block, f"one of plain attention ({', '.join(_BLOCKS)}): give --model MODEL")
        return r.architecture(name, None, _slots(r))
    if not named:
        numbers |= _BLOCKS[block]
    return r.architecture(name if named else "", numbers, _slots(r))


def _slots(r: Reader) -> float:
    factor = r.number("capacity_factor", default=-1.0)
    return 1.0 if factor is None or factor <= 0 else factor


def _options(r: Reader) -> dict[str, Any]:
    short = {long: name for name, long in DTYPES.items()}
    compute = r.among("dtype", r.text("dtype", default="bfloat16"), short)
    stored = r.among("weight_dtype", r.text("weight_dtype", default="float32"), short)
    moments = r.among("mu_dtype", r.text("mu_dtype", default="") or r.text("weight_dtype", default="float32"), short)
    gradients = r.text("grad_dtype")
    kind = r.text("quantization")
    matmul = r.among("quantization", kind, _QUANTIZATION) if kind else None
    optimizer = r.among("opt_type", r.text("opt_type", default="adamw"), {**_OPTIMIZERS, "adam_pax": "adamw"})
    return precision(
        compute, stored, moments=moments, gradients=r.among("grad_dtype", gradients, short) if gradients else None,
        matmul=matmul,
    ) | {"optimizer": optimizer}  # fmt: skip
