"""Weights split in two dimensions: tensor and tensor_transpose as a grid, against the volumes that such grids are known by."""

import math

import pytest

from rooftop.cli import run
from rooftop.costing import INNER_AXES, inner_mesh
from rooftop.frameworks import FRAMEWORKS, export, import_plan
from rooftop.hardware import slice_of
from rooftop.roofline import ideal
from rooftop.training import Choices, Limits, Plan, Question, estimate, named_plan, plan, problem_of
from rooftop.training._recipe import Recipe
from rooftop.training._structure import structure
from rooftop.transformer import architecture

D, F, SEQ = 1024, 4096, 1024
MODEL = architecture(f"layers=2,d_model={D},heads=16,kv_heads=16,head_dim=64,d_ff={F},vocab=512")


def of(mesh, where="v5p:4x4x4", **choices):
    question = Question(MODEL, slice_of(where), batch=64 * SEQ, seq=SEQ, calibration=ideal())
    return estimate(problem_of(question), named_plan(question, mesh, microbatches=1, choices=Choices(**choices)))


def moved(tensor, transpose, part, phase="forward"):
    """Bytes that a chip receives of activations in one pass of a part of a layer, for one sequence, by kind of collective."""
    found = structure(MODEL, SEQ, Choices(grid=True), Recipe())
    mesh = dict.fromkeys(INNER_AXES, 1) | inner_mesh({"tensor": tensor, "tensor_transpose": transpose}, 16)
    values = found.blocks[0].evaluate({**found.axes, "B": 1}, mesh)
    result = {}
    for t in found.blocks[0].transfers:
        n = math.prod(mesh[a] for a in t.axes)
        if t.phase == phase and t.op.startswith(part) and t.overlap == "critical":
            size = sum(values[i] for i in t.bytes) * (n - 1) / n
            result[t.kind] = result.get(t.kind, 0.0) + (size / n if t.kind == "all_to_all" else size)
    return result


@pytest.mark.parametrize(("x", "y"), [(1, 1), (4, 1), (1, 4), (4, 4), (8, 2), (16, 16)])
def test_a_gated_mlp_moves_what_a_grid_moves(x, y):
    """Tokens of width D/y are gathered and sums scattered over x, hidden ones of width F/x over y: thrice, for there are two sums
    to scatter before the gate.
    """
    found = moved(x, y, "mlp.")
    over_x, over_y = (x - 1) / x, (y - 1) / y
    assert found.get("all_gather", 0.0) == pytest.approx(2 * SEQ * (D / y * over_x + F / x * over_y))
    assert found.get("reduce_scatter", 0.0) == pytest.approx(2 * SEQ * (D / y * over_x + 2 * F / x * over_y))
    # between norms, which see whole vectors, and matmuls, which see a part of each, tokens are swapped for channels
    assert found.get("all_to_all", 0.0) <= 2 * SEQ * 2 * D / (x * y) * over_y * (1 + 1e-9)


def test_volume_falls_with_the_root_of_the_chips():
    """A row of chips moves the same however many they are; a grid half as much on four times as many."""
    rows = [sum(moved(n, 1, "mlp.").values()) for n in (64, 256)]
    assert rows[1] == pytest.approx(rows[0], rel=0.02)
    grids = [sum(v for k, v in moved(n, n, "mlp.").items() if k != "all_to_all") for n in (16, 32)]
    assert grids[1] / grids[0] == pytest.approx(0.5, rel=0.05)
    assert grids[0] < rows[1]


