"""Chip files: read, check, and turn into a Chip with the networks that it can be wired into."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from rooftop._files import read_text
from rooftop.errors import InputError, nearest
from rooftop.hardware._types import Chip, Memory, Price, Source
from rooftop.units import dtype

_MOST_BYTES = 1_000_000
_WRAPS = ("cubes", "sixteen", "full", "always", "never")

_NUMBERS = {
    "cores": 1e6, "clock_hz": 1e12, "vector_flops": 1e20, "hbm_bytes": 1e16, "hbm_bandwidth": 1e17,
    "pcie_bandwidth": 1e15, "chips_per_host": 1e4, "host_memory_bytes": 1e16, "power_watts": 1e6,
}  # fmt: skip
_KEYS = {*_NUMBERS, "base", "title", "aliases", "family", "tile", "flops", "fast_memory", "units", "price", "torus",
         "switch", "sources", "slice"}  # fmt: skip
_TABLES = {
    "fast_memory": {"name": str, "bytes": 1e15, "bandwidth": 1e18},
    "price": {"usd_per_hour": 1e6, "region": str, "date": str, "terms": str, "source": str},
    "torus": {"name": str, "largest": list, "wrap": str, "link_bandwidth": 1e15, "hop_latency": 1.0},
    "switch": {"name": str, "size": 1e6, "bandwidth": 1e15, "latency": 10.0, "reduces": bool, "largest": 1e9,
               "oversubscription": 1e4},
    "slice": {"shape": str, "chips": 1e9, "slices": 1e5},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TorusPlan:
    """How chips can be wired into a torus: its largest sides, and which sides close to a ring.

    wrap "cubes": all sides wrap if every one is a multiple of 4 (3D TPUs); "sixteen": a side of 16 wraps; "full": a side
    that is as long as the largest wraps; "always" and "never".
    """

    name: str
    largest: tuple[int, ...]
    wrap: str
    link_bandwidth: float
    hop_latency: float


@dataclass(frozen=True, slots=True)
class SwitchPlan:
    """One switched level: `size` members, or as many as there are when 0."""

    name: str
    size: int
    bandwidth: float
    latency: float
    reduces: bool
    largest: int


@dataclass(frozen=True, slots=True)
class Wiring:
    """The networks of a chip, innermost first, and the slice that its file asks for by default."""

    torus: TorusPlan | None
    switches: tuple[SwitchPlan, ...]
    shape: str


def chips() -> list[str]:
    """Names of the chips that come with Rooftop."""
    return sorted(_files())


@functools.cache
def _files() -> dict[str, Any]:
    folder = resources.files("rooftop.hardware").joinpath("data")
    return {f.name.removesuffix(".toml"): f for f in folder.iterdir() if f.name.endswith(".toml")}


@functools.cache
def _aliases() -> dict[str, str]:
    """Alias -> name. Reads all files: only needed when a name is not a file's."""
    result = {}
    for name, file in _files().items():
        for alias in tomllib.loads(file.read_text(encoding="utf-8")).get("aliases", []):
            result[alias] = name
    return result


def chip(name: str) -> Chip:
    """A chip by name, alias, or path of a TOML file. Raises InputError with the nearest names."""
    return load(name)[0]


def load(name: str) -> tuple[Chip, Wiring]:
    """A chip and how it is wired."""
    key = name.strip().lower()
    if key in _files():
        return _shipped(key)
    if key.endswith(".toml") or "/" in name or Path(name).is_file():
        return _from_file(Path(name))
    if key in _aliases():
        return _shipped(_aliases()[key])
    known = [*_files(), *_aliases()]
    raise InputError(
        f"unknown chip {name[:60]!r}{nearest(key, known)}; use one of {', '.join(chips())}, or the path of a chip file",
        field="on",
    )


@functools.cache
def _shipped(name: str) -> tuple[Chip, Wiring]:
    return _build(name, tomllib.loads(_files()[name].read_text(encoding="utf-8")), name)


