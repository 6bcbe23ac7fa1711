"""Inverse questions: the value that is told of meets the goal, its neighbour misses it, and what cannot be is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rooftop.cli import run
from rooftop.codesign import Scenario, Swept, Value, Vary, answer, changed, parse_need, solve, sweep
from rooftop.errors import InputError, NoAnswer
from rooftop.hardware import slice_of
from rooftop.transformer import architecture

PLAN = Scenario("plan", architecture("llama-3-8b"), slice_of("v5e:4x4"), {"batch": 2**17})
STEP = Scenario("step", architecture("llama-3-8b"), slice_of("v5p:4x4x4"), {"batch": 2**20}, {"fsdp": 16, "tensor": 4})
SERVE = Scenario("serve", architecture("llama-3-8b"), slice_of("h100:1"))


@pytest.mark.parametrize(
    ("text", "value"),
    [("mfu>=0.5", 0.5), ("mfu >= 50%", 0.5), ("tpot<=20ms", 0.02), ("memory<=70GB", 7e10), ("usd<0.5", 0.5),
     ("tokens_per_second>=10k", 1e4), ("bottleneck=compute", "compute")],
)  # fmt: skip
def test_goals_are_read(text: str, value: Any) -> None:
    assert parse_need(text).value == value


@pytest.mark.parametrize("text", ["mfu", "mfu>=", ">=1", "mfu=>1", "mfu>=fast", "tpot<=-1s", "a b>=1"])
def test_goals_that_are_none(text: str) -> None:
    with pytest.raises(InputError):
        parse_need(text)


@pytest.mark.parametrize(
    ("scenario", "need", "by", "want"),
    [
        (PLAN, "mfu>=0.5", "ici_bandwidth=10GB..100GB", "nearest"),
        (STEP, "step_seconds<=2.5s", "flops", "nearest"),
        (STEP, "memory<=40GB", "batch", "largest"),
        (SERVE, "tpot<=10ms", "batch", "largest"),
        (SERVE, "usd_per_million_tokens<=1", "batch", "smallest"),
        (SERVE, "ttft<=60ms", "prompt", "nearest"),
    ],
    ids=lambda x: x if isinstance(x, str) else x.ask,
)
def test_the_value_meets_the_goal_and_its_neighbour_does_not(scenario: Scenario, need: str, by: str, want: str) -> None:
    found = solve(scenario, need, by, want=want)
    goal = found.needs[0]
    options = (
        {"tpot": goal.value} if need.startswith("tpot") else {"ttft": goal.value} if need.startswith("ttft") else {}
    )
    if need.startswith("usd"):
        options = {"usd": goal.value}
    asked = changed(scenario, options) if scenario.ask == "serve" else scenario
    # asked anew, by itself
    assert goal.met(answer(changed(asked, {found.domain.name: found.at.value})))
    assert found.fails is not None
    try:
        assert not goal.met(answer(changed(asked, {found.domain.name: found.fails.value})))
    except NoAnswer:
        assert found.fails.row["error"]
    low, high = sorted((found.at.value, found.fails.value))
    assert found.domain.between(low, high) is None
    assert all(a.value < b.value for a, b in zip(found.points, found.points[1:], strict=False))


def test_the_edge_of_memory_is_what_a_plan_needs() -> None:
    """The smallest HBM on which a plan fits is its memory, to three digits."""
    plan = changed(STEP, {"microbatches": 2, "remat": "selective"})
    found = solve(plan, "fits=true", "hbm_bytes", want="smallest")
    needed = answer(plan)["memory.bytes"]
    assert found.fails is not None
    assert found.fails.value < needed <= found.at.value


def test_regions_of_a_goal_that_comes_and_goes() -> None:
    # values alone: a mesh of 4 x 4 wants widths that it divides
    found = solve(STEP, "step_seconds<=4s", "model.d_ff=4096,4098,8192,8194,12288")
    assert [(r.low.value, r.high.value) for r in found.regions] == [(4096, 4096), (8192, 8192), (12288, 12288)]
    assert all(p.row["error"] for p in found.points if p.value in (4098, 8194))
    assert found.at.value == 12288  # nearest to what is there


def test_what_cannot_be_is_refused_with_what_binds() -> None:
    with pytest.raises(NoAnswer, match="binds"):
        solve(PLAN, "mfu>=0.9", "ici_bandwidth=10GB..1TB:x4")
    with pytest.raises(NoAnswer, match="binds"):
        solve(SERVE, ["tpot<=1ms"], "prompt=1024,2048")


def test_several_goals_are_limits_of_one_search() -> None:
    # the most tokens a second would take more time than either goal allows
    found = solve(SERVE, ["ttft<=500ms", "tpot<=20ms"], "prompt=1k..8k")
    assert all(n.met(found.at.row) for n in found.needs)


def test_a_larger_goal_needs_no_less() -> None:
    values = [solve(STEP, f"step_seconds<={s}s", "flops").at.value for s in (3.0, 2.5, 2.0)]
    assert values == sorted(values)


def test_the_command_and_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = [
        "solve",
        "llama-3-8b",
        "--on",
        "h100:1",
        "--of",
        "serve",
        "--need",
        "tpot<=10ms",
        "--solve",
        "batch",
        "--largest",
    ]
    assert run([*line, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["fails"]["value"] == data["value"] + 1
    assert data["at"]["met"]
    assert not data["fails"]["met"]
    assert data["at"]["row"]["tpot_seconds.expected"] <= 0.01
    pytest.importorskip("plotly", reason="comes with rooftop[figures]")
    page = tmp_path / "solved.html"
    assert run([*line, "--html", str(page)]) == 0
    assert page.read_text().count('<figure class="rt-figure"') == 1
    assert "at most" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["--need", "mfuu>=1", "--solve", "flops=1x,2x"], 2, "mfu"),
        (["--need", "mfu>=1", "--solve", "remat"], 2, "no number"),
        (["--need", "mfu>=1", "--solve", "model"], 2, "no number"),
        (["--need", "mfu>=1", "--solve", "flops=2x..1x"], 2, "smaller end first"),
        (["--need", "mfu", "--solve", "flops"], 2, "mfu>=0.5"),
        (["--need", "mfu>=99%", "--solve", "flops=1x,2x"], 1, "binds"),
    ],
)  # fmt: skip
def test_wrong_input(words: list[str], code: int, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["solve", "llama-3-8b", "--on", "v5e:4x4", "--set", "batch=128k", *words]) == code
    assert why in capsys.readouterr().err


def _swept(*varies: Vary) -> Swept:
    return sweep(STEP, varies)


def test_figures_of_sweeps() -> None:
    pytest.importorskip("plotly", reason="comes with rooftop[figures]")
    from test_figures import checked

    from rooftop.figures import solved_figures, sweep_figures

    ici = Vary(("network.ici.bandwidth",), tuple(Value(2.0**k, True) for k in range(-7, 3)))
    flops = Vary(("chip.flops",), tuple(Value(2.0**k, True) for k in range(-2, 3)))
    one, two = checked(sweep_figures(_swept(ici))), checked(sweep_figures(_swept(ici, flops)))
    assert set(one) == {"lines"}  # of one plan the memory does not move: there is no front
    assert set(two) == {"heatmap", "binding", "lines"}
    found = _swept(ici, flops)
    # what binds is drawn where it binds
    drawn = two["binding"].data[0]
    words = [w for line in zip(*drawn["text"], strict=True) for w in line]
    assert words == found.columns["bottleneck"].tolist()
    remat = Vary(("remat",), (Value("none"), Value("dots"), Value("full")))
    found = _swept(remat, Vary(("batch",), (Value(2**19), Value(2**20))))
    drawn_too = checked(sweep_figures(found))
    assert set(drawn_too) == {"heatmap", "binding", "lines", "front"}
    # of the front, none is beaten
    front = drawn_too["front"].rows
    x, y = (drawn_too["front"].columns.index(n) for n in ("step_seconds.expected", "memory.bytes"))
    able = [row for row in found.rows() if row["fits"]]
    assert all(not any(p["step_seconds.expected"] < r[x] and p["memory.bytes"] < r[y] for p in able) for r in front)
    checked(solved_figures(solve(STEP, "step_seconds<=2.5s", "flops=1x..4x:x2")))
