"""Settings of a configuration, taken one by one: what is taken is understood, what is left is named to the user."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rooftop.errors import InputError
from rooftop.hardware import Slice, slice_of
from rooftop.training import RECIPES
from rooftop.transformer import (
    Architecture,
    architecture,
    catalogue_name,
    numbers_of,
    with_capacity,
    words_of,
    words_of_numbers,
)

#: Names that frameworks give to models of the catalogue, where letters and digits differ.
_NAMES = {
    "deepseek216b": "deepseek-v2-lite", "deepseekv316b": "deepseek-v2-lite", "deepseek2236b": "deepseek-v2",
    "deepseek3671b": "deepseek-v3", "deepseekv3671b": "deepseek-v3", "kimik21t": "kimi-k2", "qwen3480ba35b": "qwen3-coder-480b-a35b",
    "llama417b16e": "llama-4-scout", "llama417b128e": "llama-4-maverick", "llama417bx16e": "llama-4-scout",
    "llama417bx128e": "llama-4-maverick", "gemma426b": "gemma-4-26b-a4b", "gptoss20b": "gpt-oss-20b",
}  # fmt: skip


@dataclass(slots=True)
class Run:
    """What a configuration says of a run, in the planner's terms.

    mesh: ways by axis. microbatches: of a step, None if it does not say. sequences: in a step. choices, options: of a plan and
    a question by name.
    """

    model: Architecture
    words: str
    where: Slice
    seq: int
    mesh: dict[str, int]
    sequences: int
    microbatches: int | None = None
    choices: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


class Reader:
    """Settings by key, as they are taken. on, model, seq: what the user says, which counts before the file.

    notes: how settings were read where that is not plain.
    """

    def __init__(
        self, settings: Mapping[str, Any], title: str, *, model: str | None, on: str | None, seq: int | None
    ) -> None:
        self.settings, self.title, self.model, self.on, self.given_seq = settings, title, model, on, seq
        self.notes: list[str] = []
        self._taken: set[str] = set()

    @property
    def unread(self) -> tuple[str, ...]:
        """Keys that nobody took."""
        return tuple(key for key in self.settings if key not in self._taken)

    def raw(self, *keys: str) -> Any:
        """The first of these keys that is set, or None."""
        self._taken.update(keys)
        return next((self.settings[k] for k in keys if self.settings.get(k) is not None), None)

    def text(self, *keys: str, default: str = "") -> str:
        """A text."""
        value = self.raw(*keys)
        return default if value is None else str(value)[:400]

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false; an argument without a value is true."""
        value = self.raw(key)
        if value is None:
            return default
        told = str(value).strip().lower()
        if told not in ("true", "false", "1", "0"):
            raise self.wrong(key, value, "true or false")
        return told in ("true", "1")

    def number(self, *keys: str, default: float | None = None) -> float | None:
        """A number."""
        value = self.raw(*keys)
        if value is None:
            return default
        key = next(k for k in keys if self.settings.get(k) is not None)
        try:
            result = float(value.replace("_", "") if isinstance(value, str) else value)
        except (TypeError, ValueError):
            raise self.wrong(key, value, "a number") from None
        if isinstance(value, bool) or not math.isfinite(result):
            raise self.wrong(key, value, "a number")
        return result

    def integer(self, *keys: str, default: int | None = None, least: int = 1) -> int | None:
        """A whole number from `least`."""
        result = self.number(*keys)
        if result is None:
            return default
        key = next(k for k in keys if self.settings.get(k) is not None)
        if result != int(result) or not least <= result <= 1e9:
            raise self.wrong(key, self.settings[key], f"a whole number from {least}")
        return int(result)

    def needed(self, *keys: str) -> int:
        """A whole number that must be there."""
        result = self.integer(*keys)
        if result is None:
            raise InputError(f"{self.title}: {keys[0]} is missing; add it to the file", field=keys[0])
        return result

    def wrong(self, key: str, value: Any, allowed: str) -> InputError:
        """The error of a value that is not what its key allows."""
        hint = "; give it a value in the file" if "$" in str(value) else ""
        return InputError(f"{self.title}: {key} = {str(value)[:60]!r} is not {allowed}{hint}", field=key)

    def among(self, key: str, value: str, table: Mapping[str, Any]) -> Any:
        """What a table has for a value. Raises InputError."""
        if value not in table:
            raise self.wrong(key, value, f"known; it may be {', '.join(table)}")
        return table[value]

    def inert(self, *keys: str) -> None:
        """Keys that are understood, and change nothing that is planned."""
        self._taken.update(keys)

    def note(self, text: str) -> None:
        """Say how something was read."""
        self.notes.append(text)

    def slice(self, text: str | None, chips: int | None = None, least: int = 1) -> Slice:
        """The slice: the user's, of as many chips as the file says where they named a chip alone, or the file's.

        least: chips without which there is no group of its parallelism.
        """
        if self.on is None and text is None:
            told = f"; it runs on {chips} chips" if chips else ""
            raise InputError(f"{self.title}: the file does not say on what it runs{told}; give --on SLICE", field="on")
        if self.on is None:
            return slice_of(str(text))
        if chips is not None and ":" not in self.on and chips > 1:
            return slice_of(f"{self.on}:{chips}")
        found = slice_of(self.on)
        if least > found.chips:
            told = f", and it starts {chips} processes" if chips else ""
            raise InputError(
                f"{self.title}: its parallelism needs a multiple of {least} chips{told}; name a slice with as many, such as --on"
                f" {found.chip.name}:{least}",
                field="on",
            )
        if chips is not None and chips != found.chips:
            self.note(f"the file starts {chips} processes, {found.name} has {found.chips} chips; {found.name} is taken")
        return found

    def architecture(
        self, name: str = "", numbers: Mapping[str, Any] | None = None, capacity: float = 1.0
    ) -> tuple[Architecture, str]:
        """(model, its words): the user's; or of that name in the catalogue, with these numbers for its own; or of the numbers."""
        if self.model is not None:
            return self._with(architecture(self.model), self.model, capacity)
        found = _called(name)
        if found is not None and not numbers:
            return self._with(architecture(found), found, capacity)
        if found is not None:
            numbers = {**(numbers_of(architecture(found)) or {}), **(numbers or {})}
        if not numbers:
            told = (
                f"the model {name[:60]!r} is not in the catalogue"
                if name
                else "the file does not say which model it trains"
            )
            raise InputError(f"{self.title}: {told}; give --model MODEL", field="model")
        text = words_of_numbers({k: v for k, v in numbers.items() if v is not None})
        try:
            arch = architecture(text)
        except InputError as error:
            raise InputError(f"{self.title}: {error.message}", field=error.field) from None
        return self._with(arch, words_of(arch) or text, capacity)

    def _with(self, arch: Architecture, words: str, capacity: float) -> tuple[Architecture, str]:
        if arch.experts is not None and capacity != 1.0:
            arch = with_capacity(arch, capacity)
        return arch, words


