"""What a Transformer is: the numbers that decide its arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from rooftop.errors import InputError
from rooftop.transformer._layers import MLP, Attention, Beside, FeedForward, LatentAttention, Layer, Mixer, MoE, Tower


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model: an embedding, a stack of layers, a head; perhaps an encoder, towers for other senses, extra heads.

    norm_weights: vectors of d_model in one norm (1 for RMSNorm, 2 for LayerNorm, 0 without weights). positions: learned
    position vectors; token_types: learned vectors for kinds of tokens; per_layer_vocab: rows of a table with an embedding for
    each layer. embed_dim: width of the embedding if it is not
    d_model (a projection follows). embed_norm, final_norm: norms at the ends. head: "lm" (logits over the vocabulary), "pooler"
    (one dense layer, BERT), "none". extra_heads: layers that predict tokens further ahead (multi-token prediction);
    they are in the checkpoint, and not in the parameter count that names the model. formats: bits of a stored weight by
    part where the checkpoint is quantised. spare_rows: of the embedding, beyond the vocabulary.
    """

    name: str
    d_model: int
    vocab: int
    stack: tuple[Layer, ...] = field(repr=False)
    encoder: tuple[Layer, ...] = field(default=(), repr=False)
    tied: bool = False
    norm_weights: int = 1
    positions: int = 0
    token_types: int = 0
    embed_dim: int = 0
    embed_norm: bool = False
    per_layer_vocab: int = 0
    final_norm: bool = True
    head: str = "lm"
    head_bias: bool = False
    extra_heads: tuple[Layer, ...] = field(default=(), repr=False)
    extra_embeddings: bool = False
    towers: tuple[Tower, ...] = field(default=(), repr=False)
    quantization: str = ""
    formats: tuple[tuple[str, float], ...] = ()
    spare_rows: int = 0
    max_seq: int = 0
    family: str = ""
    source: str = ""
    date: str = ""
    published_parameters: float = 0
    published_active: float = 0
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warning: str = ""

    def __post_init__(self) -> None:
        for name, value in (("d_model", self.d_model), ("vocab", self.vocab)):
            limited(self.name, name, value)
        if not 1 <= len(self.stack) <= _LIMITS["layers"]:
            limited(self.name, "layers", len(self.stack))
        inside = (layer for tower in self.towers for layer in tower.stack)
        for layer in dict.fromkeys((*self.stack, *self.encoder, *self.extra_heads, *inside)):
            for part in (layer.mixer, layer.feed_forward, layer.cross):
                _check(self.name, part)

    @property
    def layers(self) -> int:
        """Layers of the stack that generates (of the decoder, where there is an encoder)."""
        return len(self.stack)

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """The token mixers of all layers that have one."""
        every = (layer.mixer for layer in self.stack if layer.mixer is not None)
        return tuple(one for mixer in every for one in (mixer.mixers if isinstance(mixer, Beside) else (mixer,)))

    @property
    def attention(self) -> Attention | None:
        """The first plain attention of the stack: what a short description names."""
        return next((m for m in self.mixers if isinstance(m, Attention)), None)

    @property
    def feed_forward(self) -> FeedForward | None:
        """The first feed-forward part of the stack."""
        return next((layer.feed_forward for layer in self.stack if layer.feed_forward is not None), None)

    @property
    def experts(self) -> MoE | None:
        """The first mixture of experts of the stack."""
        return next((layer.feed_forward for layer in self.stack if isinstance(layer.feed_forward, MoE)), None)

    @property
    def windows(self) -> tuple[int, ...]:
        """For each layer the tokens that its attention reaches back, 0 for all; empty where all layers see all."""
        found = tuple(
            (layer.mixer.window or layer.mixer.chunk) if isinstance(layer.mixer, Attention) else 0
            for layer in self.stack
        )
        return found if any(found) else ()


_LIMITS = {
    "layers": 10_000, "d_model": 1_000_000, "heads": 100_000, "kv_heads": 100_000, "head_dim": 100_000,
    "v_head_dim": 100_000, "d_ff": 10_000_000, "vocab": 100_000_000, "experts": 100_000, "active": 100_000,
}  # fmt: skip


