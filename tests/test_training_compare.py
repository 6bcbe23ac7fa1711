"""Saved plans: written, edited, read again, refused, compared."""

import json

import pytest

from rooftop.cli import run
from rooftop.hardware import slice_of
from rooftop.training import Choices, Question, compare, named_plan, read_plan, step_of, write_plan
from rooftop.transformer import architecture

WORDS = {"model": "llama-3-8b", "slice": "v5p:2x2x2", "seq": 2048, "batch": 2**17}


@pytest.fixture
def files(tmp_path):
    asked = Question(architecture("llama-3-8b"), slice_of("v5p:2x2x2"), batch=2**17, seq=2048)
    meshes = {"a": {"fsdp": 8}, "b": {"fsdp": 2, "tensor": 4}}
    answers = {n: step_of(asked, named_plan(asked, m, choices=Choices(remat="full"))) for n, m in meshes.items()}
    for name, answer in answers.items():
        write_plan(tmp_path / f"{name}.json", answer, WORDS)
    return tmp_path, asked, answers


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refused(capsys, *words):
    capsys.readouterr()
    assert run(list(words)) == 2
    return capsys.readouterr().err


def test_a_saved_plan_is_the_plan(files):
    folder, asked, answers = files
    for name, answer in answers.items():
        assert read_plan(folder / f"{name}.json", asked) == answer.best.plan


def test_the_differences_add_up(files):
    _, _, answers = files
    a, b = (answers[n].best for n in "ab")
    c = compare(a, b)
    for side, e in (("a", a), ("b", b)):
        assert sum(getattr(d, side) for d in c.time) == pytest.approx(float(e.step.expected))
        assert sum(getattr(d, side) for d in c.memory) == pytest.approx(float(e.step.memory_bytes))
    assert (c.winner == "a") == (a.seconds_per_token < b.seconds_per_token)
    assert {name for name, _, _ in c.changes} >= {"fsdp", "tensor", "placement"}
    assert c.why
    back = compare(b, a)
    assert back.ratio == pytest.approx(1 / c.ratio)
    assert {back.winner, c.winner} == {"a", "b"}
    same = compare(a, a)
    assert (same.winner, same.changes, same.why) == ("equal", (), ())


def test_the_command_compares_and_knows_what_for(files, capsys):
    folder, _, answers = files
    words = ["step", "--plan", str(folder / "a.json"), "--versus", str(folder / "b.json")]
    assert run([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["model"], told["slice"], told["seq"]) == ("llama-3-8b", "v5p:2x2x2", 2048)
    assert told["best"]["step_seconds"]["expected"] == pytest.approx(float(answers["a"].best.step.expected))
    assert told["versus"]["b"]["step_seconds"]["expected"] == pytest.approx(float(answers["b"].best.step.expected))
    assert run(words) == 0
    assert "wins" in capsys.readouterr().out


def test_a_plan_is_edited_and_read_again(files, capsys):
    folder, _, _ = files
    edit(folder / "a.json", mesh={"fsdp": 4, "tensor": 2}, placement=None, microbatches=2, microbatch_sequences=None)
    assert run(["step", "--plan", str(folder / "a.json"), "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert (best["mesh"]["tensor"], best["microbatches"], best["remat"]) == (2, 2, "full")


@pytest.mark.parametrize(
    ("changes", "words", "told"),
    [
        ({"version": 2}, [], "version 2"),
        ({"version": "1"}, [], "version 1"),
        ({"for": {"modle": "x"}}, [], "did you mean model"),
        ({"for": {"seq": "long"}}, [], "for.seq"),
        ({"for": []}, [], "for must be"),
        ({}, ["llama-3-70b"], "a plan for the model llama-3-8b"),
        ({}, ["--on", "v5p:4x4x4"], "a plan for the slice v5p:2x2x2"),
        ({}, ["--batch", "4M"], "a batch of"),
        ({"for": {}}, [], "needs MODEL"),
        ({"mesh": {"fsdp": 4, "tensor": 2}}, [], "leave it out"),
    ],
)
def test_plans_that_are_refused(files, capsys, changes, words, told):
    folder, _, _ = files
    edit(folder / "a.json", **changes)
    message = refused(capsys, "step", *words, "--plan", str(folder / "a.json"))
    assert told in message
    assert message.count("\n") == 1


def test_plans_of_different_models_are_not_compared(files, capsys):
    folder, _, _ = files
    edit(folder / "b.json", **{"for": {**WORDS, "model": "llama-3.1-8b", "seq": 4096}})
    message = refused(capsys, "step", "--plan", str(folder / "a.json"), "--versus", str(folder / "b.json"))
    assert "compare two plans" in message or "one --seq" in message
    assert "--plan FILE" in refused(
        capsys, "step", "llama-3-8b", "--on", "v5p:2x2x2", "--mesh", "fsdp=8", "--versus", str(folder / "b.json")
    )


def test_a_file_that_cannot_be_written(files, capsys):
    folder, _, _ = files
    message = refused(capsys, "step", "--plan", str(folder / "a.json"), "--save", str(folder / "no" / "c.json"))
    assert "cannot write" in message
