"""A JAX function, sharded or not, as a listing of ops: its jaxpr is walked, nothing is run or compiled.

Calls are inlined, dead code is dropped, loops multiply their bodies. Bytes follow a simple model of fusion that XLA's
compilers share: elementwise ops fuse with their elementwise neighbours, a reduction ends a kernel, matmuls, gathers and
collectives stand alone; broadcasts, conversions and the like are never stored, their reader makes them again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rooftop.errors import InputError
from rooftop.lower._jax import jax
from rooftop.lower._listing import Listing, Op, Transfer
from rooftop.units import dtype as canonical
from rooftop.units import dtype_bytes

#: Primitives that hold another jaxpr and mean nothing by themselves: where it is among the parameters.
_CALLS = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat2": "jaxpr",
    "checkpoint": "jaxpr", "remat": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr", "custom_lin": "call_jaxpr", "run_state": "jaxpr",
}  # fmt: skip

_COLLECTIVES = {
    "psum": "all_reduce", "psum_invariant": "all_reduce", "psum2": "all_reduce", "pmax": "all_reduce", "pmin": "all_reduce",
    "all_gather": "all_gather", "all_gather_invariant": "all_gather", "all_gather_reduced": "all_gather",
    "reduce_scatter": "reduce_scatter", "unreduced_reduce_scatter": "reduce_scatter", "unreduced_psum": "all_reduce",
    "all_to_all": "all_to_all", "ppermute": "permute", "pbroadcast": None, "pvary": None, "reduced_vary_cast": None,
}  # fmt: skip

#: Made again by whoever reads them: never stored.
_CHEAP = frozenset(
    {
        "broadcast_in_dim", "convert_element_type", "reshape", "squeeze", "expand_dims", "iota", "copy_p", "copy",
        "optimization_barrier", "stop_gradient", "sharding_constraint", "transpose", "rev", "slice", "mesh_cast",
        "reshard", "axis_index", "bitcast_convert_type", "name", "layout_constraint", "device_put", "dtype_cast",
        "split", "pvary", "pbroadcast", "random_wrap", "random_unwrap", "real", "imag",
    }
)  # fmt: skip

_REDUCTIONS = frozenset(
    {
        "reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor", "argmax",
        "argmin", "reduce_precision_sum", "reduce",
    }
)  # fmt: skip

#: Stand alone, and move what they read and write.
_MEMORY = frozenset(
    {
        "gather", "scatter", "scatter-add", "scatter_add", "scatter_mul", "scatter_min", "scatter_max", "sort", "cumsum",
        "cumprod", "cummax", "cummin", "cumlogsumexp", "concatenate", "pad", "dynamic_slice", "dynamic_update_slice",
        "top_k", "approx_top_k", "select_and_scatter_add", "reduce_window", "reduce_window_sum", "reduce_window_max",
        "threefry2x32", "random_bits", "random_seed", "random_fold_in", "clamp_gather", "fft", "lu", "cholesky", "eigh",
        "qr", "svd", "triangular_solve", "tridiagonal",
    }
)  # fmt: skip


_MATMULS = frozenset({"dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general"})
_CONTROL = frozenset({"scan", "while", "cond", "shard_map"})
_ALONE = _MEMORY | _MATMULS | _CONTROL | frozenset(_COLLECTIVES) | {"pallas_call"}


@dataclass(slots=True)
class _Value:
    """One array of the flat program."""

    bytes: float
    elements: float
    maker: _Node | None = None


@dataclass(slots=True)
class _Node:
    """One primitive of the flat program."""

    name: str
    params: Mapping[str, Any]
    inputs: list[_Value]
    outputs: list[_Value]
    avals_in: list[Any]
    avals_out: list[Any]
    scope: str
    source: str
    level: int = 0
    used: Sequence[bool] = ()  # of a scan: which results of its body somebody reads

    @property
    def fuses(self) -> bool:
        """Whether neighbours can be one kernel with it."""
        return self.name not in _ALONE

    @property
    def ends_kernel(self) -> bool:
        """Whether its result is there only when its kernel has ended."""
        return not self.fuses or self.name in _REDUCTIONS


@dataclass(slots=True)
class _Walk:
    """What is the same throughout a walk: the mesh of the innermost shard_map, and what there is to note."""

    mesh: dict[str, int] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)


def list_ops(function: Callable[..., Any], *args: Any, name: str = "") -> Listing:
    """The ops of a JAX function for arguments of these shapes (arrays or `jax.ShapeDtypeStruct`s, in any pytree).

    Inside of shard_map everything is that of one device, with collectives; outside, shapes are global and shardings leave
    no trace (compile the function to see what they become). Raises InputError where the function cannot be traced.
    """
    try:
        closed = jax().make_jaxpr(function)(*args)
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise InputError(
            f"{name or 'the function'} cannot be traced with these shapes: {type(error).__name__}: {text}",
            field="function",
        ) from None
    walk = _Walk()
    ops = _ops(closed.jaxpr, 1.0, walk, ())
    return Listing(
        name or getattr(function, "__name__", "function"), tuple(ops), dict(walk.mesh),
        sum(_bytes(v.aval) for v in closed.jaxpr.invars), sum(_bytes(v.aval) for v in closed.jaxpr.outvars),
        tuple(walk.notes),
    )  # fmt: skip


def _bytes(aval: Any) -> float:
    return _elements(aval) * _itemsize(aval)


def _elements(aval: Any) -> float:
    return float(math.prod(getattr(aval, "shape", ())))


def _itemsize(aval: Any) -> float:
    kind = getattr(aval, "dtype", None)
    if kind is None:
        return 0.0
    try:
        return dtype_bytes(canonical(str(kind)))
    except InputError:
        return float(getattr(kind, "itemsize", 0))


def _dtype(aval: Any) -> str:
    try:
        return canonical(str(aval.dtype))
    except InputError:
        return str(aval.dtype)


def _ops(jaxpr: Any, times: float, walk: _Walk, used: Sequence[bool]) -> list[Op]:
    """The ops of one level of a program. used: which results somebody reads (all, if empty)."""
    values: dict[Any, _Value] = {}
    for var in (*jaxpr.constvars, *jaxpr.invars):
        values[var] = _Value(_bytes(var.aval), _elements(var.aval))
    nodes: list[_Node] = []
    _flatten(jaxpr, values, nodes, "")
    wanted = [
        values[v]
        for i, v in enumerate(jaxpr.outvars)
        if v in values and (not used or used[i])
    ]  # fmt: skip
    live = _live(nodes, wanted)
    return _costed(live, wanted, times, walk)


def _is_literal(var: Any) -> bool:
    return hasattr(var, "val")


def _flatten(jaxpr: Any, values: dict[Any, _Value], nodes: list[_Node], prefix: str) -> None:
    """Inline calls: append the primitives of a jaxpr, with `values` by variable."""
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        scope = "/".join(p for p in (prefix, str(eqn.source_info.name_stack)) if p)
        inner = eqn.params.get(_CALLS.get(name, ""))
        if inner is not None:
            inner = getattr(inner, "jaxpr", inner)
            local: dict[Any, _Value] = {v: _Value(_bytes(v.aval), _elements(v.aval)) for v in inner.constvars}
            skip = len(eqn.invars) - len(inner.invars)  # some calls pass more than their jaxpr takes
            for outer, var in zip(eqn.invars[skip:], inner.invars, strict=True):
                local[var] = _read(outer, values)
            _flatten(inner, local, nodes, scope)
            for outer, var in zip(eqn.outvars, inner.outvars, strict=True):
                values[outer] = _read(var, local)
            continue
        node = _Node(
            name, eqn.params, [_read(v, values) for v in eqn.invars], [], [v.aval for v in eqn.invars],
            [v.aval for v in eqn.outvars], scope, _source(eqn),
        )  # fmt: skip
        for var in eqn.outvars:
            value = _Value(_bytes(var.aval), _elements(var.aval), node)
            values[var] = value
            node.outputs.append(value)
        nodes.append(node)


def _read(var: Any, values: dict[Any, _Value]) -> _Value:
    if _is_literal(var):
        return _Value(0.0, 1.0)
    return values[var]


def _source(eqn: Any) -> str:
    from jax.extend import source_info_util

    return str(source_info_util.summarize(eqn.source_info)).split(" (")[0]


def _live(nodes: list[_Node], wanted: Iterable[_Value]) -> list[_Node]:
    """Nodes whose results reach a wanted value, or that have effects; loops drop results that nobody reads."""
    alive = {id(v) for v in wanted}
    kept: list[_Node] = []
    for node in reversed(nodes):
        if not any(id(v) in alive for v in node.outputs) and node.outputs:
            continue
        reads = node.inputs
        if node.name == "scan":
            flags = [id(v) in alive for v in node.outputs]
            reads = _live_scan(node, flags)
        alive.update(id(v) for v in reads)
        kept.append(node)
    kept.reverse()
    return kept


def _live_scan(node: _Node, flags: list[bool]) -> list[_Value]:
    """Inputs of a scan that its wanted results need; remembers which results of the body are wanted."""
    body = node.params["jaxpr"].jaxpr
    consts, carry = node.params["num_consts"], node.params["num_carry"]
    wanted = list(flags)
    while True:
        values: dict[Any, _Value] = {v: _Value(0.0, 0.0) for v in (*body.constvars, *body.invars)}
        nodes: list[_Node] = []
        _flatten(body, values, nodes, "")
        results = [_read(v, values) for v in body.outvars]
        alive = {id(v) for v, w in zip(results, wanted, strict=True) if w}
        for inner in reversed(nodes):
            if any(id(v) in alive for v in inner.outputs) or not inner.outputs:
                alive.update(id(v) for v in inner.inputs)
        needed = [id(values[v]) in alive for v in body.invars]
        more = [w or (i < carry and needed[consts + i]) for i, w in enumerate(wanted)]
        if more == wanted:
            node.used = wanted
            return [v for v, n in zip(node.inputs, needed, strict=True) if n]
        wanted = more


def _costed(nodes: list[_Node], wanted: Sequence[_Value], times: float, walk: _Walk) -> list[Op]:
    """One op for each cluster of nodes that fuse, and for each node that stands alone."""
    clusters = _clusters(nodes)
    home = {id(n): index for index, inside in enumerate(clusters) for n in inside}
    # what somebody outside of its cluster reads must be stored
    stored: set[int] = {id(v) for w in wanted for v, _ in _sources(w)}
    for node in nodes:
        for value in node.inputs:
            for source, _ in _sources(value):
                if source.maker is not None and home.get(id(source.maker)) != home[id(node)]:
                    stored.add(id(source))
    ops: list[Op] = []
    for index, inside in enumerate(clusters):
        if inside[0].fuses:
            outside = [
                (v, b)
                for n in inside
                for value in n.inputs
                for v, b in _sources(value)
                if v.maker is None or home.get(id(v.maker)) != index
            ]
            ops += _fusion(inside, outside, stored, times)
        else:
            ops += _alone(inside[0], times, walk)
    return ops


def _clusters(nodes: list[_Node]) -> list[list[_Node]]:
    """Neighbours that fuse, in order. A node's level is the number of kernels that must have ended before it starts."""
    for node in nodes:
        node.level = max((v.maker.level + v.maker.ends_kernel for v in node.inputs if v.maker is not None), default=0)
    of: dict[int, list[_Node]] = {}
    for node in nodes:
        mine = [node]
        of[id(node)] = mine
        if not node.fuses:
            continue
        for value in node.inputs:
            maker = value.maker
            if maker is None or id(maker) not in of or maker.ends_kernel or maker.level != node.level:
                continue
            theirs = of[id(maker)]
            if theirs is not mine:
                theirs += mine
                for member in mine:
                    of[id(member)] = theirs
                mine = theirs
    return list({id(inside): inside for inside in of.values()}.values())


