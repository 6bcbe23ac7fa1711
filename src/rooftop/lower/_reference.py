"""A reference Transformer in plain JAX, made from the same programs of named-axis ops that the planner counts.

Weights are a dict of arrays, those of equal layers stacked. Every array is constrained to the sharding that the plan's layouts give
it; XLA finds the collectives. It trains: loss, gradients over microbatches, AdamW.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from rooftop.costing import BATCH
from rooftop.lower import _semantics as semantics
from rooftop.lower._attention import SAVED
from rooftop.lower._decoder import Decoder, Params
from rooftop.lower._pipeline import pipelined, shared_out
from rooftop.lower._runner import Runner
from rooftop.training import Choices, Recipe, layouts, remat
from rooftop.transformer import Architecture

_ADAM = (0.9, 0.95, 1e-8, 3e-4)


@dataclass(frozen=True)
class Reference:
    """One model under one plan's choices. mesh: None, or a jax.sharding.Mesh with the axes of `_mesh.AXES`.

    Layers lie on the stages of the mesh axis "pipeline" in equal shares. Raises InputError for models that are not lowered to JAX.
    """

    model: Architecture
    seq: int
    choices: Choices
    recipe: Recipe
    mesh: Any = None

    def __post_init__(self) -> None:
        _ = self.decoder  # refuses what it does not do

    @cached_property
    def decoder(self) -> Decoder:
        """The weights and the layers."""
        runner = Runner(layouts(self.choices).rules, self.recipe.compute, self.mesh)
        return Decoder(self.model, self.seq, runner, runner.ways.get("pipeline", 1))

    @cached_property
    def ends(self) -> Decoder:
        """The same, for embedding and head: what pipeline stages share out, sequences."""
        inner = self.decoder
        return Decoder(self.model, self.seq, shared_out(inner.runner), inner.stages)

    def shapes(self, dtype: str, kind: str = "weight") -> dict[str, dict[str, Any]]:
        """Abstract weights with their shardings (kind: weight, weight_use, gradient, optimizer)."""
        return self.decoder.shapes(dtype, kind)

    def specs(self, kind: str = "weight") -> dict[str, dict[str, Any]]:
        """The PartitionSpecs of all weights, by group and name."""
        return self.decoder.specs(kind)

    def initial(self, seed: int = 0) -> Params:
        """New weights, on the default device."""
        return self.decoder.initial(self.recipe.weights, seed)

    def logits(self, params: Params, tokens: Any) -> Any:
        """Logits [B, T, V] of tokens [B, T], without a pipeline."""
        x, _ = self.decoder.through(params, self.decoder.embedded(params, tokens), self._block)
        return self.decoder.head(params, x, targets=tokens)["logits"]

    def loss(self, params: Params, tokens: Any, targets: Any) -> Any:
        """Mean cross entropy of a microbatch: tokens and targets [B, T]; of microbatches [M, B, T] with pipeline stages."""
        stages = self.decoder.stages
        flat = (tokens, targets) if stages == 1 else (t.reshape(-1, self.seq) for t in (tokens, targets))
        text, aims = flat
        x = self.ends.embedded(params, text)
        if stages == 1:
            x, _ = self.decoder.through(params, x, self._block)
        else:
            x = pipelined(self.decoder, params, x.reshape(*tokens.shape, -1), self._block).reshape(*text.shape, -1)
        return self.ends.head(params, x, targets=aims)["loss"].mean()

    def _block(self, layer: int, weights: Mapping[str, Any], x: Any, _: Any = None) -> tuple[Any, tuple[()]]:
        program = self.decoder.program(layer)
        kept = list(remat(program, self.choices.remat).saved)
        kept += [SAVED for op in program.ops if op.fused is not None and op.output in kept]

        def call(weights: Mapping[str, Any], x: Any) -> Any:
            return self.decoder.runner.run(program, self.model.stack[layer], weights, {"x": x})["x_out"]

        policy = jax.checkpoint_policies.save_only_these_names(*kept)
        return jax.checkpoint(call, policy=policy, prevent_cse=False)(weights, x), ()

    # training

    def state(self) -> dict[str, Any]:
        """The abstract state of training: weights, both moments, and a master copy where the recipe has one."""
        result = {
            "weights": self.shapes(self.recipe.weights), "m": self.shapes(self.recipe.moments, "optimizer"),
            "v": self.shapes(self.recipe.moments, "optimizer"),
        }  # fmt: skip
        if self.recipe.master:
            result["master"] = self.shapes(self.recipe.master, "optimizer")
        return result

    def start(self, seed: int = 0) -> dict[str, Any]:
        """A new state of training, every array made where it lies."""
        shardings = jax.tree.map(lambda s: s.sharding, self.state())

        def made() -> dict[str, Any]:
            weights = self.initial(seed)
            zeros = jax.tree.map(lambda w: jnp.zeros(w.shape, semantics.DTYPES[self.recipe.moments]), weights)
            state = {"weights": weights, "m": zeros, "v": zeros}
            if self.recipe.master:
                state["master"] = jax.tree.map(lambda w: w.astype(semantics.DTYPES[self.recipe.master]), weights)
            return state

        return jax.jit(made, out_shardings=None if self.mesh is None else shardings)()  # type: ignore[no-any-return]

    def batch(self, microbatches: int, sequences: int) -> Any:
        """Abstract tokens [microbatches, B, T]."""
        of = PartitionSpec(None, tuple(a for a in BATCH if self.decoder.runner.ways.get(a, 1) > 1) or None)
        shape = (microbatches, sequences, self.seq)
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=self.decoder.runner.sharding(of))

    def gradients(self, weights: Params, tokens: Any, targets: Any) -> tuple[Any, Params]:
        """(loss, gradients) of a step: the mean over microbatches [microbatches, B, T].

        They are worked on one after the other; with pipeline stages, as many at a time as there are stages.
        """
        specs, constrain = self.specs("gradient"), self.decoder.runner.constrain
        kind = semantics.DTYPES[self.recipe.gradients]

        def one(tokens: Any, targets: Any) -> tuple[Any, Params]:
            loss, found = jax.value_and_grad(self.loss)(weights, tokens, targets)
            return loss, jax.tree.map(lambda g, of: constrain(g.astype(kind), of), found, specs)

        count = tokens.shape[0]
        if self.decoder.stages > 1:
            return one(tokens, targets)
        if count == 1:
            return one(tokens[0], targets[0])

        def body(carry: Any, part: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, carry, one(*part)), None

        zeros = jax.tree.map(lambda w, of: constrain(jnp.zeros(w.shape, kind), of), weights, specs)
        (loss, found), _ = jax.lax.scan(body, (jnp.zeros(()), zeros), (tokens, targets))
        return loss / count, jax.tree.map(lambda g: g / count, found)

    def step(self, state: dict[str, Any], tokens: Any, targets: Any) -> tuple[dict[str, Any], Any]:
        """One step of AdamW (no decay, no bias correction): (new state, loss)."""
        loss, found = self.gradients(state["weights"], tokens, targets)
        first, second, tiny, rate = _ADAM
        states, stored, constrain = self.specs("optimizer"), self.specs("weight"), self.decoder.runner.constrain

        def one(w: Any, m: Any, v: Any, g: Any, master: Any, of: Any, home: Any) -> tuple[Any, Any, Any, Any]:
            g = constrain(g, of).astype(jnp.float32)
            new_m = first * m.astype(jnp.float32) + (1 - first) * g
            new_v = second * v.astype(jnp.float32) + (1 - second) * jnp.square(g)
            base = constrain(w, of) if master is None else master
            new = base.astype(jnp.float32) - rate * new_m / (jnp.sqrt(new_v) + tiny)
            kept = None if master is None else new.astype(master.dtype)
            return constrain(new.astype(w.dtype), home), new_m.astype(m.dtype), new_v.astype(v.dtype), kept

        result: dict[str, Any] = {key: {} for key in state}
        for group, rows in state["weights"].items():
            for key in state:
                result[key][group] = {}
            for name, w in rows.items():
                master = state["master"][group][name] if "master" in state else None
                made = one(w, state["m"][group][name], state["v"][group][name], found[group][name], master,
                           states[group][name], stored[group][name])  # fmt: skip
                for key, value in zip(("weights", "m", "v", "master"), made, strict=True):
                    if value is not None:
                        result[key][group][name] = value
        return result, loss
