"""Documents of different lengths in sequences: what attention computes, what padding wastes, who waits for whom."""

import json
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooftop.cli import run
from rooftop.errors import InputError
from rooftop.formula import normal_maximum
from rooftop.frameworks import export
from rooftop.hardware import slice_of
from rooftop.roofline import ideal
from rooftop.training import (
    Choices,
    Question,
    attention_imbalance,
    compare,
    estimate,
    named_plan,
    plan,
    problem_of,
    read_plan,
)
from rooftop.transformer import architecture, documents_of, flops_per_token, pieces_of

SEQ = 1024
MODEL = architecture("layers=2,d_model=256,heads=8,kv_heads=4,d_ff=512,vocab=512")
MESHES = ({"fsdp": 8}, {"fsdp": 2, "context": 4}, {"tensor": 4, "data": 2}, {"pipeline": 2, "fsdp": 4})


def of(lengths, mesh=None, packing="packed", model=MODEL, choices=None, **options):
    question = Question(model, slice_of("h100:8"), batch=64 * SEQ, seq=SEQ, lengths=lengths, packing=packing, **options)
    if lengths is None:
        question = replace(question, packing="packed")
    chosen = named_plan(question, mesh or {"fsdp": 8}, microbatches=4, choices=choices or Choices())
    return estimate(problem_of(question), chosen)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("packing", ["packed", "padded"])
@pytest.mark.parametrize("lengths", [str(SEQ), str(3 * SEQ)])
def test_documents_as_long_as_sequences_change_nothing(mesh, packing, lengths):
    plain, same = of(None, mesh), of(lengths, mesh, packing)
    assert float(same.step.expected) == pytest.approx(float(plain.step.expected), rel=1e-12)
    assert float(same.step.bound) == pytest.approx(float(plain.step.bound), rel=1e-12)
    assert same.mfu == pytest.approx(plain.mfu, rel=1e-12)
    assert same.useful_tokens == plain.batch_tokens


@pytest.mark.parametrize("count", [2, 4, 8, 32])
def test_attention_of_equal_documents_is_the_sum_of_their_squares(count):
    length = SEQ // count
    plain, cut = (
        flops_per_token(MODEL, SEQ),
        flops_per_token(MODEL, SEQ, pieces_of(documents_of(str(length)), SEQ, True)),
    )
    assert cut.matmul == plain.matmul
    assert cut.attention / plain.attention == pytest.approx(count * length * (length + 1) / (SEQ * (SEQ + 1)))


@pytest.mark.parametrize("text", ["300*2,1000", "700", "5000,200*3", "exponential:400", "lognormal:900:1.2", "256,512"])
def test_pieces_are_those_of_documents_laid_end_to_end(text):
    """Against documents that are really laid out: mean length, and mean of its square per token."""
    found, seq = documents_of(text), 1024
    lengths, weights = zip(*found.shares, strict=True)
    pieces, room = [], seq
    for length in random.Random(1).choices(lengths, weights, k=40_000):
        left = length
        while left:
            piece = min(left, room)
            pieces.append(piece)
            left, room = left - piece, room - piece or seq
    laid = pieces_of(found, seq, True)
    assert laid.mean == pytest.approx(sum(pieces) / len(pieces), rel=0.02)
    squares = sum(share * n * n for n, share in laid.shares) / laid.mean
    assert squares == pytest.approx(sum(p * p for p in pieces) / sum(pieces), rel=0.02)


@pytest.mark.parametrize("text", ["exponential:400", "lognormal:900:0.7"])
def test_random_pieces_spread_as_they_do_in_sequences(text):
    """The standard deviation of attention in 8 sequences, which is reckoned as if pieces were independent."""
    found, seq, many = documents_of(text), 1024, 2000
    lengths, weights = zip(*found.shares, strict=True)
    draw = random.Random(2)
    works = []
    for _ in range(many):
        work, room = 0.0, seq
        left = draw.choices(lengths, weights)[0] * draw.random()
        for _ in range(8):
            while room:
                piece = min(max(1, round(left)), room)
                work += piece * (piece + 1) / 2
                room -= piece
                left = left - piece if left - piece >= 1 else draw.choices(lengths, weights)[0]
            room = seq
        works.append(work)
    mean = sum(works) / many
    spread = math.sqrt(sum((w - mean) ** 2 for w in works) / many) / mean
    seen = pieces_of(found, seq, True).seen(lambda n: n * (n + 1) / 2, (seq + 1) / (2 * seq), seq)
    assert seen.spread / math.sqrt(8 * seq) == pytest.approx(spread, rel=0.35)


