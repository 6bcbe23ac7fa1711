"""The Python interface: a function for each command, the command's own answers, results that show themselves."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rooftop as rt
from rooftop import _api
from rooftop.cli import run

TRACE = Path(__file__).parent / "data" / "traces" / "torch-h100-qwen1.5-0.5b.json.gz"
EXPRESSION = "bf16[B=512, D=8192] * bf16[D, F=28672] -> bf16[B, F]"
#: Commands and their functions, where the names differ: `rooftop.roofline` is a module, `import` a word of Python.
NAMES = {"roofline": "roofline_of", "import": "import_plan"}
COMMANDS = (
    "plan", "step", "serve", "simulate", "sweep", "scaling", "validate", "model", "chip", "slice", "roofline", "matmul",
    "compare", "whatif", "solve", "shapes", "design", "trace", "profile", "collective", "check", "export", "import", "jax", "hlo",
)  # fmt: skip


def test_every_command_has_a_function() -> None:
    for command in COMMANDS:
        name = NAMES.get(command, command)
        assert name in rt.__all__
        told = inspect.getdoc(getattr(rt, name))
        assert told is not None
        assert f"`rooftop {command} --help`" in told


def test_every_function_is_documented_and_public() -> None:
    page = (Path(__file__).parent.parent / "docs" / "api.md").read_text()
    for name in _api.__all__:
        found = getattr(_api, name)
        if inspect.isfunction(found):
            assert getattr(rt, name) is found
            assert f".. autofunction:: {name}\n" in page


MATMUL = "A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]"
CASES: list[tuple[str, Any, list[str]]] = [
    ("plan", lambda: rt.plan("llama-3-8b", on="h100:64", batch="1M", remat=("full",)), ["llama-3-8b", "--on", "h100:64", "--batch", "1M", "--remat", "full"]),
    ("plan", lambda: rt.plan("llama-3-8b", on="h100", batch="1M", tokens="1T", days=90), ["llama-3-8b", "--on", "h100", "--batch", "1M", "--tokens", "1T", "--days", "90"]),
    ("plan", lambda: rt.scale("llama-3-8b", on="h100", chips="16..64", batch=1e6), ["llama-3-8b", "--on", "h100", "--batch", "1M", "--scale", "16..64"]),
    ("step", lambda: rt.step("mixtral-8x7b", on="v5p:4x4x4", mesh={"fsdp": 8, "expert": 8}, batch="1M", capacity_factor=1.25, tokens="chinchilla", failures="llama-3"),
     ["mixtral-8x7b", "--on", "v5p:4x4x4", "--mesh", "fsdp=8,expert=8", "--batch", "1M", "--capacity-factor", "1.25", "--tokens", "chinchilla", "--failures", "llama-3"]),
    ("serve", lambda: rt.serve("llama-3-8b", on="h100:2", batches=(1, 8), tpot="20ms", weights="fp8"), ["llama-3-8b", "--on", "h100:2", "--batch", "1,8", "--tpot", "20ms", "--weights", "fp8"]),
    ("serve", lambda: rt.serve_apart("llama-3-8b", on="h100:1", prefill_on="h100:1", most=8), ["llama-3-8b", "--on", "h100:1", "--prefill-on", "h100:1", "--pools", "8"]),
    ("simulate", lambda: rt.simulate("llama-3-8b", on="h100:1", workload="poisson:rate=4,requests=50,input=500,output=20"),
     ["llama-3-8b", "--on", "h100:1", "--workload", "poisson:rate=4,requests=50,input=500,output=20"]),
    ("sweep", lambda: rt.sweep("llama-3-8b", on="h100:64", of="step", mesh={"fsdp": 64}, vary={"batch": (1e6, 2e6), "hbm_bandwidth": "1x..4x"}),
     ["llama-3-8b", "--on", "h100:64", "--of", "step", "--mesh", "fsdp=64", "--vary", "batch=1M,2M", "--vary", "hbm_bandwidth=1x..4x"]),
    ("compare", lambda: rt.compare("llama-3-8b", on="v5e:4x4", ways="remat", settings=["batch=1M"]), ["llama-3-8b", "--on", "v5e:4x4", "--set", "batch=1M", "--ways", "remat"]),
    ("whatif", lambda: rt.whatif("llama-3-8b", on="v5e:4x4", of="step", mesh={"fsdp": 16}, settings=["batch=1M"], fixed=True), ["llama-3-8b", "--on", "v5e:4x4", "--of", "step", "--mesh", "fsdp=16", "--set", "batch=1M", "--fixed"]),
    ("solve", lambda: rt.solve("llama-3-8b", on="h100:1", need="tpot<=10ms", by="batch=1..64", of="serve", want="largest"), ["llama-3-8b", "--on", "h100:1", "--of", "serve", "--need", "tpot<=10ms", "--solve", "batch=1..64", "--largest"]),
    ("shapes", lambda: rt.shapes("llama-3-8b", on="v5e:4x4", vary=["layers=24,32"], settings=["batch=1M"]), ["llama-3-8b", "--on", "v5e:4x4", "--vary", "layers=24,32", "--set", "batch=1M"]),
    ("design", lambda: rt.design(["serve llama-3-8b weights=fp8"], usd="200k", networks=["torus2"], vary={"flops": [1.0], "stacks": [4.0], "stack_bytes": [24e9], "link": [9e10]}, beside=["v5e"], part=4),
     ["--work", "serve llama-3-8b weights=fp8", "--usd", "200k", "--networks", "torus2", "--vary", "flops=1", "--vary", "stacks=4", "--vary", "stack_bytes=24GB", "--vary", "link=90GB", "--beside", "v5e", "--part", "4"]),
    ("scaling", lambda: rt.scaling(on="h100:1024", days=30, mfu=0.4), ["--on", "h100:1024", "--days", "30", "--mfu", "0.4"]),
    ("scaling", lambda: rt.scaling("llama-3-8b"), ["llama-3-8b"]),
    ("scaling", lambda: rt.scaling(flops="1e24"), ["--flops", "1e24"]),
    ("validate", lambda: rt.validate(source="seqpar", sample=3), ["--source", "seqpar", "--sample", "3"]),
    ("model", lambda: rt.model("deepseek-v3", seq=8192), ["deepseek-v3", "--seq", "8192"]),
    ("chip", lambda: rt.chip("v6e"), ["v6e"]),
    ("slice", lambda: rt.slice("v5p:8x8x16*4"), ["v5p:8x8x16*4"]),
    ("roofline", lambda: rt.roofline_of(EXPRESSION, on="v5e", memory="host"), [EXPRESSION, "--on", "v5e", "--memory", "host"]),
    ("matmul", lambda: rt.matmul(MATMUL, on="v5e:4x8", mesh={"X": 4, "Y": 8}, sizes={"I": 8192, "J": 8192, "K": 32768}),
     [MATMUL, "--on", "v5e:4x8", "--mesh", "X=4,Y=8", "--sizes", "I=8192,J=8192,K=32768"]),
    ("collective", lambda: rt.collective("all-gather", on="v5e:16x16", bytes="34MB", axes={"X": 16}), ["all-gather", "--on", "v5e:16x16", "--bytes", "34MB", "--axes", "X=16"]),
    ("jax", lambda: rt.jax("jax.numpy:matmul", "bf16[64,128]", "bf16[128,64]", on="v5e"), ["jax.numpy:matmul", "--on", "v5e", "--shapes", "bf16[64,128]; bf16[128,64]"]),
    ("trace", lambda: rt.trace(TRACE), [str(TRACE)]),
]  # fmt: skip


def timeless(value: Any) -> Any:
    """Without how long the computation itself took."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in ("searched", "simulated")}
    return [timeless(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("command", "ask", "words"), CASES, ids=[f"{n}-{c[0]}" for n, c in enumerate(CASES)])
def test_a_function_answers_as_its_command(
    command: str, ask: Any, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if command == "jax":
        pytest.importorskip("jax")
    result = ask()
    assert run([command, *words, "--json"]) == 0
    printed, given = json.loads(capsys.readouterr().out), json.loads(json.dumps(result.json()))
    if command in ("sweep", "shapes", "design"):
        assert given.pop("seconds") > 0 < printed.pop("seconds")  # of the computation
    assert timeless(given) == timeless(printed)
    assert run([command, *words]) == 0
    heading = capsys.readouterr().out.strip().splitlines()[0]
    assert str(result).strip().splitlines()[0].strip() == heading.strip()
    shown = result._repr_html_()
    assert shown.startswith('<div class="rt-notebook">')
    assert "<table" in shown


def test_plans_in_files(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    made = rt.step("llama-3-8b", on="h100:64", mesh={"fsdp": 8, "tensor": 8}, batch="1M", precision="fp8", headroom=0.1)
    rt.save_plan(made, path)
    again = rt.load_plan(path)
    assert again.best.step == made.best.step
    assert again.question.precision == "fp8"
    assert rt.versus(made, again).winner == "equal"
    assert run(["step", "--plan", str(path)]) == 0
    assert rt.export(path, to="megatron").text == rt.export(made, to="megatron").text
    assert str(rt.export(made, to="megatron")) == rt.export(made, to="megatron").text.rstrip("\n")
    own = rt.architecture("layers=4,d_model=512,heads=8,d_ff=2048,vocab=32000")
    small = rt.step(own, on="h100:8", mesh={"fsdp": 8}, batch="64k")
    with pytest.raises(rt.InputError, match="model"):
        rt.save_plan(small, tmp_path / "own.json")
    rt.save_plan(small, tmp_path / "own.json", model="layers=4,d_model=512,heads=8,d_ff=2048,vocab=32000")
    assert rt.load_plan(tmp_path / "own.json").best.step == small.best.step


def test_a_number_is_derived() -> None:
    answer = rt.step("llama-3-8b", on="h100:64", mesh={"fsdp": 64}, batch="1M")
    found = rt.explain(answer, "step_seconds", depth=3)
    assert found.value == pytest.approx(answer.best.step.expected)
    assert "step_seconds" in str(found)
    served = rt.serve("llama-3-8b", on="h100:1", batches=(8,))
    assert rt.explain(served, "tpot").value == pytest.approx(served.best.generate.tpot[1])
    with pytest.raises(rt.InputError, match="step_seconds"):
        rt.explain(answer, "beauty")


@pytest.mark.parametrize(
    ("ask", "word"),
    [
        (lambda: rt.plan("llama-3-8b", on="h100:64", batch="lots"), "batch"),
        (lambda: rt.serve("llama-3-8b", on="h100:1", tpot="soon"), "tpot"),
        (lambda: rt.collective("all-gather", on="v5e:4x4", bytes="some", axes={"X": 4}), "bytes"),
        (lambda: rt.scaling(), "one of"),
        (lambda: rt.scaling(on="h100:8"), "all three"),
        (lambda: rt.versus(rt.chip("v5e"), rt.chip("v4")), "two"),
        (lambda: rt.trace(), "profile"),
        (lambda: rt.sweep("llama-3-8b", on="h100:64", vary={"beauty": (1, 2)}), "beauty"),
    ],
)
def test_what_is_not_well_formed_is_refused(ask: Any, word: str) -> None:
    with pytest.raises(rt.InputError, match=word):
        ask()


def test_a_compiled_program(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    compiled = jax.jit(lambda x: x @ x).lower(jax.ShapeDtypeStruct((64, 64), "float32")).compile().as_text()
    told = rt.hlo(compiled, on="v5e")
    path = tmp_path / "step.hlo"
    path.write_text(compiled)
    assert rt.hlo(path, on="v5e").expected == told.expected
    assert sum(op.op.flops for op in told.ops) == 2 * 64**3


def test_asking_for_one_thing_does_not_bring_jax() -> None:
    code = "import sys, rooftop as rt; rt.plan('llama-3-8b', on='v5e:4x4', batch='1M'); assert not {'jax', 'plotly', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
