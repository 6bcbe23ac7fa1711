"""What a layer can be made of: token mixers (attention of every kind, recurrences) and feed-forward parts, as numbers.

A layer is a composition of these; `_program` turns it into named-axis ops, and nothing else knows the kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rooftop.transformer._builder import Builder


@dataclass(frozen=True, slots=True)
class Indexer:
    """Learned sparse attention: `heads` small heads of `head_dim` score all keys; each query keeps the `top` best.

    `block`: keys are kept in blocks of so many. `shared`: the choice of an earlier layer is used; no weights here.
    `from_input`: queries are made of the layer's input, not of the compressed query.
    """

    heads: int
    head_dim: int
    top: int
    block: int = 1
    shared: bool = False
    from_input: bool = False
    norm_weights: int = 2
    head_weights: bool = True


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention: `heads` query heads share `kv_heads` key-value heads of `head_dim` (values: `v_head_dim`).

    window: keys that a query sees, itself included; chunk: attention stays inside chunks of so many tokens; 0: no
    limit. bias: letters of the projections with biases ("qkvo"). qk_norm: "head" (one vector of head_dim) or "full" (one
    over all heads); qk_norm_weights vectors each. sinks: a learned logit a head. gate: the output is gated, by "full"
    (a channel each) or "head". values: "own" or "keys" (values are the keys). keys: "own", "shared" (of an earlier layer),
    "memory" (of the encoder). buckets: relative position biases, for each head.
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int = 0
    window: int = 0
    chunk: int = 0
    causal: bool = True
    bias: str = ""
    qk_norm: str = ""
    qk_norm_weights: int = 1
    sinks: bool = False
    gate: str = ""
    values: str = "own"
    keys: str = "own"
    buckets: int = 0
    indexer: Indexer | None = None


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2): keys and values are made from one compressed vector of `kv_rank`.

    Queries come from a vector of `q_rank` (0: straight from the input). Each head has `nope_dim` values without and
    `rope_dim` with rotation; the rotated key is shared by all heads. absorbed: queries are brought to the compressed
    vector and attend to it directly, instead of keys and values being made of it (what generation does).
    """

    heads: int
    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_head_dim: int
    gate: str = ""
    indexer: Indexer | None = None
    absorbed: bool = False


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """Attention of DeepSeek-V4: one key-value head, kept for a window of tokens, and for older ones one entry for each
    `ratio` tokens (0: none). Keys are values. Of the compressed entries a query sees all, or those an indexer picks.
    The output is projected in `groups` through `o_rank` each.
    """

    heads: int
    head_dim: int
    q_rank: int
    groups: int
    o_rank: int
    window: int
    ratio: int = 0
    indexer: Indexer | None = None


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Gated delta rule (Yang et al., 2024): a state of head_dim x v_head_dim for each value head.

    decay: "head" (one scalar a head: Gated DeltaNet) or "channel" (one a key channel: Kimi Delta Attention, through a
    matrix of rank head_dim). gate_rank: rank of the output gate, 0 for a full matrix.
    """

    heads: int
    v_heads: int
    head_dim: int
    v_head_dim: int
    conv: int = 4
    chunk: int = 64
    decay: str = "head"
    gate_rank: int = 0


@dataclass(frozen=True, slots=True)
class Mamba2:
    """State-space layer of Mamba-2 (Dao and Gu, 2024): `heads` of `head_dim`, `groups` that share B and C of `state`; norm: the gated
    output is normalised.
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    conv: int = 4
    chunk: int = 128
    conv_bias: bool = True
    bias: bool = False
    norm: bool = True


@dataclass(frozen=True, slots=True)
class Mamba1:
    """Selective state-space layer of Mamba (Gu and Dao, 2023). norms: on dt, B and C (Jamba)."""

    inner: int
    state: int
    rank: int
    conv: int = 4
    conv_bias: bool = True
    bias: bool = False
    norms: bool = False


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """A gated convolution of a few taps along the sequence (LFM2): two gates around it, as wide as the stream."""

    width: int
    taps: int = 3
    bias: bool = False


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """Linear attention with a fixed decay for each head (lightning attention, MiniMax-01): no softmax, a state of
    head_dim x head_dim for each head, an output gate, a norm over all heads.
    """

    heads: int
    head_dim: int
    chunk: int = 256


