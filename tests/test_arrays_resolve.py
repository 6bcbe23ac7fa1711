"""An einsum under shardings: the book's cases, the law that every way computes the einsum, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from rooftop.arrays import Array, Mesh, Sharding, Size, link_bytes, local_size, parse, parse_array, reshard, resolve
from rooftop.arrays._emulate import collect, contract, distribute, emulate, execute
from rooftop.arrays._notation import Expression, Term
from rooftop.errors import InputError

MESH = Mesh.of({"X": 4, "Y": 8})
SIZES = {"I": 256, "J": 512, "K": 1024}


def best(text: str, mesh: Mesh = MESH, **sizes: int) -> str:
    return str(resolve(parse(text), SIZES | sizes, mesh).best)


def listed(text: str, **sizes: int) -> list[str]:
    return [str(way) for way in resolve(parse(text), SIZES | sizes, MESH).ways]


# The book's four cases


def test_no_communication_where_no_index_is_summed_over_a_split_axis():
    assert listed("A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]") == ["no communication"]


def test_one_input_split_on_the_summed_index_is_gathered_or_both_are_and_the_output_is_summed():
    assert listed("A[I, J_X] * B[J, K] -> C[I, K]") == ["AllGather_X A", "AllReduce_X C"]
    assert best("A[I, J_X] * B[J, K] -> C[I, K]", J=65536) == "AllReduce_X C"


def test_both_inputs_split_on_the_summed_index():
    assert listed("A[I, J_X] * B[J_X, K] -> C[I, K]") == ["AllReduce_X C"]
    assert best("A[I, J_X] * B[J_X, K] -> C[I, K_X]") == "ReduceScatter_X C"
    assert best("A[I, J_X] * B[J_X, K] -> C[I_X, K]") == "ReduceScatter_X C"
    assert best("A[I, J_X] * B[J_X, K] -> C[I, K]{U_X}") == "no communication"


def test_both_inputs_split_over_one_mesh_axis_on_indices_of_the_output():
    assert best("A[I_X, J] * B[J, K_X] -> C[I_X, K]", K=256) == "AllGather_X B"
    assert best("A[I_X, J] * B[J, K_X] -> C[I, K_X]") == "AllGather_X A"
    assert listed("A[I_X, J] * B[J, K_X] -> C[I_X, K]", K=1024)[0] == "AllGather_X A, AllToAll_X C"
    with pytest.raises(InputError, match="C uses mesh axis X twice"):
        resolve(parse("A[I_X, J] * B[J, K_X] -> C[I_X, K_X]"), SIZES, MESH)


def test_resharding():
    assert best("A[I_X, J] -> A[I, J_X]") == "AllToAll_X A"
    assert best("A[I_X, J] -> A[I, J]") == "AllGather_X A"
    assert best("A[I, J]{U_X} -> A[I, J]") == "AllReduce_X A"
    assert best("A[I, J]{U_X} -> A[I_X, J]") == "ReduceScatter_X A"
    assert best("A[I_XY, J] -> A[I, J]") == "AllGather_XY A"
    assert best("A[I_XY, J] -> A[I_YX, J]") == "Permute_XY A"
    way = resolve(parse("A[I, J] -> A[I_X, J]"), SIZES, MESH).best
    assert (way.collectives, way.cost, [str(step) for step in way.steps]) == ((), 0, ["Slice_X A"])


def test_mesh_axes_of_one_array_axis_are_gathered_together():
    assert best("A[B_{fsdp,tensor}, D] * W[D, F] -> C[B, F]", Mesh.of({"fsdp": 2, "tensor": 4}), B=64, D=64, F=64) in (
        "AllGather_{fsdp,tensor} A",
        "AllGather_{fsdp,tensor} C",
    )


# Quantities


def test_bytes_of_a_block_and_of_all_devices():
    term, _ = parse_array("int8 A[I_XY, J]")
    block = local_size(term.array, term.sharding)({"I": 128, "J": 2048}, {"X": 2, "Y": 8, "Z": 2})
    assert (block, block * 2 * 8 * 2) == (16384, 524288)


def test_copies_of_an_array_that_is_split_over_one_mesh_axis():
    term, _ = parse_array("A[I_X, J, K]")
    mesh = Mesh.of({"X": 4, "Y": 8, "Z": 2})
    block = local_size(term.array, term.sharding)
    assert block * mesh.devices / Size.of(term.array.axes) == Size(mesh.devices, (), (("X", -1),))
    assert mesh.devices / mesh.sizes["X"] == 16


def test_reduce_scatter_after_over_gather_before_is_k_over_m():
    """A[N, M_X] * B[M, K] -> C[N, K_X]: sum and scatter C[N, K], or gather A[N, M]."""
    ways = resolve(parse("A[N, M_X] * B[M, K] -> C[N, K_X]"), {"N": 64, "M": 512, "K": 128}, MESH).ways
    bytes_of = {str(way): way.steps for way in ways}
    (scatter,) = [c for c in bytes_of["ReduceScatter_X C"] if c.kind != "slice"]
    (gather,) = [c for c in bytes_of["AllGather_X A"] if c.kind != "slice"]
    assert str(scatter.bytes / gather.bytes) == "K/M"


def test_flops_in_all_and_per_chip():
    mesh = Mesh.of({"X": 4, "Y": 8, "Z": 4})
    local = resolve(parse("A[B_X, D_Y] * W[D_Y, F] -> C[B_X, F]{U_Y}"), {"B": 64, "D": 64, "F": 64}, mesh).best.local
    assert local is not None
    assert str(local.flops) == "2·B·D·F/(X·Y)"
    per_chip = local.flops({"B": 1, "D": 1, "F": 1}, mesh.sizes)
    assert (per_chip, per_chip * mesh.devices) == (2 / 32, 2 * 4)


def test_flops_of_a_contraction_are_twice_the_product_of_all_axes():
    text = "A[I, J, K, L] * B[I, J, M, N, O] -> C[K, L, M, N, O]"
    local = resolve(parse(text), dict.fromkeys("IJKLMNO", 8), MESH).best.local
    assert local is not None
    assert str(local.flops) == "2·I·J·K·L·M·N·O"
    assert [str(s) for s in (local.batch, local.rows, local.contraction, local.columns)] == ["1", "K·L", "I·J", "M·N·O"]


def test_sizes_evaluate_on_symbols():
    sympy = pytest.importorskip("sympy")
    way = resolve(parse("A[B_X, D_Y] * W[D_Y, F] -> C[B_X, F]"), {"B": 64, "D": 64, "F": 64}, MESH).best
    symbols = {name: sympy.Symbol(name, positive=True) for name in "BDFXY"}
    B, D, F, X, Y = symbols.values()
    assert way.local is not None
    assert sympy.simplify(way.local.flops(symbols, symbols) - 2 * B * D * F / (X * Y)) == 0
    (reduce,) = way.collectives
    assert sympy.simplify(link_bytes(reduce, symbols, symbols) - 2 * 2 * B * F / X * (Y - 1) / Y) == 0


def test_sizes_evaluate_on_arrays_of_mesh_sizes():
    (gather,) = resolve(parse("A[I_X, J_Y] -> A[I, J_Y]"), SIZES, MESH).best.collectives
    mesh = {"X": np.array([1, 2, 4]), "Y": np.array([1, 1, 8])}
    np.testing.assert_array_equal(gather.bytes(SIZES, mesh), 2 * 256 * 512 / mesh["Y"])
    np.testing.assert_allclose(link_bytes(gather, SIZES, mesh), 2 * 256 * 512 / mesh["Y"] * (1 - 1 / mesh["X"]))


def test_a_cost_of_the_caller_decides():
    expression = parse("A[I, J_X] * B[J, K] -> C[I, K]")
    dear_gathers = resolve(expression, SIZES, MESH, cost=lambda c: 10.0 if c.kind == "all_gather" else 1.0)
    assert [(str(way), way.cost) for way in dear_gathers.ways] == [("AllReduce_X C", 1.0), ("AllGather_X A", 10.0)]


def test_ways_whose_split_does_not_divide_are_left_out():
    def splits_of_i(size: int) -> set[tuple[str, ...]]:
        ways = resolve(parse("A[I_X, J] * B[J, K_X] -> C[I_Y, K]"), SIZES | {"I": size}, MESH).ways
        return {way.local.shardings[0].axes[0] for way in ways if way.local}

    assert ("Y", "X") in splits_of_i(32)
    assert all(len(names) < 2 for names in splits_of_i(8))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A[I_X, J_X] -> A[I, J]", "A uses mesh axis X twice"),
        ("A[I_Z, J] -> A[I, J]", "mesh axis Z, which is not in the mesh"),
        ("A[I=6_X, J] -> A[I, J]", r"X=4 \(4 ways\) does not divide axis I\(6\) of A"),
        ("A[I, L] -> A[I, L]", "axis L has no size"),
        ("A[I_X, J] -> A[I, J]{U_X}", "holds no partial sums over X"),
        ("A[I, J]{U_X} -> A[I, J_X]{U_X}", "both split over mesh axis X"),
        ("A[I_X] * B[K] -> C[I, K]{U_X}", "C.* cannot be left unreduced over X"),
        ("A[I]{U_XX} -> A[I]", "names mesh axis X twice"),
    ],
)
def test_what_is_illegal_is_refused_by_name(text: str, message: str):
    with pytest.raises(InputError, match=message):
        resolve(parse(text), SIZES, MESH)


# Laws

EXTENTS = (1, 2, 3, 4, 6, 8, 12)


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    return Mesh.of({name: draw(st.integers(1, 4)) for name in "XYZ"[: draw(st.integers(1, 3))]})


@st.composite
def shardings(draw: st.DrawFn, array: Array, sizes: dict[str, int], mesh: Mesh) -> Sharding:
    axes: list[tuple[str, ...]] = [() for _ in array.axes]
    unreduced: list[str] = []
    for name in draw(st.permutations(list(mesh.sizes))):
        place = draw(st.integers(-2, len(axes) - 1))
        if place == -1 and draw(st.booleans()):
            unreduced.append(name)
        elif place >= 0:
            names = (*axes[place], name)
            if sizes[array.axes[place]] % math.prod(mesh.sizes[n] for n in names) == 0:
                axes[place] = names
    return Sharding(tuple(axes), tuple(unreduced))


@st.composite
def expressions(draw: st.DrawFn) -> tuple[Expression, Mesh]:
    mesh = draw(meshes())
    indices = "IJKL"[: draw(st.integers(1, 4))]
    sizes = {index: draw(st.sampled_from(EXTENTS)) for index in indices}
    inputs = []
    for name in "ABC"[: draw(st.sampled_from([1, 2, 2, 2, 3]))]:
        axes = draw(st.lists(st.sampled_from(indices), min_size=1, max_size=3, unique=True))
        array = Array(name, tuple(axes))
        inputs.append(Term(array, draw(shardings(array, sizes, mesh))))
    known = sorted({axis for term in inputs for axis in term.array.axes})
    array = Array("Out", tuple(draw(st.lists(st.sampled_from(known), max_size=3, unique=True))))
    return Expression(tuple(inputs), Term(array, draw(shardings(array, sizes, mesh))), sizes), mesh


def integers(array: Array, sizes: dict[str, int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 10, [sizes[axis] for axis in array.axes])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(expressions())
def test_every_way_computes_the_einsum(case: tuple[Expression, Mesh]):
    expression, mesh = case
    try:
        resolution = resolve(expression, {}, mesh)
    except InputError as error:
        if "cannot be left unreduced" in error.message:
            reject()
        raise
    sizes = dict(expression.sizes)
    wholes = [integers(term.array, sizes, i) for i, term in enumerate(expression.inputs)]
    blocks = {
        term.array.name: distribute(whole, term.sharding, mesh, seed=i)
        for i, (term, whole) in enumerate(zip(expression.inputs, wholes, strict=True))
    }
    output = expression.output
    expected = contract(wholes, [term.array.axes for term in expression.inputs], output.array.axes)
    for way in resolution.ways:
        made = emulate(way, blocks, mesh)
        np.testing.assert_array_equal(collect(made, output.sharding, mesh), expected, err_msg=f"{expression}: {way}")
    costs = [float(f"{way.cost:.9g}") for way in resolution.ways]
    assert costs == sorted(costs)
    texts = [tuple((str(c), c.axis, c.to_axis) for c in way.collectives) for way in resolution.ways]
    assert len(set(texts)) == len(texts)


@st.composite
def reshardings(draw: st.DrawFn) -> tuple[Array, Sharding, Sharding, dict[str, int], Mesh]:
    mesh = draw(meshes())
    sizes = {index: draw(st.sampled_from(EXTENTS)) for index in "IJK"}
    array = Array("A", tuple("IJK"[: draw(st.integers(1, 3))]))
    start, goal = (draw(shardings(array, sizes, mesh)) for _ in range(2))
    return array, start, Sharding(goal.axes, tuple(n for n in goal.unreduced if n in start.unreduced)), sizes, mesh


@settings(max_examples=400, deadline=None)
@given(reshardings())
def test_resharding_keeps_the_array_and_moves_what_it_says(
    case: tuple[Array, Sharding, Sharding, dict[str, int], Mesh],
):
    array, start, goal, sizes, mesh = case
    whole = integers(array, sizes, 0)
    blocks = distribute(whole, start, mesh)
    state = start
    steps = reshard(array, start, goal, sizes, mesh)
    for step in steps:
        assert (step.before.axes, set(step.before.unreduced)) == (state.axes, set(state.unreduced))
        after = execute(step, blocks, mesh)
        group = math.prod(mesh.sizes[name] for name in step.axes)
        size = step.size(sizes, mesh.sizes)
        before_block, after_block = (next(iter(b.values())).size for b in (blocks, after))
        assert size == {"all_gather": after_block, "all_to_all": group * before_block}.get(step.kind, before_block)
        blocks, state = after, step.after
    assert (state.axes, set(state.unreduced)) == (goal.axes, set(goal.unreduced))
    np.testing.assert_array_equal(collect(blocks, goal, mesh), whole)

    # Never dearer than to sum everything in place, gather everything and slice.
    summed = Sharding(start.axes, goal.unreduced)
    everywhere = Sharding(tuple(() for _ in start.axes), goal.unreduced)
    naive = (*reshard(array, start, summed, sizes, mesh), *reshard(array, summed, everywhere, sizes, mesh))
    costs = [sum(float(link_bytes(step, sizes, mesh.sizes)) for step in way) for way in (steps, naive)]
    assert costs[0] <= costs[1] * (1 + 1e-6) + 1e-6


@settings(max_examples=100, deadline=None)
@given(reshardings())
def test_structural_resharding_never_relies_on_equal_mesh_sizes(
    case: tuple[Array, Sharding, Sharding, dict[str, int], Mesh],
):
    array, start, goal, _, mesh = case
    equal = Mesh.of(dict.fromkeys(mesh.sizes, 2))
    other = Mesh.of({name: size for name, size in zip(mesh.sizes, (2, 3, 1), strict=False)})
    sizes = dict.fromkeys(array.axes, 6)
    whole = integers(array, sizes, 0)
    blocks = distribute(whole, start, other)
    for step in reshard(array, start, goal, sizes, equal, structural=True):
        blocks = execute(step, blocks, other)
    np.testing.assert_array_equal(collect(blocks, goal, other), whole)
