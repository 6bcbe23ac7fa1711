"""How many tokens a model is worth: compute-optimal training after Hoffmann et al. (2022, "Chinchilla").

Two readings of that paper: the rule of 20 tokens for each parameter, and the fitted loss of its approach 3. Both are for dense
models; a mixture of experts counts the parameters that a token meets. Coefficients are from memory of the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rooftop.errors import InputError
from rooftop.formula import Number, formula
from rooftop.transformer import Architecture, parameters

TOKENS_PER_PARAMETER = 20.0
#: L(N, D) = E + A / N^alpha + B / D^beta (Hoffmann et al., 2022, equation 10)
E, A, B, ALPHA, BETA = 1.69, 406.4, 410.7, 0.34, 0.28


@dataclass(frozen=True, slots=True)
class Optimum:
    """The model and the tokens of the lowest loss for a number of FLOPs, by one reading of the paper."""

    rule: str
    parameters: float
    tokens: float


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
