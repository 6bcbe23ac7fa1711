"""rooftop simulate: what it prints, what it writes, what it refuses."""

import csv
import json
import xml.etree.ElementTree
from pathlib import Path

import pytest

from rooftop.cli import run

STEPS = str(Path(__file__).parent.parent / "docs/examples/steps-70b.toml")
LOAD = "poisson:rate=8,requests=300,input=500,output=50"


def ask(capsys, *arguments, status=0):
    capsys.readouterr()
    assert run(["simulate", "--step-model", STEPS, "--json", *arguments]) == status
    printed = capsys.readouterr()
    return json.loads(printed.out)


def test_the_keys_that_others_rely_on(capsys):
    data = ask(capsys, "--workload", LOAD, "--ttft", "1s")
    for name in ("ttft_seconds", "tpot_seconds", "e2e_seconds"):
        seen = data[name]
        assert 0 < seen["p50"] <= seen["p90"] <= seen["p99"]
    assert data["simulated"]["requests"] == 300
    assert data["simulated"]["seconds"] > 0
    assert data["tokens_per_second"] == pytest.approx(50 * data["requests_per_second"])
    assert data["goodput"] == pytest.approx(data["slo_attainment"] * data["requests_per_second"])
    assert 0 < data["utilisation"] <= 1
    assert 0 < data["kv_occupancy"] < 1
    assert data["usd"] == pytest.approx(2.5 * 4 * max(data["span_seconds"], 0) / 3600, rel=0.02)


def test_the_same_seed_prints_the_same(capsys):
    def answer(seed):
        data = ask(capsys, "--workload", LOAD, "--seed", str(seed))
        del data["simulated"]
        return data

    assert answer(1) == answer(1)
    assert answer(1) != answer(2)


def test_several_seeds_give_intervals(capsys):
    found = ask(capsys, "--workload", LOAD, "--seeds", "4")["confidence"]
    mean, half = found["mean_and_half_width"]["ttft_seconds.p50"]
    assert found["seeds"] == 4
    assert 0 < half < mean


def test_the_highest_rate_meets_the_slo_and_a_higher_one_does_not(capsys):
    wanted = ("--ttft", "300ms", "--tpot", "20ms")
    data = ask(capsys, "--workload", LOAD, *wanted, "--find-rate", "--attain", "0.9")
    found = data["find_rate"]
    assert data["slo_attainment"] >= 0.9
    missed = [t["requests_per_second"] for t in found["tried"] if t["slo_attainment"] < 0.9]
    assert found["requests_per_second"] < min(missed) < 1.02 * found["requests_per_second"]


def test_rows_of_requests(capsys, tmp_path):
    path = tmp_path / "rows.csv"
    data = ask(capsys, "--workload", LOAD, "--requests", str(path), "--tpot", "10ms")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 300
    assert {int(r["id"]) for r in rows} == set(range(300))
    assert sum(r["met_slo"] == "True" for r in rows) == round(300 * data["slo_attainment"])
    for r in rows[:20]:
        tpot = (float(r["finish_seconds"]) - float(r["first_token_seconds"])) / 49
        assert float(r["tpot_seconds"]) == pytest.approx(tpot)
    assert list(tmp_path.iterdir()) == [path]


