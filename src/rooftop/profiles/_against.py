"""A profile beside the plan that it was to follow: part by part, the largest differences first, and the likely cause."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooftop._files import read_text
from rooftop.errors import InputError
from rooftop.profiles._categories import COLLECTIVE, TRANSFER, WAIT
from rooftop.profiles._report import Holder, OpRow, Report

_MOST_BYTES = 10_000_000
_IDLE, _OTHER, _NETWORK, _TRANSFERS = "idle", "other ops", "exposed communication", "host transfers"

#: What a piece of a scope or a category says of the part; the innermost piece that says something decides.
_PARTS = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("norm", r"norm"),
        ("optimizer", r"optim|adam|sgd|apply_updates"),
        ("head", r"lm_?head|logits|unembed|cross_?entropy|\bhead\b|\bloss\b"),
        ("embedding", r"embed(?!.*rotary)|\bwte\b"),
        ("attention", r"att(entio)?n|qkv|[qkvo]_proj|rotary|rope|kv_?cache"),
        ("mlp", r"mlp|ffn|ffw|feed_?forward|moe|expert|gate_proj|up_proj|down_proj"),
    )
)


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One part: seconds of a step as planned (expected) and as measured, and the likely cause of the difference."""

    name: str
    planned: float
    measured: float
    cause: str

    @property
    def difference(self) -> float:
        """Measured less planned."""
        return self.measured - self.planned


@dataclass(frozen=True, slots=True)
class AgainstPlan:
    """A step as planned and as measured. memory: bytes of a chip, planned and at the measured peak, where both are known.

    memory_parts: planned bytes by part. held: those of the measured peak by what allocated them.
    """

    path: str
    steps: int
    planned: float
    bound: float
    measured: float
    rows: Sequence[PlanRow]
    memory: tuple[float, float] | None
    memory_parts: Mapping[str, float]
    held: Sequence[Holder]
    notes: tuple[str, ...]


def against(report: Report, path: str | Path, plan: Mapping[str, Any] | None = None) -> AgainstPlan:
    """The report beside a plan with its numbers, as `rooftop plan --json` prints it: `plan`, or what the file `path` holds.

    Raises InputError for what is none.
    """
    plan = _checked(plan if plan is not None else _read(Path(path)), path)
    planned, hidden = _planned(plan, path)
    count = len(report.steps.seconds) if report.steps is not None else 1
    notes = (
        [] if report.steps is not None else ["the profile tells no steps, so its whole window is taken for one step"]
    )
    measured: dict[str, float] = defaultdict(float)
    bounds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for op in report.ops:
        name = part_of(op)
        measured[name] += op.wall / count
        if op.bound is not None:
            bounds[name][0] += op.bound / count
            bounds[name][1] += op.seconds / count
    measured[_IDLE] = (report.window - sum(op.wall for op in report.ops)) / count
    overlapped = max(0.0, report.communication - report.exposed) / count
    rows = [
        PlanRow(n, planned.get(n, 0.0), measured.get(n, 0.0), _cause(
            n, planned.get(n), measured.get(n), bounds[n], hidden, overlapped))
        for n in dict.fromkeys((*planned, *measured))
        if planned.get(n) or measured.get(n)
    ]  # fmt: skip
    rows.sort(key=lambda r: (-abs(r.difference), r.name))
    memory = _mapping(plan.get("memory"))
    bytes = _number(memory.get("bytes"))
    sizes = _mapping(memory.get("parts"))
    largest = max(report.memory.values(), key=lambda m: m.peak, default=None)
    chips = _number(plan.get("chips"))
    if chips is not None and chips != len(report.devices):
        notes.append(f"the plan has {chips:g} chips, the profile shows {len(report.devices)}")
    step = plan["step_seconds"]
    return AgainstPlan(
        str(path), count, float(step["expected"]), float(step["bound"]), report.window / count, rows,
        (bytes, largest.peak) if bytes is not None and largest is not None else None,
        {str(name): size for name, x in sizes.items() if (size := _number(x)) is not None},
        largest.held if largest is not None else (), tuple(notes),
    )  # fmt: skip


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def part_of(op: OpRow) -> str:
    """The part of a plan that an op belongs to."""
    if op.category == COLLECTIVE or (op.category == WAIT and op.collective):
        return _NETWORK
    if op.category in (TRANSFER, WAIT):
        return _TRANSFERS
    if op.recomputed:
        return "recompute"
    for piece in (*reversed(op.part.split("/")), op.category):
        for name, pattern in _PARTS:
            if pattern.search(piece):
                return name
    return _OTHER


def _read(path: Path) -> Any:
    try:
        return json.loads(read_text(path, _MOST_BYTES))
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}; give the JSON of a plan", field="plan"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {str(error)[:120]}", field="plan") from None


def _checked(data: Any, path: str | Path) -> dict[str, Any]:
    problem = f"{path} holds no plan; save one with rooftop plan --save or --json"
    if isinstance(data, dict) and isinstance(data.get("best"), dict):
        data = data["best"]
    step = data.get("step_seconds") if isinstance(data, dict) else None
    if not isinstance(step, dict) or any(_number(step.get(name)) is None for name in ("bound", "expected")):
        raise InputError(f"{problem}: step_seconds is missing", field="step_seconds")
    if not isinstance(data.get("time_parts"), list):
        raise InputError(f"{problem}: time_parts is missing", field="time_parts")
    found: dict[str, Any] = data
    return found


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def _planned(plan: Mapping[str, Any], path: str | Path) -> tuple[dict[str, float], float]:
    """Exposed seconds by part, forward and backward together; and the communication that the plan hides."""
    found: dict[str, float] = defaultdict(float)
    hidden = 0.0
    for part in plan["time_parts"]:
        seconds = _number(part.get("seconds")) if isinstance(part, dict) else None
        if seconds is None or not isinstance(part.get("name"), str):
            raise InputError(
                f"{path}: a row of time_parts has no name or no seconds; save the plan again", field="time_parts"
            )
        overlapped = min(seconds, _number(part.get("overlapped")) or 0.0)
        kind = part.get("kind")
        if kind == "network":
            found[_NETWORK] += seconds - overlapped
            hidden += overlapped
        elif kind in ("bubble", "host"):
            found[_IDLE] += seconds - overlapped
        else:
            found[re.sub(r" (forward|backward)$", "", part["name"])] += seconds - overlapped
    return dict(found), hidden


def _cause(
    name: str, planned: float | None, measured: float | None, bound: Sequence[float], hidden: float, overlapped: float
) -> str:
    """Why a part differs, as far as the profile tells."""
    if not measured:
        return "the profile shows none: its scopes have other names, or it did not run"
    if name == _IDLE:
        return "bubbles, gaps and the host; see where the time went"
    if name == _NETWORK:
        return f"{_milliseconds(hidden)} were to be hidden, {_milliseconds(overlapped)} were"
    if planned is None:
        return (
            "not in the plan: elementwise work and copies outside of its parts" if name == _OTHER else "not in the plan"
        )
    if abs(measured - planned) < 0.1 * planned:
        return "as planned"
    least, time = bound
    reached = least / time if time > 0 else None
    if measured < planned:
        if reached is None or least >= 0.8 * planned:
            return "faster than expected"
        return f"less work than planned: a roofline of {_milliseconds(least)}; other shapes or a smaller batch"
    if least > 1.2 * planned:
        return "more work than planned: other shapes, a larger batch, or unfused ops"
    if reached is not None and time > 0.5 * measured:
        return f"its ops reached {reached:.0%} of their roofline"
    return "slower than planned, and the profile does not tell the work of most of its ops"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.3g} ms"
