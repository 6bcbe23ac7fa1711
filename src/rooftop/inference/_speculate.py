"""Speculative decoding: how many tokens a step yields."""

from __future__ import annotations

from rooftop.formula import Number, formula, total


@formula("tokens_per_step", "tokens", "Leviathan et al., 2023, equation 1: (1 - a^(k+1)) / (1 - a) = 1 + a + ... + a^k")
def tokens_per_step(acceptance: Number, drafted: int) -> Number:
    """Tokens that a step yields when `drafted` tokens are proposed and each is accepted with probability `acceptance`."""
    return total((1.0, *(acceptance**k for k in range(1, drafted + 1)))) if drafted else 1.0
