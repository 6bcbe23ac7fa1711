"""Failures of long runs: published rates, Daly's model against simulation, laws."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooftop.cli import run
from rooftop.errors import InputError
from rooftop.training import Failures, best_interval, failure_rate, goodput
from rooftop.training._failures import goodput_fraction


def test_published_rates() -> None:
    hours, source = failure_rate("llama-3")
    # 419 unexpected interruptions in 54 days: one about every three hours on 16,384 chips
    assert hours / 16384 == pytest.approx(3.09, abs=0.01)
    assert "419" in source
    assert failure_rate("50k")[0] == 50_000
    for text in ("lama-3", "-3", "0", "often"):
        with pytest.raises(InputError):
            failure_rate(text)


def test_llama_3_kept_above_ninety_percent() -> None:
    # the paper states over 90 % effective training time
    found = goodput(Failures(failure_rate("llama-3")[0], checkpoint_seconds=10, restart_seconds=600), 16384, 54 * 86400)
    assert found.fraction > 0.9
    assert found.failures == pytest.approx(419 / found.fraction, rel=0.01)


def test_the_model_is_that_of_a_simulation() -> None:
    m, tau, delta, restart = 10_000.0, 2_000.0, 100.0, 300.0
    random.seed(1)

    def lasts(work: float) -> float:
        """Time until `work` seconds go by without a failure, each failure costing what was done and a restart."""
        spent = 0.0
        while (failure := random.expovariate(1 / m)) < work:
            spent += failure
            if failure < work:
                # a restart can fail, too
                while (again := random.expovariate(1 / m)) < restart:
                    spent += again
                spent += restart
        return spent + work

    times = [lasts(tau + delta) for _ in range(40_000)]
    simulated = tau / (sum(times) / len(times))
    assert goodput_fraction(tau, delta, restart, m) == pytest.approx(simulated, rel=0.01)


@given(st.floats(1, 300), st.floats(0, 3000), st.floats(3_000, 1e7))
@settings(max_examples=60, deadline=None)
def test_no_interval_is_better_than_the_best(checkpoint: float, restart: float, m: float) -> None:
    best = best_interval(checkpoint, restart, m)
    top = goodput_fraction(best, checkpoint, restart, m)
    assert 0 < top < 1
    for other in (best / 2, best * 0.9, best * 1.1, best * 2):
        assert goodput_fraction(other, checkpoint, restart, m) <= top * (1 + 1e-9)
    if m > 100 * checkpoint:
        assert best == pytest.approx(math.sqrt(2 * checkpoint * m), rel=0.15)


def test_more_chips_fail_more_often() -> None:
    rate = Failures(50_000)
    fractions = [goodput(rate, chips, 1e6).fraction for chips in (64, 1024, 16384)]
    assert fractions == sorted(fractions, reverse=True)
    with pytest.raises(InputError, match="no interval"):
        goodput(Failures(1.0), 100_000, 1e6)


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "llama-3-8b", "--on", "h100:64", "--batch", "1M", "--tokens", "1T"]
    assert run([*words, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)["run"]
    assert plain["goodput"] is None
    assert plain["joules"] == pytest.approx(plain["seconds"] * 64 * 700)
    assert run([*words, "--failures", "opt-175b", "--checkpoint-every", "30min", "--json"]) == 0
    lossy = json.loads(capsys.readouterr().out)["run"]
    assert lossy["goodput"]["checkpoint_interval_seconds"] == 1800
    assert lossy["seconds"] == pytest.approx(plain["seconds"] / lossy["goodput"]["fraction"])
    assert run([*words, "--failures", "llama-3"]) == 0
    assert "goodput" in capsys.readouterr().out
    assert run([*words, "--failures", "sometimes"]) == 2
    assert "llama-3" in capsys.readouterr().err
