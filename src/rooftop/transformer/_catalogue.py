"""Models by name: a catalogue as data, config files, hub ids, and a few numbers written inline."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from rooftop._files import read_text
from rooftop.errors import InputError, nearest
from rooftop.transformer._architecture import Architecture, uniform
from rooftop.transformer._config import from_config, read_config
from rooftop.transformer._hub import hub_config, is_hub_id
from rooftop.transformer._layers import MoE
from rooftop.units import parse_integer

_INLINE = {
    "layers": int, "d_model": int, "heads": int, "kv_heads": int, "head_dim": int, "d_ff": int, "vocab": int,
    "gated": bool, "tied": bool, "qkv_bias": bool, "out_bias": bool, "mlp_bias": bool, "qk_norm": bool,
    "norm_weights": int, "positions": int, "window": int, "window_every": int, "parallel": bool, "post_norms": bool,
    "experts": int, "active": int, "shared_d_ff": int,
}  # fmt: skip
_NEEDED = ("layers", "d_model", "heads", "d_ff", "vocab")
_FACTS = ("source", "date", "published_parameters", "published_active", "max_seq")
_FILES = ("models.toml", "configs.toml")


@functools.cache
def _table(file: str) -> dict[str, dict[str, Any]]:
    text = resources.files("rooftop.transformer").joinpath("data", file).read_text(encoding="utf-8")
    return tomllib.loads(text)


@functools.cache
def _aliases(file: str) -> dict[str, str]:
    return {alias.lower(): name for name, row in _table(file).items() for alias in row.get("aliases", [])}


def _find(key: str) -> tuple[str, dict[str, Any]] | None:
    """The name and the row of a model; a file is read only if those before it do not have it."""
    for file in _FILES:
        name = key if key in _table(file) else _aliases(file).get(key)
        if name is not None:
            return name, _table(file)[name]
    return None


def models() -> list[str]:
    """Names of the models of the catalogue."""
    return [name for file in _FILES for name in _table(file)]


def aliases() -> dict[str, str]:
    """Other names of the models of the catalogue, in small letters -> the name."""
    return {alias: name for file in reversed(_FILES) for alias, name in _aliases(file).items()}


def architecture(name: str) -> Architecture:
    """A model by catalogue name or alias, path of a config.json (or its folder, or a TOML file), hub id, or inline numbers.

    A hub id that the catalogue does not know is looked up in the local Hugging Face cache, then on the hub.
    """
    key = name.strip().lower()
    if len(key) < 200 and "=" not in key and _find(key) is not None:
        return _entry(key)
    if len(name) > 4000:
        raise InputError(
            f"a model of {len(name)} characters; give a name, the path of a config.json, or a few numbers",
            field="model",
        )
    if "=" in name:
        return _inline(dict(part.partition("=")[::2] for part in name.split(",") if part.strip()), "the model")
    path = Path(name).expanduser()
    if path.suffix == ".toml" and path.is_file():
        return _toml(path)
    if name.strip() and (path.exists() or path.suffix == ".json"):
        return read_config(path)
    known = [n for file in _FILES for n in (*_table(file), *_aliases(file))]
    if is_hub_id(name.strip()):
        return hub_config(name.strip(), nearest(key, known))
    raise InputError(
        f"unknown model {name[:80]!r}{nearest(key, known)}; give a name of the catalogue, the path of a config.json, or numbers such"
        " as layers=48,d_model=6144,heads=64,d_ff=24576,vocab=51200",
        field="model",
    )


@functools.cache
def _entry(key: str) -> Architecture:
    found = _find(key)
    assert found is not None
    name, row = found[0], dict(found[1])
    facts: dict[str, Any] = {k: row.pop(k) for k in _FACTS if k in row}
    facts["aliases"] = tuple(row.pop("aliases", ()))
    if "config" in row:
        facts.pop("max_seq", None)
        note = row.pop("note", "")
        arch = from_config(row["config"], name=name, where=name, **facts)
        return replace(arch, notes=(*arch.notes, f"{name}: {note}")) if note else arch
    return _built(name, row, facts)


def _built(name: str, row: dict[str, Any], facts: dict[str, Any]) -> Architecture:
    """An architecture of equal layers from a few numbers."""
    heads, layers, d_model = row["heads"], row["layers"], row["d_model"]
    moe = None
    if row.get("experts"):
        moe = MoE(
            row["experts"], row.get("active", 1), row["d_ff"], row.get("gated", True), row.get("mlp_bias", False),
            row.get("shared_d_ff", 0),
        )  # fmt: skip
    stack = uniform(
        layers, heads, row.get("kv_heads", heads), row.get("head_dim", d_model // max(1, heads)), row["d_ff"],
        gated=row.get("gated", True), mlp_bias=row.get("mlp_bias", False),
        bias="qkv" * row.get("qkv_bias", False) + "o" * row.get("out_bias", False),
        qk_norm="head" if row.get("qk_norm") else "", norms="both" if row.get("post_norms") else "pre",
        windows=_windows(row.get("window", 0), row.get("window_every", 1), layers),
        parallel="one" if row.get("parallel") else "", moe=moe,
    )  # fmt: skip
    return Architecture(
        name=name, d_model=d_model, vocab=row["vocab"], stack=stack, tied=row.get("tied", False),
        norm_weights=row.get("norm_weights", 1), positions=row.get("positions", 0), **facts,
    )  # fmt: skip


def _windows(window: int, every: int, layers: int) -> tuple[int, ...]:
    """window_every = n: every n-th layer attends to everything, the others to the window; 1: all have the window."""
    if not window:
        return ()
    return tuple(window if every <= 1 or (i + 1) % every else 0 for i in range(min(layers, 10_001)))


def _toml(path: Path) -> Architecture:
    try:
        if path.stat().st_size > 1_000_000:
            raise InputError(f"{path} is too large for a model file (1 MB at most)", field="model")
        data = tomllib.loads(read_text(path, 1_000_000))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not a TOML file: {str(error)[:120]}", field="model") from None
    return _inline({k: str(v) for k, v in data.items()}, str(path), name=path.stem)


def _inline(values: dict[str, str], where: str, name: str = "model") -> Architecture:
    row: dict[str, Any] = {}
    for key, text in values.items():
        key = key.strip()
        if key not in _INLINE:
            raise InputError(
                f"{where} has an unknown number {key[:40]!r}{nearest(key, _INLINE)}; known are {', '.join(_INLINE)}",
                field="model",
            )
        if _INLINE[key] is bool:
            if text.strip().lower() not in ("true", "false"):
                raise InputError(f"{where}: {key} = {text[:40]!r} is not true or false", field=key)
            row[key] = text.strip().lower() == "true"
        else:
            row[key] = parse_integer(text, key)
    missing = [key for key in _NEEDED if key not in row]
    if missing:
        raise InputError(f"{where} lacks {', '.join(missing)}; give at least {', '.join(_NEEDED)}", field=missing[0])
    for key, value in row.items():
        if not isinstance(value, bool) and not 0 <= value <= 10**8:
            raise InputError(f"{where}: {key} = {value:.4g} is out of range; give a whole number up to 1e8", field=key)
    if row.get("norm_weights", 1) > 2:
        raise InputError(f"{where}: norm_weights = {row['norm_weights']}; give 0, 1 or 2", field="norm_weights")
    if "head_dim" not in row and (row["heads"] == 0 or row["d_model"] % row["heads"]):
        raise InputError(
            f"{where}: {row['heads']} heads do not divide d_model {row['d_model']}; give head_dim", field="head_dim"
        )
    return _built(name, row, {"source": where})
