"""Where experts lie: beside data parallelism, folded over tensor and context groups; and where all else lies then."""

import math

import pytest

from rooftop.cli import run
from rooftop.errors import InputError
from rooftop.frameworks import export, import_plan
from rooftop.hardware import slice_of
from rooftop.roofline import ideal
from rooftop.training import Choices, Limits, Question, estimate, named_plan, plan, problem_of
from rooftop.training._recipe import Recipe
from rooftop.training._search import search
from rooftop.training._structure import structure
from rooftop.transformer import architecture

SEQ, D, FF, E, ACTIVE, LAYERS = 1024, 1024, 512, 32, 4, 4
MODEL = architecture(f"layers={LAYERS},d_model={D},heads=16,kv_heads=8,d_ff={FF},vocab=512,experts={E},active={ACTIVE}")
#: Parameters of all experts.
EXPERTS = LAYERS * E * 3 * D * FF


def of(mesh, model=MODEL, where="h100:64", batch=256 * SEQ, seq=SEQ, microbatches=1, **choices):
    question = Question(model, slice_of(where), batch=batch, seq=seq, calibration=ideal())
    made = named_plan(question, mesh, microbatches=microbatches, choices=Choices(**choices))
    return estimate(problem_of(question), made)


def transfers(**choices):
    found = structure(MODEL, SEQ, Choices(**choices), Recipe())
    return found, [t for t in found.blocks[0].transfers if t.op.startswith("experts") and t.overlap == "critical"]


@pytest.mark.parametrize(
    ("fold", "axes"),
    [
        ("none", {"expert"}), ("tensor", {"expert", "tensor_kv", "tensor_q"}), ("context", {"expert", "context"}),
        ("tensor,context", {"expert", "context", "tensor_kv", "tensor_q"}),
    ],
)  # fmt: skip
def test_tokens_go_to_their_experts_and_back_over_all_their_axes_and_nowhere_else(fold, axes):
    _, moved = transfers(expert_fold=fold)
    assert {axis for t in moved if t.kind == "dispatch" for axis in t.axes} == axes
    others = {axis for t in moved if t.kind != "dispatch" and t.op != "experts.weights" for axis in t.axes}
    # whole experts sum up nothing over their chips; split ones gather tokens and sum over tensor
    assert others == (set() if "tensor" in fold else {"tensor_kv", "tensor_q"})


def test_a_dispatch_moves_every_copy_of_every_token():
    found, moved = transfers(expert_fold="tensor")
    (dispatch,) = (t for t in moved if t.op == "experts.dispatch" and t.phase == "forward" and "expert_in" in t.title)
    mesh = {
        "data": 1,
        "fsdp": 2,
        "tensor_kv": 4,
        "tensor_q": 1,
        "transpose_kv": 1,
        "transpose_q": 1,
        "context": 1,
        "expert": 2,
        "pipeline": 1,
    }
    values = found.blocks[0].evaluate({**found.axes, "B": 16}, mesh)
    # of one group of eight chips: half of the tokens
    assert sum(values[i] for i in dispatch.bytes) == 16 / 2 * SEQ * ACTIVE * D * 2


@pytest.mark.parametrize(
    "mesh", [{"fsdp": 4, "expert": 4, "tensor": 4}, {"expert": 4, "context": 4, "tensor": 2, "fsdp": 2}]
)
@pytest.mark.parametrize("zero", [1, 3])
def test_every_chip_holds_its_share_of_the_experts(mesh, zero):
    """Weights and states are as many however experts are laid; only the axes differ that split them."""
    ways = math.prod(mesh.values())
    for fold in ("none", "tensor") if "context" not in mesh else ("none", "tensor", "context", "tensor,context"):
        e = of(mesh, zero=zero, expert_fold=fold)
        plain = of(mesh, zero=zero)
        assert e.step.memory["optimizer"] == pytest.approx(plain.step.memory["optimizer"], rel=1e-6)
        assert e.step.memory["optimizer"] > 8 * EXPERTS / ways
        assert float(e.step.bound) <= float(e.step.expected)


def test_whole_experts_do_the_work_of_split_ones_and_spare_their_sums():
    mesh = {"fsdp": 4, "expert": 2, "tensor": 8}
    split, whole = of(mesh), of(mesh, expert_fold="tensor")
    assert whole.step.resources["compute"] == pytest.approx(split.step.resources["compute"], rel=1e-9)
    sums = [e.step.resources["network tensor"] for e in (split, whole)]
    assert sums[1] < sums[0]