def _sources(value: _Value) -> list[tuple[_Value, float]]:
    """What is really read for a value, and how many bytes of it: whoever reads a cheap node's result makes it again."""
    maker = value.maker
    if maker is None or maker.name not in _CHEAP:
        return [(value, value.bytes)]
    part = value.bytes if maker.name in ("slice", "split") else math.inf
    return [(v, min(b, part)) for i in maker.inputs for v, b in _sources(i)]


def _fusion(inside: list[_Node], outside: list[tuple[_Value, float]], stored: set[int], times: float) -> list[Op]:
    """One kernel of fused elementwise ops; nothing where all of them are made again by their readers."""
    writes = sum(v.bytes for n in inside for v in n.outputs if id(v) in stored and n.name not in _CHEAP)
    work = [n for n in inside if n.name not in _CHEAP]
    if not work or not writes:
        return []
    reads = sum({id(v): b for v, b in outside}.values())
    vector = sum(
        max((v.elements for v in (n.inputs if n.name in _REDUCTIONS else n.outputs)), default=0.0) for n in work
    )
    named = list(dict.fromkeys(n.name for n in work))
    title = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
    last = max(work, key=lambda n: sum(v.elements for v in n.outputs))
    unfused = sum(v.bytes for n in inside for v in (*n.inputs, *n.outputs))
    return [
        Op(title, "fusion", times, _dtype(last.avals_out[0]), 0.0, vector, reads + writes, unfused, None, None, last.scope, last.source)
    ]  # fmt: skip


