"""Which arrays are kept: every set that may be asked for, and the best of them under a memory budget."""

import itertools
import json
import math
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rooftop.cli import run
from rooftop.errors import InputError
from rooftop.hardware import slice_of
from rooftop.training import POLICIES, Choices, Limits, Plan, Question, estimate, named_plan, problem_of, remat
from rooftop.training._remat import _groups, sets
from rooftop.training._search import search
from rooftop.transformer import architecture, programs

SMALL = "layers=4,d_model=1024,heads=8,kv_heads=2,d_ff=4096,vocab=2048"
MIXED = "deepseek-v3"


def problem(capacity, where="h100:8", sequences=64, seq=1024, model=SMALL, **chip):
    place = slice_of(where)
    chip = replace(place.chip, hbm_bytes=capacity, **chip)
    return problem_of(
        Question(architecture(model), replace(place, chip=chip), batch=sequences * seq, seq=seq, batch_within=0.0)
    )


def blocks(model, seq=1024):
    return [(b.count, b.program) for b in programs(architecture(model), seq).blocks]


def test_a_set_keeps_its_arrays_and_runs_the_rest_again():
    ((_, block),) = blocks(SMALL)
    kept = remat(block, "save:q,k,v,o")
    assert kept.saved == ("x", "q", "k", "v", "o")
    # attention's kernel and projections are not run again; all that leads from o to the end of the block is
    assert {"attention.q", "attention.scores"}.isdisjoint(kept.recomputed)
    assert {"attention.o", "mlp.up", "mlp.activation", "attention_norm"} <= set(kept.recomputed)
    assert remat(block, "save:" + ",".join(n for n in remat(block, "none").saved if n != "x")).recomputed == ()
    # what stops no recomputation is not kept
    assert "attention_out" not in remat(block, "save:x1,attention_out").saved


@pytest.mark.parametrize("model", [SMALL, MIXED, "gemma-3-1b"])
def test_sets_differ_in_what_runs_again(model):
    every = blocks(model)
    found = sets(every)
    assert len(found) <= 2**7
    does = [tuple(remat(b, p).recomputed for _, b in every) for p in found]
    assert len(set(does)) == len(does)
    named = [n for group in _groups(every) for n in group]
    assert len(set(named)) == len(named)
    for _, block in every:
        assert set(remat(block, "none").saved) - set(named) <= {a.name for a in block.arrays if a.role == "input"}


def every_policy(seq):
    """All subsets of the groups by name, and the policies of the table."""
    names = _groups(blocks(SMALL, seq))
    every = [n for size in range(len(names) + 1) for n in itertools.combinations(names, size)]
    return (*POLICIES, *("save:" + ",".join(itertools.chain(*s)) for s in every if s))


@pytest.mark.parametrize(("mesh", "microbatches", "offload"), [
    ({"fsdp": 8}, 1, "none"), ({"fsdp": 2, "tensor": 4}, 4, "none"), ({"pipeline": 4, "fsdp": 2}, 8, "none"), ({"fsdp": 8}, 2, "activations"),
])  # fmt: skip
@pytest.mark.parametrize("share", [0.35, 0.7])
def test_auto_is_the_best_of_all_subsets(mesh, microbatches, offload, share):
    full = {**dict.fromkeys(("data", "fsdp", "tensor", "context", "expert", "pipeline"), 1), **mesh}
    limits = Limits({"zero": (3,), "offload": (offload,)}, microbatches=microbatches, least_used=1.0)
    loose = replace(limits, ignore_memory=True)
    need = {
        p: search(problem(1.0), full, keep=1, limits=replace(loose, allowed={**limits.allowed, "remat": (p,)}))
        .found[0]
        .memory_bytes
        for p in ("none", "full")
    }
    of = problem(need["full"] + share * (need["none"] - need["full"]))
    every = replace(limits, allowed={**limits.allowed, "remat": every_policy(of.seq)})
    truth = search(of, full, keep=1, limits=every).found[0].seconds_per_token
    found = search(of, full, keep=1, limits=replace(limits, allowed={**limits.allowed, "remat": ("auto",)})).found
    assert found[0].seconds_per_token == pytest.approx(truth, rel=1e-9)
    assert found[0].memory_bytes <= of.capacity
    assert found[0].plan.choices.remat != "auto"
    # and it is what the plan is worth by itself
    assert estimate(of, found[0].plan).seconds_per_token == pytest.approx(found[0].seconds_per_token, rel=1e-9)


