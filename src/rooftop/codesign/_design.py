"""The chip and the network that do a mix of work best within a budget, and where the chips of today stand.

Candidates with the same network and number of chips are one group: their numbers are arrays. In a group, plans are searched for a few
candidates that lie far apart, and every plan is timed for all candidates at once, by the formulas that time one; then plans are
searched for the group's best, and all is timed again. The winners are searched in full before they are ranked.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooftop import inference
from rooftop.codesign._answers import Row, searched, serving_question
from rooftop.codesign._costs import Cost, Costs, cost_of, costs, ports_of
from rooftop.codesign._engine import Engine
from rooftop.codesign._machine import NETWORKS, VALUES, Network, chip_like, machine, network, ports, power_of_two
from rooftop.codesign._scenario import Scenario
from rooftop.codesign._settled import Settled, row_of, settled, speed
from rooftop.codesign._work import Work
from rooftop.errors import InputError, NoAnswer, RooftopError, nearest
from rooftop.hardware import Chip, Slice, Torus, chip, chips, slice_of, standard_slices
from rooftop.roofline import calibration_for
from rooftop.shown import Shown

Array = NDArray[np.float64]
_MOST = 200_000  # candidates
_FAR = 2  # candidates of a group for which plans are searched first
_AGAIN = 2  # times that plans are searched for the best of a group
_NEAR = 0.98  # of the best score, below which others of a group are not searched for
_KEEP = 3  # plans of each search


@dataclass(frozen=True, slots=True)
class Budget:
    """usd: to buy a machine and run it for the years of the cost model. watts: of all of it. mm2: silicon of a chip.

    most_chips: of a machine; part: chips on which one replica of a served model is planned, at most.
    """

    usd: float | None = None
    watts: float | None = None
    mm2: float | None = None
    most_chips: int = 4096
    part: int = 32

    def share(self, count: Any, cost: Cost) -> Any:
        """The part of the budget that so many chips take: of dollars or of watts, whichever is more."""
        used: Any = 0.0
        if self.usd is not None:
            used = np.maximum(used, count * cost.usd / self.usd)
        if self.watts is not None:
            used = np.maximum(used, count * cost.watts / self.watts)
        return used


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine and how it does. numbers: of a candidate, by the names of VALUES; empty for chips of today.

    links: bytes a second of its levels, innermost first. share: part of the budget that it takes. rates: tokens or requests a second of each work. score: work done in the time that the
    reference needs for its mix, both for the whole budget: rates are taken in proportion to what of it is spent.
    """

    name: str
    network: str
    chips: int
    chip: Chip
    numbers: Mapping[str, float]
    links: tuple[float, ...]
    cost: Cost
    share: float
    rates: tuple[float, ...]
    score: float
    rows: tuple[Row, ...]

    @property
    def error(self) -> str | None:
        """Why it cannot do some of the work."""
        return next((f"{r['error']}" for r in self.rows if r.get("error")), None)


@dataclass(frozen=True, slots=True)
class Design(Shown):
    """best: candidates in order; networks: the best candidate of each network; today: chips of today in order.

    candidates: all that were looked at; too_large, too_dear: those whose silicon, or a single one of which, is over the budget;
    unable: those that cannot do all of the work. gain: what searching the winners in full added at most to what the first
    pass had, as a share. at_the_end: numbers of the best machine that are the least or the most of their values.
    """

    works: tuple[Work, ...]
    budget: Budget
    costs: Costs
    base: str
    best: tuple[Machine, ...]
    networks: tuple[Machine, ...]
    today: tuple[Machine, ...]
    candidates: int
    too_large: int
    too_dear: int
    unable: int
    gain: float
    at_the_end: tuple[str, ...]
    seconds: float

    @property
    def reference(self) -> Machine:
        return next(m for m in self.today if m.chip.name == self.base)


