"""What an op is, from its category, its kernel's name and what launched it. What nothing matches stays unknown."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

from rooftop.profiles._aten import ATEN_DTYPES, MOST_NAME, WIDTHS, is_helper, is_wrapper, work
from rooftop.profiles._categories import ATTENTION, COLLECTIVE, CONVOLUTION, MATMUL, MATRIX, TRANSFER, UNKNOWN, WAIT
from rooftop.profiles._events import Op
from rooftop.profiles._hlo import HloLine, read_hlo_line

#: Kernel names, first match wins: (category, pattern).
_KERNELS = tuple(
    (category, re.compile(pattern, re.IGNORECASE))
    for category, pattern in (
        (COLLECTIVE, r"nccl|rccl|msccl|oneccl|all_?reduce_(one|two)_shot|cross_device_reduce"),
        (TRANSFER, r"memcpy.?(htod|dtoh|h2d|d2h)|copy_(host_to|device_to)"),
        ("collective", r"memcpy.?(ptop|p2p)"),
        ("copy and layout", r"memcpy|copybuffer|^memset|fillbuffer"),
        (ATTENTION, r"flash|fmha|attn_(fwd|bwd)|attention|\bmha_|sdpa|mla_decode"),
        ("copy and layout", r"im[23]d?2col|col2im"),
        (CONVOLUTION, r"conv(?!er)|scudnn|igemm_|winograd|implicit_gemm|wgrad|dgrad|fprop"),
        ("normalisation", r"rowwisemoments|gammabeta|(layer|batch|group|rms|instance)_?norm|bn_(fw|bw)"),
        ("reduction", r"splitk.?reduce|reduce_?kernel|devicereduce|segmentedreduce|triton_(red|per)_|argmax|input_reduce"),
        (MATMUL, r"(?<!fb)gemm|^aten::(mm|addmm|bmm|baddbmm)$|cijk_|nvjet|matmul|gemv|wgmma|cublas|triton_tem|triton_mm|\bdot\b"),
        ("softmax and loss", r"softmax|cross_?entropy|nll_loss|mse_"),
        ("embedding and gather", r"embedding|gather|scatter|index_?select|index_(put|elementwise)|permute_|pooled_embs|lengths|bounds_check"),
        ("optimizer", r"multi_tensor_apply|adam(?!et)|adagrad|\bsgd\b|lamb(?!da)|optimizer"),
        ("sort and scan", r"radix|sort|scan_|devicescan|topk|cumsum|histogram|unique"),
        ("pooling", r"(max|avg|adaptive)_?pool|pooling"),
        ("copy and layout", r"transpose|catarray|copy_kernel|direct_copy|nchwtonhwc|nhwctonchw|kv_?cache|pad_kernel|concat"),
        ("random", r"philox|dropout|random|bernoulli"),
        ("quantisation", r"quantize|fp8rowwise|dequant"),
        ("elementwise", r"elementwise|triton_poi_|activation|silu|gelu|act_and_mul|rotary|rope|eigenmetakernel|cwise|functor"
                        r"|loop_.*fusion|fusion|broadcast|clamp_|where|compare|arange|fillfunctor|tanh|subtensoropwith"),
        ("elementwise", r"triton_"),
    )
)  # fmt: skip

#: What launches convolutions, whose kernels are often called matmuls.
_CONVOLVES = re.compile(r"convolution|conv_depthwise|\$conv")

_LIBRARIES = tuple(
    (library, re.compile(pattern))
    for library, pattern in (
        ("NCCL", r"nccl|rccl"),
        ("FlashAttention", r"flash|Flash"),
        ("Triton", r"^triton_|^_?attn_fwd|^_attn_bwd|^gemm_fusion"),
        ("cuDNN", r"cudnn"),
        ("hipBLASLt", r"^Cijk_"),
        ("cuBLAS", r"cublas|nvjet|^(ampere|volta|turing|maxwell|hopper)_\w*gemm|^sm\d+_xmma_gemm|splitKreduce"),
        ("CUTLASS", r"cutlass"),
        ("Composable Kernel", r"^_ZN2ck|\bck::|ck_tile"),
        ("MIOpen", r"^igemm_|^batched_transpose_|MIOpen|^SubTensorOp|Im[23]d2Col"),
        ("AITER", r"aiter"),
        ("FBGEMM", r"fbgemm|split_embedding|permute_pooled"),
        ("PyTorch", r"at::native|at_cuda|at::cuda"),
        ("CUB", r"\bcub::|rocprim"),
        ("TensorFlow", r"tensorflow::|Eigen::"),
        ("XLA", r"fusion|^input_|^loop_|^wrapped_"),
    )
)

#: hlo_category of XLA's profiler -> our category; matmuls of TPUs are convolutions to XLA.
_HLO = {
    "convolution fusion": MATMUL, "convolution": MATMUL, "dot": MATMUL, "output fusion": MATMUL,
    "loop fusion": "elementwise", "broadcast": "elementwise", "non-fusion elementwise": "elementwise", "iota": "elementwise",
    "input fusion": "reduction", "reduce": "reduction", "reduce-window": "reduction", "custom fusion": UNKNOWN,
    "data formatting": "copy and layout", "copy": "copy and layout", "transpose": "copy and layout",
    "copy-start": "copy and layout", "dynamic-slice": "copy and layout", "dynamic-update-slice": "copy and layout",
    "reshape": "copy and layout", "slice": "copy and layout", "concatenate": "copy and layout", "pad": "copy and layout",
    "copy-done": WAIT, "send-done": WAIT, "recv-done": WAIT, "async-done": WAIT, "infeed": TRANSFER, "outfeed": TRANSFER,
    "gather": "embedding and gather", "scatter": "embedding and gather", "sort": "sort and scan", "rng": "random",
    "rng-bit-generator": "random", "while": "control flow", "conditional": "control flow", "call": "control flow",
    "parameter": "control flow", "tuple": "control flow",
}  # fmt: skip

_COLLECTIVES = (
    ("all_reduce", r"all.?reduce(?!.?scatter)"),
    ("reduce_scatter", r"reduce.?scatter"),
    ("all_gather", r"all.?gather"),
    ("all_to_all", r"all.?to.?all"),
    ("permute", r"send.?recv|permute|memcpy.?(ptop|p2p)"),
    ("broadcast", r"broadcast"),
)
_DTYPES = (
    ("fp8", r"e4m3|e5m2|fp8|f8f8|_F8"),
    ("bf16", r"bf16|bfloat16|_BBS|IDF16b"),
    ("tf32", r"tf32|s1688|tensorop_s168"),
    ("fp16", r"half|f16|h884|h1688|_HHS|s16816|s884"),
    ("int8", r"int8|i8816|_I8"),
    ("fp64", r"dgemm|double"),
    ("fp32", r"sgemm|_SB_|_S_B_|float|f32"),
)
_HLO_DTYPES = {
    "bf16": "bf16", "f16": "fp16", "f32": "fp32", "f64": "fp64", "s8": "int8", "u8": "int8", "s32": "int32",
    "f8e4m3fn": "fp8", "f8e5m2": "fp8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Known:
    """What an op is. flops, bytes: of one run on one device, None where nothing tells; note: where they come from.

    dtype: of its arithmetic. collective: kind, for collectives. shape: of a matmul "M x K x N", or of the result.
    """

    category: str
    library: str = ""
    dtype: str = ""
    collective: str = ""
    flops: float | None = None
    bytes: float | None = None
    shape: str = ""
    note: str = ""


@functools.cache
def recognise(op: Op) -> Known:
    """What an op is, and its work."""
    if (
        op.text.startswith("%")
        or op.category in _HLO
        or op.category.startswith(("all-", "reduce-scatter", "collective-"))
    ):
        return _hlo(op)
    return _kernel(op)


def _first(table: tuple[tuple[str, str], ...], text: str) -> str:
    return next((name for name, pattern in table if re.search(pattern, text, re.IGNORECASE)), "")


def _hlo(op: Op) -> Known:
    line = _line(op.text)
    kind = line.kind if line is not None else op.category
    base = kind.removesuffix("-start").removesuffix("-done")
    collective = (
        _first(_COLLECTIVES, base) if base.startswith(("all-", "reduce-scatter", "collective-", "ragged-all")) else ""
    )
    arrays = (line.outputs + line.inputs) if line is not None else ()
    dtype = next((_HLO_DTYPES[a.dtype] for a in arrays if a.dtype in _HLO_DTYPES), "")
    shape = (
        ""
        if line is None or not line.outputs
        else f"{line.outputs[0].dtype}[{','.join(map(str, line.outputs[0].shape))}]"
    )
    if collective:
        inputs = sum(a.bytes for a in line.inputs) if line is not None else 0.0
        outputs = sum(a.bytes for a in line.outputs) if line is not None else 0.0
        moved = outputs if collective == "all_gather" else inputs
        if kind.endswith("-start") and line is not None:
            moved = max((a.bytes for a in line.outputs), default=0.0)
        if kind.endswith("-done"):
            return Known(WAIT, "XLA", dtype, collective, shape=shape)
        return Known(COLLECTIVE, "XLA", dtype, collective, op.flops, moved or None, shape, "HLO")
    category = _HLO.get(op.category, UNKNOWN)
    if category == "control flow" or op.category.endswith(("-start", "-done")):
        host = any(a.memory == "host" for a in arrays)
        if op.category == "copy-done":
            return Known(WAIT, "XLA", dtype, shape=shape, note="host memory" if host else "")
        return Known(
            "control flow" if category == "control flow" else TRANSFER if host else "copy and layout",
            "XLA",
            dtype,
            shape=shape,
        )
    if category == UNKNOWN and op.flops and "fusion" in op.category:
        category = MATMUL if op.flops > 8 * (op.bytes or 0) else "elementwise"
    return Known(category, "XLA", dtype, "", op.flops, op.bytes, shape, "profiler")


@functools.cache
def _line(text: str) -> HloLine | None:
    from rooftop.errors import InputError

    try:
        return read_hlo_line(text) if text else None
    except InputError:
        return None


def _kernel(op: Op) -> Known:
    name = op.name[:MOST_NAME]
    category = next((c for c, pattern in _KERNELS if pattern.search(name)), UNKNOWN)
    convolves = any(_CONVOLVES.search(text) for text in (op.caller, op.category))
    helper = is_helper(name, convolves)
    if convolves and category in (MATMUL, CONVOLUTION, UNKNOWN):
        category = "copy and layout" if helper else CONVOLUTION
    library = next((x for x, pattern in _LIBRARIES if pattern.search(name)), "")
    dtype = _first(_DTYPES, name)
    if category == COLLECTIVE:
        return _collective(op, library)
    if op.category == "cpu_op" and (category == UNKNOWN or is_wrapper(op.caller)):  # others do its work
        return Known("framework")
    if op.caller and not op.caller.startswith(("aten::", "autograd::")) and op.flops and not helper:
        # an instruction of XLA
        dtype = next((_HLO_DTYPES[d] for _, d in op.inputs if d in _HLO_DTYPES), dtype)
        return Known(MATMUL if category in ("elementwise", UNKNOWN) else category, library or "XLA", dtype, "",
                     op.flops, op.bytes, _shapes(op), "HLO")  # fmt: skip
    if category in (TRANSFER, "copy and layout") and op.bytes and not helper:
        return Known(category, library, dtype, "", 0.0, op.bytes, note="profiler")
    flops, moved, shape, own = work(op, category)
    if own and category in (*MATRIX, "elementwise", "copy and layout"):
        dtype = _arithmetic(own, dtype)
    if flops is None and moved is None and op.bytes and library != "MIOpen" and not helper:
        flops, moved = op.flops, op.bytes
    return Known(category, library, dtype, "", flops, moved, shape, "input shapes" if shape else "")


def _arithmetic(recorded: str, from_name: str) -> str:
    """float operands may be multiplied as tf32; only the kernel's name knows."""
    return "tf32" if recorded == "fp32" and from_name == "tf32" else recorded


