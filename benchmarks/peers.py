"""Other simulators on the workload of the benchmark `simulate`, each in an environment of its own.

AISIMULATE names the executable of NVIDIA's aisimulate. VIDUR names a Python that has the requirements of microsoft/vidur, and
VIDUR_SOURCE a checkout of it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

PROMPT_SECONDS, DECODE_SECONDS = 0.060, 0.015
INPUT, OUTPUT, RATE = 1000, 200, 8


@dataclass(frozen=True)
class Run:
    """Requests simulated per second of the simulation alone, as the tool itself measures it, and the means that it found."""

    requests_per_second: float
    mean_seconds: dict[str, float]


AISIMULATE = """
traffic:
  source: {{type: synthetic, input_tokens: {input}, output_tokens: {output}}}
  load: {{type: poisson, requests_per_second: {rate}, seed: 0}}
  stop: {{requests: {requests}}}
engine:
  mode: aggregated
  model: meta-llama/Meta-Llama-3.1-70B
  hardware: h200_sxm
  backend: vllm
  workers:
    aggregated:
      parallelism: {{tensor: 4}}
      scheduler: {{max_batched_tokens: 8192, max_sequences: 256}}
      timing: {timing}
"""
CONSTANT = f"{{type: fixed, prefill_ms: {PROMPT_SECONDS * 1e3:g}, decode_ms: {DECODE_SECONDS * 1e3:g}}}"


def aisimulate(requests: int, *, constant: bool) -> Run | None:
    """NVIDIA's simulator (a Rust core), with its own step times or constant ones; None without AISIMULATE."""
    executable = os.environ.get("AISIMULATE")
    if executable is None:
        return None
    timing = CONSTANT if constant else "{type: default}"
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.yaml")
        config.write_text(AISIMULATE.format(input=INPUT, output=OUTPUT, rate=RATE, requests=requests, timing=timing))
        command = [executable, "predict", "--config", str(config), "--output-dir", f"{folder}/out"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        report = json.loads(Path(folder, "out/prediction.json").read_text())
    means = {"ttft": "mean_ttft_ms", "tpot": "mean_tpot_ms", "e2e": "mean_e2e_latency_ms"}
    rate = report["completed_requests"] / report["wall_time_ms"] * 1e3
    return Run(rate, {name: report[field] / 1e3 for name, field in means.items()})


#: Vidur learns step times from tables of measured kernels; here it takes the constant ones, so that only its simulation is timed
VIDUR = f"""
import json, os, sys, time
sys.path.insert(0, sys.argv.pop(1))
import vidur.simulator
from vidur.config import SimulationConfig
from vidur.entities import ExecutionTime
from vidur.execution_time_predictor import ExecutionTimePredictorRegistry

class Constant:
    def get_execution_time(self, batch, stage):
        prompts = any(not r.is_prefill_complete for r in batch.requests)
        decodes = any(r.is_prefill_complete for r in batch.requests)
        ms = {PROMPT_SECONDS * 1e3} * prompts + {DECODE_SECONDS * 1e3} * decodes
        return ExecutionTime(1, *[0.0] * 14, ms, *[0.0] * 4)

ExecutionTimePredictorRegistry.get = classmethod(lambda cls, *a, **k: Constant())
simulator = vidur.simulator.Simulator(SimulationConfig.create_from_cli_args())
started = time.perf_counter()
simulator.run()
seconds = time.perf_counter() - started
kept = {{k.name: dict(v._data_series) for k, v in simulator._metric_store._request_metrics_time_distributions.items()}}
e2e, ttft = kept["REQUEST_E2E_TIME"], kept["PREFILL_TIME_E2E"]
with open(os.environ["REPORT"], "w") as file:
    json.dump({{"seconds": seconds, "e2e": list(e2e.values()), "ttft": [ttft[r] for r in e2e]}}, file)
os._exit(0)
"""


def vidur(requests: int) -> Run | None:
    """Vidur with constant step times and its Sarathi scheduler; None without VIDUR and VIDUR_SOURCE."""
    python, source = os.environ.get("VIDUR"), os.environ.get("VIDUR_SOURCE")
    if python is None or source is None:
        return None
    quiet = ("store_plots", "enable_chrome_trace", "store_operation_metrics", "store_token_completion_metrics",
             "store_batch_metrics", "store_utilization_metrics")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        options = {
            "replica_config_device": "a100",
            "replica_config_model_name": "meta-llama/Meta-Llama-3-8B",
            "cluster_config_num_replicas": 1,
            "request_generator_config_type": "synthetic",
            "synthetic_request_generator_config_num_requests": requests,
            "length_generator_config_type": "fixed",
            "fixed_request_length_generator_config_prefill_tokens": INPUT,
            "fixed_request_length_generator_config_decode_tokens": OUTPUT,
            "interval_generator_config_type": "poisson",
            "poisson_request_interval_generator_config_qps": RATE,
            "replica_scheduler_config_type": "sarathi",
            "sarathi_scheduler_config_batch_size_cap": 256,
            "sarathi_scheduler_config_chunk_size": 8192,
            "metrics_config_output_dir": folder,
        }
        arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
        arguments += [f"--no-metrics_config_{name}" for name in quiet]
        subprocess.run(
            [python, "-c", VIDUR, source, *arguments], cwd=folder, check=True,
            env={**os.environ, "PYTHONPATH": "", "REPORT": str(report)},
            stdout=subprocess.DEVNULL, stderr=sys.stderr,
        )  # fmt: skip
        found = json.loads(report.read_text())
    served = len(found["e2e"])
    e2e, ttft = sum(found["e2e"]) / served, sum(found["ttft"]) / served
    return Run(served / found["seconds"], {"ttft": ttft, "tpot": (e2e - ttft) / (OUTPUT - 1), "e2e": e2e})


@dataclass(frozen=True)
class Estimate:
    """Seconds to the first token and between tokens that a tool predicts, and the wall seconds of asking it."""

    ttft: float
    tpot: float
    seconds: float


def estimators() -> tuple[str, ...]:
    """The tools that `estimate` can ask here: those whose executable a variable names."""
    return tuple(tool for tool in ("aiconfigurator", "aisimulate") if tool.upper() in os.environ)


def estimate(tool: str, row: dict[str, str], prompt: int, output: int, users: int) -> Estimate | None:
    """A row of the serving table, one pool of workers, as a tool predicts it in a process of its own; None where it refuses."""
    ask = _ask_aiconfigurator if tool == "aiconfigurator" else _ask_aisimulate
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = ask(row, prompt, output, users, folder)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return None
    return None if found is None else Estimate(*found, time.perf_counter() - started)


def _run(command: list[str], folder: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=180, cwd=folder).stdout


def _ways(row: dict[str, str]) -> dict[str, int]:
    columns = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    return {column: max(1, int(row[column] or 1)) for column in columns}


def _ask_aiconfigurator(
    row: dict[str, str], prompt: int, output: int, users: int, folder: str
) -> tuple[float, float] | None:
    ways = _ways(row)
    options: dict[str, object] = {
        "model-path": row["model_path"], "system": row["system"], "backend": row["backend"], "isl": prompt, "osl": output,
        "batch-size": max(1, users // ways["attention_dp_size"]),
        **{name.replace("_", "-"): value for name, value in ways.items()},
    }  # fmt: skip
    for column in ("gemm_quant_mode", "moe_quant_mode"):
        if row[column]:
            options[column.replace("_", "-")] = row[column]
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    text = _run([os.environ["AICONFIGURATOR"], "cli", "estimate", "--no-color", *arguments], folder)
    found = [re.search(rf"{name}:\s+([\d.,]+) ms", text) for name in ("TTFT", "TPOT")]
    if found[0] is None or found[1] is None:
        return None
    first, between = (float(match[1].replace(",", "")) / 1e3 for match in found if match is not None)
    return first, between


def _ask_aisimulate(
    row: dict[str, str], prompt: int, output: int, users: int, folder: str
) -> tuple[float, float] | None:
    ways = _ways(row)
    timing = {name: row[name] for name in ("gemm_quant_mode", "moe_quant_mode") if row[name]}
    config = {
        "traffic": {
            "source": {"type": "synthetic", "input_tokens": prompt, "output_tokens": output},
            "load": {"type": "concurrency", "concurrency": users},
            "stop": {"requests": 10 * users},
        },
        "engine": {
            "mode": "aggregated", "model": row["model_path"], "hardware": row["system"], "backend": row["backend"],
            "workers": {
                "aggregated": {
                    "parallelism": {
                        "tensor": ways["tp_size"], "attention_data": ways["attention_dp_size"],
                        "moe_tensor": ways["moe_tp_size"], "moe_expert": ways["moe_ep_size"],
                    },
                    "scheduler": {"max_sequences": max(256, users)},
                    "timing": {"type": "default", **timing},
                }
            },
        },
    }  # fmt: skip
    path = Path(folder, "config.yaml")
    path.write_text(json.dumps(config))  # YAML holds JSON
    _run([os.environ["AISIMULATE"], "predict", "--config", str(path), "--output-dir", f"{folder}/out"], folder)
    report = json.loads(Path(folder, "out/prediction.json").read_text())
    return report["mean_ttft_ms"] / 1e3, report["mean_tpot_ms"] / 1e3
