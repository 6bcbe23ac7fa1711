"""A served model in plain JAX: prompts are read, tokens generated one after the other, caches sharded as a layout of serving has them.

The programs are those that `inference` counts: while a token is generated its layers' caches are arrays of the program. A cache has
a slot for each position up to a capacity, or as many as a window needs, in a ring.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from rooftop.arrays import Array, Program, Rules
from rooftop.errors import InputError
from rooftop.inference import Layout, layouts
from rooftop.lower import _semantics as semantics
from rooftop.lower._decoder import Decoder, Params
from rooftop.lower._mesh import spec
from rooftop.lower._runner import Runner
from rooftop.transformer import Architecture, Programs, generation, prefill

Caches = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Serving:
    """One model under one layout of serving.

    capacity: positions that a cache holds. tokens: of each sequence in a step (more than one to verify a draft). compute: dtype of
    matmuls, caches and weights. mesh: None, or a jax.sharding.Mesh with the axes of `_mesh.AXES`.
    Raises InputError for models that are not lowered to JAX.
    """

    model: Architecture
    capacity: int
    layout: Layout = field(default_factory=Layout)
    tokens: int = 1
    compute: str = "bf16"
    mesh: Any = None

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= self.capacity:
            raise InputError(
                f"{self.tokens} tokens in a step do not go into a cache of {self.capacity} positions; give 1 to as many",
                field="tokens",
            )
        _ = self.decoder, self._kept  # refuse what they do not do

    @cached_property
    def steps(self) -> Programs:
        """The programs of a step: caches as long as they get."""
        return generation(self.model, self.capacity - self.tokens + 1, self.tokens)

    def _runner(self, phase: str) -> Runner:
        latent = not any("K" in c.axes for b in self.steps.blocks for c in b.caches)
        rules: Rules = layouts(self.layout, phase, latent=latent)
        return Runner(rules, self.compute, self.mesh)

    @cached_property
    def decoder(self) -> Decoder:
        """The weights, and the layers of a step."""
        return Decoder(self.model, self.capacity, self._runner("generate"))

    @cached_property
    def _kept(self) -> dict[str, dict[str, Array]]:
        """The caches of each group of layers."""
        found: dict[str, dict[str, Array]] = {}
        for r, (unit, _) in enumerate(self.decoder.runs):
            for i, layer in enumerate(unit):
                program = self.decoder.program(layer, self.steps)
                kept = [a for a in program.arrays if a.role == "cache"]
                odd = next((a.name for a in kept if "S" not in a.axes or f"{a.name}_new" not in _names(program)), None)
                if odd is not None:
                    raise InputError(
                        f"{self.model.name} keeps {odd}, which is not lowered to JAX: caches of keys and values are, so far",
                        field="model",
                    )
                found[f"layers{r}.{i}"] = {a.name: a for a in kept}
        return found

    # weights and caches

    def shapes(self) -> dict[str, dict[str, Any]]:
        """Abstract weights with their shardings; they are those of training."""
        return self.decoder.shapes(self.compute)

    def caches(self, batch: int) -> Caches:
        """Abstract caches of a batch of sequences with their shardings, those of equal layers stacked."""
        runner = self.decoder.runner
        result: Caches = {}
        for r, (unit, repeats) in enumerate(self.decoder.runs):
            for i, layer in enumerate(unit):
                group = f"layers{r}.{i}"
                axes = {**self.decoder.program(layer, self.steps).axes, "B": batch}
                result[group] = {
                    name: jax.ShapeDtypeStruct(
                        (repeats, *(int(axes[a]) for a in array.axes)),  # type: ignore[arg-type]
                        semantics.kind_of(array, self.compute),
                        sharding=runner.sharding(spec(runner.split(array), runner.ways, (None,))),
                    )
                    for name, array in self._kept[group].items()
                }
        return result

    # the two phases

    def prefill(self, params: Params, prompts: Any, lengths: Any) -> tuple[Any, Caches]:
        """Read prompts [B, T], of which lengths [B] count: (logits [B, V] of the token after each, its caches)."""
        count = prompts.shape[1]
        if count > self.capacity:
            raise InputError(
                f"prompts of {count} tokens do not go into a cache of {self.capacity} positions; shorten them, or give more",
                field="capacity",
            )
        parts, runner = prefill(self.model, count), self._runner("prefill")
        reader = Decoder(self.model, self.capacity, runner)
        home, last = self.caches(prompts.shape[0]), jnp.maximum(lengths, 1)[:, None] - 1

        def block(layer: int, weights: Mapping[str, Any], x: Any, like: Mapping[str, Any]) -> tuple[Any, Any]:
            made = runner.run(self.decoder.program(layer, parts), self.model.stack[layer], weights, {"x": x})
            return made["x_out"], {name: self._stored(made[name], last, slot) for name, slot in like.items()}

        # what a block is given beside x says how many slots its caches have, in arrays of no size
        sizes = {g: {n: jnp.zeros((s.shape[0], s.shape[2], 0)) for n, s in rows.items()} for g, rows in home.items()}
        x, made = reader.through(params, reader.embedded(params, prompts, parts), block, sizes)
        x = jnp.take_along_axis(x, last[:, :, None], 1)
        logits = reader.head(params, x, parts)["logits"]
        caches = jax.tree.map(lambda a, like: self._homed(a, like), made, home)
        return logits[:, 0], caches

    def _stored(self, entries: Any, last: Any, slot: Any) -> Any:
        """Entries [B, T, ..] of a prompt as a cache whose last position is `last` [B, 1]."""
        which = semantics.held_positions(last, slot.shape[0])
        return semantics.chosen(entries, which, jnp.zeros((), entries.dtype))

    def _homed(self, cache: Any, like: Any) -> Any:
        cache = cache.astype(like.dtype)
        return cache if like.sharding is None else jax.lax.with_sharding_constraint(cache, like.sharding)

    def generate(self, params: Params, caches: Caches, tokens: Any, positions: Any) -> tuple[Any, Caches]:
        """A step: tokens [B, tokens], the first of each sequence at its position [B], counted from 0.

        Returns logits [B, tokens, V] of what comes after each, and the caches with these tokens in them.
        """
        places = positions[:, None] + jnp.arange(self.tokens)[None]
        runner = self.decoder.runner

        def block(layer: int, weights: Mapping[str, Any], x: Any, kept: Mapping[str, Any]) -> tuple[Any, Any]:
            program = self.decoder.program(layer, self.steps)
            made = runner.run(program, self.model.stack[layer], weights, {"x": x, "positions": places, **kept})
            return made["x_out"], {name: made[name] for name in kept}

        x = self.decoder.embedded(params, tokens, self.steps)
        x, made = self.decoder.through(params, x, block, caches)
        return self.decoder.head(params, x, self.steps)["logits"], made

    def answer(self, params: Params, prompts: Any, lengths: Any, count: int) -> Any:
        """The most likely `count` tokens after each prompt, one after the other: [B, count]."""
        if self.tokens != 1:
            raise InputError(f"tokens={self.tokens} in a step verify a draft; generate with tokens=1", field="tokens")
        if prompts.shape[1] + count - 1 > self.capacity:
            raise InputError(
                f"prompts of {prompts.shape[1]} tokens and {count} more do not go into a cache of {self.capacity} positions",
                field="capacity",
            )
        logits, caches = self.prefill(params, prompts, lengths)

        def step(carry: Any, i: Any) -> tuple[Any, Any]:
            token, caches = carry
            logits, caches = self.generate(params, caches, token[:, None], lengths + i)
            return (logits[:, 0].argmax(-1), caches), token

        first = logits.argmax(-1)
        (final, _), found = jax.lax.scan(step, (first, caches), jnp.arange(count - 1))
        return jnp.concatenate([found.T, final[:, None]], 1)


def _names(program: Program) -> set[str]:
    return {a.name for a in program.arrays}
