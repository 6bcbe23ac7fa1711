"""What optimizers keep and cost, from their papers."""

import numpy as np
import pytest

from rooftop.cli import run
from rooftop.errors import InputError
from rooftop.hardware import slice_of
from rooftop.roofline import ideal
from rooftop.training import Choices, Question, estimate, explain_estimate, named_plan, plan, problem_of
from rooftop.training._answer import checkpoint_size
from rooftop.training._optimizer import NEWTON_SCHULZ, OPTIMIZERS, newton_schulz_flops
from rooftop.transformer import architecture, parameters

D, F, L, V = 1024, 4096, 4, 512
MODEL = f"layers={L},d_model={D},heads=8,d_ff={F},vocab={V}"
#: Parameters of the matrices of a block: four of attention, three of a gated feed-forward part.
MATRICES = L * (4 * D * D + 3 * D * F)


def of(mesh, where="h100:8", zero=3, **options):
    question = Question(architecture(MODEL), slice_of(where), batch=64 * 1024, seq=1024, calibration=ideal(), **options)
    return estimate(problem_of(question), named_plan(question, mesh, microbatches=1, choices=Choices(zero=zero)))


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("adamw", lambda total: 2 * total),
        ("lion", lambda total: total),
        ("sgd-momentum", lambda total: total),
        ("muon", lambda total: 2 * total - MATRICES),
    ],
)
@pytest.mark.parametrize(("dtype", "size"), [("fp32", 4), ("bf16", 2), ("int8", 1 + 4 / 2048), ("fp8", 1 + 4 / 2048)])
def test_states(name, numbers, dtype, size):
    e = of({"data": 1}, "h100", optimizer=name, optimizer_dtype=dtype)
    expected = numbers(parameters(architecture(MODEL)).total) * size
    assert e.step.memory["optimizer"] == pytest.approx(expected, rel=1e-6)
    assert checkpoint_size(e) == pytest.approx(expected + 2 * parameters(architecture(MODEL)).total, rel=1e-6)


def test_adafactor_keeps_rows_and_columns():
    """A matrix of D x F has D + F numbers instead of D·F (Shazeer and Stern, 2018)."""
    e = of({"data": 1}, "h100", optimizer="adafactor")
    matrices = L * (4 * (D + D) + 3 * (D + F)) + 2 * (V + D)
    assert e.step.memory["optimizer"] == pytest.approx(4 * (matrices + (2 * L + 1) * D))


def test_newton_schulz_is_what_it_multiplies():
    """Jordan et al., 2024: the FLOPs of its matmuls, counted on arrays."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = np.random.default_rng(0).standard_normal((8, 24))
    x /= np.linalg.norm(x)
    flops = 0

    def dot(p, q):
        nonlocal flops
        flops += 2 * p.shape[0] * p.shape[1] * q.shape[1]
        return p @ q

    for _ in range(NEWTON_SCHULZ):
        gram = dot(x, x.T)
        x = a * x + dot(b * gram + c * dot(gram, gram), x)
    assert flops == newton_schulz_flops(8, 24)
    assert np.linalg.svd(x, compute_uv=False) == pytest.approx(np.ones(8), abs=0.35)


def test_muon_shares_its_work_out_and_sends_momenta_and_updates():
    one, eight = of({"data": 1}, "h100", optimizer="muon"), of({"fsdp": 8}, optimizer="muon")
    flops = L * (4 * newton_schulz_flops(D, D) + 3 * newton_schulz_flops(D, F))
    parts = [{p.name: float(p.seconds) for p in e.step.parts} for e in (one, eight)]
    assert parts[0]["orthogonalisation"] == pytest.approx(flops / 9.89e14)
    assert parts[1]["orthogonalisation"] == pytest.approx(flops / 9.89e14 / 8)
    assert "exchange of momenta" not in parts[0]
    # every chip sends 7/8 of its eighth of all matrices in bf16, out and back
    assert parts[1]["exchange of momenta"] == pytest.approx(2 * 2 * MATRICES / 8 * 7 / 8 / 4.5e11, rel=0.01)
    assert explain_estimate(eight, "orthogonalisation").value == pytest.approx(parts[1]["orthogonalisation"])


def test_data_parallel_muon_sends_nothing_more():
    assert "exchange of momenta" not in {p.name for p in of({"data": 8}, optimizer="muon").step.parts}


def test_gradients_are_reduced_and_kept_in_their_dtypes():
    narrow, wide = of({"data": 8}), of({"data": 8}, reduction_dtype="fp32")
    assert wide.step.resources["network data"] == pytest.approx(2 * narrow.step.resources["network data"])
    assert wide.step.memory == pytest.approx(narrow.step.memory)
    kept = of({"data": 8}, gradient_dtype="fp32").step.memory
    assert kept["gradients"] == pytest.approx(2 * narrow.step.memory["gradients"])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_search_knows_every_optimizer(name):
    question = Question(architecture(MODEL), slice_of("h100:8"), batch=64 * 1024, seq=1024, optimizer=name)
    best = plan(question).best
    assert best.seconds_per_token == pytest.approx(plan(question).outcome.found[0].seconds_per_token, rel=1e-9)
    assert 0 < best.step.bound <= best.step.expected


def test_what_is_not_known_is_refused(capsys):
    for options, field in (
        ({"optimizer": "adam"}, "optimizer"),
        ({"optimizer_dtype": "int4"}, "optimizer_dtype"),
        ({"gradient_dtype": "int8"}, "gradient_dtype"),
        ({"reduction_dtype": "float7"}, "dtype"),
    ):
        with pytest.raises(InputError) as error:
            of({"data": 1}, "h100", **options)
        assert error.value.field == field


def test_an_optimizer_is_saved_with_the_plan(tmp_path, capsys):
    file = tmp_path / "plan.json"
    words = [
        "--on",
        "h100:8",
        "--mesh",
        "fsdp=8",
        "--optimizer",
        "muon",
        "--optimizer-dtype",
        "int8",
        "--save",
        str(file),
    ]
    assert run(["step", "llama-3-8b", "--batch", "256k", "--remat", "full", *words]) == 0
    before = capsys.readouterr().out
    assert run(["step", "--plan", str(file)]) == 0
    after = capsys.readouterr().out
    assert "states of muon in int8" in " ".join(after.split())
    assert before.splitlines()[:8] == after.splitlines()[:8]
