"""Ways side by side: kinds of attention, crossings, and what each way would need to win."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooftop.cli import run
from rooftop.codesign import Scenario, changed, compare, crossings, with_attention
from rooftop.codesign._compare import FARTHEST
from rooftop.codesign._settled import settled, speed
from rooftop.errors import InputError
from rooftop.hardware import slice_of
from rooftop.transformer import architecture, kv_bytes_per_token, parameters

SERVE = Scenario("serve", architecture("llama-3-8b"), slice_of("h100:1"), {"weights": "fp8", "prompt": 8192})
STEP = Scenario("step", architecture("llama-3-8b"), slice_of("v5e:4x4"), {"batch": 1e6}, {"fsdp": 16})


@pytest.mark.parametrize("name", ["llama-3-8b", "llama-3-70b"])
def test_latent_attention_caches_as_much_as_two_and_a_quarter_groups(name: str) -> None:
    """DeepSeek-V2 (2024), section 2.1.4: with rank 4 and rotation 1/2 of a head dimension, MLA equals GQA with 2.25 groups."""
    model = architecture(name)
    groups = kv_bytes_per_token(with_attention(model, "mqa"))
    assert kv_bytes_per_token(with_attention(model, "mla")) == 2.25 * groups
    assert kv_bytes_per_token(with_attention(model, "gqa-8")) == 8 * groups


def test_kinds_of_attention_change_attention_only() -> None:
    model = architecture("llama-3-8b")
    same = with_attention(model, "gqa-8")
    assert same.stack == model.stack
    many, one = (parameters(with_attention(model, kind)) for kind in ("mha", "mqa"))
    # keys and values of 32 heads or of 1, 128 wide, from a stream of 4096, in 32 layers
    assert many.total - one.total == 2 * 31 * 128 * 4096 * 32
    assert {p: n for p, n in many.parts.items() if p != "attention"} == {
        p: n for p, n in one.parts.items() if p != "attention"
    }
    assert with_attention(model, "window-1024").windows == (1024,) * 32
    latent = with_attention(architecture("deepseek-v2-lite"), "mqa")
    assert kv_bytes_per_token(latent) == 27 * 2 * 128 * 2


@given(st.floats(1.01, FARTHEST / 1.01), st.booleans())
def test_crossings_are_found_where_they_are(at: float, up: bool) -> None:
    below, above = crossings(lambda x: x - at if up else 1 / at - x)
    found, none = (above, below) if up else (below, above)
    assert none is None
    assert found == pytest.approx(at if up else 1 / at, rel=1e-6)
    assert (found > at * (1 - 1e-9)) if up else (found < (1 + 1e-9) / at)


def test_a_crossing_out_of_sight_is_none() -> None:
    assert crossings(lambda x: x - 2 * FARTHEST) == (None, None)


def test_ways_are_ranked_and_overtake_where_it_says() -> None:
    plan = Scenario("plan", architecture("llama-3-8b"), slice_of("v5e:4x4"), {"batch": 1e6})
    found = compare(plan, ["attention=window-1024", "attention=mqa", "precision=int8"])
    speeds = [a.expected for a in found.alternatives]
    assert speeds == sorted(speeds, reverse=True)
    assert {a.name for a in found.alternatives} >= {"as given", "precision=int8"}
    kept = settled(found.best.scenario)
    crossed = 0
    for other in found.alternatives[1:]:
        held = settled(other.scenario)
        for o in other.overtakes:
            for x, beyond in ((o.below_x, 0.98), (o.above_x, 1.02)):
                if x is None:
                    continue
                crossed += 1
                for factor, ahead in ((x * beyond, True), (x / beyond, False)):
                    pair = [
                        speed(changed(s, {o.parameter: o.now * factor}), h).expected
                        for s, h in ((other.scenario, held), (found.best.scenario, kept))
                    ]
                    assert (pair[0] > pair[1]) is ahead, (other.name, o)
    assert crossed


def test_rows_are_those_of_the_commands() -> None:
    found = compare(STEP, ["remat=full", "collective_matmul=true"])
    by_name = {a.name: a for a in found.alternatives}
    full = by_name["remat=full"]
    assert full.row["plan.remat"] == "full"
    assert full.expected == pytest.approx(full.row["batch_tokens"] / full.row["step_seconds.expected"])
    assert full.bound >= full.expected
    # what hides more is never slower
    assert by_name["collective_matmul=true"].expected >= by_name["as given"].expected


def test_ways_on_other_hardware() -> None:
    found = compare(SERVE, ["on=v5e:2x4,weights=int8", "on=v5p:2x2x1,weights=int8"])
    assert {a.scenario.slice.name for a in found.alternatives} == {"h100:1", "v5e:2x4", "v5p:2x2x1"}
    last = found.alternatives[-1]
    kept = settled(last.scenario)
    (memory,) = [o for o in last.overtakes if o.parameter == "chip.hbm_bandwidth"]
    assert memory.now == last.scenario.slice.chip.hbm_bandwidth
    for o in last.overtakes:
        if o.above_x is not None:
            faster = speed(changed(last.scenario, {o.parameter: o.now * o.above_x * 1.01}), kept).expected
            assert faster > found.best.expected


def test_a_way_that_does_not_fit_says_so() -> None:
    found = compare(
        Scenario("serve", architecture("llama-3-70b"), slice_of("h100:1")), ["weights=int4", "weights=bf16"]
    )
    assert found.best.name == "weights=int4"
    assert "does not fit" in str(found.alternatives[-1].error)


def test_models_are_fitted_to_equal_parameters() -> None:
    found = compare(SERVE, ["attention=mha", "attention=mqa"], equal="parameters")
    wanted = parameters(SERVE.model).total
    granule = 3 * 4096 * 128 * 32  # of d_ff, a tile
    for a in found.alternatives:
        assert abs(a.parameters - wanted) <= granule / 2
        assert math.isfinite(a.expected)


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "compare",
        "llama-3-8b",
        "--on",
        "v5e:4x4",
        "--set",
        "batch=1M",
        "--ways",
        "overlap",
        "--over",
        "ici_bandwidth",
    ]
    assert run([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["over"] == ["network.ici.bandwidth"]
    assert data["alternatives"][0]["of_best"] == 1
    assert run(words) == 0
    assert "What each does" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "nothing to compare"),
        (["--ways", "atention"], "attention"),
        (["--ways", "schedule"], "pipeline"),
        (["--way", "remat"], "NAME=VALUE"),
        (["--way", "remat=full,"], "NAME=VALUE"),
        (["--way", "batch=1M..4M"], "one a way"),
        (["--way", "attention=gqa-5"], "divide"),
        (["--way", "attention=flash"], "gqa-N"),
        (["--way", "remat=full", "--over", "batch"], "cannot be followed"),
        (["--way", "remat=full", "--over", "ici_bandwith"], "bandwidth"),
        (["--of", "simulate", "--way", "weights=fp8"], "simulate"),
        (["--of", "serve", "--ways", "remat"], "no ways of remat"),
    ],
)  # fmt: skip
def test_wrong_input(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "llama-3-8b", "--on", "v5e:4x4", *words]) == 2
    assert why in capsys.readouterr().err


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(InputError, match="no plain or latent attention"):
        with_attention(architecture("mamba-2.8b"), "mha")
