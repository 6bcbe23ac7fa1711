"""What must be set before JAX is imported anywhere: eight simulated devices on the CPU, compiled quickly. Also the width of output.

And what several files of tests share.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

_FLAGS = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}".strip()
os.environ["COLUMNS"] = "110"  # what the docs show; a worker of pytest-xdist inherits the width of a terminal


@pytest.fixture
def unpriced(tmp_path: Path) -> str:
    """The path of a chip file: an H100 without a price, whatever the catalogue comes to know."""
    text = (files("rooftop.hardware") / "data" / "h100.toml").read_text(encoding="utf-8")
    cut, tables = re.subn(r"^\[price\]\n(?:[^\[\n].*\n|\n)*", "", text, flags=re.MULTILINE)
    assert tables == 1
    path = tmp_path / "unpriced.toml"
    path.write_text(cut, encoding="utf-8")
    return str(path)


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of `rooftop web` on a free port of the loopback interface."""
    uvicorn = pytest.importorskip("uvicorn", reason="comes with rooftop[web]")
    pytest.importorskip("fastapi", reason="comes with rooftop[web]")
    from rooftop.web import application

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        running = uvicorn.Server(uvicorn.Config(application(workers=2, seconds=30), log_level="error"))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not running.started:
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
        running.should_exit = True
        thread.join(timeout=20)