def limited(model: str, field: str, value: int, least: int = 1) -> None:
    """Raise InputError for a size that no model has."""
    most = _LIMITS.get(field, 10_000_000)
    if not least <= value <= most:
        raise InputError(
            f"{model or 'model'}: {field} = {value} is out of range; give a whole number from {least} to {most:,}",
            field=field,
        )


def _check(model: str, part: object) -> None:
    if part is None:
        return
    optional = {"window", "chunk", "v_head_dim", "conv"}
    for name in ("heads", "kv_heads", "head_dim", "v_head_dim", "d_ff", "experts", "active"):
        if hasattr(part, name):
            limited(model, name, getattr(part, name), 0 if name in optional else 1)
    if isinstance(part, Attention) and part.heads % part.kv_heads:
        raise InputError(
            f"{model or 'model'}: {part.kv_heads} KV heads do not divide {part.heads} heads; give a divisor of"
            f" {part.heads}",
            field="kv_heads",
        )
    if isinstance(part, MoE) and part.active > part.experts:
        raise InputError(
            f"{model or 'model'}: a token cannot use {part.active} of {part.experts} experts; give at most"
            f" {part.experts}",
            field="active",
        )
    if isinstance(part, MoE) and part.dense is not None:
        _check(model, part.dense)


def absorbed(arch: Architecture) -> Architecture:
    """The same model with latent attention in its absorbed form: more FLOPs, and no keys and values of single heads."""
    return _changed(arch, lambda part: replace(part, absorbed=True) if isinstance(part, LatentAttention) else part)


def with_capacity(arch: Architecture, factor: float) -> Architecture:
    """The same model with another capacity factor: slots of each expert over its fair share of tokens.

    1 is an even load without dropped tokens; a load whose fullest expert gets `factor` times the mean needs as much.
    """
    if not 0 < factor <= 1000:
        raise InputError(
            f"a capacity factor of {factor:g}; give a number above 0, such as 1.25", field="capacity_factor"
        )
    if arch.experts is None:
        raise InputError(
            f"{arch.name} has no experts that a capacity factor could be of; leave it out", field="capacity_factor"
        )
    return _changed(arch, lambda part: replace(part, capacity_factor=factor) if isinstance(part, MoE) else part)


def with_vocabulary(arch: Architecture, multiple: int) -> Architecture:
    """The same model with its vocabulary padded up to a multiple, so that it can be split evenly."""
    limited(arch.name, "multiple", multiple)
    return replace(arch, vocab=-(-arch.vocab // multiple) * multiple)


def _changed(arch: Architecture, change: Callable[[Any], Any]) -> Architecture:
    def layers(stack: tuple[Layer, ...]) -> tuple[Layer, ...]:
        return tuple(
            replace(layer, mixer=change(layer.mixer), feed_forward=change(layer.feed_forward)) for layer in stack
        )

    return replace(arch, stack=layers(arch.stack), extra_heads=layers(arch.extra_heads))


def uniform(
    layers: int, heads: int, kv_heads: int, head_dim: int, d_ff: int, *, gated: bool = True, bias: str = "",
    mlp_bias: bool = False, qk_norm: str = "", norms: str = "pre", windows: tuple[int, ...] = (), parallel: str = "",
    moe: MoE | None = None,
) -> tuple[Layer, ...]:  # fmt: skip
    """A stack of dense layers that differ in their windows only (or of mixture-of-experts layers)."""
    if not 1 <= layers <= _LIMITS["layers"]:
        limited("", "layers", layers)
    if windows and len(windows) != layers:
        raise InputError(f"{len(windows)} windows are given for {layers} layers; give one a layer", field="windows")
    return tuple(
        Layer(
            Attention(heads, kv_heads, head_dim, window=window, bias=bias, qk_norm=qk_norm),
            moe or MLP(d_ff, gated, mlp_bias),
            norms=norms,
            parallel=parallel,
        )
        for window in (windows or (0,) * layers)
    )
