"""The search against brute force: nothing of the declared space is better, and one plan is worth the same everywhere."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rooftop.errors import InputError
from rooftop.hardware import slice_of
from rooftop.roofline import Placement, count_placements, dimensions, group, ideal, placements
from rooftop.training import MESH_AXES, POLICIES, Choices, Limits, Plan, Question, estimate, problem_of, values_of
from rooftop.training import _search as searching
from rooftop.training._scene import Rows
from rooftop.training._search import search
from rooftop.training._space import MICROBATCHES, SEQUENCES, used_sizes
from rooftop.training._structure import structure
from rooftop.transformer import architecture

TINY = "layers=2,d_model=64,heads=4,kv_heads=2,d_ff=128,vocab=256"
SMALL = "layers=4,d_model=1024,heads=8,kv_heads=2,d_ff=4096,vocab=32000"


def problem(model, where, sequences, seq, **options):
    return problem_of(Question(architecture(model), slice_of(where), batch=sequences * seq, seq=seq, **options))


def tightened(question, capacity):
    """The same problem on a chip with less memory."""
    chip = replace(question.slice.chip, hbm_bytes=capacity)
    return replace(question, slice=replace(question.slice, chip=chip))


def factorisations(n, parts):
    """All ordered ways to write n as a product of `parts` factors."""
    if parts == 1:
        return [(n,)]
    return [(d, *rest) for d in range(1, n + 1) if n % d == 0 for rest in factorisations(n // d, parts - 1)]


def microbatchings(of, groups):
    """(microbatches, sequences) by the rule in words: fixed counts with the nearest batch, each within the tolerance."""
    target = of.batch_tokens / of.seq
    near = set()
    for m in MICROBATCHES:
        near.add((m, max(1, round(target / (groups * m)))))
    for b in SEQUENCES:
        near.add((max(1, round(target / (groups * b))), b))
    return sorted((m, b) for m, b in near if abs(groups * m * b - target) <= of.batch_within * target + 1e-6)


def in_space(choices, limits, layers, p, m):
    """Whether a pipeline of p stages can have these choices, by the rules in words."""
    about = ("schedule", "chunks", "embed_layers", "head_layers")
    if p == 1:
        return all(getattr(choices, n) == getattr(Choices(), n) for n in about)
    tried = {n: limits.allowed.get(n, (getattr(Choices(), n),)) for n in about}
    if any(getattr(choices, n) not in tried[n] for n in about):
        return False
    e, h, v = choices.embed_layers, choices.head_layers, choices.chunks
    full = math.ceil((layers + e + h) / p)
    first, last = full - e, layers - (full - e) - full * (p - 2)
    if first < 0 or last < (0 if h else 1):
        return False
    if v > 1 and (choices.schedule != "1f1b" or (layers + e + h) % (p * v) or m % p):
        return False
    return choices.schedule != "dualpipe" or (p % 2 == 0 and m % 2 == 0 and m >= 2 * p)


def about(choices, limits, axis, names, mesh):
    """Whether choices about an axis are allowed where it is used, and the defaults elsewhere."""
    default = Choices()
    tried = {n: limits.allowed.get(n, (getattr(default, n),)) for n in names}
    return all(
        getattr(choices, n) in tried[n] if mesh[axis] > 1 else getattr(choices, n) == getattr(default, n) for n in names
    )


def every_plan(of, limits, fixed):
    """The declared space, by loops."""
    under = {c.layout: structure(of.model, of.seq, c.layout, of.recipe) for c in limits.choices}
    compiled = next(iter(under.values()))
    for used in used_sizes(of.dimensions, limits.least_used):
        for placed in itertools.product(*(factorisations(n, len(MESH_AXES)) for n in used)):
            mesh = {a: math.prod(row[i] for row in placed) for i, a in enumerate(MESH_AXES)}
            if any(mesh[a] != w for a, w in fixed.items()) or (mesh["expert"] > 1 and of.model.experts is None):
                continue
            if mesh["tensor_transpose"] > 1 and "tensor_transpose" not in limits.opened:
                continue
            kv = math.gcd(mesh["tensor"], compiled.kv_heads)
            again = math.gcd(mesh["tensor_transpose"], compiled.kv_heads // kv)
            inner = {**mesh, "tensor_kv": kv, "tensor_q": mesh["tensor"] // kv}
            inner |= {"transpose_kv": again, "transpose_q": mesh["tensor_transpose"] // again}
            fitting = [
                layout
                for layout, s in under.items()
                if not any(size % math.prod(inner.get(a, 1) for a in names) for size, names in s.divisible)
            ]
            factors = tuple({a: w for a, w in zip(MESH_AXES, row, strict=True) if w > 1} for row in placed)
            for m, b in microbatchings(of, mesh["data"] * mesh["fsdp"] * mesh["expert"]):
                if limits.microbatches is not None and m != limits.microbatches:
                    continue
                for choices in limits.choices:
                    if choices.layout not in fitting or not about(choices, limits, "data", ("outer_zero",), mesh):
                        continue
                    if choices.grid != (mesh["tensor_transpose"] > 1):
                        continue
                    if not about(choices, limits, "context", ("context_kind", "causal"), mesh):
                        continue
                    if in_space(choices, limits, compiled.layers, mesh["pipeline"], m):
                        yield Plan(mesh, factors, m, b, choices)


def brute_force(of, limits, fixed):
    """The best time per token of each mesh, over plans that fit, best first, and the number of plans."""
    best, count = {}, 0
    for plan in every_plan(of, limits, fixed):
        count += 1
        e = estimate(of, plan)
        if limits.ignore_memory or e.fits:
            key = tuple(plan.mesh[a] for a in MESH_AXES)
            best[key] = min(best.get(key, math.inf), e.seconds_per_token)
    return sorted(best.values()), count


FULL = Limits()
CASES = {
    "four chips of a torus": (TINY, "v5e:2x2", 8, 64, None, FULL, {}),
    "compute bound, four chips": (SMALL, "v5e:2x2", 8, 1024, None, FULL, {"context": 1}),
    "little memory": (SMALL, "v5e:2x2", 8, 1024, 0.6e9, FULL, {"context": 1}),
    "part of a node": (SMALL, "h100:8", 12, 512, None, Limits({"zero": (3,), "remat": ("none",)}), {}),
    "pipeline and tensor": (SMALL, "h100:8", 16, 512, 0.5e9, Limits({"zero": (1,)}), {"context": 1, "data": 1}),
    "rings and strides": (SMALL, "v5e:4x4", 16, 256, None, Limits({"zero": (3,), "remat": ("none",)}, least_used=1.0), {"data": 1}),
    "three dimensions": (SMALL, "v5p:2x2x4", 16, 256, None, Limits({"zero": (2,), "remat": ("full",)}, least_used=1.0), {"data": 1, "context": 1}),
    "two levels of switches": (SMALL, "h100:16", 16, 256, None, Limits({"zero": (3,), "remat": ("none",)}, least_used=1.0), {"context": 1}),
    "two slices": (SMALL, "v5e:2x2*2", 16, 256, None, Limits({"zero": (1,), "remat": ("none",)}), {"context": 1}),
    "pipeline schedules": (SMALL, "h100:8", 16, 512, 0.5e9, Limits({"zero": (1,), "remat": ("none", "full"), "schedule": ("gpipe", "zb-h1", "zb-h2", "dualpipe")}), {"context": 1, "data": 1}),
    "chunks and ends": (SMALL, "v5e:2x2", 8, 512, None, Limits({"zero": (3,), "chunks": (1, 2, 3), "embed_layers": (0, 1), "head_layers": (0, 1, 2)}), {"context": 1}),
    "sharding of states": (TINY.replace("d_model=64", "d_model=12"), "h100:8", 8, 64, None, Limits({"zero": (0, 1, 3), "outer_zero": (0, 1), "remat": ("none", "dots")}), {"pipeline": 1, "context": 1}),
    "host memory": (SMALL, "h100:8", 16, 512, 0.5e9, Limits({"zero": (1, 3), "remat": ("none", "full"), "offload": ("none", "optimizer", "activations", "optimizer,params,activations")}), {"context": 1, "data": 1}),
    "experts": (SMALL + ",experts=6,active=2", "h100:6", 12, 512, None, Limits({"zero": (1, 3), "remat": ("none", "full")}), {"context": 1}),
    "experts over two levels": (SMALL + ",experts=8,active=2", "h100:16", 16, 256, None, Limits({"zero": (3,), "remat": ("none",)}, least_used=1.0), {"context": 1, "pipeline": 1}),
    "kinds of context": (SMALL, "h100:8", 8, 512, None, Limits({"zero": (3,), "remat": ("none", "full"), "context_kind": ("ring", "gather", "ulysses"), "causal": ("balanced", "contiguous")}), {"pipeline": 1, "data": 1}),
    "weights in two dimensions": (SMALL, "h100:8", 8, 512, None, Limits({"zero": (1, 3), "remat": ("none",)}, opened=("tensor_transpose",)), {"pipeline": 1, "context": 1, "data": 1}),
    "one chip": (TINY, "v5e", 8, 64, None, FULL, {}),
}  # fmt: skip


@pytest.mark.parametrize("keep", [1, 4])
@pytest.mark.parametrize("name", CASES)
def test_search_equals_brute_force(name, keep):
    model, where, sequences, seq, capacity, limits, fixed = CASES[name]
    of = problem(model, where, sequences, seq)
    if capacity:
        of = tightened(of, capacity)
    truth, count = _truth(name, of, limits, fixed)
    assert count > 3
    outcome = search(of, fixed, keep=keep, limits=limits)
    found = [f.seconds_per_token for f in outcome.found]
    assert found == pytest.approx(truth[:keep], rel=1e-9)
    assert len({tuple(sorted(f.plan.mesh.items())) for f in outcome.found}) == len(outcome.found)


@pytest.mark.parametrize("name", CASES)
def test_every_plan_of_the_space_is_settled(name):
    model, where, sequences, seq, capacity, limits, fixed = CASES[name]
    of = problem(model, where, sequences, seq)
    _, count = _truth(name, tightened(of, capacity) if capacity else of, limits, fixed)
    # with so many to keep, no part of the slice is passed over
    assert search(of, fixed, keep=10**6, limits=replace(limits, ignore_memory=True)).plans == count


def points_of(of, limits, fixed):
    """(seconds per token, bytes, chips) of all plans that fit, by loops."""
    every = (estimate(of, plan) for plan in every_plan(of, limits, fixed))
    return np.array([(e.seconds_per_token, e.step.memory_bytes, e.plan.chips) for e in every if e.fits])


def assert_front(found, points):
    """No plan of the space beats one of the front, and for each plan of the space the front has one that is no worse."""
    front = np.array([(f.seconds_per_token, f.memory_bytes, f.plan.chips) for f in found]).reshape(-1, 3)
    assert len(front) if len(points) else not len(front)
    for point in front:
        no_worse = (points <= point * (1 + 1e-8)).all(axis=1)
        assert not (no_worse & (points < point * (1 - 1e-8)).any(axis=1)).any()
        assert np.isclose(points, point, rtol=1e-9).all(axis=1).any()
    for point in points:
        assert (front <= point * (1 + 1e-8)).all(axis=1).any()
    # each says something of its own
    for i, point in enumerate(front):
        assert not (np.delete(front, i, axis=0) <= point).all(axis=1).any()


@pytest.mark.parametrize("name", CASES)
def test_the_front_is_that_of_brute_force(name):
    model, where, sequences, seq, capacity, limits, fixed = CASES[name]
    of = problem(model, where, sequences, seq)
    of = tightened(of, capacity) if capacity else of
    assert_front(search(of, fixed, limits=limits, front=True).found, points_of(of, limits, fixed))


@settings(max_examples=6, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(
    where=st.sampled_from(["v5e:2x2", "h100:6", "v5e:2x4", "v5p:2x2x2"]), layers=st.integers(1, 6),
    d_model=st.sampled_from([128, 384, 2048]), kv_heads=st.sampled_from([1, 2, 6]), seq=st.sampled_from([32, 1024]),
    sequences=st.integers(4, 24), within=st.sampled_from([0.0, 0.3]), capacity=st.sampled_from([3e8, 1e9, 8e10]),
)  # fmt: skip
def test_the_front_is_that_of_brute_force_on_random_problems(
    where, layers, d_model, kv_heads, seq, sequences, within, capacity
):
    text = f"layers={layers},d_model={d_model},heads=12,kv_heads={kv_heads},head_dim=32,d_ff=1536,vocab=512"
    of = tightened(problem(text, where, sequences, seq, batch_within=within), capacity)
    fixed = {"context": 1} if of.slice.chips <= 4 else {"context": 1, "data": 1}
    assert_front(search(of, fixed, front=True).found, points_of(of, Limits(), fixed))


@settings(max_examples=60, deadline=None)
@given(
    used=st.sampled_from([(4,), (2, 8), (4, 6), (2, 2, 4), (12, 2, 3), (3, 5)]),
    mesh=st.lists(st.integers(1, 12), min_size=3, max_size=4),
)
def test_placements_are_as_many_as_counted(used, mesh):
    chips, mesh = math.prod(used), list(mesh)
    mesh = [math.gcd(w, chips) for w in mesh]
    while chips % math.prod(mesh):
        mesh.pop()
    rows = np.array([[*mesh, chips // math.prod(mesh)]])
    assert count_placements(used, rows).tolist() == [len(placements(used, rows)[0])]


def test_chunks_bound_memory_and_change_nothing(monkeypatch):
    """The arrays of a search are those of a chunk, whatever the size of the space."""
    of = problem("llama-3-8b", "h100:64", 256, 4096)
    whole = search(of, keep=4)
    most = []
    made = Rows.__init__

    def watched(self, scene, meshes):
        made(self, scene, meshes)
        most.append(len(meshes))

    monkeypatch.setattr(Rows, "__init__", watched)
    monkeypatch.setattr(searching, "_MESHES", 16)
    monkeypatch.setattr(searching, "_FIRST", 4)
    monkeypatch.setattr(searching, "_PAIRS", 128)
    small = search(of, keep=4)
    assert max(most) <= 16
    assert len(most) > 5
    assert [f.seconds_per_token for f in small.found] == pytest.approx(
        [f.seconds_per_token for f in whole.found], rel=1e-9
    )
    assert small.plans == whole.plans


_KNOWN = {}


def test_a_model_with_two_kinds_of_layers_and_an_odd_number_of_them():
    one = architecture(SMALL).stack[0]
    local = replace(one, mixer=replace(one.mixer, window=64))
    model = replace(architecture(SMALL), stack=(local, one, local, local, one))
    of = tightened(problem_of(Question(model, slice_of("v5e:2x4"), batch=12 * 256, seq=256, batch_within=0.2)), 0.9e9)
    limits, fixed = Limits({"zero": (3, 1), "remat": ("none", "full")}), {"context": 1, "data": 1}
    truth, _ = brute_force(of, limits, fixed)
    assert [f.seconds_per_token for f in search(of, fixed, keep=8, limits=limits).found] == pytest.approx(
        truth[:8], rel=1e-9
    )


# shrinking a search takes long and explains little
@settings(max_examples=15, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(
    where=st.sampled_from(["v5e:2x2", "h100:4", "h100:6", "v5e:2x4", "v5e:2x2*2", "v5p:2x2x2", "h100:16", "v6e:4x4"]),
    layers=st.integers(1, 6), d_model=st.sampled_from([128, 384, 2048]), kv_heads=st.sampled_from([1, 2, 6]),
    d_ff=st.sampled_from([256, 1536, 8192]), vocab=st.sampled_from([512, 32000]), seq=st.sampled_from([32, 48, 1024]),
    sequences=st.integers(4, 40), within=st.sampled_from([0.0, 0.1, 0.5]), capacity=st.sampled_from([2e8, 1e9, 8e10]),
    lossless=st.booleans(), zero=st.sampled_from(values_of("zero")), remat=st.lists(st.sampled_from(POLICIES), min_size=1, unique=True),
    keep=st.sampled_from([1, 3]),
)  # fmt: skip
def test_search_equals_brute_force_on_random_problems(
    where, layers, d_model, kv_heads, d_ff, vocab, seq, sequences, within, capacity, lossless, zero, remat, keep
):
    text = f"layers={layers},d_model={d_model},heads=12,kv_heads={kv_heads},head_dim=32,d_ff={d_ff},vocab={vocab}"
    calibration = ideal() if lossless else None
    of = tightened(problem(text, where, sequences, seq, batch_within=within, calibration=calibration), capacity)
    limits = Limits({"zero": (zero,), "remat": tuple(remat)}, least_used=0.75)
    fixed = (
        {}
        if of.slice.chips <= 4
        else {"data": 1, "context": 1}
        if of.slice.chips < 16
        else {"data": 1, "context": 1, "pipeline": 1}
    )
    truth, _ = brute_force(of, limits, fixed)
    found = [f.seconds_per_token for f in search(of, fixed, keep=keep, limits=limits).found]
    assert found == pytest.approx(truth[:keep], rel=1e-9)


@settings(max_examples=12, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(
    model=st.sampled_from(["llama-3-8b", "gemma-3-1b", SMALL]),
    where=st.sampled_from(["v5e:4x4", "h100:16", "v5p:2x2x4", "v5p:4x4x4*2", "gb200:144"]),
    sequences=st.sampled_from([64, 100, 256]), seq=st.sampled_from([512, 4096]),
)  # fmt: skip
def test_what_the_search_says_of_a_plan_is_its_estimate(model, where, sequences, seq):
    of = problem(model, where, sequences, seq)
    for found in search(of, {"context": 1}, keep=5, limits=Limits(ignore_memory=True)).found:
        e = estimate(of, found.plan)
        assert e.seconds_per_token == pytest.approx(found.seconds_per_token, rel=1e-9)
        assert e.step.memory_bytes == pytest.approx(found.memory_bytes, rel=1e-9)
        for d, factors in zip(of.dimensions, found.plan.factors, strict=True):
            assert d.size % 2 or math.prod(factors.values()) <= d.size
        assert found.plan.chips == math.prod(math.prod(f.values()) for f in found.plan.factors)


def _truth(name, of, limits, fixed):
    if name not in _KNOWN:
        _KNOWN[name] = brute_force(of, limits, fixed)
    return _KNOWN[name]


@settings(max_examples=40, deadline=None)
@given(
    levels=st.lists(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=3, max_size=3), min_size=2, max_size=2),
    order=st.permutations(["tensor", "fsdp", "pipeline"]), axes=st.sets(st.sampled_from(["tensor", "fsdp", "pipeline"]), min_size=1),
)  # fmt: skip
def test_on_switches_the_order_of_axes_changes_nothing(levels, order, axes):
    names = ("tensor", "fsdp", "pipeline")
    parts = tuple(
        replace(d, size=math.prod(ways)) for d, ways in zip(dimensions(slice_of("h100:16").levels), levels, strict=True)
    )
    factors = tuple(dict(zip(names, ways, strict=True)) for ways in levels)
    assert group(Placement(parts, factors, tuple(order)), tuple(axes)) == group(
        Placement(parts, factors, names), tuple(axes)
    )


def test_no_plan_has_more_than_the_largest_batch():
    question = Question(architecture(SMALL), slice_of("h100:8"), batch=60 * 512, seq=512, batch_within=0.5)
    free = search(problem_of(question), keep=50)
    bound = search(problem_of(replace(question, max_batch=62 * 512)), keep=50)
    assert max(f.plan.batch_sequences for f in free.found) > 62
    assert max(f.plan.batch_sequences for f in bound.found) <= 62
    assert bound.found[0].seconds_per_token >= free.found[0].seconds_per_token
    assert problem_of(replace(question, batch=None, max_batch=1e6)).batch_tokens == 1e6
    with pytest.raises(InputError, match="max-batch"):
        problem_of(replace(question, max_batch=512))
