"""A whole training step: microbatches through pipeline stages, then the update. One function for one plan or a million."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rooftop.costing import Links, Rates, exposed_seconds, transfer_seconds
from rooftop.formula import Number, formula, maximum, named, total, where
from rooftop.roofline import collective_seconds
from rooftop.training._choices import Choices
from rooftop.training._estimate import Local, Moved, Pass, pass_seconds
from rooftop.training._memory import Memory, memory_parts
from rooftop.training._offload import Crossing, Crossings, update_crossing
from rooftop.training._schedule import (
    FILLED,
    Stage,
    bound_seconds,
    dualpipe_seconds,
    interleaved_seconds,
    stages_of,
    zero_bubble_seconds,
)
from rooftop.training._structure import Compiled, Structure

#: A quantity of a program, by the program's name.
Of = Callable[[str], Number]
#: (microbatches, slowest stage, all stages, ends) -> seconds of a step.
Rule = Callable[[Number, Number, Number, Number], Number]


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds of a step, and bytes per chip. `resources` are the lower bounds whose largest is the bound."""

    expected: Number
    bound: Number
    resources: Mapping[str, Number]
    memory: Mapping[str, Number]
    memory_bytes: Number
    bubble: Number
    parts: tuple[Part, ...]
    #: seconds that the slowest stage spends on gradients of weights
    weight_gradients: Number = 0.0
    #: bytes in the chip's share of host memory, by part
    host: Mapping[str, Number] = field(default_factory=dict)

    @property
    def host_bytes(self) -> Number:
        """All parts."""
        return total(self.host.values())


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of work in a step on the slowest stage: how long it takes in all, and how much of that is hidden."""

    name: str
    kind: str  # compute, hbm, network, bubble, host
    seconds: Number
    overlapped: Number


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Local work and transfers of every program of a model under one set of layouts; and what crosses PCIe, where something does."""

    structure: Structure
    values: Mapping[str, list[Number]]
    local: Mapping[str, Local]
    moved: Mapping[str, Moved]
    crossings: Mapping[str, Crossings] = field(default_factory=dict)


def memory_of(
    structure: Structure, values: Mapping[str, list[Number]], chosen: Choices, microbatches: Number, stages: Number
) -> Memory:
    """Bytes per chip by part on the fullest pipeline stage, and in host memory."""
    return memory_parts(structure, values, chosen, stages_of(structure.layers, stages, microbatches, chosen))


def states_of(
    structure: Structure, values: Mapping[str, list[Number]], chosen: Choices, stages: Number
) -> dict[str, Number]:
    """Bytes per chip that the update touches, on the stage where they are most; no remat policy changes them."""

    def of(compiled: Compiled, part: str) -> Number:
        return total(values[compiled.name][i] for i in getattr(compiled, part))

    kinds = stages_of(structure.layers, stages, 1, chosen)
    return {
        part: named(
            most(
                kinds,
                total(structure.counts[c.name] * of(c, part) for c in structure.blocks),
                of(structure.embed, part),
                of(structure.head, part),
            ),
            part,
            "B",
            note="on the pipeline stage where they are most",
        )
        for part in ("optimizer", "gradients", "weights")
    }


@formula("T_optimizer", "s", note="states are read and written, gradients read, weights written")
def optimizer_seconds(state_bytes: Number, gradient_bytes: Number, weight_bytes: Number, bandwidth: Number) -> Number:
    """Time of the update, bound by HBM: states in and out, gradients in, new weights out (bytes per chip)."""
    return (2 * state_bytes + gradient_bytes + weight_bytes) / bandwidth


