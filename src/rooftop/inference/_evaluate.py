"""A model on a mesh under a layout: prefill, generate, memory. Plain numbers, arrays of them, or traced quantities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rooftop.costing import PLACEMENT_ORDER, Kernel, Links, Matmuls, Rates, inner_mesh, kernels, links_of
from rooftop.formula import Number, ceil, formula, given, maximum, named, total
from rooftop.inference._layouts import SERVING_AXES, Layout
from rooftop.inference._question import Problem
from rooftop.inference._speculate import tokens_per_step
from rooftop.inference._structure import Structure, structure
from rooftop.inference._times import (
    Evaluated,
    Part,
    Pass,
    busiest,
    cache_bytes,
    pass_of,
    touched,
    weight_bytes,
    working_bytes,
)
from rooftop.roofline import Placement
from rooftop.transformer import Architecture


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to serve: a mesh with its place on the network, and a layout."""

    mesh: Mapping[str, Number]
    factors: tuple[Mapping[str, Number], ...]
    layout: Layout


@dataclass(frozen=True, slots=True)
class Generate:
    """A generate step of a batch. tokens: what it yields for each sequence. memory: bytes of one chip by part.

    tpot: seconds from one token of a sequence to the next, (bound, expected).
    """

    step: Pass
    tokens: Number
    tpot: tuple[Number, Number]
    memory: Mapping[str, Number]
    memory_bytes: Number
    host_bytes: Number  # of one chip, in the memory of its host


@dataclass(frozen=True, slots=True)
class Prefill:
    """Prompts read, one for each group of chips that sees different sequences (`prompts` in all)."""

    expected: Number
    bound: Number
    resources: Mapping[str, Number]
    parts: tuple[Part, ...]
    prompts: Number


