"""Tokens on their way to experts: one copy to each domain that has a chip for it."""

import numpy as np
import pytest

from rooftop.hardware import slice_of
from rooftop.measure import published, validate
from rooftop.roofline import Placement, collective_seconds, dimensions, group
from rooftop.training import Choices, Question, estimate, named_plan, problem_of
from rooftop.transformer import architecture


def groups(where, factors, copies):
    levels = dimensions(slice_of(where).levels)
    placement = Placement(levels, tuple({"expert": n} for n in factors), ("expert",))
    return levels, group(placement, ("expert",), copies=copies)


@pytest.mark.parametrize(("nodes", "copies"), [(2, 2), (8, 8), (8, 22), (16, 4)])
def test_a_node_gets_one_copy_of_a_token(nodes, copies):
    """Counted on tokens that choose chips at random."""
    levels, g = groups(f"h100:{8 * nodes}", (8, nodes), copies)
    chips = np.random.default_rng(0).integers(0, 8 * nodes, size=(20000, copies))
    home = 0
    reached = np.mean([len(set((row // 8).tolist()) - {home}) for row in chips])
    token = 2 * 4096
    tokens = 1e5  # of one chip; V is all copies of all chips
    whole = tokens * token * copies * 8 * nodes
    across = tokens * token * reached / levels[1].bandwidth
    inside = tokens * token * np.mean([len(set(row.tolist())) for row in chips]) * 7 / 8 / levels[0].bandwidth
    assert collective_seconds("dispatch", whole, g) == pytest.approx(max(across, inside), rel=0.03)


@pytest.mark.parametrize("where", ["h100:64", "v5p:4x4x4", "v5e:4x4*2"])
def test_single_copies_are_an_all_to_all_and_more_are_never_slower(where):
    factors = [d.size for d in dimensions(slice_of(where).levels)]
    _, one = groups(where, factors, 1)
    assert one.dispatch_rate == one.all_to_all_rate
    rates = [groups(where, factors, k)[1].dispatch_rate for k in (1, 2, 8, 64)]
    assert rates == sorted(rates, reverse=True)
    assert all(groups(where, factors, k)[1].all_to_all_rate == one.all_to_all_rate for k in (2, 8))


def test_plans_dispatch_so():
    question = Question(architecture("deepseek-v3"), slice_of("h100:256"), batch=4e6, seq=4096)
    plan = named_plan(question, {"fsdp": 4, "expert": 64}, choices=Choices(remat="full"))
    problem = problem_of(question)
    assert problem.copies == 8
    assert estimate(problem, plan).step.resources["network expert"] > 0


def test_published_runs_that_send_a_token_once_to_a_node_do_not_beat_the_bound():
    rows = [row for row in published("training") if row.id in ("mbridge.381", "mbridge.425")]
    found = validate(rows).predictions
    assert len(found) == 2
    assert not any(p.beats_bound for p in found)
