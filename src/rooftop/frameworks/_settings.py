"""Configurations of outside as flat settings: YAML, TOML, JSON, and the arguments in a shell script, which is never run.

Nested tables become dotted keys. Files are bounded; YAML may hold plain data only, and no aliases, which could grow without end.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rooftop._files import read_text
from rooftop.errors import InputError, MissingExtra

_MOST_BYTES = 1_000_000
_MOST_SETTINGS = 20_000
_SUFFIXES = {".yml": "yaml", ".yaml": "yaml", ".toml": "toml", ".json": "json"}

Settings = dict[str, Any]


def read_settings(path: Path) -> tuple[str, Settings]:
    """(format, settings): yaml, toml, json, or arguments for everything else. Raises InputError, MissingExtra for YAML."""
    kind = _SUFFIXES.get(path.suffix.lower(), "arguments")
    try:
        text = read_text(path, _MOST_BYTES)
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}; give a configuration of at most {_MOST_BYTES:,} bytes",
            field="file",
        ) from None
    except UnicodeDecodeError:
        raise InputError(
            f"{path} is not text; give a configuration in YAML, TOML, JSON or arguments", field="file"
        ) from None
    try:
        return kind, parse(kind, text)
    except (ValueError, RecursionError) as error:
        told = " ".join(str(error).split())[:160]
        raise InputError(f"{path} is not {kind.upper()}: {told}", field="file") from None


def parse(kind: str, text: str) -> Settings:
    """The settings in a text. Raises ValueError for what is not of the kind."""
    if kind == "arguments":
        return arguments(text)
    readers: dict[str, Callable[[str], Any]] = {"yaml": _yaml, "toml": tomllib.loads, "json": json.loads}
    data = readers[kind](text)
    if not isinstance(data, Mapping):
        raise ValueError("it holds no table of settings")
    result: Settings = {}
    _flatten(data, "", result)
    return result


def _flatten(data: Mapping[Any, Any], prefix: str, into: Settings) -> None:
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            _flatten(value, f"{name}.", into)
        elif len(into) >= _MOST_SETTINGS:
            raise ValueError(f"more than {_MOST_SETTINGS:,} settings")
        else:
            into[name] = value


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise MissingExtra(
            "YAML needs PyYAML, which is not installed; install it with pip install 'rooftop[configs]'", field="file"
        ) from None

    class Plain(yaml.SafeLoader):  # type: ignore[misc]
        """Without aliases."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.events.AliasEvent):
                raise ValueError("aliases (*name) are not read; write what they stand for")
            return super().compose_node(parent, index)

    try:
        return yaml.load(text, Loader=Plain)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


_KEY = re.compile(r"--[A-Za-z][\w.-]*(?:=.*)?\Z", re.DOTALL)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)\Z", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::-([^{}]*))?\}|(\w+))")
_PRODUCT = re.compile(r"\$\(\(\s*(\d+(?:\s*\*\s*\d+)*)\s*\)\)")


def arguments(text: str) -> Settings:
    """`--key value`, `--key=value` and `key=value` of a command, of a script, or one a line; keys without their dashes.

    Variables that the text sets are filled in, others stay as they are written. Nothing is run: arguments inside of
    conditions are taken as if all held, the last one of a key counts.
    """
    result: Settings = {}
    known: dict[str, str] = {}
    for line in _lines(text):
        words = _words(_filled(line, known))
        if words and words[0] in ("export", "local", "readonly", "set", "#SBATCH"):
            words = words[1:]
        set_here = [m for m in map(_ASSIGNED.match, words) if m and not m[2].startswith("(")]
        if words and len(set_here) == len(words):  # variables; their values may be arguments themselves
            known |= {m[1]: m[2].strip() for m in set_here}
            words = [word for m in set_here if " --" in f" {m[2]}" for word in m[2].split()]
        _take(words, result)
        if len(result) > _MOST_SETTINGS:
            raise ValueError(f"more than {_MOST_SETTINGS:,} arguments")
    return result


def _lines(text: str) -> list[str]:
    """Logical lines, without comments that have a line to themselves."""
    kept = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return "\n".join(kept).replace("\\\n", " ").splitlines()


def _words(line: str) -> list[str]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a quotation over several lines
        words = line.replace('"', " ").replace("'", " ").split()
    # "--fp8-format hybrid" in one pair of quotation marks is two words to whoever expands it
    return [part for word in words for part in (word.split() if word.startswith("--") else [word])]


def _filled(line: str, known: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[3], match[2]
        return known.get(name) or (match[0] if default is None else default)

    line = _VARIABLE.sub(value, line)

    def product(match: re.Match[str]) -> str:
        result = 1
        for factor in match[1].split("*"):
            result *= int(factor)
        return str(result)

    return _PRODUCT.sub(product, line)


def _take(words: list[str], into: Settings) -> None:
    key: str | None = None
    for word in words:
        closed = word.strip("()")
        if _KEY.match(word):
            key, equals, value = word[2:].partition("=")
            into[key] = value if equals else True
            key = None if equals else key
        elif (key is not None and closed and not closed.startswith("-")) or (
            key is not None and re.fullmatch(r"-\d[\d.eE+-]*", closed)
        ):
            into[key], key = closed, None
        elif key is None and word is not words[0] and (match := _ASSIGNED.match(word)) and not match[2].startswith("("):
            into[match[1]] = match[2]
