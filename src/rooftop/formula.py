"""A formula is written once and read four ways.

A cost formula is a small pure function. Called with plain floats it gives one answer, with NumPy arrays a million,
with sympy symbols an expression, and with `Traced` quantities a value that remembers how it was computed, from
which `explain` makes the derivation that a person reads, and `gradient` the exact derivatives. There is no second copy of a
formula for any of these.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, ParamSpec, TypeVar, cast

from rooftop.shown import Shown

#: A float, a NumPy array, a sympy expression or a Traced quantity: whatever arithmetic the caller brings.
Number = Any

P = ParamSpec("P")
R = TypeVar("R")


class Traced:
    """A number that remembers its derivation: an operator and operands, or a given value with its source."""

    __array_ufunc__ = None  # NumPy scalars on the left defer to us
    __slots__ = ("name", "note", "op", "operands", "source", "unit", "value")

    def __init__(
        self,
        value: float,
        op: str = "given",
        operands: tuple[Any, ...] = (),
        *,
        name: str = "",
        unit: str = "",
        source: str = "",
        note: str = "",
    ) -> None:
        self.value = float(value)
        self.op = op
        self.operands = operands
        self.name = name
        self.unit = unit
        self.source = source
        self.note = note

    def __add__(self, other: Number) -> Traced:
        return Traced(self.value + _value(other), "+", (self, other))

    def __radd__(self, other: Number) -> Traced:
        return Traced(_value(other) + self.value, "+", (other, self))

    def __sub__(self, other: Number) -> Traced:
        return Traced(self.value - _value(other), "-", (self, other))

    def __rsub__(self, other: Number) -> Traced:
        return Traced(_value(other) - self.value, "-", (other, self))

    def __mul__(self, other: Number) -> Traced:
        return Traced(self.value * _value(other), "*", (self, other))

    def __rmul__(self, other: Number) -> Traced:
        return Traced(_value(other) * self.value, "*", (other, self))

    def __truediv__(self, other: Number) -> Traced:
        return Traced(self.value / _value(other), "/", (self, other))

    def __rtruediv__(self, other: Number) -> Traced:
        return Traced(_value(other) / self.value, "/", (other, self))

    def __floordiv__(self, other: Number) -> Traced:
        return floor(self / other)  # type: ignore[no-any-return]

    def __pow__(self, power: Number) -> Traced:
        return Traced(self.value ** _value(power), "^", (self, power))

    def __rpow__(self, base: Number) -> Traced:
        return Traced(_value(base) ** self.value, "^", (base, self))

    def __float__(self) -> float:
        return self.value

    def __lt__(self, other: Number) -> bool:
        return self.value < _value(other)

    def __le__(self, other: Number) -> bool:
        return self.value <= _value(other)

    def __gt__(self, other: Number) -> bool:
        return self.value > _value(other)

    def __ge__(self, other: Number) -> bool:
        return self.value >= _value(other)

    def __eq__(self, other: object) -> bool:
        return self.value == _value(other)

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"Traced({self.name or self.op}={self.value:g})"


def given(value: float, name: str, unit: str = "", source: str = "") -> Traced:
    """A value from outside (a data sheet, the user) under the name that derivations show."""
    return Traced(value, name=name, unit=unit, source=source)


def named(value: Number, name: str, unit: str = "", source: str = "", note: str = "") -> Number:
    """Give a step of a derivation a name. Plain numbers pass through, so the fast path pays nothing."""
    if not isinstance(value, Traced):
        return value
    return Traced(value.value, "named", (value,), name=name, unit=unit or value.unit, source=source, note=note)


def formula(
    symbol: str, unit: str = "", source: str = "", note: str = ""
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare a function to be a formula: traced calls of it appear in explanations as `symbol`, with its source.

    Arguments without a name of their own are shown under the parameter's name.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = tuple(inspect.signature(function).parameters)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for argument in args:
                if isinstance(argument, Traced):
                    break
            else:
                if not kwargs or not any(isinstance(a, Traced) for a in kwargs.values()):
                    return function(*args, **kwargs)
            labelled = [_label(a, n) for a, n in zip(args, parameters, strict=False)]
            result = function(*labelled, **{n: _label(a, n) for n, a in kwargs.items()})
            return cast(R, named(result, symbol, unit, source, note))

        return call

    return decorate


def _label(argument: Any, name: str) -> Any:
    if isinstance(argument, Traced) and not argument.name and argument.op != "given":
        return named(argument, name)
    return argument


def _value(number: Any) -> float:
    return number.value if isinstance(number, Traced) else cast(float, number)


def _pick(kind: str, plain: Callable[..., Any], a: Number, b: Number) -> Number:
    if isinstance(a, Traced) or isinstance(b, Traced):
        return Traced(plain(_value(a), _value(b)), kind, (a, b))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return plain(a, b)
    if hasattr(a, "free_symbols") or hasattr(b, "free_symbols"):
        import sympy

        return (sympy.Max if kind == "max" else sympy.Min)(a, b)
    import numpy as np

    return (np.maximum if kind == "max" else np.minimum)(a, b)


def maximum(first: Number, *rest: Number) -> Number:
    """The largest, in whatever arithmetic the arguments have."""
    for number in rest:
        first = _pick("max", max, first, number)
    return first


def minimum(first: Number, *rest: Number) -> Number:
    """The smallest, in whatever arithmetic the arguments have."""
    for number in rest:
        first = _pick("min", min, first, number)
    return first


def total(terms: Iterable[Number]) -> Number:
    """The sum of the terms; 0.0 if there are none."""
    terms = tuple(terms)
    result: Number = None
    for term in terms:
        if isinstance(term, Traced):
            return Traced(math.fsum(_value(t) for t in terms), "sum", terms)
        result = term if result is None else result + term
    return 0.0 if result is None else result


def _round(kind: str, a: Number) -> Number:
    plain = math.ceil if kind == "ceil" else math.floor
    if isinstance(a, Traced):
        return Traced(plain(a.value), kind, (a,))
    if isinstance(a, (int, float)):
        return plain(a)
    if hasattr(a, "free_symbols"):
        import sympy

        return (sympy.ceiling if kind == "ceil" else sympy.floor)(a)
    import numpy as np

    return (np.ceil if kind == "ceil" else np.floor)(a)


def ceil(a: Number) -> Number:
    """Round up."""
    return _round("ceil", a)


def floor(a: Number) -> Number:
    """Round down."""
    return _round("floor", a)


def normal_maximum(n: Number) -> Number:
    """The mean of the largest of n standard normal variables: the quantile (n - 3/8)/(n + 1/4) (Blom, 1958)."""
    if isinstance(n, Traced):
        return Traced(float(normal_maximum(n.value)), name=f"E[max of {n.value:g} normals]")
    if isinstance(n, (int, float)):
        return NormalDist().inv_cdf((n - 0.375) / (n + 0.25))
    import numpy as np

    values, which = np.unique(np.asarray(n, dtype=float), return_inverse=True)
    return np.array([normal_maximum(float(v)) for v in values])[which].reshape(np.shape(n))


def where(condition: Any, then: Number, otherwise: Number) -> Number:
    """`then` where the condition holds, else `otherwise`, elementwise for arrays."""
    if isinstance(condition, bool):
        return then if condition else otherwise
    if isinstance(then, Traced) or isinstance(otherwise, Traced):
        return then if bool(condition) else otherwise
    import numpy as np

    return np.where(condition, then, otherwise)


def gradient(quantity: Number, by: Sequence[Traced]) -> list[float]:
    """Derivatives of a traced quantity by some of the numbers that it was computed from (0 by others), in one pass backwards.

    Exact in the smooth piece in which the numbers lie. Where two arms of a maximum or minimum are equal, that of the first. Rounding
    has the derivative 0 within a step, and that of the line through the steps, 1, at a whole number, where no piece is smooth.
    """
    sums: dict[int, float] = {}
    if isinstance(quantity, Traced):
        order = _in_order(quantity)
        sums = dict.fromkeys(map(id, order), 0.0)
        sums[id(quantity)] = 1.0
        for node in reversed(order):
            outer = sums[id(node)]
            if outer == 0.0:
                continue
            for operand, inner in zip(node.operands, _partials(node), strict=True):
                if isinstance(operand, Traced):
                    sums[id(operand)] += outer * inner
    return [sums.get(id(number), 0.0) for number in by]


def _in_order(quantity: Traced) -> list[Traced]:
    """All that a quantity was computed from, operands first."""
    found: list[Traced] = []
    seen: set[int] = set()
    stack: list[tuple[Traced, bool]] = [(quantity, False)]
    while stack:
        node, below_done = stack.pop()
        if below_done:
            found.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack += [(o, False) for o in node.operands if isinstance(o, Traced) and id(o) not in seen]
    return found


def _partials(node: Traced) -> Sequence[float]:
    """Derivatives of one operation by its operands."""
    v = [_value(operand) for operand in node.operands]
    match node.op:
        case "given":
            return ()
        case "+" | "sum" | "named":
            return [1.0] * len(v)
        case "-":
            return (1.0, -1.0)
        case "*":
            return (v[1], v[0])
        case "/":
            return (1.0 / v[1], -v[0] / v[1] ** 2)
        case "^":
            return (v[1] * v[0] ** (v[1] - 1) if v[0] else 0.0, node.value * math.log(v[0]) if v[0] > 0 else 0.0)
        case "max" | "min":
            first = v[0] >= v[1] if node.op == "max" else v[0] <= v[1]
            return (1.0, 0.0) if first else (0.0, 1.0)
        case "ceil" | "floor":
            return (1.0 if math.isclose(v[0], round(v[0]), rel_tol=1e-9) else 0.0,)
    raise ValueError(f"no derivative of {node.op!r}")


@dataclass(frozen=True, slots=True)
class Explanation(Shown):
    """One derived quantity: its formula, the same with numbers, its value and what it was derived from."""

    name: str
    value: float
    unit: str
    formula: str
    substitution: str
    source: str
    note: str
    inputs: tuple[Explanation, ...]

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Explanation]]:
        """This explanation and all below it, with their depth."""
        yield depth, self
        for each in self.inputs:
            yield from each.walk(depth + 1)


def explain(quantity: Traced, depth: int = 2) -> Explanation:
    """Explain a traced quantity down to `depth` levels of named quantities below it."""
    body, source, note = quantity, quantity.source, quantity.note
    while body.op == "named" and isinstance(body.operands[0], Traced):
        inner = body.operands[0]
        if inner.op == "given":
            break
        body = inner  # a name for a name: tell what is behind both
        source, note = source or inner.source, note or inner.note
    below: list[Explanation] = []
    if depth > 0:
        shown: set[tuple[str, float]] = set()
        for leaf in _named_operands(body):
            if (leaf.name, leaf.value) not in shown:
                shown.add((leaf.name, leaf.value))
                below.append(explain(leaf, depth - 1))
    text = numbers = ""
    if body.op != "given":
        text, numbers = _render(body, symbols=True), _render(body, symbols=False)
    return Explanation(
        quantity.name or "value", quantity.value, quantity.unit, text, numbers, source, note, tuple(below)
    )


def _named_operands(node: Traced) -> Iterator[Traced]:
    for operand in node.operands:
        if not isinstance(operand, Traced) or (node.op in ("+", "sum") and operand.value == 0):
            continue
        if operand.name:
            yield operand
        else:
            yield from _named_operands(operand)


_STRENGTH = {"+": 1, "-": 1, "sum": 1, "*": 2, "/": 2, "^": 3}


def _render(node: Any, *, symbols: bool, top: bool = True) -> str:
    if not isinstance(node, Traced):
        return _plain(node)
    if node.name and (not top or node.op in ("given", "named")):
        if symbols:
            return node.name
        return _plain(node.value) + (f" {node.unit}" if node.unit else "")
    inner = [(_render(o, symbols=symbols, top=False), _strength(o)) for o in node.operands]
    if node.op in ("max", "min", "ceil", "floor"):
        flat = [text for o in node.operands for text in _flatten(o, node.op, symbols)]
        return f"{node.op}({', '.join(flat)})"
    if node.op in ("sum", "+"):
        terms = list(_sum_terms(node))
        kept = [t for t in terms if _value(t) != 0]
        text = " + ".join(_render(t, symbols=symbols, top=False) for t in kept) or "0"
        return text
    (left, left_strength), (right, right_strength) = inner
    strength = _STRENGTH[node.op]
    if left_strength < strength:
        left = f"({left})"
    if right_strength < strength or (node.op in ("-", "/") and right_strength == strength):
        right = f"({right})"
    if node.op == "*" and left == "1":
        return right
    if node.op == "*" and right == "1":
        return left
    if node.op == "/" and right == "1":
        return left
    return {"*": f"{left}·{right}", "/": f"{left}/{right}", "-": f"{left} - {right}", "^": f"{left}^{right}"}[node.op]


def _sum_terms(node: Any) -> Iterator[Any]:
    if isinstance(node, Traced) and node.op in ("sum", "+") and not node.name:
        for operand in node.operands:
            yield from _sum_terms(operand)
    else:
        yield node


def _flatten(node: Any, op: str, symbols: bool) -> Iterator[str]:
    if isinstance(node, Traced) and node.op == op and not node.name:
        for operand in node.operands:
            yield from _flatten(operand, op, symbols)
    else:
        yield _render(node, symbols=symbols, top=False)


def _strength(node: Any) -> int:
    return 9 if not isinstance(node, Traced) or node.name else _STRENGTH.get(node.op, 9)


def _plain(number: Any) -> str:
    value = float(number)
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    if 1e-3 <= abs(value) < 1e6:
        return f"{value:.5g}"
    return f"{value:.4g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