def design(
    works: Sequence[Work],
    budget: Budget,
    *,
    like: str = "h100",
    values: Mapping[str, Sequence[float]] | None = None,
    networks: Sequence[str] = NETWORKS,
    cost_model: Costs | None = None,
    beside: Sequence[str] | None = None,
    top: int = 5,
    engine: Engine | None = None,
    progress: Callable[[float], None] = lambda done: None,
) -> Design:
    """Search chips of the kind of `like` and networks for works within a budget.

    values: of the numbers in VALUES, instead of those. beside: chips of today to show, all of the catalogue if None; `like` is
    always among them, and what others are compared to. Raises InputError for what is not well formed, and NoAnswer where no
    candidate, or not even the reference, does all of the work within the budget.
    """
    started = time.perf_counter()
    base, model = chip(like), cost_model or costs()
    _check(works, budget, values or {})
    grid = {**VALUES, **(values or {})}
    nets = [network(text) for text in dict.fromkeys(networks)]
    if sum(_size(net, grid) for net in nets) > _MOST:
        raise InputError(f"more than {_MOST:,} candidates; give fewer values or networks", field="vary")
    names = dict.fromkeys((base.name, *(beside if beside is not None else (n for n in chips() if n != "cpu"))))
    chosen_engine = engine or Engine()
    asked = [_Today(name, tuple(works), budget, model) for name in names]
    known = dict(chosen_engine.run(_today, asked))
    today = [known[i] for i in range(len(asked))]
    reference = today[0]
    if reference.error is not None:
        raise NoAnswer(
            f"{base.name}, which others would be compared to, cannot do the work: {reference.error}", field="like"
        )
    against = tuple(w.weight * rate / reference.share for w, rate in zip(works, reference.rates, strict=True))
    counted = dict.fromkeys(("candidates", "too_large", "too_dear"), 0)
    tasks = [task for net in nets for task in _groups(base, net, grid, budget, model, works, against, counted)]
    found: list[tuple[float, _Group, int]] = []
    unable = 0
    for done, (index, scores) in enumerate(chosen_engine.run(_evaluated, tasks)):
        task = tasks[index]
        unable += int(np.sum(scores <= 0))
        order = np.argsort(-scores, kind="stable")[: top + 2]
        found += [(float(scores[i]), task, int(i)) for i in order if scores[i] > 0]
        progress((done + 1) / (len(tasks) + 1))
    if not found:
        raise NoAnswer(_none(counted, unable), field="usd")
    found.sort(key=lambda f: (-f[0], f[1].net.name, f[1].chips, f[2]))
    firsts = [next(f for f in found if f[1].net.name == name) for name in dict.fromkeys(f[1].net.name for f in found)]
    chosen = list({(f[1].net.name, f[1].chips, f[2]): f for f in (*found[: top + 2], *firsts)}.values())
    full = [_machine(task, i) for _, task, i in chosen]
    gain = max(m.score / f[0] - 1 for m, f in zip(full, chosen, strict=True))
    ranked = sorted(full, key=lambda m: (-round(m.score, 6), m.share))
    heads = {m.network: m for m in reversed(ranked)}
    scored = [replace(m, score=_score(m.rates, m.share, against)) for m in today]
    return Design(
        works=tuple(works), budget=budget, costs=model, base=base.name, best=tuple(ranked[:top]),
        networks=tuple(sorted(heads.values(), key=lambda m: -m.score)),
        today=tuple(sorted(scored, key=lambda m: -m.score)), unable=unable, gain=max(0.0, gain),
        at_the_end=tuple(n for n, v in ranked[0].numbers.items() if len(grid[n]) > 1 and v in (min(grid[n]), max(grid[n]))),
        seconds=time.perf_counter() - started, **counted,
    )  # fmt: skip