def _shapes(op: Op) -> str:
    return " * ".join(f"{d}[{','.join(map(str, s))}]" for s, d in op.inputs[:2])


def _collective(op: Op, library: str) -> Known:
    """A kernel of NCCL: kind and size from what recorded it."""
    told, _, rest = op.text.partition(":")
    kind = _first(_COLLECTIVES, told) or _first(_COLLECTIVES, op.caller) or _first(_COLLECTIVES, op.name)
    dtype, _, counts = rest.partition(":")
    dtype = ATEN_DTYPES.get(dtype, {"BFloat16": "bf16", "Float": "fp32", "Half": "fp16", "Byte": "int8"}.get(dtype, ""))
    elements = [float(n) for n in counts.split(":") if n.isdigit()]
    moved = max(elements) * WIDTHS.get(dtype, 0) if elements and dtype else 0.0
    if not moved and op.inputs and op.inputs[0][0]:
        dtype = ATEN_DTYPES.get(op.inputs[0][1], "")
        moved = math.prod(op.inputs[0][0]) * WIDTHS.get(dtype, 0)
        if kind == "all_gather" and op.group:
            moved *= op.group
    return Known(COLLECTIVE, library, dtype, kind, None, moved or None, note="recorded" if moved else "")


_INNER = re.compile(r"\w+Functor\w*|\w+_kernel_(?:cuda|impl)\w*|\w+Ops\b|\w+_functor\w*")
_GENERIC = {
    "elementwise_kernel", "vectorized_elementwise_kernel", "unrolled_elementwise_kernel", "reduce_kernel", "multi_tensor_apply_kernel",
    "elementwise_kernel_manual_unroll", "Kernel", "Kernel2", "EigenMetaKernel", "index_elementwise_kernel", "kernel",
}  # fmt: skip


def short_name(name: str) -> str:
    """A kernel's name without return type, namespaces and template arguments, but with what generic kernels carry out.

    >>> short_name("void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<at::native::MulFunctor<float>>>(int)")
    'elementwise_kernel<MulFunctor>'
    """
    bare = name[:4000].removeprefix("void ").replace("(anonymous namespace)::", "")
    head = re.split(r"[<(]", bare, maxsplit=1)[0].rpartition("::")[2]
    if head in _GENERIC:
        rest = bare[bare.find(head) + len(head) :]
        inner = [m for m in _INNER.findall(rest) if not m.startswith(("gpu_kernel_impl", "func_wrapper"))]
        if inner:
            return f"{head}<{inner[-1] if head == 'reduce_kernel' else inner[0]}>"
        arguments = re.match(r"<([\w:]+)", rest)
        return f"{head}<{arguments[1].rpartition('::')[2]}>" if arguments else head
    return head or bare
