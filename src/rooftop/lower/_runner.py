"""Programs of named-axis ops on JAX arrays, each array kept in the sharding that a table of rules gives it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec

from rooftop.arrays import Array, Op, Program, Rules, Sharding, fused_only, shard, weight_sharding
from rooftop.errors import InputError
from rooftop.lower import _route as routes
from rooftop.lower import _semantics as semantics
from rooftop.lower._attention import attention
from rooftop.lower._mesh import spec
from rooftop.transformer import MoE


@dataclass(frozen=True)
class Runner:
    """rules: the sharding table. compute: dtype of the matmuls. mesh: None, or a jax.sharding.Mesh with the axes of the rules.

    Inside of a shard_map over some axes of the mesh everything is sharded over the others.
    """

    rules: Rules
    compute: str
    mesh: Any = None

    @cached_property
    def ways(self) -> dict[str, int]:
        """Ways of the mesh axes."""
        return {} if self.mesh is None else {str(a): int(n) for a, n in self.mesh.shape.items()}

    @property
    def here(self) -> Any:
        """The mesh as arrays see it: inside of a shard_map, that of its context."""
        context = jax.sharding.get_abstract_mesh()
        return context if context.manual_axes else self.mesh

    def split(self, array: Array) -> Sharding:
        """The sharding of an array in its layout."""
        return shard(array, self.rules)

    def spec(self, array: Array) -> Any:
        """The PartitionSpec of an array in its layout."""
        return spec(self.split(array), self.ways)

    def sharding(self, of: Any) -> Any:
        """A PartitionSpec on the mesh; None without one."""
        return None if self.mesh is None else NamedSharding(self.mesh, of)

    def constrain(self, x: Any, of: Any) -> Any:
        """Keep an array in a sharding."""
        return x if self.mesh is None else jax.lax.with_sharding_constraint(x, NamedSharding(self.here, of))

    def placed(self, x: Any, there: Any, back: Any) -> Any:
        """An array in another sharding; its gradient comes back in the sharding `back`."""
        if self.mesh is None:
            return x

        move = jax.custom_vjp(lambda x: self.constrain(x, there))
        move.defvjp(lambda x: (self.constrain(x, there), None), lambda _, g: (self.constrain(g, back),))
        return move(x)

    def run(
        self, program: Program, layer: Any, weights: Mapping[str, Any], inputs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """All arrays of a program that can be had outside of fused kernels.

        layer: of the architecture, where the program is one. inputs: arrays that come from outside by name; `positions`
        [B, T] where they do not begin at 0; caches, which the result has with what the program adds to them.
        Raises InputError for ops that are not lowered to JAX.
        """
        values = dict(inputs)
        private = fused_only(program) if "positions" not in inputs else set()
        for array in program.arrays:
            if array.role in ("input", "cache") and array.name not in values:
                raise InputError(
                    f"the reference model has no {array.name} for {program.name}: caches of other layers and other inputs"
                    " than tokens are not lowered to JAX so far",
                    field="model",
                )
        for w in program.weights:
            # brought to where it is used; the matmuls' dtype is the recipe's
            use, back = (spec(weight_sharding(w, self.rules, k), self.ways) for k in ("weight_use", "gradient"))
            stored = semantics.weight(program, w.name, weights)
            values[w.name] = self.placed(stored.astype(semantics.DTYPES[self.compute]), use, back)
        for op in program.ops:
            if op.output in private:
                continue
            with jax.named_scope(op.name):
                made = self._computed(program, layer, op, values)
            made = self.constrain(made, self.spec(program.array(op.output)))
            values[op.output] = checkpoint_name(made, op.output)
            self._keep(program, op, values)
        return values

    def _keep(self, program: Program, op: Op, values: dict[str, Any]) -> None:
        """Put what an op made for a cache into it."""
        name = op.output.removesuffix("_new")
        if name == op.output or name not in values:
            return
        kept = program.array(name)
        if "S" not in kept.axes:
            raise InputError(f"the reference model cannot keep {name} of {program.name}; it is not lowered to JAX so far",
                             field="model")  # fmt: skip
        full = semantics.kept(values[name], values[op.output], values["positions"])
        values[name] = self.constrain(full, self.spec(kept))

    def _computed(self, program: Program, layer: Any, op: Op, values: dict[str, Any]) -> Any:
        if op.fused is not None:
            return self._attention(program, layer, op, values)
        operands = [values[n] for n in op.inputs]
        if op.kind == "einsum":
            return self._einsum(program, op, values)
        if op.kind == "lookup":
            return operands[0][operands[1]]
        if op.kind == "loss":
            return semantics.loss(operands[0], values["targets"]) if "targets" in values else operands[0].argmax(-1)
        if op.kind == "route":
            return self._route(program, layer, op, values)
        if op.kind != "map":
            raise InputError(
                f"the reference model cannot compute {op.name} of {program.name}: recurrences are not lowered to JAX so far",
                field="model",
            )
        active = layer.feed_forward.active if layer is not None and isinstance(layer.feed_forward, MoE) else 0
        return semantics.computed(program, op, operands, self.compute, active=active, positions=values.get("positions"))

    def _einsum(self, program: Program, op: Op, values: dict[str, Any]) -> Any:
        """Where an op has a weight, the weight stays and what it meets comes to it, once for all readers that want it there.

        What splits the weight splits that index of the work; other mesh axes split what they split in the output.
        """
        output = program.array(op.output)
        weight = next((program.array(n) for n in op.inputs if program.array(n).role == "weight"), None)
        if weight is None:
            return semantics.einsum(program, op, [values[n] for n in op.inputs], self.compute)
        held = dict(zip(weight.axes, weight_sharding(weight, self.rules, "weight_use").axes, strict=True))
        wanted = dict(zip(output.axes, self.split(output).axes, strict=True))

        def of(array: Array, taken: set[str]) -> Any:
            axes = [held.get(a, tuple(n for n in wanted.get(a, ()) if n not in taken)) for a in array.axes]
            return spec(Sharding(tuple(axes)), self.ways)

        used = {n for names in held.values() for n in names}
        made = {n for axis, names in held.items() if axis in output.axes for n in names}
        operands = []
        for name in op.inputs:
            array = program.array(name)
            there = of(array, used)
            key = f"{name} at {there}"
            if array.role != "weight" and key not in values:
                values[key] = self.placed(values[name], there, self.spec(array))
            operands.append(values[name] if array.role == "weight" else values[key])
        result = semantics.einsum(program, op, operands, self.compute)
        # a sum over what splits the weight goes straight to where it is wanted
        return self.constrain(result, of(output, made))

    def _attention(self, program: Program, layer: Any, op: Op, values: dict[str, Any]) -> Any:
        kernel = [o for o in program.ops if o.fused == op.fused]
        softmax = next((o for o in kernel if o.kind == "map"), None)
        names = [o.name.rsplit(".", 1)[-1] for o in kernel]
        whole = "positions" not in values
        if softmax is None or names not in (["scores", "softmax", "values"], ["scores", "scores_rotated", "softmax", "values"]) or (whole and len(names) > 3):  # fmt: skip
            raise InputError(
                f"the reference model cannot compute {op.name} of {program.name}: only plain softmax attention is lowered to"
                " JAX so far",
                field="model",
            )
        learned = [n for n in softmax.inputs if program.array(n).role == "weight" or "Top" in program.array(n).axes]
        if learned and learned != ["sinks"]:
            raise InputError(f"the reference model has no {learned[0]}; it is not lowered to JAX so far", field="model")
        sinks = values["sinks"] if learned else None
        sees = semantics.mask_of(layer.mixer)
        if not whole:
            operands = [values[n] for n in op.inputs]
            if op.kind == "einsum":
                return semantics.einsum(program, op, operands, self.compute)
            scores = [x for n, x in zip(op.inputs, operands, strict=True) if n not in learned]
            size = semantics.score_size(layer.mixer)
            return semantics.softmax(scores, size, values["positions"], sees, sinks)

        # queries stay where their positions are; keys and values of all positions come to them
        def gathered(name: str) -> Any:
            array = program.array(name)
            of = self.split(array)
            here = tuple(() if axis == "S" else names for axis, names in zip(array.axes, of.axes, strict=True))
            return self.constrain(values[name], spec(replace(of, axes=here), self.ways))

        (query, key), value = kernel[0].inputs, kernel[2].inputs[1]
        return attention(values[query], gathered(key), gathered(value), sinks, sees)

    def _route(self, program: Program, layer: Any, op: Op, values: dict[str, Any]) -> Any:
        """Tokens to the slots of their experts and back."""
        moe: MoE = layer.feed_forward
        shares = "router_weights"
        tokens = program.array(shares)
        split = [a for names in self.split(tokens).axes[:2] for a in names if self.ways.get(a, 1) > 1]
        slots = next(program.array(n) for n in (op.output, *op.inputs) if "E" in program.array(n).axes)
        homes = [a for a in self.split(slots).of_axis(slots, "E") if self.ways.get(a, 1) > 1]
        count = values[shares].shape[0] * values[shares].shape[1] / math.prod(self.ways[a] for a in split)
        capacity = math.ceil(moe.active * count * moe.capacity_factor / moe.experts)
        word = op.name.rsplit(".", 1)[-1]
        names = (shares,) if word == "weights" else (op.inputs[0], shares)
        local = routes.route(word, capacity, tuple(split), tuple(homes), self.ways)
        operands = [values[n] for n in names]
        if self.mesh is None:
            return local(*operands)
        inside, outside = self._route_specs(program, op, names, split, homes)
        context = self.here
        free = {a for a in self.ways if a not in getattr(context, "manual_axes", ())}
        return jax.shard_map(
            local, mesh=context, in_specs=inside, out_specs=outside, axis_names=free, check_vma=False
        )(*operands)  # fmt: skip

    def _route_specs(
        self, program: Program, op: Op, names: tuple[str, ...], split: list[str], homes: list[str]
    ) -> tuple[tuple[Any, ...], Any]:
        """Shardings in and out: of tokens that of the layout, of slots the experts' homes and whatever else splits tokens."""
        rest = tuple(a for a in split if a not in homes)

        def of(name: str) -> Any:
            array = program.array(name)
            if "E" in array.axes:
                return PartitionSpec(tuple(homes) or None, rest or None)
            # the width of a token is whole on its way
            held = self.split(array).axes
            return spec(Sharding((*held[:2], *(() for _ in held[2:]))), self.ways)

        return tuple(of(n) for n in names), of(op.output)
