"""The command line: answers, JSON, and one clear line for everything that is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rooftop.cli import COMMANDS, run
from rooftop.cli._common import emit

SOURCE = Path(__file__).parent.parent / "src"

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1024,
    "tie_word_embeddings": False,
}


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run([*words, "--json"]) == 0, capsys.readouterr().err
    printed = capsys.readouterr()
    assert printed.err == ""
    result: dict[str, Any] = json.loads(printed.out)
    return result


def refused(capsys: pytest.CaptureFixture[str], *words: str, status: int = 2) -> str:
    """Run a command that must fail: one line on stderr, nothing else; returns the line."""
    assert run(list(words)) == status
    printed = capsys.readouterr()
    lines = printed.err.strip().splitlines()
    assert len(lines) == 1, printed.err
    assert lines[0].startswith("rooftop: ")
    assert "Traceback" not in printed.err
    assert "internal error" not in lines[0]
    return lines[0]


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    for name in COMMANDS:
        assert name in text
        assert run([name, "--help"]) == 0
        assert "Usage" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    import rooftop

    assert run(["--version"]) == 0
    assert rooftop.__version__ in capsys.readouterr().out


def test_typos_are_met_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean plan" in refused(capsys, "plna", "x")
    assert "llama-3-70b" in refused(capsys, "plan", "llama-3-70", "--on", "v5e:4x4")
    assert "trillium" in refused(capsys, "chip", "trilium")
    assert "tensor" in refused(capsys, "step", "llama-3-8b", "--on", "v5e:4x4", "--mesh", "tensro=16")
    assert "all-gather" in refused(
        capsys, "collective", "all-gahter", "--bytes", "1MB", "--axes", "X=4", "--on", "v5e:4x4"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["plan", "llama-3-8b", "--on", "v5e:3x5"], "odd side"),
        (["plan", "llama-3-8b", "--on", "v5e:0x4"], "side of 0"),
        (["plan", "llama-3-8b", "--on", "v5e:64x64"], "larger than a pod"),
        (["plan", "llama-3-8b", "--on", "v5p:4x4"], "3 dimensions"),
        (["plan", "llama-3-8b", "--on", "h100:12"], "8 or 16"),
        (["serve", "llama-3-8b", "--on", "h100", "--acceptance", "0.5"], "for --draft"),
        (["serve", "llama-3-8b", "--on", "h100", "--draft-tokens", "3"], "for --draft"),
        (["plan", "llama-3-8b", "--on", ""], "names no chip"),
        (["plan", "llama-3-8b", "--on", "v5e:4x4", "--batch", "100"], "smaller than one sequence"),
        (["plan", "llama-3-8b", "--on", "v5e:4x4", "--batch", "4 Gazillion"], "--batch"),
        (["plan", "llama-3-8b", "--on", "v5e:4x4", "--batch", "-4M"], "--batch"),
        (["plan", "llama-3-8b", "--on", "v5e:4x4", "--batch", "nan"], "--batch"),
        (["plan", "llama-3-8b", "--on", "v5e:4x4", "--seq", "1.5"], "--seq"),
        (["plan", "llama-3-8b", "--on", "v5e:4x4", "--seq", "0"], "sequence length"),
        (["plan", "llama-3-8b", "--on", "v5e:4x4", "--tokens", "1"], "shorter than one step"),
        (["plan", "llama-3-8b", "--on", "v5e:4x4", "--batch-within", "7"], "batch-within"),
        (["plan", "llama-3-8b", "--on", "v5e:4x4", "--headroom", "2"], "headroom"),
        (["plan", "llama-3-8b", "--on", "v5e:4x4", "--precision", "bf17"], "bf16"),
        (["plan", "llama-3-8b", "--on", "v5e:4x4", "--optimizer-dtype", "fp33"], "fp32"),
        (["plan", "llama-3-8b", "--on", "v5e:4x4", "--price", "cheap"], "--price"),
        (["plan", "llama-3-8b", "--on", "v5e:4x4", "--fix", "tensor=3"], "tensor=3 does not divide"),
        (["plan", "llama-3-8b", "--on", "v5e:4x4", "--fix", "tensor=99999999999999999999"], "too large"),
        (["plan", "llama-3-8b", "--on", "v5e:4x4", "--explain", "happiness"], "cannot explain"),
        (["plan", "llama-3-8b"], "--on"),
        (["step", "llama-3-8b", "--on", "v5e:4x4", "--mesh", "fsdp"], "NAME=SIZE"),
        (["step", "llama-3-8b", "--on", "v5e:4x4", "--mesh", "fsdp=4"], "takes 4 chips"),
        (["step", "llama-3-8b", "--on", "v5e:4x4", "--mesh", "fsdp=16", "--batch", "8192", "--seq", "4096"], "share"),
        (["model", "layers=4,d_model=100,heads=3,d_ff=5,vocab=7"], "heads"),
        (["model", "layers=4"], "lacks"),
        (["model", "layers=4,width=7"], "width"),
        (["model", "layers=999999999,d_model=4,heads=1,d_ff=4,vocab=4"], "out of range"),
        (["roofline", "bf16[B, D] * bf16[D, F] -> bf16[B, F]", "--on", "v5e"], "no size for"),
        (["roofline", "bf16[B=2, D=2] * bf16[D, F=2]", "--on", "v5e"], "->"),
        (["roofline", "fp8[B=2, D=2] * fp8[D, F=2] -> bf16[B, F]", "--on", "v5e"], "dtypes are"),
        (
            [
                "matmul",
                "A[I_X, J] * B[J, K] -> C[I_X, K]",
                "--sizes",
                "I=8,J=8,K=8",
                "--mesh",
                "Y=4",
                "--on",
                "v5e:4x4",
            ],
            "X",
        ),
        (
            [
                "matmul",
                "A[I_X, J_X] * B[J, K] -> C[I, K]",
                "--sizes",
                "I=8,J=8,K=8",
                "--mesh",
                "X=4",
                "--on",
                "v5e:4x4",
            ],
            "twice",
        ),
        (
            [
                "matmul",
                "A[I_X, J] * B[J, K] -> C[I_X, K]",
                "--sizes",
                "I=9,J=8,K=8",
                "--mesh",
                "X=4",
                "--on",
                "v5e:4x4",
            ],
            "divide",
        ),
        (["collective", "all-gather", "--bytes", "1 parsec", "--axes", "X=4", "--on", "v5e:4x4"], "--bytes"),
        (["collective", "all-gather", "--bytes", "1MB", "--axes", "X=7", "--on", "v5e:4x4"], "does not divide"),
        (["slice", "v5e:"], "no shape"),
        (["chip", "/nowhere/chip.toml"], "cannot read"),
        (["nonsense"], "unknown command"),
    ],
)
def test_bad_input_gets_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refused(capsys, *words)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[1, 2]", "not an object"),
        ("null", "not an object"),
        ("[" * 100_000, "not JSON"),
        ("{}", "model_type"),
        (json.dumps({**LLAMA, "hidden_size": None}), "hidden_size"),
        (json.dumps({**LLAMA, "hidden_size": -1}), "hidden_size"),
        (json.dumps({**LLAMA, "hidden_size": 1e99}), "hidden_size"),
        (json.dumps({**LLAMA, "hidden_size": "256"}), "hidden_size"),
        (json.dumps({**LLAMA, "num_hidden_layers": 10**9}), "layers"),
        (json.dumps({**LLAMA, "num_attention_heads": 7}), "heads"),
        (json.dumps({**LLAMA, "tie_word_embeddings": "yes"}), "tie_word_embeddings"),
        (json.dumps({**LLAMA, "kv_lora_rank": 512}), "kv_lora_rank"),
        (json.dumps({**LLAMA, "model_type": "unheard_of", "quantum_heads": 3}), "quantum_heads"),
        (json.dumps({**LLAMA, "hidden_size": True}), "hidden_size"),
        (json.dumps({**LLAMA, "hidden_size": [256]}), "hidden_size"),
        (json.dumps({**LLAMA, "hidden_size": float("nan")}), "hidden_size"),
        (json.dumps({**LLAMA, "hidden_size": 0}), "hidden_size"),
        (json.dumps({**LLAMA, "vocab_size": 10**30}), "vocab_size"),
        (json.dumps({**LLAMA, "vocab_size": {"a": 1}}), "vocab_size"),
        (json.dumps({**LLAMA, "head_dim": -64}), "head_dim"),
        (json.dumps({**LLAMA, "num_key_value_heads": 3}), "heads"),
        (json.dumps({**LLAMA, "model_type": ["llama"]}), "model_type"),
        (json.dumps({**LLAMA, "model_type": "x" * 5000, "odd": 1}), "family"),
        ('{"hidden_size": ' + '{"a":' * 50_000, "not JSON"),
        ('{"model_type": "llama", "hidden_size": ' + "9" * 5000 + "}", "not JSON"),
        ("\x00\x01", "not JSON"),
        ("", "not JSON"),
        (" " * 2_000_000, "bytes"),
    ],
)
def test_bad_config_gets_one_line(text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    assert says in refused(capsys, "model", str(path))


def test_a_config_that_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    assert "cannot read" in refused(capsys, "model", str(tmp_path))
    path.write_bytes(b"\xff\xfe\x00{")
    assert "not JSON" in refused(capsys, "model", str(path))
    path.unlink()
    path.mkdir()
    assert "cannot read" in refused(capsys, "model", str(tmp_path))


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="the system has no endless file")
def test_files_without_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    step = ["step", "llama-3-8b", "--on", "v5e:4x4", "--plan"]
    for words in (["model"], ["chip"], ["slice"], step):
        assert "/dev/zero" in refused(capsys, *words, "/dev/zero")


def test_a_config_that_lacks_a_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for field in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({k: v for k, v in LLAMA.items() if k != field}))
        assert field in refused(capsys, "model", str(path))


def test_a_good_config_is_read_and_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for path in (tmp_path, tmp_path / "config.json"):
        assert answer(capsys, "model", str(path))["parameters"]["total"] > 0
    assert answer(capsys, "plan", str(tmp_path), "--on", "v5e:2x2", "--batch", "16k", "--seq", "512")["best"]["fits"]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["plan", "lama", "--on", "v5e:4x4"], 2),
        (["plan", "llama-3-8b"], 2),
        (["plna"], 2),
        (["plan", "llama-3-8b", "--on", "v5e:4x4", "--batch", "4 Gazillion"], 2),
        (["plan", "llama-3-8b", "--on", "v5e:4x4", "--nonsense"], 2),
        (["roofline", "bf16[B, D] * bf16[D, F] -> bf16[B, F]", "--on", "v5e"], 2),
        (["plan", "llama-3-70b", "--on", "v5p:2x2x1"], 1),
    ],
)
def test_every_error_is_a_document_too(words: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--json"]) == status
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    error = json.loads(printed.out)["error"]
    assert set(error) == {"message", "field", "kind"}
    assert line == f"rooftop: {error['message']}"


def test_errors_of_a_process(tmp_path: Path) -> None:
    """The same from outside: status, one line, nothing on stdout."""
    result = subprocess.run(
        [sys.executable, "-m", "rooftop", "plan", "llama-3-8b", "--on", "v5e:3x5"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("rooftop: v5e:3x5 has an odd side")


def test_errors_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "lama", "--on", "v5e:4x4", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["field"] == "model"
    assert "lama" in error["message"]


def test_no_answer_says_how_much_is_missing_and_what_would_fit(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "plan", "llama-3-70b", "--on", "v5p:2x2x1", status=1)
    assert "GB too much" in line
    assert "what would fit" in line


def test_a_named_plan_that_does_not_fit_is_shown_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["step", "llama-3-70b", "--on", "h100:8", "--mesh", "fsdp=8", "--batch", "64k", "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["best"]["fits"] is False
    assert "too much" in printed.err


def test_plan_keys(capsys: pytest.CaptureFixture[str]) -> None:
    a = answer(capsys, "plan", "llama-3-8b", "--on", "v5p:4x4x4", "--batch", "1M", "--tokens", "1T")
    best = a["best"]
    assert set(best["mesh"]) == {"data", "fsdp", "tensor", "tensor_transpose", "context", "expert", "pipeline"}
    product = 1
    for ways in best["mesh"].values():
        product *= ways
    assert best["chips"] == product <= 64
    assert abs(best["batch_tokens"] / 1e6 - 1) <= 0.1
    assert best["step_seconds"]["bound"] <= best["step_seconds"]["expected"]
    assert 0 < best["mfu"]["expected"] <= best["mfu"]["bound"] <= 1
    assert best["memory"]["bytes"] == pytest.approx(sum(best["memory"]["parts"].values()))
    assert best["memory"]["bytes"] <= best["memory"]["capacity_bytes"]
    shown = sum(p["seconds"] - p["overlapped"] for p in best["time_parts"])
    assert shown == pytest.approx(best["step_seconds"]["expected"])
    assert {p["kind"] for p in best["time_parts"]} <= {"compute", "hbm", "network", "bubble", "host"}
    assert best["bottleneck"] in best["bounds"]
    assert best["tokens_per_second_per_chip"] > 0
    assert len(a["alternatives"]) == 5
    assert all(x["reason"] for x in a["alternatives"])
    assert a["run"]["seconds"] > 0
    assert a["run"]["chip_hours"] == pytest.approx(a["run"]["seconds"] * 64 / 3600)
    assert a["run"]["usd"] == pytest.approx(a["run"]["chip_hours"] * 4.2)
    assert a["searched"]["plans"] > 1000
    assert a["assumptions"]


def test_step_explains(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["step", "llama-3-8b", "--on", "v5e:4x4", "--mesh", "fsdp=16", "--batch", "1M", "--remat", "full"]
    for quantity in (
        "step_seconds",
        "step_seconds.bound",
        "memory",
        "memory.weights",
        "mfu",
        "tokens_per_second_per_chip",
    ):
        a = answer(capsys, *words, "--explain", quantity, "--depth", "9")
        assert a["explanation"]["value"] > 0
        assert a["explanation"]["formula"]
    assert run([*words, "--explain"]) == 0
    assert "step_seconds.expected" in capsys.readouterr().out


#: What scripts may rely on; dots lead into objects, [] into every item of a list that is not empty.
KEYS = {
    "step": """best.mesh best.chips best.batch_tokens best.microbatches best.remat best.step_seconds.bound
        best.step_seconds.expected best.bottleneck best.mfu.bound best.mfu.expected best.tokens_per_second_per_chip
        best.memory.bytes best.memory.capacity_bytes best.memory.parts best.time_parts[].name best.time_parts[].kind
        best.time_parts[].seconds best.time_parts[].overlapped alternatives run.seconds run.usd run.chip_hours
        searched.plans searched.seconds assumptions""",
    "plan": "searched.plans searched.seconds alternatives[].mesh alternatives[].reason",
    "model": """parameters.total parameters.active parameters.parts flops_per_token.forward flops_per_token.training
        kv_bytes_per_token assumptions""",
    "roofline": "flops bytes intensity seconds.math seconds.hbm seconds.bound seconds.sum bottleneck critical",
    "matmul": """collectives[].kind collectives[].array collectives[].axes collectives[].bytes collectives[].seconds
        local.flops local.bytes local.seconds seconds.bound seconds.sum bottleneck""",
    "collective": "seconds regime bytes hops bandwidth_bytes_per_second",
}
MATMUL = ["matmul", "A[I, J_X] * B[J_X, K_Y] -> C[I, K_Y]"]
RUN = ["llama-3-8b", "--on", "v5e:4x4", "--batch", "64k", "--tokens", "1T"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("step", ["plan", *RUN]),
        ("plan", ["plan", *RUN]),
        ("step", ["step", *RUN, "--mesh", "fsdp=16", "--remat", "full"]),
        ("model", ["model", "llama-3-70b"]),
        ("roofline", ["roofline", "bf16[B=512, D=8192] * bf16[D, F=28672] -> bf16[B, F]", "--on", "v5e"]),
        (
            "matmul",
            [*MATMUL, "--sizes", "I=8192,J=8192,K=32768", "--mesh", "X=4,Y=8", "--on", "v5e:4x8"],
        ),
        ("collective", ["collective", "all-gather", "--bytes", "34MB", "--axes", "X=16", "--on", "v5e:16x16"]),
    ],
)
def test_the_keys_that_scripts_rely_on(keys: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, *words)
    for path in KEYS[keys].split():
        values = [document]
        for key in path.split("."):
            name = key.removesuffix("[]")
            values = [value[name] for value in values]
            if name != key:
                values = [item for items in values for item in items]
                assert values, path


def test_other_keys(capsys: pytest.CaptureFixture[str]) -> None:
    model = answer(capsys, "model", "llama-3-70b")
    assert model["parameters"]["total"] == model["parameters"]["active"] == 70_553_706_496
    assert model["flops_per_token"]["training"] == 3 * model["flops_per_token"]["forward"]
    assert model["kv_bytes_per_token"] == 327_680
    roof = answer(capsys, "roofline", "bf16[B=512, D=8192] * bf16[D, F=28672] -> bf16[B, F]", "--on", "v5e")
    assert set(roof["seconds"]) >= {"math", "hbm", "bound", "sum"}
    assert roof["seconds"]["bound"] == max(roof["seconds"]["math"], roof["seconds"]["hbm"])
    assert roof["critical"]["B"] == pytest.approx(253, abs=1)
    matmul = answer(
        capsys,
        "matmul",
        "A[I, J_X] * B[J_X, K] -> C[I, K]",
        "--sizes",
        "I=8192,J=8192,K=8192",
        "--mesh",
        "X=16",
        "--on",
        "v5e:16x16",
    )
    assert matmul["collectives"]
    assert set(matmul["collectives"][0]) >= {"kind", "array", "axes", "bytes", "seconds"}
    assert set(matmul["local"]) == {"flops", "bytes", "seconds"}
    assert matmul["seconds"]["bound"] <= matmul["seconds"]["sum"]
    gather = answer(capsys, "collective", "all-gather", "--bytes", "34MB", "--axes", "X=16", "--on", "v5e:16x16")
    assert gather["seconds"] == pytest.approx(34e6 / 9e10)
    assert gather["regime"] == "bandwidth"
    assert gather["bandwidth_bytes_per_second"] == pytest.approx(9e10)
    assert answer(capsys, "slice", "v5p:8x8x16*4")["chips"] == 4096
    assert len(answer(capsys, "chip")["chips"]) >= 17
    assert answer(capsys, "chip", "ironwood")["name"] == "tpu7x"


def test_html(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.html"
    assert run(["chip", "v5e", "--html", str(path)]) == 0
    assert "TPU v5e" in path.read_text()
    capsys.readouterr()
    assert "cannot write" in refused(capsys, "chip", "v5e", "--html", str(tmp_path / "no" / "page.html"))


def test_a_saved_plan_is_the_same_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["llama-3-8b", "--on", "h100:16", "--batch", "1M"]
    saved = answer(capsys, "plan", *words)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(saved))
    again = answer(capsys, "step", *words, "--plan", str(path))
    assert again["best"] == saved["best"]
    del saved["best"]["placement"]
    path.write_text(json.dumps(saved["best"]))
    placed = answer(capsys, "step", *words, "--plan", str(path))["best"]
    assert placed["step_seconds"] == saved["best"]["step_seconds"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mesh": None}, "object"),
        ({"mesh": {"tensro": 2}}, "did you mean tensor"),
        ({"mesh": {"tensor": "2"}}, "not a number of ways"),
        ({"mesh": {"tensor": 3}}, "does not divide"),
        ({"remat": "some"}, "remat"),
        ({"zero": 9}, "ZeRO"),
        ({"microbatches": 0}, "microbatches"),
        ({"placement": []}, "placement"),
        ({"placement": [{"factors": {"tensor": 99}}, {}]}, "placement"),
    ],
)
def test_a_broken_plan_file(
    change: dict[str, Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"mesh": {"fsdp": 16}, **change}))
    assert says in refused(capsys, "step", "llama-3-8b", "--on", "h100:16", "--batch", "1M", "--plan", str(path))


def test_step_wants_one_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "one plan" in refused(capsys, "step", "llama-3-8b", "--on", "h100:16")
    assert "cannot read" in refused(
        capsys, "step", "llama-3-8b", "--on", "h100:16", "--plan", str(tmp_path / "none.json")
    )
    (tmp_path / "x.json").write_text("{")
    assert "not JSON" in refused(capsys, "step", "llama-3-8b", "--on", "h100:16", "--plan", str(tmp_path / "x.json"))


def test_uneven_experts_take_longer(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["step", "mixtral-8x7b", "--on", "h100:64", "--mesh", "fsdp=8,expert=8", "--batch", "4M", "--remat", "full"]
    even = answer(capsys, *words)
    uneven = answer(capsys, *words, "--capacity-factor", "1.5")
    assert uneven["best"]["step_seconds"]["expected"] > even["best"]["step_seconds"]["expected"]
    assert any("loads them evenly" in a for a in even["assumptions"])
    assert any("1.5 times" in a for a in uneven["assumptions"])
    assert "experts" in refused(capsys, "plan", "llama-3-8b", "--on", "h100:64", "--capacity-factor", "2")
    assert "capacity" in refused(capsys, "plan", "mixtral-8x7b", "--on", "h100:64", "--capacity-factor", "0")


def process(
    words: list[str], out: Any = subprocess.PIPE, code: str = "pass", **environment: str
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as a shell starts it."""
    return subprocess.run(
        [sys.executable, "-c", f"{code}; from rooftop.cli import main; main()", *words],
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
        stdout=out, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, encoding="utf-8", check=False,
    )  # fmt: skip


