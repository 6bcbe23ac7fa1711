"""Reading one field after another of an outside document, with suspicion, and remembering which ones were read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rooftop.errors import InputError

_MOST = 10**9


class Fields:
    """The fields of a config.json. Every getter checks the type and the range, and raises InputError that names the field.

    A getter takes the names that one quantity goes by; the first that is there and not null counts.
    """

    def __init__(self, data: Mapping[str, Any], where: str, family: str) -> None:
        self.data, self.where, self.family = data, where, family
        self.used: set[str] = set()
        self.notes: list[str] = []

    def find(self, *names: str) -> tuple[str, Any]:
        """The first of the names that is there, and its value; (the first name, None) if none is."""
        self.used.update(names)
        return next(((n, self.data[n]) for n in names if self.data.get(n) is not None), (names[0], None))

    def has(self, *names: str) -> bool:
        """Whether one of the names is there and says something (is not null, false, 0 or empty)."""
        return bool(self.find(*names)[1])

    def integer(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """A whole number."""
        name, value = self.find(*names)
        if value is None:
            if default is None:
                raise InputError(
                    f"{self.where}: {names[0]} is missing; a {self.family[:40]} config needs it", field=name
                )
            return default
        return self._whole(name, value, least)

    def _whole(self, name: str, value: Any, least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(f"{self.where}: {name} = {str(value)[:40]!r} is not a whole number", field=name)
        if not least <= value <= _MOST:
            shown = str(value)[:40] if value.bit_length() < 1000 else "a huge number"
            raise InputError(
                f"{self.where}: {name} = {shown} is out of range; give a whole number from {least} to 1e9", field=name
            )
        return value

    def integers(self, name: str, count: int | None = None, least: int = 0) -> tuple[int, ...] | None:
        """A list of whole numbers, or None if it is not there."""
        _, value = self.find(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > 100_000 or (count is not None and len(value) != count):
            raise InputError(f"{self.where}: {name} must be a list{f' of {count}' if count else ''}", field=name)
        return tuple(self._whole(name, v, least) for v in value)

    def number(self, name: str, default: float) -> float:
        """A number from 0 on."""
        _, value = self.find(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
            raise InputError(f"{self.where}: {name} = {str(value)[:40]!r} is not a number from 0 to 1e9", field=name)
        return float(value)

    def flag(self, *names: str, default: bool = False) -> bool:
        """True or false."""
        name, value = self.find(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(f"{self.where}: {name} = {str(value)[:40]!r} is not true or false", field=name)
        return value

    def word(self, *names: str, default: str = "") -> str:
        """A short text."""
        name, value = self.find(*names)
        if value is None:
            return default
        if not isinstance(value, str) or len(value) > 10_000:
            raise InputError(f"{self.where}: {name} = {str(value)[:40]!r} is not a name", field=name)
        return value

    def kinds(self, name: str, count: int, known: Iterable[str]) -> Sequence[str] | None:
        """A list that names a kind for each layer, or None if it is not there."""
        known = tuple(known)
        _, value = self.find(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != count or any(v not in known for v in value):
            raise InputError(f"{self.where}: {name} must list {count} of {', '.join(known)}", field=name)
        return value

    def object(self, name: str) -> Mapping[str, Any] | None:
        """A nested object, or None if it is not there."""
        _, value = self.find(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise InputError(f"{self.where}: {name} = {str(value)[:40]!r} is not an object", field=name)
        return value

    def inside(self, name: str, data: Mapping[str, Any]) -> Fields:
        """The fields of a nested object; notes are shared."""
        inner = Fields(data, f"{self.where}: {name}", self.family)
        inner.notes = self.notes
        return inner
