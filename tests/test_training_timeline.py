"""A step over time keeps the sums of its parts."""

import itertools
import json

import pytest

from rooftop.cli import run
from rooftop.hardware import slice_of
from rooftop.training import Choices, Question, named_plan, step_of, timeline
from rooftop.training._order import Times, _needs, played
from rooftop.transformer import architecture

PLANS = [
    ("v5p:2x2x2", {"fsdp": 8}, 1, "none"),
    ("v5p:2x2x2", {"fsdp": 2, "tensor": 4}, 4, "full"),
    ("h100:16", {"fsdp": 2, "tensor": 2, "pipeline": 4}, 8, "full"),
    ("h100:16", {"data": 1, "fsdp": 4, "pipeline": 4}, 2, "selective"),
    ("h100:8", {"pipeline": 8}, 128, "full"),
]
SCHEDULES = [
    Choices(schedule=s, chunks=c, remat="full")
    for s, c in (("gpipe", 1), ("1f1b", 1), ("1f1b", 2), ("zb-h1", 1), ("zb-h2", 1), ("dualpipe", 1))
]


@pytest.fixture(params=PLANS, ids=str)
def best(request):
    where, mesh, microbatches, remat = request.param
    asked = Question(architecture("llama-3-8b"), slice_of(where), batch=2**19, seq=2048)
    return step_of(asked, named_plan(asked, mesh, microbatches=microbatches, choices=Choices(remat=remat))).best


def test_every_stage_fills_the_step_without_gaps(best):
    t = timeline(best)
    assert len(t.stages) == best.plan.mesh["pipeline"]
    for stage in t.stages:
        assert stage[0].start == 0
        for one, two in itertools.pairwise(stage):
            assert one.start + one.seconds == pytest.approx(two.start)
        assert sum(e.seconds for e in stage) == pytest.approx(float(best.step.expected))
        assert sum(e.seconds for e in stage if e.kind == "wait") == pytest.approx(float(best.step.bubble), abs=1e-9)
        kinds = [e.kind for e in stage]
        assert kinds.count("forward") == kinds.count("backward") == t.pieces <= 64


def test_exposed_events_are_the_exposed_parts(best):
    t = timeline(best)
    exposed = sum(e.seconds for e in t.stages[0] if e.kind == "exposed" and e.name != "step overhead")
    assert exposed == pytest.approx(sum(x.exposed for x in t.traffic), abs=1e-9)
    assert all(0 <= x.exposed <= x.busy * (1 + 1e-9) for x in t.traffic)


def test_memory_peaks_at_the_memory_of_the_plan_and_returns_to_the_states(best):
    t = timeline(best)
    assert max(m.bytes for m in t.memory) == pytest.approx(float(best.step.memory_bytes))
    states = sum(float(best.step.memory[n]) for n in ("weights", "gradients", "optimizer"))
    assert t.memory[-1].bytes == pytest.approx(states)
    assert min(m.bytes for m in t.memory) >= states * (1 - 1e-9)


def test_stages_that_wait_longer_at_the_start_wait_less_in_the_middle(best):
    starts = [next(e.start for e in stage if e.kind == "forward") for stage in timeline(best).stages]
    assert starts == sorted(starts)