def _check(works: Sequence[Work], budget: Budget, values: Mapping[str, Sequence[float]]) -> None:
    if not works:
        raise InputError("a machine needs work to be designed for; give one", field="work")
    if budget.usd is None and budget.watts is None:
        raise InputError("a machine needs a budget; give --usd, --watts or both", field="usd")
    for name in ("usd", "watts", "mm2"):
        amount = getattr(budget, name)
        if amount is not None and not 0 < amount <= 1e15:
            raise InputError(f"{name} = {amount:g} is out of range; give a number above 0", field=name)
    if not 1 <= budget.most_chips <= 65536 or not 1 <= budget.part <= 1024:
        raise InputError("give 1 to 65,536 chips of a machine, and 1 to 1,024 of a part", field="most_chips")
    for name, each in values.items():
        if name not in VALUES:
            raise InputError(
                f"unknown number {name[:40]!r}{nearest(name, VALUES)}; use {', '.join(VALUES)}", field="vary"
            )
        if not each or not all(0 < v <= 1e15 for v in each):
            raise InputError(f"{name}: values must be above 0", field="vary")


def _size(net: Network, grid: Mapping[str, Sequence[float]]) -> int:
    return int(np.prod([len(grid[name]) for name in net.searched]))


@dataclass(frozen=True, slots=True)
class _Group:
    """Candidates of one network and number of chips. numbers: arrays. against: of each work, its weight times the reference's rate."""

    base: Chip
    net: Network
    chips: int
    numbers: Mapping[str, Array]
    share: Array
    budget: Budget
    costs: Costs
    works: tuple[Work, ...]
    against: tuple[float, ...]

    def one(self, i: int) -> dict[str, float]:
        """The numbers of one candidate."""
        return {name: float(values[i]) for name, values in self.numbers.items()}


def _groups(
    base: Chip, net: Network, grid: Mapping[str, Sequence[float]], budget: Budget, model: Costs, works: Sequence[Work],
    against: tuple[float, ...], counted: dict[str, int],
) -> Iterator[_Group]:  # fmt: skip
    """The groups of a network: each candidate with as many chips, a power of two, as the budget buys."""
    rows = np.array(list(itertools.product(*(grid[name] for name in net.searched))), dtype=float)
    numbers: dict[str, Array] = dict(zip(net.searched, rows.T, strict=True))
    counted["candidates"] += len(rows)
    candidate = chip_like(base, numbers, model)
    count = np.zeros(len(rows))
    allowed = power_of_two(budget.most_chips)
    while allowed >= 1:  # the most first, since what switches cost depends on how many there are
        cost = cost_of(candidate, ports(net, allowed, numbers, model), model)
        count = np.where((count == 0) & (budget.share(allowed, cost) <= 1), allowed, count)
        allowed = allowed // 2
    cost = cost_of(candidate, ports(net, np.maximum(count, 1), numbers, model), model)
    large = cost.dies > model["area.most_dies"]
    if budget.mm2 is not None:
        large = large | (cost.mm2 > budget.mm2)
    counted["too_large"] += int(np.sum(large))
    counted["too_dear"] += int(np.sum(~large & (count == 0)))
    share = budget.share(np.maximum(count, 1), cost)
    for chips_ in np.unique(count[~large & (count > 0)]):
        picked = ~large & (count == chips_)
        yield _Group(
            base, net, int(chips_), {n: v[picked] for n, v in numbers.items()}, share[picked], budget, model, tuple(works), against
        )  # fmt: skip


def _score(rates: Sequence[Any], share: Any, against: Sequence[float]) -> Any:
    """How often the mix of the reference is done in its time: one over the sum of weight times its rate over this one's.

    A weight is the share of the reference's time. Both rates are for the whole budget.
    """
    spent: Any = 0.0
    for rate, reference in zip(rates, against, strict=True):
        with np.errstate(divide="ignore"):
            spent = spent + reference * share / np.asarray(rate, dtype=float)
    return 1.0 / spent


def _placed(work: Work, where: Slice) -> Scenario:
    """The question of a work on a slice, with the coefficients of the chip's family: none has any of its own here."""
    return replace(work.scenario, slice=where, calibration=calibration_for("", where.chip.family))


