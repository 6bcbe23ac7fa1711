"""What an op is, from its category, its kernel's name and what launched it. What nothing matches stays unknown."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

from rooftop.profiles._events import Op
from rooftop.profiles._hlo import HloLine, read_hlo_line

MATMUL, ATTENTION, CONVOLUTION = "matmul", "attention", "convolution"
COLLECTIVE, TRANSFER, WAIT, UNKNOWN = "collective", "host transfer", "transfer wait", "unknown"

#: Kernel names, first match wins: (category, pattern).
_KERNELS = tuple(
    (category, re.compile(pattern, re.IGNORECASE))
    for category, pattern in (
        (COLLECTIVE, r"nccl|rccl|msccl|oneccl|all_?reduce_(one|two)_shot|cross_device_reduce"),
        (TRANSFER, r"memcpy.?(htod|dtoh|h2d|d2h)|copy_(host_to|device_to)"),
        ("collective", r"memcpy.?(ptop|p2p)"),
        ("copy and layout", r"memcpy|copybuffer|^memset|fillbuffer"),
        (ATTENTION, r"flash|fmha|attn_(fwd|bwd)|attention|\bmha_|sdpa|mla_decode"),
        (CONVOLUTION, r"conv(?!er)|scudnn|igemm_|winograd|implicit_gemm|wgrad|dgrad|fprop|im[23]d?2?col"),
        ("normalisation", r"rowwisemoments|gammabeta|(layer|batch|group|rms|instance)_?norm|bn_(fw|bw)|subtensoropwith"),
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
                        r"|loop_.*fusion|fusion|broadcast|clamp_|where|compare|arange|fillfunctor|tanh"),
        ("elementwise", r"triton_"),
    )
)  # fmt: skip

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
_ATEN_DTYPES = {
    "c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32", "double": "fp64", "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e4m3fnuz": "fp8", "c10::Float8_e5m2": "fp8", "signed char": "int8", "unsigned char": "int8", "bool": "bool",
    "int": "int32", "long int": "int64", "long": "int64", "short": "int16",
}  # fmt: skip
WIDTHS = {
    "bf16": 2,
    "fp16": 2,
    "fp32": 4,
    "tf32": 4,
    "fp64": 8,
    "fp8": 1,
    "int8": 1,
    "bool": 1,
    "int32": 4,
    "int64": 8,
    "int16": 2,
}
#: Names of templates run to thousands of characters; what they are stands at the front.
_MOST_NAME = 500
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
    name = op.name[:_MOST_NAME]
    category = next((c for c, pattern in _KERNELS if pattern.search(name)), UNKNOWN)
    library = next((x for x, pattern in _LIBRARIES if pattern.search(name)), "")
    dtype = _first(_DTYPES, name)
    if category == COLLECTIVE:
        return _collective(op, library)
    if op.caller and not op.caller.startswith(("aten::", "autograd::")) and op.flops:  # an instruction of XLA
        dtype = next((_HLO_DTYPES[d] for _, d in op.inputs if d in _HLO_DTYPES), dtype)
        return Known(MATMUL if category in ("elementwise", UNKNOWN) else category, library or "XLA", dtype, "",
                     op.flops, op.bytes, _shapes(op), "HLO")  # fmt: skip
    if (
        op.category == "cpu_op" and category == UNKNOWN
    ):  # wrappers such as aten::linear, around the ops that do the work
        return Known("framework")
    if category in (TRANSFER, "copy and layout") and op.bytes:
        return Known(category, library, dtype, "", 0.0, op.bytes, note="profiler")
    flops, moved, shape, own = _aten(op, category)
    if own and category in (MATMUL, ATTENTION, "elementwise", "copy and layout"):
        dtype = _arithmetic(own, dtype)
    if flops is None and moved is None and op.bytes and library != "MIOpen" and category != CONVOLUTION:
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
    dtype = _ATEN_DTYPES.get(
        dtype, {"BFloat16": "bf16", "Float": "fp32", "Half": "fp16", "Byte": "int8"}.get(dtype, "")
    )
    elements = [float(n) for n in counts.split(":") if n.isdigit()]
    moved = max(elements) * WIDTHS.get(dtype, 0) if elements and dtype else 0.0
    if not moved and op.inputs and op.inputs[0][0]:
        dtype = _ATEN_DTYPES.get(op.inputs[0][1], "")
        moved = math.prod(op.inputs[0][0]) * WIDTHS.get(dtype, 0)
        if kind == "all_gather" and op.group:
            moved *= op.group
    return Known(COLLECTIVE, library, dtype, kind, None, moved or None, note="recorded" if moved else "")


_HELPER = re.compile(r"dot_do_o|convert_dq|preprocess|combine|PostGSU|splitK", re.IGNORECASE)
_UNARY = {
    "silu", "gelu", "relu", "neg", "rsqrt", "pow", "tanh", "sigmoid", "exp", "cos", "sin", "clamp", "clamp_min", "clone",
    "contiguous", "to", "_to_copy", "softmax", "_softmax", "native_layer_norm", "native_dropout", "sqrt", "abs", "log", "bitwise_not",
}  # fmt: skip
_BINARY = {"add", "sub", "mul", "div", "where", "maximum", "minimum", "eq", "ne", "lt", "gt", "threshold_backward", "silu_backward",
           "gelu_backward", "bitwise_and", "bitwise_or", "masked_fill"}  # fmt: skip
_READ_ONLY = {"mean", "sum", "max", "min", "argmax", "any", "all", "var", "copy_", "fill_", "zero_"}


def _aten(op: Op, category: str) -> tuple[float | None, float | None, str, str]:
    """FLOPs, bytes, shape and dtype of an op of PyTorch from the shapes that it recorded; each operand moves once."""
    if op.caller.startswith("triton_") and op.inputs:  # the operands are all buffers that the kernel reads or writes
        buffers = [(s, _ATEN_DTYPES.get(d, "")) for s, d in op.inputs if s]
        moved = float(sum(math.prod(s) * WIDTHS.get(d, 0) for s, d in buffers))
        shape = "x".join(map(str, max((s for s, _ in buffers), key=math.prod, default=())))
        return None, moved or None, shape, ""
    if not op.caller.startswith("aten::") or not op.inputs:
        return None, None, "", ""
    name = op.caller[6:]
    arrays = [(s, _ATEN_DTYPES.get(d, "")) for s, d in op.inputs]
    tensors = [(s, d) for s, d in arrays if s and d]
    if not tensors:
        return None, None, "", ""
    dtype = tensors[0][1]
    width = WIDTHS.get(dtype, 0)
    if _HELPER.search(op.name[:_MOST_NAME]):  # beside the kernel that does the op's FLOPs
        return None, None, "", ""
    if category == MATMUL:
        found = _matmul(name, [s for s, _ in arrays])
        if found is None:
            return None, None, "", ""
        batch, m, k, n = found
        flops = 2.0 * batch * m * k * n
        label = f"{m}x{k}x{n}" if batch == 1 else f"{batch}x{m}x{k}x{n}"
        return flops, float(batch * (m * k + k * n + m * n) * width), label, dtype
    if category == ATTENTION:
        shapes = [
            s for s, _ in (arrays[1:4] if "backward" in name else arrays[:3])
        ]  # backward takes the gradient first
        if len(shapes) < 3 or any(len(s) != 4 for s in shapes):
            return None, None, "", ""
        batch, heads, queries, width_head = shapes[0]
        if name.startswith(("_flash_attention", "_efficient_attention")):  # [batch, length, heads, width]
            heads, queries = queries, heads
            keys = shapes[1][1]
        else:
            keys = shapes[1][2]
        passes = 2.5 if "backward" in name else 1.0
        flops = passes * 4.0 * batch * heads * queries * keys * width_head
        moved = float((sum(math.prod(s) for s in shapes) + math.prod(shapes[0])) * width)
        return flops, moved, f"{batch}x{heads}x{queries}x{keys}x{width_head}", dtype
    base = name.rstrip("_") if name not in _READ_ONLY else name
    read = float(sum(math.prod(s) * WIDTHS.get(d, 0) for s, d in tensors))
    shape = "x".join(map(str, max((s for s, _ in tensors), key=math.prod)))
    largest = float(max(math.prod(s) * WIDTHS.get(d, 0) for s, d in tensors))
    if base in _UNARY or base in _BINARY:
        return None, read + largest, shape, dtype
    if name in _READ_ONLY:
        return None, read, shape, dtype
    return None, None, "", ""


def _matmul(name: str, shapes: list[tuple[int, ...]]) -> tuple[int, int, int, int] | None:
    """(batch, M, K, N) of the matmuls of PyTorch."""
    if name in ("addmm", "addmm_", "baddbmm", "baddbmm_", "_addmm_activation"):
        shapes = shapes[1:]
    if len(shapes) < 2:
        return None
    a, b = shapes[0], shapes[1]
    if (
        name in ("mm", "addmm", "addmm_", "_scaled_mm", "_addmm_activation", "_int_mm")
        and len(a) == len(b) == 2
        and a[1] == b[0]
    ):
        return 1, a[0], a[1], b[1]
    if name in ("bmm", "baddbmm", "baddbmm_") and len(a) == len(b) == 3 and a[0] == b[0] and a[2] == b[1]:
        return a[0], a[1], a[2], b[2]
    if name == "linear" and len(b) == 2 and a and a[-1] == b[1]:
        return 1, math.prod(a[:-1]), a[-1], b[0]
    if name == "matmul" and len(a) >= 2 and len(b) >= 2 and a[-1] == b[-2]:
        if len(b) == 2:
            return 1, math.prod(a[:-1]), a[-1], b[1]
        if len(a) == len(b):
            return math.prod(max(x, y) for x, y in zip(a[:-2], b[:-2], strict=True)), a[-2], a[-1], b[-1]
    return None


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
