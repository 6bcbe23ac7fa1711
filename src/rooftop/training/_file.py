"""A plan from a file: what `rooftop plan --json` or `rooftop step --json` printed, perhaps edited by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rooftop._files import read_text
from rooftop.costing import MESH_AXES
from rooftop.errors import InputError, nearest
from rooftop.training._answer import named_plan
from rooftop.training._choices import Choices, choices
from rooftop.training._plan import Plan
from rooftop.training._question import Question, problem_of
from rooftop.training._refuse import check_fixed

_MOST_BYTES = 10_000_000
_KEYS = ("mesh", "microbatches", "microbatch_sequences", "remat", "zero", "placement")


def read_plan(path: Path, question: Question) -> Plan:
    """The plan in a file, for the question's model and slice; placed anew where the file says nothing of placement.

    Raises InputError, naming the key at fault.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"{path} is too large for a plan ({_MOST_BYTES:,} bytes at most)", field="plan")
        data = json.loads(read_text(path, _MOST_BYTES))
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}; give the JSON of a plan", field="plan"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {str(error)[:120]}", field="plan") from None
    if isinstance(data, dict) and isinstance(data.get("best"), dict):
        data = data["best"]
    if not isinstance(data, dict) or "mesh" not in data:
        raise InputError(f"{path} holds no plan: mesh is missing; save one with rooftop plan --json", field="mesh")
    return plan_from(data, question, str(path))


def plan_from(data: Mapping[str, Any], question: Question, where: str) -> Plan:
    """The plan that a JSON object describes."""
    mesh = _mesh(data["mesh"], where)
    problem = problem_of(question)
    check_fixed(problem, mesh)
    chosen = Choices(**{f.name: data.get(f.name, f.default) for f in choices()}).check(where)
    microbatches = _count(data, "microbatches", where)
    sequences = _count(data, "microbatch_sequences", where)
    factors = _placement(data.get("placement"), mesh, question, where)
    if factors is None or microbatches is None or sequences is None:
        return named_plan(question, mesh, microbatches=microbatches, choices=chosen)
    return Plan({a: mesh.get(a, 1) for a in MESH_AXES}, factors, microbatches, sequences, chosen)


def _mesh(data: Any, where: str) -> dict[str, int]:
    if not isinstance(data, dict):
        raise InputError(f"{where}: mesh must be an object of ways by axis", field="mesh")
    for axis, ways in data.items():
        if axis not in MESH_AXES:
            raise InputError(
                f"{where}: unknown mesh axis {axis[:40]!r}{nearest(axis, MESH_AXES)}; the axes are {', '.join(MESH_AXES)}",
                field="mesh",
            )
        if isinstance(ways, bool) or not isinstance(ways, int) or not 1 <= ways <= 10**7:
            raise InputError(f"{where}: {axis} = {str(ways)[:40]!r} is not a number of ways", field="mesh")
    return dict(data)


def _count(data: Mapping[str, Any], key: str, where: str) -> int | None:
    value = data.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**7):
        raise InputError(f"{where}: {key} = {str(value)[:40]!r} is not a count; give a whole number from 1", field=key)
    return value


def _placement(
    data: Any, mesh: Mapping[str, int], question: Question, where: str
) -> tuple[Mapping[str, int], ...] | None:
    """Factors by dimension, if the file has them and they are a placement of the mesh on the slice."""
    if data is None:
        return None
    dimensions = problem_of(question).dimensions
    problem = InputError(
        f"{where}: placement does not lay the mesh on {question.slice.name}; leave it out to have the plan placed anew",
        field="placement",
    )
    if not isinstance(data, list) or len(data) != len(dimensions):
        raise problem
    result: list[Mapping[str, int]] = []
    for row, dimension in zip(data, dimensions, strict=True):
        factors = row.get("factors") if isinstance(row, dict) else None
        if not isinstance(factors, dict) or any(
            a not in MESH_AXES or type(n) is not int or n < 1 for a, n in factors.items()
        ):
            raise problem
        if math.prod(factors.values()) > dimension.size:
            raise problem
        result.append(factors)
    for axis in MESH_AXES:
        if math.prod(f.get(axis, 1) for f in result) != mesh.get(axis, 1):
            raise problem
    return tuple(result)
