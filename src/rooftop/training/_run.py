"""A whole training run: how many steps, how long, how much money."""

from __future__ import annotations

from dataclasses import dataclass

from rooftop.formula import Number, formula
from rooftop.training._failures import Goodput


@formula("model FLOPs", "FLOP", "book, section 4: 6 FLOPs per parameter and token, attention on top")
def run_flops(flops_per_token: Number, tokens: Number) -> Number:
    """Useful FLOPs of a run: those of the model, without recomputation."""
    return flops_per_token * tokens


@formula("MFU", "", "Chowdhery et al., 2022, appendix B: model FLOPs over what the chips could do in the time")
def utilisation(flops_per_token: Number, tokens: Number, seconds: Number, chips: Number, peak: Number) -> Number:
    """Model FLOPs utilisation of a step of `tokens` tokens that takes `seconds` on `chips` of `peak` FLOP/s."""
    return flops_per_token * tokens / (seconds * chips * peak)


@formula("T_run", "s")
def run_seconds(tokens: Number, step_tokens: Number, step_seconds: Number) -> Number:
    """Seconds of a run of `tokens` tokens in steps of `step_tokens`."""
    return tokens / step_tokens * step_seconds


@formula("chip-hours", "h")
def chip_hours(seconds: Number, chips: Number) -> Number:
    """Hours of all chips together."""
    return seconds * chips / 3600


@formula("cost", "USD")
def cost(hours: Number, usd_per_hour: Number) -> Number:
    """Money for chip-hours at a price per chip-hour."""
    return hours * usd_per_hour


@formula("T_run", "s", "book, section 6: FLOPs over what the chips do at a utilisation")
def seconds_at(flops: Number, chips: Number, peak: Number, mfu: Number) -> Number:
    """Seconds of a run of `flops` on `chips` of `peak` FLOP/s at a model FLOPs utilisation."""
    return flops / (chips * peak * mfu)


@formula("checkpoints", "B", "book, section 4: what is kept of each layer for the backward pass")
def checkpoint_bytes(tokens: Number, layers: Number, width: Number, values: Number, bytes: Number) -> Number:
    """Bytes of `values` arrays [tokens, width] a layer, `bytes` an element."""
    return tokens * layers * width * values * bytes


@formula("P_max", "parameters", "book, section 5: weights and optimizer states on one chip, nothing else")
def largest_model(hbm_bytes: Number, weight_bytes: Number, optimizer_bytes: Number) -> Number:
    """Parameters that pure data parallelism can hold; bytes per parameter."""
    return hbm_bytes / (weight_bytes + optimizer_bytes)


@formula("energy", "J")
def energy(seconds: Number, chips: Number, watts: Number) -> Number:
    """Energy of the chips at their rated power (W); hosts, network and cooling come on top."""
    return seconds * chips * watts


@dataclass(frozen=True, slots=True)
class Run:
    """A whole run at the expected step time, stretched by failures where those were asked about.

    Idle chips of the slice are paid for as well. joules: of the chips alone.
    """

    tokens: float
    steps: float
    seconds: float
    chip_hours: float
    usd: float | None
    flops: float
    joules: float = 0.0
    six_nd: float = 0.0  # FLOPs by the rule of thumb, of the parameters that a token meets
    goodput: Goodput | None = None
