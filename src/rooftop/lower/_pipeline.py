"""Pipeline stages by shard_map: each stage has its share of the layers, and hands activations to the next one.

The mesh axis "pipeline" is manual, all others stay to XLA. In M + P - 1 ticks M microbatches go through P stages; the backward
pass, which JAX derives, goes the other way: the order of GPipe (Huang et al., 2019). Embedding and head are outside: there
the stages share out sequences, so that none of them waits for the others' vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from rooftop.arrays import Rules
from rooftop.lower._decoder import Decoder, Params
from rooftop.lower._runner import Runner

AXIS = "pipeline"


def shared_out(runner: Runner) -> Runner:
    """The same with sequences split over the pipeline stages as well."""
    if runner.ways.get(AXIS, 1) == 1:
        return runner
    rules: Rules = {
        layout: {axis: (AXIS, *names) if axis == "B" else names for axis, names in row.items()}
        for layout, row in runner.rules.items()
    }
    return replace(runner, rules=rules)


def pipelined(decoder: Decoder, params: Params, x: Any, block: Callable[..., Any]) -> Any:
    """Microbatches x[M, B, T, D] through all layers of all stages; weights are stacked, a stage's share on each."""
    layers = {name: rows for name, rows in params.items() if name.startswith("layers")}
    stages, count = decoder.stages, x.shape[0]

    def stage(layers: Params, x: Any) -> Any:
        mine = jax.lax.axis_index(AXIS)

        def tick(arrived: Any, t: Any) -> tuple[Any, Any]:
            taken = jnp.where(mine == 0, x[jnp.minimum(t, count - 1)], arrived)
            made, _ = decoder.through(layers, taken, block)
            return jax.lax.ppermute(made, AXIS, [(i, i + 1) for i in range(stages - 1)]), made

        _, made = jax.lax.scan(tick, jnp.zeros_like(x[0]), jnp.arange(count + stages - 1))
        return made[None, stages - 1 :]  # what the last stage makes from then on is whole

    run = jax.shard_map(
        stage, mesh=decoder.runner.mesh, in_specs=(PartitionSpec(AXIS), PartitionSpec()), out_specs=PartitionSpec(AXIS),
        axis_names={AXIS}, check_vma=False,
    )  # fmt: skip
    return run(layers, x)[-1]
