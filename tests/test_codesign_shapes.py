"""Shapes of equal budgets, and sizes that suit matmul units and meshes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooftop.cli import run
from rooftop.codesign import Engine, Scenario, friendly, model_numbers, parse_numbers, shapes, with_number
from rooftop.codesign._answers import answer
from rooftop.codesign._budget import BUDGETS, fitted
from rooftop.errors import NoAnswer
from rooftop.hardware import slice_of
from rooftop.transformer import architecture, kv_bytes_per_token, parameters

PLAN = Scenario("plan", architecture("gpt2-xl"), slice_of("v5e:4x4"), {"batch": 1e6, "seq": 1024})


def test_shapes_have_equal_budgets_and_are_ranked() -> None:
    found = shapes(PLAN, varied={"d_model": (1280, 1536, 2048), "layers": (36, 48)}, within=0.01, engine=Engine())
    wanted = parameters(PLAN.model).total
    assert len(found.shapes) >= 5
    for shape in found.shapes:
        assert parameters(shape.model).total == shape.amounts["parameters"]
        assert abs(shape.amounts["parameters"] / wanted - 1) <= 0.01
        numbers = model_numbers(shape.model)
        assert numbers["heads"] == numbers["kv_heads"]  # which are all of them here
        if shape.changes:
            assert numbers["d_ff"] % 128 == 0
    speeds = [s.expected for s in found.shapes]
    assert speeds == sorted(speeds, reverse=True)
    assert found.given in found.shapes
    best = found.shapes[0]
    again = answer(Scenario("plan", best.model, PLAN.slice, PLAN.options))
    assert again["tokens_per_second"] == best.expected  # the same functions as the command
    # 1600 is 12.5 tiles of 128; whole tiles at equal parameters leave less of the matmul unit idle
    whole = next(s for s in found.friendly if set(s.changes) == {"d_model", "d_ff"})
    assert whole.model.d_model == 1664
    assert whole.expected > found.given.expected


def test_several_budgets_hold_at_once() -> None:
    base = Scenario("serve", architecture("llama-3-8b"), slice_of("h100:1"), {"batch": 16})
    found = shapes(
        base, varied={"kv_heads": (4, 8, 16), "layers": (16, 32, 64)}, equal=("parameters", "kv"), within=0.05
    )
    assert found.outside >= 6
    for shape in found.shapes:
        assert kv_bytes_per_token(shape.model) == pytest.approx(kv_bytes_per_token(base.model), rel=0.05)
    assert {(s.model.layers, model_numbers(s.model)["kv_heads"]) for s in found.shapes} <= {(16, 16), (32, 8), (64, 4)}
    assert len(found.shapes) >= 2


def test_a_mesh_that_does_not_divide_the_given_model() -> None:
    """GPT-2 XL has 25 heads: no eight ways can share them."""
    base = Scenario(
        "serve", architecture("gpt2-xl"), slice_of("v5e:2x4"), {"batch": 8, "prompt": 512, "output": 256}, {"tensor": 8}
    )
    found = shapes(base, varied={"layers": (48,)})
    assert "divides" in str(found.given.error)
    best = found.friendly[0]
    assert best.error is None
    assert model_numbers(best.model)["heads"] == 32
    assert best.model.vocab % 8 == 0
    with pytest.raises(NoAnswer, match="none of"):
        shapes(Scenario("plan", architecture("llama-3-405b"), slice_of("v5e:2x2")), varied={"layers": (126,)})


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["llama-3-8b", "gpt2-xl", "mixtral-8x7b"]),
    st.floats(0.8, 1.6),
    st.sampled_from(["parameters", "active", "flops"]),
)
def test_widths_are_fitted_to_the_nearest_tile(name: str, share: float, budget: str) -> None:
    model, of = architecture(name), BUDGETS[budget]
    amount = share * of(model, 1024)
    found = fitted(model, budget, amount, 1024, multiple=128)
    width = model_numbers(found)["d_ff"]
    assert width % 128 == 0
    one_tile = of(with_number(found, "d_ff", width + 128), 1024) - of(found, 1024)
    assert abs(of(found, 1024) - amount) <= one_tile * 0.5001


def test_sizes_that_suit_need_no_change() -> None:
    assert list(friendly(architecture("llama-3-8b"), 128)) == []
    assert {"d_model": 1664} in list(friendly(architecture("gpt2-xl"), 128))
    assert {"vocab": 50304} in list(friendly(architecture("gpt2-xl"), 128))  # the padding that trainers of it use


def test_numbers_are_read() -> None:
    model = architecture("llama-3-8b")
    assert parse_numbers(model, ["layers=16..64", "kv_heads", "d_model=0.5x,1x"]) == {
        "layers": [16, 32, 64], "kv_heads": None, "d_model": [2048, 4096],
    }  # fmt: skip


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["shapes", "llama-3-8b", "--on", "h100:8", "--of", "serve", "--set", "batch=8", "--vary", "layers=24,32"]
    assert run([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["given"]["gain"] == 0
    assert [s["changes"].get("layers", 32) for s in data["shapes"]].count(24) == 1
    assert run(words) == 0
    assert "suit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--vary", "kv_head"], "kv_heads"),
        (["--vary", "kv_heads=0"], "out of range"),
        (["--vary", "layers", "--vary", "layers"], "twice"),
        (["--within", "2"], "within"),
        (["--vary", "layers=1..10000:+1", "--vary", "heads=1..1000:+1"], "too many"),
        (["--of", "simulate"], "simulate"),
    ],
)  # fmt: skip
def test_wrong_input(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["shapes", "llama-3-8b", "--on", "h100:8", *words]) == 2
    assert why in capsys.readouterr().err
