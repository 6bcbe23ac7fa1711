"""Designed machines: the cost model, the search beside brute force, chips of today under the same costs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooftop.cli import run
from rooftop.codesign import Budget, Ports, cost_of, costs, design, parse_values, ports_of, works
from rooftop.codesign import _design as internals
from rooftop.codesign._costs import stages
from rooftop.codesign._machine import chip_like, network, ports, power_of_two, sides
from rooftop.errors import InputError, NoAnswer
from rooftop.hardware import chip, slice_of

TRAIN = "train llama-3-8b batch=1M"
SERVE = "serve llama-3-8b weights=fp8 tpot=30ms prompt=1k"


@pytest.mark.parametrize(
    ("name", "mm2"),
    [("h100:64", 814), ("h200:64", 814), ("b200:64", 2 * 800)],
)  # fmt: skip
def test_silicon_of_chips_of_this_process(name: str, mm2: float) -> None:
    """GH100: 814 mm2 (NVIDIA, H100 white paper); B200: two dies near the 858 mm2 of a reticle."""
    where = slice_of(name)
    cost = cost_of(where.chip, ports_of(where.levels, costs()), costs())
    assert cost.mm2 == pytest.approx(mm2, rel=0.15)
    assert cost.dies == (2 if name.startswith("b200") else 1)


@pytest.mark.parametrize("name", ["h100:64", "h200:64", "b200:64", "gb200:72", "mi300x:64"])
def test_power_of_chips_of_this_process(name: str) -> None:
    where = slice_of(name)
    cost = cost_of(where.chip, ports_of(where.levels, costs()), costs())
    assert cost.chip_watts == pytest.approx(where.chip.power_watts, rel=1 / 3)


def test_a_die_costs_what_others_estimate() -> None:
    """Khan and Mann (CSET, 2020), table 9: 238 USD for 610 mm2 at 5 nm."""
    model = costs()
    area = 610.0
    wafer = math.pi * 150**2 / area - math.pi * 300 / math.sqrt(2 * area)
    assert model["price.wafer"] / wafer / math.exp(-area * model["price.defects_per_mm2"]) == pytest.approx(
        238, rel=0.15
    )


def test_every_number_has_a_source() -> None:
    model = costs()
    assert set(model.sources) == set(model.values)
    assert all(len(text) > 5 for text in model.sources.values())


@given(st.sampled_from(["flops", "stacks", "stack_bytes"]), st.floats(1.01, 3.0))
def test_more_of_anything_costs_more(name: str, times: float) -> None:
    base, model = chip("h100"), costs()
    numbers = {"flops": 1.0, "stacks": 4.0, "stack_bytes": 16e9}
    less, more = (
        cost_of(chip_like(base, {**numbers, name: numbers[name] * x}, model), Ports(domain=450e9), model) for x in (1.0, times)
    )  # fmt: skip
    assert more.usd > less.usd
    assert more.watts >= less.watts
    assert more.mm2 >= less.mm2


def test_arrays_cost_what_each_costs() -> None:
    base, model = chip("v5p"), costs()
    many = {
        "flops": np.array([0.5, 1.0, 3.0]),
        "stacks": np.array([2.0, 6.0, 12.0]),
        "stack_bytes": np.array([16e9] * 3),
    }
    links = Ports(torus=np.array([1e11, 2e11, 4e11]))
    wide = cost_of(chip_like(base, many, model), links, model)
    for i in range(3):
        one = cost_of(
            chip_like(base, {n: float(v[i]) for n, v in many.items()}, model), Ports(torus=float(links.torus[i])), model
        )
        assert wide.usd[i] == pytest.approx(one.usd)
        assert wide.dies[i] == one.dies


@given(st.integers(0, 16), st.integers(1, 3))
def test_sides_are_as_even_as_can_be(power: int, dims: int) -> None:
    found = sides(2**power, dims)
    assert math.prod(found) == 2**power
    assert max(found) <= 2 * min(found)
    assert power_of_two(2.0**power * 1.5) == 2**power


def test_switches_need_stages() -> None:
    assert [float(stages(n, costs())) for n in (2, 72, 73, 72**2, 72**2 + 1)] == [1, 1, 3, 3, 5]
    torus = ports_of(slice_of("v5p:4x4x4").levels, costs())
    assert torus.torus == 6 * 9e10
    gpu = ports_of(slice_of("h100:64").levels, costs())
    assert (gpu.domain, gpu.scaleout) == (4.5e11, 5e10)
    assert ports(network("torus3"), 64, {"link": 9e10}, costs()).torus == torus.torus


def _like_h100() -> dict[str, list[float]]:
    base, model = chip("h100"), costs()
    stacks = base.hbm_bandwidth / model["stack.bandwidth"]
    return {
        "flops": [1.0],
        "stacks": [stacks],
        "stack_bytes": [base.hbm_bytes / stacks],
        "domain": [4.5e11],
        "scaleout": [5e10],
    }


def test_a_candidate_that_is_todays_chip_does_as_well() -> None:
    found = design(
        works([TRAIN, SERVE], chip("h100")), Budget(usd=5e5, part=8), values=_like_h100(), networks=["switch-8"], beside=[], top=1
    )  # fmt: skip
    best, today = found.best[0], found.reference
    assert best.chips == today.chips
    assert best.share == pytest.approx(today.share, rel=1e-6)
    assert best.cost.mm2 == pytest.approx(today.cost.mm2, rel=1e-6)
    # switches of H100 add up, those of candidates do not
    assert best.score == pytest.approx(1.0, rel=0.05)
    assert today.score == pytest.approx(1.0)


def test_the_search_finds_what_brute_force_finds() -> None:
    values = {"flops": [0.5, 2.0], "stacks": [2, 4, 8], "stack_bytes": [24e9], "link": [2.5e10, 1e11], "domain": [4.5e11],
              "scaleout": [5e10]}  # fmt: skip
    work = works([f"{TRAIN} weight=2", f"{SERVE} weight=1"], chip("h100"))
    assert [w.weight for w in work] == [pytest.approx(2 / 3), pytest.approx(1 / 3)]
    budget = Budget(usd=4e5, watts=3e4, part=8)
    found = design(work, budget, values=values, networks=["torus2", "switch-8"], beside=[], top=3)
    against = tuple(w.weight * r / found.reference.share for w, r in zip(work, found.reference.rates, strict=True))
    counted = dict.fromkeys(("candidates", "too_large", "too_dear"), 0)
    every = [
        internals._machine(group, i)
        for text in ("torus2", "switch-8")
        for group in internals._groups(chip("h100"), network(text), values, budget, costs(), work, against, counted)
        for i in range(len(group.share))
    ]
    assert counted["candidates"] == found.candidates == 12 + 6
    best = max(every, key=lambda m: m.score)
    assert found.best[0].score >= best.score * 0.99
    assert found.best[0].share <= 1
    for m in every:
        assert m.chips == power_of_two(m.chips)
        assert m.chips * m.cost.usd <= 4e5
        assert m.chips * m.cost.watts <= 3e4


def test_limits_of_silicon_leave_candidates_out() -> None:
    work = works([SERVE], chip("h100"))
    values = {"flops": [0.5, 3.0], "stacks": [4], "stack_bytes": [24e9], "domain": [4.5e11], "scaleout": [5e10]}
    found = design(work, Budget(usd=3e5, mm2=858, part=8), values=values, networks=["switch-8"], beside=[])
    assert found.too_large == 1
    assert found.best[0].cost.mm2 <= 858
    with pytest.raises(NoAnswer, match="too much silicon"):
        design(work, Budget(usd=3e5, mm2=100, part=8), values=values, networks=["switch-8"], beside=[])


def test_own_costs_replace_numbers(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[price]\nscaleout_per_gbps = 1000\n[sources]\n"price.scaleout_per_gbps" = "a quote"\n')
    mine = costs(path)
    assert mine["price.scaleout_per_gbps"] == 1000
    assert mine.sources["price.scaleout_per_gbps"] == "a quote"
    assert mine["price.wafer"] == costs()["price.wafer"]
    links = Ports(domain=4.5e11, scaleout=5e10)
    assert cost_of(chip("h100"), links, mine).capital - cost_of(chip("h100"), links, costs()).capital == pytest.approx(
        900 * 50
    )
    for text, why in (
        ("[price]\nwafers = 1", "did you mean"),
        ("[price]\nwafer = 'dear'", "not a number"),
        ("[price]\nwafer = -1", "out of range"),
        ("price = 3", "must be a table"),
        ("[area]\nreticle = 0", "out of range"),
        ("[price", "not a TOML"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=why):
            costs(path)


def test_values_are_read() -> None:
    assert parse_values(["flops=0.5..2", "link=45GB,90GB"]) == {"flops": [0.5, 1.0, 2.0], "link": [4.5e10, 9e10]}


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["design", "--work", SERVE, "--usd", "200k", "--networks", "switch-8", "--part", "8", "--beside", "v5e", "--vary", "flops=0.5,1",
             "--vary", "stacks=4", "--vary", "stack_bytes=24GB", "--vary", "domain=450GB", "--vary", "scaleout=50GB"]  # fmt: skip
    assert run([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["candidates"] == 2
    assert {m["name"].partition(":")[0] for m in data["today"]} == {"h100", "v5e"}
    assert data["costs"]["sources"]["area.reticle"]
    assert run(words) == 0
    assert "Chips of today" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--work", SERVE], "budget"),
        (["--work", "serve", "--usd", "1M"], "train or serve"),
        (["--work", "sing llama-3-8b", "--usd", "1M"], "train or serve"),
        (["--work", "train llama-3-8b flops=2x", "--usd", "1M"], "none of the work's numbers"),
        (["--work", "train llama-3-8b weight=0", "--usd", "1M"], "weight"),
        (["--work", "train llama-3-8b batch=1M,2M", "--usd", "1M"], "give one"),
        (["--work", SERVE, "--usd", "1M", "--networks", "ring"], "torus2"),
        (["--work", SERVE, "--usd", "1M", "--networks", "switch-12"], "power of two"),
        (["--work", SERVE, "--usd", "1M", "--vary", "flop=1"], "flops"),
        (["--work", SERVE, "--usd", "1M", "--vary", "flops=2x"], "not multiples"),
        (["--work", SERVE, "--usd", "0"], "out of range"),
        (["--work", SERVE, "--usd", "1M", "--costs", "none.toml"], "cannot read"),
        (["--work", SERVE, "--usd", "1M", "--like", "h1000"], "h100"),
    ],
)  # fmt: skip
def test_wrong_input(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["design", *words]) == 2
    assert why in capsys.readouterr().err


def test_a_budget_that_buys_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["design", "--work", SERVE, "--usd", "100", "--beside", "h100"]) == 1
    assert "over the budget" in capsys.readouterr().err