def test_parquet_rows(capsys, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    ask(capsys, "--workload", LOAD, "--requests", str(path))
    table = parquet.read_table(path)
    assert table.num_rows == 300
    assert table.schema.field("met_slo").type == "bool"


def test_parquet_without_its_library_says_what_to_install(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    data = ask(capsys, "--workload", LOAD, "--requests", str(tmp_path / "a.parquet"), status=2)
    assert "rooftop[parquet]" in data["error"]["message"]


def test_a_failed_simulation_leaves_the_file_that_was_there(capsys, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("precious")
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival,input_tokens,output_tokens\n0,5,5\n1,oops,5\n")
    error = ask(capsys, "--workload", str(trace), "--requests", str(path), status=2)["error"]
    assert "line 3" in error["message"]
    assert path.read_text() == "precious"
    assert sorted(tmp_path.iterdir()) == [path, trace]


def test_the_figure_is_svg_of_its_own(capsys, tmp_path):
    path = tmp_path / "load.svg"
    ask(capsys, "--workload", LOAD, "--timeline", str(path))
    root = xml.etree.ElementTree.parse(path).getroot()
    assert root.tag.endswith("svg")
    assert len(root.findall("{*}polyline")) == 3


def test_what_can_never_be_served(capsys):
    error = ask(capsys, "--workload", "poisson:rate=1,requests=5,input=900000,output=2", status=1)["error"]
    assert "request 0" in error["message"]
    assert "25000" in error["message"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--acceptance", "0.5"], "--speculate"),
        (["--speculate", "3"], "--acceptance"),
        (["--attain", "0.5"], "--find-rate"),
        (["--find-rate"], "--ttft"),
        (["--autoscale-target", "3"], "--autoscale"),
        (["--autoscale", "2", "--replicas", "3"], "autoscaling up to 2"),
        (["--queue", "lifo"], "fcfs"),
        (["--route", "best"], "round-robin"),
        (["--first", "prompt"], "decode"),
        (["--max-batch", "0"], "max_batch"),
        (["--max-tokens", "10"], "max_batch"),
        (["--watermark", "2"], "watermark"),
        (["--requests", "rows.txt"], ".csv"),
        (["--timeline", "load.png"], ".svg"),
        (["--seeds", "3", "--find-rate", "--ttft", "1s"], "--seeds"),
    ],
)
def test_what_is_refused(capsys, arguments, says):
    assert says in ask(capsys, "--workload", LOAD, *arguments, status=2)["error"]["message"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("overhead = 1e-3", "kv_tokens"),
        ("overhead = -1\nkv_tokens = 9", "overhead"),
        ("overheads = 1\nkv_tokens = 9", "did you mean overhead"),
        ("kv_tokens = 100", "no time"),
        ("overhead = 1\nkv_tokens = 1.5", "whole"),
        ("overhead = 1\nkv_tokens = 10\nhost_bandwidth = 0", "host_bandwidth"),
        ("overhead = true\nkv_tokens = 10", "overhead"),
        ("overhead = nan\nkv_tokens = 10", "overhead"),
        ("= 3", "TOML"),
    ],
)
def test_step_models_that_are_refused(capsys, tmp_path, text, says):
    path = tmp_path / "steps.toml"
    path.write_text(text)
    capsys.readouterr()
    assert run(["simulate", "--step-model", str(path), "--workload", LOAD]) == 2
    assert says in capsys.readouterr().err


def test_a_step_model_in_json(capsys, tmp_path):
    path = tmp_path / "steps.json"
    path.write_text(json.dumps({"overhead": 0.01, "kv_tokens": 10_000}))
    assert run(["simulate", "--step-model", str(path), "--workload", LOAD]) == 0


def test_a_model_on_a_slice(capsys):
    capsys.readouterr()
    arguments = ["llama-3-8b", "--on", "h100", "--workload", LOAD, "--json"]
    assert run(["simulate", *arguments]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert run(["simulate", *arguments, "--bound"]) == 0
    bound = json.loads(capsys.readouterr().out)
    assert bound["e2e_seconds"]["p50"] < expected["e2e_seconds"]["p50"]
    assert any("llama-3-8b" in text or "expected" in text for text in expected["assumptions"])
    assert expected["usd"] > 0


def test_pools_of_different_slices(capsys):
    capsys.readouterr()
    arguments = ["llama-3-8b", "--on", "h100", "--prefill-on", "h100:2", "--prefill-replicas", "2", "--workload", LOAD]
    assert run(["simulate", *arguments, "--transfer-bandwidth", "20GB", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["most_replicas"] == 3
    assert 0 < data["kv_occupancy"] < 1
    assert any("40.0 GB/s" in text for text in data["assumptions"])
    from rooftop.hardware import chip

    hours = data["timeline"]["seconds"][-1] / 3600
    assert data["usd"] == pytest.approx(5 * hours * chip("h100").price.usd_per_hour, rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--workload", LOAD], "--step-model"),
        (["llama-3-8b", "--workload", LOAD], "--on"),
        (["llama-3-8b", "--on", "h100", "--step-model", STEPS, "--workload", LOAD], "leave out MODEL"),
        (["--step-model", STEPS, "--kv", "fp8", "--workload", LOAD], "--kv"),
        (["llama-3-8b", "--on", "h100", "--prefill-on", "h100", "--workload", LOAD], "--prefill-replicas"),
        (["llama-3-8", "--on", "h100", "--workload", LOAD], "llama-3-8b"),
    ],
)
def test_what_serves_is_named_once(capsys, arguments, says):
    capsys.readouterr()
    assert run(["simulate", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_model_that_does_not_fit(capsys):
    assert run(["simulate", "llama-3-70b", "--on", "h100", "--workload", LOAD]) == 1
    assert "does not fit" in capsys.readouterr().err


def test_outputs_of_one_token_have_no_tpot(capsys):
    data = ask(capsys, "--workload", "poisson:rate=8,requests=20,input=500,output=1")
    assert data["tpot_seconds"]["p50"] is None
    assert run(["simulate", "--step-model", STEPS, "--workload", "poisson:rate=8,requests=20,input=500,output=1"]) == 0
    assert "TPOT" in capsys.readouterr().out
