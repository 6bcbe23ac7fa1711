"""What a Transformer is: the numbers that decide its arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from rooftop.errors import InputError


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder-only Transformer with dense layers.

    Sizes as the field names them: d_model is D, d_ff is F, `heads` query heads (N) share `kv_heads` (K), each of head_dim
    (H). norm_weights: vectors of d_model in one norm (1 for RMSNorm, 2 for LayerNorm). post_norms: norms after attention
    and after the MLP, too (Gemma 2 and 3). windows: for each layer its sliding window, 0 for full attention; empty for
    full attention everywhere. positions: learned position embeddings.
    """

    name: str
    layers: int
    d_model: int
    heads: int
    kv_heads: int
    head_dim: int
    d_ff: int
    vocab: int
    gated: bool = True
    tied: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norm_weights: int = 1
    post_norms: bool = False
    windows: tuple[int, ...] = ()
    positions: int = 0
    max_seq: int = 0
    source: str = ""
    date: str = ""
    published_parameters: int = 0
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, most in _LIMITS.items():
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise InputError(
                    f"{self.name or 'model'}: {name} = {value} is out of range; give a whole number from 1 to {most:,}",
                    field=name,
                )
        if self.heads % self.kv_heads:
            raise InputError(
                f"{self.name or 'model'}: {self.kv_heads} KV heads do not divide {self.heads} heads; give a divisor of"
                f" {self.heads}",
                field="kv_heads",
            )
        if self.windows and len(self.windows) != self.layers:
            raise InputError(
                f"{self.name}: {len(self.windows)} windows are given for {self.layers} layers; give one a layer",
                field="windows",
            )


_LIMITS = {
    "layers": 10_000, "d_model": 1_000_000, "heads": 100_000, "kv_heads": 100_000, "head_dim": 100_000,
    "d_ff": 10_000_000, "vocab": 100_000_000,
}  # fmt: skip
