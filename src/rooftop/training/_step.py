"""A whole training step: microbatches through pipeline stages, then the update. One function for one plan or a million."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rooftop.costing import Links, Rates, exposed_seconds, transfer_seconds
from rooftop.formula import Number, ceil, formula, maximum, named, total, where
from rooftop.roofline import collective_seconds
from rooftop.training._estimate import Local, Moved, Pass, bound_seconds, pass_seconds, schedule_seconds
from rooftop.training._memory import memory_parts
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


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of work in a step on the slowest stage: how long it takes in all, and how much of that is hidden."""

    name: str
    kind: str  # compute, hbm, network, bubble, host
    seconds: Number
    overlapped: Number


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Local work and transfers of every program of a model under one set of layouts."""

    structure: Structure
    values: Mapping[str, list[Number]]
    local: Mapping[str, Local]
    moved: Mapping[str, Moved]


@dataclass(frozen=True, slots=True)
class Stages:
    """How layers lie on pipeline stages: every stage has `full` layers, the last one what is left."""

    layers: Number
    stages: Number
    full: Number
    last: Number


def stages_of(layers: int, stages: Number) -> Stages:
    """ceil(layers / stages) layers on every stage but the last."""
    full = ceil(layers / stages)
    return Stages(layers, stages, full, layers - full * (stages - 1))


def memory_of(
    structure: Structure, values: Mapping[str, list[Number]], policy: str, microbatches: Number, stages: Number
) -> dict[str, Number]:
    """Bytes per chip by part on the fullest pipeline stage."""
    split = stages_of(structure.layers, stages)
    share = _share(split.full, split.layers)
    on_stage = {c.name: structure.counts[c.name] * share for c in structure.blocks}
    return memory_parts(structure, values, policy, on_stage, microbatches, stages)


def states_of(structure: Structure, values: Mapping[str, list[Number]], stages: Number) -> dict[str, Number]:
    """Bytes per chip that the update touches, on the stage where they are most; no schedule or remat policy changes them."""
    split = stages_of(structure.layers, stages)
    share = _share(split.full, split.layers)

    def of(compiled: Compiled, part: str) -> Number:
        return total(values[compiled.name][i] for i in getattr(compiled, part))

    return {
        part: named(
            total(structure.counts[c.name] * share * of(c, part) for c in structure.blocks)
            + where(
                stages == 1,
                of(structure.embed, part) + of(structure.head, part),
                maximum(of(structure.embed, part), of(structure.head, part)),
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


@formula("layers_share", "", note="a stage's part of all layers")
def _share(layers: Number, of: Number) -> Number:
    return layers / of


def step(
    evaluated: Evaluated,
    rates: Rates,
    links: Links,
    overlap: Mapping[str, Number],
    step_overhead: Number,
    policy: str,
    microbatches: Number,
    stages: Number,
    memory: Mapping[str, Number],
    states: Mapping[str, Number],
    *,
    detail: bool = True,
) -> Step:
    """The step of a plan. microbatches and stages may be arrays; so may every size behind `evaluated`.

    memory: bytes per chip by part, from `memory_of`; states: those of the update, from `states_of`. Without detail only the expected seconds are computed.
    """
    structure = evaluated.structure
    split = stages_of(structure.layers, stages)
    single = stages == 1
    share = _share(split.full, split.layers)
    last_share = _share(split.last, split.layers)
    passes = {
        name: pass_seconds(evaluated.local[name], evaluated.moved[name], policy, overlap) for name in evaluated.local
    }

    def body(of: Of) -> Number:
        return total(structure.counts[c.name] * of(c.name) for c in structure.blocks)

    embed, head = structure.embed.name, structure.head.name

    def schedule(of: Of, ends: Number, rule: Rule, at_least: Number = 0.0) -> Number:
        layers = named(body(of), "all layers", "s")
        first = layers * share + of(embed)
        last = layers * last_share + of(head)
        everything = layers + of(embed) + of(head)
        slowest = where(single, everything, maximum(first, last, at_least))
        slowest = named(slowest, "T_slowest_stage", "s")
        return rule(microbatches, slowest, named(everything, "T_all_stages", "s"), ends)

    # the update: what the end of the step cannot hide
    def on_stage(of: Of) -> Number:
        return body(of) * share + where(single, of(embed) + of(head), maximum(of(embed), of(head)))

    update = {c.name: _update(c, evaluated.values[c.name], links) for c in structure.programs}
    reduce_seconds = named(on_stage(lambda n: update[n].reduce), "T_reduce_gradients", "s")
    gather_seconds = named(on_stage(lambda n: update[n].gather), "T_gather_weights", "s")
    room_backward = on_stage(lambda n: passes[n].backward.room)
    room_forward = on_stage(lambda n: passes[n].forward.room)
    optimizer = optimizer_seconds(states["optimizer"], states["gradients"], states["weights"], rates.hbm_expected)
    exposed_reduce = exposed_seconds(reduce_seconds, room_backward)
    exposed_gather = exposed_seconds(gather_seconds, room_forward)
    permute, permute_bound = _boundary(structure, evaluated, links)
    ends = total((optimizer, exposed_reduce, exposed_gather, step_overhead, 2 * (stages - 1) * permute))
    expected = schedule(
        lambda n: named(passes[n].forward.seconds + passes[n].backward.seconds, f"T_microbatch({n})", "s"),
        named(ends, "T_end_of_step", "s"),
        schedule_seconds,
        2 * permute,  # a stage cannot take microbatches faster than they are handed over
    )
    if not detail:
        return Step(expected, 0.0, {}, memory, 0.0, 0.0, ())
    resources = _resources(
        evaluated, rates, policy, schedule, update, on_stage,
        optimizer_seconds(states["optimizer"], states["gradients"], states["weights"], rates.hbm),
        microbatches, stages, permute_bound,
    )  # fmt: skip
    bound = named(maximum(*resources.values()), "step_seconds.bound", "s", note="the slowest resource")
    expected = named(expected, "step_seconds.expected", "s")
    busy = microbatches * schedule(lambda n: passes[n].forward.seconds + passes[n].backward.seconds, 0.0, _slowest)
    bubble = expected - ends - busy
    parts = _parts(
        evaluated, passes, policy, microbatches, split,
        reduce_seconds, exposed_reduce, gather_seconds, exposed_gather, optimizer, step_overhead, bubble,
        2 * (stages - 1) * permute,
    )  # fmt: skip
    return Step(
        expected=expected,
        bound=bound,
        resources=resources,
        memory=memory,
        memory_bytes=named(total(memory.values()), "memory.bytes", "B"),
        bubble=bubble,
        parts=parts,
    )


def _slowest(microbatches: Number, slowest: Number, everything: Number, ends: Number) -> Number:
    return slowest


@dataclass(frozen=True, slots=True)
class _Update:
    reduce: Number
    gather: Number
    busy: Mapping[str, Number]


def _update(compiled: Compiled, sizes: list[Number], links: Links) -> _Update:
    reduce: list[Number] = []
    gather: list[Number] = []
    busy: dict[str, Number] = {}
    for transfer in compiled.updates:
        (gather if transfer.kind == "all_gather" else reduce).append(transfer_seconds(transfer, sizes, links))
        least = transfer_seconds(transfer, sizes, links, bound=True)
        busy[transfer.axis] = busy.get(transfer.axis, 0.0) + least
    return _Update(total(reduce), total(gather), busy)


def _boundary(structure: Structure, evaluated: Evaluated, links: Links) -> tuple[Number, Number]:
    """Seconds to hand one microbatch's residual stream to the next stage: (expected, bound)."""
    physics, achieved = links[("pipeline",)]
    name = structure.blocks[0].name
    bytes = evaluated.values[name][structure.blocks[0].boundary]
    return (
        named(collective_seconds("permute", bytes, achieved), "T_hand_over", "s"),
        collective_seconds("permute", bytes, physics),
    )


