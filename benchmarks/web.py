"""Load on `rooftop web` over the loopback interface: many clients at once, each with its own questions.

    python benchmarks/web.py

prints, and keeps in results/web.json, requests a second and quantiles of latency; nothing may fail.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

PORT = 8799
ADDRESS = f"http://127.0.0.1:{PORT}"
LOADS: dict[str, tuple[str, int, int]] = {
    # name: (command or path, clients, requests of each)
    "the page": ("/", 64, 40),
    "collective": ("collective", 32, 20),
    "serve": ("serve", 16, 6),
    "plan": ("plan", 16, 6),
}


def question(command: str, number: int) -> dict[str, Any]:
    """A question that no other client asks at the same time."""
    if command == "plan":
        return {"model": "llama-3-8b", "on": "h100:64", "batch": 500_000 + 8192 * number}
    if command == "serve":
        return {"model": "llama-3-8b", "on": "h100:1", "prompt": str(512 + number), "output": "256"}
    return {"kind": "all-gather", "bytes": f"{10 + number}MB", "axes": "X=16", "on": "v5e:16x16"}


async def load(what: str, clients: int, each: int) -> dict[str, Any]:
    took: list[float] = []
    failed = 0

    async def client(number: int, http: httpx.AsyncClient) -> None:
        nonlocal failed
        for turn in range(each):
            started = time.perf_counter()
            if what.startswith("/"):
                response = await http.get(what)
            else:
                asked = question(what, number * each + turn)
                asked = {k: str(v) if k == "batch" else v for k, v in asked.items()}
                response = await http.post(f"/api/{what}", json=asked)
            took.append(time.perf_counter() - started)
            failed += response.status_code != 200

    async with httpx.AsyncClient(base_url=ADDRESS, timeout=120, limits=httpx.Limits(max_connections=clients)) as http:
        started = time.perf_counter()
        await asyncio.gather(*(client(n, http) for n in range(clients)))
        wall = time.perf_counter() - started
    took.sort()
    return {
        "clients": clients, "requests": len(took), "failed": failed, "requests_per_second": round(len(took) / wall, 1),
        "p50_ms": round(1e3 * took[len(took) // 2], 1), "p99_ms": round(1e3 * took[int(len(took) * 0.99)], 1),
    }  # fmt: skip


async def main() -> None:
    command = [sys.executable, "-m", "rooftop", "web", "--port", str(PORT), "--workers", "2"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            async with httpx.AsyncClient(base_url=ADDRESS) as http:
                for _ in range(200):
                    try:
                        await http.get("/")
                        break
                    except httpx.ConnectError:
                        await asyncio.sleep(0.05)
            await asyncio.gather(*(load(w, 2, 1) for w in ("collective", "plan", "serve")))  # workers start
            results = {name: await load(*what) for name, what in LOADS.items()}
        finally:
            server.terminate()
    answer = {
        "date": time.strftime("%Y-%m-%d"),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "loads": results,
    }
    text = json.dumps(answer, indent=2) + "\n"
    (Path(__file__).parent / "results" / "web.json").write_text(text)
    print(text)


if __name__ == "__main__":
    asyncio.run(main())