def _sized(work: Work, count: int, budget: Budget) -> int:
    """Chips on which a work is planned: all for training, those of one part for serving."""
    return count if work.scenario.ask == "plan" else min(count, budget.part)


def _evaluated(group: _Group) -> Array:
    """The scores of all candidates of a group, 0 where one cannot do all of the work; runs in whichever process."""
    plans: list[list[Settled]] = [[] for _ in group.works]
    tried: set[int] = set()
    best = np.zeros((len(group.works), len(group.share)))

    def add(i: int) -> None:
        tried.add(i)
        for w, work in enumerate(group.works):
            where = machine(group.base, group.net, _sized(work, group.chips, group.budget), group.one(i), group.costs)
            new = [p for p in _plans(_placed(work, where)) if p not in plans[w]]
            plans[w] += new
            for held in new:
                best[w] = np.maximum(best[w], _rates(group, work, held))

    for i in _far_apart(group):
        add(i)
    scores = np.asarray(_score(list(best), group.share, group.against))
    for _ in range(_AGAIN):
        order = [int(i) for i in np.argsort(-scores, kind="stable") if int(i) not in tried]
        if not order or scores.max() <= 0 or scores[order[0]] < scores.max() * _NEAR:
            break  # the best one is searched, and no other is near it
        add(order[0])
        scores = np.asarray(_score(list(best), group.share, group.against))
    return scores


def _far_apart(group: _Group) -> list[int]:
    """Candidates that lie far apart: the middle, then each time the one farthest from those taken, in logarithms."""
    at = np.log(np.stack(list(group.numbers.values()), axis=1))
    taken = [int(np.argmin(np.abs(at - np.median(at, axis=0)).sum(axis=1)))]
    while len(taken) < min(_FAR, len(at)):
        distance = np.min([np.abs(at - at[i]).sum(axis=1) for i in taken], axis=0)
        if distance.max() <= 0:
            break
        taken.append(int(np.argmax(distance)))
    return taken


def _plans(scenario: Scenario) -> list[Settled]:
    """The best answers at one candidate, to be tried at all others."""
    try:
        if scenario.ask == "plan":
            found = searched(scenario, keep=_KEEP)
            return [Settled(plan=e.plan) for e in (found.best, *found.alternatives)]
        question, limits = serving_question(scenario)
        problem = inference.problem_of(question)
        fast = sorted(
            inference.search(problem, inference.BATCHES, limits).by_batch.values(), key=lambda c: -c.tokens_per_second
        )
        return [Settled(point=inference.point(problem, c.at, c.batch)) for c in fast[:_KEEP]]
    except RooftopError:
        return []


def _rates(group: _Group, work: Work, held: Settled) -> Array:
    """The rate of a kept plan for all candidates; 0 where it does not fit or keep the limits."""
    size = _sized(work, group.chips, group.budget)
    where = machine(group.base, group.net, size, group.numbers, group.costs)
    found = speed(_placed(work, where), held)
    options = work.scenario.options
    able = np.asarray(found.memory <= found.capacity)
    rate = found.expected
    if work.scenario.ask == "serve":
        rate = found.requests * (group.chips / size)
        for name, taken in (("ttft", found.ttft), ("tpot", found.tpot)):
            if options.get(name) is not None:
                able = able & (np.asarray(taken) <= options[name])
    return np.where(able, np.broadcast_to(np.asarray(rate, dtype=float), group.share.shape), 0.0)


def _done(work: Work, where: Slice, count: int) -> tuple[float, Row]:
    """The rate of a work on a machine of `count` chips, planned on a slice of it."""
    scenario = _placed(work, where)
    try:
        held = settled(scenario)
    except RooftopError as error:
        return 0.0, {"error": error.message}
    found = speed(scenario, held)
    row = {**row_of(scenario, held), "error": None}
    if scenario.ask == "plan":
        return float(found.expected), row
    return float(found.requests) * count / where.chips, row


