"""The programs of an architecture: embedding, each kind of block, head, as ops on named-axis arrays.

Axes: B sequences, T query positions, S key positions, D d_model, F d_ff, K KV heads, G query heads of one KV head,
H head size, V vocabulary.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from rooftop.arrays import Array, Op, Program
from rooftop.transformer._architecture import Architecture


@dataclass(frozen=True, slots=True)
class Block:
    """One kind of layer and how often it occurs."""

    program: Program
    count: int
    window: int = 0


@dataclass(frozen=True, slots=True)
class Programs:
    """A whole model."""

    embed: Program
    blocks: tuple[Block, ...]
    head: Program

    @property
    def every(self) -> tuple[tuple[Program, int], ...]:
        """All programs, with how often each runs for one batch."""
        return ((self.embed, 1), *((b.program, b.count) for b in self.blocks), (self.head, 1))


@functools.lru_cache(maxsize=128)
def programs(arch: Architecture, seq: int) -> Programs:
    """The programs at a sequence length."""
    kinds: dict[int, int] = {}
    for window in arch.windows or (0,) * arch.layers:
        effective = window if 0 < window < seq else 0
        kinds[effective] = kinds.get(effective, 0) + 1
    blocks = tuple(
        Block(
            _block(arch, seq, window, "block" if len(kinds) == 1 else ("local" if window else "global")), count, window
        )
        for window, count in kinds.items()
    )
    return Programs(_embed(arch, seq), blocks, _head(arch, seq))


def attended(seq: int, window: int = 0) -> float:
    """The part of all seq x seq points that causal attention with a window computes: exactly T(T+1)/2 without one."""
    if 0 < window < seq:
        return (window * (window + 1) / 2 + (seq - window) * window) / seq**2
    return (seq + 1) / (2 * seq)


class _Builder:
    """Collects arrays and ops."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.ops: list[Op] = []

    def array(self, name: str, *axes: str, role: str = "activation", layout: str = "inner", dtype: str = "bf16") -> str:
        self.arrays.append(Array(name, axes, dtype, role, layout))
        return name

    def weight(self, name: str, *axes: str) -> str:
        return self.array(name, *axes, role="weight", layout="weight")

    def residual(self, name: str) -> str:
        return self.array(name, "B", "T", "D", layout="residual")

    def einsum(
        self,
        name: str,
        inputs: tuple[str, ...],
        output: str,
        part: str,
        *,
        fused: str | None = None,
        fraction: float = 1.0,
    ) -> str:
        self.ops.append(Op(name, "einsum", inputs, output, fused=fused, fraction=fraction, part=part))
        return output

    def map(
        self,
        name: str,
        inputs: tuple[str, ...],
        output: str,
        part: str,
        flops: float,
        *,
        fused: str | None = None,
        linear: bool = False,
    ) -> str:
        self.ops.append(Op(name, "map", inputs, output, flops=flops, fused=fused, part=part, linear=linear))
        return output

    def norm(self, arch: Architecture, name: str, x: str, output: str, part: str = "norm") -> str:
        weights = [self.weight(name, "D")] + ([self.weight(f"{name}_bias", "D")] if arch.norm_weights == 2 else [])
        return self.map(name, (x, *weights), self.residual(output), part, 4.0)

    def program(self, name: str, **axes: int) -> Program:
        return Program(name, axes, tuple(self.arrays), tuple(self.ops))


def _embed(arch: Architecture, seq: int) -> Program:
    b = _Builder()
    b.array("tokens", "B", "T", role="input", dtype="int32")
    b.weight("embedding", "V", "D")
    x = b.residual("embedded" if arch.positions else "x")
    b.ops.append(Op("embedding", "lookup", ("embedding", "tokens"), x, part="embedding"))
    axes = {"T": seq, "D": arch.d_model, "V": arch.vocab}
    if arch.positions:
        b.array("places", "B", "T", role="input", dtype="int32")
        b.weight("position_embedding", "P", "D")
        place = b.residual("place")
        b.ops.append(Op("position_embedding", "lookup", ("position_embedding", "places"), place, part="embedding"))
        b.map("add_positions", (x, place), b.residual("x"), "embedding", 1.0, linear=True)
        axes["P"] = arch.positions
    return b.program("embed", **axes)


def _head(arch: Architecture, seq: int) -> Program:
    b = _Builder()
    x = b.array("x", "B", "T", "D", role="input", layout="residual")
    y = b.norm(arch, "final_norm", x, "normed", "head")
    table = b.weight("embedding" if arch.tied else "lm_head", "V", "D")
    logits = b.einsum("lm_head", (y, table), b.array("logits", "B", "T", "V", dtype="fp32"), "head")
    b.array("loss", "B", "T", dtype="fp32")
    b.ops.append(Op("loss", "loss", (logits,), "loss", flops=5.0, part="head"))
    return b.program("head", T=seq, D=arch.d_model, V=arch.vocab)


