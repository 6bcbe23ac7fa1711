"""One question with everything that can be changed in it under one kind of name: model, hardware, plan, workload."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rooftop.codesign._models import model_numbers, with_number
from rooftop.codesign._values import Reader, Value
from rooftop.costing import MESH_AXES
from rooftop.errors import InputError, nearest
from rooftop.hardware import Level, Price, Slice, Switch, Torus, slice_of
from rooftop.inference import SERVING_AXES
from rooftop.roofline import Calibration, calibration_for
from rooftop.training import is_value, offered
from rooftop.transformer import Architecture, architecture
from rooftop.units import parse_bytes, parse_count, parse_integer, parse_seconds, parse_usd

#: What can be asked.
ASKS = ("plan", "step", "serve", "simulate")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A question: what is asked (one of ASKS), of which model on which slice.

    options: by the names of OPTIONS. mesh: ways of mesh axes that are fixed. calibration: instead of the chip's own.
    """

    ask: str
    model: Architecture
    slice: Slice
    options: Mapping[str, Any] = field(default_factory=dict)
    mesh: Mapping[str, int] = field(default_factory=dict)
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        if self.ask not in ASKS:
            raise InputError(
                f"unknown question {self.ask[:40]!r}{nearest(self.ask, ASKS)}; use {', '.join(ASKS)}", field="of"
            )


def _share(text: str, field: str | None = None) -> float:
    value = parse_count(text, field)
    if value > 1:
        raise InputError(f"{field} = {text[:40]} is not a share; give 0 to 1", field=field)
    return value


def _above_zero(read: Callable[..., Any]) -> Reader:
    def checked(text: str, field: str) -> Any:
        value = read(text, field)
        if not value > 0:
            raise InputError(f"{field} = {text[:40]} is out of range; give a number above 0", field=field)
        return value

    return checked


def _word(text: str, field: str | None = None) -> str:
    if not 0 < len(text) <= 200:
        raise InputError(f"{field}: a word of {len(text)} characters; give a short one", field=field)
    return text


def _flag(text: str, field: str | None = None) -> bool:
    if text.lower() not in ("true", "false"):
        raise InputError(f"{field} = {text[:40]!r} is not true or false", field=field)
    return text.lower() == "true"


def _choice(name: str) -> Callable[[str, str | None], Any]:
    (choice,) = (f for f in offered() if f.name == name)
    values = {str(v): v for v in (*choice.metadata["values"], *choice.metadata["asked"])}

    def read(text: str, field: str | None = None) -> Any:
        if is_value(choice, text):
            return text
        if text not in values:
            raise InputError(f"{name} = {text[:40]!r} is not known; use {', '.join(values)}", field=name)
        return values[text]

    return read


_TRAINING: dict[str, Callable[..., Any]] = {
    "batch": parse_count, "seq": parse_integer, "batch_within": _share, "max_batch": parse_count, "precision": _word,
    "optimizer_dtype": _word, "price": parse_usd, "headroom": _share, "collective_matmul": _flag,
    "lengths": _word, "packing": _word,
    "microbatches": parse_integer, **{f.name: _choice(f.name) for f in offered()},
}  # fmt: skip
_PRECISION: dict[str, Callable[..., Any]] = {"weights": _word, "activations": _word, "kv": _word}
#: What can be set beside model, hardware and mesh, by question, and how it is read.
OPTIONS: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "plan": _TRAINING,
    "step": _TRAINING,
    "serve": _PRECISION | {
        "batch": parse_integer, "prompt": parse_integer, "output": parse_integer, "context": parse_integer,
        "prefix_hits": _share, "chunk": parse_integer, "block": parse_integer, "reserve": parse_integer,
        "offload": _share, "draft": _word, "draft_tokens": parse_integer, "acceptance": _share, "price": parse_usd,
        "headroom": _share, "ttft": parse_seconds, "tpot": parse_seconds, "usd": parse_usd,
    },
    "simulate": _PRECISION | {
        "workload": _word, "load": parse_count, "seed": parse_integer, "max_batch": parse_integer,
        "max_tokens": parse_integer, "first": _word, "queue": _word, "block": parse_integer, "admit": _word,
        "watermark": _share, "preempt": _word, "prefix_cache": _flag, "chunked": _flag, "replicas": parse_integer,
        "prefill_replicas": parse_integer, "route": _word, "price": parse_usd, "headroom": _share,
        "ttft": parse_seconds, "tpot": parse_seconds, "e2e": parse_seconds,
    },
}  # fmt: skip
#: Values that an option has where nothing is said and a multiple of it is asked for.
_DEFAULTS = {
    "batch": 4e6,
    "seq": 4096,
    "prompt": 2048,
    "output": 512,
    "load": 1.0,
    "max_batch": 256,
    "max_tokens": 8192,
}

