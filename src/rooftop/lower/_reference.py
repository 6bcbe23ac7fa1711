"""A reference Transformer in plain JAX, made from the same programs of named-axis ops that the planner counts.

Weights are a dict of arrays, those of equal layers stacked. Every array is constrained to the sharding that the plan's layouts give
it; XLA finds the collectives. It trains: loss, gradients over microbatches, AdamW.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec

from rooftop.arrays import Array, Op, Program, fused_only, shard, weight_sharding
from rooftop.costing import BATCH, TENSOR
from rooftop.errors import InputError
from rooftop.lower import _semantics as semantics
from rooftop.lower._attention import SAVED, Mask, attention
from rooftop.lower._mesh import spec
from rooftop.training import Choices, Recipe, layouts, remat
from rooftop.transformer import Architecture, Attention, MoE, programs

Params = dict[str, dict[str, Any]]
_ADAM = (0.9, 0.95, 1e-8, 3e-4)


@dataclass(frozen=True)
class Reference:
    """One model under one plan's choices. mesh: None, or a jax.sharding.Mesh with the axes of `_mesh.AXES`."""

    model: Architecture
    seq: int
    choices: Choices
    recipe: Recipe
    mesh: Any = None

    def __post_init__(self) -> None:
        if self.model.encoder or self.model.stack[0].streams > 1 or self.model.embed_dim or self.model.positions:
            raise InputError(
                f"{self.model.name} is not lowered to JAX: decoders with one residual stream are, so far", field="model"
            )

    @cached_property
    def parts(self) -> Any:
        """The programs."""
        return programs(self.model, self.seq)

    @cached_property
    def runs(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """(kinds of blocks in a period, repeats) of the stack, so that repeats can be one loop."""
        order, start = self.parts.order, 0
        found: list[tuple[tuple[int, ...], int]] = []
        while start < len(order):
            best = ((order[start],), 1)
            for period in range(1, min(16, len(order) - start) + 1):
                unit = order[start : start + period]
                repeats = 1
                while order[start + repeats * period : start + (repeats + 1) * period] == unit:
                    repeats += 1
                if repeats > 1 and repeats * period > len(best[0]) * best[1]:
                    best = (unit, repeats)
            found.append(best)
            start += len(best[0]) * best[1]
        return tuple(found)

    @cached_property
    def rules(self) -> Any:
        """The sharding table."""
        return layouts(self.choices).rules

    @cached_property
    def ways(self) -> dict[str, int]:
        """Ways of the mesh axes."""
        return {} if self.mesh is None else {str(a): int(n) for a, n in self.mesh.shape.items()}

    # weights

    def groups(self) -> dict[str, tuple[Program, int]]:
        """(program, copies) by the name of each group of weights; 0 copies: not stacked."""
        named = {"embed": (self.parts.embed, 0), "head": (self.parts.head, 0)}
        for r, (unit, repeats) in enumerate(self.runs):
            for i, kind in enumerate(unit):
                named[f"layers{r}.{i}"] = (self.parts.blocks[kind].program, repeats)
        return named

    def weights(self) -> dict[str, dict[str, tuple[Array, tuple[int, ...], int]]]:
        """(array, shape, stacking axes in front) of every weight, by group and name; a tied head has none of its own."""
        result: dict[str, dict[str, tuple[Array, tuple[int, ...], int]]] = {}
        for group, (program, copies) in self.groups().items():
            rows = {}
            for w in program.weights:
                if group == "head" and w.name == "embedding":
                    continue
                sizes = tuple(int(program.axes[a]) for a in w.axes)  # type: ignore[arg-type]
                rows[w.name] = (w, (copies, *sizes) if copies else sizes, 1 if copies else 0)
            result[group] = rows
        return result

    def specs(self, kind: str) -> dict[str, dict[str, Any]]:
        """PartitionSpecs of all weights in one of their layouts: weight, weight_use, gradient, optimizer."""
        return {
            group: {
                name: spec(weight_sharding(w, self.rules, kind), self.ways, lead) for name, (w, _, lead) in rows.items()
            }
            for group, rows in self.weights().items()
        }

    def shapes(self, dtype: str, kind: str = "weight") -> dict[str, dict[str, Any]]:
        """Abstract weights (or states of the optimizer) with their shardings."""
        specs = self.specs(kind)
        return {
            group: {
                name: jax.ShapeDtypeStruct(shape, semantics.DTYPES[dtype], sharding=self._sharding(specs[group][name]))
                for name, (_, shape, _) in rows.items()
            }
            for group, rows in self.weights().items()
        }

    def initial(self, seed: int = 0) -> Params:
        """New weights: norms at one, biases at zero, matrices normal with the variance of their input."""
        key = jax.random.key(seed)
        result: Params = {}
        for group, rows in self.weights().items():
            result[group] = {}
            for name, (w, shape, lead) in rows.items():
                key, mine = jax.random.split(key)
                kind = semantics.DTYPES[self.recipe.weights]
                if len(w.axes) == 1 or w.name.endswith("norm"):
                    result[group][name] = (jnp.ones if "norm" in name and "bias" not in name else jnp.zeros)(
                        shape, kind
                    )
                    continue
                fan_in = math.prod(shape[lead:]) / max(shape[lead:][-1], 1)
                made = jax.random.normal(mine, shape, jnp.float32) * semantics.scale_of(fan_in)
                result[group][name] = made.astype(kind)
        return result

    def _sharding(self, of: Any) -> Any:
        return None if self.mesh is None else NamedSharding(self.mesh, of)

    def constrain(self, x: Any, of: Any) -> Any:
        """Keep an array in a sharding."""
        return x if self.mesh is None else jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, of))

    def placed(self, x: Any, there: Any, back: Any) -> Any:
        """An array in another sharding; its gradient comes back in the sharding `back`."""
        if self.mesh is None:
            return x

        move = jax.custom_vjp(lambda x: self.constrain(x, there))
        move.defvjp(lambda x: (self.constrain(x, there), None), lambda _, g: (self.constrain(g, back),))
        return move(x)

    # the model

    def loss(self, params: Params, tokens: Any, targets: Any) -> Any:
        """Mean cross entropy of a microbatch: tokens and targets [B, T]."""
        x = self.run(self.parts.embed, None, params["embed"], {"tokens": tokens})["x"]
        for r, (unit, repeats) in enumerate(self.runs):
            stacked = [params[f"layers{r}.{i}"] for i in range(len(unit))]

            def body(x: Any, weights: Any, unit: tuple[int, ...] = unit) -> tuple[Any, None]:
                for kind, mine in zip(unit, weights, strict=True):
                    x = self._block(kind, mine, x)
                return x, None

            if repeats == 1:
                x, _ = body(x, [jax.tree.map(lambda a: a[0], mine) for mine in stacked])
            else:
                x, _ = jax.lax.scan(body, x, stacked)
        head = {**params["head"], **({"embedding": params["embed"]["embedding"]} if self.model.tied else {})}
        losses = self.run(self.parts.head, None, head, {"x": x, "targets": targets})
        return losses["loss"].mean()

    def _block(self, kind: int, weights: Mapping[str, Any], x: Any) -> Any:
        program = self.parts.blocks[kind].program
        layer = self.model.stack[self.parts.order.index(kind)]
        kept = list(remat(program, self.choices.remat).saved)
        kept += [SAVED for op in program.ops if op.fused is not None and op.output in kept]

        def call(weights: Mapping[str, Any], x: Any) -> Any:
            return self.run(program, layer, weights, {"x": x})["x_out"]

        policy = jax.checkpoint_policies.save_only_these_names(*kept)
        return jax.checkpoint(call, policy=policy, prevent_cse=False)(weights, x)

    def run(
        self, program: Program, layer: Any, weights: Mapping[str, Any], inputs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """All arrays of a program that can be had outside of fused kernels."""
        values = dict(inputs)
        private = fused_only(program)
        for w in program.weights:
            # brought to where it is used; the matmuls' dtype is the recipe's
            use, back = (spec(weight_sharding(w, self.rules, k), self.ways) for k in ("weight_use", "gradient"))
            values[w.name] = self.placed(weights[w.name].astype(semantics.DTYPES[self.recipe.compute]), use, back)
        for op in program.ops:
            if op.output in private:
                continue
            with jax.named_scope(op.name):
                made = self._computed(program, layer, op, values)
            array = program.array(op.output)
            made = self.constrain(made, spec(shard(array, self.rules), self.ways))
            values[op.output] = checkpoint_name(made, op.output)
        return values

    def _computed(self, program: Program, layer: Any, op: Op, values: dict[str, Any]) -> Any:
        if op.fused is not None:
            return self._attention(program, layer, op, values)
        operands = [values[n] for n in op.inputs]
        if op.kind == "einsum":
            operands = [self._gathered(program, n, values) for n in op.inputs]
            return semantics.einsum(program, op, operands, self.recipe.compute)
        if op.kind == "lookup":
            return operands[0][operands[1]]
        if op.kind == "loss":
            return semantics.loss(operands[0], values["targets"])
        if op.kind == "route":
            return self._route(program, layer, op, values)
        if op.kind != "map":
            raise InputError(
                f"the reference model cannot compute {op.name} of {program.name}: recurrences are not lowered to JAX so far",
                field="model",
            )
        active = layer.feed_forward.active if layer is not None and isinstance(layer.feed_forward, MoE) else 0
        return semantics.computed(program, op, operands, self.recipe.compute, active=active)

    def _gathered(self, program: Program, name: str, values: dict[str, Any]) -> Any:
        """What a matmul reads: the residual stream with its whole sequence, brought together once for all its readers."""
        array = program.array(name)
        if array.layout != "residual":
            return values[name]
        key = f"{name} gathered"
        if key not in values:
            there = spec(shard(replace(array, layout="inner"), self.rules), self.ways)
            values[key] = self.placed(values[name], there, spec(shard(array, self.rules), self.ways))
        return values[key]

    def _attention(self, program: Program, layer: Any, op: Op, values: dict[str, Any]) -> Any:
        kernel = [o for o in program.ops if o.fused == op.fused]
        shape = [(o.name.rsplit(".", 1)[-1], o.kind) for o in kernel]
        if shape != [("scores", "einsum"), ("softmax", "map"), ("values", "einsum")]:
            raise InputError(
                f"the reference model cannot compute {op.name} of {program.name}: only plain softmax attention is lowered to"
                " JAX so far",
                field="model",
            )
        learned = kernel[1].inputs[1:]
        if learned and learned != ("sinks",):
            raise InputError(f"the reference model has no {learned[0]}; it is not lowered to JAX so far", field="model")
        # queries stay where their positions are; keys and values of all positions come to them
        whole = {"whole": {"B": BATCH, "K": ("tensor_kv",)}}

        def gathered(name: str) -> Any:
            array = replace(program.array(name), layout="whole")
            return self.constrain(values[name], spec(shard(array, whole), self.ways))

        (query, key), value = kernel[0].inputs, kernel[2].inputs[1]
        sees = semantics.mask_of(layer.mixer) if isinstance(layer.mixer, Attention) else Mask()
        return attention(values[query], gathered(key), gathered(value), values["sinks"] if learned else None, sees)

    # experts

    def _route(self, program: Program, layer: Any, op: Op, values: dict[str, Any]) -> Any:
        """Tokens to the slots of their experts and back. Each chip fills slots with its own tokens; an all-to-all over the
        expert axis brings them to their experts' chips.
        """
        word = op.name.rsplit(".", 1)[-1]
        moe: MoE = layer.feed_forward
        weights = values["router_weights"]
        chips = math.prod(self.ways.get(a, 1) for a in (*BATCH, "context", *TENSOR))
        tokens = weights.shape[0] * weights.shape[1]
        capacity = math.ceil(moe.active * tokens * moe.capacity_factor / moe.experts / chips)
        split = "expert" if self.ways.get("expert", 1) > 1 else None

        def spec_of(name: str) -> Any:
            return spec(shard(program.array(name), self.rules), self.ways)

        def to_experts(x: Any) -> Any:
            return x if split is None else jax.lax.all_to_all(x, split, 0, 1, tiled=True)

        def from_experts(x: Any) -> Any:
            return x if split is None else jax.lax.all_to_all(x, split, 1, 0, tiled=True)

        def dispatch(x: Any, share: Any) -> Any:
            token, _ = semantics.slots(share.reshape(-1, share.shape[-1]), capacity)
            return to_experts(x.reshape(-1, x.shape[-1])[token])

        def shares(share: Any) -> Any:
            _, kept = semantics.slots(share.reshape(-1, share.shape[-1]), capacity)
            return to_experts(kept)

        def combine(made: Any, share: Any) -> Any:
            token, kept = semantics.slots(share.reshape(-1, share.shape[-1]), capacity)
            flat = jnp.zeros((share.shape[0] * share.shape[1], made.shape[-1]), made.dtype)
            back = jnp.where(kept[..., None] > 0, from_experts(made), 0)
            return flat.at[token.reshape(-1)].add(back.reshape(-1, made.shape[-1])).reshape(*share.shape[:2], -1)

        routes: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
            "dispatch": (dispatch, (op.inputs[0], "router_weights")),
            "weights": (shares, ("router_weights",)),
            "combine": (combine, (op.inputs[0], "router_weights")),
        }
        function, names = routes[word]
        operands = [values[n] for n in names]
        if self.mesh is None:
            return function(*operands)
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=tuple(spec_of(n) for n in names),
            out_specs=spec_of(op.output),
            check_vma=False,
        )(*operands)

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

    def batch(self, microbatches: int, sequences: int) -> Any:
        """Abstract tokens [microbatches, B, T]."""
        of = PartitionSpec(None, tuple(a for a in BATCH if self.ways.get(a, 1) > 1) or None)
        return jax.ShapeDtypeStruct((microbatches, sequences, self.seq), jnp.int32, sharding=self._sharding(of))

    def gradients(self, weights: Params, tokens: Any, targets: Any) -> tuple[Any, Params]:
        """(loss, gradients) of a step: the mean over microbatches [microbatches, B, T], accumulated one after the other."""
        specs = self.specs("gradient")
        kind = semantics.DTYPES[self.recipe.gradients]

        def one(tokens: Any, targets: Any) -> tuple[Any, Params]:
            loss, found = jax.value_and_grad(self.loss)(weights, tokens, targets)
            return loss, jax.tree.map(lambda g, of: self.constrain(g.astype(kind), of), found, specs)

        count = tokens.shape[0]
        if count == 1:
            return one(tokens[0], targets[0])

        def body(carry: Any, part: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, carry, one(*part)), None

        zeros = jax.tree.map(lambda w, of: self.constrain(jnp.zeros(w.shape, kind), of), weights, specs)
        (loss, found), _ = jax.lax.scan(body, (jnp.zeros(()), zeros), (tokens, targets))
        return loss / count, jax.tree.map(lambda g: g / count, found)

    def step(self, state: dict[str, Any], tokens: Any, targets: Any) -> tuple[dict[str, Any], Any]:
        """One step of AdamW (no decay, no bias correction): (new state, loss)."""
        loss, found = self.gradients(state["weights"], tokens, targets)
        first, second, tiny, rate = _ADAM
        states, stored = self.specs("optimizer"), self.specs("weight")

        def one(w: Any, m: Any, v: Any, g: Any, master: Any, of: Any, home: Any) -> tuple[Any, Any, Any, Any]:
            g = self.constrain(g, of).astype(jnp.float32)
            new_m = first * m.astype(jnp.float32) + (1 - first) * g
            new_v = second * v.astype(jnp.float32) + (1 - second) * jnp.square(g)
            base = self.constrain(w, of) if master is None else master
            new = base.astype(jnp.float32) - rate * new_m / (jnp.sqrt(new_v) + tiny)
            kept = None if master is None else new.astype(master.dtype)
            return self.constrain(new.astype(w.dtype), home), new_m.astype(m.dtype), new_v.astype(v.dtype), kept

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
