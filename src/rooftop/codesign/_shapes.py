"""Shapes of a model near a given one that have as much of a budget, and how fast each is on a slice."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rooftop.codesign._answers import Row
from rooftop.codesign._budget import BUDGETS, fitted, sequence
from rooftop.codesign._engine import Engine
from rooftop.codesign._models import model_numbers, with_number
from rooftop.codesign._scenario import Scenario
from rooftop.codesign._settled import check_settled, row_of, settled, speed
from rooftop.codesign._values import parse_vary
from rooftop.errors import InputError, NoAnswer, RooftopError, nearest
from rooftop.shown import Shown
from rooftop.transformer import Architecture
from rooftop.units import parse_count, parse_integer

#: Numbers that are varied unless the user names some; heads then keep their ratio to the width.
VARIED = ("d_model", "layers")
#: Multiples of a number that are tried where no values are given.
NEAR = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
#: How far the fitted feed-forward width may go from its ratio to the width of the model.
_RATIO = 2.5
_MOST = 20_000
#: Numbers that count things; all others are widths, which come in tiles of the chip.
_COUNTS = ("layers", "heads", "kv_heads", "experts", "active")
#: Widths that matmuls with weights have as a side of their own.
_WIDTHS = ("d_model", "d_ff", "vocab", "shared_d_ff", "kv_rank", "q_rank")

Changes = dict[str, int]


@dataclass(frozen=True, slots=True)
class Shape:
    """One shape. changes: its numbers where they differ from the given model. amounts: of each budget.

    row: its answer under the keys of the command, or `error`. bound, expected: tokens a second, 0 without an answer.
    """

    model: Architecture
    changes: Mapping[str, int]
    amounts: Mapping[str, float]
    row: Row
    bound: float
    expected: float

    @property
    def error(self) -> str | None:
        error: str | None = self.row.get("error")
        return error


@dataclass(frozen=True, slots=True)
class Shapes(Shown):
    """shapes: the fastest first, the given one among them. friendly: the given model with one number, or all of them, at the next
    size that tiles of the chip and mesh axes divide; the feed-forward width makes up for it, but not for a padded vocabulary.

    outside: shapes of the grid that miss a budget by more than `within`, or that are no model.
    """

    scenario: Scenario
    given: Shape
    shapes: tuple[Shape, ...]
    friendly: tuple[Shape, ...]
    equal: tuple[str, ...]
    within: float
    outside: int
    seconds: float


def shapes(
    scenario: Scenario,
    *,
    varied: Mapping[str, Sequence[int] | None] | None = None,
    equal: Sequence[str] = ("parameters",),
    within: float = 0.02,
    engine: Engine | None = None,
    progress: Callable[[float], None] = lambda done: None,
) -> Shapes:
    """Answer a scenario for shapes of its model with as much of all budgets `equal`, within a share of `within`.

    varied: numbers of the model and their values, NEAR multiples in whole tiles where None. Every combination of values is a
    shape; its feed-forward width is fitted to the first budget in whole tiles, unless it is varied itself. Heads keep their
    ratio to the width of the model unless they are varied. Raises InputError for what is not well formed, and NoAnswer where
    no shape has an answer. The given model may have none, such as heads that the mesh does not divide.
    """
    started = time.perf_counter()
    check_settled(scenario)
    model, seq = scenario.model, sequence(scenario)
    names = dict(varied) if varied else dict.fromkeys(VARIED)
    known = model_numbers(model)
    for name in names:
        if name not in known:
            raise InputError(
                f"{model.name} has no number {name[:40]!r}{nearest(name, known)}; it has {', '.join(known)}",
                field="vary",
            )
    for budget in equal:
        if budget not in BUDGETS:
            raise InputError(
                f"unknown budget {budget[:40]!r}{nearest(budget, BUDGETS)}; use {', '.join(BUDGETS)}", field="equal"
            )
    if not equal or not 0 <= within < 1:
        raise InputError(
            f"within={within:g} is not a share of a budget; give 0 to below 1, such as 0.02", field="within"
        )
    tile = max(scenario.slice.chip.tile[1:])
    grid = {name: list(values) if values else near(name, known[name], tile) for name, values in names.items()}
    count = math.prod(len(values) for values in grid.values())
    if count > _MOST:
        raise InputError(f"{count:,} shapes are too many; give fewer values, at most {_MOST:,} shapes", field="vary")
    amounts = {name: BUDGETS[name](model, seq) for name in BUDGETS}
    given = _answered((scenario, {}, amounts))
    tasks: list[tuple[Scenario, Changes, dict[str, float]]] = []
    outside, seen = 0, {model.stack}
    for changes in _combinations(grid):
        found = _fitting(model, changes, equal, amounts, seq, within, tile)
        if found is None:
            outside += 1
        elif found[0].stack not in seen or found[0].d_model != model.d_model:
            seen.add(found[0].stack)
            tasks.append((_of(scenario, found[0]), _differences(known, found[0]), found[1]))
    whole = len(tasks)
    for changes in friendly(model, tile, scenario.mesh.get("tensor", 1)):
        try:
            better = _with(model, changes)
            if set(changes) != {"vocab"} and "d_ff" not in changes and "d_ff" in known and equal[0] != "kv":
                better = fitted(better, equal[0], amounts[equal[0]], seq, multiple=min(tile, known["d_ff"]))
            now = {name: BUDGETS[name](better, seq) for name in BUDGETS}
        except RooftopError:  # such as heads that KV heads do not divide
            continue
        tasks.append((_of(scenario, better), _differences(known, better), now))
    answers: dict[int, Shape] = {}
    for i, shape in (engine or Engine()).run(_answered, tasks):
        answers[i] = shape
        progress(len(answers) / len(tasks))
    ranked = sorted([given, *(answers[i] for i in range(whole))], key=lambda s: -s.expected)
    suited = sorted((answers[i] for i in range(whole, len(tasks))), key=lambda s: -s.expected)
    if ranked[0].error is not None and all(s.error is not None for s in suited):
        raise NoAnswer(f"none of {len(ranked)} shapes has an answer; the given one: {given.error}", field="model")
    return Shapes(
        scenario, given, tuple(ranked), tuple(suited), tuple(equal), within, outside, time.perf_counter() - started
    )


def near(name: str, value: int, tile: int) -> list[int]:
    """Values of a number to try: NEAR multiples of it; widths in whole tiles, counts of heads and experts in powers of two."""
    if name in ("kv_heads", "heads", "experts", "active"):
        return sorted({n for n in (value // 4, value // 2, value, value * 2, value * 4) if n >= 1})
    unit = 2 - value % 2 if name in _COUNTS else min(tile, value)
    return sorted({max(unit, round(value * x / unit) * unit) for x in NEAR} | {value})


def friendly(model: Architecture, tile: int, tensor: int = 1) -> Iterator[Changes]:
    """Changes that bring each number of a model, then all of them, to the next size that suits the chip and the mesh.

    Widths: whole tiles; on each of `tensor` ways, where that is within a sixteenth. Heads: a multiple of the ways, or of 8, 4 or
    2, whichever is the largest within a sixteenth; layers the same, so that they can be split over pipeline stages.
    """
    found = {}
    for name, value in model_numbers(model).items():
        if name in _WIDTHS and value > tile:
            units = [tile, tile * tensor]
        elif name == "heads":
            units = [tensor, *(u for u in (2, 4, 8) if u % tensor == 0)]
        elif name == "layers":
            units = [2, 4, 8]
        else:
            continue
        near_enough = [u for u in units if -value % u * 16 <= value] or units[:1]
        better = -(-value // near_enough[-1]) * near_enough[-1]
        if better != value:
            found[name] = better
    yield from ({name: value} for name, value in found.items())
    if len(found) > 1:
        yield found


def _with(model: Architecture, changes: Mapping[str, int]) -> Architecture:
    """The model with several numbers changed; KV heads that were as many as the heads stay as many."""
    known = model_numbers(model)
    heads = changes.get("heads", known.get("heads", 0))
    kv_heads = changes.get("kv_heads", known.get("kv_heads", 0))
    if kv_heads and "kv_heads" not in changes and known["kv_heads"] == known["heads"]:
        kv_heads = heads
    if kv_heads and (heads, kv_heads) != (known["heads"], known["kv_heads"]):
        model = with_number(model, "kv_heads", 1)  # which divides any number of heads on the way
        model = with_number(model, "heads", heads)
        model = with_number(model, "kv_heads", kv_heads)
    for name, value in changes.items():
        if name != "kv_heads" and (name != "heads" or not kv_heads):
            model = with_number(model, name, value)
    return model


def _combinations(grid: Mapping[str, Sequence[int]]) -> Iterator[Changes]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _fitting(
    model: Architecture, changes: Changes, equal: Sequence[str], amounts: Mapping[str, float], seq: int, within: float, tile: int,
) -> tuple[Architecture, dict[str, float]] | None:  # fmt: skip
    """The shape with its feed-forward width fitted, and its amounts; None if it misses a budget or is no model."""
    known = model_numbers(model)
    full = dict(changes)
    if "d_model" in full and "heads" not in full and "heads" in known:
        step = known.get("kv_heads", 1) if known.get("kv_heads") != known["heads"] else 1
        full["heads"] = max(step, round(known["heads"] * full["d_model"] / known["d_model"] / step) * step)
    try:
        shape = _with(model, full)
        first = equal[0]
        if "d_ff" not in full and "d_ff" in known and first != "kv":
            unit = min(tile, known["d_ff"])
            shape = fitted(shape, first, amounts[first], seq, multiple=unit)
            now = model_numbers(shape)
            ratio = now["d_ff"] / now["d_model"] / (known["d_ff"] / known["d_model"])
            if not 1 / _RATIO <= ratio <= _RATIO:
                return None
        found = {name: BUDGETS[name](shape, seq) for name in BUDGETS}
    except RooftopError:
        return None
    if any(abs(found[name] - amounts[name]) > within * amounts[name] for name in equal):
        return None
    return shape, found


def _differences(known: Mapping[str, int], model: Architecture) -> Changes:
    return {name: value for name, value in model_numbers(model).items() if value != known.get(name)}


def _of(scenario: Scenario, model: Architecture) -> Scenario:
    return Scenario(scenario.ask, model, scenario.slice, scenario.options, scenario.mesh, scenario.calibration)


def _answered(task: tuple[Scenario, Changes, dict[str, float]]) -> Shape:
    """Answer one shape; runs in whichever process."""
    scenario, changes, amounts = task
    try:
        held = settled(scenario)
    except RooftopError as error:
        return Shape(scenario.model, changes, amounts, {"error": error.message}, 0.0, 0.0)
    found = speed(scenario, held)
    row: dict[str, Any] = {**row_of(scenario, held), "error": None}
    return Shape(scenario.model, changes, amounts, row, float(found.bound), float(found.expected))


def parse_numbers(model: Architecture, texts: Sequence[str]) -> dict[str, Sequence[int] | None]:
    """What `--vary NAME` or `--vary NAME=VALUES` says of numbers of a model. Raises InputError."""
    known = model_numbers(model)
    found: dict[str, Sequence[int] | None] = {}
    for text in texts:
        name, equals, _ = text.partition("=")
        name = name.strip()
        if name in found:
            raise InputError(f"{name} is varied twice; give each number once", field="vary")
        if not equals:
            found[name] = None
            continue
        if name not in known:
            raise InputError(
                f"{model.name} has no number {name[:40]!r}{nearest(name, known)}; it has {', '.join(known)}",
                field="vary",
            )
        values = parse_vary(text, lambda _: parse_integer).values
        numbers = [round(known[name] * v.value) if v.relative else int(v.value) for v in values]
        if min(numbers) < 1:
            raise InputError(f"{name}: {min(numbers)} is out of range; give whole numbers from 1 on", field="vary")
        found[name] = sorted(set(numbers))
    return found


def parse_share(text: str, field: str) -> float:
    """A share: `2%` or `0.02`. Raises InputError."""
    number = parse_count(text.strip().removesuffix("%"), field)
    return number / 100 if text.strip().endswith("%") else number
