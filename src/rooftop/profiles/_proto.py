"""The parts of XLA's protocol buffers that a profile needs, as a schema of field numbers; unknown fields are skipped.

XSpace is described in tsl/profiler/protobuf/xplane.proto, HloProto in xla/service/hlo.proto and xla/xla_data.proto. Parsing is
protobuf's own; no generated code is needed, and none of XLA.
"""

from __future__ import annotations

import functools
from typing import Any

from rooftop.errors import MissingExtra

#: Message -> fields: (name, number, type); a type is a scalar or another message, "*" before it makes it repeated.
_XSPACE = {
    "XSpace": (("planes", 1, "*XPlane"), ("hostnames", 4, "*string")),
    "XPlane": (
        ("id", 1, "int64"), ("name", 2, "string"), ("lines", 3, "*XLine"), ("event_metadata", 4, "*EventEntry"),
        ("stat_metadata", 5, "*StatEntry"), ("stats", 6, "*XStat"),
    ),
    "EventEntry": (("key", 1, "int64"), ("value", 2, "XEventMetadata")),
    "StatEntry": (("key", 1, "int64"), ("value", 2, "XStatMetadata")),
    "XLine": (
        ("id", 1, "int64"), ("name", 2, "string"), ("timestamp_ns", 3, "int64"), ("events", 4, "*XEvent"),
        ("display_name", 11, "string"),
    ),
    "XEvent": (("metadata_id", 1, "int64"), ("offset_ps", 2, "int64"), ("duration_ps", 3, "int64"), ("stats", 4, "*XStat")),
    "XStat": (
        ("metadata_id", 1, "int64"), ("double_value", 2, "double"), ("uint64_value", 3, "uint64"),
        ("int64_value", 4, "int64"), ("str_value", 5, "string"), ("bytes_value", 6, "bytes"), ("ref_value", 7, "uint64"),
    ),
    "XEventMetadata": (("id", 1, "int64"), ("name", 2, "string"), ("display_name", 4, "string"), ("stats", 5, "*XStat")),
    "XStatMetadata": (("id", 1, "int64"), ("name", 2, "string")),
    "HloProto": (("hlo_module", 1, "HloModule"),),
    "HloModule": (("name", 1, "string"), ("computations", 3, "*HloComputation"), ("id", 5, "int64")),
    "HloComputation": (("name", 1, "string"), ("instructions", 2, "*HloInstruction"), ("id", 5, "int64")),
    "HloInstruction": (
        ("name", 1, "string"), ("opcode", 2, "string"), ("shape", 3, "Shape"), ("metadata", 7, "OpMetadata"),
        ("window", 15, "Window"), ("convolution", 16, "ConvolutionDims"), ("feature_group_count", 50, "int64"),
        ("custom_call_target", 28, "string"), ("dot", 30, "DotDims"), ("id", 35, "int64"), ("operands", 36, "*int64"),
        ("called", 38, "*int64"),
    ),
    "Shape": (("element_type", 2, "int64"), ("dimensions", 3, "*int64"), ("tuple_shapes", 4, "*Shape")),
    "OpMetadata": (("op_type", 1, "string"), ("op_name", 2, "string"), ("source_file", 3, "string"), ("source_line", 4, "int64")),
    "DotDims": (("lhs", 1, "*int64"), ("rhs", 2, "*int64"), ("lhs_batch", 3, "*int64"), ("rhs_batch", 4, "*int64")),
    "Window": (("dimensions", 1, "*WindowDim"),),
    "WindowDim": (("size", 1, "int64"),),
    "ConvolutionDims": (("kernel_output", 4, "int64"), ("kernel_input", 3, "int64")),
}  # fmt: skip


@functools.cache
def message(name: str) -> Any:
    """The class of a message. Raises MissingExtra without protobuf."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise MissingExtra(
            "reading xplane.pb needs protobuf; install it with pip install 'rooftop[profiles]'", field="path"
        ) from None
    scalar = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="rooftop/xplane.proto", package="rooftop", syntax="proto3")
    for title, fields in _XSPACE.items():
        made = file.message_type.add(name=title)
        if title == "XStat":
            made.oneof_decl.add(name="value")
        for field, number, kind in fields:
            row = made.field.add(
                name=field,
                number=number,
                label=scalar.LABEL_REPEATED if kind.startswith("*") else scalar.LABEL_OPTIONAL,
            )
            kind = kind.removeprefix("*")
            if kind in _XSPACE:
                row.type, row.type_name = scalar.TYPE_MESSAGE, f".rooftop.{kind}"
            else:
                row.type = getattr(scalar, f"TYPE_{kind.upper()}")
            if title == "XStat" and number > 1:
                row.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"rooftop.{name}"))


def broken() -> type[Exception]:
    """What protobuf raises for bytes that are not the message."""
    from google.protobuf.message import DecodeError

    error: type[Exception] = DecodeError
    return error