WITHOUT_STDOUT = "import os, sys; sys.stdout = None"


def test_a_reader_that_leaves_is_no_failure() -> None:
    for words in (["chip"], ["chip", "--json"], ["--help"]):
        reading, writing = os.pipe()
        os.close(reading)
        result = process(words, out=writing)
        os.close(writing)
        assert (result.returncode, result.stderr) == (0, ""), words


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_gets_one_line() -> None:
    for words in (["chip"], ["chip", "--json"], ["--help"]):
        with open("/dev/full", "w") as full:
            result = process(words, out=full)
        assert result.returncode == 74, words
        assert result.stderr.startswith("rooftop: cannot write the answer: ")
        assert len(result.stderr.splitlines()) == 1


def test_output_that_nobody_takes() -> None:
    for words, status in ((["chip"], 0), (["--help"], 0), (["chip", "v99"], 2)):
        result = process(words, code=WITHOUT_STDOUT)
        assert result.returncode == status, result.stderr
        assert "Traceback" not in result.stderr


def test_a_terminal_without_unicode() -> None:
    words = ["step", "llama-3-8b", "--on", "v5e:4x4", "--mesh", "fsdp=16", "--batch", "1M", "--remat", "full"]
    for more in ([], ["--explain", "mfu"]):
        result = process([*words, *more], PYTHONIOENCODING="ascii")
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.isascii()
    assert "*" in result.stdout
    assert "?" not in result.stdout


