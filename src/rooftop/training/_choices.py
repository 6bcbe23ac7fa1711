"""What a plan chooses beside its mesh. One field of `Choices` is one choice: its values, who offers it, what it means.

The command line, saved plans, the search and the printed answer all go over these fields; a new choice is a new field and the
formula that reads it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

from rooftop.errors import InputError, nearest


def _choice(default: Any, values: tuple[Any, ...], *, layout: bool, help: str) -> Any:
    return field(default=default, metadata={"values": values, "layout": layout, "help": help})


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices of one plan. Those of `layout` decide shardings, and so the resolved programs; all others do not."""

    zero: int = _choice(3, (3, 2, 1), layout=True, help="ZeRO stage of the fsdp axis.")
    #: in the order of how much runs again: an earlier one is never slower
    remat: str = _choice("none", ("none", "selective", "full"), layout=False, help="Rematerialisation.")

    @property
    def layout(self) -> Choices:
        """The choices that decide shardings, all others at their defaults."""
        defaults: dict[str, Any] = {f.name: f.default for f in choices() if not f.metadata["layout"]}
        return replace(self, **defaults)

    def never_faster_than(self, other: Choices) -> bool:
        """Whether a plan with these choices cannot beat the same plan with the others: more of it runs again."""
        policies = values_of("remat")
        more = policies.index(self.remat) > policies.index(other.remat)
        return more and replace(self, remat=other.remat) == other

    def check(self, where: str = "") -> Choices:
        """The same, if every value is allowed. Raises InputError; `where` names a file."""
        for f in choices():
            name, value, values = f.name, getattr(self, f.name), f.metadata["values"]
            if type(value) is not type(values[0]) or value not in values:
                shown = [str(v) for v in values]
                hint = nearest(value, shown) if isinstance(value, str) else ""
                raise InputError(
                    f"{where + ': ' if where else ''}{name} = {repr(value)[:40]} is not known{hint}; use"
                    f" {', '.join(shown[:-1])} or {shown[-1]} ({f.metadata['help'].rstrip('.')})",
                    field=name,
                )
        return self


#: What a plan does that says nothing else.
DEFAULT = Choices()


def choices() -> tuple[Field[Any], ...]:
    """The fields, in order."""
    return fields(Choices)


def values_of(name: str) -> tuple[Any, ...]:
    """All values of a choice, the first to be tried first."""
    (values,) = (f.metadata["values"] for f in choices() if f.name == name)
    return tuple(values)


def combinations(allowed: Mapping[str, tuple[Any, ...]]) -> Iterator[Choices]:
    """Every combination of the allowed values (all values of a choice that is not named), in the order of the fields."""
    names = [f.name for f in choices()]
    for name, values in allowed.items():
        for value in values:
            replace(DEFAULT, **{name: value}).check()
    options = [[v for v in values_of(n) if n not in allowed or v in allowed[n]] for n in names]
    for values in itertools.product(*options):
        yield Choices(**dict(zip(names, values, strict=True)))