def _from_file(path: Path) -> tuple[Chip, Wiring]:
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise InputError(f"{path} has {size:,} bytes; a chip file has at most {_MOST_BYTES:,}", field="on")
        data = tomllib.loads(read_text(path, _MOST_BYTES))
    except InputError:
        raise
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}; give a chip's name or a TOML file", field="on"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a TOML file: {str(error)[:120]}", field="on") from None
    if "base" in data:
        data = _on_base(data, str(path))
    return _build(path.stem, data, str(path))


def _on_base(data: dict[str, Any], where: str) -> dict[str, Any]:
    base = data.pop("base")
    if not isinstance(base, str) or base not in _files():
        raise InputError(
            f"{where}: base = {base!r} is not a chip{nearest(str(base), _files())}; use one of {', '.join(chips())}",
            field="base",
        )
    result: dict[str, Any] = tomllib.loads(_files()[base].read_text(encoding="utf-8"))
    result["aliases"] = []
    for key, value in data.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = {**result[key], **value}
        else:
            result[key] = value
    return result


def _number(data: Mapping[str, Any], key: str, most: float, where: str, *, zero: bool = False) -> float:
    value = data.get(key)
    if value is None:
        raise InputError(f"{where}: {key} is missing; give a number", field=key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{where}: {key} = {str(value)[:40]!r} is not a number", field=key)
    if not (0 < value <= most or (zero and value == 0)):
        raise InputError(
            f"{where}: {key} = {str(value)[:40]} is out of range; give a number above 0, at most {most:g}", field=key
        )
    return float(value)


def _table(data: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise InputError(f"{where}: {key} must be a table, [{key}]", field=key)
    _known(value, _TABLES[key], f"{where}: [{key}]")
    return value


def _known(value: Mapping[str, Any], keys: Any, where: str) -> None:
    for key in value:
        if key not in keys:
            raise InputError(
                f"{where} has an unknown key {key!r}{nearest(key, keys)}; known are {', '.join(sorted(keys))}",
                field=key,
            )


def _text(data: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = data.get(key, default)
    if not isinstance(value, str):
        raise InputError(
            f"{where}: {key} {'is missing' if value is None else 'is not text'}; give a short text", field=key
        )
    return value[:400]


def _build(name: str, data: dict[str, Any], where: str) -> tuple[Chip, Wiring]:
    _known(data, _KEYS, where)
    rates = data.get("flops")
    if not isinstance(rates, dict) or not rates:
        raise InputError(
            f"{where}: [flops] is missing; give dense peak rates by dtype, such as bf16 = 1e14", field="flops"
        )
    flops = {dtype(key): _number(rates, key, 1e20, f"{where}: [flops]") for key in rates}
    fast = _table(data, "fast_memory", where)
    tile = data.get("tile", [1, 1, 1])
    if not isinstance(tile, list) or len(tile) != 3 or not all(isinstance(t, int) and 0 < t <= 4096 for t in tile):
        raise InputError(
            f"{where}: tile = {tile!r} must be three whole numbers (rows, contraction, columns)", field="tile"
        )
    price = _table(data, "price", where) if "price" in data else None
    units = data.get("units", {})
    if not isinstance(units, dict) or any(not isinstance(v, (int, float, str)) for v in units.values()):
        raise InputError(f"{where}: [units] must hold numbers or texts", field="units")
    sources = data.get("sources", {})
    if not isinstance(sources, dict) or any(not isinstance(v, str) for v in sources.values()):
        raise InputError(f"{where}: [sources] must hold one text a figure", field="sources")
    numbers = {key: _number(data, key, most, where) for key, most in _NUMBERS.items()}
    aliases = data.get("aliases", [])
    chip = Chip(
        name=name,
        title=_text(data, "title", where, name),
        family=_family(data, where),
        flops=flops,
        vector_flops=numbers["vector_flops"],
        hbm_bytes=numbers["hbm_bytes"],
        hbm_bandwidth=numbers["hbm_bandwidth"],
        fast_memory=Memory(
            _text(fast, "name", f"{where}: [fast_memory]"),
            _number(fast, "bytes", 1e15, f"{where}: [fast_memory]"),
            _number(fast, "bandwidth", 1e18, f"{where}: [fast_memory]"),
        ),
        tile=(tile[0], tile[1], tile[2]),
        cores=int(numbers["cores"]),
        clock_hz=numbers["clock_hz"],
        pcie_bandwidth=numbers["pcie_bandwidth"],
        chips_per_host=int(numbers["chips_per_host"]),
        host_memory_bytes=numbers["host_memory_bytes"],
        power_watts=numbers["power_watts"],
        price=None
        if price is None
        else Price(
            _number(price, "usd_per_hour", 1e6, f"{where}: [price]"),
            *(_text(price, key, where, "") for key in ("region", "date", "terms", "source")),
        ),
        units=units,
        sources={key: Source(text[:400]) for key, text in sources.items()},
        aliases=tuple(str(a) for a in aliases) if isinstance(aliases, list) else (),
    )
    return chip, _wiring(data, where)


def _family(data: Mapping[str, Any], where: str) -> str:
    family = _text(data, "family", where)
    if family not in ("tpu", "gpu", "cpu"):
        raise InputError(f"{where}: family = {family!r} is not known; use tpu, gpu or cpu", field="family")
    return family


def _wiring(data: Mapping[str, Any], where: str) -> Wiring:
    torus = None
    if "torus" in data:
        t = _table(data, "torus", where)
        at = f"{where}: [torus]"
        largest = t.get("largest")
        if (
            not isinstance(largest, list)
            or not 1 <= len(largest) <= 4
            or not all(isinstance(n, int) and 0 < n <= 4096 for n in largest)
        ):
            raise InputError(
                f"{at}: largest = {largest!r} must list one to four sides, such as [16, 16]", field="largest"
            )
        wrap = _text(t, "wrap", at)
        if wrap not in _WRAPS:
            raise InputError(
                f"{at}: wrap = {wrap!r} is not a rule{nearest(wrap, _WRAPS)}; use one of {', '.join(_WRAPS)}",
                field="wrap",
            )
        torus = TorusPlan(
            _text(t, "name", at, "ici"), tuple(largest), wrap, _number(t, "link_bandwidth", 1e15, at),
            _number(t, "hop_latency", 1.0, at, zero=True),
        )  # fmt: skip
    switches = []
    raw = data.get("switch", [])
    if not isinstance(raw, list) or len(raw) > 8:
        raise InputError(f"{where}: switch must be a list of tables, [[switch]], innermost first", field="switch")
    for position, s in enumerate(raw):
        at = f"{where}: [[switch]] {position + 1}"
        if not isinstance(s, dict):
            raise InputError(f"{at} must be a table", field="switch")
        _known(s, _TABLES["switch"], at)
        over = _number(s, "oversubscription", 1e4, at) if "oversubscription" in s else 1.0
        switches.append(
            SwitchPlan(
                _text(s, "name", at), int(_number(s, "size", 1e6, at)) if "size" in s else 0,
                _number(s, "bandwidth", 1e15, at) / over, _number(s, "latency", 10.0, at, zero=True),
                s.get("reduces", False) is True, int(_number(s, "largest", 1e9, at)) if "largest" in s else 10**6,
            )
        )  # fmt: skip
    for s in switches[:-1]:
        if s.size == 0 and torus is None:
            raise InputError(
                f"{where}: [[switch]] {s.name} needs a size, since it is not the outermost level", field="size"
            )
    wanted = _table(data, "slice", where)
    shape = str(wanted.get("shape") or wanted.get("chips") or "")
    if shape and "slices" in wanted:
        shape += f"*{wanted['slices']}"
    return Wiring(torus, tuple(switches), shape)