@settings(max_examples=8, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(
    capacity=st.floats(0.3e9, 4e9), where=st.sampled_from(["h100:8", "v5e:2x4"]), offload=st.sampled_from(["none", "activations"]),
    sequences=st.sampled_from([16, 64]), schedule=st.sampled_from(["1f1b", "dualpipe"]),
)  # fmt: skip
def test_auto_is_never_slower_than_the_policies_of_the_table(capacity, where, offload, sequences, schedule):
    of = problem(capacity, where, sequences)
    allowed = {"offload": (offload,), "schedule": (schedule,), "zero": (3,)}
    table = search(of, keep=1, limits=Limits(allowed)).found
    auto = search(of, keep=1, limits=Limits({**allowed, "remat": ("auto",)})).found
    assert len(auto) >= len(table)
    for a, b in zip(auto, table, strict=False):
        assert a.seconds_per_token <= b.seconds_per_token * (1 + 1e-12)
        assert a.memory_bytes <= of.capacity


def test_sets_are_ordered_where_the_order_is_known():
    some = Choices(remat="save:q,k,v")
    assert some.never_faster_than(Choices())
    assert Choices(remat="full").never_faster_than(some)
    assert not some.never_faster_than(Choices(remat="selective"))
    assert not Choices(remat="selective").never_faster_than(some)
    assert not some.never_faster_than(Choices(offload="activations"))


def test_saved_bytes_are_those_of_the_names():
    question = Question(architecture(SMALL), slice_of("h100"), batch=8 * 1024, seq=1024, batch_within=0.0)
    of = problem_of(question)

    def saved(policy):
        e = estimate(of, named_plan(question, {}, microbatches=1, choices=Choices(remat=policy)))
        return float(e.step.memory["saved activations"])

    tokens, layers = 8 * 1024, 4
    assert saved("save:o") - saved("full") == pytest.approx(2 * tokens * layers * 1024)
    assert saved("save:q,k,v") - saved("full") == pytest.approx(2 * tokens * layers * 1024 * (1 + 2 / 4))
    assert saved("save:gate,up") - saved("full") == pytest.approx(2 * tokens * layers * 2 * 4096)


def test_the_command_line_finds_saves_and_reads_a_set(tmp_path, capsys):
    path = tmp_path / "plan.json"
    ask = "step llama-3-8b --on h100:8 --mesh fsdp=8 --batch 512k --microbatches 4 --json"
    assert run([*ask.split(), "--remat", "auto", "--save", str(path)]) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert best["remat"].startswith("save:")
    assert best["fits"]
    assert run(["step", "--plan", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best"] == best
    assert run([*ask.split(), "--remat", best["remat"]]) == 0
    assert json.loads(capsys.readouterr().out)["best"]["step_seconds"] == best["step_seconds"]
    for policy in POLICIES:
        run([*ask.split(), "--remat", policy])
        other = json.loads(capsys.readouterr().out)["best"]
        assert not other["fits"] or best["step_seconds"]["expected"] <= other["step_seconds"]["expected"] * (1 + 1e-12)
    assert run(["step", "--plan", str(path)]) == 0
    assert "remat keeps " in capsys.readouterr().out
    assert run(["export", str(path), "--to", "maxtext"]) == 0
    assert 'remat_policy: "custom"' in capsys.readouterr().out
    assert run([*ask.split(), "--remat", "save:q,nonsense"]) == 2
    assert "'nonsense'" in capsys.readouterr().out
    assert run([*ask.split(), "--remat", "auto", "--offload", "activations"]) in (0, 1)


def test_names_are_checked_in_files_and_in_python():
    question = Question(architecture(SMALL), slice_of("h100"), batch=8 * 1024, seq=1024)
    plan = Plan({}, (), 1, 1, Choices(remat="save:qq"))
    with pytest.raises(InputError, match=r"qq.*it can keep"):
        estimate(problem_of(question), plan)
    with pytest.raises(InputError, match="remat"):
        Choices(remat="auto").check()
    assert math.isfinite(named_plan(question, {}, choices=Choices(remat="auto")).sequences)


def test_a_named_plan_that_no_set_fits_is_shown_with_the_smallest():
    question = Question(architecture("llama-3-70b"), slice_of("v5e:8x8"), 2**18, 4096)
    plan = named_plan(question, {"fsdp": 64}, choices=Choices(remat="auto"))
    assert plan.choices.remat == "full"
