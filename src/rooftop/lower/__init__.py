"""Programs of other tools: JAX functions and compilers' listings, op by op; plans as programs."""

from rooftop.lower._cost import OpTime, ProgramTime, program_time, scope_of
from rooftop.lower._hlo import list_hlo, parse_hlo, replica_groups
from rooftop.lower._jaxpr import list_ops
from rooftop.lower._listing import Listing, Op, Transfer
from rooftop.lower._load import load_function, parse_shapes

__all__ = [
    "Listing",
    "Op",
    "OpTime",
    "ProgramTime",
    "Transfer",
    "list_hlo",
    "list_ops",
    "load_function",
    "parse_hlo",
    "parse_shapes",
    "program_time",
    "replica_groups",
    "scope_of",
]
