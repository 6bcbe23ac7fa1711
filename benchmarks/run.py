"""Run benchmarks and record what they measure."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCE = str(HERE.parent / "src")
PLAN = ["plan", "llama-3-70b", "--on", "v5p:16x20x28", "--batch", "4M", "--seq", "4096", "--tokens", "15T"]
LARGE = ["plan", "llama-3-405b", "--on", "h100:16384", "--batch", "16M", "--seq", "4096"]
EXPERTS = ["plan", "deepseek-v3", "--on", "h800:2048", "--batch", "16M", "--seq", "4096"]


def process_seconds(arguments: list[str], runs: int) -> dict[str, float]:
    """Wall and processor seconds of a Python process, after one run that is not counted, with bytecode as an installed package has it.

    Processor seconds do not grow when the machine has other work; the median of both is recorded.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": SOURCE,
        "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "rooftop-bytecode"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
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
        "rooftop plan (README)": process_seconds(["-m", "rooftop", *PLAN], 3),
        "rooftop plan (405B, 16,384 chips)": process_seconds(["-m", "rooftop", *LARGE], 3),
        "rooftop plan (DeepSeek-V3, 2,048 chips)": process_seconds(["-m", "rooftop", *EXPERTS], 3),
    }


def trace() -> dict[str, Any]:
    """Reading a synthetic Chrome trace of 1 GB, in a process of its own: bytes a second, and the most memory."""

    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1,
         "args": {"External id": 1, "Record function id": 0, "Concrete Inputs": ["", ""], "Input type": ["float", "float"],
                  "Input Strides": [[4096, 1], [4096, 1]], "Input Dims": [[512, 4096], [4096, 4096]], "Ev Idx": 1}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
         "args": {"External id": 1, "cbid": 211, "correlation": 1}},
        {"ph": "X", "cat": "kernel", "name": "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>()",
         "pid": 0, "tid": 7,
         "args": {"External id": 1, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": 1,
                  "registers per thread": 32, "shared memory": 0, "blocks per SM": 8.0, "warps per SM": 32.0,
                  "grid": [2400, 1, 1], "block": [256, 1, 1], "est. achieved occupancy %": 100}},
        {"ph": "X", "cat": "python_function", "name": "torch/nn/modules/module.py(1511): _call_impl", "pid": 1, "tid": 1,
         "args": {"Python parent id": 1, "Python id": 2, "Ev Idx": 3}},
    ]  # fmt: skip
    code = (
        "import sys, time, resource, json; from rooftop.profiles import read, analyse; start = time.perf_counter();"
        "trace = read(sys.argv[1]); middle = time.perf_counter(); busy = time.process_time();"
        "analyse(trace); end = time.perf_counter();"
        "print(json.dumps([middle - start, busy, end - middle, len(trace[0].start), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with path.open("w") as file:
            file.write('{"schemaVersion": 1, "traceEvents": [\n')
            number = 0
            while file.tell() < 1_000_000_000:
                rows = []
                for _ in range(5000):
                    for event, (offset, length) in zip(events, ((0, 9), (2, 5), (7, 8), (1, 8)), strict=True):
                        arguments = {**event["args"], "External id": number, "correlation": number}  # type: ignore[dict-item]
                        rows.append(
                            json.dumps(
                                {**event, "ts": 1e9 + 10 * number + offset, "dur": length, "args": arguments}, indent=1
                            )
                        )
                    number += 1
                file.write(",\n".join(rows) + ",\n")
            file.write('{"ph": "i", "name": "end", "ts": 0}]}')
        bytes = path.stat().st_size
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)],
            env={**os.environ, "PYTHONPATH": SOURCE},
            check=True,
            capture_output=True,
        )
    reading, busy, analysing, kept, memory = json.loads(done.stdout)
    return {
        "bytes": bytes, "events_kept": kept, "read_seconds": reading, "read_processor_seconds": busy, "analyse_seconds": analysing,
        "bytes_per_second": bytes / reading, "bytes_per_processor_second": bytes / busy, "memory_bytes": memory,
    }  # fmt: skip