def step(
    evaluated: Evaluated,
    rates: Rates,
    links: Links,
    overlap: Mapping[str, Number],
    step_overhead: Number,
    chosen: Choices,
    microbatches: Number,
    stages: Number,
    memory: Memory | None,
    states: Mapping[str, Number],
    *,
    detail: bool = True,
    with_parts: bool = True,
) -> Step:
    """The step of a plan. microbatches and stages may be arrays; so may every size behind `evaluated`.

    memory: from `memory_of`, perhaps none without detail; states: those of the update, from `states_of`. Without detail only the expected seconds are computed,
    without parts all but the parts.
    """
    structure, policy = evaluated.structure, chosen.remat
    kinds = stages_of(structure.layers, stages, microbatches, chosen)
    beside = chosen.schedule == "dualpipe"
    hosts = {name: c.seconds(rates.host_expected) for name, c in evaluated.crossings.items()}
    passes = {
        name: pass_seconds(
            evaluated.local[name], evaluated.moved[name], policy, overlap, beside=beside, host=hosts.get(name)
        )
        for name in evaluated.local
    }
    embed, head = structure.embed.name, structure.head.name

    def body(of: Of) -> Number:
        return total(structure.counts[c.name] * of(c.name) for c in structure.blocks)

    def on_stage(of: Of) -> Number:
        return most(kinds, body(of), of(embed), of(head))

    def schedule(of: Of, ends: Number, rule: Rule, at_least: Number = 0.0) -> Number:
        layers = named(body(of), "all layers", "s")
        slowest = named(maximum(most(kinds, layers, of(embed), of(head)), at_least), "T_slowest_stage", "s")
        return rule(microbatches, slowest, named(layers + of(embed) + of(head), "T_all_stages", "s"), ends)

    def pipelined(microbatches: Number, slowest: Number, everything: Number, ends: Number) -> Number:
        if chosen.schedule in ("1f1b", "gpipe"):
            return interleaved_seconds(microbatches, slowest, everything, ends, chosen.chunks)
        weights = named(body(lambda n: evaluated.local[n].weight_gradients), "T_weight_gradients", "s")
        if beside:
            backward = body(lambda n: passes[n].backward.seconds)
            return dualpipe_seconds(microbatches, slowest, everything, ends, stages, weights, backward)
        filled = FILLED[chosen.schedule]
        return zero_bubble_seconds(microbatches, slowest, everything, ends, stages, weights, filled)

    # the update: what the end of the step cannot hide
    update = {c.name: _update(c, evaluated.values[c.name], links) for c in structure.programs}
    reduce_seconds = named(on_stage(lambda n: update[n].reduce), "T_reduce_gradients", "s")
    gather_seconds = named(on_stage(lambda n: update[n].gather), "T_gather_weights", "s")
    room_backward = on_stage(lambda n: passes[n].room[1])
    room_forward = on_stage(lambda n: passes[n].room[0])
    optimizer = optimizer_seconds(states["optimizer"], states["gradients"], states["weights"], rates.hbm_expected)
    streamed = update_crossing(states, chosen)
    streaming = named(streamed.seconds(rates.host_expected), "T_host_update", "s") if chosen.offloads else 0.0
    exposed_streaming = exposed_seconds(streaming, optimizer) if chosen.offloads else 0.0
    exchange = named(on_stage(lambda n: update[n].exchange), "T_exchange_momenta", "s")
    turned = named(on_stage(flops_of(evaluated)), "FLOPs of Newton-Schulz", "FLOP")
    orthogonal = named(turned / rates.matmuls.expected, "T_orthogonalise", "s")
    exposed_reduce = exposed_seconds(reduce_seconds, room_backward)
    exposed_gather = exposed_seconds(gather_seconds, room_forward)
    permute, permute_bound = _boundary(structure, evaluated, links)
    mirror, mirror_bound = _mirror(links, states, stages) if beside else (0.0, 0.0)
    hand_over = 2 * (stages - 1) * permute + mirror
    ends = total(
        (optimizer, exchange, orthogonal, exposed_reduce, exposed_gather, step_overhead, hand_over, exposed_streaming)
    )
    expected = schedule(
        lambda n: named(passes[n].seconds, f"T_microbatch({n})", "s"),
        named(ends, "T_end_of_step", "s"),
        pipelined,
        2 * chosen.chunks * permute,  # a stage cannot take microbatches faster than they are handed over
    )
    if not detail:
        return Step(expected, 0.0, {}, {}, 0.0, 0.0, ())
    assert memory is not None
    resources = _resources(
        evaluated, rates, chosen, schedule, update, on_stage,
        optimizer_seconds(states["optimizer"], states["gradients"], states["weights"], rates.hbm), turned / rates.peak,
        where(stages == 1, 0.0, 2 * chosen.chunks * microbatches * permute_bound + mirror_bound),
    )  # fmt: skip
    if chosen.offloads:
        there = _host_bound(evaluated, on_stage, microbatches, streamed)
        resources["host"] = named(there.seconds(rates.host), "host", "s", note="bytes over PCIe, both ways at once")
    bound = named(maximum(*resources.values()), "step_seconds.bound", "s", note="the slowest resource")
    expected = named(expected, "step_seconds.expected", "s")
    busy = microbatches * schedule(lambda n: passes[n].seconds, 0.0, _slowest)
    bubble = expected - ends - busy
    parts: tuple[Part, ...] = ()
    if with_parts:
        parts = _parts(
            evaluated, passes, policy, microbatches, kinds,
            reduce_seconds, exposed_reduce, gather_seconds, exposed_gather, optimizer, step_overhead, bubble,
            hand_over, exchange, orthogonal,
        )  # fmt: skip
        moved_late = Part("host memory: update", "host", streaming, streaming - exposed_streaming)
        parts += tuple(
            p
            for p in (*_host_part(evaluated, passes, hosts, microbatches, kinds, beside), moved_late)
            if p.seconds > 1e-12
        )
    return Step(
        expected=expected,
        bound=bound,
        resources=resources,
        memory=memory.chip,
        memory_bytes=named(total(memory.chip.values()), "memory.bytes", "B"),
        bubble=bubble,
        parts=parts,
        weight_gradients=microbatches * on_stage(lambda n: evaluated.local[n].weight_gradients),
        host=memory.host,
    )


