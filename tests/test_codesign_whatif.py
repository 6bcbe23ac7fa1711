"""What-ifs: slopes beside real changes, what limits in order, figures of them, the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rooftop.cli import run
from rooftop.codesign import FIXED, Scenario, whatif
from rooftop.errors import InputError
from rooftop.hardware import slice_of
from rooftop.transformer import architecture

TRAINED = Scenario("plan", architecture("llama-3-8b"), slice_of("v5e:4x4"), {"batch": 2**20})
SERVED = Scenario("serve", architecture("llama-3-8b"), slice_of("h100:1"), {"batch": 16})


def test_the_slope_is_what_a_small_change_does() -> None:
    found = whatif(TRAINED, numbers=["flops", "hbm_bandwidth", "ici_bandwidth"], by=1.001, replan=False)
    for n in found.numbers:
        less, more = (found.change(m.fixed) for m in n.moves)
        assert less is not None
        assert more is not None
        assert (more - less) / 0.002 == pytest.approx(n.elasticities[found.measure], abs=1e-3)


def test_the_best_anew_is_never_worse_than_what_is_kept() -> None:
    numbers = ["flops", "hbm_bandwidth", "ici_bandwidth", "hbm_bytes", "model.d_ff"]
    found = whatif(TRAINED, numbers=numbers)
    assert found.base["fits"]
    for n in found.numbers:
        for m in n.moves:
            kept, best = found.change(m.fixed), found.change(m.best)
            assert best is not None
            # batches within a tenth of what is asked are equal to the search, which ranks by time per token
            assert kept is None or best <= kept + 1e-9
    memory = next(n for n in found.numbers if n.name == "chip.hbm_bytes")
    assert memory.elasticities == {}  # no formula of time has it; the search does
    less, more = (found.change(m.best) for m in memory.moves)
    assert less is not None
    assert more is not None
    assert less >= 0 >= more


def test_decoding_is_limited_by_memory() -> None:
    found = whatif(SERVED, replan=False)
    assert next(iter(found.shares)) == "chip.hbm_bandwidth"
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert found.shares[FIXED] > 0
    assert list(found.shares.values()) == sorted(found.shares.values(), reverse=True)
    slopes = {n.name: n.elasticities for n in found.numbers}
    # the same work in the same time, whatever it is called
    for name in ("chip.hbm_bandwidth", "model.layers"):
        each = slopes[name]
        assert each["tpot_seconds.expected"] == pytest.approx(each["seconds_per_token.expected"])
        assert each["tokens_per_second"] == pytest.approx(-(each["tpot_seconds.expected"] or 0))
        assert each["usd_per_million_tokens"] == pytest.approx(each["tpot_seconds.expected"])
    assert slopes["chip.hbm_bandwidth"]["tpot_seconds.bound"] == pytest.approx(-1.0)


def test_the_command_and_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = [
        "whatif",
        "llama-3-8b",
        "--on",
        "v5e:4x4",
        "--of",
        "step",
        "--mesh",
        "fsdp=16",
        "--set",
        "batch=1M",
        "--number",
        "flops",
    ]
    assert run([*line, "--number", "model.d_ff", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["limits"][0]["name"] == "chip.flops"
    assert {n["name"] for n in data["numbers"]} == {"chip.flops", "model.d_ff"}
    flops = data["numbers"][0]
    assert -1 <= flops["elasticity"]["seconds_per_token.expected"] < 0
    assert flops["moves"][1]["fixed"]["change"] < 0 < flops["moves"][0]["fixed"]["change"]
    pytest.importorskip("plotly", reason="comes with rooftop[figures]")
    page = tmp_path / "whatif.html"
    assert run([*line, "--html", str(page)]) == 0
    assert page.read_text().count('<figure class="rt-figure"') == 2
    assert "What limits it, in order" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--of", "simulate"], "sweep"),
        (["--measure", "mfu"], "measure"),
        (["--by", "1"], "above 1"),
        (["--number", "model.d_fff"], "d_ff"),
        (["--number", "remat"], "remat"),
        (["--number", "model"], "model"),
    ],
)  # fmt: skip
def test_wrong_input(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["whatif", "llama-3-8b", "--on", "v5e:4x4", *words]) == 2
    assert why in capsys.readouterr().err


def test_no_price_no_cost() -> None:
    with pytest.raises(InputError, match="price"):
        whatif(
            Scenario("serve", architecture("llama-3-8b"), slice_of("b300:1"), {"batch": 1}),
            measure="usd_per_million_tokens",
        )
