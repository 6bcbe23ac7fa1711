"""What a plan chooses beside its mesh. One field of `Choices` is one choice: its values, who offers it, what it means.

The command line, saved plans, the search and the printed answer all go over these fields; a new choice is a new field and the
formula that reads it. A search tries the `tried` values of a field unless the user names others: those that any framework
offers and that change what the best plan is; all others must be asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

import numpy as np

from rooftop.errors import InputError, nearest
from rooftop.training._remat import AUTO, POLICIES, SAVE


def _choice(
    default: Any,
    values: tuple[Any, ...],
    *,
    help: str,
    layout: bool = False,
    tried: tuple[Any, ...] | None = None,
    axis: str | None = None,
    axes: bool = False,
    asked: tuple[Any, ...] = (),
    begins: str | None = None,
    follows: bool = False,
) -> Any:
    """layout: decides shardings. tried: the values of a search that is told nothing, all if None. axis: the mesh axis without
    which the choice means nothing; axes: those that a value names, with commas. asked: what asks a search for a value that is
    none of the others. begins: any text that begins so is a value, too. follows: from the mesh, so that nobody is asked.
    """
    tried = values if tried is None else tried
    return field(
        default=default,
        metadata={
            "values": values,
            "tried": tried,
            "layout": layout,
            "axis": axis,
            "axes": axes,
            "help": help,
            "asked": asked,
            "begins": begins,
            "follows": follows,
        },
    )


#: What may lie in host memory.
OFFLOADED = ("optimizer", "params", "activations")


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices of one plan. Those of `layout` decide shardings, and so the resolved programs; all others do not."""

    zero: int = _choice(3, (3, 2, 1, 0), tried=(3, 2, 1), layout=True, help="ZeRO stage of the fsdp axis.")
    outer_zero: int = _choice(
        0, (0, 1), tried=(0,), axis="data", layout=True,
        help="ZeRO stage of the data axis: 1 splits optimizer states over it, too, however fsdp splits.",
    )  # fmt: skip
    context_kind: str = _choice(
        "ring", ("ring", "gather", "ulysses"), tried=("ring",), axis="context", layout=True,
        help="What context ways do for attention: pass keys around, gather them first, or swap tokens for heads.",
    )  # fmt: skip
    causal: str = _choice(
        "balanced", ("balanced", "contiguous"), tried=("balanced",), axis="context", layout=True,
        help="Tokens of a chip with context ways: an early and a late chunk, or one chunk, whose last one has most to attend to.",
    )  # fmt: skip
    expert_fold: str = _choice(
        "none", ("none", "tensor", "context", "tensor,context"), tried=("none",), axes=True, layout=True,
        help="Axes over which whole experts lie beside expert, where their width or their tokens would be split otherwise.",
    )  # fmt: skip
    expert_zero: int = _choice(
        0, (0, 1), tried=(0,), axis="expert", layout=True,
        help="1 splits what is no expert over it as over fsdp, by its ZeRO stage; 0 replicates it.",
    )  # fmt: skip
    grid: bool = _choice(
        False, (False, True), tried=(False,), axis="tensor_transpose", layout=True, follows=True,
        help="Whether tensor and tensor_transpose split weights in two dimensions: where the latter has several ways.",
    )  # fmt: skip
    #: in the order of how much runs again: an earlier one is never slower
    remat: str = _choice(
        "none", POLICIES, asked=(AUTO,), begins=SAVE,
        help="Rematerialisation; auto: the best set of named arrays to keep that fits; save:q,k,v keeps these.",
    )  # fmt: skip
    offload: str = _choice(
        "none", ("none", *(",".join(c) for n in (1, 2, 3) for c in itertools.combinations(OFFLOADED, n))), tried=("none",),
        help="What lies in host memory: any of optimizer, params and activations, with commas.",
    )  # fmt: skip
    schedule: str = _choice(
        "1f1b", ("1f1b", "gpipe", "zb-h1", "zb-h2", "dualpipe"), tried=("1f1b",), axis="pipeline",
        help="Pipeline schedule; 1f1b with --chunks above 1 is interleaved.",
    )  # fmt: skip
    chunks: int = _choice(
        1, (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20), tried=(1,), axis="pipeline",
        help="Chunks of layers of a pipeline stage, which 1f1b interleaves.",
    )  # fmt: skip
    embed_layers: int = _choice(
        0, (0, 1, 2), tried=(0,), axis="pipeline", help="Layers fewer on the first pipeline stage, for the embedding."
    )
    head_layers: int = _choice(
        0, (0, 1, 2, 3, 4, 5, 6, 7, 8), tried=(0,), axis="pipeline", help="Layers fewer on the last pipeline stage, for the head."
    )  # fmt: skip

    @property
    def layout(self) -> Choices:
        """The choices that decide shardings, all others at their defaults."""
        defaults: dict[str, Any] = {f.name: f.default for f in choices() if not f.metadata["layout"]}
        return replace(self, **defaults)

    def on(self, mesh: Mapping[str, int]) -> Choices:
        """The same with what follows from a mesh."""
        return replace(self, grid=mesh.get("tensor_transpose", 1) > 1)

    def of_axis(self, axis: str) -> Choices:
        """The choices about one mesh axis, all others at their defaults."""
        defaults: dict[str, Any] = {f.name: f.default for f in choices() if f.metadata["axis"] != axis}
        return replace(self, **defaults)

    def never_faster_than(self, other: Choices) -> bool:
        """Whether a plan with these choices cannot beat the same plan with the others: more of it runs again, or more lies in
        host memory. What runs again is not brought from there: with activations there, more recomputation may be faster.
        """
        more = self.remat != other.remat
        if more and not _more_again(self.remat, other.remat):
            return False
        if self == other or not self.offloads >= other.offloads or (more and "activations" in other.offloads):
            return False
        return replace(self, remat=other.remat, offload=other.offload) == other

    @property
    def offloads(self) -> frozenset[str]:
        """Which of OFFLOADED lie in host memory."""
        return frozenset(self.offload.split(",")) & frozenset(OFFLOADED)

    @property
    def sets(self) -> tuple[str, ...]:
        """The set of arrays that is kept by name, if one is."""
        return (self.remat,) if self.remat.startswith(SAVE) else ()

    def check(self, where: str = "", *, search: bool = False) -> Choices:
        """The same, if every value is allowed. Raises InputError; `where` names a file. search: also what asks for a value."""
        prefix = where + ": " if where else ""
        for f in choices():
            name, value, values = f.name, getattr(self, f.name), f.metadata["values"]
            if not is_value(f, value, search=search):
                shown = [str(v) for v in (*values, *(f.metadata["asked"] if search else ()))]
                hint = nearest(value, shown) if isinstance(value, str) else ""
                raise InputError(
                    f"{prefix}{name} = {repr(value)[:40]} is not known{hint}; use"
                    f" {', '.join(shown[:-1])} or {shown[-1]} ({f.metadata['help'].rstrip('.')})",
                    field=name,
                )
        if self.idle:
            raise InputError(f"{prefix}{self.idle}", field="causal")
        return self

    @property
    def idle(self) -> str:
        """Why one of the choices changes nothing beside another one; empty if all count."""
        if self.context_kind == "ulysses" and self.causal == "contiguous":
            return "causal=contiguous changes nothing with context_kind=ulysses, which shares heads out; leave it out"
        return ""

    def check_used(self, mesh: Mapping[str, int], where: str = "") -> Choices:
        """The same, if none of them is about an axis that a mesh does not use. Raises InputError; `where` names a file."""
        for f in choices():
            value = getattr(self, f.name)
            for axis in needs(f, value):
                if mesh.get(axis, 1) == 1:
                    raise InputError(
                        f"{where + ': ' if where else ''}{f.name}={value} means nothing without {axis} ways; give the mesh"
                        f" {axis}=2 or more, or leave {f.name} out",
                        field=f.name,
                    )
        return self