def test_the_best_grid_is_where_both_sides_move_alike():
    """2 D/y + 3 F/x over x·y chips is least at x/y = 3F/(2D), as the book finds it for its two matmuls."""
    n = 64
    costs = {x: sum(v for k, v in moved(x, n // x, "mlp.").items() if k != "all_to_all") for x in (4, 8, 16, 32)}
    best = math.sqrt(n * 3 * F / (2 * D))
    assert min(costs, key=costs.get) == min(costs, key=lambda x: abs(math.log(x / best)))


def test_weights_gradients_and_states_are_split_over_the_grid():
    row, grid = of({"tensor": 16, "fsdp": 4}, zero=1), of({"tensor": 4, "tensor_transpose": 4, "fsdp": 4}, zero=1)
    for part in ("weights", "gradients", "optimizer"):
        assert grid.step.memory[part] == pytest.approx(row.step.memory[part], rel=0.01)


def test_the_work_is_split_over_the_grid():
    row, grid = of({"tensor": 16, "fsdp": 4}), of({"tensor": 4, "tensor_transpose": 4, "fsdp": 4})
    assert grid.step.resources["compute"] == pytest.approx(row.step.resources["compute"], rel=1e-9)


def test_more_ways_than_key_heads_repeat_them_in_either_direction():
    grouped = architecture("layers=2,d_model=1024,heads=16,kv_heads=2,d_ff=4096,vocab=512")
    question = Question(grouped, slice_of("v5p:4x4x4"), batch=64 * SEQ, seq=SEQ, calibration=ideal())
    for mesh in ({"tensor": 8, "tensor_transpose": 2}, {"tensor": 2, "tensor_transpose": 8}):
        e = estimate(problem_of(question), named_plan(question, {**mesh, "fsdp": 4}))
        assert 0 < float(e.step.bound) <= float(e.step.expected)


def test_a_search_leaves_the_second_side_at_one_unless_asked():
    question = Question(MODEL, slice_of("h100:8"), batch=64 * SEQ, seq=SEQ)
    assert plan(question).best.plan.mesh["tensor_transpose"] == 1
    fixed = plan(question, fixed={"tensor_transpose": 2}).best
    assert fixed.plan.mesh["tensor_transpose"] == 2
    opened = plan(question, limits=Limits(opened=("tensor_transpose",)), keep=1000)
    found = {e.plan.mesh["tensor_transpose"] for e in (opened.best, *opened.alternatives)}
    assert {1, 2, 4} <= found
    assert opened.best.seconds_per_token <= fixed.seconds_per_token * (1 + 1e-12)


def test_frameworks_that_have_no_such_axis_are_said_to_have_none():
    e = of({"tensor": 4, "tensor_transpose": 4, "fsdp": 4})
    for framework in FRAMEWORKS:
        made = export(e.problem, e.plan, framework)
        assert any("tensor_transpose=4" in text for text in made.unsaid)


def test_runs_of_a_maxtext_that_had_the_axis_are_read(tmp_path):
    keys = {
        "ici_fsdp_parallelism": -1,
        "ici_tensor_parallelism": 4,
        "ici_tensor_transpose_parallelism": 4,
        "model_name": "llama3-8b",
    }
    (tmp_path / "run.yml").write_text(
        "".join(f"{k}: {v}\n" for k, v in keys.items()) + "per_device_batch_size: 1\nmax_target_length: 2048\n"
    )
    found = import_plan(tmp_path / "run.yml", on="v5p:4x4x4").plan
    assert (found.mesh["tensor"], found.mesh["tensor_transpose"], found.choices.grid) == (4, 4, True)


def test_meshes_that_do_not_divide_are_refused(capsys):
    words = ["step", "llama-3-8b", "--on", "h100:24", "--batch", "512k", "--mesh", "tensor=8,tensor_transpose=3"]
    assert run(words) == 2
    assert "tensor_transpose=3 does not divide" in capsys.readouterr().err


def test_a_plan_of_one_way_is_what_it_was():
    """The axis is there and costs nothing."""
    e = of({"tensor": 16, "fsdp": 4})
    same = Plan(
        {**e.plan.mesh, "tensor_transpose": 1}, e.plan.factors, e.plan.microbatches, e.plan.sequences, e.plan.choices
    )
    assert float(estimate(e.problem, same).step.expected) == float(e.step.expected)
    assert not any("transpose" in part.name for part in e.step.parts)