def most(kinds: Sequence[Stage], blocks: Number, embed: Number, head: Number) -> Number:
    """A quantity of all layers, the embedding and the head on the pipeline stage where it is most."""
    each = [kind.of(blocks, embed, head) for kind in kinds]
    return maximum(*each)


def _slowest(microbatches: Number, slowest: Number, everything: Number, ends: Number) -> Number:
    return slowest


def flops_of(evaluated: Evaluated) -> Of:
    """FLOPs that orthogonalise the updates of a program's matrices, by its name."""
    values = {c.name: total(evaluated.values[c.name][i] for i in c.orthogonal) for c in evaluated.structure.programs}
    return values.__getitem__


@dataclass(frozen=True, slots=True)
class _Update:
    reduce: Number
    gather: Number
    exchange: Number  # of momenta, for what works on whole matrices
    busy: Mapping[str, Number]


def _update(compiled: Compiled, sizes: list[Number], links: Links) -> _Update:
    reduce: list[Number] = []
    gather: list[Number] = []
    exchange: list[Number] = []
    into = {"all_gather": gather, "all_to_all": exchange}
    busy: dict[str, Number] = {}
    for transfer in compiled.updates:
        into.get(transfer.kind, reduce).append(transfer_seconds(transfer, sizes, links))
        least = transfer_seconds(transfer, sizes, links, bound=True)
        busy[transfer.axis] = busy.get(transfer.axis, 0.0) + least
    return _Update(total(reduce), total(gather), total(exchange), busy)