#: Numbers of a chip under `chip.`, and how they are read.
CHIP: Mapping[str, Callable[..., Any]] = {
    "flops": parse_count, "vector_flops": parse_count, "hbm_bandwidth": parse_bytes, "hbm_bytes": parse_bytes,
    "pcie_bandwidth": parse_bytes, "host_memory_bytes": parse_bytes, "power_watts": parse_count,
    "usd_per_hour": parse_usd,
}  # fmt: skip
_CALIBRATION = ("sustained", "hbm", "vector", "attention", "op_overhead", "step_overhead")
_SHORT = {"flops": "chip.flops", "hbm": "chip.hbm_bytes", "hbm_bytes": "chip.hbm_bytes", "hbm_bandwidth": "chip.hbm_bandwidth",
          "pcie_bandwidth": "chip.pcie_bandwidth", "vector_flops": "chip.vector_flops"}  # fmt: skip
#: Parameters that leave a plan what it is: arrays of their values go through the formulas of one plan.
_SMOOTH = ("chip.", "network.", "calibration.")


def canonical(scenario: Scenario, name: str) -> str:
    """The full name of a parameter: `hbm_bandwidth` is `chip.hbm_bandwidth`, `ici_latency` is `network.ici.latency`.

    Raises InputError, with the nearest names, for what is not a parameter of the question.
    """
    known = list(parameters(scenario))
    if name in known or name in ("model", "on", "chips"):
        return name
    if name in _SHORT:
        return _SHORT[name]
    network, _, what = name.removeprefix("chip.").rpartition("_")
    if f"network.{network}.{what}" in known:
        return f"network.{network}.{what}"
    if name in OPTIONS["plan"] or name in OPTIONS["serve"] or name in OPTIONS["simulate"]:
        where = [ask for ask in ASKS if name in OPTIONS[ask]]
        raise InputError(f"{name} is no parameter of {scenario.ask}, but of {', '.join(where)}", field=name)
    raise InputError(
        f"unknown parameter {name[:60]!r}{nearest(name, [*known, *_SHORT])}; use model, on, chips, or one of {', '.join(known)}",
        field=name[:60],
    )


def parameters(scenario: Scenario) -> Iterator[str]:
    """Names of everything that can be changed beside model, on and chips."""
    yield from OPTIONS[scenario.ask]
    yield from (f"mesh.{axis}" for axis in (MESH_AXES if scenario.ask in ("plan", "step") else SERVING_AXES))
    yield from (f"chip.{name}" for name in CHIP)
    yield from (f"chip.flops.{name}" for name in scenario.slice.chip.flops)
    for level in scenario.slice.levels:
        yield from (f"network.{level.name}.bandwidth", f"network.{level.name}.latency")
    yield from (f"model.{name}" for name in model_numbers(scenario.model))
    if scenario.ask != "simulate":
        yield from (f"calibration.{name}" for name in _CALIBRATION)
        yield from (f"calibration.overlap.{name}" for name in _calibration(scenario).overlap)


def smooth(name: str) -> bool:
    """Whether a parameter (by its full name) leaves a plan what it is."""
    return name.startswith(_SMOOTH)


def reader(name: str, ask: str) -> Reader:
    """How values of a parameter, by its full name, are read."""
    kind, _, rest = name.partition(".")
    if kind == "chip":
        read = CHIP[rest.split(".")[0]]
        return read if rest == "usd_per_hour" else _above_zero(read)
    if kind == "network":
        return _above_zero(parse_bytes) if rest.endswith("bandwidth") else parse_seconds
    if kind in ("mesh", "chips") or (kind == "model" and rest):
        return parse_integer
    if kind == "calibration":
        if rest.endswith("overhead"):
            return parse_seconds
        return _share if rest.startswith("overlap.") else _above_zero(_share)
    if kind in ("model", "on"):
        return _word
    return OPTIONS[ask][name]


