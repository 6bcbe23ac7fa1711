"""Encoders of images and sound beside a language model: counted, and named in the output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from rooftop.arrays import Program
from rooftop.transformer._builder import Builder
from rooftop.transformer._layers import Layer, Tower


def tower_programs(tower: Tower, layer_ops: Callable[[Builder, Layer, str, int], str]) -> Iterable[tuple[Program, int]]:
    """The programs of a tower, with how often each occurs: patches, each kind of layer, projections to the model."""
    b = Builder({"T": tower.tokens, "D": tower.d_model}, norm_weights=tower.norm_weights)
    patch = b.axis("Patch", tower.patch)
    x = b.input("patches", "B", "T", patch, layout="residual")
    x = b.einsum("patches", (x, b.weight("w_patch", patch, "D")), b.residual("patched"), tower.name)
    more = ((b.weight("b_patch", "D"),) if tower.patch_bias else ()) + (
        (b.weight("tower_positions", b.axis("P", tower.positions), "D"),) if tower.positions else ()
    )
    more += tuple(b.weight(f"tower_vector{i}", "D") for i in range(tower.vectors))
    more += tuple(
        name for i in range(tower.norms_at_ends) for name in b.vectors(f"tower_norm{i}", tower.norm_weights, "D")
    )
    b.map("positions", (x, *more), b.residual("x"), tower.name, 5.0)
    yield b.program(f"{tower.name} patches"), 1
    counts = Counter(tower.stack)
    for i, (layer, count) in enumerate(counts.items()):
        b = Builder({"T": tower.tokens, "S": tower.tokens, "D": tower.d_model}, norm_weights=tower.norm_weights)
        layer_ops(b, layer, b.input("x", "B", "T", "D", layout="residual"), tower.tokens)
        yield b.program(f"{tower.name} layer {i + 1}" if len(counts) > 1 else f"{tower.name} layer"), count
    for p in tower.projections:
        b = Builder({"T": tower.tokens}, norm_weights=tower.norm_weights)
        rows, out = b.axis("I", p.inputs), b.axis("O", p.outputs)
        x = b.input("x", "B", "T", rows, layout="residual")
        more = (b.weight("b", out),) if p.bias else ()
        if p.norm:
            n = b.axis("Norm", p.norm)
            more += b.vectors("norm", p.norm_weights or tower.norm_weights, n)
        y = b.einsum("project", (x, b.weight("w", rows, out)), b.array("y0", "B", "T", out), tower.name)
        b.map("activate", (y, *more), b.array("y", "B", "T", out), tower.name, 4.0)
        yield b.program(f"{tower.name} {p.name}"), p.count
