"""Models as published tables name them."""

from __future__ import annotations

import functools
import re
import tomllib
from importlib import resources
from pathlib import Path

from rooftop.errors import InputError
from rooftop.transformer import Architecture, architecture

#: What names add to those of the catalogue: formats of weights, tuning, dates.
_SUFFIX = re.compile(r"-(instruct|chat|base|hf|it|fp8|fp4|nvfp4|mxfp4|mxfp8|bf16|v2|\d{4})$")


def model_of(name: str) -> Architecture:
    """The model of a row: from the numbers in the package, or of the catalogue, with or without an owner and suffixes."""
    for table in _named().values():
        if name in table:
            return architecture(table[name])
    if "=" in name:  # numbers
        return architecture(name)
    key = name.rpartition("/")[2].strip().lower()
    while key:
        if (found := _known(key)) is not None:
            return found
        shorter = _SUFFIX.sub("", key)
        if shorter == key:
            break
        key = shorter
    raise InputError(f"the model {name[:80] or '(none)'} is not known", field="model")


@functools.cache
def _known(name: str) -> Architecture | None:
    """A model of the catalogue; a table never names files, nor makes us ask a hub."""
    if Path(name).exists() or Path(name).suffix in (".json", ".toml"):
        return None
    try:
        return architecture(name)
    except InputError:
        return None


@functools.cache
def _named() -> dict[str, dict[str, str]]:
    text = resources.files("rooftop.measure").joinpath("data/models.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
