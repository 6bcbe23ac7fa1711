"""What the simulator knows of the thing it simulates: how long a step takes, and how many tokens fit."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rooftop._files import read_text
from rooftop.errors import InputError, nearest

_MOST_BYTES = 1_000_000


class Line(NamedTuple):
    """Seconds of a decode step as a line in the context: `base + slope * context`, for contexts of at most `until`."""

    base: float
    slope: float
    until: float


class StepModel(Protocol):
    """How long one step of an engine takes. Any model that is piecewise linear in the context of decoding can be one."""

    def seconds(self, tokens: int, pairs: int, batch: int, context: int, width: int = 1) -> float:
        """Seconds of a step.

        tokens: prompt tokens computed in it; pairs: over these tokens, the sum of the positions that each attends to,
        itself included; batch: sequences that decode in it; context: positions that these attend to, together;
        width: tokens that each of them computes, above 1 with speculation.
        """

    def decode_line(self, batch: int, context: int, width: int = 1) -> Line:
        """`seconds(0, 0, batch, context, width)` as a line that holds from `context` on."""


@dataclass(frozen=True, slots=True)
class LinearSteps:
    """A step model of a few coefficients, as measured or fitted, all in seconds.

    A step takes overhead + max(weights, per_token * n) + per_pair * pairs + per_sequence * batch + per_context * context,
    where n counts prompt tokens and the tokens of decoding sequences. `weights` is the time to read all weights once,
    below which no number of tokens brings a step; zero gives a plain linear model.
    """

    overhead: float = 0.0
    weights: float = 0.0
    per_token: float = 0.0
    per_pair: float = 0.0
    per_sequence: float = 0.0
    per_context: float = 0.0

    def seconds(self, tokens: int, pairs: int, batch: int, context: int, width: int = 1) -> float:
        """Seconds of a step; see StepModel."""
        arithmetic = self.per_token * (tokens + batch * width)
        return (
            self.overhead
            + (arithmetic if arithmetic > self.weights else self.weights)
            + self.per_pair * pairs
            + self.per_sequence * batch
            + self.per_context * context
        )

    def decode_line(self, batch: int, context: int, width: int = 1) -> Line:
        """A decode step is one line for every context."""
        return Line(self.seconds(0, 0, batch, 0, width), self.per_context, math.inf)


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy of a model that serves requests: its step times, its memory and its links.

    kv_tokens: tokens whose keys and values fit in its memory. kv_bytes_per_token and the bandwidths (bytes/s) price moves:
    swaps to the host, which holds host_tokens, and transfers from a prefill to a decode replica.
    """

    steps: StepModel
    kv_tokens: int
    kv_bytes_per_token: float = 0.0
    chips: int = 1
    host_tokens: int = 0
    host_bandwidth: float = math.inf
    transfer_bandwidth: float = math.inf
    transfer_latency: float = 0.0
    usd_per_chip_hour: float | None = None
    name: str = "replica"
    assumptions: tuple[str, ...] = ()

    def swap_seconds(self, tokens: int) -> float:
        """Seconds to move the keys and values of so many tokens to or from the host."""
        return tokens * self.kv_bytes_per_token / self.host_bandwidth

    def transfer_seconds(self, tokens: int) -> float:
        """Seconds to move the keys and values of so many tokens to another replica."""
        return self.transfer_latency + tokens * self.kv_bytes_per_token / self.transfer_bandwidth


#: Keys of a step-model file -> the largest value that makes sense.
_COEFFICIENTS = {f.name: 1e6 for f in fields(LinearSteps)}
_FIELDS = {
    "kv_tokens": 1e12, "kv_bytes_per_token": 1e9, "chips": 1e6, "host_tokens": 1e12, "host_bandwidth": 1e15,
    "transfer_bandwidth": 1e15, "transfer_latency": 1e3, "usd_per_chip_hour": 1e6,
}  # fmt: skip
_WHOLE = ("kv_tokens", "chips", "host_tokens")
_TEXTS = ("name", "source")


def read_replica(path: str | Path) -> Replica:
    """A replica from a TOML or JSON file of measured coefficients. Raises InputError that names the key at fault."""
    path = Path(path)
    try:
        text = read_text(path, _MOST_BYTES)
        table = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise InputError(f"cannot read the step model {path}: {error.strerror or error}", field="step_model") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"the step model {path} is not TOML or JSON: {str(error)[:100]}", field="step_model") from None
    if not isinstance(table, dict):
        raise InputError(f"the step model {path} is not a table of coefficients", field="step_model")
    return replica_of(table, str(path))


def replica_of(table: Mapping[str, Any], where: str) -> Replica:
    """A replica from a table of coefficients; `where` names it in errors."""
    known = {**_COEFFICIENTS, **_FIELDS}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key in _TEXTS:
            if not isinstance(value, str) or len(value) > 1000:
                raise InputError(f"{where}: {key} must be a short text", field=key)
            continue
        if key not in known:
            hint = nearest(key, [*known, *_TEXTS])
            raise InputError(
                f"{where}: unknown key {key[:40]!r}{hint}; keys are {', '.join([*known, *_TEXTS])}", field=key
            )
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= known[key]:
            raise InputError(
                f"{where}: {key} = {str(value)[:40]} is not a number from 0 to {known[key]:g}; give one", field=key
            )
        if key in _WHOLE and value != int(value):
            raise InputError(f"{where}: {key} = {value} is not whole; give a whole number", field=key)
        values[key] = int(value) if key in _WHOLE else float(value)
    for key in ("kv_tokens",):
        if values.get(key, 0) < 1:
            raise InputError(f"{where} has no {key}; give the tokens whose keys and values fit", field=key)
    for key in ("host_bandwidth", "transfer_bandwidth", "chips"):
        if values.get(key, 1) <= 0:
            raise InputError(f"{where}: {key} must be above 0", field=key)
    steps = LinearSteps(**{k: v for k, v in values.items() if k in _COEFFICIENTS})
    if steps.seconds(1, 1, 0, 0) <= 0 or steps.seconds(0, 0, 1, 1) <= 0:
        raise InputError(
            f"{where}: a step takes no time; give overhead, weights or per_token in seconds", field="overhead"
        )
    source = table.get("source")
    return Replica(
        steps,
        name=str(table.get("name", Path(where).stem)),
        assumptions=(f"step times: {where}" + (f", {source}" if source else ", no source given"),),
        **{k: v for k, v in values.items() if k in _FIELDS},
    )
