"""FLOPs and bytes of PyTorch's ops, from the shapes that the profiler recorded for what launched them."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from rooftop.profiles._categories import ATTENTION, CONVOLUTION, MATMUL
from rooftop.profiles._events import Op

ATEN_DTYPES = {
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
MOST_NAME = 500
_HELPER = re.compile(r"dot_do_o|convert_dq|preprocess|combine|PostGSU|splitK", re.IGNORECASE)
#: Beside the kernels of convolutions.
_LAYOUT = re.compile(
    r"im[23]d?2col|col2im|transpose|subtensorop|offsetskernel|nchwtonhwc|nhwctonchw|reduction::|reduce_", re.IGNORECASE
)
_WRAPPERS = {
    "aten::linear", "aten::matmul", "aten::einsum", "aten::convolution", "aten::_convolution", "aten::conv1d", "aten::conv2d",
    "aten::conv3d", "aten::conv_transpose2d", "aten::scaled_dot_product_attention", "aten::embedding_bag", "aten::to",
    "aten::layer_norm", "aten::batch_norm", "aten::softmax", "aten::log_softmax", "aten::dropout", "aten::cross_entropy_loss",
}  # fmt: skip
#: Where stride, padding and dilation stand among the operands of forward convolutions; backward needs none of them.
_CONVOLUTIONS = {
    "convolution": (3, 4, 5), "_convolution": (3, 4, 5), "conv1d": (3, 4, 5), "conv2d": (3, 4, 5), "conv3d": (3, 4, 5),
    "cudnn_convolution": (3, 2, 4), "miopen_convolution": (4, 3, 5), "mkldnn_convolution": (4, 3, 5),
    "cudnn_convolution_relu": (3, 4, 5), "miopen_convolution_relu": (3, 4, 5), "cudnn_convolution_add_relu": (5, 6, 7),
    "_conv_depthwise2d": (4, 5, 6), "conv_depthwise3d": (4, 5, 6),
}  # fmt: skip
_TRANSPOSED = {"convolution": 6, "_convolution": 6, "convolution_backward": 7}


def is_helper(name: str, convolution: bool = False) -> bool:
    """Whether a kernel is beside the one that does the FLOPs of its op: layouts, sums of parts."""
    name = name[:MOST_NAME]
    return _HELPER.search(name) is not None or (convolution and _LAYOUT.search(name) is not None)


def is_wrapper(caller: str) -> bool:
    """Whether an op only calls others, which have its FLOPs; they are recorded, too."""
    return caller in _WRAPPERS


_UNARY = {
    "silu", "gelu", "relu", "neg", "rsqrt", "pow", "tanh", "sigmoid", "exp", "cos", "sin", "clamp", "clamp_min", "clone",
    "contiguous", "to", "_to_copy", "softmax", "_softmax", "native_layer_norm", "native_dropout", "sqrt", "abs", "log", "bitwise_not",
}  # fmt: skip
_BINARY = {"add", "sub", "mul", "div", "where", "maximum", "minimum", "eq", "ne", "lt", "gt", "threshold_backward", "silu_backward",
           "gelu_backward", "bitwise_and", "bitwise_or", "masked_fill"}  # fmt: skip
_READ_ONLY = {"mean", "sum", "max", "min", "argmax", "any", "all", "var", "copy_", "fill_", "zero_"}


def work(op: Op, category: str) -> tuple[float | None, float | None, str, str]:
    """FLOPs, bytes, shape and dtype of an op of PyTorch from the shapes that it recorded; each operand moves once."""
    if op.caller.startswith("triton_") and op.inputs:  # the operands are all buffers that the kernel reads or writes
        buffers = [(s, ATEN_DTYPES.get(d, "")) for s, d in op.inputs if s]
        moved = float(sum(math.prod(s) * WIDTHS.get(d, 0) for s, d in buffers))
        shape = "x".join(map(str, max((s for s, _ in buffers), key=math.prod, default=())))
        return None, moved or None, shape, ""
    if not op.caller.startswith("aten::") or not op.inputs:
        return None, None, "", ""
    name = op.caller[6:]
    arrays = [(s, ATEN_DTYPES.get(d, "")) for s, d in op.inputs]
    tensors = [(s, d) for s, d in arrays if s and d]
    if not tensors:
        return None, None, "", ""
    dtype = tensors[0][1]
    width = WIDTHS.get(dtype, 0)
    if is_helper(op.name):
        return None, None, "", ""
    if category == CONVOLUTION:
        return _convolution(op, name, [s for s, _ in arrays], dtype)
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


def _convolution(
    op: Op, name: str, shapes: list[tuple[int, ...]], dtype: str
) -> tuple[float | None, float | None, str, str]:
    """A convolution: each element of its output is a product over a window of its input.

    The backward pass launches two kernels, for the gradients of the input and of the weights, of as many FLOPs each; on a CPU
    one op does both.
    """
    nothing = None, None, "", ""
    backward = name == "convolution_backward"
    if len(shapes) < 3 if backward else len(shapes) < 2:
        return nothing
    source, weight = (shapes[1], shapes[2]) if backward else (shapes[0], shapes[1])
    if len(source) < 3 or len(weight) != len(source):
        return nothing
    values = _recorded(op.values)
    transposed = "transpose" in name or _at(values, _TRANSPOSED.get(name, -1)) == "True"
    if backward:
        target: tuple[int, ...] | None = shapes[0]
    elif transposed:
        target = None
    else:
        target = _output(name, source, weight, values)
    if transposed:  # each element of the input goes to a window of the output
        pairs = math.prod(source) * math.prod(weight[1:])
    elif target is None:
        return nothing
    else:
        pairs = math.prod(target) * math.prod(weight[1:])
    both = 2.0 if backward and op.category == "cpu_op" else 1.0
    moved = math.prod(source) + math.prod(weight) + (math.prod(target) if target else 0)
    label = f"{'x'.join(map(str, source))} * {'x'.join(map(str, weight))}"
    return both * 2.0 * pairs, both * moved * WIDTHS.get(dtype, 0) if target else None, label, dtype


def _output(name: str, source: tuple[int, ...], weight: tuple[int, ...], values: list[Any]) -> tuple[int, ...] | None:
    """Batch, channels and sides of the result; None where stride, padding or dilation were not recorded."""
    if name not in _CONVOLUTIONS:
        return None
    spatial = len(source) - 2
    numbers = []
    for place in _CONVOLUTIONS[name]:
        try:
            found = json.loads(_at(values, place))
        except (ValueError, RecursionError):
            return None
        row = [found] * spatial if isinstance(found, int) else found
        if not isinstance(row, list) or len(row) not in (1, spatial) or not all(isinstance(n, int) for n in row):
            return None
        numbers.append(row * (spatial // len(row)))
    stride, padding, dilation = numbers
    sides = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1 if s > 0 else 0
        for n, k, s, p, d in zip(source[2:], weight[2:], stride, padding, dilation, strict=True)
    ]
    return (source[0], weight[0], *sides) if all(n > 0 for n in sides) else None


def _recorded(values: str) -> list[Any]:
    try:
        found = json.loads(values or "[]")
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _at(values: list[Any], place: int) -> str:
    found = values[place] if 0 <= place < len(values) else ""
    return found if isinstance(found, str) else ""