def _alone(node: _Node, times: float, walk: _Walk) -> list[Op]:
    """The ops of a node that does not fuse."""
    if node.name in _CONTROL:
        return _control(node, times, walk)
    read = sum({id(v): b for i in node.inputs for v, b in _sources(i)}.values())
    written = sum(v.bytes for v in node.outputs)
    unfused = sum(v.bytes for v in node.inputs) + written
    common: dict[str, Any] = {"times": times, "scope": node.scope, "source": node.source, "unfused": unfused}
    if node.name in _COLLECTIVES:
        return _collective(node, walk, common)
    if node.name == "dot_general":
        (lhs, rhs), out = node.avals_in[:2], node.avals_out[0]
        (lc, _), (lb, _) = node.params["dimension_numbers"]
        contraction = math.prod(lhs.shape[i] for i in lc)
        batch = math.prod(lhs.shape[i] for i in lb)
        rows = _elements(lhs) / max(1, contraction * batch)
        columns = _elements(rhs) / max(1, contraction * batch)
        return [
            Op(
                "dot_general", "matmul", dtype=_wider(lhs, rhs), flops=2.0 * _elements(out) * contraction,
                bytes=read + written, matmul=(rows, float(contraction), columns, float(batch)), **common,
            )
        ]  # fmt: skip
    if node.name == "conv_general_dilated":
        lhs, rhs = node.avals_in[:2]
        out = node.avals_out[0]
        spec = node.params["dimension_numbers"].rhs_spec
        per_output = _elements(rhs) / rhs.shape[spec[0]]  # a filter: its window times the input features of a group
        return [
            Op("conv", "matmul", dtype=_wider(lhs, rhs), flops=2.0 * _elements(out) * per_output, bytes=read + written, **common)
        ]  # fmt: skip
    if node.name in ("ragged_dot", "ragged_dot_general"):
        lhs, rhs = node.avals_in[:2]
        out = node.avals_out[0]
        contraction = lhs.shape[-1]
        return [
            Op(
                node.name, "matmul", dtype=_wider(lhs, rhs), flops=2.0 * _elements(out) * contraction, bytes=read + written,
                matmul=(lhs.shape[-2], float(contraction), out.shape[-1], 1.0), **common,
            )
        ]  # fmt: skip
    if node.name == "pallas_call":
        told = node.params.get("cost_estimate")
        title = str(node.params.get("name") or node.params.get("name_and_src_info", "pallas")).split(" ")[0]
        if told is None:
            walk.notes[
                f"the Pallas kernel {title} gives no cost_estimate: its bytes are those of its arguments, its FLOPs unknown"
            ] = None
            return [Op(title, "unknown", bytes=read + written, dtype=_dtype(node.avals_in[0]), **common)]
        return [
            Op(title, "kernel", dtype=_dtype(node.avals_in[0]), flops=float(told.flops),
               bytes=float(told.bytes_accessed) or read + written, vector=float(told.transcendentals), **common)
        ]  # fmt: skip
    moved = read + written
    if node.name == "dynamic_slice" or node.name == "gather":
        moved = 2 * written + sum(v.bytes for v in node.inputs[1:])
    elif node.name == "dynamic_update_slice":
        moved = 2 * node.inputs[1].bytes  # in place
    elif node.name.startswith("scatter"):
        moved = 3 * node.inputs[2].bytes + node.inputs[1].bytes
    known = node.name in _MEMORY
    if not known:
        walk.notes[
            f"the primitive {node.name} is not known: its bytes are those of its arguments, its FLOPs not counted"
        ] = None
    return [
        Op(node.name, "memory" if known else "unknown", bytes=moved, dtype=_dtype(node.avals_out[0]),
           vector=sum(v.elements for v in node.outputs), **common)
    ]  # fmt: skip


