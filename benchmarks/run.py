"""Run benchmarks and record what they measure."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCE = str(HERE.parent / "src")
PLAN = ["plan", "llama-3-70b", "--on", "v5p:16x20x28", "--batch", "4M", "--seq", "4096", "--tokens", "15T"]


def process_seconds(arguments: list[str], runs: int) -> dict[str, float]:
    """Wall and processor seconds of a Python process, after one run that is not counted.

    Processor seconds do not grow when the machine has other work; the median of both is recorded.
    """
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    seconds, busy = [], []
    for _ in range(runs + 1):
        before = os.times()
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - started)
        after = os.times()
        busy.append(after.children_user + after.children_system - before.children_user - before.children_system)
    kept = sorted(seconds[1:])
    return {
        "median": statistics.median(kept),
        "min": kept[0],
        "max": kept[-1],
        "processor_median": statistics.median(busy[1:]),
    }


def startup() -> dict[str, Any]:
    """Cold starts."""
    return {
        "python -c pass": process_seconds(["-c", "pass"], 9),
        "import rooftop": process_seconds(["-c", "import rooftop"], 9),
        "rooftop --help": process_seconds(["-m", "rooftop", "--help"], 9),
        "rooftop plan (README)": process_seconds(["-m", "rooftop", *PLAN], 7),
    }


def search() -> dict[str, Any]:
    """Plans per second of the search, the resolution of the model included."""
    sys.path.insert(0, SOURCE)
    from rooftop.hardware import slice_of
    from rooftop.training import Question, plan
    from rooftop.transformer import architecture

    rows = []
    for model, where, batch in (
        ("llama-3-405b", "h100:16384", 16e6),
        ("llama-3-70b", "v5p:16x20x28", 4e6),
        ("llama-3-8b", "h100:64", 1e6),
        ("llama-3-405b", "v5e:16x16*8", 16e6),
    ):
        outcomes = []
        for _ in range(5):
            before = time.process_time()
            outcome = plan(Question(architecture(model), slice_of(where), batch, 4096)).outcome
            assert outcome is not None
            outcomes.append((outcome, time.process_time() - before))
        middle, busy = sorted(outcomes, key=lambda o: o[1])[len(outcomes) // 2]
        rows.append(
            {
                "model": model, "slice": where, "plans": middle.plans, "timed": middle.timed,
                "seconds": middle.seconds, "plans_per_second": middle.plans / middle.seconds,
                "timed_per_second": middle.timed / middle.seconds,
                "processor_seconds": busy, "plans_per_processor_second": middle.plans / busy,
            }
        )  # fmt: skip
    return {"rows": rows}


def processor() -> str:
    """The model of the processor, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{platform.machine()}, {names[0]}" if names else platform.machine()


BENCHMARKS: dict[str, Callable[[], dict[str, Any]]] = {"startup": startup, "search": search}


def main() -> None:
    """Run the benchmarks named, or all."""
    import numpy

    for name in sys.argv[1:] or list(BENCHMARKS):
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        result = {
            "benchmark": name,
            "date": datetime.date.today().isoformat(),
            "machine": {
                "processor": processor(),
                "cores": os.cpu_count(),
                "system": platform.system(),
                "load_before": load,  # processes that ran or waited, in the minute before
            },
            "python": platform.python_version(),
            "numpy": numpy.__version__,
            "results": BENCHMARKS[name](),
        }
        path = HERE / "results" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps(result["results"], indent=1))


if __name__ == "__main__":
    main()
