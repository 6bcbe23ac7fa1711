"""Feed-forward parts as named-axis ops: one MLP, or a mixture of experts with what stands beside it."""

from __future__ import annotations

from rooftop.arrays import Size
from rooftop.transformer._builder import Builder
from rooftop.transformer._layers import MLP, MoE


def mlp(b: Builder, spec: MLP, y: str, name: str = "mlp", part: str = "mlp", axis: str = "F") -> str:
    """y[B, T, D] through two or three matrices; returns [B, T, D], with a late bias where there are biases."""
    sub = "" if name == "mlp" else f"{name}_"
    f = b.axis(axis, spec.d_ff)
    inputs: tuple[str, ...] = (b.matmul(f"{name}.up", y, b.weight(f"{sub}w_up", "D", f), f"{sub}up", (f,), part),)
    biases: tuple[str, ...] = (b.weight(f"{sub}b_up", f),) if spec.bias else ()
    if spec.gated:
        gate = b.matmul(f"{name}.gate", y, b.weight(f"{sub}w_gate", "D", f), f"{sub}gate", (f,), part)
        inputs = (gate, *inputs)
        biases += (b.weight(f"{sub}b_gate", f),) if spec.bias else ()
    if spec.scalars:
        biases += (b.weight(f"{sub}activation_scalars", b.axis("scalars", spec.scalars)),)
    h = b.map(f"{name}.activation", (*inputs, *biases), b.array(f"{sub}h", "B", "T", f), part, 4.0)
    if spec.bias:
        b.late_bias(f"{sub}b_down", "D")
    return b.einsum(f"{name}.down", (h, b.weight(f"{sub}w_down", f, "D")), b.residual(f"{name}_out"), part)


def moe(b: Builder, spec: MoE, x: str, y: str) -> str:
    """y[B, T, D], the norm of x, through the experts that its tokens are routed to, and through what all tokens meet.

    Axes: X experts as the router sees them (never split), E experts, C slots of one expert, F their width, Fs the width
    of shared experts or of a dense part, Le the width of a projection that experts work in.

    C = active x capacity factor x B x T / E: every token is kept if the load is even; an uneven load is a capacity factor
    above 1. The router's weights enter with the activation, before the last matrix, which gives the same result and keeps
    nothing more for the backward pass.
    """
    routes = b.axis("X", spec.experts)
    seen = y
    if spec.router_inputs:
        scales = tuple(b.weight(f"router_input{i}", "D") for i in range(spec.router_inputs))
        seen = b.map("router.input", (x, *scales), b.residual("router_in"), "router", 4.0)
    w_router = b.weight("w_router", "D", routes)
    logits = b.matmul("router.logits", seen, w_router, "router_logits", (routes,), "router", layout="residual")
    vectors = tuple(b.weight(f"router_vector{i}", routes) for i in range(spec.router_weights))
    share = b.array("router_weights", "B", "T", routes, layout="residual")
    chosen = b.map("router.choose", (logits, *vectors), share, "router", 8.0)
    routed = b.norm("experts_norm", x, "experts_in", "experts") if spec.dense is not None else y
    outputs = [_experts(b, spec, routed, chosen)]
    if spec.dense is not None:
        dense = mlp(b, spec.dense, y, "dense", "mlp", "Fs")
        outputs = [
            b.norm("experts_post_norm", outputs[0], "experts_normed", "experts"),
            b.norm("dense_post_norm", dense, "dense_normed", "mlp"),
        ]
    if spec.shared_d_ff:
        outputs.append(_shared(b, spec, y))
    if len(outputs) == 1:
        return outputs[0]
    return b.map("experts.add", (*outputs, *b.biases()), b.residual("experts_all"), "experts", 1.0, linear=True)


def _experts(b: Builder, spec: MoE, y: str, chosen: str) -> str:
    """Tokens to their experts (dispatch), through them, and back (combine)."""
    e, f, d = b.axis("E", spec.experts), b.axis("F", spec.d_ff), "D"
    c = b.axis("C", Size.of(("B", "T"), coefficient=spec.active * spec.capacity_factor) / Size.of(("E",)))
    if spec.latent:
        d = b.axis("Le", spec.latent)
        w_in = b.weight("w_latent_in", "D", d)
        y = b.matmul("experts.into_latent", y, w_in, "latent", (d,), "experts", layout="residual")

    def expert(name: str, *axes: str) -> str:
        return b.array(name, *axes, layout="expert")

    def slots(name: str, *axes: str) -> str:
        return b.array(name, *axes, layout="slots")

    def weight(name: str, *axes: str) -> str:
        return b.weight(name, *axes, layout="expert_weight")

    taken = b.op("experts.dispatch", "route", (y, chosen), slots("expert_in", e, c, d), "experts", 1.0)
    share = b.op("experts.weights", "route", (chosen,), slots("expert_share", e, c), "experts", 1.0)
    inputs: tuple[str, ...] = (
        b.einsum("experts.up", (taken, weight("w_up", e, d, f)), expert("up", e, c, f), "experts"),
    )
    biases: tuple[str, ...] = (weight("b_up", e, f),) if spec.bias else ()
    if spec.gated:
        gate = b.einsum("experts.gate", (taken, weight("w_gate", e, d, f)), expert("gate", e, c, f), "experts")
        inputs = (gate, *inputs)
        biases += (weight("b_gate", e, f),) if spec.bias else ()
    h = b.map("experts.activation", (*inputs, share, *biases), expert("h", e, c, f), "experts", 5.0)
    made = b.einsum("experts.down", (h, weight("w_down", e, f, d)), slots("expert_out", e, c, d), "experts")
    if spec.bias:
        biased = slots("expert_biased", e, c, d)
        made = b.map("experts.bias", (made, weight("b_down", e, d)), biased, "experts", 1.0, linear=True)
    back = b.array("latent_out", "B", "T", d, layout="residual") if spec.latent else b.residual("experts_out")
    out = b.op("experts.combine", "route", (made,), back, "experts", 2.0 * spec.active)
    if not spec.latent:
        return out
    if spec.latent_norm:
        normed = b.array("latent_normed", "B", "T", d, layout="residual")
        out = b.map("experts.latent_norm", (out, b.weight("latent_norm", d)), normed, "experts", 4.0)
    return b.einsum(
        "experts.out_of_latent", (out, b.weight("w_latent_out", d, "D")), b.residual("experts_out"), "experts"
    )


def _shared(b: Builder, spec: MoE, y: str) -> str:
    """The experts that every token meets, as one MLP."""
    part = "shared_experts"
    out = mlp(b, MLP(spec.shared_d_ff, spec.gated, spec.bias), y, "shared", part, "Fs")
    if not spec.shared_gate:
        return out
    w = b.weight("w_shared_gate", "D", b.axis("one", 1))
    gate = b.matmul("shared.gate_all", y, w, "shared_gate_all", ("one",), part, layout="residual")
    return b.map("shared.gating", (out, gate, *b.biases()), b.residual("shared_gated"), part, 3.0)