def _more_again(a: str, b: str) -> bool:
    """Whether remat policy a runs all again that b does, and more; of sets of names only that is known that holds for all."""
    if a in POLICIES and b in POLICIES:
        return POLICIES.index(a) > POLICIES.index(b)
    return a == POLICIES[-1] or b == POLICIES[0]


def is_value(choice: Field[Any], value: Any, *, search: bool = False) -> bool:
    """Whether a value is one of a choice; search: or asks for one."""
    m = choice.metadata
    if isinstance(value, str) and m["begins"] is not None and value.startswith(m["begins"]):
        return len(value) < 1000
    return type(value) is type(m["values"][0]) and (value in m["values"] or (search and value in m["asked"]))


#: What a plan does that says nothing else.
DEFAULT = Choices()


def choices() -> tuple[Field[Any], ...]:
    """The fields, in order."""
    return fields(Choices)


def offered() -> tuple[Field[Any], ...]:
    """Those that users choose."""
    return tuple(f for f in choices() if not f.metadata["follows"])


def needs(choice: Field[Any], value: Any) -> tuple[str, ...]:
    """Mesh axes without several ways of which a value means nothing."""
    if value == choice.default:
        return ()
    axis = choice.metadata["axis"]
    return tuple(value.split(",")) if choice.metadata["axes"] else () if axis is None else (axis,)


def values_of(name: str) -> tuple[Any, ...]:
    """All values of a choice, the first to be tried first."""
    (values,) = (f.metadata["values"] for f in choices() if f.name == name)
    return tuple(values)


def allowed_values(allowed: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """The values to try of every choice: those allowed, in the order of the table; of a choice that is not named, those of
    `tried`. Raises InputError.
    """
    for name, values in allowed.items():
        for value in values:
            replace(DEFAULT, **{name: value}).check(search=True)
    result = {}
    for f in choices():
        wanted = allowed.get(f.name, f.metadata["tried"])
        ordered = [v for v in f.metadata["values"] if v in wanted]
        if any(v in f.metadata["asked"] for v in wanted):  # the best of all
            ordered = list(f.metadata["values"])
        result[f.name] = tuple(dict.fromkeys([*ordered, *wanted]))
    return result


def combinations(allowed: Mapping[str, tuple[Any, ...]]) -> Iterator[Choices]:
    """Every combination of the allowed values (see `allowed_values`), in the order of the fields. A choice about a mesh axis also
    has its default, for meshes without that axis.
    """
    options = []
    for f in choices():
        values = allowed_values(allowed)[f.name]
        idle = (f.metadata["axis"] is not None or f.metadata["axes"]) and f.default not in values
        options.append((*values, f.default) if idle else values)
    for values in itertools.product(*options):
        chosen = Choices(**dict(zip([f.name for f in choices()], values, strict=True)))
        if not chosen.idle:
            yield chosen


def applies(chosen: Choices, allowed: Mapping[str, tuple[Any, ...]], ways: Mapping[str, Any]) -> Any:
    """Whether a combination of `combinations(allowed)` is one to try on meshes of so many ways (numbers or arrays): choices
    about an axis have allowed values where the axis is used, and their defaults elsewhere.
    """
    result: Any = True

    def used(f: Field[Any], value: Any) -> Any:
        there: Any = True
        for axis in needs(f, value):
            there = there & (ways[axis] > 1)
        return there

    for f in choices():
        value, values = getattr(chosen, f.name), allowed_values(allowed)[f.name]
        result = result & used(f, value)
        if value == f.default and value not in values:
            for other in values:
                result = result & ~np.asarray(used(f, other))
    return result