def _block(arch: Architecture, seq: int, window: int, name: str) -> Program:
    b = _Builder()
    x = b.array("x", "B", "T", "D", role="input", layout="residual")
    x = _attention(b, arch, x, attended(seq, window))
    _mlp(b, arch, x)
    return b.program(
        name, T=seq, S=seq, D=arch.d_model, F=arch.d_ff, K=arch.kv_heads, G=arch.heads // arch.kv_heads, H=arch.head_dim
    )


def _attention(b: _Builder, arch: Architecture, x: str, fraction: float) -> str:
    y = b.norm(arch, "attention_norm", x, "attention_in")
    q = b.einsum(
        "attention.q", (y, b.weight("w_q", "D", "K", "G", "H")), b.array("q0", "B", "T", "K", "G", "H"), "attention"
    )
    k = b.einsum("attention.k", (y, b.weight("w_k", "D", "K", "H")), b.array("k0", "B", "T", "K", "H"), "attention")
    v = b.einsum("attention.v", (y, b.weight("w_v", "D", "K", "H")), b.array("v0", "B", "T", "K", "H"), "attention")
    bias: dict[str, tuple[str, ...]] = {"q": (), "k": (), "v": ()}
    if arch.qkv_bias:
        bias = {
            "q": (b.weight("b_q", "K", "G", "H"),),
            "k": (b.weight("b_k", "K", "H"),),
            "v": (b.weight("b_v", "K", "H"),),
        }
    norm: dict[str, tuple[str, ...]] = {"q": (), "k": ()}
    if arch.qk_norm:
        norm = {"q": (b.weight("q_norm", "H"),), "k": (b.weight("k_norm", "H"),)}
    # a rotation needs no input again in its backward pass; a norm or a bias in the same map does
    plain = not (arch.qkv_bias or arch.qk_norm)
    q = b.map(
        "attention.rotate_q",
        (q, *bias["q"], *norm["q"]),
        b.array("q", "B", "T", "K", "G", "H"),
        "attention",
        3.0,
        linear=plain,
    )
    k = b.map(
        "attention.rotate_k",
        (k, *bias["k"], *norm["k"]),
        b.array("k", "B", "S", "K", "H"),
        "attention",
        3.0,
        linear=plain,
    )
    v = b.map(
        "attention.v_keys",
        (v, *bias["v"]),
        b.array("v", "B", "S", "K", "H"),
        "attention",
        1.0 if bias["v"] else 0.0,
        linear=True,
    )
    s = b.einsum(
        "attention.scores",
        (q, k),
        b.array("scores", "B", "K", "G", "T", "S"),
        "attention",
        fused="attention",
        fraction=fraction,
    )
    p = b.map(
        "attention.softmax", (s,), b.array("weights", "B", "K", "G", "T", "S"), "attention", 5.0, fused="attention"
    )
    o = b.einsum(
        "attention.values",
        (p, v),
        b.array("o", "B", "T", "K", "G", "H"),
        "attention",
        fused="attention",
        fraction=fraction,
    )
    out = b.einsum("attention.o", (o, b.weight("w_o", "K", "G", "H", "D")), b.residual("attention_out"), "attention")
    if arch.post_norms:
        out = b.norm(arch, "attention_post_norm", out, "attention_normed")
    extra = (b.weight("b_o", "D"),) if arch.out_bias else ()
    return b.map("attention.add", (x, out, *extra), b.residual("x1"), "norm", 1.0, linear=True)


def _mlp(b: _Builder, arch: Architecture, x: str) -> str:
    y = b.norm(arch, "mlp_norm", x, "mlp_in")
    up = b.einsum("mlp.up", (y, b.weight("w_up", "D", "F")), b.array("up", "B", "T", "F"), "mlp")
    inputs: tuple[str, ...] = (up,)
    if arch.gated:
        gate = b.einsum("mlp.gate", (y, b.weight("w_gate", "D", "F")), b.array("gate", "B", "T", "F"), "mlp")
        inputs = (gate, up)
    biases: tuple[str, ...] = ()
    if arch.mlp_bias:
        biases = (b.weight("b_up", "F"), *((b.weight("b_gate", "F"),) if arch.gated else ()))
    h = b.map("mlp.activation", (*inputs, *biases), b.array("h", "B", "T", "F"), "mlp", 4.0)
    out = b.einsum("mlp.down", (h, b.weight("w_down", "F", "D")), b.residual("mlp_out"), "mlp")
    if arch.post_norms:
        out = b.norm(arch, "mlp_post_norm", out, "mlp_normed")
    extra = (b.weight("b_down", "D"),) if arch.mlp_bias else ()
    return b.map("mlp.add", (x, out, *extra), b.residual("x_out"), "norm", 1.0, linear=True)
