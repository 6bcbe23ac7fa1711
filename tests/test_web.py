"""The API: the answers of the commands, refusals that name the field, and nothing for who should get nothing."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="comes with rooftop[web]")
testclient = pytest.importorskip("fastapi.testclient", reason="needs httpx")

from rooftop.cli import run  # noqa: E402
from rooftop.web import application  # noqa: E402
from rooftop.web._commands import EXAMPLES, command_named, parameters, request_model  # noqa: E402

TRACES = Path(__file__).parent / "data" / "traces"


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    # one event loop for all: workers live as long as it does
    with testclient.TestClient(application(workers=1, seconds=60), base_url="http://localhost:8765") as found:
        yield found


def ask(client: Any, command: str, **request: Any) -> tuple[int, dict[str, Any]]:
    response = client.post(f"/api/{command}", json=request)
    return response.status_code, response.json()


WORDS = {
    "plan": ["llama-3-8b", "--on", "h100:64", "--batch", "1M"],
    "step": ["llama-3-8b", "--on", "h100:64", "--mesh", "fsdp=8,tensor=8", "--batch", "1M"],
    "serve": ["llama-3-8b", "--on", "h100:1", "--prompt", "1024", "--output", "256"],
    "simulate": ["llama-3-8b", "--on", "h100:1", "--workload", EXAMPLES["simulate"]["workload"]],
    "scaling": ["llama-3-8b"],
    "sweep": ["llama-3-8b", "--on", "h100:64", "--vary", "batch=1M..4M"],
    "whatif": ["llama-3-8b", "--on", "h100:64", "--set", "batch=1M", "--number", "hbm_bandwidth", "--fixed"],
    "export": ["plan.json", "--to", "maxtext"],
    "model": ["llama-3-8b"],
    "chip": ["v5e"],
    "slice": ["v5p:4x4x4"],
    "roofline": [EXAMPLES["roofline"]["expression"], "--on", "v5e"],
    "matmul": [
        EXAMPLES["matmul"]["expression"],
        "--sizes",
        "I=8192,J=8192,K=32768",
        "--mesh",
        "X=4,Y=8",
        "--on",
        "v5e:4x8",
    ],
    "collective": ["all-gather", "--bytes", "34MB", "--axes", "X=16", "--on", "v5e:16x16"],
}


def timeless(value: Any) -> Any:
    """Without how long the computation itself took."""
    if isinstance(value, dict):
        return {
            k: timeless(v)
            for k, v in value.items()
            if k not in ("searched", "simulated") and not (k == "seconds" and "binds" in value)
        }
    return [timeless(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("command", EXAMPLES)
def test_an_answer_is_that_of_the_command(
    client: Any, command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_text(EXAMPLES["export"]["plan"])
    status, data = ask(client, command, **EXAMPLES[command])
    assert status == 200, data
    assert run([command, *WORDS[command], "--json"]) == 0
    assert timeless(data["answer"]) == timeless(json.loads(capsys.readouterr().out))
    assert {f["name"] for f in data["figures"]} >= {
        "plan": {"timeline", "roofline", "memory", "time", "topology"},
        "serve": {"frontier", "roofline", "memory"},
        "simulate": {"simulation", "latency"},
        "collective": {"topology"},
    }.get(command, set())


@pytest.mark.parametrize(
    ("command", "request_", "field", "word"),
    [
        ("plan", {"model": "llama-3-9b", "on": "h100:64"}, "model", "did you mean"),
        ("plan", {"model": "llama-3-8b", "on": "h100:3x3"}, "on", "number of chips"),
        ("plan", {"model": "llama-3-8b", "on": "h100:64", "batch": "lots"}, "batch", "lots"),
        ("plan", {"model": "llama-3-8b", "on": "h100:64", "bath": "1M"}, "bath", "not permitted"),
        ("plan", {"model": "llama-3-8b"}, "on", "required"),
        ("plan", {"model": "llama-3-405b", "on": "v5e:1x1"}, "on", ""),
        ("step", {"model": "llama-3-8b", "on": "h100:64", "mesh": "tensor=12"}, "mesh", "12"),
        ("plan", {"config": "{}", "on": "h100:8"}, "model_type", "model_type"),
        ("plan", {"config": "[" * 5000, "on": "h100:8"}, "model", "JSON"),
    ],
)
def test_refusals_name_the_field(client: Any, command: str, request_: dict[str, Any], field: str, word: str) -> None:
    status, data = ask(client, command, **request_)
    assert status == 422
    assert data["error"]["field"] == field or word in data["error"]["message"]
    assert word in data["error"]["message"]
    assert "\n" not in data["error"]["message"]
    assert "/tmp" not in data["error"]["message"]


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../secret", "meta-llama/Llama-3.1-8B", "~/config.json", "a/../../b", "C:\\x", "\u202e", "x\ny"],
)
def test_no_name_reaches_a_file(client: Any, name: str, tmp_path: Path) -> None:
    for command, key in (
        ("plan", "model"),
        ("plan", "on"),
        ("serve", "draft"),
        ("simulate", "workload"),
        ("slice", "on"),
        ("chip", "name"),
        ("sweep", "set"),
        ("sweep", "vary"),
    ):
        given = [f"model={name}"] if key in ("set", "vary") else name
        status, data = ask(client, command, **{**EXAMPLES[command], key: given})
        assert status == 422
        assert data["error"]["field"] == key


def test_a_name_that_is_a_file_where_the_server_runs_is_not_read(
    client: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secret.json").write_text('{"model_type": "llama"}')
    monkeypatch.chdir(tmp_path)
    status, data = ask(client, "plan", model="secret.json", on="h100:8")
    assert status == 422
    assert "model_type" not in data["error"]["message"]


def test_files_of_a_request(client: Any) -> None:
    config = (Path(__file__).parent / "data").rglob("config.json")
    own = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
           "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False}  # fmt: skip
    assert config is not None
    status, data = ask(client, "plan", config=json.dumps(own), on="h100:64", batch="1M")
    assert status == 200, data
    _, known = ask(client, "plan", model="llama-3-8b", on="h100:64", batch="1M")
    assert data["answer"]["best"]["step_seconds"] == known["answer"]["best"]["step_seconds"]
    status, again = ask(client, "step", plan=json.dumps(known["answer"]), model="llama-3-8b", on="h100:64", batch="1M")
    assert status == 200, again
    assert again["answer"]["best"]["step_seconds"] == pytest.approx(known["answer"]["best"]["step_seconds"])
    trace = "arrival,input,output\n" + "".join(f"{n / 10},100,10\n" for n in range(50))
    status, data = ask(client, "simulate", model="llama-3-8b", on="h100:1", requests=trace)
    assert status == 200, data
    assert data["answer"]["simulated"]["requests"] == 50


def test_a_profile_is_uploaded(client: Any) -> None:
    path = TRACES / "torch-h100-qwen1.5-0.5b.json.gz"
    response = client.post("/api/trace", files=[("files", ("../../x.json.gz", path.read_bytes()))])
    assert response.status_code == 200
    data = response.json()
    assert data["answer"]["ops"]
    assert {"losses", "roofline", "tracks"} <= {f["name"] for f in data["figures"]}
    for name, content in (
        ("x.exe", b"x"),
        ("x.json", b"not json"),
        ("x.xplane.pb", b"\xff\xff"),
        ("x.json.gz", b"\x1f\x8b"),
    ):
        response = client.post("/api/trace", files=[("files", (name, content))])
        assert response.status_code == 422
        assert "/tmp" not in response.text


def test_an_explanation(client: Any) -> None:
    status, data = ask(client, "step", **EXAMPLES["step"], explain="step_seconds", depth=2)
    assert status == 200
    found = data["answer"]["explanation"]
    assert found["value"] == pytest.approx(data["answer"]["best"]["step_seconds"]["expected"])
    assert found["inputs"]


def test_other_hosts_and_other_sites_get_nothing(client: Any) -> None:
    assert client.get("/", headers={"host": "attacker.example"}).status_code == 400
    question = {"json": EXAMPLES["chip"]}
    assert client.post("/api/chip", **question, headers={"origin": "http://attacker.example"}).status_code == 403
    assert client.post("/api/chip", **question, headers={"origin": "null"}).status_code == 403
    assert client.post("/api/chip", **question, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert client.post("/api/chip", **question, headers={"origin": "http://localhost:8765"}).status_code == 200


def test_headers_and_bounds(client: Any) -> None:
    page = client.get("/")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert client.post("/api/plan", content=b"x" * 8_000_001).status_code == 413
    assert client.post("/api/plan", content=b"{").status_code == 422
    for name in ("../_app.py", "..%2f_app.py", "%2e%2e/__init__.py", "_app.py", "nothing.js"):
        assert client.get(f"/static/{name}").status_code in (404, 405)
    for name in (
        "app.js",
        "views.js",
        "parts.js",
        "form.js",
        "api.js",
        "theme.js",
        "app.css",
        "figures.js",
        "player.js",
        "scene.js",
        "systolic.js",
        "plotly.min.js",
        "icon.svg",
    ):
        found = client.get(f"/static/{name}")
        assert found.status_code == 200, name
        assert "http://" not in found.text.replace("http://www.w3.org", "") or name == "plotly.min.js"


def test_the_page_asks_nothing_of_other_hosts() -> None:
    assets = Path(__file__).parent.parent / "src/rooftop"
    for path in [*(assets / "web/assets").iterdir(), *(assets / "figures/assets").iterdir()]:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "//cdn" not in text
        assert "https://" not in text
        assert "http://" not in text


def test_time_is_bounded() -> None:
    slow = {"model": "llama-3-70b", "on": "h100", "batch": "4M", "scale": "8..16384"}
    with testclient.TestClient(application(workers=1, seconds=0.05), base_url="http://localhost") as found:
        status, data = ask(found, "plan", **slow)
    assert status == 503
    assert data["error"]["kind"] == "TimedOut"


def test_requests_have_the_options_of_the_commands() -> None:
    for name in EXAMPLES:
        fields = request_model(name).model_fields
        assert all(field.description for field in fields.values())
        options = {p.opts[0] for p in command_named(name).params if p.opts[0].startswith("--")}
        given = {p.opts[0] for p in parameters(name).values()}
        assert options - given <= {
            "--json",
            "--html",
            "--pdf",
            "--save",
            "--versus",
            "--plan",
            "--timeline",
            "--requests",
            "--step-model",
            "--out",
            "--engine",
            "--workers",
            "--address",
        }


def test_workers_start_under_python_m() -> None:
    """A worker imports the main module of the server: it must not start a second command line."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "rooftop", "web", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            assert f":{port}" in server.stdout.readline()
            body = json.dumps(EXAMPLES["chip"]).encode()
            question = urllib.request.Request(
                f"http://127.0.0.1:{port}/api/chip", body, {"content-type": "application/json"}
            )
            for attempt in range(100):
                try:
                    with urllib.request.urlopen(question, timeout=30) as response:
                        assert json.load(response)["answer"]["name"] == "v5e"
                    break
                except urllib.error.URLError as error:
                    assert not isinstance(error, urllib.error.HTTPError), error.read()
                    assert attempt < 99
                    time.sleep(0.1)
        finally:
            server.terminate()