def _wider(*avals: Any) -> str:
    return max((_dtype(a) for a in avals), key=lambda n: (dtype_bytes(n), not n.startswith("int")))


def _control(node: _Node, times: float, walk: _Walk) -> list[Op]:
    """Loops multiply their bodies; of branches the one that costs most counts; shard_map is one device of a mesh."""
    params = node.params
    if node.name == "scan":
        return _prefixed(_ops(params["jaxpr"].jaxpr, times * params["length"], walk, node.used), node.scope)
    if node.name == "shard_map":
        shape = getattr(params["mesh"], "shape", {})
        walk.mesh.update({str(axis): int(n) for axis, n in dict(shape).items()})
        body = params["jaxpr"]
        return _prefixed(_ops(getattr(body, "jaxpr", body), times, walk, ()), node.scope)
    if node.name == "while":
        walk.notes["a while loop has no known number of iterations: its body is counted once"] = None
        body = _ops(params["body_jaxpr"].jaxpr, times, walk, ())
        return _prefixed([*_ops(params["cond_jaxpr"].jaxpr, times, walk, ()), *body], node.scope)
    branches = [_ops(b.jaxpr, times, walk, ()) for b in params["branches"]]
    return _prefixed(max(branches, key=lambda ops: (sum(o.flops for o in ops), sum(o.bytes for o in ops))), node.scope)


