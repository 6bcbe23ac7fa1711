"""What docs/studies.md says in words follows from numbers that are computed: each sentence here is on the page, and holds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

import rooftop as rt
from rooftop.codesign import Alternative, Budget, Comparison, Scenario, changed, compare, design, works
from rooftop.codesign._answers import answer
from rooftop.hardware import Slice, Switch, Torus, chip, slice_of
from rooftop.roofline import collective_time
from rooftop.training import network_intensity
from rooftop.transformer import architecture, kv_cache_bytes

PAGE = " ".join((Path(__file__).parent.parent / "docs/studies.md").read_text(encoding="utf-8").split())
CLAIMS: list[tuple[str, Callable[[], None]]] = []


def says(sentence: str) -> Callable[[Callable[[], None]], None]:
    """Register what must hold for a sentence of the page."""

    def add(holds: Callable[[], None]) -> None:
        CLAIMS.append((sentence, holds))

    return add


# How much ICI do we need?

TRAINED = Scenario("plan", architecture("llama-3-70b"), slice_of("v5p:8x8x16"))


@functools.cache
def speed(batch: float, links: float) -> float:
    """Tokens a second of a chip at a batch, with links of so many times the rate."""
    there = changed(TRAINED, {"batch": batch, "network.ici.bandwidth": 9e10 * links})
    return float(answer(there)["tokens_per_second_per_chip"])


@says(
    "At 1M tokens a step the links are just enough: twice as fast ones gain less than 2 %, half as fast ones cost more than 15 %."
)
def _() -> None:
    assert speed(1e6, 2) < 1.02 * speed(1e6, 1)
    assert speed(1e6, 0.5) < 0.85 * speed(1e6, 1)


@says("With twice the tokens links of half the rate are enough, with four times the tokens links of a quarter.")
def _() -> None:
    assert speed(2e6, 0.5) > 0.97 * speed(2e6, 2)
    assert speed(4e6, 0.25) > 0.97 * speed(4e6, 2)
    assert speed(2e6, 0.25) < 0.85 * speed(2e6, 2)
    assert speed(4e6, 0.125) < 0.85 * speed(4e6, 2)


@says("weights that are gathered over all three dimensions hide from 850 tokens a chip on")
def _() -> None:
    where = slice_of("v5p:8x8x16")
    (torus,) = where.levels
    assert isinstance(torus, Torus)
    assert network_intensity(where.chip.flops["bf16"], 2 * 3 * torus.link_bandwidth) == pytest.approx(850)
    assert 1e6 / where.chips > 850 > 0.5e6 / where.chips


SERVED_ON_TORUS = Scenario(
    "serve", architecture("llama-3-70b"), slice_of("v5p:4x4x4"), {"weights": "int8", "tpot": 20e-3}
)


@functools.cache
def served(links: float) -> float:
    return float(answer(changed(SERVED_ON_TORUS, {"network.ici.bandwidth": 9e10 * links}))["tokens_per_second"])


@says("Within 20 ms a token half the rate costs about a tenth of the throughput, a quarter of it more than a third, and twice as much gains"
      " less than a tenth.")  # fmt: skip
def _() -> None:
    assert 0.83 < served(0.5) / served(1) < 0.95
    assert served(0.25) < 0.67 * served(1)
    assert 1 < served(2) / served(1) < 1.1


# v5e, v5p or H100?

V5E, V5P, H100 = "on=v5e:4x8,weights=int8", "on=v5p:2x2x2,weights=int8", "weights=fp8,activations=fp8"


@functools.cache
def chosen(tpot: float) -> Comparison:
    base = Scenario("serve", architecture("llama-3-70b"), slice_of("h100:8"), {"tpot": tpot})
    return compare(base, [V5E, V5P, H100])


def row(found: Comparison, name: str) -> Alternative:
    return next(a for a in found.alternatives if a.name == name)


def usd(found: Comparison, name: str) -> float:
    return float(row(found, name).row["usd_per_million_tokens"])


@says("At 30 ms a token an H100 generates most tokens, and one of them more than five chips of v5e.")
def _() -> None:
    a_chip = {name: row(chosen(0.03), name).row["tokens_per_second_per_chip"] for name in (V5E, V5P, H100)}
    assert max(a_chip, key=lambda n: a_chip[n]) == H100
    assert a_chip[H100] > 5 * a_chip[V5E]


@says("Yet at these prices tokens of v5p cost least, those of v5e less than a third more, those of H100 twice as much.")
def _() -> None:
    least = usd(chosen(0.03), V5P)
    assert 1 < usd(chosen(0.03), V5E) / least < 1.33
    assert 1.8 < usd(chosen(0.03), H100) / least < 2.4


@says("At less than 5 USD an hour it would be the H100.")
def _() -> None:
    price = slice_of("h100").chip.price
    assert price is not None
    worth = price.usd_per_hour * usd(chosen(0.03), V5P) / usd(chosen(0.03), H100)
    assert 4.5 < worth < 5.6


@says("At 15 ms v5p is the cheapest by far, since v5e has to leave most of its batch behind.")
def _() -> None:
    assert min(usd(chosen(0.015), name) for name in (V5E, H100)) > 2 * usd(chosen(0.015), V5P)
    batches = [row(chosen(t), V5E).row["batch_sequences"] for t in (0.03, 0.015)]
    assert batches[1] <= batches[0] / 4


@says("more than half of its step is what crosses the network between them.")
def _() -> None:
    best = rt.serve("llama-3-70b", on="v5e:4x8", weights="int8", tpot=0.015).best
    exposed = [(p.kind, float(p.seconds - p.overlapped)) for p in best.generate.step.parts]
    assert sum(s for kind, s in exposed if kind == "network") > 0.5 * sum(s for _, s in exposed)


# GQA or MLA?


@functools.cache
def attended(batch: int | None, prompt: int) -> Comparison:
    options = {"weights": "fp8", "prompt": prompt} | ({} if batch is None else {"batch": batch})
    base = Scenario("serve", architecture("llama-3-70b"), slice_of("h100:8"), options)
    return compare(base, ["attention=mla", "attention=mqa"], equal="parameters")


@says("MLA caches 3.6 times less than eight groups, as much as 2.25 of them.")
def _() -> None:
    given, latent = (row(attended(1, 32768), name).scenario.model for name in ("as given", "attention=mla"))
    assert kv_cache_bytes(given, 8192) / kv_cache_bytes(latent, 8192) == pytest.approx(8 / 2.25)


@says("Alone, a sequence has its next token sooner with GQA.")
def _() -> None:
    found = attended(1, 32768)
    assert row(found, "as given").expected > row(found, "attention=mla").expected


@says(
    "With 32 sequences of 32k tokens MLA is ahead; on a chip with half the FLOP/s it would not be, since it reads less and multiplies more."
)
def _() -> None:
    base = Scenario(
        "serve", architecture("llama-3-70b"), slice_of("h100:8"), {"weights": "fp8", "prompt": 32768, "batch": 32}
    )
    found = compare(base, ["attention=mla"], equal="parameters", over=["flops"])
    assert found.best.name == "attention=mla"
    (crossing,) = found.alternatives[1].overtakes
    assert crossing.below_x is not None
    assert 0.4 < crossing.below_x < 0.7


@says("Where as many sequences run as fit, prompts of 8k tokens, it generates more than one and a half times as much.")
def _() -> None:
    found = attended(None, 8192)
    assert row(found, "attention=mla").expected > 1.5 * row(found, "as given").expected


@says("A single KV head would be faster than either: what MLA has over it is what it learns, not speed.")
def _() -> None:
    for found in (attended(None, 8192), attended(None, 32768)):
        assert found.best.name == "attention=mqa"


# A torus or switches for the AllToAll of experts?


def all_to_all(chips: int, sides: tuple[int, ...]) -> tuple[float, float]:
    """Seconds of an AllToAll and of an AllGather on a torus over those behind switches, at 450 GB/s out of each chip."""
    torus = Slice("torus", chip("h100"), (Torus("ici", sides, (True, True, True), 75e9, 0.0),))
    switch = Slice("switch", chip("h100"), (Switch("nvlink", chips, 450e9, 0.0),))
    kinds = ("all-to-all", "all-gather")
    pairs = [
        [collective_time(kind, chips * 64e6, {"X": chips}, where).bound for where in (torus, switch)] for kind in kinds
    ]
    return pairs[0][0] / pairs[0][1], pairs[1][0] / pairs[1][1]


@says("At the same bandwidth out of each chip an AllGather takes as long on both; an AllToAll takes 3 times as long on a torus of 64 chips, 6"
      " times on one of 512, 12 times on one of 4,096.")  # fmt: skip
def _() -> None:
    for chips, sides, times in ((64, (4, 4, 4), 3), (512, (8, 8, 8), 6), (4096, (16, 16, 16), 12)):
        exchange, gather = all_to_all(chips, sides)
        assert gather == pytest.approx(1)
        assert exchange == pytest.approx(times, rel=0.03)


FIXED = {"flops": [1.0], "stacks": [6.0], "stack_bytes": [24e9]}


@functools.cache
def experts_served() -> dict[str, float]:
    """Requests a second by network and rate, and the scores for the same money of the best of each network."""
    work = works(["serve deepseek-v3 tpot=50ms prompt=4k mesh.expert=64"], chip("h100"))
    values = {**FIXED, "link": [75e9, 150e9], "domain": [150e9, 450e9], "scaleout": [12.5e9]}
    found = design(work, Budget(usd=12e6, part=64), values=values, networks=["torus3", "switch-64"], beside=[])
    rates = {f"{m.network} {m.numbers.get('link', m.numbers.get('domain', 0)) / 1e9:g}": m.rates[0] for m in found.best}
    return rates | {m.network: m.score for m in found.networks}


@says(
    "Serving DeepSeek-V3 with its experts over 64 chips, a torus with 450 GB/s out of each chip does less than switches with 150 GB/s."
)
def _() -> None:
    assert experts_served()["torus3 75"] < experts_served()["switch-64 150"]


@says("For the same money, where links cost a third of what switches do, the two are within a tenth of each other.")
def _() -> None:
    assert experts_served()["switch-64"] / experts_served()["torus3"] == pytest.approx(1, abs=0.1)


@says("Training Mixtral, which gathers weights more than it sends tokens, the torus does a tenth more.")
def _() -> None:
    work = works(["train mixtral-8x7b batch=4M"], chip("h100"))
    values = {**FIXED, "link": [50e9], "domain": [150e9], "scaleout": [12.5e9]}
    found = design(work, Budget(usd=12e6), values=values, networks=["torus3", "switch-64"], beside=[])
    scores = {m.network: m.score for m in found.networks}
    assert scores["torus3"] > 1.1 * scores["switch-64"]


@pytest.mark.parametrize(("sentence", "holds"), [pytest.param(s, h, id=s[:50]) for s, h in CLAIMS])
def test_what_the_page_says(sentence: str, holds: Callable[[], None]) -> None:
    assert " ".join(sentence.split()) in PAGE
    holds()


def test_nothing_else_is_claimed_with_a_mark() -> None:
    """Sentences that rest on computed numbers are marked by emphasis on the page; all of them are tested here."""
    marked = [part for i, part in enumerate(PAGE.split("**")) if i % 2]
    tested = " ".join(" ".join(s.split()) for s, _ in CLAIMS)
    assert marked
    assert [m for m in marked if m not in tested] == []
