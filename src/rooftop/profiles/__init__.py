"""Real profiles: reading them, and what they say against the roofline."""

from rooftop.profiles._against import AgainstPlan, PlanRow, against
from rooftop.profiles._analyse import analyse
from rooftop.profiles._capture import capture
from rooftop.profiles._events import Device, Op, Trace, Track
from rooftop.profiles._export import bound_of, write_parquet, write_perfetto
from rooftop.profiles._hlo import HloArray, HloLine, global_shape, read_hlo_line, replica_members
from rooftop.profiles._read import read
from rooftop.profiles._recognise import recognise, short_name
from rooftop.profiles._report import DeviceTime, Group, Holder, Loss, Memory, OpRow, Report, Step, Straggling
from rooftop.profiles._roof import Roof
from rooftop.profiles._versus import Change, Versus, compare

__all__ = [
    "AgainstPlan",
    "Change",
    "Device",
    "DeviceTime",
    "Group",
    "HloArray",
    "HloLine",
    "Holder",
    "Loss",
    "Memory",
    "Op",
    "OpRow",
    "PlanRow",
    "Report",
    "Roof",
    "Step",
    "Straggling",
    "Trace",
    "Track",
    "Versus",
    "against",
    "analyse",
    "bound_of",
    "capture",
    "compare",
    "global_shape",
    "read",
    "read_hlo_line",
    "recognise",
    "replica_members",
    "short_name",
    "write_parquet",
    "write_perfetto",
]
