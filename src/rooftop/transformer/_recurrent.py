"""Token mixers with a state of fixed size: gated delta rule, Mamba-2, Mamba. The recurrence is one op of kind "scan".

A recurrence needs all earlier tokens: what goes into it and comes out has a layout of its own, "scan" (or "scan_groups"),
where the sequence is whole and channels or heads are split. All-to-alls follow from that where the sequence is split.
"""

from __future__ import annotations

from rooftop.transformer._builder import Builder, Cache
from rooftop.transformer._layers import DeltaNet, LinearAttention, Mamba1, Mamba2, ShortConvolution

PART = "recurrence"


def delta_net(b: Builder, spec: DeltaNet, y: str) -> str:
    """Gated delta rule on y[B, T, D]. Axes: K key heads, G value heads of one, H key size, Hv value size.

    FLOPs of the scan for each output element, in its chunked form (Yang et al., 2024, section 3.3): three products with
    the state (6 H), and inside a chunk of C tokens those of keys and queries with keys, of the inverse with keys and
    values, and of scores with values, each over half of C.
    """
    k, g = b.axis("K", spec.heads), b.axis("G", spec.v_heads // spec.heads)
    h, hv = b.axis("H", spec.head_dim), b.axis("Hv", spec.v_head_dim)
    q = _convolved(b, "q", y, (k, h), spec.conv)
    keys = _convolved(b, "k", y, (k, h), spec.conv)
    v = _convolved(b, "v", y, (k, g, hv), spec.conv)
    beta = b.matmul("recurrence.beta", y, b.weight("w_beta", "D", k, g), "beta", (k, g), PART)
    log = b.weight("a_log", k, g)
    if spec.decay == "channel":
        low = b.axis("Q", spec.head_dim)
        f0 = b.matmul("recurrence.decay_down", y, b.weight("w_decay_down", "D", low), "decay_low", (low,), PART)
        w = b.weight("w_decay", low, k, g, h)
        decay = b.matmul("recurrence.decay", f0, w, "decay", (k, g, h), PART, "scan")
        bias = b.weight("decay_bias", k, g, h)
    else:
        decay = b.matmul("recurrence.decay", y, b.weight("w_decay", "D", k, g), "decay", (k, g), PART)
        bias = b.weight("decay_bias", k, g)
    chunk, key, value = spec.chunk, spec.head_dim, spec.v_head_dim
    flops = 6.0 * key
    if not b.context:
        flops += chunk / 2 * (4 * key + 2 * (key + value) + 2 * value) / value
    inputs = (keys, v, beta, decay, log, bias)
    state = b.state("recurrence.state", inputs, (k, g, h, hv), PART, 4.0)
    o = _scan(b, (q, *inputs, *state), b.array("o", "B", "T", k, g, hv, layout="scan"), flops)
    if spec.gate_rank:
        rank = b.axis("Qg", spec.gate_rank)
        z0 = b.matmul("recurrence.gate_down", y, b.weight("w_z_down", "D", rank), "z_low", (rank,), PART)
        z = b.matmul("recurrence.gate", z0, b.weight("w_z", rank, k, g, hv), "z", (k, g, hv), PART)
    else:
        z = b.matmul("recurrence.gate", y, b.weight("w_z", "D", k, g, hv), "z", (k, g, hv), PART)
    gated = b.map(
        "recurrence.norm", (o, z, b.weight("recurrence_norm_o", hv)), b.array("o_gated", "B", "T", k, g, hv), PART, 8.0
    )
    b.caches += [
        Cache("q conv", (k, h, _taps(b, spec.conv)), fixed=True), Cache("k conv", (k, h, "taps"), fixed=True),
        Cache("v conv", (k, g, hv, "taps"), fixed=True),
    ]  # fmt: skip
    return b.einsum("recurrence.o", (gated, b.weight("w_o", k, g, hv, "D")), b.residual("recurrence_out"), PART)


def _convolved(
    b: Builder, name: str, y: str, axes: tuple[str, ...], width: int, bias: bool = False, source_bias: bool = False,
    layout: str = "scan",
) -> str:  # fmt: skip
    """A projection, then a short convolution along the sequence for each channel, then an activation."""
    x = b.matmul(f"recurrence.{name}", y, b.weight(f"w_{name}", "D", *axes), f"{name}0", axes, PART)
    more: tuple[str, ...] = (b.weight(f"b_{name}", *axes),) if source_bias else ()
    if width:
        more += (b.weight(f"conv_{name}", *axes, b.axis("conv", width)),)
        more += (b.weight(f"conv_{name}_bias", *axes),) if bias else ()
    made = b.array(name, "B", "T", *axes, layout=layout)
    return b.map(f"recurrence.conv_{name}", (x, *more), made, PART, 2.0 * width + 4)


def _scan(b: Builder, inputs: tuple[str, ...], output: str, flops: float) -> str:
    """The recurrence along T; while a token is generated, one step of it in the kernel that updates the state."""
    fused = "recurrence" if b.context else None
    return b.op("recurrence.scan", "scan", inputs, output, PART, flops, fused)


def _taps(b: Builder, width: int) -> str:
    return b.axis("taps", max(1, width - 1))


def mamba2(b: Builder, spec: Mamba2, y: str) -> str:
    """State-space layer of Mamba-2. Axes: K groups, G heads of one, H head size, N state.

    FLOPs of the scan for each output element, in the chunked form (Dao and Gu, 2024, section 6): state in and out (4 N),
    and inside a chunk of C tokens scores with values (C) and, shared by a group's heads, C with B (N C / (G H)).
    """
    k, g, h, n = (
        b.axis("K", spec.groups), b.axis("G", spec.heads // spec.groups), b.axis("H", spec.head_dim), b.axis("N", spec.state),
    )  # fmt: skip
    layout = "scan_groups"  # there may be fewer groups than ways
    z = b.matmul("recurrence.z", y, b.weight("w_z", "D", k, g, h), "z", (k, g, h), PART)
    u = _convolved(b, "u", y, (k, g, h), spec.conv, spec.conv_bias, spec.bias, layout)
    state_in = _convolved(b, "b", y, (k, n), spec.conv, spec.conv_bias, spec.bias, layout)
    state_out = _convolved(b, "c", y, (k, n), spec.conv, spec.conv_bias, spec.bias, layout)
    dt = b.matmul("recurrence.dt", y, b.weight("w_dt", "D", k, g), "dt", (k, g), PART)
    more = tuple(b.weight(name, k, g) for name in ("a_log", "skip", "dt_bias"))
    group = spec.heads // spec.groups * spec.head_dim
    flops = 4.0 * spec.state
    if not b.context:
        flops += spec.chunk * (1 + spec.state / group)
    state = b.state("recurrence.state", (u, state_in, dt, *more), (k, g, h, n), PART, 3.0)
    o = _scan(b, (u, state_in, state_out, dt, *more, *state), b.array("o", "B", "T", k, g, h, layout=layout), flops)
    gate = (b.weight("b_z", k, g, h), b.weight("b_dt", k, g)) if spec.bias else ()
    gated = b.map(
        "recurrence.norm", (o, z, *((b.weight("recurrence_norm_o", k, g, h),) if spec.norm else ()), *gate),
        b.array("o_gated", "B", "T", k, g, h), PART, 8.0,
    )  # fmt: skip
    taps = _taps(b, spec.conv)
    b.caches += [
         Cache("u conv", (k, g, h, taps), fixed=True),
        Cache("b conv", (k, n, taps), fixed=True), Cache("c conv", (k, n, taps), fixed=True),
    ]  # fmt: skip
    if spec.bias:
        b.late_bias("b_o", "D")
    return b.einsum("recurrence.o", (gated, b.weight("w_o", k, g, h, "D")), b.residual("recurrence_out"), PART)


def mamba1(b: Builder, spec: Mamba1, y: str) -> str:
    """Selective state-space layer of Mamba. Axes: Fm channels, N state, Q rank of the step size.

    The scan takes 6 N operations for each output element: decay, input, sum, output (Gu and Dao, 2023, appendix D).
    """
    f, n, rank = b.axis("Fm", spec.inner), b.axis("N", spec.state), b.axis("Q", spec.rank)
    z = b.matmul("recurrence.z", y, b.weight("w_z", "D", f), "z", (f,), PART)
    # two products need all channels of a token, so that u changes its layout after them, for the scan
    u = _convolved(b, "u", y, (f,), spec.conv, spec.conv_bias, spec.bias, "inner")
    low = b.matmul("recurrence.dt_down", u, b.weight("w_dt_down", f, rank), "dt_low", (rank,), PART)
    both = (b.axis("two", 2), n)  # B and C, what enters the state and what reads it
    states = b.matmul("recurrence.bc", u, b.weight("w_bc", f, *both), "bc0", both, PART)
    if spec.norms:
        normed = b.array("dt_normed", "B", "T", rank)
        low = b.map("recurrence.dt_norm", (low, b.weight("dt_norm", rank)), normed, PART, 4.0)
        scaled = b.array("bc", "B", "T", *both)
        states = b.map("recurrence.bc_norm", (states, b.weight("bc_norm", *both)), scaled, PART, 4.0)
    dt = b.matmul("recurrence.dt", low, b.weight("w_dt", rank, f), "dt", (f,), PART, "scan")
    more = (b.weight("dt_bias", f), b.weight("a_log", f, n), b.weight("skip", f))
    state = b.state("recurrence.state", (u, states, dt, *more), (f, n), PART, 3.0)
    o = _scan(b, (u, states, dt, *more, *state), b.array("o", "B", "T", f, layout="scan"), 6.0 * spec.state)
    bias = (b.weight("b_z", f),) if spec.bias else ()
    gated = b.map("recurrence.gating", (o, z, *bias), b.array("o_gated", "B", "T", f), PART, 4.0)
    taps = _taps(b, spec.conv)
    b.caches += [Cache("u conv", (f, taps), fixed=True)]
    if spec.bias:
        b.late_bias("b_o", "D")
    return b.einsum("recurrence.o", (gated, b.weight("w_o", f, "D")), b.residual("recurrence_out"), PART)


def linear_attention(b: Builder, spec: LinearAttention, y: str) -> str:
    """Lightning attention on y[B, T, D] (MiniMax, 2025, section 2.2). Axes: K heads, H head size, Hv value size, as large.

    FLOPs of the scan for each output element, in chunks of C tokens: products of queries and of keys with the state (4 H),
    and inside a chunk queries with keys and scores with values, each over half of C.
    """
    k, h, hv = b.axis("K", spec.heads), b.axis("H", spec.head_dim), b.axis("Hv", spec.head_dim)
    q, keys, v = (_convolved(b, name, y, (k, size), 0) for name, size in (("q", h), ("k", h), ("v", hv)))
    flops = 4.0 * spec.head_dim if b.context else 4.0 * spec.head_dim + 2.0 * spec.chunk
    state = b.state("recurrence.state", (keys, v), (k, h, hv), PART, 3.0)
    o = _scan(b, (q, keys, v, *state), b.array("o", "B", "T", k, hv, layout="scan"), flops)
    z = b.matmul("recurrence.gate", y, b.weight("w_z", "D", k, hv), "z", (k, hv), PART)
    gated = b.map(
        "recurrence.norm", (o, z, b.weight("recurrence_norm_o", k, hv)), b.array("o_gated", "B", "T", k, hv), PART, 8.0
    )
    return b.einsum("recurrence.o", (gated, b.weight("w_o", k, hv, "D")), b.residual("recurrence_out"), PART)


def short_convolution(b: Builder, spec: ShortConvolution, y: str) -> str:
    """A gate, a convolution for each channel, a gate; projections around them. Axis: Fm channels."""
    f = b.axis("Fm", spec.width)
    into, through, out = (
        b.matmul(f"recurrence.{name}", y, b.weight(f"w_{name}", "D", f), f"{name}0", (f,), PART)
        for name in ("gate_in", "u", "gate_out")
    )
    biases = tuple(b.weight(name, f) for name in ("b_gate_in", "b_u", "conv_bias")) if spec.bias else ()
    taps = b.weight("conv_u", f, b.axis("conv", spec.taps))
    u = b.map("recurrence.conv_u", (into, through, taps, *biases), b.array("u", "B", "T", f), PART, 2.0 * spec.taps + 1)
    more = (b.weight("b_gate_out", f),) if spec.bias else ()
    gated = b.map("recurrence.gating", (out, u, *more), b.array("o_gated", "B", "T", f), PART, 1.0)
    b.caches += [Cache("u conv", (f, _taps(b, spec.taps)), fixed=True)]
    if spec.bias:
        b.late_bias("b_o", "D")
    return b.einsum("recurrence.o", (gated, b.weight("w_o", f, "D")), b.residual("recurrence_out"), PART)