def test_the_largest_of_normal_variables():
    """Exact: 1/sqrt(pi) of two, 3/(2·sqrt(pi)) of three."""
    assert normal_maximum(1) == pytest.approx(0, abs=1e-12)
    assert normal_maximum(2) == pytest.approx(1 / math.sqrt(math.pi), rel=0.05)
    assert normal_maximum(3) == pytest.approx(1.5 / math.sqrt(math.pi), rel=0.03)


texts = st.lists(
    st.tuples(st.integers(1, 4 * SEQ), st.integers(1, 9)), min_size=1, max_size=6
).map(lambda pairs: ",".join(f"{n}*{times}" for n, times in pairs))  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(texts, st.sampled_from(MESHES), st.sampled_from(["none", "full"]))
def test_documents_never_slow_a_step_and_bounds_hold(lengths, mesh, policy):
    choices = Choices(remat=policy)
    plain, packed = of(None, mesh, choices=choices), of(lengths, mesh, choices=choices)
    assert float(packed.step.expected) <= float(plain.step.expected) * (1 + 1e-9)
    assert float(packed.step.bound) <= float(packed.step.expected)
    assert float(packed.step.memory_bytes) == float(plain.step.memory_bytes)
    assert packed.mfu[1] <= packed.mfu[0] <= 1


@settings(max_examples=25, deadline=None)
@given(texts, st.integers(2, 16))
def test_shorter_documents_never_slow_a_step(lengths, times):
    """All documents cut in equal parts: never slower, on no mesh and in no bound."""
    parts = ",".join(f"{-(-n // times)}*{share}" for n, share in documents_of(lengths).shares)
    long, short = of(lengths), of(parts)
    assert float(short.step.bound) <= float(long.step.bound) * (1 + 1e-9)
    assert short.flops_per_token <= long.flops_per_token * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(texts)
def test_packing_is_never_worse_than_padding(lengths):
    packed, padded = of(lengths), of(lengths, packing="padded")
    assert packed.tokens_per_second_per_chip >= padded.tokens_per_second_per_chip * (1 - 1e-9)
    assert padded.mfu[1] <= of(None).mfu[1] * (1 + 1e-9)


