"""One microbatch through one program: local work and transfers summed by pass, laid beside each other, and the schedule.

Every function here takes numbers, NumPy arrays (many plans at once) or traced quantities. Sizes come from resolved programs, so
nothing below knows what kind of parallelism a mesh axis stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rooftop.costing import Direction, Links, Rates, Transfer, Work, direction, transfer_seconds, work_seconds
from rooftop.formula import Number, formula, named, total
from rooftop.training._structure import Compiled


@dataclass(frozen=True, slots=True)
class Local:
    """Local work of one microbatch through one program, in seconds expected; and the totals that the bound needs."""

    name: str
    forward: Number
    backward: Number
    recompute: Mapping[str, Number]
    attention_forward: Number
    attention_backward: Number
    flops: Mapping[str, Number]  # by pass: forward, backward, and recompute.<policy>
    parts: Mapping[str, Number]  # expected seconds by part and pass

    def take(self, pick: Callable[[Number], Number]) -> Local:
        """The same with every time picked from; totals and parts are left out."""
        recompute = {policy: pick(seconds) for policy, seconds in self.recompute.items()}
        return Local(
            self.name, pick(self.forward), pick(self.backward), recompute, pick(self.attention_forward),
            pick(self.attention_backward), {}, {},
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Moved:
    """Transfers of one microbatch through one program, in seconds."""

    critical: Mapping[str, Number]  # forward, backward, recompute.<policy>
    ring: Mapping[str, Number]
    prefetch: Mapping[str, Number]
    busy: Mapping[tuple[str, str], Number]  # bound seconds by (mesh axis, forward | backward | recompute.<policy>)
    by_axis: Mapping[tuple[str, str, str], Number]  # expected seconds by (mesh axis, class, pass)


def local(compiled: Compiled, sizes: list[Number], rates: Rates) -> Local:
    """Local work of a program whose distinct sizes have been evaluated."""
    seconds = work_seconds(compiled, sizes, rates)
    forward = [s for s, w in zip(seconds, compiled.works, strict=True) if w.phase == "forward"]
    backward = [s for s, w in zip(seconds, compiled.works, strict=True) if w.phase == "backward"]
    recompute = {
        policy: named(
            total(s for s, w in zip(seconds, compiled.works, strict=True) if w.phase == "forward" and _again(w, ops)),
            f"T_recompute({policy})", "s", note="forward ops that run again in the backward pass",
        )
        for policy, ops in compiled.recomputed.items()
    }  # fmt: skip
    flops: dict[str, Number] = {
        phase: total(total(sizes[i] for i in w.flops) for w in compiled.works if w.phase == phase)
        for phase in ("forward", "backward")
    }
    for policy, ops in compiled.recomputed.items():
        flops[f"recompute.{policy}"] = total(
            total(sizes[i] for i in w.flops) for w in compiled.works if w.phase == "forward" and _again(w, ops)
        )
    parts: dict[str, Number] = {}
    for s, w in zip(seconds, compiled.works, strict=True):
        key = f"{w.part} {w.phase}"
        parts[key] = parts.get(key, 0.0) + s
    return Local(
        name=compiled.name,
        forward=named(total(forward), f"T_forward({compiled.name})", "s", note="local work of one microbatch"),
        backward=named(total(backward), f"T_backward({compiled.name})", "s", note="local work of one microbatch"),
        recompute=recompute,
        attention_forward=total(s for s, w in zip(seconds, compiled.works, strict=True) if _core(w, "forward")),
        attention_backward=total(s for s, w in zip(seconds, compiled.works, strict=True) if _core(w, "backward")),
        flops=flops,
        parts=parts,
    )


def _again(work: Work, ops: frozenset[str]) -> bool:
    return any(op in ops for op in work.ops)


def _core(work: Work, phase: str) -> bool:
    return work.phase == phase and work.fused


def moved(compiled: Compiled, sizes: list[Number], links: Links, *, detail: bool = True) -> Moved:
    """Transfers of a program, by class, by pass and by mesh axis (`busy` and `by_axis` only with detail)."""
    expected: list[tuple[Transfer, Number]] = []
    busy: dict[tuple[str, str], Number] = {}
    by_axis: dict[tuple[str, str, str], Number] = {}

    def add(table: dict, key: object, seconds: Number) -> None:  # type: ignore[type-arg]
        table[key] = table[key] + seconds if key in table else seconds

    for transfer in compiled.transfers:
        seconds = transfer_seconds(transfer, sizes, links)
        expected.append((transfer, seconds))
        if not detail:
            continue
        lower = transfer_seconds(transfer, sizes, links, bound=True)
        add(busy, (transfer.axis, transfer.phase), lower)
        add(by_axis, (transfer.axis, transfer.overlap, transfer.phase), seconds)
        if transfer.overlap != "prefetch" and transfer.phase == "forward":
            for policy, ops in compiled.recomputed.items():
                if transfer.op in ops:
                    add(busy, (transfer.axis, f"recompute.{policy}"), lower)
                    add(by_axis, (transfer.axis, transfer.overlap, f"recompute.{policy}"), seconds)

    def of(overlap: str) -> dict[str, Number]:
        result: dict[str, Number] = {
            phase: total(s for t, s in expected if t.overlap == overlap and t.phase == phase)
            for phase in ("forward", "backward")
        }
        for policy, ops in compiled.recomputed.items():
            result[f"recompute.{policy}"] = total(
                s for t, s in expected if t.overlap == overlap and t.phase == "forward" and t.op in ops
            )
        return result

    return Moved(of("critical"), of("ring"), of("prefetch"), busy, by_axis)


@dataclass(frozen=True, slots=True)
class Pass:
    """One microbatch through one program under one remat policy."""

    forward: Direction
    backward: Direction  # with what is recomputed


def pass_seconds(local: Local, moved: Moved, policy: str, overlap: Mapping[str, Number]) -> Pass:
    """Expected seconds of the forward and of the backward pass, communication included."""
    again = f"recompute.{policy}"
    work_backward = named(local.backward + local.recompute[policy], f"T_work_backward({local.name})", "s")
    forward = direction(
        local.forward, local.attention_forward, moved.critical["forward"], moved.ring["forward"],
        moved.prefetch["forward"], overlap,
    )  # fmt: skip
    backward = direction(
        work_backward, local.attention_backward, moved.critical["backward"] + moved.critical[again],
        moved.ring["backward"] + moved.ring[again], moved.prefetch["backward"], overlap,
    )  # fmt: skip
    return Pass(forward, backward)


@formula("T_step", "s", "1F1B schedule (Narayanan et al., 2021, section 2.2): m microbatches through p stages")
def schedule_seconds(microbatches: Number, slowest_stage: Number, all_stages: Number, ends: Number) -> Number:
    """A step: the slowest stage works through all microbatches but one, one passes all stages, then the ends.

    With p equal stages of t seconds this is (m + p - 1)·t + ends: a bubble of (p - 1)/m.
    """
    return (microbatches - 1) * slowest_stage + all_stages + ends


@formula("T_bound", "s", "book, section 1: no resource can do its work in less; 1F1B adds its bubble")
def bound_seconds(microbatches: Number, slowest_stage: Number, all_stages: Number, ends: Number) -> Number:
    """The same schedule for one resource (arithmetic, HBM, one mesh axis) that is never kept waiting."""
    return (microbatches - 1) * slowest_stage + all_stages + ends