def _boundary(structure: Structure, evaluated: Evaluated, links: Links) -> tuple[Number, Number]:
    """Seconds to hand one microbatch's residual stream to the next stage: (expected, bound)."""
    physics, achieved = links[("pipeline",)]
    name = structure.blocks[0].name
    bytes = evaluated.values[name][structure.blocks[0].boundary]
    return (
        named(collective_seconds("permute", bytes, achieved), "T_hand_over", "s"),
        collective_seconds("permute", bytes, physics),
    )


def _mirror(links: Links, states: Mapping[str, Number], stages: Number) -> tuple[Number, Number]:
    """Seconds in which the two chips that hold a stage exchange its gradients and then its weights: (expected, bound)."""
    physics, achieved = links[("pipeline",)]
    bytes = named(states["gradients"] + states["weights"], "gradients and weights of a stage", "B")
    return (
        where(stages == 1, 0.0, named(collective_seconds("permute", bytes, achieved), "T_mirror", "s")),
        where(stages == 1, 0.0, collective_seconds("permute", bytes, physics)),
    )


def _resources(
    evaluated: Evaluated,
    rates: Rates,
    chosen: Choices,
    schedule: Callable[[Of, Number, Rule], Number],
    update: Mapping[str, _Update],
    on_stage: Callable[[Of], Number],
    optimizer: Number,
    orthogonal: Number,
    hand_over: Number,
) -> dict[str, Number]:
    policy = chosen.remat
    again = f"recompute.{policy}"
    waits = 1 / chosen.chunks if chosen.schedule in ("1f1b", "gpipe") else 0.0

    def bound(microbatches: Number, slowest: Number, everything: Number, ends: Number) -> Number:
        return bound_seconds(microbatches, slowest, everything, ends, waits)

    def run(of: Of, ends: Number) -> Number:
        return schedule(of, ends, bound)

    def least(name: str) -> Number:
        f = evaluated.local[name].least
        return f["forward"] + f["backward"] + f[again]

    def bytes(name: str) -> Number:
        compiled = next(c for c in evaluated.structure.programs if c.name == name)
        values = evaluated.values[name]
        weights = total(values[i] for i in compiled.weights_at_use)
        saved = total(values[i] for i in compiled.saved[policy])
        return named(3 * weights + 2 * saved, "unavoidable HBM bytes", "B",
                     note="weights read in both passes, gradients written, saved activations written and read")  # fmt: skip

    result: dict[str, Number] = {
        "compute": named(run(least, orthogonal), "compute", "s"),
        "hbm": named(run(lambda n: bytes(n) / rates.hbm, optimizer), "hbm", "s"),
    }
    axes: list[str] = []
    for moved in evaluated.moved.values():
        axes += [axis for axis, phase in moved.busy if axis not in axes]
    for u in update.values():
        axes += [axis for axis in u.busy if axis not in axes]
    for axis in dict.fromkeys(axes):

        def busy(name: str, axis: str = axis) -> Number:
            table = evaluated.moved[name].busy
            return total(table[axis, phase] for phase in ("forward", "backward", again) if (axis, phase) in table)

        def at_end(name: str, axis: str = axis) -> Number:
            return update[name].busy.get(axis, 0.0)

        ends = on_stage(at_end)
        result[f"network {axis}"] = named(run(busy, ends), f"network {axis}", "s")
    result["network pipeline"] = named(hand_over, "network pipeline", "s")
    return result


def _host_bound(
    evaluated: Evaluated, on_stage: Callable[[Of], Number], microbatches: Number, update: Crossing
) -> Crossing:
    """Bytes that cross PCIe in a step, on the stage where they are most."""
    if not evaluated.crossings:
        return update
    there = {name: c.both for name, c in evaluated.crossings.items()}
    each = Crossing(on_stage(lambda n: there[n].into), on_stage(lambda n: there[n].out))
    return Crossing(microbatches * each.into, microbatches * each.out) + update


def _on(kind: Stage, structure: Structure) -> dict[str, Number]:
    """How often a microbatch meets each program on a stage."""
    times = {c.name: structure.counts[c.name] * kind.share for c in structure.blocks}
    return times | {structure.embed.name: kind.embed, structure.head.name: kind.head}