def _resources(
    evaluated: Evaluated,
    rates: Rates,
    policy: str,
    schedule: Callable[[Of, Number, Rule], Number],
    update: Mapping[str, _Update],
    on_stage: Callable[[Of], Number],
    optimizer: Number,
    microbatches: Number,
    stages: Number,
    permute: Number,
) -> dict[str, Number]:
    again = f"recompute.{policy}"

    def run(of: Of, ends: Number) -> Number:
        return schedule(of, ends, bound_seconds)

    def flops(name: str) -> Number:
        f = evaluated.local[name].flops
        return f["forward"] + f["backward"] + f[again]

    def bytes(name: str) -> Number:
        compiled = next(c for c in evaluated.structure.programs if c.name == name)
        values = evaluated.values[name]
        weights = total(values[i] for i in compiled.weights_at_use)
        saved = total(values[i] for i in compiled.saved[policy])
        return named(3 * weights + 2 * saved, "unavoidable HBM bytes", "B",
                     note="weights read in both passes, gradients written, saved activations written and read")  # fmt: skip

    result: dict[str, Number] = {
        "compute": named(run(lambda n: flops(n) / rates.peak, 0.0), "compute", "s"),
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
    hand_over = where(stages == 1, 0.0, 2 * microbatches * permute)
    result["network pipeline"] = named(hand_over, "network pipeline", "s")
    return result


def _parts(
    evaluated: Evaluated,
    passes: Mapping[str, Pass],
    policy: str,
    microbatches: Number,
    split: Stages,
    reduce: Number,
    exposed_reduce: Number,
    gather: Number,
    exposed_gather: Number,
    optimizer: Number,
    overhead: Number,
    bubble: Number,
    hand_over: Number,
) -> tuple[Part, ...]:
    """Where the time of the slowest stage goes. The parts, less what is hidden, add up to the expected step."""
    structure = evaluated.structure
    again = f"recompute.{policy}"
    embed, head = structure.embed.name, structure.head.name

    def stage(layers: Number, ends: tuple[str, ...]) -> tuple[dict[str, Number], Number]:
        times = {c.name: structure.counts[c.name] * layers / split.layers for c in structure.blocks}
        times |= dict.fromkeys(ends, 1.0)
        return times, total(n * (passes[c].forward.seconds + passes[c].backward.seconds) for c, n in times.items())

    if split.stages == 1:
        weight, _ = stage(split.layers, (embed, head))
    else:
        weight, _ = max(stage(split.full, (embed,)), stage(split.last, (head,)), key=lambda pair: pair[1])
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
            exposed = exposed + microbatches * w * total(
                getattr(d, kind) for d in (passes[n].forward, passes[n].backward)
            )
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
        Part("pipeline bubble", "bubble", bubble, 0.0),
        Part("step overhead", "host", overhead, 0.0),
    ]
    # what is left of a difference of equal numbers is not a part
    return tuple(p for p in parts if p.seconds > 1e-12)
