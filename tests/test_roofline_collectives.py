"""Collectives on tori and switches: facts of the book's schedules, laws, and all placements."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooftop.errors import InputError
from rooftop.hardware import Slice, Torus, slice_of
from rooftop.roofline import (
    COLLECTIVES,
    Placement,
    calibration_for,
    collective_seconds,
    collective_time,
    dimensions,
    divisors,
    group,
    ideal,
    natural_placement,
    placements,
    placements_of,
    single_placements,
)

LINK = 4.5e10  # v5e, one link one way
SLICES = (
    "v5e:4x4",
    "v5e:8x16",
    "v5e:16x16",
    "v5p:4x4x4",
    "v5p:2x2x4",
    "v5p:4x4x8*2",
    "h100:8",
    "h100:64",
    "gb200:144",
    "v5e:4x8*4",
)


def timed(kind, bytes, axes, where):
    return collective_time(kind, bytes, axes, slice_of(where))


def test_the_link_is_as_the_book_has_it():
    (torus,) = slice_of("v5e:16x16").levels
    assert torus.link_bandwidth == LINK


def test_a_whole_wrapped_ring_gathers_in_bytes_over_both_links():
    t = timed("all-gather", 1e9, {"X": 16}, "v5e:16x16")
    assert t.seconds == pytest.approx(1e9 / (2 * LINK))
    assert t.bound == pytest.approx(1e9 * 15 / 16 / (2 * LINK))
    assert (t.regime, t.hops) == ("bandwidth", 8)


def test_an_open_line_has_one_link_at_its_end():
    t = timed("all-gather", 1e9, {"X": 4}, "v5e:4x4")
    assert t.seconds == pytest.approx(1e9 * 3 / 4 / LINK)
    assert t.hops == 3


def test_two_sides_together_have_the_links_of_both():
    one, two = (
        timed("all_gather", 1e9, {"X": 16}, "v5e:16x16"),
        timed("all_gather", 1e9, {"X": 16, "Y": 16}, "v5e:16x16"),
    )
    assert two.seconds == pytest.approx(one.seconds / 2, rel=1e-9)


def test_small_messages_wait_for_hops():
    t = timed("all_gather", 10.0, {"X": 16}, "v5e:16x16")
    (torus,) = slice_of("v5e:16x16").levels
    assert t.regime == "latency"
    assert t.seconds == pytest.approx(8 * torus.hop_latency)


def test_all_to_all_costs_a_quarter_of_a_gather_on_a_ring():
    gather, exchange = (timed(k, 1e9, {"X": 16}, "v5e:16x16").seconds for k in ("all_gather", "all_to_all"))
    assert exchange == pytest.approx(gather / 4)


def test_switched_gather_and_reduction_inside_a_node():
    nvlink = slice_of("h100:8").levels[0]
    assert timed("all_gather", 8e9, {"X": 8}, "h100:8").bound == pytest.approx(7e9 / nvlink.bandwidth)
    assert nvlink.reduces
    assert timed("all_reduce", 8e9, {"X": 8}, "h100:8").bound == pytest.approx(8e9 / nvlink.bandwidth)
    assert timed("all_to_all", 8e9, {"X": 8}, "h100:8").bound == pytest.approx(8e9 * 7 / 64 / nvlink.bandwidth)


def test_a_group_over_nodes_is_bound_by_the_slowest_level():
    nvlink, ib = slice_of("h100:64").levels
    t = timed("all_gather", 8e9, {"X": 64}, "h100:64")
    assert t.bound == pytest.approx(max(7e9 / nvlink.bandwidth, 7e9 / (8 * ib.bandwidth)))


@pytest.mark.parametrize("kind", ["all-gather", "AllGather", "all_gather", "ALLGATHER"])
def test_names_are_read_in_any_spelling(kind):
    assert timed(kind, 1e9, {"X": 16}, "v5e:16x16").kind == "all_gather"


@pytest.mark.parametrize(
    ("kind", "axes", "part"), [("all-gater", {"X": 4}, "did you mean"), ("all_gather", {}, "mesh axes"), ("all_gather", {"X": 3}, "does not divide"),
                               ("all_gather", {"X": 512}, "does not divide")],
)  # fmt: skip
def test_refusals(kind, axes, part):
    with pytest.raises(InputError, match=part):
        timed(kind, 1e9, axes, "v5e:16x16")


@st.composite
def groups(draw):
    """A slice and a mesh axis that fits on it."""
    where = slice_of(draw(st.sampled_from(SLICES)))
    options = []
    for n in divisors(where.chips):
        try:
            options.append(placements_of({"X": n}, where))
        except InputError:
            continue
    return where, draw(st.sampled_from(draw(st.sampled_from(options))))


BYTES = st.floats(1.0, 1e12)


@settings(max_examples=60, deadline=None)
@given(groups(), BYTES, st.sampled_from(COLLECTIVES))
def test_bound_below_schedule_and_below_expected(drawn, bytes, kind):
    where, placement = drawn
    physics = collective_seconds(kind, bytes, group(placement, ["X"]))
    schedule = collective_seconds(kind, bytes, group(placement, ["X"], whole_shards=True))
    expected = collective_seconds(
        kind, bytes, group(placement, ["X"], calibration_for(where.chip.name, where.chip.family))
    )
    assert physics <= schedule * (1 + 1e-12)
    assert physics <= expected * (1 + 1e-12)
    assert collective_seconds(kind, bytes, group(placement, ["X"], ideal())) == pytest.approx(physics)


@settings(max_examples=60, deadline=None)
@given(groups(), BYTES)
def test_an_all_reduce_is_a_reduce_scatter_and_a_gather_or_faster_by_switches(drawn, bytes):
    where, placement = drawn
    g = group(placement, ["X"])
    both = collective_seconds("reduce_scatter", bytes, g) + collective_seconds("all_gather", bytes, g)
    whole = collective_seconds("all_reduce", bytes, g)
    assert whole <= both * (1 + 1e-12)
    if not any(getattr(level, "reduces", False) for level in where.levels):
        assert whole == pytest.approx(both)


@settings(max_examples=60, deadline=None)
@given(groups(), BYTES, st.floats(1.0, 10.0), st.sampled_from(COLLECTIVES))
def test_more_bandwidth_is_never_slower(drawn, bytes, factor, kind):
    _, placement = drawn
    for d, dimension in enumerate(placement.dimensions):
        faster = [
            replace(x, bandwidth=x.bandwidth * factor) if i == d else x for i, x in enumerate(placement.dimensions)
        ]
        before = collective_seconds(kind, bytes, group(placement, ["X"]))
        after = collective_seconds(kind, bytes, group(replace(placement, dimensions=tuple(faster)), ["X"]))
        assert after <= before * (1 + 1e-12), dimension


@settings(max_examples=40, deadline=None)
@given(groups(), BYTES, st.floats(1.0, 10.0), st.sampled_from(COLLECTIVES))
def test_more_bytes_are_never_faster_and_never_slower_than_proportional(drawn, bytes, factor, kind):
    _, placement = drawn
    g = group(placement, ["X"])
    few, many = collective_seconds(kind, bytes, g), collective_seconds(kind, bytes * factor, g)
    assert few <= many * (1 + 1e-12)
    assert many <= few * factor * (1 + 1e-12)


@settings(max_examples=30, deadline=None)
@given(groups(), BYTES, st.sampled_from(COLLECTIVES))
def test_a_group_of_one_costs_nothing(drawn, bytes, kind):
    _, placement = drawn
    assert collective_seconds(kind, bytes, group(placement, ["Y"])) == 0
    assert group(placement, ["Y"]).size == 1
    assert group(placement, ["Y"]).hops == 0


@settings(max_examples=40, deadline=None)
@given(groups())
def test_what_enters_a_chip_is_the_share_of_the_others(drawn):
    """No schedule brings (n-1)/n of the array into a chip faster than all of its links together."""
    where, placement = drawn
    g = group(placement, ["X"])
    fastest = sum(
        2 * len(lv.dims) * lv.link_bandwidth if isinstance(lv, Torus) else lv.bandwidth * where.chips
        for lv in where.levels
    )
    assert g.gather_rate >= (g.size - 1) / g.size / fastest * (1 - 1e-12)


@pytest.mark.parametrize("where", ["v5p:4x4x4", "v5e:16x16"])
def test_more_chips_gather_no_smaller_share(where):
    sizes = divisors(slice_of(where).chips)[1:]
    latencies = [float(timed("all_gather", 1.0, {"X": n}, where).bound) for n in sizes]
    assert latencies == sorted(latencies)


@settings(max_examples=40, deadline=None)
@given(groups(), st.sampled_from(COLLECTIVES))
def test_arrays_of_placements_are_timed_like_each_of_them(drawn, kind):
    where, chosen = drawn
    every = placements_of({"X": math.prod(f.get("X", 1) for f in chosen.factors)}, where)
    together = Placement(
        chosen.dimensions,
        tuple({a: np.array([p.factors[d].get(a, 1) for p in every]) for a in chosen.order} for d in range(len(chosen.dimensions))),
        chosen.order,
    )  # fmt: skip
    many = np.broadcast_to(collective_seconds(kind, 1e8, group(together, ["X"])), (len(every),))
    assert many.tolist() == pytest.approx(
        [float(collective_seconds(kind, 1e8, group(p, ["X"]))) for p in every], rel=1e-12
    )


@pytest.mark.parametrize(
    ("used", "mesh"), [((4, 4), (2, 4, 2)), ((4, 4), (1, 16, 1)), ((8,), (2, 2, 2)), ((2, 2, 4), (4, 2, 2)), ((6, 4), (3, 4, 2)), ((4, 8), (32, 1, 1)),
                       ((16, 2), (8, 4, 1)), ((1, 4), (2, 2, 1)), ((3, 5), (15, 1, 1))],
)  # fmt: skip
def test_placements_equal_a_plain_enumeration(used, mesh):
    def ways(n):
        return [f for f in itertools.product(range(1, n + 1), repeat=len(mesh)) if math.prod(f) == n]

    truth = {
        rows for rows in itertools.product(*map(ways, used)) if tuple(map(math.prod, zip(*rows, strict=True))) == mesh
    }
    index, factors = placements(used, np.array([mesh]))
    found = [tuple(map(tuple, f)) for f in factors.tolist()]
    assert set(found) == truth
    assert len(found) == len(truth)
    assert not index.any()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 16]), min_size=1, max_size=3), st.data())
def test_every_placement_multiplies_to_the_mesh_and_to_the_sides(used, data):
    left, mesh = math.prod(used), []
    for _ in range(3):
        mesh.append(data.draw(st.sampled_from(divisors(left))))
        left //= mesh[-1]
    rows = np.array([[*mesh, left], [left, *mesh]])
    index, factors = placements(used, rows)
    assert (np.diff(index) >= 0).all()
    assert (factors.prod(axis=1) == rows[index]).all()
    assert (factors.prod(axis=2) == np.array(used)).all()
    assert set(index.tolist()) == {0, 1}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([1, 2, 4, 6, 8]), min_size=1, max_size=3), st.data())
def test_single_placements_are_the_divisors_of_the_sides(used, data):
    ways = data.draw(st.sampled_from(divisors(math.prod(used))))
    truth = [row for row in itertools.product(*map(divisors, used)) if math.prod(row) == ways]
    assert single_placements(used, ways).tolist() == [list(row) for row in truth]


def test_one_chip_has_one_placement():
    assert single_placements((), 1).shape == (1, 0)
    index, factors = placements((), np.array([[1, 1]]))
    assert (index.tolist(), factors.shape) == ([0], (1, 0, 2))
    assert natural_placement({"X": 1}, slice_of("v5e")).dimensions == ()


@pytest.mark.parametrize("where", SLICES)
def test_natural_placements_take_whole_sides(where):
    at = slice_of(where)
    first = dimensions(at.levels)[0]
    placement = natural_placement({"X": first.size}, at)
    assert sum(f.get("X", 1) == d.size for d, f in zip(placement.dimensions, placement.factors, strict=True)) >= 1


def test_a_slice_is_plain_data():
    where = slice_of("v5e:4x4")
    assert replace(where) == where
    assert isinstance(where, Slice)
