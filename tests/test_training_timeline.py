"""A step over time keeps the sums of its parts."""

import itertools
import json

import pytest

from rooftop.cli import run
from rooftop.hardware import slice_of
from rooftop.training import Choices, Question, named_plan, step_of, timeline
from rooftop.transformer import architecture

PLANS = [
    ("v5p:2x2x2", {"fsdp": 8}, 1, "none"),
    ("v5p:2x2x2", {"fsdp": 2, "tensor": 4}, 4, "full"),
    ("h100:16", {"fsdp": 2, "tensor": 2, "pipeline": 4}, 8, "full"),
    ("h100:16", {"data": 1, "fsdp": 4, "pipeline": 4}, 2, "selective"),
    ("h100:8", {"pipeline": 8}, 128, "full"),
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
