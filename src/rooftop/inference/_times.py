"""Seconds and bytes of one pass of a model over a batch: prefill, a generate step, the verification of a draft.

One function for one configuration (floats), for a search (arrays) and for an explanation (traced quantities).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rooftop.costing import Links, Rates, direction, transfer_seconds, work_seconds
from rooftop.formula import Number, Traced, maximum, minimum, named, total
from rooftop.inference._structure import Compiled, Structure


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of work in a pass: how long it takes in all, and how much of that is hidden."""

    name: str
    kind: str  # compute, network, host
    seconds: Number
    overlapped: Number = 0.0


@dataclass(frozen=True, slots=True)
class Pass:
    """Seconds of one pass. `resources` are the lower bounds whose largest is the bound."""

    expected: Number
    bound: Number
    resources: Mapping[str, Number]
    parts: tuple[Part, ...]


def touched(experts: int, active: float, tokens: Number) -> Number:
    """Experts that some of `tokens` is routed to, each to `active` of them at random: E·(1 - (1 - k/E)^n)."""
    share = min(1.0, active / experts)
    return experts * (1.0 - (1.0 - share) ** tokens)


def busiest(met: Number, experts: int, groups: Number) -> Number:
    """Experts that count where `groups` of chips share them out and all wait for the group that meets most of them.

    The mean of a group is m = met/groups; the largest of so many Poisson numbers is about m + sqrt(2·m·ln groups); no group
    has more than its share of all.
    """
    import numpy as np

    mean = met / groups
    return minimum(groups * (mean + (2 * mean * np.log(groups)) ** 0.5), experts)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Distinct sizes of every program of a structure for a batch on a mesh; names where they are traced."""

    structure: Structure
    values: Mapping[str, list[Number]]

    @staticmethod
    def of(structure: Structure, sequences: Number, experts: Number, mesh: Mapping[str, Number]) -> Evaluated:
        """sequences: of the whole batch; experts: how many count; mesh: ways by inner mesh axis."""
        axes = {"B": sequences, "E": experts}
        values = {}
        for c in structure.programs:
            found = c.evaluate(axes, mesh)
            values[c.name] = [
                named(v, str(s)) if isinstance(v, Traced) else v for v, s in zip(found, c.sizes, strict=True)
            ]
        return Evaluated(structure, values)

    def sum(self, compiled: Compiled, indices: tuple[int, ...]) -> Number:
        """The sum of some sizes of a program."""
        values = self.values[compiled.name]
        return total(values[i] for i in indices)


def pass_of(
    evaluated: Evaluated,
    counts: Mapping[str, int],
    rates: Rates,
    links: Links,
    overlap: Mapping[str, Number],
    overhead: Number,
    *,
    least: Evaluated | None = None,
    detail: bool = True,
) -> Pass:
    """One pass through the programs that `counts` names, each as often as it says. Without detail only times.

    least: the sizes that the bound is of, where those that are expected are larger.
    """
    least = least or evaluated
    seconds: list[Number] = []
    flops: list[Number] = []
    bytes: list[Number] = []
    busy: dict[str, Number] = {}
    compute: dict[str, Number] = {}
    network: dict[tuple[str, str], list[Number]] = {}
    for c in evaluated.structure.programs:
        n = counts.get(c.name, 0)
        if not n:
            continue
        sizes, fewest = evaluated.values[c.name], least.values[c.name]
        each = work_seconds(c, sizes, rates)
        by_class: dict[str, list[Number]] = {"critical": [], "ring": [], "prefetch": []}
        for t in c.transfers:
            by_class[t.overlap].append(transfer_seconds(t, sizes, links))
            busy[t.axis] = busy.get(t.axis, 0.0) + n * transfer_seconds(t, fewest, links, bound=True)
        laid = direction(
            named(total(each), f"T_work({c.name})", "s"),
            total(s for s, w in zip(each, c.works, strict=True) if w.fused),
            total(by_class["critical"]), total(by_class["ring"]), total(by_class["prefetch"]), overlap,
        )  # fmt: skip
        seconds.append(n * named(laid.seconds, f"T({c.name})", "s"))
        flops += [n * total(fewest[i] for i in w.flops) / rates.matmul(w.weight).peak for w in c.works if w.flops]
        bytes.append(n * least.sum(c, (*(i for part in c.read.values() for i in part), *c.caches)))
        if detail:
            for s, w in zip(each, c.works, strict=True):
                compute[w.part] = compute.get(w.part, 0.0) + n * s
            for t, s in zip(c.transfers, (transfer_seconds(t, sizes, links) for t in c.transfers), strict=True):
                exposed, whole = getattr(laid, t.overlap), total(by_class[t.overlap])
                left = s * (exposed / whole) if float(whole) > 0 else 0.0
                both = network.setdefault((t.axis, t.overlap), [0.0, 0.0])
                both[0], both[1] = both[0] + n * s, both[1] + n * (s - left)
    resources = {
        "compute": named(total(flops), "compute", "s", note="FLOPs of all matmuls over their peaks"),
        "hbm": named(total(bytes) / rates.hbm, "hbm", "s", note="weights and caches read once"),
    } | {f"network {axis}": named(s, f"network {axis}", "s") for axis, s in busy.items()}
    parts = [Part(name, "compute", s) for name, s in compute.items()]
    titles = {"critical": "activations", "ring": "keys and values", "prefetch": "weights"}
    parts += [Part(f"{a}: {titles[k]}", "network", s, hidden) for (a, k), (s, hidden) in network.items() if detail]
    parts.append(Part("scheduling", "host", overhead))
    return Pass(
        expected=named(total((*seconds, overhead)), "T_pass", "s"),
        bound=named(maximum(*resources.values()), "T_pass.bound", "s", note="the slowest resource"),
        resources=resources,
        parts=tuple(p for p in parts if detail and float(p.seconds) > 1e-12),
    )


def weight_bytes(evaluated: Evaluated, programs: Mapping[str, int]) -> Number:
    """Bytes of the weights that one chip stores; each program's copies counted once."""
    return total(
        programs[c.name] * evaluated.sum(c, c.weights) for c in evaluated.structure.programs if programs.get(c.name)
    )


def cache_bytes(evaluated: Evaluated, programs: Mapping[str, int]) -> Number:
    """Bytes of all caches on one chip."""
    return total(
        programs[c.name] * evaluated.sum(c, c.kept) for c in evaluated.structure.programs if programs.get(c.name)
    )


def working_bytes(evaluated: Evaluated, phase: str) -> Number:
    """Bytes of the activations that are alive together at the worst moment, and of two layers' gathered weights."""
    peaks = [evaluated.sum(c, moment) for c in evaluated.structure.programs for moment in c.working]
    gathered = [evaluated.sum(c, c.used) for c in evaluated.structure.programs]
    if any(isinstance(p, Traced) for p in peaks):  # a person wants to see the worst moment, not all
        peaks, gathered = [max(peaks, key=float)], [max(gathered, key=float)]
    return named(
        maximum(*peaks, 0.0) + 2 * maximum(*gathered, 0.0), f"activations({phase})", "B", note="at the worst moment"
    )