class Scene:
    """A problem on one configuration (or many at once): links and rates evaluated once, passes as they are asked for."""

    def __init__(self, problem: Problem, at: Configuration, *, traced: bool = False) -> None:
        self.problem, self.layout, self.traced = problem, at.layout, traced
        mesh: dict[str, Number] = {a: at.mesh.get(a, 1) for a in (*SERVING_AXES, "pipeline")}
        self.rates, self.prompt_rates = problem.rates, problem.prompt_rates
        calibration = problem.calibration
        self.overlap: Mapping[str, Number] = calibration.overlap
        self.overhead: Number = calibration.serving["step"]
        dimensions = problem.dimensions
        self.host: Number = problem.slice.chip.pcie_bandwidth
        if traced:
            mesh = {a: given(w, a) for a, w in mesh.items()}
            self.rates, self.prompt_rates = _traced(problem, self.rates), _traced(problem, self.prompt_rates)
            told = f"calibration: {calibration.name}"
            self.overlap = {
                kind: given(share, f"overlap_{kind}", "", told) for kind, share in calibration.overlap.items()
            }
            self.overhead = given(self.overhead, "step overhead", "s", told)
            self.host = given(self.host, "W_pcie", "B/s", f"data sheet of {problem.slice.chip.name}")
            dimensions = tuple(
                replace(
                    d,
                    bandwidth=given(d.bandwidth, f"W_{d.network}", "B/s", "data sheet"),  # type: ignore[arg-type]
                    latency=given(d.latency, f"latency_{d.network}", "s", "data sheet"),  # type: ignore[arg-type]
                )
                for d in dimensions
            )
        self.mesh = mesh
        self.placement = Placement(dimensions, at.factors, PLACEMENT_ORDER)

    def structure(self, model: Architecture, phase: str, tokens: int, context: int) -> Structure:
        """The compiled programs of a phase."""
        return structure(model, phase, tokens, context, self.layout, self.problem.precision, fold=not self.traced)

    def environment(self, s: Structure) -> tuple[dict[str, Number], Links]:
        """Ways by inner mesh axis for a model, and what its groups of chips can do."""
        inner = inner_mesh(self.mesh, s.kv_heads)
        return inner, links_of(self.placement, inner, s.groups, self.problem.calibration)

    def ways(self, axes: tuple[str, ...]) -> Number:
        """Product of some mesh axes."""
        result: Number = self.mesh[axes[0]]
        for axis in axes[1:]:
            result = result * self.mesh[axis]
        return result

    def experts(self, s: Structure, sequences: Number) -> tuple[Number, Number]:
        """Experts that some token of one replica of the model meets: on average, and as the busiest chips have it."""
        if not s.experts:
            return 0.0, 0.0
        replicas = self.ways(("data", "fsdp") if self.layout.weights == "gathered" else ("data",))
        groups = self.ways(("expert", "tensor") if self.layout.experts == "whole" else ("expert",))
        tokens = sequences * s.tokens / replicas
        if not self.traced:
            met = touched(s.experts, s.active, tokens)
            return met, busiest(met, s.experts, groups)
        met = touched(s.experts, s.active, float(tokens))
        most = float(busiest(met, s.experts, float(groups)))
        of = f"of {s.experts}, those that tokens choose at random"
        return given(met, "E", "experts", of), given(
            most, "E_busiest", "experts", f"{of}, as the busiest chips have it"
        )

    def run(
        self, s: Structure, sequences: Number, batch: Number, counts: Mapping[str, int] | None = None, *, detail: bool,
        overhead: Number | None = None, rates: Rates | None = None,
    ) -> Pass:  # fmt: skip
        """One pass over so many sequences, `batch` of which are no padding."""
        inner, links = self.environment(s)
        met, most = self.experts(s, batch)
        evaluated = Evaluated.of(s, sequences, most, inner)
        least = Evaluated.of(s, sequences, met, inner) if s.experts else evaluated
        host = self.overhead if overhead is None else overhead
        return pass_of(
            evaluated, counts or s.counts, rates or self.rates, links, self.overlap, host, least=least, detail=detail
        )  # fmt: skip

    def whole(self, batch: Number, ways: tuple[str, ...]) -> Number:
        """The batch rounded up to whole sequences for each of its parts: a part that is idle takes as long as others."""
        n = self.ways(ways)
        if not self.traced:
            return ceil(batch / n) * n
        return named(ceil(batch / n) * n, "B", "sequences", note="the batch, rounded up to whole sequences a group")

    def generate(self, batch: Number, context: int | None = None, *, detail: bool = True) -> Generate:
        """A generate step of `batch` sequences at a position; with a draft, the proposals and their verification."""
        p, q = self.problem, self.problem.question
        k = q.draft_tokens
        s = self.structure(p.model, "generate", k + 1, p.context if context is None else context)
        sequences = self.whole(batch, self.layout.spread)
        verify = self.run(s, sequences, batch, detail=detail)
        acceptance = given(q.acceptance, "a", "", "as given") if self.traced else q.acceptance
        tokens = tokens_per_step(acceptance, k)
        step = verify
        if k:
            step = _joined(verify, self._draft(sequences, batch, context, detail=detail), k)
        if q.offload:
            step = self._with_host(step, s, sequences)
        memory = self.memory(sequences)
        tpot = (
            named(step.bound / tokens, "tpot.bound", "s"),
            named(step.expected / tokens, "tpot", "s", note="seconds of a step over the tokens that it yields"),
        )
        host = named(memory.pop("host"), "host memory", "B")
        return Generate(step, tokens, tpot, memory, named(total(memory.values()), "memory", "B"), host)

    def kernels(self, batch: int) -> tuple[Kernel, ...]:
        """Every kernel of a chip in a generate step of `batch` sequences; those of a draft model are not among them."""
        p = self.problem
        s = self.structure(p.model, "generate", p.question.draft_tokens + 1, p.context)
        sequences = self.whole(batch, self.layout.spread)
        evaluated = Evaluated.of(s, sequences, self.experts(s, batch)[1], self.environment(s)[0])
        return tuple(
            kernel
            for c in s.programs
            if s.counts.get(c.name)
            for kernel in kernels(c, evaluated.values[c.name], self.rates, s.counts[c.name])
        )

    def _draft(self, sequences: Number, batch: Number, context: int | None, *, detail: bool) -> Pass:
        p = self.problem
        assert p.draft is not None
        s = self.structure(p.draft, "generate", 1, p.context if context is None else context)
        counts = s.draft if p.question.draft == "mtp" else s.counts
        return self.run(s, sequences, batch, counts, detail=detail, overhead=0.0)  # scheduled with the verification

    def _with_host(self, step: Pass, s: Structure, sequences: Number) -> Pass:
        """The offloaded part of the caches crosses PCIe while the step runs."""
        inner, _ = self.environment(s)
        held = cache_bytes(Evaluated.of(s, sequences, s.experts, inner), s.counts)
        seconds = named(
            self.problem.question.offload * held / self.host, "host", "s", note="offloaded caches over PCIe"
        )
        return replace(
            step,
            expected=named(maximum(step.expected, seconds), "T_step", "s"),
            bound=maximum(step.bound, seconds),
            resources={**step.resources, "host": seconds},
        )

    def memory(self, sequences: Number) -> dict[str, Number]:
        """Bytes of one chip by part when every sequence of the batch is at its last position; "host" is not in its HBM."""
        p, q = self.problem, self.problem.question
        s = self.structure(p.model, "generate", q.draft_tokens + 1, p.positions)
        inner, _ = self.environment(s)
        evaluated = Evaluated.of(s, sequences, s.experts, inner)
        mtp = q.draft == "mtp"
        counts = {**s.counts, **({n: k for n, k in s.draft.items() if n not in s.counts} if mtp else {})}
        weights, caches = weight_bytes(evaluated, counts), cache_bytes(evaluated, counts)
        if p.draft is not None and not mtp:
            d = self.structure(p.draft, "generate", 1, p.positions)
            small = Evaluated.of(d, sequences, d.experts, self.environment(d)[0])
            weights, caches = weights + weight_bytes(small, d.counts), caches + cache_bytes(small, d.counts)
        chunk = q.chunk or p.fresh
        f = self.structure(p.model, "prefill", min(chunk, p.fresh), 0)
        reading = Evaluated.of(f, self.ways(self.layout.groups), f.experts, self.environment(f)[0])
        return {
            "weights": named(weights, "weights", "B"),
            "kv cache": named(caches * (1.0 - q.offload), "kv cache", "B"),
            "working set": named(
                maximum(working_bytes(evaluated, "generate"), working_bytes(reading, "prefill")), "working set", "B"
            ),
            "host": caches * q.offload,
        }

    def read(self, tokens: int, cached: int = 0, prompts: Number | None = None, *, detail: bool = True) -> Pass:
        """One pass over `tokens` of each of so many prompts (one a group) after `cached` ones: a prompt, or a chunk of it."""
        sequences = self.ways(self.layout.groups) if prompts is None else self.whole(prompts, self.layout.groups)
        s = self.structure(self.problem.model, "prefill", tokens, cached)
        return self.run(s, sequences, sequences if prompts is None else prompts, detail=detail, rates=self.prompt_rates)

    def prefill(self, *, detail: bool = True) -> Prefill:
        """One prompt in each group of chips: from the first token that is not cached to the first that is sampled."""
        p, q = self.problem, self.problem.question
        prompts = self.ways(self.layout.groups)
        chunk = min(q.chunk, p.fresh) if q.chunk else p.fresh
        chunks = -(-p.fresh // chunk)
        first = self.read(chunk, p.cached, detail=detail)
        if chunks == 1:
            return Prefill(first.expected, first.bound, first.resources, first.parts, prompts)
        # later chunks see more of the prompt: their time grows evenly, so the mean is that of the first and the last
        last = self.read(chunk, p.cached + p.fresh - chunk, detail=detail)
        count = p.fresh / chunk
        resources = {n: count * (s + last.resources.get(n, s)) / 2 for n, s in first.resources.items()}
        parts = tuple(
            replace(
                a, seconds=count * (a.seconds + b.seconds) / 2, overlapped=count * (a.overlapped + b.overlapped) / 2
            )
            for a, b in zip(first.parts, last.parts, strict=False)
        )
        return Prefill(
            named(chunks * first.expected / 2 + chunks * last.expected / 2, "T_prefill", "s", note=f"{chunks} chunks"),
            named(maximum(*resources.values()), "T_prefill.bound", "s"),
            resources, parts, prompts,
        )  # fmt: skip


def _joined(verify: Pass, draft: Pass, times: int) -> Pass:
    """A draft `times` over, then the verification."""
    resources = {
        n: verify.resources.get(n, 0.0) + times * draft.resources.get(n, 0.0)
        for n in dict.fromkeys((*verify.resources, *draft.resources))
    }
    spent = total((*(times * (p.seconds - p.overlapped) for p in draft.parts), 0.0))
    parts = (*verify.parts, *((Part("draft", "compute", spent),) if draft.parts else ()))
    return Pass(
        named(verify.expected + times * draft.expected, "T_step", "s", note=f"{times} drafted tokens, then their verification"),
        named(maximum(*resources.values()), "T_step.bound", "s"), resources, parts,
    )  # fmt: skip


@formula("tokens_per_second", "tokens/s")
def throughput(batch: Number, tokens: Number, seconds: Number) -> Number:
    """Tokens generated in a second by a batch whose step takes `seconds` and yields `tokens` for each sequence."""
    return batch * tokens / seconds


@formula("usd_per_million_tokens", "USD", note="chips x price of an hour over tokens of an hour, times a million")
def usd_per_million(chips: Number, usd_per_hour: Number, tokens_per_second: Number) -> Number:
    """USD for a million tokens at so many tokens a second."""
    return chips * usd_per_hour / 3600 / tokens_per_second * 1e6


def _traced(problem: Problem, rates: Rates) -> Rates:
    chip, calibration = problem.slice.chip, problem.calibration
    sheet, told = f"data sheet of {chip.name}", f"calibration: {calibration.name} ({calibration.provenance})"
    hbm = given(rates.hbm, "W_hbm", "B/s", sheet)

    def traced(of: Matmuls, weights: str, what: str) -> Matmuls:
        top = given(of.peak, f"C{weights}", "FLOP/s", f"{sheet}, {what}")
        efficiency = given(of.expected / of.peak, f"e_matmul{weights}", "", told)
        overhead = given(of.overhead, f"overhead_matmul{weights}", "s", told)
        return Matmuls(top, named(top * efficiency, f"C{weights}_achieved", "FLOP/s"), overhead)

    matmuls = traced(rates.matmuls, "", "dense bf16")
    return replace(
        rates,
        peak=matmuls.peak,
        hbm=hbm,
        matmuls=matmuls,
        attention_expected=named(
            matmuls.peak * given(calibration.attention, "e_attention", "", told), "C_attention", "FLOP/s"
        ),
        unhidden=given(rates.unhidden, "unhidden", "", told),
        hbm_expected=named(hbm * given(calibration.hbm, "e_hbm", "", told), "W_hbm_achieved", "B/s"),
        op_overhead=given(rates.op_overhead, "overhead", "s", told),
        by_weight={w: traced(m, f"_{w}", f"for weights in {w}") for w, m in rates.by_weight.items()},
    )
