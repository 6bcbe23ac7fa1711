"""A whole program under sharding rules: the parallelisms that everyone knows come out, and compute the right thing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from rooftop.arrays import (
    Array,
    LocalOp,
    Mesh,
    Op,
    Program,
    Rules,
    Sharding,
    Size,
    fused_only,
    link_bytes,
    resolve_program,
    saved,
    shard,
)
from rooftop.arrays._emulate import ProgramRun, distribute
from rooftop.arrays._program import ResolvedProgram, trained
from rooftop.errors import InputError

TENSOR = ("tensor_kv", "tensor_q")
INNER = {"F": TENSOR, "K": ("tensor_kv",), "G": ("tensor_q",), "V": TENSOR}
BATCH = ("data", "fsdp")
AXES = {"B": 8, "T": 8, "S": 8, "D": 4, "F": 8, "K": 2, "G": 2, "H": 2, "V": 8}


def array(name: str, axes: str, layout: str = "inner", role: str = "activation", dtype: str = "bf16") -> Array:
    return Array(name, tuple(axes), dtype, role, layout)


def weight(name: str, axes: str) -> Array:
    return array(name, axes, "weight", "weight")


def residual(name: str, role: str = "activation") -> Array:
    return array(name, "BTD", "residual", role)


def einsum(name: str, inputs: str, output: str, **more: object) -> Op:
    return Op(name, "einsum", tuple(inputs.split()), output, **more)  # type: ignore[arg-type]


def mapped(name: str, inputs: str, output: str, **more: object) -> Op:
    return Op(name, "map", tuple(inputs.split()), output, flops=1.0, **more)  # type: ignore[arg-type]


def mlp() -> Program:
    """A gated feed-forward block with its norm and its residual sum."""
    return Program(
        "mlp",
        AXES,
        (
            residual("x", "input"),
            weight("scale", "D"),
            residual("y"),
            weight("w_up", "DF"),
            weight("w_gate", "DF"),
            weight("w_down", "FD"),
            array("u", "BTF"),
            array("g", "BTF"),
            array("h", "BTF"),
            residual("o"),
            residual("out"),
        ),
        (
            mapped("norm", "x scale", "y"),
            einsum("up", "y w_up", "u"),
            einsum("gate", "y w_gate", "g"),
            mapped("act", "g u", "h"),
            einsum("down", "h w_down", "o"),
            mapped("add", "x o", "out", linear=True),
        ),
    )


def attention() -> Program:
    """A grouped-query attention block; scores are made and used inside one kernel."""
    return Program(
        "attention",
        AXES,
        (
            residual("x", "input"),
            weight("scale", "D"),
            residual("y"),
            weight("w_q", "DKGH"),
            weight("w_k", "DKH"),
            weight("w_v", "DKH"),
            array("q", "BTKGH"),
            array("k0", "BTKH"),
            array("v0", "BTKH"),
            array("k", "BSKH"),
            array("v", "BSKH"),
            array("s", "BKGTS"),
            array("p", "BKGTS"),
            array("a", "BTKGH"),
            weight("w_o", "KGHD"),
            residual("o"),
            residual("out"),
        ),
        (
            mapped("norm", "x scale", "y"),
            einsum("q", "y w_q", "q"),
            einsum("k", "y w_k", "k0"),
            einsum("v", "y w_v", "v0"),
            mapped("rotate", "k0", "k", linear=True),
            mapped("rename", "v0", "v", linear=True),
            einsum("scores", "q k", "s", fused="attention", fraction=0.5),
            mapped("softmax", "s", "p", fused="attention"),
            einsum("values", "p v", "a", fused="attention", fraction=0.5),
            einsum("o", "a w_o", "o"),
            mapped("add", "x o", "out", linear=True),
        ),
    )


def embedding() -> Program:
    return Program(
        "embedding",
        AXES,
        (array("tokens", "BT", role="input", dtype="int32"), weight("table", "VD"), residual("x")),
        (Op("embed", "lookup", ("table", "tokens"), "x"),),
    )


def rules(zero: int = 3, *, keys_split: bool = True) -> Rules:
    sharded = {**INNER, "D": ("fsdp", "context")}
    keys: Mapping[str, tuple[str, ...]] = {"S": ("context",)} if keys_split else {}
    return {
        "residual": {"B": BATCH, "T": ("context", *TENSOR)},
        "inner": {**INNER, **keys, "B": BATCH, "T": ("context",)},
        "weight": sharded if zero == 3 else INNER,
        "weight_use": INNER,
        "gradient": sharded if zero >= 2 else INNER,
        "optimizer": sharded,
    }


ONLY = {
    "tensor": Mesh.of({"data": 1, "fsdp": 1, "context": 1, "tensor_kv": 2, "tensor_q": 2}),
    "fsdp": Mesh.of({"data": 1, "fsdp": 4, "context": 1, "tensor_kv": 1, "tensor_q": 1}),
    "context": Mesh.of({"data": 1, "fsdp": 1, "context": 2, "tensor_kv": 1, "tensor_q": 1}),
    "data": Mesh.of({"data": 4, "fsdp": 1, "context": 1, "tensor_kv": 1, "tensor_q": 1}),
}
MESH = Mesh.of(dict.fromkeys(("data", "fsdp", "context", "tensor_kv", "tensor_q"), 2))


def resolved(program: Program, zero: int = 3, unreduced: tuple[str, ...] = ("data",), **more: bool) -> ResolvedProgram:
    return resolve_program(program, rules(zero, **more), AXES, MESH, gradient_unreduced=unreduced)


def over(result: ResolvedProgram, phase: str, *axes: str) -> list[str]:
    """The collectives of a phase that some of these mesh axes take part in, with the op that forces each."""
    return [
        f"{move.op}: {move.collective}" for move in result.moves(phase) if set(axes).intersection(move.collective.axes)
    ]


# What everyone knows


def test_tensor_parallelism_with_sequence_sharding():
    for program, up, down in ((mlp(), "up", "down"), (attention(), "q", "o")):
        result = resolved(program)
        assert over(result, "forward", *TENSOR) == [
            f"{up}: AllGather_{{tensor_kv,tensor_q}} y",
            f"{down}: ReduceScatter_{{tensor_kv,tensor_q}} o",
        ]
    assert over(resolved(mlp()), "backward", *TENSOR) == [
        "down: AllGather_{tensor_kv,tensor_q} d_o",
        "gate: AllGather_{tensor_kv,tensor_q} y",
        "norm: ReduceScatter_{tensor_kv,tensor_q} d_y",
        "norm: AllReduce_{tensor_kv,tensor_q} d_scale",
    ]


def test_parts_of_a_gradient_are_summed_locally_and_reduced_once():
    backward = over(resolved(attention()), "backward", *TENSOR)
    assert [text for text in backward if text.endswith(" d_y")] == ["norm: ReduceScatter_{tensor_kv,tensor_q} d_y"]


def test_repeated_key_heads_sum_their_gradients():
    assert "rotate: AllReduce_tensor_q d_k" in over(resolved(attention()), "backward", "tensor_q")


def test_context_parallelism_gathers_keys_and_scatters_their_gradients():
    for keys_split in (True, False):
        result = resolved(attention(), keys_split=keys_split)
        activations = [move for move in result.moves("forward") if move.role == "activation"]
        assert [str(m.collective) for m in activations if "context" in m.collective.axes] == [
            "AllGather_context k",
            "AllGather_context v",
        ]
        back = [m for m in result.moves("backward") if m.role == "activation" and "context" in m.collective.axes]
        assert [str(m.collective) for m in back if m.collective.array.startswith("d_")] == [
            "ReduceScatter_context d_v",
            "ReduceScatter_context d_k",
        ]


def test_zero_3_gathers_weights_twice_and_scatters_gradients_once():
    result = resolved(mlp(), zero=3)
    gathers = [f"{op}: AllGather_{{fsdp,context}} {name}" for op, name in
               (("norm", "scale"), ("up", "w_up"), ("gate", "w_gate"), ("down", "w_down"))]  # fmt: skip
    assert over(result, "forward", "fsdp") == gathers
    backward = over(result, "backward", "fsdp")
    assert sorted(text for text in backward if "AllGather" in text) == sorted(gathers)
    assert sorted(text.split(": ")[1] for text in backward if "ReduceScatter" in text) == [
        f"ReduceScatter_{{fsdp,context}} d_{name}" for name in ("scale", "w_down", "w_gate", "w_up")
    ]
    assert over(result, "update", "fsdp") == []


def test_zero_2_scatters_gradients_and_gathers_weights_once_a_step():
    result = resolved(mlp(), zero=2)
    assert over(result, "forward", "fsdp") == []
    assert {text.split(":")[1].split("_")[0] for text in over(result, "backward", "fsdp")} == {" ReduceScatter"}
    assert {text.split(" ")[1] for text in over(result, "update", "fsdp")} == {"AllGather_{fsdp,context}"}


def test_zero_1_reduces_gradients_and_gathers_weights_once_a_step():
    result = resolved(mlp(), zero=1, unreduced=("data", "fsdp", "context"))
    assert over(result, "forward", "fsdp") + over(result, "backward", "fsdp") == []
    update = over(result, "update", "fsdp")
    assert "update: ReduceScatter_{fsdp,context} d_w_up" in update
    assert "update: AllGather_{fsdp,context} w_up" in update
    assert result.gradients["w_up"] == Sharding(((), TENSOR), ("data", "fsdp", "context"))


def test_data_parallelism_reduces_gradients_at_the_update_or_in_every_backward():
    waiting = resolved(mlp(), unreduced=("data",))
    assert over(waiting, "backward", "data") == []
    assert [text.split()[1] for text in over(waiting, "update", "data")] == ["AllReduce_data"] * 4
    now = resolved(mlp(), unreduced=())
    assert len(over(now, "backward", "data")) == 4
    assert over(now, "update", "data") == []


def test_embedding_split_over_the_vocabulary():
    result = resolved(embedding())
    assert over(result, "forward", *TENSOR) == ["embed: ReduceScatter_{tensor_kv,tensor_q} x"]
    assert over(result, "backward", *TENSOR) == ["embed: AllGather_{tensor_kv,tensor_q} d_x"]
    assert over(result, "backward", "fsdp") == ["embed: ReduceScatter_{fsdp,context} d_table"]


def test_experts_exchange_tokens_by_all_to_all():
    tokens = ("data", "expert")
    program = Program(
        "experts",
        {"B": 8, "T": 8, "D": 4, "E": 4, "F": 8, "C": Size.of("BT") * 2 / Size.of("E")},
        (
            Array("x", ("B", "T", "D"), role="input", layout="tokens"),
            Array("xe", ("E", "C", "D"), layout="slots"),
            Array("w", ("E", "D", "F"), role="weight", layout="expert_weight"),
            Array("w2", ("E", "F", "D"), role="weight", layout="expert_weight"),
            Array("h", ("E", "C", "F"), layout="slots"),
            Array("ye", ("E", "C", "D"), layout="slots"),
            Array("out", ("B", "T", "D"), layout="tokens"),
        ),
        (
            Op("dispatch", "route", ("x",), "xe"),
            einsum("up", "xe w", "h"),
            einsum("down", "h w2", "ye"),
            Op("combine", "route", ("ye",), "out"),
        ),
    )
    table: Rules = {
        "tokens": {"B": tokens},
        "slots": {"E": ("expert",), "C": ("data",)},
        "expert_weight": {"E": ("expert",)},
    }
    result = resolve_program(
        program, table, {"B": 8, "T": 8, "D": 4, "E": 4, "F": 8, "C": 32}, {"data": 2, "expert": 4}
    )
    assert over(result, "forward", "expert") == ["dispatch: AllToAll_expert xe", "combine: AllToAll_expert ye"]
    assert over(result, "backward", "expert") == ["down: AllToAll_expert d_ye", "dispatch: AllToAll_expert d_xe"]
    assert over(result, "backward", "data") == ["down: AllReduce_data d_w2", "up: AllReduce_data d_w"]


# The book's table: bytes communicated per layer of a two-matrix MLP, In[B, D] W_in[D, F] W_out[F, D]


def two_matrices() -> Program:
    return Program(
        "two matrices",
        {"D": 64, "F": 256},
        (
            Array("In", ("B", "D"), role="input", layout="residual"),
            weight("W_in", "DF"),
            array("Tmp", "BF"),
            weight("W_out", "FD"),
            Array("Out", ("B", "D"), layout="residual"),
        ),
        (einsum("in", "In W_in", "Tmp"), einsum("out", "Tmp W_out", "Out")),
    )


STRATEGIES: dict[str, Rules] = {
    "dp": {"residual": {"B": ("X",)}, "inner": {"B": ("X",)}, "weight": {}},
    "fsdp": {"residual": {"B": ("X",)}, "inner": {"B": ("X",)}, "weight": {"D": ("X",)}, "weight_use": {}},
    "tp": {"residual": {"D": ("Y",)}, "inner": {"F": ("Y",)}, "weight": {"F": ("Y",)}},
    "fsdp_tp": {
        "residual": {"B": ("X",), "D": ("Y",)},
        "inner": {"B": ("X",), "F": ("Y",)},
        "weight": {"D": ("X",), "F": ("Y",)},
        "weight_use": {"F": ("Y",)},
    },
}


def total(result: ResolvedProgram, phase: str, skip: tuple[str, ...] = ()) -> object:
    """The sum of the bytes of a phase, an all-reduce counted twice, as a sympy expression in B, D, F, X, Y."""
    sympy = pytest.importorskip("sympy")
    symbols = {name: sympy.Symbol(name, positive=True) for name in "BDFXY"}
    return sum(
        (
            move.collective.bytes(symbols, symbols) * (2 if move.collective.kind == "all_reduce" else 1)
            for move in result.moves(phase)
            if move.collective.array not in skip
        ),
        sympy.Integer(0),
    )


@pytest.mark.parametrize(
    ("strategy", "forward", "backward", "again"),
    [
        ("dp", "0", "8*D*F", "0"),
        ("fsdp", "4*D*F", "8*D*F", "0"),
        ("tp", "4*B*D", "4*B*D", "2*B*D"),
        ("fsdp_tp", "4*B*D/X + 4*D*F/Y", "4*B*D/X + 8*D*F/Y", "2*B*D/X"),
    ],
)
def test_the_books_table_of_communication(strategy: str, forward: str, backward: str, again: str):
    """`again` is what the backward pass gathers of In a second time, because nothing gathered is kept.

    The book leaves that out for tensor parallelism, where In's gather is shared with the forward pass. With it, the
    mixed strategy would cost 6BD/X of activations; the 8BD/X that the book prints counts more than either.
    """
    sympy = pytest.importorskip("sympy")
    result = resolve_program(two_matrices(), STRATEGIES[strategy], {"B": 4096, "D": 64, "F": 256}, {"X": 4, "Y": 4})
    symbols = {name: sympy.Symbol(name, positive=True) for name in "BDFXY"}

    def same(left: object, right: str) -> bool:
        return bool(sympy.simplify(left - sympy.sympify(right, locals=symbols)) == 0)

    assert same(total(result, "forward"), forward)
    assert same(total(result, "backward", skip=("In",)), backward)
    assert same(total(result, "backward") - total(result, "backward", skip=("In",)), again)


# Local work


def test_training_flops_of_a_gated_mlp_and_of_attention():
    """6 FLOPs per multiplication and token in all: 18 B T D F, and 24 B T D N H + 12 B T S N H (not halved)."""

    def flops(program: Program) -> float:
        result = resolve_program(program, rules(), AXES, MESH)
        ones = Mesh.of(dict.fromkeys(MESH.sizes, 1)).sizes
        steps = [s for s in (*result.forward, *result.backward) if isinstance(s, LocalOp) and not s.again]
        return sum(s.flops(AXES, ones) for s in steps if s.flops is not None)

    B, T, S, D, F, K, G, H = (AXES[name] for name in "BTSDFKGH")
    assert flops(mlp()) == 18 * B * T * D * F
    projections = 6 * B * T * D * H * (2 * K * G + 2 * K)
    assert flops(attention()) == projections + 0.5 * 12 * B * T * S * K * G * H


def test_a_fused_kernel_keeps_nothing_inside_and_computes_it_again():
    program = attention()
    assert fused_only(program) == {"s", "p"}
    result = resolved(program)
    again = [step.op for step in result.backward if isinstance(step, LocalOp) and step.again]
    assert again == ["scores", "softmax"]
    scores = next(step for step in result.forward if isinstance(step, LocalOp) and step.op == "scores")
    assert (len(scores.reads), scores.writes) == (2, ())
    assert [a.name for a in saved(program)] == ["x", "y", "q", "k", "v", "a"]
    assert [a.name for a in saved(mlp())] == ["x", "y", "u", "g", "h"]


def test_matmul_groups_of_the_three_einsums_of_a_projection():
    result = resolved(mlp())
    steps = [s for s in (*result.forward, *result.backward) if isinstance(s, LocalOp) and s.op == "down"]
    shapes = {s.makes: tuple(map(str, (s.rows, s.contraction, s.columns, s.batch))) for s in steps}
    tokens, hidden = "B·T/(context·data·fsdp)", "F/(tensor_kv·tensor_q)"
    assert shapes == {
        "o": (tokens, hidden, "D", "1"),
        "d_h": (tokens, "D", hidden, "1"),
        "d_w_down": (hidden, tokens, "D", "1"),
    }


def test_local_work_on_all_devices_is_the_whole_work_where_nothing_is_repeated():
    for step in (*resolved(mlp()).forward, *resolved(mlp()).backward):
        if isinstance(step, LocalOp) and step.flops is not None:
            assert step.flops(AXES, MESH.sizes) * MESH.devices == 2 * math.prod(AXES[a] for a in "BTDF")


def test_what_must_divide_is_told():
    pairs = resolved(attention()).divisible
    assert {("K", ("tensor_kv",)), ("G", ("tensor_q",)), ("T", ("context", *TENSOR)), ("B", BATCH)} <= set(pairs)
    assert ("D", ("fsdp", "context")) in pairs


def test_a_mesh_axis_of_the_rules_that_the_mesh_lacks_is_refused():
    with pytest.raises(InputError, match="mesh axis fsdp, which is not in the mesh"):
        resolve_program(mlp(), rules(), AXES, {"data": 2})


def test_sizes_do_not_depend_on_the_example_mesh():
    for program in (mlp(), attention(), embedding()):
        one = resolve_program(program, rules(), AXES, MESH)
        sizes = {**AXES, "B": 4096, "F": 64}
        other = resolve_program(program, rules(), sizes, dict(zip(MESH.sizes, (4, 8, 2, 2, 4), strict=True)))
        assert (one.forward, one.backward, one.update) == (other.forward, other.backward, other.update)


def test_mesh_axes_of_size_one_cost_nothing():
    result = resolved(attention())
    for name, mesh in ONLY.items():
        for phase in ("forward", "backward", "update"):
            for move in result.moves(phase):
                axes = {axis for axis in move.collective.axes if mesh.sizes[axis] > 1}
                assert (link_bytes(move.collective, AXES, mesh.sizes) > 0) == bool(axes), (name, move)


# The resolved program computes what the unsharded one does


def wholes(program: Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    made = {op.output for op in program.ops}
    return {
        a.name: rng.integers(0, AXES["V"], [AXES[n] for n in a.axes])
        if a.dtype == "int32"
        else rng.integers(-2, 3, [AXES[n] for n in a.axes])
        for a in program.arrays
        if a.name not in made
    }


def output(program: Program, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The last array of the program, computed on one device."""
    mesh = Mesh.of(dict.fromkeys(MESH.sizes, 1))
    result = resolve_program(program, rules(), AXES, mesh)
    run = ProgramRun(result, rules(), mesh, arrays)
    run.forward()
    last = program.array(program.ops[-1].output)
    return run.get(last.name, shard(last, rules()))


