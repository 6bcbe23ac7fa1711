"""Published measurements: read, predicted as published, never faster than physics."""

import csv
import io
import json
import statistics

import pytest

from rooftop.cli import run
from rooftop.errors import InputError
from rooftop.measure import published, read_rows, validate
from rooftop.measure._validate import mesh_of, model_of, predict, where_of
from rooftop.transformer import parameters

ROWS = {row.id: row for row in published()}
SAMPLE = [
    "llmfoundry.4", "llmfoundry.60", "maxtext.v5p.32B.1x128", "maxtext.v4.52B.1x384", "mbridge.301", "mbridge.308",
    "seqpar.megatron-22b.full", "seqpar.gpt3-175b.full", "torchtitan.1.0", "torchtitan.4.0",
    "tpurecipes.trillium.Llama3.1-8B-MaxText.v6e-16",
]  # fmt: skip


def test_the_package_holds_every_row_with_its_source():
    assert len(ROWS) == 375
    assert all(row.source and row.chip and row.model for row in ROWS.values())
    assert len({row.family for row in ROWS.values()}) == 6


@pytest.mark.parametrize("name", SAMPLE)
def test_a_measurement_is_slower_than_its_bound(name):
    p = predict(ROWS[name])
    assert float(p.estimate.step.bound) <= p.measured
    assert float(p.estimate.step.bound) <= float(p.estimate.step.expected)
    assert p.estimate.plan.chips == ROWS[name].chips
    assert p.estimate.batch_tokens == ROWS[name].global_batch * ROWS[name].seq


@pytest.mark.parametrize(
    ("name", "billions"),
    [("mpt-70b", 64.86), ("mpt-30b", 29.98), ("mpt-7b", 6.66), ("mpt-125m", 0.1236), ("gpt3-175b", 174.6),
     ("maxtext-128B model", 125), ("maxtext-1024B model", 997)],
)  # fmt: skip
def test_shapes_have_the_parameters_that_their_sources_state(name, billions):
    assert parameters(model_of(name)).total / 1e9 == pytest.approx(billions, rel=0.01)


def test_megatron_s_mesh_is_read_in_our_axes():
    mesh, zero, _ = mesh_of(ROWS["mbridge.301"])
    assert mesh == {"tensor": 8, "pipeline": 8, "context": 2, "expert": 1, "fsdp": 8}
    assert zero == 1


def test_racks_and_tori_of_no_standard_size():
    assert [level.size for level in where_of("gb200", 256, 1).levels] == [64, 4]
    assert where_of("v4", 384, 2).name == "v4:4x4x12*2"
    assert where_of("h100", 16, 1).chips == 16


def test_rows_that_cannot_be_predicted_say_why():
    names = ["tpurecipes.tpu7x.gpt-oss-120b.64.8192.bf16", "tpurecipes.tpu7x.wan2.1-14b.64.75600.bf16"]
    lora = next(row for row in ROWS.values() if "LoRA" in row.source)
    result = validate([*(ROWS[n] for n in names), lora])
    assert [s.reason for s in result.skipped][:2] == ["mesh is not published", "the model wan2.1-14b is not known"]
    assert "LoRA" in result.skipped[2].reason
    assert result.predictions == ()


def test_errors_are_medians():
    result = validate([ROWS[n] for n in SAMPLE[6:8]])
    (errors,) = result.by(lambda row: row.family).values()
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
    assert run(["validate", "--file", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"][0]["step_seconds"]["measured"] == 9.0
    path.write_text(text(step_seconds=1e-3))
    assert run(["validate", "--file", str(path)]) == 1
    assert "Faster than the bound" in capsys.readouterr().out
    path.write_text(text(chip="h1000"))
    assert run(["validate", "--file", str(path)]) == 2
    assert "h1000 is not in the data" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes",
    [{"chips": "many"}, {"chips": 1.5}, {"seq": -1}, {"mesh": "[1]"}, {"mesh": '{"fsdp": "x"}'}, {"mesh": '{"fsdp": -8}'},
     {"step_seconds": "nan"}],
)  # fmt: skip
def test_files_that_are_refused(tmp_path, changes):
    path = tmp_path / "mine.csv"
    path.write_text(text(**changes))
    with pytest.raises(InputError, match="row 2"):
        read_rows(path)


def test_a_file_without_columns(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="no column 'id'"):
        read_rows(path)
    with pytest.raises(InputError, match="cannot read"):
        read_rows(tmp_path / "none.csv")
