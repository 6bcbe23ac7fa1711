"""Published measurements of serving: none of them beats the bound of its configuration, and the expected times are near."""

from __future__ import annotations

import math
import statistics

import pytest

from rooftop.measure import predict, published, validate

ROWS = {row.id: row for row in published("inference")}


def test_no_throughput_at_maximum_load_beats_its_bound():
    found = validate(published("inference"))
    assert len(found.predictions) == 77
    assert [r.id for r in found.refused] == ["esti.540b.chat"]  # states its time in words
    assert not [p.id for p in found.predictions if p.beats_bound]


def test_predictions_of_the_inference_paper():
    """PaLM 540B on 64 TPU v4: 29 ms a token, 76 % of the peak at prefill (Pope et al., 2022)."""
    for name, within in (("esti.540b.decode", 0.3), ("esti.540b.prefill", 0.1)):
        (p,) = predict(ROWS[name])
        assert p.expected == pytest.approx(p.measured, rel=within)


def test_times_under_load():
    """A sample of measured times of vLLM, SGLang and TensorRT-LLM: bounds hold, the median error of a token's time is small."""
    found = validate(published("serving")[::150]).predictions
    assert len(found) > 20
    assert not [p.id for p in found if p.beats_bound]
    errors = [abs(math.log(p.expected / p.measured)) for p in found if p.quantity.startswith("tpot")]
    assert math.exp(statistics.median(errors)) < 1.3