@dataclass(frozen=True, slots=True)
class Beside:
    """Several mixers on the same input, whose outputs are added (Falcon-H1)."""

    mixers: tuple[Mixer, ...]


@dataclass(frozen=True, slots=True)
class MLP:
    """Two matrices, or three when gated. scalars: learned numbers of the activation (xIELU)."""

    d_ff: int
    gated: bool = True
    bias: bool = False
    scalars: int = 0


@dataclass(frozen=True, slots=True)
class MoE:
    """`experts` MLPs of `d_ff`, of which each token uses `active`, and what every token meets beside them.

    shared_d_ff: width of all shared experts together; shared_gate: their output is gated by a learned scalar.
    dense: an MLP of the same layer in parallel, with norms of its own (Gemma 4). latent: experts work in a projection of
    the input to this width. router_weights: vectors of one number an expert beside the router's matrix (its bias, the
    correction that balances load, a scale); router_inputs: vectors of d_model that scale the router's input. table: a
    table token -> experts replaces the learned choice (DeepSeek-V4's first layers), its integers are no parameters.
    capacity_factor: slots of an expert over its fair share of tokens; 1 is dropless with even load.
    """

    experts: int
    active: int
    d_ff: int
    gated: bool = True
    bias: bool = False
    shared_d_ff: int = 0
    shared_gate: bool = False
    dense: MLP | None = None
    latent: int = 0
    latent_norm: bool = False
    router_weights: int = 0
    router_inputs: int = 0
    capacity_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Custom:
    """A part written by hand: `build(b, y, seq)` adds its ops to the builder and returns the name of its output [B, T, D].

    y[B, T, D] is the normed residual stream. It serves as a mixer and as a feed-forward part.
    """

    name: str
    build: Callable[[Builder, str, int], str]


Mixer = (
    Attention
    | LatentAttention
    | CompressedAttention
    | DeltaNet
    | Mamba2
    | Mamba1
    | ShortConvolution
    | LinearAttention
    | Beside
    | Custom
)
#: Mixers with a state of fixed size instead of a cache that grows.
Recurrence = DeltaNet | Mamba1 | Mamba2 | ShortConvolution | LinearAttention
FeedForward = MLP | MoE | Custom


@dataclass(frozen=True, slots=True)
class Layer:
    """A mixer, then a feed-forward part, each around the residual stream; either may be absent.

    norms: "pre", "post" (after each part), "after" (on the sum, as BERT has it), "both" (before and after each part) or
    "later" (before each part but the first), "sandwich" (before each part, and after experts). gains: what multiplies the output of each part: "one" learned number, a
    "vector" of them, "" nothing.
    parallel: "" one after the other, "one" both from one norm, "two" both from the same stream through a norm each.
    cross: attention to an encoder, between the two. streams: parallel residual streams that each part mixes
    (hyper-connections). look_back: each part attends over so many of the earlier layers' sums
    through a query and a norm of its own (attention residuals). per_layer: a token has an embedding of this width for each
    layer, which gates a projection at the layer's end (Gemma 3n and 4).
    """

    mixer: Mixer | None = None
    feed_forward: FeedForward | None = None
    cross: Attention | None = None
    norms: str = "pre"
    parallel: str = ""
    streams: int = 1
    gains: str = ""
    look_back: int = 0
    per_layer: int = 0


@dataclass(frozen=True, slots=True)
class Projection:
    """Matrices of a tower from `inputs` to `outputs` values a token, `per` tokens merged into one."""

    name: str
    inputs: int
    outputs: int
    bias: bool = True
    norm: int = 0
    norm_weights: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class Tower:
    """An encoder of images or sound beside the language model: patches of `patch` values, layers, projections.

    positions: learned position vectors. norms_at_ends: norms of d_model before and after the layers.
    """

    name: str
    d_model: int
    stack: tuple[Layer, ...]
    patch: int
    tokens: int
    patch_bias: bool = True
    positions: int = 0
    norm_weights: int = 2
    norms_at_ends: int = 0
    projections: tuple[Projection, ...] = ()
    vectors: int = 0
