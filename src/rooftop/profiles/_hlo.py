"""HLO as profiles have it: lines of text on TPUs, whole programs in the metadata plane."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from rooftop.errors import InputError
from rooftop.profiles._proto import broken, message

#: Bytes of an element by HLO's name.
WIDTHS = {
    "pred": 1.0, "s2": 0.25, "s4": 0.5, "s8": 1.0, "s16": 2.0, "s32": 4.0, "s64": 8.0, "u2": 0.25, "u4": 0.5, "u8": 1.0,
    "u16": 2.0, "u32": 4.0, "u64": 8.0, "f16": 2.0, "bf16": 2.0, "f32": 4.0, "f64": 8.0, "c64": 8.0, "c128": 16.0,
    "f8e5m2": 1.0, "f8e4m3": 1.0, "f8e4m3fn": 1.0, "f8e4m3b11fnuz": 1.0, "f8e5m2fnuz": 1.0, "f8e4m3fnuz": 1.0,
    "f8e3m4": 1.0, "f8e8m0fnu": 1.0, "f4e2m1fn": 0.5, "token": 0.0, "opaque": 0.0,
}  # fmt: skip
#: PrimitiveType of xla_data.proto.
_TYPES = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16", 11: "f32",
    12: "f64", 15: "c64", 16: "bf16", 18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "s4", 22: "u4",
}  # fmt: skip
#: Memory spaces of TPUs in layouts, S(n).
_SPACES = {"": "HBM", "0": "HBM", "1": "VMEM", "5": "host"}
_ARRAY = re.compile(r"\b([a-z]+[0-9a-z]*)\[([\d,]{0,200})\](?:\{([^}]{0,200})\})?")
_LINE = re.compile(r"%?([\w.\-]+) = (.*?)(?:^|[\s)}\]])([a-z][a-z\-]*)\((.*)", re.DOTALL)
_LAYOUT = re.compile(r"^([\d,]*)(?::(.*))?$")
_COLLECTIVES = (
    "all-reduce-scatter", "reduce-scatter", "all-gather", "all-reduce", "all-to-all", "collective-permute",
    "ragged-all-to-all", "collective-broadcast",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HloArray:
    """An array of an HLO line. layout: axes from the fastest; tile, packing: of a TPU; memory: HBM, VMEM, SMEM or host."""

    dtype: str
    shape: tuple[int, ...]
    layout: tuple[int, ...]
    tile: tuple[int, ...]
    packing: tuple[int, ...]
    memory: str

    @property
    def bytes(self) -> float:
        """Bytes without padding."""
        return math.prod(self.shape) * WIDTHS.get(self.dtype, 0.0)


@dataclass(frozen=True, slots=True)
class HloLine:
    """One instruction. kind: the collective that it is or calls, or else the opcode."""

    name: str
    opcode: str
    kind: str
    outputs: tuple[HloArray, ...]
    inputs: tuple[HloArray, ...]
    group: int | None


def read_hlo_line(text: str) -> HloLine:
    """Read a line of HLO as profilers show it (book, section 9). Raises InputError for what is none.

    >>> line = read_hlo_line("%f.1 = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} fusion(f32[8]{0} %p), kind=kCustom, calls=%all-reduce-scatter.1")
    >>> line.kind, line.outputs[0].memory, line.outputs[0].tile, line.outputs[0].bytes
    ('reduce-scatter', 'VMEM', (8, 128), 2048.0)
    """
    match = _LINE.match(text.strip()[:20000])
    if match is None:
        raise InputError(f"{text[:60]!r} is not a line of HLO; write %name = type[shape] opcode(operands)", field="hlo")
    name, outputs, opcode, rest = match.groups()
    operands = rest.split("), ", 1)[0]
    return HloLine(name, opcode, _kind(opcode, name, rest), _arrays(outputs), _arrays(operands), replica_group(rest))


def _kind(opcode: str, name: str, rest: str) -> str:
    """XLA fuses collectives: what a fusion calls tells."""
    called = re.search(r"calls=%?([\w.\-]+)", rest)
    for text in (opcode, called[1] if called else ""):
        for kind in _COLLECTIVES:
            if text.startswith(kind):
                return "reduce-scatter" if kind == "all-reduce-scatter" else kind
    return opcode


def _arrays(text: str) -> tuple[HloArray, ...]:
    found = []
    for dtype, shape, layout in _ARRAY.findall(text):
        if dtype not in WIDTHS:
            continue
        order, _, rest = layout.partition(":")
        tile = re.search(r"T\(([\d,]+)\)(?:\(([\d,]+)\))?", rest)
        space = re.search(r"S\((\d+)\)", rest)
        found.append(HloArray(
            dtype, _numbers(shape), _numbers(order), _numbers(tile[1]) if tile else (),
            _numbers(tile[2]) if tile and tile[2] else (), _SPACES.get(space[1] if space else "", f"S({space[1] if space else ''})"),
        ))  # fmt: skip
    return tuple(found)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n.isdigit())


def replica_group(text: str) -> int | None:
    """Members of a group of a collective: 2 for replica_groups=[4,2]<=[8] and for {{0,1},{2,3}}."""
    tiled = re.search(r"replica_groups=\[(\d{1,9}),(\d{1,9})\]", text)
    if tiled:
        return int(tiled[2])
    listed = re.search(r"replica_groups=\{\{([\d,]{1,4000})\}", text)
    return len(_numbers(listed[1])) if listed else None


def replica_members(text: str) -> tuple[int, ...]:
    """The first group of a collective: (0, 16, 32) for replica_groups={{0,16,32},...}."""
    listed = re.search(r"replica_groups=\{\{([\d,]{1,4000})\}", text)
    return _numbers(listed[1]) if listed else ()


def global_shape(local: tuple[int, ...], sharding: tuple[int, ...]) -> tuple[int, ...]:
    """The whole array behind a local view: each side times the chips that it is split over (book, section 9)."""
    if len(local) != len(sharding):
        raise InputError(
            f"{len(sharding)} factors for an array of {len(local)} axes; give one for each", field="sharding"
        )
    return tuple(n * ways for n, ways in zip(local, sharding, strict=True))


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of a program that came with the profile, with the work of all that it calls."""

    opcode: str
    flops: float | None
    bytes: float | None
    scope: str
    source: str
    inputs: tuple[tuple[tuple[int, ...], str], ...]