@pytest.mark.parametrize("columns", ["abc", "0", "-5", "20", "100000"])
def test_any_width(columns: str) -> None:
    result = process(["chip", "v5e"], COLUMNS=columns)
    assert (result.returncode, result.stderr) == (0, "")
    assert "TPU v5e" in result.stdout


def test_no_colour_when_piped() -> None:
    assert "\x1b" not in process(["chip", "v5e"]).stdout


def test_bugs_and_interrupts_show_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(error: type[BaseException]) -> Any:
        def raises(*_: object) -> None:
            raise error("an accident")

        return raises

    monkeypatch.delenv("ROOFTOP_DEBUG", raising=False)
    monkeypatch.setattr("rooftop.hardware.chip", broken(ZeroDivisionError))
    assert run(["chip", "v5e", "--json"]) == 70
    printed = capsys.readouterr()
    assert printed.err.startswith("rooftop: internal error: ZeroDivisionError")
    assert "ROOFTOP_DEBUG=1" in printed.err
    assert len(printed.err.splitlines()) == 1
    assert json.loads(printed.out)["error"]["kind"] == "InternalError"
    monkeypatch.setenv("ROOFTOP_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run(["chip", "v5e"])
    monkeypatch.setattr("rooftop.hardware.chip", broken(KeyboardInterrupt))
    assert run(["chip", "v5e"]) == 130
    assert capsys.readouterr().err.strip() == "rooftop: stopped"  # after the line with the ^C


def test_usage_errors_name_the_field_and_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["slice", "--json"]) == 2
    printed = capsys.readouterr()
    error = json.loads(printed.out)["error"]
    assert error["field"]
    assert printed.err == f"rooftop: {error['message']}\n"
    assert "rooftop slice --help" in error["message"]


def test_json_never_holds_what_is_not_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    emit({"a": np.float64(1.5), "b": np.int64(2), "c": [float("inf"), np.float32("-inf")]}, lambda: "", as_json=True)
    assert json.loads(capsys.readouterr().out) == {"a": 1.5, "b": 2, "c": [None, None]}
    with pytest.raises(ValueError, match="nan"):
        emit({"a": np.float64("nan")}, lambda: "", as_json=True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["plan", "--scale", "8..16", "--explain"], "--explain"),
        (["plan", "--scale", "8..16", "--chips", "8"], "--chips"),
        (["plan", "--scale", "8..16", "--budget", "1M"], "--budget"),
        (["plan", "--checkpoint-seconds", "5"], "--checkpoint-seconds"),
        (["step", "--mesh", "fsdp=8", "--restart-seconds", "5"], "--restart-seconds"),
        (["step", "--plan", "x.json", "--remat", "full"], "--remat"),
        (["step", "--plan", "x.json", "--microbatches", "2"], "--microbatches"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(words, says, capsys):
    command, *options = words
    error = refused(capsys, command, "llama-3-8b", "--on", "h100", *options)
    assert f"{says} would change nothing here" in error
