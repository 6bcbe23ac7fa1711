"""Workloads as files: formats, and what is said of those that are broken."""

import json
from pathlib import Path

import pytest

from rooftop.errors import InputError
from rooftop.simulation import workload

EXAMPLES = Path(__file__).parent.parent / "docs/examples"


def rows(path):
    return [(r.arrival, r.input, r.output, r.parts, r.priority, r.client) for r in workload(str(path)).requests(0)]


def test_the_columns_of_azure(tmp_path):
    path = tmp_path / "conv.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n2023-11-17 00:00:00.0000000,879,55\n"
    )
    read = rows(path)
    assert [r[1:3] for r in read] == [(374, 44), (396, 109), (879, 55)]
    assert [r[0] for r in read] == pytest.approx([0.0, 4.314579, 20653.31941], abs=2e-6)
    zoned = tmp_path / "zoned.csv"
    zoned.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00+00:00,1,2\n2024-05-10 01:00:01.5+01:00,3,4\n"
    )
    assert [r[0] for r in rows(zoned)] == [0.0, 1.5]


def test_the_keys_of_mooncake(tmp_path):
    path = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": list(range(46, 60))},
        {"timestamp": 30535, "input_length": 512, "output_length": 26, "hash_ids": [46]},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    first, second = rows(path)
    assert second[0] == pytest.approx(3.053)
    assert second[1:4] == (512, 26, ((46, 512),))
    assert first[3][0] == (46, 512)
    assert first[3][-1] == (59, 6955)


def test_our_own_columns(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text(
        "client,arrival,input_tokens,output_tokens,prefix_id,prefix_tokens,priority\na,10,100,7,p,40,2\nb,10.5,90,8,,0,-1\n"
    )
    assert rows(path) == [(0.0, 100, 7, (("p", 40),), 2, "a"), (0.5, 90, 8, (), -1, "b")]
    path.write_text("arrival,input_tokens,output_tokens,prefix_id\n0,100,7,chat\n")
    assert rows(path)[0][3] == (("chat", 107),)
    vidur = tmp_path / "vidur.csv"
    vidur.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n3,10,20\n4,30,40\n")
    assert [r[:3] for r in rows(vidur)] == [(0.0, 10, 20), (1.0, 30, 40)]


HEADER = "arrival,input_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", HEADER + "0,10,5\n1,x,5\n", ["line 3", "input_tokens", "'x'"]),
        ("a.csv", HEADER + "0,10,5\n\n1,10,0\n", ["line 4", "output_tokens", "'0'"]),
        ("a.csv", HEADER + "0,10,5\n1,10.5,1\n", ["line 3", "input_tokens"]),
        ("a.csv", HEADER + "5,10,5\n1,10,1\n", ["line 3", "arrival", "sort"]),
        ("a.csv", HEADER + "nan,10,5\n", ["line 2", "arrival"]),
        ("a.csv", HEADER + "0,10\n", ["line 2", "output_tokens", "2 values"]),
        ("a.csv", HEADER + '0,"10,5\n', ["line 2", "CSV"]),
        ("a.csv", HEADER, ["no requests"]),
        ("a.csv", "", ["no requests"]),
        ("a.csv", "when,input_tokens,output_tokens\n0,1,1\n", ["line 1", "no column for arrival", "when"]),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", ["line 2", "TIMESTAMP", "yesterday"]),
        ("a.csv", "arrival,input_tokens,output_tokens,prefix_id,prefix_tokens\n0,9,1,p,10\n", ["line 2", "prefix_tokens"]),
        ("a.csv", "arrival,input_tokens,output_tokens,prefix_tokens\n0,9,1,1\n", ["line 1", "prefix_id"]),
        ("a.jsonl", '{"arrival": 0, "input_tokens": 1, "output_tokens": 1}\n{"arr', ["line 2", "column", "JSON"]),
        ("a.jsonl", "[1]\n", ["line 1", "object"]),
        ("a.jsonl", '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2, 3]}', ["line 1", "hash_ids", "512"]),
        ("a.jsonl", '{"timestamp": 0, "input_length": 6, "output_length": 1, "hash_ids": ["x"]}', ["line 1", "hash_ids"]),
        ("a.jsonl", '{"timestamp": true, "input_length": 6, "output_length": 1}', ["line 1", "timestamp"]),
        ("a.jsonl", '{"timestamp": 1, "input_length": 1e400, "output_length": 1}', ["line 1", "input_length"]),
        ("a.jsonl", "[" * 100_000, ["line 1", "JSON"]),
        ("a.csv", "x" * 5_000_000, ["line 1", "longer"]),
    ],
)  # fmt: skip
def test_what_is_wrong_and_where(tmp_path, name, text, says):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        rows(path)
    for part in says:
        assert part in caught.value.message
    assert caught.value.field == "workload"
    assert "\n" not in caught.value.message


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        rows(path)
    with pytest.raises(InputError, match="cannot read"):
        rows(tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("poison:rate=1,input=1,output=1", "did you mean poisson"),
        ("poisson:rate=1,input=1", "no output"),
        ("poisson:input=1,output=1", "no rate"),
        ("poisson:rate=0,input=1,output=1", "rate = '0'"),
        ("poisson:rate=1,cv=2,input=1,output=1", "'cv=2'"),
        ("poisson:rate=1,rate=2,input=1,output=1", "twice"),
        ("poisson:rate=1,input=0,output=1", "input = '0'"),
        ("poisson:rate=1,input=5..2,output=1", "input = '5..2'"),
        ("poisson:rate=1,input=1~x,output=1", "1~x"),
        ("poisson:rate=1,input=1,output=1,requests=1.5", "whole"),
        ("closed:input=1,output=1", "no users"),
        ("poisson:rate=1,input=1,output=1,prefixes=3", "together"),
        ("nowhere.csv", "cannot read"),
    ],
)
def test_what_is_wrong_with_a_synthetic_one(text, says):
    with pytest.raises(InputError) as caught:
        list(workload(text).requests(0))
    assert says in caught.value.message


def test_the_same_seed_draws_the_same_requests():
    for text in (
        "gamma:rate=3,cv=2,requests=500,input=9~0.5,output=4~exp,prefixes=3,prefix_tokens=5",
        "closed:users=9,think=1,input=3~exp,output=2",
    ):

        def drawn(seed, text=text):
            return [(r.arrival, r.input, r.output, r.parts) for r in workload(text).requests(seed)]

        assert drawn(1) == drawn(1)
        assert drawn(1) != drawn(2)


@pytest.mark.parametrize("name", ["azure.csv", "mooncake.jsonl"])
def test_the_examples_can_be_read(name):
    assert len(rows(EXAMPLES / name)) == 60