def _prefixed(ops: list[Op], scope: str) -> list[Op]:
    if not scope:
        return ops
    return [replace(op, scope=f"{scope}/{op.scope}" if op.scope else scope) for op in ops]


def _collective(node: _Node, walk: _Walk, common: dict[str, Any]) -> list[Op]:
    """psum and its like, inside of shard_map: bytes of the whole array of a group, as everywhere."""
    kind = _COLLECTIVES[node.name]
    if kind is None:
        return []
    params = node.params
    named = params.get("axes", params.get("axis_name", ()))
    axes = tuple(str(a) for a in (named if isinstance(named, (tuple, list)) else (named,)) if isinstance(a, str))
    size = math.prod(walk.mesh.get(a, 1) for a in axes)
    ops = []
    for value_in, value_out in zip(node.inputs, node.outputs, strict=True):
        whole = {
            "all_gather": value_out.bytes, "reduce_scatter": value_in.bytes, "all_reduce": value_in.bytes,
            "all_to_all": value_in.bytes * size, "permute": value_in.bytes,
        }[kind]  # fmt: skip
        ops.append(
            Op(
                node.name,
                "network",
                dtype=_dtype(node.avals_in[0]),
                transfer=Transfer(kind, axes, whole, size),
                **common,
            )
        )
    return ops
