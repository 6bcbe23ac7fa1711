"""The notation: what is read, what is printed, what is refused and how."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooftop.arrays import Array, Expression, Sharding, Term, parse, parse_array
from rooftop.errors import InputError


def test_an_einsum_with_shardings():
    expression = parse("A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]")
    assert expression == Expression(
        (
            Term(Array("A", ("I", "J")), Sharding((("X",), ()))),
            Term(Array("B", ("J", "K")), Sharding(((), ("Y",)))),
        ),
        Term(Array("C", ("I", "K")), Sharding((("X",), ("Y",)))),
    )
    assert expression.indices == ("I", "J", "K")
    assert expression.mesh_axes == ("X", "Y")


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("A[I_XY]", ("X", "Y")),
        ("A[I_{X,Y}]", ("X", "Y")),
        ("A[I_fsdp]", ("fsdp",)),
        ("A[I_tensor_kv]", ("tensor_kv",)),
        ("A[I_{fsdp, tensor}]", ("fsdp", "tensor")),
        ("A[I_{TP}]", ("TP",)),
        ("A[ I _XY ]", ("X", "Y")),
    ],
)
def test_mesh_axes_of_an_axis(text: str, axes: tuple[str, ...]):
    term, _ = parse_array(text)
    assert term.sharding.axes == (axes,)


def test_unreduced_axes():
    assert parse_array("C[I, K]{U_X}")[0].sharding.unreduced == ("X",)
    assert parse_array("C[I, K] {U_{fsdp,tensor}}")[0].sharding.unreduced == ("fsdp", "tensor")


def test_dtypes_sizes_and_names_left_out():
    expression = parse("bf16[B=512, D=8192] * int8[D, F=28672] -> f32[B, F]")
    assert [(term.array.name, term.array.dtype) for term in expression.terms] == [
        ("A", "bf16"),
        ("B", "int8"),
        ("C", "f32"),
    ]
    assert expression.sizes == {"B": 512, "D": 8192, "F": 28672}
    assert str(expression) == "A[B=512, D=8192] * int8 B[D, F=28672] -> f32 C[B, F]"


def test_names_that_are_left_out_avoid_those_given():
    assert [t.array.name for t in parse("[I] * A[I] * [I] -> [I]").terms] == ["B", "A", "C", "D"]


def test_resharding_of_one_array():
    assert parse("A[I_X, J] -> A[I, J_X]").resharding
    assert not parse("A[I_X, J] -> C[I, J_X]").resharding


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "position 1 .*expected an array.*found the end"),
        ("A", "position 2 .*expected \\["),
        ("A[I", "position 4 .*expected , or \\]"),
        ("A[I_]", "position 5 .*expected mesh axes"),
        ("A[I_{X]", "position 7 .*expected , or }"),
        ("A[128, J] -> C[J]", "position 3 .*expected an axis name"),
        ("A[I=8k] -> C[I]", "position 5 .*expected a whole number for the size of I"),
        ("A[I=0] -> C[I]", "position 5 .*a size of I from 1"),
        ("A[I=1.5] -> C[I]", "a whole number"),
        ("A[I=8] * B[I=9] -> C[I]", "axis I is given two sizes, 8 and 9"),
        ("A[I] B[I] -> C[I]", "position 6 .*expected \\* or ->"),
        ("A[I] * B[I]", "position 12 .*expected -> and the output"),
        ("A[I] -> C[I] -> D[I]", "position 14 .*expected the end"),
        ("A[I]{X} -> C[I]", "position 6 .*expected U_"),
        ("A[I, I] -> C[I]", "A has axis I twice"),
        ("A[I] * A[J] -> C[I, J]", "two inputs are called A"),
        ("A[I] * B[J] -> A[I, J]", "the output is called A like an input"),
        ("A[I] -> A[J]", "A has other axes"),
        ("A[I] -> C[J]", "axis J of the output C is in no input; inputs have I"),
        ("A[I_X, J_X] -> C[I]", "A uses mesh axis X twice"),
        ("*".join("ABCDEFGHI"[i] + "[I]" for i in range(9)) + "->Z[I]", "at most 8 arrays"),
        ("A[" + ",".join(f"a{i}" for i in range(17)) + "] -> C[]", "at most 16 axes"),
        ("A[I]" + " " * 3000, "too long; at most 2000"),
        ("Ａ[I] -> C[I]", "expected an array"),
        ("A[I=９] -> C[I]", "a whole number"),
    ],
)
def test_what_cannot_be_read_says_where_and_why(text: str, message: str):
    with pytest.raises(InputError, match=message):
        parse(text)


MESH_NAMES = ("X", "Y", "Z", "fsdp", "tensor_kv", "TP", "x1")


@st.composite
def terms(draw: st.DrawFn, name: str, known: list[str] | None = None) -> Term:
    pool = known if known is not None else ["I", "J", "K", "dim2"]
    axes = draw(st.lists(st.sampled_from(pool), max_size=4, unique=True)) if pool else []
    mesh = draw(st.permutations(MESH_NAMES))
    cuts = sorted(draw(st.lists(st.integers(0, len(mesh)), min_size=len(axes) + 1, max_size=len(axes) + 1)))
    groups = [tuple(mesh[a:b]) for a, b in zip([0, *cuts], cuts, strict=False)]
    dtype = draw(st.sampled_from(["bf16", "f32", "int8", "fp8"]))
    return Term(Array(name, tuple(axes), dtype), Sharding(tuple(groups[: len(axes)]), groups[-1]))


@st.composite
def expressions(draw: st.DrawFn) -> Expression:
    inputs = tuple(draw(terms(name)) for name in ("A", "W_in", "B2")[: draw(st.integers(1, 3))])
    known = sorted({axis for term in inputs for axis in term.array.axes})
    output = draw(terms("Out", known))
    sizes = {axis: draw(st.integers(1, 10**12)) for axis in known if draw(st.booleans())}
    return Expression(inputs, output, sizes)


@given(expressions())
def test_what_is_printed_reads_back(expression: Expression):
    assert parse(str(expression)) == expression


@given(st.text(alphabet="ABI_XY[]{}U,*->= 19fp\n", max_size=60))
def test_any_text_is_read_or_refused_in_one_line(text: str):
    try:
        expression = parse(text)
    except InputError as error:
        message = error.message
    else:
        message = ""
        assert parse(str(expression)) == expression
    assert "\n" not in message