def test_padding_is_counted_as_waste():
    half, plain = of(str(SEQ // 2), packing="padded"), of(None)
    assert float(half.step.expected) == float(plain.step.expected)
    assert half.problem.filled == 0.5
    assert half.useful_tokens == plain.batch_tokens / 2
    assert half.useful_flops + half.wasted_flops == pytest.approx(plain.useful_flops)
    short = flops_per_token(MODEL, SEQ // 2)
    assert half.useful_flops == pytest.approx(3 * short.forward * half.useful_tokens)


def test_a_long_document_keeps_others_waiting_less_in_larger_microbatches():
    """The same batch in 4 microbatches of 2 sequences, and in one of 8; with equal documents there is nothing to wait for."""
    lengths = f"32*60,{SEQ}"
    question = Question(MODEL, slice_of("h100:8"), batch=64 * SEQ, seq=SEQ, lengths=lengths, calibration=ideal())
    problem = problem_of(question)
    few, many = (named_plan(question, {"fsdp": 8}, microbatches=m) for m in (1, 4))
    assert 1 < attention_imbalance(problem, few) < attention_imbalance(problem, many)
    alone = replace(problem, documents=documents_of("32"))
    assert attention_imbalance(alone, few) == attention_imbalance(alone, many) == 1


def test_windows_level_off_inside_of_documents():
    windowed = architecture("llama-3-8b")
    layer = windowed.stack[0]
    windowed = replace(
        windowed, stack=tuple(replace(layer, mixer=replace(layer.mixer, window=256)) for _ in windowed.stack)
    )
    inside = pieces_of(documents_of("512"), 4096, True)
    seen = flops_per_token(windowed, 4096, inside).attention / flops_per_token(windowed, 4096).attention_book
    assert seen == pytest.approx(8 * (256 * 257 / 2 + 256 * 256) / 4096**2)


def test_one_plan_is_worth_the_same_in_the_search():
    question = Question(MODEL, slice_of("h100:8"), batch=64 * SEQ, seq=SEQ, lengths="exponential:300")
    answer = plan(question)
    again = estimate(answer.best.problem, answer.best.plan)
    assert float(again.step.expected) == pytest.approx(float(answer.best.step.expected), rel=1e-12)
    every = [estimate(answer.best.problem, named_plan(question, m)) for m in MESHES]
    assert answer.best.seconds_per_token <= min(e.seconds_per_token for e in every) * (1 + 1e-9)


def test_saved_plans_know_their_documents(tmp_path, capsys):
    (tmp_path / "lengths.csv").write_text("tokens,count\n100,3\n2000,1\n")
    file = tmp_path / "plan.json"
    words = ["step", "llama-3-8b", "--on", "h100:64", "--mesh", "fsdp=64", "--batch", "1M"]
    assert (
        run([*words, "--lengths", str(tmp_path / "lengths.csv"), "--packing", "padded", "--save", str(file), "--json"])
        == 0
    )
    first = json.loads(capsys.readouterr().out)
    assert first["best"]["documents"]["mean_tokens"] == 575
    assert first["best"]["documents"]["filled"] == pytest.approx(575 / 4096)
    (tmp_path / "lengths.csv").unlink()
    assert run(["step", "--plan", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best"] == first["best"]
    assert run(["step", "--plan", str(file), "--explain", "mfu"]) == 0
    assert "useful tokens" in capsys.readouterr().out


def test_packed_and_padded_compare_by_useful_tokens():
    packed, padded = of("256"), of("256", packing="padded")
    assert compare(packed, padded).winner == "a"
    assert ("documents", "256, packed", "256, padded") in compare(packed, padded).changes


def test_exports_say_packing():
    packed = of("256")
    assert export(packed.problem, packed.plan, "maxtext").settings["packing"] is True
    assert export(packed.problem, packed.plan, "megatron").settings["reset-attention-mask"] is True
    assert any("documents" in text for text in export(packed.problem, packed.plan, "torchtitan").unsaid)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lengths", "0"], "1 to 100M"),
        (["--lengths", "no/such/file"], "neither lengths nor a file"),
        (["--lengths", "exponential:-3"], "not a distribution"),
        (["--lengths", "lognormal:100"], "not a distribution"),
        (["--lengths", "12,x"], "lengths of"),
        (["--packing", "padded"], "without lengths"),
        (["--lengths", "100", "--causal", "contiguous", "--mesh", "context=2,fsdp=4"], "not modelled"),
    ],
)
def test_what_is_no_distribution_is_refused(words, said, capsys):
    mesh = [] if "--mesh" in words else ["--mesh", "fsdp=8"]
    assert run(["step", "llama-3-8b", "--on", "h100:8", "--batch", "512k", *mesh, *words]) == 2
    assert said in capsys.readouterr().err


def test_encoders_are_refused():
    with pytest.raises(InputError, match="encoder made"):
        of("100", model=architecture("t5-large"))


def test_a_plan_of_a_file_is_read_with_documents(tmp_path):
    question = Question(MODEL, slice_of("h100:8"), batch=64 * SEQ, seq=SEQ, lengths="100,900*2")
    (tmp_path / "plan.json").write_text(json.dumps({"mesh": {"fsdp": 8}, "for": {"lengths": "100,900*2"}}))
    assert read_plan(tmp_path / "plan.json", question).mesh["fsdp"] == 8