def instructions(data: bytes) -> dict[tuple[str, str], Instruction]:
    """Instructions of a serialised HloProto by (module, name); {} for bytes that are none.

    FLOPs of dots and convolutions are counted, 2 for each product; elementwise work is not, which is small beside them.
    Bytes are those of operands and results.
    """
    if len(data) > 1 << 28:
        return {}
    proto = message("HloProto")()
    try:
        proto.ParseFromString(data)
    except broken():
        return {}
    module = proto.hlo_module
    computations = {c.id: c for c in module.computations}
    work: dict[int, float] = {}
    found = {}
    for computation in module.computations:
        shapes = {i.id: i.shape for i in computation.instructions}
        for i in computation.instructions:
            operands = [shapes[o] for o in i.operands if o in shapes]
            flops = _flops(i, operands)
            for called in i.called:
                flops += _called(called, computations, work, 0)
            moved = sum(map(_bytes, operands)) + _bytes(i.shape)
            found[module.name, i.name] = Instruction(
                i.custom_call_target if i.opcode == "custom-call" else i.opcode,
                flops or (None if i.opcode == "custom-call" else 0.0), moved, i.metadata.op_name,
                f"{i.metadata.source_file}:{i.metadata.source_line}" if i.metadata.source_file else "",
                tuple((tuple(s.dimensions), _TYPES.get(s.element_type, "")) for s in operands),
            )  # fmt: skip
    return found


def _called(number: int, computations: dict[int, Any], work: dict[int, float], depth: int) -> float:
    if number in work or number not in computations or depth > 50:
        return work.get(number, 0.0)
    work[number] = 0.0
    computation = computations[number]
    shapes = {i.id: i.shape for i in computation.instructions}
    total = 0.0
    for i in computation.instructions:
        total += _flops(i, [shapes[o] for o in i.operands if o in shapes])
        total += sum(_called(c, computations, work, depth + 1) for c in i.called)
    work[number] = total
    return total


def _flops(i: Any, operands: list[Any]) -> float:
    if i.opcode == "dot" and operands:
        contracted = math.prod(operands[0].dimensions[d] for d in i.dot.lhs if 0 <= d < len(operands[0].dimensions))
        return float(2 * math.prod(i.shape.dimensions) * contracted)
    if len(operands) > 1:
        result = i.shape.tuple_shapes[0] if i.shape.tuple_shapes else i.shape
        if i.opcode == "convolution" or i.custom_call_target.startswith("__cudnn$convForward"):
            return _convolution(i, result, operands[1])
        if i.custom_call_target.startswith(
            "__cudnn$convBackwardInput"
        ):  # of the gradient of the output with the kernel
            return _convolution(i, operands[0], operands[1])
        if i.custom_call_target.startswith("__cudnn$convBackwardFilter"):
            return _convolution(i, operands[1], result)
    return 0.0


def _convolution(i: Any, output: Any, kernel: Any) -> float:
    """Each element of the output is a product over the kernel's window and input channels, whichever of the three is sought."""
    channel = i.convolution.kernel_input
    inner = kernel.dimensions[channel] if 0 <= channel < len(kernel.dimensions) else 1
    return float(2 * math.prod(output.dimensions) * inner * math.prod(max(1, d.size) for d in i.window.dimensions))


def _bytes(shape: Any) -> float:
    if shape.tuple_shapes:
        return float(sum(map(_bytes, shape.tuple_shapes)))
    return float(math.prod(shape.dimensions) * WIDTHS.get(_TYPES.get(shape.element_type, ""), 0.0))
