"""A decoder in JAX: its weights, those of equal layers stacked, and how activations go through its layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rooftop.arrays import Array, Program, weight_sharding
from rooftop.errors import InputError
from rooftop.lower import _semantics as semantics
from rooftop.lower._mesh import spec
from rooftop.lower._runner import Runner
from rooftop.transformer import Architecture, Programs, programs

Params = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Decoder:
    """One model on a mesh under one table of shardings.

    seq: tokens of a sequence. stages: pipeline stages, over which the layers are shared out.
    Raises InputError for models that are not lowered to JAX.
    """

    model: Architecture
    seq: int
    runner: Runner
    stages: int = 1

    def __post_init__(self) -> None:
        if self.model.encoder or self.model.stack[0].streams > 1 or self.model.embed_dim or self.model.positions:
            raise InputError(
                f"{self.model.name} is not lowered to JAX: decoders with one residual stream are, so far", field="model"
            )
        if self.stages > 1 and (len(self.runs) > 1 or self.runs[0][1] % self.stages):
            raise InputError(
                f"{self.stages} pipeline stages of {self.model.name} are not lowered to JAX: its {len(self.model.stack)} layers do"
                " not fall into as many equal stages; use a divisor of its layers",
                field="mesh",
            )

    @cached_property
    def parts(self) -> Programs:
        """The programs of whole sequences."""
        return programs(self.model, self.seq)

    @cached_property
    def runs(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """(layers of a period, repeats) of the stack, so that repeats can be one loop. A layer is named by the first like it."""
        stack = self.model.stack
        order = tuple(stack.index(layer) for layer in stack)
        found: list[tuple[tuple[int, ...], int]] = []
        start = 0
        while start < len(order):
            best: tuple[tuple[int, ...], int] = ((order[start],), 1)
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

    def program(self, layer: int, parts: Programs | None = None) -> Program:
        """The program of a layer of the stack."""
        parts = parts or self.parts
        return parts.blocks[parts.order[layer]].program

    # weights

    @cached_property
    def weights(self) -> dict[str, dict[str, tuple[Array, tuple[int, ...], tuple[Any, ...]]]]:
        """(array, shape, what splits the stacking axes in front) of every weight, by group and name.

        A tied head has none of its own.
        """
        named: dict[str, tuple[Program, int]] = {"embed": (self.parts.embed, 0), "head": (self.parts.head, 0)}
        for r, (unit, repeats) in enumerate(self.runs):
            for i, layer in enumerate(unit):
                named[f"layers{r}.{i}"] = (self.program(layer), repeats)
        result: dict[str, dict[str, tuple[Array, tuple[int, ...], tuple[Any, ...]]]] = {}
        for group, (program, copies) in named.items():
            rows = {}
            for w in program.weights:
                if group == "head" and w.name == "embedding":
                    continue
                sizes = tuple(int(program.axes[a]) for a in w.axes)  # type: ignore[arg-type]
                lead = ("pipeline" if self.stages > 1 else None,) if copies else ()
                rows[w.name] = (w, (copies, *sizes) if copies else sizes, lead)
            result[group] = rows
        return result

    def specs(self, kind: str = "weight") -> dict[str, dict[str, Any]]:
        """PartitionSpecs of all weights in one of their layouts: weight, weight_use, gradient, optimizer."""
        rules, ways = self.runner.rules, self.runner.ways
        return {
            group: {name: spec(weight_sharding(w, rules, kind), ways, lead) for name, (w, _, lead) in rows.items()}
            for group, rows in self.weights.items()
        }

    def shapes(self, dtype: str, kind: str = "weight") -> dict[str, dict[str, Any]]:
        """Abstract weights (or states of the optimizer) with their shardings."""
        specs, of = self.specs(kind), self.runner.sharding
        return {
            group: {
                name: jax.ShapeDtypeStruct(shape, semantics.DTYPES[dtype], sharding=of(specs[group][name]))
                for name, (_, shape, _) in rows.items()
            }
            for group, rows in self.weights.items()
        }

    def initial(self, dtype: str, seed: int = 0) -> Params:
        """New weights: norms at one, biases at zero, matrices normal with the variance of their input."""
        key = jax.random.key(seed)
        result: Params = {}
        for group, rows in self.weights.items():
            result[group] = {}
            for name, (w, shape, lead) in rows.items():
                key, mine = jax.random.split(key)
                kind = semantics.DTYPES[dtype]
                if len(w.axes) == 1 or w.name.endswith("norm"):
                    made = (jnp.ones if "norm" in name and "bias" not in name else jnp.zeros)(shape, kind)
                else:
                    sizes = shape[len(lead) :]
                    fan_in = math.prod(sizes) / max(sizes[-1], 1)
                    made = jax.random.normal(mine, shape, jnp.float32) * semantics.scale_of(fan_in)
                result[group][name] = made.astype(kind)
        return result

    # activations

    def embedded(self, params: Params, tokens: Any, parts: Programs | None = None, **inputs: Any) -> Any:
        """The residual stream [B, T, D] of tokens [B, T]."""
        program = (parts or self.parts).embed
        return self.runner.run(program, None, params["embed"], {"tokens": tokens, **inputs})["x"]

    def head(self, params: Params, x: Any, parts: Programs | None = None, **inputs: Any) -> dict[str, Any]:
        """The arrays of the head: `logits` [B, T, V], and `loss` with targets [B, T] or `token` without."""
        tied = {"embedding": params["embed"]["embedding"]} if self.model.tied else {}
        return self.runner.run((parts or self.parts).head, None, {**params["head"], **tied}, {"x": x, **inputs})

    def through(
        self, params: Params, x: Any, block: Callable[..., tuple[Any, Any]], kept: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """x through all layers: (x, what blocks return beside it, by group and stacked as weights are).

        block: (layer, weights, x, kept) -> (x, anything). kept: of each group, what its layers are given beside x, stacked.
        """
        result: dict[str, Any] = {}
        for r, (unit, _) in enumerate(self.runs):
            names = [f"layers{r}.{i}" for i in range(len(unit))]

            def body(x: Any, given: Any, unit: tuple[int, ...] = unit, names: list[str] = names) -> tuple[Any, Any]:
                made = {}
                for name, layer in zip(names, unit, strict=True):
                    x, made[name] = block(layer, given[0][name], x, given[1].get(name, {}))
                return x, made

            given = ({n: params[n] for n in names}, {n: kept[n] for n in names} if kept else {})
            if jax.tree.leaves(given)[0].shape[0] == 1:
                x, made = body(x, jax.tree.map(lambda a: a[0], given))
                made = jax.tree.map(lambda a: a[None], made)
            else:
                x, made = jax.lax.scan(body, x, given)
            result |= made
        return x, result


def place(tree: Any, like: Any) -> Any:
    """Arrays of a host as arrays with the shardings of `like` (abstract arrays), in any number of processes.

    Every process has all of `tree`, and puts what its devices hold of it there.
    """

    def one(x: Any, to: Any) -> Any:
        if to.sharding is None:
            return jnp.asarray(x, to.dtype)
        host = np.asarray(x).astype(to.dtype)
        return jax.make_array_from_callback(host.shape, to.sharding, lambda index: host[index])

    return jax.tree.map(one, tree, like)
