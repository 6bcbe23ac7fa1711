"""The notation: `A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]`, read and printed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from rooftop.arrays._collective import subscript
from rooftop.arrays._types import Array, Sharding, checked
from rooftop.errors import InputError

#: Longest text that is read, most arrays in it and most axes of an array.
MAX_LENGTH, MAX_ARRAYS, MAX_AXES = 2000, 8, 16
MAX_SIZE = 10**15

DEFAULT_DTYPE = "bf16"
_DTYPE = re.compile(r"(bf|f|fp|s|u|int|uint)(4|8|16|32|64)(_?e\dm\d(fn)?)?|bool")


@dataclass(frozen=True, slots=True)
class Term:
    """An array and how it is split. Printed as `A[I_X, J]{U_Y}`, with its dtype in front unless that is bf16."""

    array: Array
    sharding: Sharding

    def __str__(self) -> str:
        return show(self.array, self.sharding)


@dataclass(frozen=True, slots=True)
class Expression:
    """An einsum with the sharding of each input and the one wanted of the output, and the sizes given inline.

    With one input of the output's name it is a resharding of that array.
    """

    inputs: tuple[Term, ...]
    output: Term
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def resharding(self) -> bool:
        """The output is the input itself, split in another way."""
        return len(self.inputs) == 1 and self.inputs[0].array.name == self.output.array.name

    @property
    def terms(self) -> tuple[Term, ...]:
        """Inputs and output."""
        return (*self.inputs, self.output)

    @property
    def indices(self) -> tuple[str, ...]:
        """Every array axis, in order of appearance."""
        return tuple(dict.fromkeys(axis for term in self.terms for axis in term.array.axes))

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """Every mesh axis, in order of appearance."""
        used = (name for term in self.terms for name in (*term.sharding.used, *term.sharding.unreduced))
        return tuple(dict.fromkeys(used))

    def __str__(self) -> str:
        left = dict(self.sizes)
        shown = [show(term.array, term.sharding, left) for term in self.terms]
        return " * ".join(shown[:-1]) + " -> " + shown[-1]


def show(array: Array, sharding: Sharding, sizes: dict[str, int] | None = None) -> str:
    """The array in the notation. Axes in `sizes` are printed with their size and taken out of it."""

    def axis(name: str, mesh: tuple[str, ...]) -> str:
        size = sizes.pop(name, None) if sizes else None
        return name + (f"_{subscript(mesh)}" if mesh else "") + (f"={size}" if size is not None else "")

    dtype = "" if array.dtype == DEFAULT_DTYPE else f"{array.dtype} "
    body = ", ".join(axis(name, mesh) for name, mesh in zip(array.axes, sharding.axes, strict=True))
    unreduced = f"{{U_{subscript(sharding.unreduced)}}}" if sharding.unreduced else ""
    return f"{dtype}{array.name}[{body}]{unreduced}"


def parse(text: str) -> Expression:
    """Read `A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]`.

    Mesh axes follow an underscore: capital letters side by side (`I_XY`), one longer name (`I_fsdp`) or several in
    braces (`I_{fsdp,tensor}`), major to minor. `{U_X}` behind an array means not yet summed over X. An axis may carry
    its size (`D=8192`), an array its dtype in front (`f32 A[I, J]`); without a name (`int8[I, J]`) it is called A, B,
    C...

    Raises InputError that gives the position and what was expected there, or names the array that is not legal.
    """
    reader = _Reader(text)
    inputs = [reader.term()]
    while reader.accept("*", "·"):
        inputs.append(reader.term())
    if not reader.accept("->", "→"):
        reader.fail("* or -> and another array" if not reader.done else "-> and the output array")
    output = reader.term()
    if not reader.done:
        reader.fail("the end")
    terms = _named([*inputs, output])
    expression = Expression(tuple(terms[:-1]), terms[-1], reader.sizes)
    _check(expression)
    return expression


def parse_array(text: str) -> tuple[Term, dict[str, int]]:
    """Read one array, `A[I_X, J]{U_Y}`, and the sizes that it gives inline."""
    reader = _Reader(text)
    term = reader.term()
    if not reader.done:
        reader.fail("the end")
    (term,) = _named([term])
    checked(term.array, term.sharding)
    return term, reader.sizes


def _named(terms: list[Term]) -> list[Term]:
    taken = {term.array.name for term in terms}
    free = (name for name in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if name not in taken)
    return [
        term if term.array.name else Term(Array(next(free), term.array.axes, term.array.dtype), term.sharding)
        for term in terms
    ]


def _check(expression: Expression) -> None:
    names = [term.array.name for term in expression.inputs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two inputs are called {name}; give them different names", field=name)
    for term in expression.terms:
        checked(term.array, term.sharding)
    output = expression.output.array
    if output.name in names:
        (index,) = (i for i, name in enumerate(names) if name == output.name)
        if len(names) > 1:
            raise InputError(
                f"the output is called {output.name} like an input; give it another name", field=output.name
            )
        if expression.inputs[index].array != output:
            raise InputError(
                f"{output.name} has other axes or another dtype behind the arrow; keep them to reshard"
                f" {output.name}, or give the output another name",
                field=output.name,
            )
    known = {axis for term in expression.inputs for axis in term.array.axes}
    for axis in output.axes:
        if axis not in known:
            raise InputError(
                f"axis {axis} of the output {output.name} is in no input; inputs have {_either(sorted(known))}",
                field=output.name,
            )


def _either(items: Iterable[str]) -> str:
    return ", ".join(items) or "no axes"


class _Reader:
    """Reads a text from left to right; `sizes` collects the inline sizes."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise InputError(f"an expression of {len(text)} characters is too long; at most {MAX_LENGTH} are read")
        self.text = text
        self.at = 0
        self.arrays = 0
        self.sizes: dict[str, int] = {}
        self._space()

    @property
    def done(self) -> bool:
        return self.at >= len(self.text)

    def fail(self, expected: str) -> NoReturn:
        rest = self.text[self.at : self.at + 12]
        found = repr(rest) if rest else "the end"
        raise InputError(f"at position {self.at + 1} of {_clip(self.text)!r}: expected {expected}, found {found}")

    def accept(self, *tokens: str) -> bool:
        for token in tokens:
            if self.text.startswith(token, self.at):
                self.at += len(token)
                self._space()
                return True
        return False

    def match(self, pattern: str, expected: str) -> str:
        found = re.compile(pattern, re.ASCII).match(self.text, self.at)
        if not found:
            self.fail(expected)
        self.at = found.end()
        self._space()
        return found.group()

    def term(self) -> Term:
        self.arrays += 1
        if self.arrays > MAX_ARRAYS:
            self.fail(f"at most {MAX_ARRAYS} arrays")
        name, dtype = "", DEFAULT_DTYPE
        if not self.text.startswith("[", self.at):
            name = self.match(r"[A-Za-z]\w{0,39}", "an array, as in A[I_X, J]")
            if _DTYPE.fullmatch(name):
                dtype, name = name, ""
                if not self.text.startswith("[", self.at):
                    name = self.match(r"[A-Za-z]\w{0,39}", f"[ or a name after the dtype {dtype}")
        if not self.accept("["):
            self.fail("[ and the axes of the array")
        axes: list[str] = []
        mesh: list[tuple[str, ...]] = []
        if not self.accept("]"):
            while True:
                axis, names = self._axis()
                if axis in axes:
                    raise InputError(
                        f"{name or 'an array'} has axis {axis} twice; rename one of them", field=name or None
                    )
                axes.append(axis)
                mesh.append(names)
                if len(axes) > MAX_AXES:
                    self.fail(f"at most {MAX_AXES} axes")
                if self.accept("]"):
                    break
                if not self.accept(","):
                    self.fail(", or ]")
        unreduced: tuple[str, ...] = ()
        if self.accept("{"):
            if not self.accept("U_"):
                self.fail("U_ and mesh axes (not yet summed over), as in {U_X}")
            unreduced = self._mesh_axes()
            if not self.accept("}"):
                self.fail("}")
        return Term(Array(name, tuple(axes), dtype), Sharding(tuple(mesh), unreduced))

    def _axis(self) -> tuple[str, tuple[str, ...]]:
        name = self.match(r"[A-Za-z][A-Za-z0-9]{0,39}", "an axis name, as in I, I_X or D=8192")
        names: tuple[str, ...] = ()
        for _ in range(2):
            if self.accept("_"):
                if names:
                    self.fail(", or ] (mesh axes are already given)")
                names = self._mesh_axes()
            elif self.accept("="):
                self._size(name)
        return name, names

    def _size(self, axis: str) -> None:
        start = self.at
        size = int(
            self.match(r"[0-9]{1,18}(?![0-9A-Za-z.])", f"a whole number for the size of {axis}, as in {axis}=8192")
        )
        if not 1 <= size <= MAX_SIZE:
            self.at = start
            self.fail(f"a size of {axis} from 1 to {MAX_SIZE}")
        if self.sizes.setdefault(axis, size) != size:
            raise InputError(f"axis {axis} is given two sizes, {self.sizes[axis]} and {size}; keep one", field=axis)

    def _mesh_axes(self) -> tuple[str, ...]:
        if not self.accept("{"):
            word = self.match(r"[A-Za-z]\w{0,39}", "mesh axes, as in I_X, I_XY or I_{fsdp,tensor}")
            return tuple(word) if word.isalpha() and word.isupper() else (word,)
        names = [self.match(r"[A-Za-z]\w{0,39}", "the name of a mesh axis")]
        while self.accept(","):
            names.append(self.match(r"[A-Za-z]\w{0,39}", "the name of a mesh axis"))
        if not self.accept("}"):
            self.fail(", or }")
        return tuple(names)

    def _space(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1


def _clip(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
