"""Request-level simulation of serving: engines step by step, fleets of them, workloads."""

from rooftop.simulation._engine import Engine
from rooftop.simulation._fleet import ROUTES, Autoscale, Fleet, Simulation
from rooftop.simulation._growth import Speculation
from rooftop.simulation._modelled import Deployed, ModelledSteps, modelled, replica_at
from rooftop.simulation._queue import QUEUES
from rooftop.simulation._record import COLUMNS, Slo
from rooftop.simulation._replica import Line, LinearSteps, Replica, StepModel, read_replica
from rooftop.simulation._request import Request
from rooftop.simulation._settings import ADMISSIONS, FIRST, PREEMPTIONS, Scheduling
from rooftop.simulation._simulate import Outcome, Rate, Setup, confidence, find_rate, seeds, simulate
from rooftop.simulation._sinks import table_file
from rooftop.simulation._workload import KINDS, Lengths, Synthetic, Typical, Workload, typical, workload

__all__ = [
    "ADMISSIONS",
    "COLUMNS",
    "FIRST",
    "KINDS",
    "PREEMPTIONS",
    "QUEUES",
    "ROUTES",
    "Autoscale",
    "Deployed",
    "Engine",
    "Fleet",
    "Lengths",
    "Line",
    "LinearSteps",
    "ModelledSteps",
    "Outcome",
    "Rate",
    "Replica",
    "Request",
    "Scheduling",
    "Setup",
    "Simulation",
    "Slo",
    "Speculation",
    "StepModel",
    "Synthetic",
    "Typical",
    "Workload",
    "confidence",
    "find_rate",
    "modelled",
    "read_replica",
    "replica_at",
    "seeds",
    "simulate",
    "table_file",
    "typical",
    "workload",
]