def current(scenario: Scenario, name: str) -> Any:
    """What a parameter is; None where nothing says so."""
    kind, _, rest = name.partition(".")
    chip = scenario.slice.chip
    if kind == "chip":
        if rest == "usd_per_hour":
            return chip.price.usd_per_hour if chip.price else None
        if rest == "flops":
            return _main(chip.flops)[1]
        return chip.flops[rest.partition(".")[2]] if rest.startswith("flops.") else getattr(chip, rest)
    if kind == "network":
        network, what = rest.rsplit(".", 1)
        level = next(each for each in scenario.slice.levels if each.name == network)
        return getattr(level, _field(level, what))
    if kind == "mesh":
        return scenario.mesh.get(rest, 1)
    if kind == "model" and rest:
        return model_numbers(scenario.model)[rest]
    if kind == "calibration":
        held = _calibration(scenario)
        return held.overlap[rest.partition(".")[2]] if rest.startswith("overlap.") else getattr(held, rest)
    if name == "chips":
        return scenario.slice.chips
    if name in ("model", "on"):
        return None
    value = scenario.options.get(name)
    default = None if name == "batch" and scenario.ask == "serve" else _DEFAULTS.get(name)
    return default if value is None else value


def resolved(scenario: Scenario, name: str, value: Value) -> Any:
    """A value of a parameter as a number or a word: multiples are of what it is in the scenario."""
    if not value.relative:
        return value.value
    base = current(scenario, name)
    if not isinstance(base, (int, float)) or isinstance(base, bool):
        raise InputError(f"{name} has no number of which {value.value:g}x could be taken; give a value", field=name)
    read = reader(name, scenario.ask)
    product = base * value.value
    return read(str(round(product) if read is parse_integer else float(product)), name)  # which knows the range


def changed(scenario: Scenario, values: Mapping[str, Any]) -> Scenario:
    """The scenario with parameters (by full names) set to values. Numbers of hardware may be NumPy arrays. Raises InputError."""
    for name in sorted(
        values, key=lambda n: n not in ("model", "on", "chips")
    ):  # what others are numbers of comes first
        scenario = _changed(scenario, name, values[name])
    return scenario


def _changed(scenario: Scenario, name: str, value: Any) -> Scenario:
    kind, _, rest = name.partition(".")
    if kind == "chip":
        return replace(scenario, slice=replace(scenario.slice, chip=_chip(scenario, rest, value)))
    if kind == "network":
        network, what = rest.rsplit(".", 1)
        levels = tuple(
            replace(level, **{_field(level, what): value}) if level.name == network else level
            for level in scenario.slice.levels
        )
        return replace(scenario, slice=replace(scenario.slice, levels=levels))
    if kind == "mesh":
        return replace(scenario, mesh={**scenario.mesh, rest: value})
    if kind == "calibration":
        held = _calibration(scenario)
        if rest.startswith("overlap."):
            overlap = {**held.overlap, rest.partition(".")[2]: value}
            return replace(scenario, calibration=replace(held, overlap=overlap))
        return replace(scenario, calibration=replace(held, **{rest: value}))
    if kind == "model":
        model = with_number(scenario.model, rest, value) if rest else architecture(value)
        return replace(scenario, model=model)
    if name == "on":
        return replace(scenario, slice=slice_of(value))
    if name == "chips":
        return replace(scenario, slice=slice_of(f"{scenario.slice.chip.name}:{value}"))
    return replace(scenario, options={**scenario.options, name: value})


def _chip(scenario: Scenario, name: str, value: Any) -> Any:
    chip = scenario.slice.chip
    if name == "usd_per_hour":
        price = chip.price or Price(0.0, "", "", "", "")
        return replace(chip, price=replace(price, usd_per_hour=value, terms="as varied"))
    if name == "flops":  # all dtypes together
        _, top = _main(chip.flops)
        return replace(chip, flops={dtype: rate / top * value for dtype, rate in chip.flops.items()})
    if name.startswith("flops."):
        return replace(chip, flops={**chip.flops, name.partition(".")[2]: value})
    return replace(chip, **{name: value})


def _main(flops: Mapping[str, float]) -> tuple[str, float]:
    """The dtype whose rate `chip.flops` is."""
    name = "bf16" if "bf16" in flops else next(iter(flops))
    return name, flops[name]


def _field(level: Level, what: str) -> str:
    if isinstance(level, Torus):
        return {"bandwidth": "link_bandwidth", "latency": "hop_latency"}[what]
    assert isinstance(level, Switch)
    return what


def _calibration(scenario: Scenario) -> Calibration:
    chip = scenario.slice.chip
    return scenario.calibration or calibration_for(chip.name, chip.family)
