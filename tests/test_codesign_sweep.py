"""Sweeps: what values mean, every point answered once, arrays and single points alike, engines alike, nothing lost."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rooftop import codesign
from rooftop.cli import run
from rooftop.codesign import Engine, Scenario, Value, Vary, changed, parse_vary, sweep
from rooftop.errors import InputError
from rooftop.hardware import slice_of
from rooftop.transformer import architecture, parameters
from rooftop.units import parse_count, parse_integer

STEP = Scenario("step", architecture("llama-3-8b"), slice_of("h100:16"), {"batch": 1e6}, {"fsdp": 4, "tensor": 4})
SERVE = Scenario("serve", architecture("llama-3-8b"), slice_of("h100:1"), {"batch": 16})


def values(text: str, whole: bool = False) -> list[object]:
    return [v.value for v in parse_vary(f"x={text}", lambda name: parse_integer if whole else parse_count).values]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1M..8M", [1e6, 2e6, 4e6, 8e6]),
        ("1M..64M:x4", [1e6, 4e6, 16e6, 64e6]),
        ("8..64:+16", [8, 24, 40, 56]),
        ("1..16:n3", [1, 4, 16]),
        ("3,1,3", [3, 1]),
    ],
)
def test_values(text: str, expected: list[float]) -> None:
    assert values(text) == pytest.approx(expected)


def test_multiples_and_whole_numbers() -> None:
    vary = parse_vary("x=0.5x..4x", lambda name: parse_count)
    assert vary.values == tuple(Value(f, True) for f in (0.5, 1.0, 2.0, 4.0))
    assert values("1000..2000:n3", whole=True) == [1000, 1414, 2000]


@pytest.mark.parametrize("text", ["x", "x=", "=1", "x=4..1", "x=1..2x", "x=0..4", "x=1..4:x1", "x=1..4:+0", "x=1..4:z", "x=1..1e12:+1"])  # fmt: skip
def test_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_vary(text, lambda name: parse_count)


def test_arrays_are_the_plan_at_each_point() -> None:
    names = ("chip.flops", "chip.hbm_bandwidth", "network.nvlink.bandwidth", "network.ib.latency")
    factors = ((0.5, 3.0), (0.25, 8.0), (0.01, 1.0), (1.0, 1000.0))
    varies = [Vary((n,), tuple(Value(f, True) for f in fs)) for n, fs in zip(names, factors, strict=True)]
    found = sweep(STEP, varies)
    assert len(found) == 16
    plan = codesign.planned(STEP)
    for row in found.rows():
        here = changed(STEP, {n: row[n] for n in names})
        alone = codesign.trained(here, plan)
        for key in ("step_seconds.bound", "step_seconds.expected", "mfu.expected", "memory.bytes"):
            assert row[key] == pytest.approx(float(alone[key]), rel=1e-12)
        assert row["bottleneck"] == str(alone["bottleneck"])
    assert len({row["bottleneck"] for row in found.rows()}) > 1


def test_workers_share_the_grid_of_one_plan() -> None:
    varies = [
        Vary(("batch",), (Value(1e6), Value(1.0))),
        Vary(("chip.flops",), tuple(Value(1 + i / 8, True) for i in range(9))),
    ]
    here, there = (sweep(STEP, varies, engine=e) for e in (Engine(), Engine(workers=4)))
    assert list(there.rows()) == list(here.rows())
    assert len(here) == there.answered == 9 + 1  # a batch of one token has no answer


def test_what_binds_is_the_resource_whose_bound_is_largest() -> None:
    found = sweep(STEP, [Vary(("network.nvlink.bandwidth",), (Value(1e-3, True), Value(1e3, True)))])
    assert found.columns["bottleneck"].tolist()[0] == "network tensor"
    assert found.columns["bottleneck"].tolist()[1] != "network tensor"


def test_duplicates_are_answered_once() -> None:
    found = sweep(SERVE, [Vary(("prompt",), (Value(2048), Value(1.0, True), Value(1024)))])
    assert found.columns["prompt"].tolist() == [2048, 1024]
    assert (found.answered, found.duplicates) == (2, 1)


def test_numbers_of_models_change_in_all_layers() -> None:
    base = architecture("llama-3-8b")
    wide = codesign.with_number(base, "d_ff", 2 * 14336)
    assert parameters(wide).total - parameters(base).total == 32 * 3 * 4096 * 14336
    half = codesign.with_number(base, "layers", 16)
    assert half.layers == 16
    moe = codesign.with_number(architecture("deepseek-v3"), "d_ff", 9216)
    assert codesign.model_numbers(moe)["d_ff"] == 9216
    assert moe.experts is not None
    assert moe.experts.d_ff == 1024  # keeps its ratio to the dense layers
    with pytest.raises(InputError, match="kv_heads"):
        codesign.with_number(base, "kv_head", 4)


def test_a_point_without_answer_says_why() -> None:
    found = sweep(SERVE, [Vary(("model",), (Value("llama-3-8b"), Value("llama-3-405b")))])
    assert found.columns["error"].tolist()[0] is None
    assert "does not fit" in found.columns["error"].tolist()[1]


def _slow_square(number: int) -> int:
    return number * number


def _dies_once(task: tuple[int, str]) -> int:
    """Squares; the worker that first meets task 5 is killed."""
    number, folder = task
    mark = Path(folder) / "killed"
    if number == 5 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    (Path(folder) / f"{number}-{os.getpid()}").touch()
    return number * number


@pytest.mark.parametrize("engine", [Engine(), Engine(workers=2)], ids=["here", "processes"])
def test_engines_give_every_result_once(engine: Engine) -> None:
    assert dict(engine.run(_slow_square, range(20))) == {i: i * i for i in range(20)}


def test_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    results = list(Engine(workers=2).run(_dies_once, [(i, str(tmp_path)) for i in range(16)]))
    assert (tmp_path / "killed").exists()
    assert sorted(results) == [(i, i * i) for i in range(16)]


def test_a_cluster_whose_worker_is_killed_loses_nothing(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="comes with rooftop[ray]")
    # in a process of its own: a cluster leaves threads and sockets behind
    script = (
        "import json, sys; sys.path.insert(0, sys.argv[2])\n"
        "from test_codesign_sweep import SERVE, _dies_once\n"
        "from rooftop.codesign import Engine, Value, Vary, sweep\n"
        "ray = Engine('ray', workers=3)\n"
        "found = list(ray.run(_dies_once, [(i, sys.argv[1]) for i in range(16)]))\n"
        "vary = [Vary(('prompt',), tuple(Value(n) for n in (128, 256, 512)))]\n"
        "there, here = (sweep(SERVE, vary, engine=e) for e in (ray, Engine()))\n"
        "print(json.dumps([found, list(there.rows()) == list(here.rows())]))\n"
    )
    path = os.pathsep.join([str(Path(codesign.__file__).parents[2]), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), str(Path(__file__).parent)],
        capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    results, same = json.loads(done.stdout.splitlines()[-1])
    assert (tmp_path / "killed").exists()
    assert sorted(results) == [[i, i * i] for i in range(16)]
    assert len({mark.name.split("-")[1] for mark in tmp_path.glob("*-*")}) > 1  # several workers
    assert same


def test_an_interrupted_sweep_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, vary = tmp_path / "points.csv", [Vary(("prompt",), tuple(Value(n) for n in (128, 256, 512, 1024)))]
    whole = sweep(SERVE, vary, out=tmp_path / "whole.csv")

    def stopped(done: float) -> None:
        if done >= 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(SERVE, vary, out=out, progress=stopped)
    assert not out.exists()
    partial = out.with_name("points.csv.partial")
    partial.write_text(partial.read_text() + '{"key": "cut sho')
    found = sweep(SERVE, vary, out=out)
    assert (found.answered, found.reused) == (2, 2)
    assert not partial.exists()
    assert out.read_text() == (tmp_path / "whole.csv").read_text()
    assert len(list(csv.DictReader(out.read_text().splitlines()))) == len(whole) == 4


def test_tables_of_all_kinds_hold_the_same(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    vary = [Vary(("model",), (Value("llama-3-8b"), Value("llama-3-405b")))]
    for ending in ("csv", "json", "parquet"):
        sweep(SERVE, vary, out=tmp_path / f"t.{ending}")
    rows = json.loads((tmp_path / "t.json").read_text())
    assert parquet.read_table(tmp_path / "t.parquet").to_pylist() == rows
    texts = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    assert [r["error"] for r in texts] == [r["error"] or "" for r in rows]
    assert float(texts[0]["tokens_per_second"]) == rows[0]["tokens_per_second"]


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["sweep", "llama-3-8b", "--on", "v5e:4x4", "--set", "batch=1M", "--vary", "ici_bandwidth=1x,4x", "--json"]
    assert run(line) == 0
    data = json.loads(capsys.readouterr().out)
    assert [p["network.ici.bandwidth"] for p in data["points"]] == [4.5e10, 1.8e11]
    slow, fast = (p["step_seconds.expected"] for p in data["points"])
    assert fast <= slow
    assert sum(data["binds"].values()) == data["count"] == 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--vary", "hbm_bandwith=2x"], "hbm_bandwidth"),
        (["--vary", "prompt=1,2"], "serve"),
        (["--vary", "batch=1M,2M", "--vary", "batch=4M"], "twice"),
        (["--vary", "batch=1M", "--workload", "x"], "--workload"),
        (["--vary", "batch=1M,2M", "--out", "points.txt"], "points.txt"),
        (["--vary", "chip.hbm_bandwidth=1x..2x:n5000", "--vary", "batch=1..1000000:+1"], "too many"),
        (["--vary", "batch=1M", "--address", "there"], "--address"),
        (["--vary", "chip.hbm_bandwidth=0"], "above 0"),
        (["--vary", "calibration.hbm=2x"], "share"),
    ],
)  # fmt: skip
def test_wrong_input(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "llama-3-8b", "--on", "v5e:4x4", *words]) == 2
    assert why in capsys.readouterr().err


def test_simulations_sweep() -> None:
    work = "poisson:rate=2,requests=100,input=200,output=20"
    base = Scenario("simulate", architecture("llama-3-8b"), slice_of("h100:1"), {"workload": work})
    found = sweep(base, [Vary(("load",), (Value(0.5), Value(2.0)))])
    slow, fast = found.columns["requests_per_second"]
    assert fast > slow
    assert found.columns["bottleneck"].tolist()[0] in ("hbm", "compute")
    assert np.all(found.columns["utilisation"] < 1)