def test_the_command_draws_it(capsys):
    words = [
        "step",
        "llama-3-8b",
        "--on",
        "h100:16",
        "--mesh",
        "fsdp=4,pipeline=4",
        "--batch",
        "512k",
        "--remat",
        "full",
        "--timeline",
    ]
    assert run(words) == 0
    shown = capsys.readouterr().out
    assert "stage 3" in shown
    assert "memory" in shown
    assert run([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    total = told["best"]["step_seconds"]["expected"]
    assert [sum(e["seconds"] for e in s) for s in told["timeline"]["stages"]] == pytest.approx([total] * 4)
    assert run([*words, "--explain"]) == 2


def drawn(chosen, microbatches=16, mesh=None):
    mesh = mesh or {"fsdp": 4, "pipeline": 4}
    asked = Question(architecture("llama-3-8b"), slice_of("h100:16"), batch=2**19, seq=2048)
    best = step_of(asked, named_plan(asked, mesh, microbatches=microbatches, choices=chosen)).best
    return best, timeline(best)


@pytest.mark.parametrize("chosen", SCHEDULES, ids=lambda c: f"{c.schedule}, {c.chunks}")
def test_every_schedule_keeps_the_sums(chosen):
    best, t = drawn(chosen)
    for stage in t.stages:
        for one, two in itertools.pairwise(stage):
            assert one.start + one.seconds == pytest.approx(two.start)
        assert sum(e.seconds for e in stage) == pytest.approx(float(best.step.expected))
        assert sum(e.seconds for e in stage if e.kind == "wait") == pytest.approx(float(best.step.bubble), abs=1e-9)
        kinds = [e.kind for e in stage]
        assert kinds.count("forward") == kinds.count("backward") == t.pieces * chosen.chunks
        assert kinds.count("weights") == (t.pieces if chosen.schedule.startswith("zb") else 0)
    assert max(m.bytes for m in t.memory) == pytest.approx(float(best.step.memory_bytes))


def kinds_of(stage):
    return "".join({"forward": "F", "backward": "B", "weights": "W"}.get(e.kind, "") for e in stage)


def test_each_schedule_has_its_own_order():
    gpipe, one, chunks, h1, h2, dual = (drawn(c, 8)[1].stages for c in SCHEDULES)
    assert all(kinds_of(stage) == "F" * 8 + "B" * 8 for stage in gpipe)
    assert [kinds_of(stage).index("B") for stage in one] == [4, 3, 2, 1]
    assert [kinds_of(stage).index("B") for stage in chunks] == [11, 9, 7, 5]
    assert [kinds_of(stage).index("B") for stage in h1] == [4, 3, 2, 1]
    assert [kinds_of(stage).index("B") for stage in h2] == [7, 5, 3, 1]
    # gradients of weights wait the longer, the later the stage: each holds as many microbatches
    assert [kinds_of(stage)[: kinds_of(stage).index("W")].count("B") for stage in h1] == [1, 2, 3, 4]
    # both ends start at once
    assert [stage[0].kind for stage in dual] == ["forward", "wait", "wait", "forward"]
    assert [stage[0].kind for stage in one] == ["forward", "wait", "wait", "wait"]


@pytest.mark.parametrize(
    ("chosen", "bubble"),
    [
        (SCHEDULES[0], 3 * 3.0),
        (SCHEDULES[1], 3 * 3.0),
        (SCHEDULES[2], 3 * 3.0 / 2),
        (SCHEDULES[3], 3 * (3.0 - 2 * 1.0)),
    ],
    ids=lambda x: getattr(x, "schedule", x),
)
def test_the_order_of_a_schedule_has_the_bubble_of_the_table(chosen, bubble):
    """Four equal stages with F = 1, B = 2 and W = 1, in which every pass starts when what it needs is there."""
    lanes = played(chosen, 4, 8, Times(1.0, 2.0, 1.0))
    ends = {d.task: d.start + d.seconds for lane in lanes for d in lane}
    for lane in lanes:
        for one, two in itertools.pairwise(lane):
            assert two.start >= one.start + one.seconds - 1e-12
        for d in lane:
            before = _needs(d.task, 4 * chosen.chunks)
            assert before is None or ends[before] <= d.start + 1e-12
    assert max(ends.values()) - 8 * 3.0 == pytest.approx(bubble)
    busy = {sum(d.seconds for d in lane) for lane in lanes}
    assert busy == {8 * 3.0}


def test_passes_of_dualpipe_wait_for_what_they_need():
    lanes = played(SCHEDULES[5], 8, 32, Times(1.0, 2.0, 0.7))
    ends = {d.task: d.start + d.seconds for lane in lanes for d in lane}
    assert len(ends) == 8 * 32 * 2
    for d in itertools.chain(*lanes):
        before = _needs(d.task, 8)
        assert before is None or ends[before] <= d.start + 1e-6
