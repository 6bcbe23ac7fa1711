"""One formula, read four ways: floats, arrays, symbols, derivations."""

import inspect
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooftop.formula import Traced, ceil, explain, floor, formula, maximum, minimum, named, total, where
from rooftop.formula import given as quantity
from rooftop.roofline import _ops
from rooftop.training import _run, _step

sympy = pytest.importorskip("sympy")

FORMULAS = [
    function
    for module in (_ops, _run, _step)
    for _, function in inspect.getmembers(module, inspect.isfunction)
    if hasattr(function, "__wrapped__") and function.__module__ == module.__name__
]


def test_there_are_formulas_in_every_room():
    assert {f.__name__ for f in FORMULAS} >= {
        "math_seconds",
        "memory_seconds",
        "gather_seconds",
        "utilisation",
        "cost",
        "optimizer_seconds",
    }


@pytest.mark.parametrize("function", FORMULAS, ids=lambda f: f.__name__)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_every_formula_gives_one_value_in_four_arithmetics(function, data):
    names = list(inspect.signature(function).parameters)
    numbers = [data.draw(st.floats(0.01, 1e6), label=name) for name in names]
    plain = function(*numbers)
    assert isinstance(plain, float)

    array = function(*(np.full((2, 3), n) for n in numbers))
    assert array.shape == (2, 3)
    assert array == pytest.approx(plain, rel=1e-12)

    symbols = [sympy.Symbol(name, positive=True) for name in names]
    expression = function(*symbols)
    assert float(expression.subs(dict(zip(symbols, map(sympy.Float, numbers), strict=True)))) == pytest.approx(
        plain, rel=1e-9
    )

    traced = function(*(quantity(n, name) for n, name in zip(numbers, names, strict=True)))
    assert isinstance(traced, Traced)
    assert float(traced) == pytest.approx(plain, rel=1e-12)
    assert traced.op == "named"
    assert explain(traced).name == traced.name


def test_kwargs_are_traced_too():
    assert isinstance(_ops.math_seconds(flops=quantity(1.0, "F"), peak=2.0), Traced)


def test_an_explanation_shows_formula_numbers_and_sources():
    flops, peak = quantity(4.0e12, "flops", "FLOP"), quantity(2.0e14, "C", "FLOP/s", "data sheet")
    told = explain(_ops.math_seconds(flops, peak))
    assert (told.name, told.value, told.unit) == ("T_math", 0.02, "s")
    assert told.formula == "flops/C"
    assert told.substitution == "4e12 FLOP/2e14 FLOP/s"
    assert "book, section 1" in told.source
    assert [(i.name, i.source) for i in told.inputs] == [("flops", ""), ("C", "data sheet")]
    assert explain(_ops.math_seconds(flops, peak), 0).inputs == ()


def test_an_explanation_nests_named_steps():
    def seconds():
        return _ops.math_seconds(quantity(6.0, "flops"), quantity(2.0, "C"))

    bound = _ops.overlapped_seconds(seconds(), _ops.memory_seconds(quantity(8.0, "bytes"), quantity(4.0, "W")))
    told = explain(bound, 2)
    assert told.formula == "max(T_math, T_hbm)"
    assert told.substitution == "max(3 s, 2 s)"
    assert [i.name for i in told.inputs] == ["T_math", "T_hbm"]
    assert [depth for depth, _ in told.walk()] == [0, 1, 2, 2, 1, 2, 2]


def test_parentheses_appear_where_they_are_needed():
    a, b, c = quantity(1.5, "a"), quantity(2.5, "b"), quantity(4.0, "c")
    shown = {
        "(a + b)·c": (a + b) * c,
        "a - (b - c)": a - (b - c),
        "a - b - c": a - b - c,
        "a/(b·c)": a / (b * c),
        "a/b/c": a / b / c,
        "a/(b + c)": a / (b + c),
        "a·b^2": a * b**2,
        "max(a, b, c)": maximum(a, b, c),
        "ceil(a/b)": ceil(a / b),
        "a + b + c": total([a, b, c]),
    }
    for text, value in shown.items():
        assert explain(named(value, "x")).formula == text


@settings(max_examples=50, deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(0.1, 1e6), st.floats(-1e6, 1e6))
def test_traced_arithmetic_is_arithmetic(x, y, z):
    a, b = quantity(x, "a"), quantity(y, "b")
    assert float(a + b) == x + y
    assert float(z - a) == z - x
    assert float(a - z) == x - z
    assert float(z * a) == z * x
    assert float(a / b) == x / y
    assert float(z / b) == z / y
    assert float(z + a) == z + x
    assert float(a // b) == x // y or math.isclose(x / y, round(x / y), rel_tol=1e-12)
    assert float(b**2) == y**2
    assert float(np.float64(z) * b) == z * y
    assert (a < b) == (x < y)
    assert (a >= z) == (x >= z)
    assert float(floor(a)) == math.floor(x)
    assert float(ceil(a)) == math.ceil(x)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_extremes_and_totals_agree_over_arithmetics(numbers):
    traced = [quantity(n, f"x{i}") for i, n in enumerate(numbers)]
    arrays = [np.array([n]) for n in numbers]
    for ours, theirs in ((maximum, max), (minimum, min)):
        assert ours(*numbers) == theirs(numbers)
        assert float(ours(*traced)) == theirs(numbers)
        assert ours(*arrays)[0] == theirs(numbers)
    assert total(numbers) == pytest.approx(sum(numbers), abs=1e-6)
    assert float(total(traced)) == pytest.approx(sum(numbers), abs=1e-6)
    assert total(arrays)[0] == pytest.approx(sum(numbers), abs=1e-6)


def test_totals_of_nothing_and_of_one():
    assert total([]) == 0.0
    one = np.array([1.0, 2.0])
    assert total([one]) is one
    assert float(total([1.0, quantity(2.0, "x")])) == 3.0


def test_where_chooses_in_every_arithmetic():
    assert where(True, 1.0, 2.0) == 1.0
    assert where(np.array([True, False]), 1.0, 2.0).tolist() == [1.0, 2.0]
    a, b = quantity(1.0, "a"), quantity(2.0, "b")
    assert where(a > 1.5, a, b) is b
    assert where(np.bool_(True), a, b) is a


def test_mixed_extremes_keep_the_derivation():
    assert explain(named(maximum(1.0, quantity(2.0, "a")), "x")).formula == "max(1, a)"
    assert maximum(np.array([1.0, 5.0]), 3.0).tolist() == [3.0, 5.0]
    x = sympy.Symbol("x")
    assert maximum(x, 3) == sympy.Max(x, 3)
    assert ceil(x) == sympy.ceiling(x)


def test_naming_a_plain_number_costs_nothing():
    array = np.ones(3)
    assert named(array, "x") is array
    assert named(2.0, "x") == 2.0


def test_a_user_formula_labels_its_nameless_arguments():
    @formula("T", "s")
    def twice(work, rate):
        return 2 * work / rate

    told = explain(twice(quantity(3.0, "a") + quantity(4.0, "b"), 2.0))
    assert told.formula == "2·work/2"
    assert told.value == 7.0
    assert told.inputs[0].name == "work"
    assert twice(3.0, 2.0) == 3.0
    assert twice.__name__ == "twice"
