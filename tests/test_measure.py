"""Published measurements: read, predicted as published, never faster than physics."""

import csv
import io
import json
import statistics

import pytest

from rooftop.cli import run
from rooftop.errors import InputError
from rooftop.measure import predict, published, read_rows, validate
from rooftop.measure._models import model_of
from rooftop.measure._training import benchmark, mesh_of, planned, where_of
from rooftop.transformer import parameters

ROWS = {row.id: row for row in published("training")}
SAMPLE = [
    "llmfoundry.4", "llmfoundry.60", "maxtext.v5p.32B.1x128", "maxtext.v4.52B.1x384", "mbridge.301", "mbridge.308",
    "seqpar.megatron-22b.full", "seqpar.gpt3-175b.full", "torchtitan.1.0", "torchtitan.4.0",
    "tpurecipes.trillium.Llama3.1-8B-MaxText.v6e-16",
]  # fmt: skip


def test_the_package_holds_every_row_with_its_source():
    assert len(ROWS) == 375
    assert all(row.text("source") and row.text("chip") and row.text("model") for row in ROWS.values())
    assert len({benchmark(row) for row in ROWS.values()}) == 6
    assert len(published("inference")) == 78
    assert len(published("serving")) == 3639
    assert all(row.text("silicon_data_source") for row in published("serving"))


@pytest.mark.parametrize("name", SAMPLE)
def test_a_measurement_is_slower_than_its_bound(name):
    (p,) = predict(ROWS[name])
    assert p.bound <= p.measured
    assert p.bound <= p.expected
    found, _ = planned(ROWS[name])
    assert found.plan.chips == ROWS[name].count("chips")
    assert found.batch_tokens == ROWS[name].count("global_batch") * ROWS[name].count("seq")


@pytest.mark.parametrize(
    ("name", "billions"),
    [("mpt-70b", 64.86), ("mpt-30b", 29.98), ("mpt-7b", 6.66), ("mpt-125m", 0.1236), ("gpt3-175b", 174.6),
     ("maxtext-128B model", 125), ("maxtext-1024B model", 997)],
)  # fmt: skip
def test_shapes_have_the_parameters_that_their_sources_state(name, billions):
    assert parameters(model_of(name)).total / 1e9 == pytest.approx(billions, rel=0.01)


def test_megatron_s_mesh_is_read_in_our_axes():
    mesh, zero, _ = mesh_of(ROWS["mbridge.301"].ways("mesh"), 1024)
    assert mesh == {"tensor": 8, "pipeline": 8, "context": 2, "expert": 1, "fsdp": 8}
    assert zero == 1


def test_racks_and_tori_of_no_standard_size():
    assert [level.size for level in where_of("gb200", 256, 1).levels] == [64, 4]
    assert where_of("v4", 384, 2).name == "v4:4x4x12*2"
    assert where_of("h100", 16, 1).chips == 16


def test_rows_that_cannot_be_predicted_say_why():
    names = ["tpurecipes.tpu7x.gpt-oss-120b.64.8192.bf16", "tpurecipes.tpu7x.wan2.1-14b.64.75600.bf16"]
    lora = next(row for row in ROWS.values() if "LoRA" in row.text("source"))
    result = validate([*(ROWS[n] for n in names), lora])
    assert [s.reason for s in result.refused][:2] == ["mesh is not published", "the model wan2.1-14b is not known"]
    assert "LoRA" in result.refused[2].reason
    assert result.predictions == ()


def test_errors_are_medians():
    result = validate([ROWS[n] for n in SAMPLE[6:8]])
    (errors,) = result.by(lambda p: p.source).values()
    both = [p.error for p in result.predictions]
    assert errors.bias == pytest.approx(statistics.median(both))
    assert errors.count == 2


def text(**changes):
    row = dict(
        id="mine.1", source="my run", model="llama-3-8b", chip="h100", chips=8, mesh='{"fsdp": 8}', microbatch=1,
        global_batch=8, seq=4096, precision="bf16", recompute="full", step_seconds=9.0,
    ) | changes  # fmt: skip
    out = io.StringIO()
    writer = csv.DictWriter(out, row)
    writer.writeheader()
    writer.writerow(row)
    return out.getvalue()