def _machine(group: _Group, i: int) -> Machine:
    """One candidate, searched in full."""
    numbers = group.one(i)
    whole = machine(group.base, group.net, group.chips, numbers, group.costs)
    done = []
    for work in group.works:
        size = _sized(work, group.chips, group.budget)
        done.append(_done(work, machine(group.base, group.net, size, numbers, group.costs), group.chips))
    cost = cost_of(whole.chip, ports(group.net, group.chips, numbers, group.costs), group.costs)
    rates = tuple(rate for rate, _ in done)
    share = float(group.share[i])
    return Machine(
        group.net.name, group.net.name, group.chips, whole.chip, numbers, _links(whole), _plain(cost), share, rates,
        float(_score(rates, share, group.against)), tuple(row for _, row in done),
    )  # fmt: skip


def _plain(cost: Cost) -> Cost:
    return Cost(*(float(getattr(cost, name)) for name in ("mm2", "dies", "chip_watts", "watts", "capital", "usd")))


@dataclass(frozen=True, slots=True)
class _Today:
    name: str
    works: tuple[Work, ...]
    budget: Budget
    costs: Costs


def _today(task: _Today) -> Machine:
    """A chip of today on the largest of its common slices that the budget buys, several of them beyond a pod."""
    name, works, budget, model = task.name, task.works, task.budget, task.costs
    whole, cost = _largest(name, budget, model)
    if whole is None:
        none = tuple({"error": f"one {name} is over the budget"} for _ in works)
        return Machine(name, "", 0, chip(name), {}, (), _plain(cost), 0.0, (0.0,) * len(works), 0.0, none)
    parts = [s for s in map(slice_of, standard_slices(name)) if s.chips <= min(budget.part, whole.chips)]
    done: list[tuple[float, Row]] = []
    for work in works:
        if done and done[-1][1]["error"]:
            done.append((0.0, {"error": done[-1][1]["error"]}))  # which rules it out
        else:
            done.append(_done(work, whole if work.scenario.ask == "plan" else parts[-1], whole.chips))
    rates = tuple(rate for rate, _ in done)
    return Machine(
        whole.name, _wiring(whole), whole.chips, whole.chip, {}, _links(whole), _plain(cost), float(budget.share(whole.chips, cost)), rates, 0.0,
        tuple(row for _, row in done),
    )  # fmt: skip


def _largest(name: str, budget: Budget, model: Costs) -> tuple[Slice | None, Cost]:
    common = standard_slices(name)
    pods = [f"{common[-1]}*{2**k}" for k in range(1, 13)] if "x" in common[-1].partition(":")[2] else []
    best: Slice | None = None
    cost = cost_of(chip(name), ports_of((), model), model)
    for text in (*common, *pods):
        try:
            where = slice_of(text)
        except InputError:
            break
        of = cost_of(where.chip, ports_of(where.levels, model), model)
        if where.chips > budget.most_chips or budget.share(where.chips, of) > 1:
            continue
        best, cost = where, of
    return best, cost


def _wiring(where: Slice) -> str:
    return " + ".join(
        f"{'x'.join(map(str, level.dims))} {level.name}" if isinstance(level, Torus) else f"{level.size} {level.name}"
        for level in where.levels
    )


def _links(where: Slice) -> tuple[float, ...]:
    return tuple(float(level.link_bandwidth if isinstance(level, Torus) else level.bandwidth) for level in where.levels)


def _none(counted: Mapping[str, int], unable: int) -> str:
    return (
        f"none of {counted['candidates']:,} candidates does the work within the budget: {counted['too_large']:,} have too much silicon,"
        f" one chip of {counted['too_dear']:,} is over the budget, {unable:,} cannot do all of the work (memory, or limits of time); give a"
        " larger budget or other values"
    )