def test_what_is_no_expert_can_be_split_over_expert_ways():
    mesh = {"fsdp": 4, "expert": 16}
    for zero, parts in (
        (1, ("optimizer",)),
        (2, ("optimizer", "gradients")),
        (3, ("optimizer", "gradients", "weights")),
    ):
        apart, together = of(mesh, zero=zero), of(mesh, zero=zero, expert_zero=1)
        for part in parts:
            size = {"optimizer": 8, "gradients": 2, "weights": 2}[part]
            rest = apart.step.memory[part] - size * EXPERTS / 64
            assert together.step.memory[part] - size * EXPERTS / 64 == pytest.approx(rest / 16, rel=1e-3)


def test_plans_of_published_runs_can_be_told():
    """DeepSeek-V3: 16 stages, experts over 64 chips, ZeRO-1 over 128 of data parallelism (report, section 3.2). Megatron's folding
    of Mixtral 8x22B: attention over two tensor ways, experts whole over eight chips (Liu et al., 2025, table 3).
    """
    v3 = of({"pipeline": 16, "expert": 64, "fsdp": 2}, architecture("deepseek-v3"), "h100:2048", 15360 * 4096, 4096, 60,
            zero=1, expert_zero=1, schedule="dualpipe", remat="selective")  # fmt: skip
    assert v3.plan.chips == 2048
    folded = of({"pipeline": 8, "tensor": 2, "expert": 4, "fsdp": 2}, architecture("mixtral-8x22b"), "h100:128", 256 * 4096, 4096, 32,
                zero=1, expert_fold="tensor", expert_zero=1)  # fmt: skip
    split = of({"pipeline": 8, "tensor": 2, "expert": 4, "fsdp": 2}, architecture("mixtral-8x22b"), "h100:128", 256 * 4096, 4096, 32,
               zero=1, expert_zero=1)  # fmt: skip
    assert float(folded.step.expected) < float(split.step.expected)


def test_a_search_tries_folds_where_told_and_each_plan_once():
    question = Question(MODEL, slice_of("h100:16"), batch=64 * SEQ, seq=SEQ)
    limits = [
        Limits({"expert_fold": v, "zero": (1,), "remat": ("none",)})
        for v in (("none",), ("tensor",), ("none", "tensor"))
    ]
    plain, folded, both = (plan(question, limits=one, fixed={"pipeline": 1}) for one in limits)
    assert both.best.seconds_per_token == min(plain.best.seconds_per_token, folded.best.seconds_per_token)
    problem, fixed = problem_of(question), {"pipeline": 1}
    counts = [search(problem, fixed, keep=10**6, limits=one).plans for one in limits]
    without = search(problem, {**fixed, "tensor": 1}, keep=10**6, limits=limits[0]).plans
    assert counts[2] == counts[0] + counts[1] - without


@pytest.mark.parametrize("framework", ["megatron", "torchtitan"])
@pytest.mark.parametrize("fold", ["none", "tensor"])
def test_frameworks_are_told_and_tell_where_experts_lie(framework, fold, tmp_path):
    mixtral = architecture("mixtral-8x7b")
    e = of({"fsdp": 8, "expert": 2, "tensor": 4}, mixtral, batch=64 * 4096, seq=4096, expert_fold=fold)
    made = export(e.problem, e.plan, framework)
    flat = {
        k: v for row in made.settings.values() for k, v in (row.items() if isinstance(row, dict) else ())
    } or made.settings
    degree = {"megatron": "expert-model-parallel-size", "torchtitan": "expert_parallel_degree"}[framework]
    assert {**flat, **made.settings}[degree] == (8 if fold == "tensor" else 2)
    path = tmp_path / {"megatron": "run.sh", "torchtitan": "run.toml"}[framework]
    path.write_text(made.text)
    back = import_plan(path, framework, on="h100:64", model="mixtral-8x7b").plan
    assert (back.mesh, back.choices.expert_fold) == (e.plan.mesh, fold)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mesh", "expert=8", "--expert-fold", "tensor"], "without tensor ways"),
        (["--mesh", "fsdp=8", "--expert-zero", "1"], "without expert ways"),
    ],
)
def test_folds_of_axes_that_are_not_used_are_refused(words, said, capsys):
    assert run(["step", "mixtral-8x7b", "--on", "h100:8", "--batch", "512k", *words]) == 2
    assert said in capsys.readouterr().err


def test_models_without_experts_have_nothing_to_fold():
    with pytest.raises(InputError, match="no experts"):
        of({"tensor": 8, "fsdp": 8}, architecture("llama-3-8b"), expert_fold="tensor")