def direct(program: Program, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The same, written down by hand."""
    a = {name: value for name, value in arrays.items()}
    if program.name == "embedding":
        return a["table"][a["tokens"]]
    y = a["x"] * a["scale"]
    if program.name == "mlp":
        return a["x"] + (y @ a["w_up"] * (y @ a["w_gate"])) @ a["w_down"]
    q, k, v = (
        np.einsum(f"btd,{w}", y, a[n]) for w, n in (("dkgh->btkgh", "w_q"), ("dkh->btkh", "w_k"), ("dkh->btkh", "w_v"))
    )
    p = np.einsum("btkgh,bskh->bkgts", q, k)
    return a["x"] + np.einsum("btkgh,kghd->btd", np.einsum("bkgts,bskh->btkgh", p, v), a["w_o"])


def twelve_slopes(
    program: Program, arrays: Mapping[str, np.ndarray], name: str, step: np.ndarray, seed: np.ndarray
) -> int:
    """12 times the derivative of <seed, output> along a step of one array.

    The output is a polynomial of at most the fourth degree in each array, for which the five-point formula is exact.
    """
    at = {k: int((seed * direct(program, {**arrays, name: arrays[name] + k * step})).sum()) for k in (-2, -1, 1, 2)}
    return 8 * (at[1] - at[-1]) - (at[2] - at[-2])


MESHES = {
    **ONLY,
    "all": MESH,
    "fsdp and tensor": Mesh.of({"data": 1, "fsdp": 2, "context": 1, "tensor_kv": 2, "tensor_q": 2}),
}


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("program", [mlp(), attention(), embedding()], ids=lambda p: p.name)
def test_forward_gradients_and_update_on_shards_are_those_of_the_whole(program: Program, zero: int, mesh: Mesh):
    table = rules(zero)
    waiting = ("data",) if zero > 1 else ("data", "fsdp", "context")
    result = resolve_program(program, table, AXES, MESH, gradient_unreduced=waiting)
    arrays = wholes(program)
    run = ProgramRun(result, table, mesh, arrays)
    run.forward()
    last = program.array(program.ops[-1].output)
    np.testing.assert_array_equal(run.get(last.name, shard(last, table)), direct(program, arrays))

    seed = np.random.default_rng(2).integers(-2, 3, [AXES[n] for n in last.axes])
    run.put(f"d_{last.name}", seed)
    run.backward()
    targets = {w.name: result.gradients[w.name] for w in program.weights}
    if program.array("x").role == "input":
        targets["x"] = shard(program.array("x"), table)
    for name, sharding in targets.items():
        step = np.random.default_rng(3).integers(-2, 3, arrays[name].shape)
        gradient = run.get(f"d_{name}", sharding)
        assert 12 * (gradient * step).sum() == twelve_slopes(program, arrays, name, step, seed), name

    gradients = {w.name: run.get(f"d_{w.name}", result.gradients[w.name]) for w in program.weights}
    run.update()
    for w in program.weights:
        states = shard(replace(w, layout="optimizer"), table)
        np.testing.assert_array_equal(run.get(f"d_{w.name}", states), gradients[w.name])
        np.testing.assert_array_equal(run.get(w.name, shard(w, table)), arrays[w.name])


def test_one_device_computes_the_program():
    for program in (mlp(), attention(), embedding()):
        arrays = wholes(program)
        np.testing.assert_array_equal(output(program, arrays), direct(program, arrays))


def test_integers_and_what_is_made_of_them_have_no_gradient():
    assert trained(embedding()) == {"table", "x"}
    assert distribute(np.arange(4), Sharding((("data",),)), Mesh.of({"data": 2}))[0,].tolist() == [0, 1]
