"""One microbatch through one program: local work and transfers summed by pass, laid beside each other.

Every function here takes numbers, NumPy arrays (many plans at once) or traced quantities. Sizes come from resolved programs, so
nothing below knows what kind of parallelism a mesh axis stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rooftop.costing import Direction, Links, Rates, Transfer, Work, direction, transfer_seconds, work_seconds
from rooftop.formula import Number, named, total
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
    weight_gradients: Number  # the part of the backward pass that makes them, in matmuls of their own
    least: Mapping[str, Number]  # seconds of its FLOPs at peak rates by pass: forward, backward, and recompute.<policy>
    parts: Mapping[str, Number]  # expected seconds by part and pass

    def take(self, pick: Callable[[Number], Number], only: str | None = None) -> Local:
        """The same with every time picked from; totals and parts are left out. only: of one remat policy."""
        recompute = {policy: pick(seconds) for policy, seconds in self.recompute.items() if only in (None, policy)}
        return Local(
            self.name, pick(self.forward), pick(self.backward), recompute, pick(self.attention_forward),
            pick(self.attention_backward), pick(self.weight_gradients), {}, {},
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
    again = [(s, set(w.ops)) for s, w in zip(seconds, compiled.works, strict=True) if w.phase == "forward"]
    recompute = {
        policy: named(
            total(s for s, inside in again if not ops.isdisjoint(inside)),
            f"T_recompute({policy})", "s", note="forward ops that run again in the backward pass",
        )
        for policy, ops in compiled.recomputed.items()
    }  # fmt: skip

    def at_peak(works: Iterable[Work]) -> Number:
        flops: dict[str, list[Number]] = {}
        for w in works:
            flops.setdefault(w.weight if w.weight in rates.by_weight else "", []).extend(sizes[i] for i in w.flops)
        return total(total(values) / rates.matmul(dtype).peak for dtype, values in flops.items())

    least: dict[str, Number] = {
        phase: at_peak(w for w in compiled.works if w.phase == phase) for phase in ("forward", "backward")
    }
    for policy, ops in compiled.recomputed.items():
        least[f"recompute.{policy}"] = at_peak(w for w in compiled.works if w.phase == "forward" and _again(w, ops))
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
        weight_gradients=named(
            total(s for s, w in zip(seconds, compiled.works, strict=True) if w.weight_gradient),
            f"T_weight_gradients({compiled.name})",
            "s",
            note="local work of one microbatch",
        ),
        least=least,
        parts=parts,
    )


def _again(work: Work, ops: frozenset[str]) -> bool:
    return any(op in ops for op in work.ops)


def _core(work: Work, phase: str) -> bool:
    return work.phase == phase and work.fused


def moved(compiled: Compiled, sizes: list[Number], links: Links, *, detail: bool = True) -> Moved:
    """Transfers of a program, by class, by pass and by mesh axis (`busy` and `by_axis` only with detail)."""
    expected: list[tuple[int, Transfer, Number]] = []
    busy: dict[tuple[str, str], Number] = {}
    by_axis: dict[tuple[str, str, str], Number] = {}

    def add(table: dict, key: object, seconds: Number) -> None:  # type: ignore[type-arg]
        table[key] = table[key] + seconds if key in table else seconds

    for index, transfer in enumerate(compiled.transfers):
        seconds = transfer_seconds(transfer, sizes, links)
        expected.append((index, transfer, seconds))
        if not detail:
            continue
        lower = transfer_seconds(transfer, sizes, links, bound=True)
        add(busy, (transfer.axis, transfer.phase), lower)
        add(by_axis, (transfer.axis, transfer.overlap, transfer.phase), seconds)
        for policy, again in compiled.moved_again.items():
            if index in again:
                add(busy, (transfer.axis, f"recompute.{policy}"), lower)
                add(by_axis, (transfer.axis, transfer.overlap, f"recompute.{policy}"), seconds)

    def of(overlap: str) -> dict[str, Number]:
        result: dict[str, Number] = {
            phase: total(s for _, t, s in expected if t.overlap == overlap and t.phase == phase)
            for phase in ("forward", "backward")
        }
        same: dict[frozenset[int], Number] = {}  # many policies move the same again
        for policy, again in compiled.moved_again.items():
            if again not in same:
                same[again] = total(s for i, t, s in expected if t.overlap == overlap and i in again)
            result[f"recompute.{policy}"] = same[again]
        return result

    return Moved(of("critical"), of("ring"), of("prefetch"), busy, by_axis)


@dataclass(frozen=True, slots=True)
class Pass:
    """One microbatch through one program under one remat policy. both: its two passes, or those of two microbatches beside
    each other; transfers of one then hide under work of the other.
    """

    forward: Direction
    backward: Direction  # with what is recomputed
    both: tuple[Direction, ...]

    @property
    def seconds(self) -> Number:
        """Forward and backward."""
        return total(d.seconds for d in self.both)

    @property
    def room(self) -> tuple[Number, Number]:
        """Seconds of work that hide nothing yet, for what may hide under the forward and under the backward pass."""
        if len(self.both) == 1:
            return self.both[0].room / 2, self.both[0].room / 2
        return self.forward.room, self.backward.room


def pass_seconds(
    local: Local,
    moved: Moved,
    policy: str,
    overlap: Mapping[str, Number],
    *,
    beside: bool = False,
    host: tuple[Number, Number, Number] | None = None,
) -> Pass:
    """Expected seconds of the forward and of the backward pass, communication included. beside: a forward pass runs beside the
    backward pass of another microbatch, and even activations hide under work. host: seconds of what crosses PCIe in the
    forward pass, in the backward pass, and in both beside each other.
    """
    again = f"recompute.{policy}"
    work_backward = named(local.backward + local.recompute[policy], f"T_work_backward({local.name})", "s")
    there = [local.forward, local.attention_forward, *(getattr(moved, k)["forward"] for k in _KINDS)]
    back = [
        work_backward, local.attention_backward, moved.critical["backward"] + moved.critical[again],
        moved.ring["backward"] + moved.ring[again], moved.prefetch["backward"],
    ]  # fmt: skip
    forward, backward = _direction(there, overlap), _direction(back, overlap)
    if host is not None:
        forward, backward = forward.beside_host(host[0], overlap), backward.beside_host(host[1], overlap)
    if not beside:
        return Pass(forward, backward, (forward, backward))
    together = _direction([a + b for a, b in zip(there, back, strict=True)], beside_overlap(overlap))
    if host is not None:
        together = together.beside_host(host[2], overlap)
    return Pass(forward, backward, (together,))


def _direction(parts: Sequence[Number], overlap: Mapping[str, Number]) -> Direction:
    work, attention, critical, ring, prefetch = parts
    return direction(work, attention, critical, ring, prefetch, overlap)


_KINDS = ("critical", "ring", "prefetch")


def beside_overlap(overlap: Mapping[str, Number]) -> dict[str, Number]:
    """What hides under what where two microbatches run beside each other: activations as prefetched transfers do."""
    return {**overlap, "critical": overlap["prefetch"]}
