"""Precision of a served model: dtypes of its weights by part, of matmuls' activations, and of the cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rooftop.arrays import Array, Program
from rooftop.errors import InputError
from rooftop.transformer import Architecture
from rooftop.units import dtype, dtype_bytes

WEIGHTS = ("bf16", "fp16", "fp8", "int8", "int4", "fp4", "mxfp4", "nvfp4", "fp32")
CACHES = ("bf16", "fp16", "fp8", "int8", "int4", "fp4", "nvfp4", "fp32")
#: Chips multiply formats with block scales at the rate of their values.
_MULTIPLIED = {"mxfp4": "fp4", "nvfp4": "fp4", "int4": "int4"}


@dataclass(frozen=True, slots=True)
class Precision:
    """weights: dtype of all weights, "" as the checkpoint has them (bf16 if it is not quantised). activations: dtype in
    which matmuls with weights take them; a matmul runs at the rate of the wider of both. kv: dtype of caches. Attention
    runs on bf16, activations stay bf16 between kernels and on the network.
    """

    weights: str = ""
    activations: str = "bf16"
    kv: str = "bf16"


def precision(weights: str | None, activations: str | None, kv: str | None) -> Precision:
    """Canonical names. Raises InputError for a dtype that a weight, activation or cache cannot have."""
    chosen = (
        "" if weights in (None, "checkpoint") else dtype(str(weights)),
        dtype(activations or "bf16"),
        dtype(kv or "bf16"),
    )
    for name, value, allowed in (
        ("weights", chosen[0] or "bf16", WEIGHTS),
        ("activations", chosen[1], WEIGHTS),
        ("kv", chosen[2], CACHES),
    ):
        if value not in allowed:
            raise InputError(f"{name} cannot be {value}; use one of {', '.join(allowed)}", field=name)
    return Precision(*chosen)


def stored(model: Architecture, spec: Precision, part: str) -> str:
    """The dtype in which the weights of a part are stored: the user's, the checkpoint's, or bf16."""
    if spec.weights:
        return spec.weights
    bits = dict(model.formats).get(part, 16.0)
    return min(("nvfp4", "mxfp4", "int4", "fp8", "bf16"), key=lambda name: abs(8 * dtype_bytes(name) - bits))


def multiplied(weights: str, activations: str) -> str:
    """The dtype at whose rate weights and activations are multiplied: the wider of both."""
    wider = max((weights, activations), key=dtype_bytes)
    return _MULTIPLIED.get(wider, wider)


def typed(program: Program, model: Architecture, spec: Precision) -> Program:
    """The program with the dtypes of its weights and caches. Vectors (norms, biases) and states keep theirs."""
    part_of = {name: op.part for op in program.ops for name in op.inputs}

    def of(array: Array) -> Array:
        if array.role == "weight" and len(array.axes) > 1:
            return replace(array, dtype=stored(model, spec, part_of.get(array.name, "")))
        if array.role == "cache" and array.dtype == "bf16":
            return replace(array, dtype=spec.kv)
        return array

    return Program(program.name, program.axes, tuple(of(a) for a in program.arrays), program.ops)
