"""Models by name: a catalogue as data, config files, and a few numbers written inline."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from rooftop.errors import InputError, nearest
from rooftop.transformer._architecture import Architecture
from rooftop.transformer._config import read_config
from rooftop.units import parse_integer

_INLINE = {
    "layers": int, "d_model": int, "heads": int, "kv_heads": int, "head_dim": int, "d_ff": int, "vocab": int,
    "gated": bool, "tied": bool, "qkv_bias": bool, "out_bias": bool, "mlp_bias": bool, "qk_norm": bool,
    "norm_weights": int, "positions": int,
}  # fmt: skip
_NEEDED = ("layers", "d_model", "heads", "d_ff", "vocab")


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    text = resources.files("rooftop.transformer").joinpath("data/models.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@functools.cache
def _aliases() -> dict[str, str]:
    return {alias.lower(): name for name, row in _table().items() for alias in row.get("aliases", [])}


def models() -> list[str]:
    """Names of the models of the catalogue."""
    return list(_table())


def architecture(name: str) -> Architecture:
    """A model by catalogue name or alias, path of a config.json (or its folder, or a TOML file), or inline numbers."""
    if len(name) > 4000:
        raise InputError(
            f"a model of {len(name)} characters; give a name, the path of a config.json, or a few numbers",
            field="model",
        )
    key = name.strip().lower()
    if key in _table():
        return _entry(key)
    if key in _aliases():
        return _entry(_aliases()[key])
    if "=" in name:
        return _inline(dict(part.partition("=")[::2] for part in name.split(",") if part.strip()), "the model")
    path = Path(name).expanduser()
    if path.suffix == ".toml" and path.is_file():
        return _toml(path)
    if key and (path.exists() or path.suffix == ".json"):
        return read_config(path)
    known = [*_table(), *_aliases()]
    raise InputError(
        f"unknown model {name[:80]!r}{nearest(key, known)}; give a name of the catalogue, the path of a config.json, or numbers such"
        " as layers=48,d_model=6144,heads=64,d_ff=24576,vocab=51200",
        field="model",
    )


@functools.cache
def _entry(name: str) -> Architecture:
    row = dict(_table()[name])
    row["windows"] = _windows(row.pop("window", 0), row.pop("window_every", 1), row["layers"])
    row["aliases"] = tuple(row.get("aliases", ()))
    row.setdefault("kv_heads", row["heads"])
    row.setdefault("head_dim", row["d_model"] // row["heads"])
    return Architecture(name=name, **row)


def _windows(window: int, every: int, layers: int) -> tuple[int, ...]:
    """window_every = n: every n-th layer attends to everything, the others to the window; 1: all have the window."""
    if not window:
        return ()
    return tuple(window if every == 1 or (i + 1) % every else 0 for i in range(layers))


def _toml(path: Path) -> Architecture:
    try:
        if path.stat().st_size > 1_000_000:
            raise InputError(f"{path} is too large for a model file (1 MB at most)", field="model")
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
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
    row.setdefault("kv_heads", row["heads"])
    if "head_dim" not in row:
        if row["heads"] == 0 or row["d_model"] % row["heads"]:
            raise InputError(
                f"{where}: {row['heads']} heads do not divide d_model {row['d_model']}; give head_dim", field="head_dim"
            )
        row["head_dim"] = row["d_model"] // row["heads"]
    return Architecture(name=name, source=where, **row)