def test_a_file_of_one_s_own(tmp_path, capsys):
    path = tmp_path / "mine.csv"
    path.write_text(text())
    assert run(["validate", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"][0]["measured"] == 9.0
    assert told["rows"][0]["refused"] is None
    assert {"bias", "median", "p90"} <= set(told["aggregates"]["hardware"][0])
    path.write_text(text(step_seconds=1e-3))
    assert run(["validate", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["beating"] == ["mine.1"]


@pytest.mark.parametrize(
    "changes",
    [{"chips": "many"}, {"chips": 1.5}, {"seq": -1}, {"mesh": "[1]"}, {"mesh": '{"fsdp": "x"}'}, {"mesh": '{"fsdp": -8}'},
     {"step_seconds": "nan"}, {"chip": "h1000"}, {"chip": "/etc/passwd"}, {"model": "../config.json"}, {"model": ""},
     {"mesh": '{"fsdp": 0}'}, {"chips": "1e14"}, {"seq": "1e12"}, {"microbatch": "x"}, {"precision": "fp3"}, {"slices": 3},
     {"mesh": '{"tp": 0}', "chips": "7"}, {"model": "layers=2"}, {"global_batch": ""}],
)  # fmt: skip
def test_rows_that_are_refused_say_why(tmp_path, capsys, changes):
    path = tmp_path / "mine.csv"
    path.write_text(text(**changes))
    code = run(["validate", str(path), "--json"])
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert code in (0, 1)
    assert row["id"] == "mine.1"
    assert row["refused"] or changes.get("mesh") == '{"tp": 0}'


def test_a_file_without_columns(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="none of the columns"):
        read_rows(path)
    with pytest.raises(InputError, match="cannot read"):
        read_rows(tmp_path / "none.csv")


def serving(**changes):
    row = dict(
        id="mine.2", backend="vllm", model_path="meta-llama/Llama-3.1-8B-Instruct", system="h100_sxm", mode="agg", isl=1024,
        osl=128, gemm_quant_mode="", batch_size=8, tp_size=2, silicon_ttft_ms=60.0, silicon_tpot_ms=6.0,
    ) | changes  # fmt: skip
    out = io.StringIO()
    writer = csv.DictWriter(out, row)
    writer.writeheader()
    writer.writerow(row)
    return out.getvalue()


def test_serving_rows(tmp_path, capsys):
    path = tmp_path / "mine.csv"
    path.write_text(serving())
    assert run(["validate", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["rows"]
    assert [r["quantity"] for r in told] == ["ttft_seconds", "tpot_seconds"]
    assert all(r["bound"] <= r["expected"] and r["users"] == 8 for r in told)


def test_separate_workers(tmp_path, capsys):
    """Rows of two pools are predicted where they state their workers, and refused where they do not."""
    parts = {f"{part}_{k}": v for part in ("prefill", "decode") for k, v in (("tp_size", 2), ("num_workers", 1))}
    path = tmp_path / "mine.csv"
    path.write_text(serving(mode="disagg", batch_size="", tp_size="", decode_batch_size=8, **parts))
    assert run(["validate", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["prefill_workers"] == 1
    path.write_text(serving(mode="disagg", **(parts | {"prefill_num_workers": ""})))
    assert run(["validate", str(path), "--json"]) == 0
    assert "prefill_num_workers is not published" in json.loads(capsys.readouterr().out)["rows"][0]["refused"]


@pytest.mark.parametrize(
    "changes",
    [{"mode": "x"}, {"isl": "1e9"}, {"osl": ""}, {"tp_size": 3}, {"tp_size": 0}, {"pp_size": 2}, {"batch_size": "1e14"},
     {"system": "z9"}, {"gemm_quant_mode": "q"}, {"attention_dp_size": 2}, {"silicon_ttft_ms": "", "silicon_tpot_ms": ""}],
)  # fmt: skip
def test_serving_rows_that_are_refused(tmp_path, capsys, changes):
    path = tmp_path / "mine.csv"
    path.write_text(serving(**changes))
    assert run(["validate", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["refused"]


def test_throughput_rows(capsys):
    assert run(["validate", "--table", "inference", "--sample", "8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["rows"]
    assert all(r["refused"] or r["bound"] >= r["expected"] for r in told)
    assert sum(r["refused"] is None for r in told) >= 7