def _slowest_stage(structure: Structure, passes: Mapping[str, Pass], kinds: Sequence[Stage]) -> dict[str, Number]:
    every = [_on(kind, structure) for kind in kinds]
    return max(every, key=lambda times: total(n * passes[c].seconds for c, n in times.items()))


def _host_part(
    evaluated: Evaluated, passes: Mapping[str, Pass], hosts: Mapping[str, tuple[Number, ...]], microbatches: Number,
    kinds: Sequence[Stage], beside: bool,
) -> tuple[Part, ...]:  # fmt: skip
    """What microbatches move between host and chip, on the slowest stage."""
    if not hosts:
        return ()
    times = _slowest_stage(evaluated.structure, passes, kinds)
    busy = microbatches * total(n * (hosts[c][2] if beside else hosts[c][0] + hosts[c][1]) for c, n in times.items())
    exposed = microbatches * total(n * total(d.host for d in passes[c].both) for c, n in times.items())
    return (Part("host memory: microbatches", "host", busy, busy - exposed),)


def _parts(
    evaluated: Evaluated,
    passes: Mapping[str, Pass],
    policy: str,
    microbatches: Number,
    kinds: Sequence[Stage],
    reduce: Number,
    exposed_reduce: Number,
    gather: Number,
    exposed_gather: Number,
    optimizer: Number,
    overhead: Number,
    bubble: Number,
    hand_over: Number,
    exchange: Number,
    orthogonal: Number,
) -> tuple[Part, ...]:
    """Where the time of the slowest stage goes. The parts, less what is hidden, add up to the expected step."""
    again = f"recompute.{policy}"
    weight = _slowest_stage(evaluated.structure, passes, kinds)
    compute: dict[str, Number] = {}
    for n, w in weight.items():
        for key, seconds in evaluated.local[n].parts.items():
            compute[key] = compute.get(key, 0.0) + microbatches * w * seconds
        if evaluated.local[n].recompute[policy] > 0:
            compute["recompute"] = (
                compute.get("recompute", 0.0) + microbatches * w * evaluated.local[n].recompute[policy]
            )
    parts = [Part(name, "compute", seconds, 0.0) for name, seconds in compute.items()]
    titles = {"critical": "activations", "ring": "keys and values", "prefetch": "weights and gradients"}
    for kind in ("critical", "ring", "prefetch"):
        busy: dict[str, Number] = {}
        exposed: Number = 0.0
        for n, w in weight.items():
            for (axis, overlap_class, phase), seconds in evaluated.moved[n].by_axis.items():
                if overlap_class == kind and phase in ("forward", "backward", again):
                    busy[axis] = busy.get(axis, 0.0) + microbatches * w * seconds
            exposed = exposed + microbatches * w * total(getattr(d, kind) for d in passes[n].both)
        whole = total(busy.values())
        for axis, seconds in busy.items():
            # exposed time is shared out over the axes in proportion to how long each is busy
            hidden = seconds - exposed * (seconds / whole) if whole > 0 else 0.0
            parts.append(Part(f"{axis}: {titles[kind]}", "network", seconds, hidden))
    parts += [
        Part("gradient reduction", "network", reduce, reduce - exposed_reduce),
        Part("updated weights", "network", gather, gather - exposed_gather),
        Part("hand-over between stages", "network", hand_over, 0.0),
        Part("optimizer", "hbm", optimizer, 0.0),
        Part("exchange of momenta", "network", exchange, 0.0),
        Part("orthogonalisation", "compute", orthogonal, 0.0),
        Part("pipeline bubble", "bubble", bubble, 0.0),
        Part("step overhead", "host", overhead, 0.0),
    ]
    # what is left of a difference of equal numbers is not a part
    return tuple(p for p in parts if p.seconds > 1e-12)
