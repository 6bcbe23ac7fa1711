"""Plans in files: what `--save` writes, and `--json` prints; perhaps edited by hand before it is read again.

{"version": 1, "for": {"model": ..., "slice": ..., "seq": ..., ...}, "mesh": {...}, "placement": [...], "microbatches": ...,
"microbatch_sequences": ..., and the choices of `Choices` by name}. Everything but the mesh may be left out. `for` tells what
the plan was made for: it answers where the command line says nothing, and guards against use for something else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rooftop._files import read_text
from rooftop.costing import MESH_AXES
from rooftop.errors import InputError, nearest
from rooftop.hardware import Slice, slice_of
from rooftop.training._answer import Answer, named_plan
from rooftop.training._choices import Choices, choices
from rooftop.training._evaluate import Estimate
from rooftop.training._plan import Plan
from rooftop.training._question import Question, problem_of
from rooftop.training._refuse import check_fixed
from rooftop.training._schedule import rules
from rooftop.transformer import architecture, with_capacity

VERSION = 1

_MOST_BYTES = 10_000_000
#: What a plan was made for, by the names of the options: (key, types allowed).
_FOR: dict[str, tuple[type, ...]] = {
    "model": (str,),
    "slice": (str,),
    "seq": (int,),
    "batch": (int, float),
    "precision": (str,),
    "optimizer": (str,),
    "optimizer_dtype": (str,),
    "gradient_dtype": (str,),
    "reduction_dtype": (str,),
    "capacity_factor": (int, float),
    "collective_matmul": (bool,),
    "headroom": (int, float),
    "lengths": (str,),
    "packing": (str,),
}


def saved(answer: Answer, made_for: Mapping[str, Any]) -> dict[str, Any]:
    """The best plan of an answer as a file keeps it. made_for: what the user asked, by the keys of `for`."""
    best = answer.best
    facts = {"slice": best.problem.slice.name, "seq": best.problem.seq, "batch": best.batch_tokens, **made_for}
    return {"version": VERSION, "for": {k: facts[k] for k in _FOR if facts.get(k) is not None}, **described(best)}


def described(best: Estimate) -> dict[str, Any]:
    """A plan in JSON's terms; `plan_from` reads it."""
    plan = best.plan
    dimensions = zip(best.problem.dimensions, plan.factors, strict=True)
    return {
        "mesh": dict(plan.mesh),
        "placement": [{"network": d.network, "size": d.size, "factors": dict(f)} for d, f in dimensions],
        "microbatches": plan.microbatches,
        "microbatch_sequences": plan.sequences,
        **asdict(plan.choices),
    }


def write_plan(path: Path, answer: Answer, made_for: Mapping[str, Any]) -> None:
    """Save the best plan of an answer. Raises InputError where the file cannot be written."""
    try:
        path.write_text(json.dumps(saved(answer, made_for), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"--save: cannot write {path}: {error.strerror or error}; give a file that can be written", field="save"
        ) from None


def load(path: Path) -> dict[str, Any]:
    """The JSON object of a plan. Raises InputError for what is not one, and for a version that is not known."""
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
        data = {**data["best"], "for": {k: data[k] for k in ("model", "slice", "seq") if k in data}}
    if not isinstance(data, dict) or "mesh" not in data:
        raise InputError(f"{path} holds no plan: mesh is missing; save one with rooftop plan --save", field="mesh")
    version = data.get("version", VERSION)
    if type(version) is not int or version != VERSION:
        raise InputError(
            f"{path} is a plan of version {str(version)[:40]}; this Rooftop reads version {VERSION}: save it again, or"
            " use the Rooftop that wrote it",
            field="version",
        )
    return data


def made_for(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What a plan was made for, by option; what the file does not say is absent. Raises InputError."""
    facts = data.get("for", {})
    if not isinstance(facts, dict):
        raise InputError(f"{where}: for must be an object: model, slice, seq, ...", field="for")
    for key, value in facts.items():
        if key not in _FOR:
            raise InputError(
                f"{where}: for.{key[:40]} is not known{nearest(key, _FOR)}; it may hold {', '.join(_FOR)}", field="for"
            )
        if type(value) not in _FOR[key] or (isinstance(value, float) and not math.isfinite(value)):
            raise InputError(f"{where}: for.{key} = {str(value)[:40]!r} is not well formed", field="for")
    return dict(facts)


def read_plan(path: Path, question: Question) -> Plan:
    """The plan in a file, for the question's model and slice; placed anew where the file says nothing of placement.

    Raises InputError, naming the key at fault, also where the plan was made for another model or slice.
    """
    data, where = load(path), str(path)
    facts = made_for(data, where)
    for what, asked, same in (
        ("model", question.model.name, _same_model(facts.get("model"), question.model)),
        ("slice", question.slice.name, _same_slice(facts.get("slice"), question.slice)),
    ):
        if not same:
            raise InputError(
                f"{where} is a plan for the {what} {facts[what][:80]}, not for {asked}; ask about that one, or take"
                f" for.{what} out of the file to use its mesh here all the same",
                field=what,
            )
    return plan_from(data, question, where)


def _same_model(text: str | None, model: Any) -> bool:
    if text is None or text == model.name:
        return True
    try:
        found = architecture(text)
    except InputError:
        return False
    # slots of experts are an option of their own
    if found.experts is not None and model.experts is not None:
        found = with_capacity(found, model.experts.capacity_factor)  # an option, not part of the model
    return bool(found == model)


def _same_slice(text: str | None, where: Slice) -> bool:
    if text is None or text == where.name:
        return True
    try:
        return slice_of(text) == where
    except InputError:
        return False


def plan_from(data: Mapping[str, Any], question: Question, where: str) -> Plan:
    """The plan that a JSON object describes."""
    mesh = _mesh(data["mesh"], where)
    problem = problem_of(question)
    chosen = Choices(**{f.name: data.get(f.name, f.default) for f in choices()}).on(mesh)
    chosen = chosen.check(where).check_used(mesh, where)
    check_fixed(problem, mesh, chosen.layout)
    microbatches = _count(data, "microbatches", where)
    sequences = _count(data, "microbatch_sequences", where)
    factors = _placement(data.get("placement"), mesh, question, where)
    if factors is None or microbatches is None or sequences is None:
        return named_plan(question, mesh, microbatches=microbatches, choices=chosen)
    full = {a: mesh.get(a, 1) for a in MESH_AXES}
    layers = problem.structure(chosen).layers
    for ok, rule in rules(chosen, layers, full, microbatches):
        if not ok:
            raise InputError(f"{where}: this plan cannot be: {rule}", field="schedule")
    return Plan(full, factors, microbatches, sequences, chosen)


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