def rest(mesh: Mapping[str, int], chips: int, axis: str, title: str) -> int:
    """The ways that are left for one axis, so that the mesh has all chips. Raises InputError."""
    others = math.prod(n for a, n in mesh.items() if a != axis)
    if chips % others:
        shown = ", ".join(f"{a}={n}" for a, n in mesh.items() if n > 1 and a != axis)
        raise InputError(
            f"{title}: {shown} does not divide {chips} chips; give the slice that it runs on with --on", field="mesh"
        )
    return chips // others


def precision(
    compute: str, stored: str, *, moments: str | None = None, gradients: str | None = None, reduction: str | None = None,
    matmul: str | None = None,
) -> dict[str, str]:  # fmt: skip
    """Options of a question whose recipe has these dtypes. stored: of the widest copy of the weights. Raises InputError."""
    fitting = [
        (name, r)
        for name, r in RECIPES.items()
        if (r.compute, r.master or r.weights, r.matmul) == (compute, stored, matmul)
    ]
    if not fitting:
        raise InputError(
            f"weights in {stored} with matmuls in {matmul or compute} are no recipe of the planner; the recipes are"
            f" {', '.join(RECIPES)}",
            field="precision",
        )
    name, found = next(((n, r) for n, r in fitting if r.moments == moments), fitting[0])
    told = {"optimizer_dtype": (moments, found.moments), "gradient_dtype": (gradients, found.gradients),
            "reduction_dtype": (reduction, found.reduction)}  # fmt: skip
    return {"precision": name, **{key: a for key, (a, b) in told.items() if a is not None and a != b}}


def _called(name: str) -> str | None:
    """The model of the catalogue that a framework calls so."""
    plain = "".join(c for c in name.lower() if c.isalnum())
    return _NAMES.get(plain) or (catalogue_name(name) if plain else None)
