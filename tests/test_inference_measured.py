"""Published measurements of serving: none of them beats the bound of its configuration, and the expected times are near."""

from __future__ import annotations

import csv
import importlib.util
import math
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def benchmark():
    name = "benchmark_serving"
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks/serving.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_no_measurement_beats_its_bound():
    serving = benchmark()
    rows = list(csv.DictReader(serving.ROWS.read_text().splitlines()))
    found = list(serving.predictions(rows, bound_only=True))
    assert len(found) == 77  # all but one, which mixes prefill and generation of a chat
    assert not [r for r in found if r.beats_bound]


def test_predictions_of_the_inference_paper():
    """PaLM 540B on 64 TPU v4: 29 ms a token, 76 % of the peak at prefill (Pope et al., 2022)."""
    serving = benchmark()
    decode, prefill = (
        serving.palm(row)
        for row in csv.DictReader(serving.ROWS.read_text().splitlines())
        if row["kind"] in ("decode", "prefill")
    )
    assert abs(decode.error) < 0.3
    assert abs(prefill.error) < 0.1


def test_times_under_load():
    """A sample of measured times of vLLM, SGLang and TensorRT-LLM: bounds hold, the median error of a token's time is small."""
    serving = benchmark()
    rows = csv.DictReader(serving.SERVING.read_text().splitlines())
    found = [pair for row in rows if (pair := serving.online(row)) is not None]
    assert len(found) > 50
    assert not [r for pair in found for r in pair if r.beats_bound]
    errors = [abs(math.log(token.expected / token.measured)) for token, _ in found]
    assert math.exp(statistics.median(errors)) < 1.3
