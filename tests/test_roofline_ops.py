"""The roofline of one op and of one sharded matmul: the book's numbers and laws."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooftop.arrays import parse
from rooftop.errors import InputError
from rooftop.hardware import chip, chips, slice_of
from rooftop.roofline import COLLECTIVES, matmul_time, op_roofline, padded

MATMUL = "bf16[B, D] * bf16[D, F] -> bf16[B, F]"


def roofline(text=MATMUL, name="v5e", **sizes):
    return op_roofline(parse(text), sizes, chip(name))


def test_a_large_matmul_is_bound_by_arithmetic():
    r = roofline(B=512, D=8192, F=28672)
    assert r.flops == 2 * 512 * 8192 * 28672
    assert r.bytes == 2 * (512 * 8192 + 8192 * 28672 + 512 * 28672)
    assert (r.bottleneck, r.unit, r.dtype) == ("compute", "matrix", "bf16")
    assert r.bound == r.math == pytest.approx(r.flops / 1.97e14)
    assert r.sum == r.math + r.hbm


def test_the_critical_batch_of_v5e_is_about_240_tokens():
    r = roofline(B=128, D=8192, F=8192 * 4)
    assert r.bottleneck == "hbm"
    assert r.ridge == pytest.approx(1.97e14 / 8.1e11)
    assert r.critical["B"] == pytest.approx(243, rel=0.05)
    at = roofline(B=round(r.critical["B"]), D=8192, F=8192 * 4)
    assert at.math == pytest.approx(at.hbm, rel=0.01)


def test_int8_weights_halve_the_critical_batch():
    plain, quantised = (
        roofline(B=64, D=8192, F=8192),
        roofline("bf16[B, D] * int8[D, F] -> bf16[B, F]", B=64, D=8192, F=8192),
    )
    assert quantised.dtype == "bf16"
    assert quantised.critical["B"] == pytest.approx(plain.critical["B"] / 2, rel=0.05)


def test_a_dot_product_never_reaches_the_roof():
    r = roofline("bf16[N] * bf16[N] -> bf16[]", N=10**6)
    assert (r.unit, r.bottleneck) == ("vector", "hbm")
    assert r.flops == 2 * 10**6 - 1
    assert r.intensity == pytest.approx(0.5, rel=1e-3)
    assert r.critical["N"] is None


SIZES = st.integers(1, 40000)


@settings(max_examples=60, deadline=None)
@given(b=SIZES, d=SIZES, f=SIZES, name=st.sampled_from([c for c in chips() if "bf16" in chip(c).flops]))
def test_laws_of_one_op(b, d, f, name):
    r = roofline(name=name, B=b, D=d, F=f)
    assert r.bound == max(r.math, r.hbm)
    assert r.bound <= r.sum <= 2 * r.bound
    assert r.bound <= r.expected * (1 + 1e-12)
    assert (r.intensity >= r.ridge) == (r.bottleneck == "compute") or math.isclose(r.math, r.hbm, rel_tol=1e-9)
    double = roofline(name=name, B=2 * b, D=d, F=f)
    assert r.bound <= double.bound <= 2 * r.bound * (1 + 1e-12)


@given(st.integers(1, 10**6), st.integers(1, 512))
@settings(max_examples=40, deadline=None)
def test_padding_goes_to_the_next_tile(size, tile):
    assert size <= padded(size, tile) < size + tile
    assert padded(size, tile) % tile == 0


@pytest.mark.parametrize(
    ("sizes", "part"),
    [({"B": 4}, "no size for D, F"), ({"B": 4, "D": 4, "F": 4, "X": 2}, "axis X is not in")],
)
def test_missing_and_unknown_sizes_are_refused(sizes, part):
    with pytest.raises(InputError, match=part):
        roofline(**sizes)


def test_a_dtype_that_the_chip_lacks_is_refused():
    with pytest.raises(InputError, match="v5e has no"):
        roofline("fp8[B, D] * fp8[D, F] -> bf16[B, F]", B=8, D=8, F=8)


CASES = (
    "bf16[I_X, J] * bf16[J, K] -> bf16[I_X, K]",
    "bf16[I, J_X] * bf16[J, K] -> bf16[I, K]",
    "bf16[I, J_X] * bf16[J_X, K] -> bf16[I, K]",
    "bf16[I_X, J] * bf16[J, K_X] -> bf16[I_X, K]",
    "bf16[I_X, J_Y] * bf16[J_Y, K] -> bf16[I_X, K]",
    "bf16[I_X, J_Y] * bf16[J, K] -> bf16[I_X, K_Y]",
)


@pytest.mark.parametrize("text", CASES)
@pytest.mark.parametrize("where", ["v5e:4x4", "v5p:4x2x2", "h100:16"])
def test_laws_of_sharded_matmuls(text, where):
    at = slice_of(where)
    expression = parse(text)
    result = matmul_time(expression, {"I": 1024, "J": 4096, "K": 2048}, {"X": 4, "Y": 4}, at)
    times = [w.sum for w in result.ways]
    assert result.best.sum == pytest.approx(min(times), rel=1e-9) or result.best.network == min(
        w.network for w in result.ways
    )
    for way in result.ways:
        assert way.bound <= way.sum * (1 + 1e-12)
        assert way.bound <= way.expected * (1 + 1e-12)
        assert way.flops >= 2 * 1024 * 4096 * 2048 / at.chips
        assert all(c.kind in COLLECTIVES for c, _ in way.collectives)
        assert way.bottleneck in ("compute", "hbm", "network")


def test_the_four_cases_force_the_collectives_of_the_book():
    sizes, at = {"I": 65536, "J": 4096, "K": 2048}, slice_of("v5e:4x4")

    def kinds(text):
        return [c.kind for c, _ in matmul_time(parse(text), sizes, {"X": 4, "Y": 4}, at).best.collectives]

    assert kinds(CASES[0]) == []
    assert kinds(CASES[2]) == ["all_reduce"]
    assert kinds(CASES[3]) == ["all_gather"]
    assert kinds("bf16[I, J_X] * bf16[J_X, K] -> bf16[I, K_X]") == ["reduce_scatter"]
