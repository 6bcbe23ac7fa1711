"""How many tokens a model is worth: compute-optimal training after Hoffmann et al. (2022, "Chinchilla").

Two readings of that paper: the rule of 20 tokens for each parameter, and the fitted loss of its approach 3. Both are for dense
models; a mixture of experts counts the parameters that a token meets. Coefficients are from memory of the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rooftop.errors import InputError
from rooftop.formula import Number, formula
from rooftop.hardware import Slice, peak
from rooftop.shown import Shown
from rooftop.transformer import Architecture, parameters, training_flops_per_token

TOKENS_PER_PARAMETER = 20.0
#: L(N, D) = E + A / N^alpha + B / D^beta (Hoffmann et al., 2022, equation 10)
E, A, B, ALPHA, BETA = 1.69, 406.4, 410.7, 0.34, 0.28


@dataclass(frozen=True, slots=True)
class Optimum:
    """The model and the tokens of the lowest loss for a number of FLOPs, by one reading of the paper."""

    rule: str
    parameters: float
    tokens: float


@dataclass(frozen=True, slots=True)
class ComputeOptimal(Shown):
    """Optima by each reading of the paper. what: of which model or budget; flops_per_token: of training, exact, where a model is known."""

    what: str
    optima: tuple[Optimum, ...]
    flops_per_token: float | None = None


def optimal_for_model(model: Architecture, seq: int = 4096) -> ComputeOptimal:
    """Tokens for a model, by the parameters that a token meets. seq: tokens of a sequence, for exact FLOPs."""
    active = parameters(model).active
    what = f"{model.name}, by its {active / 1e9:.2f}B parameters that a token meets"
    return ComputeOptimal(what, tokens_for(float(active)), training_flops_per_token(model, seq))


def optimal_for_flops(flops: float) -> ComputeOptimal:
    """Model and tokens for a budget of FLOPs."""
    return ComputeOptimal(f"{flops:.3g} FLOPs", optimum_of(flops))


def optimal_for_chips(where: Slice, seconds: float, mfu: float, precision: str = "bf16") -> ComputeOptimal:
    """Model and tokens for a slice for so long at a utilisation of its peak in `precision`. Raises InputError for no utilisation."""
    if not 0 < mfu <= 1:
        raise InputError(f"mfu={mfu:g} is not a utilisation; give a number above 0, at most 1", field="mfu")
    flops = seconds * where.chips * peak(where.chip, precision) * mfu
    what = f"{where.name} for {seconds / 86400:g} days at an MFU of {mfu:.0%}: {flops:.3g} FLOPs"
    return ComputeOptimal(what, optimum_of(flops))


@formula("6ND", "FLOP", "book, section 4: 6 FLOPs for each parameter and token")
def six_nd(parameters: Number, tokens: Number) -> Number:
    """FLOPs of training without attention's own matmuls."""
    return 6 * parameters * tokens


@formula("loss", "nat/token", "Hoffmann et al., 2022, equation 10, coefficients of approach 3")
def loss(parameters: Number, tokens: Number) -> Number:
    """Loss of a dense model after some tokens, on the data of that paper."""
    return E + A / parameters**ALPHA + B / tokens**BETA


def chinchilla_tokens(model: Architecture) -> float:
    """Tokens for a model by the rule of 20 for each parameter that a token meets."""
    return TOKENS_PER_PARAMETER * parameters(model).active


def tokens_for(parameters: float) -> tuple[Optimum, Optimum]:
    """Tokens for which so many parameters are compute-optimal, by the rule and by approach 3."""
    # A alpha / N^alpha = B beta / D^beta where neither is worth more of the FLOPs than the other
    tokens = (B * BETA * parameters**ALPHA / (A * ALPHA)) ** (1 / BETA)
    return (
        Optimum("20 tokens per parameter", parameters, TOKENS_PER_PARAMETER * parameters),
        Optimum("approach 3", parameters, tokens),
    )


def optimum_of(flops: float) -> tuple[Optimum, Optimum]:
    """Parameters and tokens of the lowest loss for 6ND FLOPs, by the rule and by approach 3 (equation 4 of the paper)."""
    if not 0 < flops < 1e40:
        raise InputError(f"{flops:g} FLOPs are not a budget; give a number such as 1e24", field="flops")
    n = math.sqrt(flops / (6 * TOKENS_PER_PARAMETER))
    g = (ALPHA * A / (BETA * B)) ** (1 / (ALPHA + BETA))
    product = flops / 6
    return (
        Optimum("20 tokens per parameter", n, TOKENS_PER_PARAMETER * n),
        Optimum("approach 3", g * product ** (BETA / (ALPHA + BETA)), product ** (ALPHA / (ALPHA + BETA)) / g),
    )