def search() -> dict[str, Any]:
    """Plans per second of the search in one thread, the resolution of the model included; and the most memory that it took."""
    sys.path.insert(0, SOURCE)
    from rooftop.hardware import slice_of
    from rooftop.training import Question, plan
    from rooftop.training._structure import structure
    from rooftop.transformer import architecture

    rows = []
    for model, where, batch in (
        ("llama-3-405b", "h100:16384", 16e6),
        ("deepseek-v3", "h800:2048", 16e6),
        ("llama-3-70b", "v5p:16x20x28", 4e6),
        ("llama-3-8b", "h100:64", 1e6),
        ("llama-3-405b", "v5e:16x16*8", 16e6),
    ):
        outcomes = []
        for _ in range(5):
            structure.cache_clear()
            before = time.process_time()
            outcome = plan(Question(architecture(model), slice_of(where), batch, 4096)).outcome
            assert outcome is not None
            outcomes.append((outcome, time.process_time() - before))
        middle, busy = sorted(outcomes, key=lambda o: o[1])[len(outcomes) // 2]
        evaluated = middle.bounded + middle.timed
        rows.append(
            {
                "model": model, "slice": where, "plans": middle.plans, "bounded": middle.bounded, "timed": middle.timed,
                "seconds": middle.seconds, "processor_seconds": busy,
                "plans_per_processor_second": middle.plans / busy,
                "evaluated_per_processor_second": evaluated / busy,
            }
        )  # fmt: skip
    return {"rows": rows, "peak_resident_megabytes": peak_megabytes()}


def scaling() -> dict[str, Any]:
    """The search from 64 to 131,072 chips, 1,024 tokens of batch for each chip, at least 4M."""
    sys.path.insert(0, SOURCE)
    from rooftop.hardware import slice_of
    from rooftop.training import Question, problem_of
    from rooftop.training._search import search as find
    from rooftop.transformer import architecture

    rows = []
    shapes = ("4x4x4", "4x8x8", "8x8x16", "16x16x16", "16x16x16*4", "16x16x16*16", "16x16x16*32")
    for where in (slice_of(f"v5p:{shape}") for shape in shapes):
        chips = where.chips
        question = Question(architecture("llama-3-70b"), where, max(4e6, 1024.0 * chips), 4096)
        before = time.process_time()
        outcome = find(problem_of(question))
        busy = time.process_time() - before
        best = outcome.found[0].seconds_per_token if outcome.found else None
        rows.append(
            {
                "slice": where.name, "chips": chips, "plans": outcome.plans, "bounded": outcome.bounded,
                "timed": outcome.timed, "processor_seconds": busy, "best_seconds_per_token": best,
            }
        )  # fmt: skip
    return {"model": "llama-3-70b", "rows": rows, "peak_resident_megabytes": peak_megabytes()}


def front() -> dict[str, Any]:
    """Pareto sets of time, memory and chips."""
    sys.path.insert(0, SOURCE)
    from rooftop.hardware import slice_of
    from rooftop.training import Question, problem_of
    from rooftop.training._search import search as find
    from rooftop.transformer import architecture

    rows = []
    for model, where, batch in (("llama-3-8b", "h100:64", 1e6), ("llama-3-405b", "h100:16384", 16e6)):
        before = time.process_time()
        outcome = find(problem_of(Question(architecture(model), slice_of(where), batch, 4096)), front=True)
        rows.append(
            {
                "model": model, "slice": where, "front": len(outcome.found), "plans": outcome.plans,
                "bounded": outcome.bounded, "timed": outcome.timed, "processor_seconds": time.process_time() - before,
            }
        )  # fmt: skip
    return {"rows": rows, "peak_resident_megabytes": peak_megabytes()}


def peak_megabytes() -> float | None:
    """The most memory that this process has had."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def simulate() -> dict[str, Any]:
    """Requests simulated per second, 20,000 of 1,000 in and 200 out at 8/s: Llama-3-70B on four H200.

    The simulators of `peers.py` that are there serve the same workload in turns with ours. Once with the step times of each, once
    with steps that take 60 ms for prompts and 15 ms for decoding in all.
    """
    sys.path.insert(0, SOURCE)
    from peers import DECODE_SECONDS, INPUT, OUTPUT, PROMPT_SECONDS, RATE, Run, aisimulate, vidur

    from rooftop import simulation
    from rooftop.hardware import slice_of
    from rooftop.transformer import architecture

    class Constant:
        def seconds(self, tokens: int, pairs: int, batch: int, context: int, width: int = 1) -> float:
            return (PROMPT_SECONDS if tokens else 0.0) + (DECODE_SECONDS if batch else 0.0)

        def decode_line(self, batch: int, context: int, width: int = 1) -> simulation.Line:
            return simulation.Line(DECODE_SECONDS, 0.0, float("inf"))

    requests = 20_000
    scheduling = simulation.Scheduling(max_batch=256, max_tokens=8192)
    work = simulation.workload(f"poisson:rate={RATE},requests={requests},input={INPUT},output={OUTPUT}")
    modelled = simulation.modelled(
        architecture("llama-3-70b"), slice_of("h200:4"), scheduling, simulation.Typical(INPUT, OUTPUT, rate=RATE)
    )
    constant = simulation.Replica(Constant(), modelled.kv_tokens)

    def ours(replica: simulation.Replica) -> Run:
        before = time.process_time()
        outcome = simulation.simulate(simulation.Setup(replica, scheduling), work)
        busy.append(requests / (time.process_time() - before))
        record = outcome.record
        means = {"ttft": record.ttft.mean, "tpot": record.tpot.mean, "e2e": record.e2e.mean}
        return Run(record.requests / outcome.wall_seconds, means)

    cases: dict[str, dict[str, Callable[[], Run | None]]] = {
        "modelled steps": {
            "rooftop": lambda: ours(modelled),
            "aisimulate": lambda: aisimulate(requests, constant=False),
        },
        "constant steps": {
            "rooftop": lambda: ours(constant),
            "aisimulate": lambda: aisimulate(requests, constant=True),
            "vidur": lambda: vidur(requests),
        },
    }
    results: dict[str, Any] = {}
    for case, tools in cases.items():
        busy: list[float] = []
        runs: dict[str, list[Run]] = {tool: [] for tool in tools}
        for _ in range(5):
            for tool, play in tools.items():
                if (run := play()) is not None:
                    runs[tool].append(run)
        found = {
            tool: {
                "requests_per_second": {
                    "median": statistics.median(r.requests_per_second for r in several),
                    "each": [r.requests_per_second for r in several],
                },
                "mean_seconds": several[-1].mean_seconds,
            }
            for tool, several in runs.items()
            if several
        }
        found["rooftop"]["requests_per_processor_second"] = statistics.median(busy)
        speed = found["rooftop"]["requests_per_second"]["median"]
        times = {
            f"times_{tool}": speed / row["requests_per_second"]["median"]
            for tool, row in found.items()
            if tool != "rooftop"
        }
        results[case] = {**found, **times}
    return results


def accuracy() -> dict[str, Any]:
    """Times under load of 40 published rows, as the tools of `peers.py` and we predict them, each row by all in turns.

    The rows lie evenly over those of the serving table with one pool of workers that we do not refuse. Errors are over the rows
    that every tool answers.
    """
    sys.path.insert(0, SOURCE)
    from peers import estimate, estimators

    from rooftop.errors import RooftopError
    from rooftop.measure import predict, published

    candidates = [row for row in published("serving") if row.text("mode") == "agg"]
    tools = estimators()
    rows: list[dict[str, Any]] = []
    for row in candidates[:: len(candidates) // 60]:
        started = time.perf_counter()
        try:
            found = {p.quantity: p for p in predict(row)}
        except RooftopError:
            continue
        seconds = time.perf_counter() - started
        if len(found) < 2 or len(rows) == 40:
            continue
        ttft, tpot = found["ttft_seconds"], found["tpot_seconds"]
        prompt, output, users = (int(str(ttft.how[name])) for name in ("input_tokens", "output_tokens", "users"))
        answers = {"rooftop": {"ttft": ttft.expected, "tpot": tpot.expected, "seconds": seconds}}
        for tool in tools:
            answer = estimate(tool, dict(row.cells), prompt, output, users)
            if answer is not None:
                answers[tool] = vars(answer)
        rows.append({"id": row.id, "measured": {"ttft": ttft.measured, "tpot": tpot.measured}, **answers})
        print(json.dumps(rows[-1]), file=sys.stderr)
    shared = [row for row in rows if all(tool in row for tool in tools)]
    summary: dict[str, Any] = {"rows": len(rows), "answered by all": len(shared)}
    for tool in ("rooftop", *tools):
        summary[tool] = {"answered": sum(tool in row for row in rows)}
        summary[tool]["seconds_median"] = statistics.median(row[tool]["seconds"] for row in rows if tool in row)
        for quantity in ("tpot", "ttft"):
            errors = [row[tool][quantity] / row["measured"][quantity] - 1 for row in shared]
            sizes = sorted(map(abs, errors))
            summary[tool][quantity] = {
                "bias_median": statistics.median(errors), "median": statistics.median(sizes), "p90": sizes[int(0.9 * len(sizes))],
            }  # fmt: skip
    return {"summary": summary, "each": rows}


def processor() -> str:
    """The model of the processor, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{platform.machine()}, {names[0]}" if names else platform.machine()


def sweep() -> dict[str, Any]:
    """A million numbers of hardware through the formulas of one plan."""
    from rooftop.codesign import Scenario, parse_vary, sweep
    from rooftop.hardware import slice_of
    from rooftop.transformer import architecture
    from rooftop.units import parse_count

    step = Scenario("step", architecture("llama-3-8b"), slice_of("h100:64"), {"batch": 1e6}, {"fsdp": 8, "tensor": 8})
    names = ("chip.flops", "chip.hbm_bandwidth")
    varies = [parse_vary(f"{name}=1x..8x:n1000", lambda _: parse_count) for name in names]
    before, started = time.process_time(), time.perf_counter()
    found = sweep(step, varies)
    return {
        "points": len(found),
        "seconds": time.perf_counter() - started,
        "processor_seconds": time.process_time() - before,
    }


BENCHMARKS: dict[str, Callable[[], dict[str, Any]]] = {
    "startup": startup,
    "search": search,
    "simulate": simulate,
    "accuracy": accuracy,
    "trace": trace,
    "scaling": scaling,
    "front": front,
    "sweep": sweep,
}


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
