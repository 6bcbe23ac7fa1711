"""Every checkable answer of the book's chapters on rooflines, chips, sharding, Transformers, training and GPUs, asked of Rooftop.

`data/book/answers.jsonl` holds the answers; each has one function here, named by its id, that asks the product. Where the book
errs, the function is marked with what is right, and docs/errata.md has the derivation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sympy

from rooftop.arrays import Array, Mesh, Op, Program, Size, local_size, parse, parse_array, resolve, resolve_program
from rooftop.hardware import Torus, chip, peak, slice_of, standard_slices
from rooftop.roofline import (
    attention_intensity,
    collective_time,
    first_byte_seconds,
    gather_to_one_seconds,
    hops_between,
    host_load_seconds,
    math_seconds,
    memory_seconds,
    op_roofline,
    overlapped_seconds,
    ridge,
    send_seconds,
)
from rooftop.training import (
    axis_bandwidth,
    best_split,
    checkpoint_bytes,
    communicated_bytes,
    critical_batch,
    largest_model,
    network_intensity,
    recipe,
    remat,
    run_flops,
    seconds_at,
    slice_critical_batch,
    tensor_limit,
    utilisation,
)
from rooftop.transformer import architecture, flops_per_token, kv_bytes_per_token, kv_cache_bytes, parameters, programs

ROWS = {
    row["id"]: row
    for row in map(json.loads, (Path(__file__).parent / "data/book/answers.jsonl").read_text().splitlines())
}
ASKED: dict[str, tuple[Callable[[dict[str, Any]], Any], Any]] = {}
WRONG = object()


def asks(
    *ids: str, instead: Any = WRONG
) -> Callable[[Callable[[dict[str, Any]], Any]], Callable[[dict[str, Any]], Any]]:
    """Register the question behind answers; `instead` is the right answer where the book's is wrong."""

    def register(function: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
        for each in ids:
            ASKED[each] = (function, instead)
        return function

    return register


@pytest.mark.parametrize("row", ROWS)
def test_answer(row: str) -> None:
    function, instead = ASKED[row]
    expected = ROWS[row]["expected"] if instead is WRONG else instead
    agree(function(ROWS[row]["inputs"]), expected, ROWS[row]["rel_tol"], row)


def test_every_answer_is_asked_for() -> None:
    assert set(ASKED) == set(ROWS)


def agree(got: Any, expected: Any, tolerance: float, where: str) -> None:
    if isinstance(expected, Mapping):
        for key, value in expected.items():
            agree(got[key], value, tolerance, f"{where}.{key}")
    elif isinstance(expected, (int, float)) and not isinstance(expected, bool):
        assert float(got) == pytest.approx(expected, rel=max(tolerance, 1e-9)), where
    else:
        assert got == expected, where


def symbols(names: str) -> dict[str, Any]:
    return {n: sympy.Symbol(n, positive=True) for n in names.split()}


def same(expression: Any, text: str, known: Mapping[str, Any]) -> bool:
    return sympy.simplify(expression - sympy.sympify(text, locals=dict(known))) == 0


# -- rooflines


@asks("roofline.h100_1e12", "roofline.v6e_1e12")
def _(given: dict[str, Any]) -> Any:
    return math_seconds(given["flops"], peak(chip(given["chip"]), given["dtype"]))


@asks("roofline.v5e_ridge", "roofline.q5_h100_bcrit")
def _(given: dict[str, Any]) -> Any:
    one = chip(given["chip"])
    return ridge(peak(one, "bf16"), one.hbm_bandwidth)


@asks("roofline.dot_intensity")
def _(given: dict[str, Any]) -> Any:
    return op_roofline(parse(given["expr"]), {"N": given["N"]}, chip("v5e")).intensity


@asks("roofline.matmul_intensity", instead=512 * 8192 * 28672 / (512 * 8192 + 8192 * 28672 + 512 * 28672))
def _(given: dict[str, Any]) -> Any:
    return op_roofline(parse("bf16[B, D] * bf16[D, F] -> bf16[B, F]"), given, chip("v5e")).intensity


def batch_for(expression: str, where: str, **options: Any) -> float:
    """The critical batch of a matmul whose other sides are huge, as the book takes them."""
    roof = op_roofline(parse(expression), {"B": 1, "D": 10**8, "F": 10**8}, chip(where), **options)
    assert roof.critical["B"] is not None
    return roof.critical["B"]


@asks("roofline.matmul_bcrit_v5e")
def _(given: dict[str, Any]) -> Any:
    return batch_for("bf16[B, D] * bf16[D, F] -> bf16[B, F]", given["chip"])


@asks("roofline.two_chip_D")
def _(given: dict[str, Any]) -> Any:
    # the partial products [B, F] cross the link, D/2 is contracted on each chip: D from which arithmetic takes longer
    intensity_of_link = network_intensity(given["peak"], given["link"])
    return given["chips"] * intensity_of_link


@asks("roofline.q1_bytes", instead={"read": 6, "written": 12})
def _(given: dict[str, Any]) -> Any:
    way = resolve(parse("int8[B, D] * int8[D, F] -> int8[B, F]"), {"B": 2, "D": 1, "F": 4}, Mesh.of({})).best
    assert way.local is not None
    b, d, f = sympy.symbols("B D F")
    sizes = {"B": b, "D": d, "F": f}
    read = sum(s(sizes) for s in way.local.bytes[:-1])
    assert sympy.simplify(read - (b * d + d * f)) == 0
    assert sympy.simplify(way.local.bytes[-1](sizes) - b * f) == 0
    return {"read": read.subs({b: 2, d: 1, f: 4}), "written": 12}


@asks("roofline.q1_bcrit")
def _(given: dict[str, Any]) -> Any:
    # int8: one byte an element where bf16 has two
    v5e = replace(chip("v5e"), flops={"int8": given["peak"]}, hbm_bandwidth=given["hbm"])
    roof = op_roofline(parse("int8[B, D] * int8[D, F] -> int8[B, F]"), {"B": 1, "D": 10**8, "F": 10**8}, v5e)
    return roof.critical["B"]


@asks("roofline.q2_bcrit")
def _(given: dict[str, Any]) -> Any:
    return batch_for("bf16[B, D] * int8[D, F] -> bf16[B, F]", given["chip"])


@asks("roofline.q4_intensity")
def _(given: dict[str, Any]) -> Any:
    return op_roofline(parse("int8[B, D] * int8[B, D, F] -> int8[B, F]"), given, chip("v5e")).intensity


# -- chips


@asks("tpus.chip_v3", "tpus.chip_v4", "tpus.chip_v5p", "tpus.chip_v5e", "tpus.chip_v6e")
def _(given: dict[str, Any]) -> Any:
    one = chip(given["chip"])
    pod = slice_of(standard_slices(one.name)[-1])
    level = pod.levels[0]
    assert isinstance(level, Torus)
    return {
        "pod": "x".join(map(str, level.dims)), "host": one.units["host_shape"], "hbm_bytes": one.hbm_bytes,
        "hbm_bandwidth": one.hbm_bandwidth, "bf16_flops": peak(one, "bf16"), "int8_flops": peak(one, "int8"),
        "ici_link_oneway": level.link_bandwidth,
    }  # fmt: skip


@asks("tpus.mxu_v5e")
def _(given: dict[str, Any]) -> Any:
    v5e = chip("v5e")
    assert v5e.clock_hz == given["clock"]
    assert v5e.units["mxu"] == "128x128"
    return peak(v5e, "bf16") / float(v5e.units["mxus"])


@asks("tpus.mxu_v6e")
def _(given: dict[str, Any]) -> Any:
    assert chip("v6e").tile[1:] == (256, 256)
    return chip("v6e").units["mxu"]


@asks("tpus.vmem_ratio")
def _(given: dict[str, Any]) -> Any:
    return chip("v5e").fast_memory.bandwidth / chip("v5e").hbm_bandwidth


@asks("tpus.pcie")
def _(given: dict[str, Any]) -> Any:
    v5p = slice_of("v5p:4x4x4*2")
    return {
        "pcie": v5p.chip.pcie_bandwidth, "pcie_v6e": chip("v6e").pcie_bandwidth,
        "dcn_per_host": v5p.levels[1].bandwidth * v5p.chip.chips_per_host,
    }  # fmt: skip


@asks("tpus.wrap_rules")
def _(given: dict[str, Any]) -> Any:
    return {name: list(slice_of(name).levels[0].wrap) for name in ROWS["tpus.wrap_rules"]["expected"]}


@asks("tpus.q1")
def _(given: dict[str, Any]) -> Any:
    one = chip(given["chip"])
    return memory_seconds(2 * given["params"], given["chips"] * one.hbm_bandwidth)


@asks("tpus.q2_v5e", "tpus.q2_v5p")
def _(given: dict[str, Any]) -> Any:
    pod = slice_of(given["slice"])
    return {
        "chips": pod.chips, "hosts": pod.hosts, "cores": pod.chips * pod.chip.cores,
        "flops": pod.chips * peak(pod.chip, "bf16"), "hbm_bytes": pod.chips * pod.chip.hbm_bytes,
    }  # fmt: skip


@asks("tpus.q3")
def _(given: dict[str, Any]) -> Any:
    slow = replace(chip(given["chip"]), pcie_bandwidth=given["pcie"])
    sizes = {"B": 1, "D": 10**8, "F": 4 * 10**8}
    return op_roofline(parse("bf16[B, D] * bf16[D, F] -> bf16[B, F]"), sizes, slow, memory="host").critical["B"]


INT8 = "int8[B, D] * int8[D, F] -> int8[B, F]"


@asks("tpus.q4_hbm", instead=262.7)
def _(given: dict[str, Any]) -> Any:
    return op_roofline(parse(INT8), {"B": 1, "D": given["D"], "F": given["F"]}, chip(given["chip"])).critical["B"]


@asks("tpus.q4_vmem")
def _(given: dict[str, Any]) -> Any:
    return op_roofline(parse(INT8), {"B": 1, "D": 4096, "F": 16384}, chip(given["chip"]), memory="fast").critical["B"]


@asks("tpus.q5_first")
def _(given: dict[str, Any]) -> Any:
    return first_byte_seconds(slice_of(given["slice"]), (0, 0), (3, 3))


@asks("tpus.q5_total")
def _(given: dict[str, Any]) -> Any:
    return send_seconds(slice_of("v5e:4x4"), given["bytes"], (0, 0), (3, 3))


@asks("tpus.q6", instead={"pcie": 0.066, "ici": 0.167, "hbm": 0.0212, "flops": 0.0013})
def _(given: dict[str, Any]) -> Any:
    where = slice_of(given["slice"])
    n = 131072
    roof = op_roofline(parse("bf16[B, D] * int8[D, F] -> bf16[B, F]"), {"B": 8, "D": n, "F": n}, where.chip)
    return {
        "pcie": host_load_seconds(where, n * n), "ici": gather_to_one_seconds(where, n * n, (0, 0)),
        "hbm": roof.hbm, "flops": roof.math,
    }  # fmt: skip


# -- sharding


@asks("sharding.quiz1")
def _(given: dict[str, Any]) -> Any:
    term, _ = parse_array("int8 A[I_XY, J]")
    mesh = given["mesh"]
    one = local_size(term.array, term.sharding)({"I": 128, "J": 2048}, mesh)
    return {"per_device": one, "all": one * Mesh.of(mesh).devices}


def forced(expression: str, i: int = 1024, j: int = 1024, k: int = 1024) -> list[list[str]]:
    """The collectives of all legal ways, the best first."""
    ways = resolve(parse(expression), {"I": i, "J": j, "K": k}, Mesh.of({"X": 4, "Y": 4})).ways
    return [[str(c) for c in way.collectives] for way in ways]


@asks("sharding.case1")
def _(given: dict[str, Any]) -> Any:
    return forced("A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]")[0]


@asks("sharding.case2")
def _(given: dict[str, Any]) -> Any:
    ways = forced("A[I, J_X] * B[J, K] -> C[I, K]")
    assert ["AllReduce_X C"] in ways
    return ways[0]


@asks("sharding.case3")
def _(given: dict[str, Any]) -> Any:
    assert forced("A[I, J_X] * B[J_X, K] -> C[I, K_X]", j=2**20)[0] == ["ReduceScatter_X C"]
    assert forced("A[I, J_X] * B[J_X, K] -> C[I_X, K]", j=2**20)[0] == ["ReduceScatter_X C"]
    return forced("A[I, J_X] * B[J_X, K] -> C[I, K]")[0]


@asks("sharding.case4")
def _(given: dict[str, Any]) -> Any:
    assert ["AllGather_X A"] in forced("A[I_X, J] * B[J, K_X] -> C[I, K_X]")
    return forced("A[I_X, J] * B[J, K_X] -> C[I_X, K]", i=2**20)[0]


@asks("sharding.resharding")
def _(given: dict[str, Any]) -> Any:
    def steps(expression: str) -> list[str]:
        way = resolve(parse(expression), {"I": 64, "J": 64}, Mesh.of({"X": 4})).best
        return [str(c).split()[0] for c in way.collectives]

    assert steps("A[I_X, J] -> A[I, J]") == ["AllGather_X"]
    assert steps("A[I, J] -> A[I_X, J]") == []
    return steps("A[I_X, J] -> A[I, J_X]")


@asks("sharding.runtime")
def _(given: dict[str, Any]) -> Any:
    ring = slice_of("v5e:16x16")
    bandwidth = axis_bandwidth(ring)
    kinds = ROWS["sharding.runtime"]["expected"]
    bytes = 1e9
    return {k: collective_time(k, bytes, {"X": 16}, ring).seconds * bandwidth / bytes for k in kinds}


@asks("sharding.latency")
def _(given: dict[str, Any]) -> Any:
    level = slice_of(f"{given['chip']}:4x4").levels[0]
    assert isinstance(level, Torus)
    return level.link_bandwidth * level.hop_latency


@asks("sharding.quiz2a", "sharding.quiz2b")
def _(given: dict[str, Any]) -> Any:
    return (
        collective_time("all_gather", given["bytes"], {"X": 8, "Y": given["axis"]}, slice_of("v5e:8x4"))
        and collective_time("all_gather", given["bytes"], {"Y": given["axis"]}, slice_of("v5e:8x4")).seconds
    )


@asks("sharding.q1")
def _(given: dict[str, Any]) -> Any:
    term, _ = parse_array("A[I_X, J, K]")
    sizes = {"I": 64, "J": 8, "K": 8}
    one = local_size(term.array, term.sharding)(sizes, given["mesh"])
    return one * Mesh.of(given["mesh"]).devices / math.prod(sizes.values())


def gathered(expression: str, kind: str, axes: str, where: str = "v4:4x4x4") -> float:
    """Time of the one collective that a resharding of B=1024, D=4096 forces."""
    mesh = {"X": 4, "Y": 4, "Z": 4}
    way = resolve(parse(expression), {"B": 1024, "D": 4096}, Mesh.of(mesh)).best
    (only,) = way.collectives
    assert only.kind == kind
    bytes = only.bytes({"B": 1024, "D": 4096}, mesh)
    return collective_time(kind, bytes, {a: 4 for a in axes}, slice_of(where)).seconds


@asks("sharding.q2a")
def _(given: dict[str, Any]) -> Any:
    return gathered("A[B_X, D_Y] -> A[B, D_Y]", "all_gather", "X", given["slice"])


@asks("sharding.q2b")
def _(given: dict[str, Any]) -> Any:
    # over both axes at once: the whole array ends up on every chip
    return collective_time("all_gather", 2 * 1024 * 4096, {"X": 4, "Y": 4}, slice_of(given["slice"])).seconds


@asks("sharding.q2c")
def _(given: dict[str, Any]) -> Any:
    return gathered("A[B_X, D_Y]{U_Z} -> A[B_X, D_Y]", "all_reduce", "Z", given["slice"])


@asks("sharding.q3")
def _(given: dict[str, Any]) -> Any:
    return collective_time("all_gather", given["bytes"], {"X": 4}, slice_of(given["slice"])).seconds


@asks("sharding.q4")
def _(given: dict[str, Any]) -> Any:
    # gathering B moves 2DF bytes, adding up C moves twice 2BF: both beside 2BDF FLOPs on one chip, or on X of them
    where = slice_of("v5p:16x16x16")
    return 2 * network_intensity(peak(where.chip, "bf16"), axis_bandwidth(where))


@asks("sharding.q9", instead=0.25)
def _(given: dict[str, Any]) -> Any:
    def moved(expression: str) -> Any:
        sizes = {"N": 4096, "M": 2**20, "K": 2**18}
        ways = resolve(parse(expression), sizes, Mesh.of({"X": 4})).ways
        by_kind = {tuple(str(c) for c in w.collectives): w.cost for w in ways}
        return by_kind

    ways = moved("A[N, M_X] * B[M_X, K] -> C[N, K_X]")
    first = ways[("ReduceScatter_X C",)]
    second = moved("A[N, M_X] * B[M, K_X] -> C[N, K_X]")[("AllGather_X A",)]
    return first / second  # K/M


@asks("sharding.q10_uni_ag", "sharding.q10_uni_a2a")
def _(given: dict[str, Any]) -> Any:
    # one byte an element over a link of one element a second: seconds are scalars
    ring = slice_of("v5e:16x16")
    level = ring.levels[0]
    assert isinstance(level, Torus)
    unit = replace(ring, levels=(replace(level, link_bandwidth=1.0, hop_latency=0.0),))
    kind = "all_gather" if given is ROWS["sharding.q10_uni_ag"]["inputs"] else "all_to_all"
    return collective_time(kind, given["N"] ** 2, {"X": given["D"]}, unit, one_way=True).bound


@asks("sharding.q10_bidi_ratio")
def _(given: dict[str, Any]) -> Any:
    ring = slice_of("v5e:16x16")
    return (
        collective_time("all_gather", 1e9, {"X": 16}, ring).bound
        / collective_time("all_to_all", 1e9, {"X": 16}, ring).bound
    )


# -- Transformers


def one_matmul() -> Program:
    return Program(
        "matmul",
        {"P": 8, "M": 8},
        (
            Array("x", ("N", "P"), "bf16", "input", "inner"),
            Array("w", ("P", "M"), "bf16", "weight", "weight"),
            Array("y", ("N", "M"), "bf16", "activation", "inner"),
        ),
        (Op("y", "einsum", ("x", "w"), "y"),),
    )


def all_flops(program: Program, known: Mapping[str, Any], only: Callable[[Any], bool] = lambda op: True) -> Any:
    """FLOPs of forward and backward, on symbols."""
    sizes = {n: 8 for n in (*program.axes, "B", "N")}
    resolved = resolve_program(program, {}, sizes, {})
    steps = [
        s for s in (*resolved.forward, *resolved.backward) if getattr(s, "flops", None) is not None and not s.again
    ]
    return sum(s.flops(known, {}) for s in steps if only(s))


@asks("transformers.flops_matmul", instead=True)
def _(given: dict[str, Any]) -> Any:
    known = symbols("N P M")
    return same(all_flops(one_matmul(), known), "6*N*P*M", known)


@asks("transformers.mlp", instead={"flops": True, "params": True})
def _(given: dict[str, Any]) -> Any:
    known = symbols("B T S D F K G H")
    block = programs(architecture("llama-2-7b"), 4096).blocks[0].program
    flops = all_flops(block, known, lambda step: step.part == "mlp")
    weights = [a for a in block.weights if "F" in a.axes]
    count = sum(Size.of(a.axes)(known) for a in weights)
    return {"flops": same(flops, "18*B*T*D*F", known), "params": same(count, "3*D*F", known)}


@asks("transformers.attn", instead={"flops": True, "params": True})
def _(given: dict[str, Any]) -> Any:
    known = symbols("B T D N H")
    as_mha = {**known, "S": known["T"], "K": known["N"], "G": sympy.Integer(1), "F": sympy.Symbol("F")}
    block = programs(architecture("llama-2-7b"), 4096).blocks[0].program
    whole = replace(block, ops=tuple(replace(op, fraction=1.0) for op in block.ops), _by_name={})
    flops = all_flops(whole, as_mha, lambda step: step.part == "attention")
    weights = [a for a in block.weights if "H" in a.axes]
    count = sum(Size.of(a.axes)(as_mha) for a in weights)
    return {
        "flops": same(flops, "24*B*T*D*N*H + 12*B*T**2*N*H", known),
        "params": same(count, "4*D*N*H", known),
    }


def square(d: int, layers: int = 1, **more: Any) -> str:
    """A gated model with F = 4D and full heads, as the book takes it."""
    extra = "".join(f",{k}={v}" for k, v in more.items())
    return f"layers={layers},d_model={d},heads={d // 128},d_ff={4 * d},vocab=32000{extra}"


@asks("transformers.attn_fraction")
def _(given: dict[str, Any]) -> Any:
    arch = architecture(square(given["D"]))
    work = flops_per_token(arch, given["T"])
    return work.attention_book / (work.matmul - work.parts["head"])


@asks("transformers.gemma27b")
def _(given: dict[str, Any]) -> Any:
    arch = architecture(square(given["D"]))
    at = flops_per_token(arch, 4096)
    return 4096 * (at.matmul - at.parts["head"]) / at.attention_book


@asks("transformers.ckpt_all")
def _(given: dict[str, Any]) -> Any:
    return checkpoint_bytes(given["tokens"], given["L"], given["D"], 20, 2)


@asks("transformers.ckpt_block", instead={"bytes": 4.2e12, "flops": 8.0})
def _(given: dict[str, Any]) -> Any:
    arch = architecture(square(given["D"], given["L"]))
    program = programs(arch, 4096).blocks[0].program
    kept = remat(program, "full").saved
    assert kept == ("x",)
    matmul = flops_per_token(arch, 4096).matmul
    weights = parameters(arch).total - arch.vocab * arch.d_model - parameters(arch).parts["norm"] - arch.d_model
    return {
        "bytes": checkpoint_bytes(given["tokens"], given["L"], given["D"], len(kept), 2),
        "flops": (3 * matmul + matmul) / weights,
    }


@asks("transformers.ckpt_matmul")
def _(given: dict[str, Any]) -> Any:
    program = programs(architecture("llama-3-8b"), 4096).blocks[0].program
    return sum(
        1 for op in program.ops if op.kind == "einsum" and any(program.array(n).role == "weight" for n in op.inputs)
    )


@asks("transformers.kv_8gib")
def _(given: dict[str, Any]) -> Any:
    arch = architecture(f"layers={given['L']},d_model=8192,heads=64,kv_heads=64,head_dim=128,d_ff=4,vocab=4")
    return kv_cache_bytes(arch, given["S"], "int8")


@asks("transformers.q1_params")
def _(given: dict[str, Any]) -> Any:
    return parameters(architecture(square(given["D"], given["L"]))).total


@asks("transformers.q1_attn")
def _(given: dict[str, Any]) -> Any:
    parts = parameters(architecture(square(given["D"]))).parts
    return parts["attention"] / (parts["attention"] + parts["mlp"])


@asks("transformers.q1_kv")
def _(given: dict[str, Any]) -> Any:
    return kv_bytes_per_token(architecture(square(given["NH"], given["L"])), "int8")


@asks("transformers.q2", instead={"all": True, "per_chip": True})
def _(given: dict[str, Any]) -> Any:
    mesh = given["mesh"]
    ways = resolve(parse("A[B_X, D_Y] * W[D_Y, F] -> C[B_X, F]{U_Y}"), {"B": 64, "D": 64, "F": 64}, Mesh.of(mesh)).ways
    known = symbols("B D F")
    local = next(w for w in ways if not w.collectives).local
    assert local is not None
    one = local.flops(known, mesh)
    return {
        "all": same(sympy.nsimplify(one * Mesh.of(mesh).devices), "2*B*D*F*4", known),
        "per_chip": same(sympy.nsimplify(one), "2*B*D*F/32", known),
    }


@asks("transformers.q3", instead=True)
def _(given: dict[str, Any]) -> Any:
    sizes = dict.fromkeys("IJKLMNO", 2)
    local = resolve(parse("A[I, J, K, L] * B[I, J, M, N, O] -> C[K, L, M, N, O]"), sizes, Mesh.of({})).best.local
    assert local is not None
    known = {n: sympy.Symbol(f"{n}_", positive=True) for n in sizes}
    return sympy.simplify(local.flops(known) - 2 * sympy.prod(known.values())) == 0


@asks("transformers.q4_prefill")
def _(given: dict[str, Any]) -> Any:
    return attention_intensity(given["T"], given["T"], given["G"])


@asks("transformers.q4_decode")
def _(given: dict[str, Any]) -> Any:
    return attention_intensity(1, given["S"], given["G"])


@asks("transformers.q5")
def _(given: dict[str, Any]) -> Any:
    work = flops_per_token(architecture(square(given["D"])), 4096)
    projections = work.parts["attention"] - work.attention
    return 4096 * projections / work.attention_book


@asks("transformers.q6", instead=True)
def _(given: dict[str, Any]) -> Any:
    program = programs(architecture("llama-2-7b"), 4096).blocks[0].program
    again = [op for op in program.ops if op.name in remat(program, "selective").recomputed and op.kind == "einsum"]
    known = symbols("B T N H")
    sizes = {**known, "S": known["T"], "K": known["N"], "G": sympy.Integer(1)}
    axes = [dict.fromkeys(a for n in (*op.inputs, op.output) for a in program.array(n).axes) for op in again]
    return same(sum(Size.of(a, (), 2.0)(sizes) for a in axes), "4*B*T**2*N*H", known)


@asks("transformers.q7")
def _(given: dict[str, Any]) -> Any:
    return utilisation(6 * given["active"], given["tokens"], given["hours"] * 3600, 1, given["peak"])


# -- training


POD = "v5p:16x20x28"


def v5p(axes: int = 1) -> tuple[Any, float]:
    where = slice_of(POD)
    return where.chip, axis_bandwidth(where, axes)


@asks("training.dp_max_params")
def _(given: dict[str, Any]) -> Any:
    r = recipe("bf16")
    return largest_model(chip(given["chip"]).hbm_bytes, 2.0, r.optimizer_bytes)


@asks("training.alpha_v5p")
def _(given: dict[str, Any]) -> Any:
    one, bandwidth = v5p()
    return network_intensity(peak(one, "bf16"), bandwidth)


@asks("training.dp_bcrit")
def _(given: dict[str, Any]) -> Any:
    one, bandwidth = v5p(given["axes"])
    dp = critical_batch("dp", one, {"X": bandwidth}, phase="backward")
    assert critical_batch("fsdp", one, {"X": bandwidth}) == pytest.approx(dp)
    assert critical_batch("fsdp", one, {"X": bandwidth}, phase="backward") == pytest.approx(dp)
    return dp


@asks("training.dp_bcrit_3")
def _(given: dict[str, Any]) -> Any:
    one, bandwidth = v5p(given["axes"])
    tokens = critical_batch("fsdp", one, {"X": bandwidth})
    return {"per_chip": tokens, "pod": tokens * slice_of(POD).chips}


@asks("training.fsdp_dsv2_chips")
def _(given: dict[str, Any]) -> Any:
    one, bandwidth = v5p(3)
    return given["batch"] / critical_batch("fsdp", one, {"X": bandwidth})


@asks("training.llama70b_flops", "applied-training.flops_15T")
def _(given: dict[str, Any]) -> Any:
    if given:
        return run_flops(6 * given["params"], given["tokens"])
    return run_flops(3 * flops_per_token(architecture("llama-3-70b"), 4096).matmul, 15e12)


@asks("training.llama70b_17days")
def _(given: dict[str, Any]) -> Any:
    one, bandwidth = v5p(3)
    chips = given["batch"] / critical_batch("fsdp", one, {"X": bandwidth})
    return {"chips": chips, "days": seconds_at(run_flops(6 * 70e9, 15e12), chips, peak(one, "bf16"), 0.5) / 86400}


@asks("training.tp_limit", "training.tp_gemma7b")
def _(given: dict[str, Any]) -> Any:
    one, bandwidth = v5p(given.get("axes", 1))
    ways = tensor_limit(one, bandwidth, given["F"])
    assert tensor_limit(one, bandwidth, given["F"], tokens=1000) == pytest.approx(ways)
    return ways


@asks("training.tp_8way_F")
def _(given: dict[str, Any]) -> Any:
    one, bandwidth = v5p()
    return given["Y"] * 10**6 / tensor_limit(one, bandwidth, 10**6)


@asks("training.mixed_xopt")
def _(given: dict[str, Any]) -> Any:
    _, bandwidth = v5p()
    return best_split(
        given["B"], 8192, given["F"], given["N"], {"X": given["MX"] * bandwidth, "Y": given["MY"] * bandwidth}
    )


@asks("training.mixed_bcrit", "training.q3_mixed")
def _(given: dict[str, Any]) -> Any:
    one, bandwidth = v5p()
    return critical_batch("fsdp_tp", one, {"X": 2 * bandwidth, "Y": bandwidth}, d_ff=given["F"])


#: The forward pass as the book has it. Backward: tensor parallelism gathers In again, which the book counts in its mixed row only.
TABLE = {
    "dp": ["0", "8*D*F"],
    "fsdp": ["4*D*F", "8*D*F"],
    "tp": ["4*B*D", "6*B*D"],
    "fsdp_tp": ["4*B*D/X + 4*D*F/Y", "6*B*D/X + 8*D*F/Y"],
}


@asks("training.comms_table", instead={k: [True, True] for k in TABLE})
def _(given: dict[str, Any]) -> Any:
    known = symbols("B D F X Y")
    mesh = {"X": known["X"], "Y": known["Y"]}
    return {
        strategy: [
            same(communicated_bytes(strategy, phase, known, mesh), text, known)
            for phase, text in zip(("forward", "backward"), texts, strict=True)
        ]
        for strategy, texts in TABLE.items()
    }


@asks("training.dcn_bcrit")
def _(given: dict[str, Any]) -> Any:
    return slice_critical_batch(slice_of(given["slice"] + "*2"))


def power_of_two(value: float) -> int:
    return int(2 ** math.floor(math.log2(value)))


@asks("training.llama70b_one_pod")
def _(given: dict[str, Any]) -> Any:
    _, bandwidth = v5p()
    x = power_of_two(best_split(given["B"], 8192, given["F"], given["N"], {"X": 2 * bandwidth, "Y": bandwidth}))
    return {"fsdp": x, "tensor": given["N"] // x}


@asks("training.ten_pods_days")
def _(given: dict[str, Any]) -> Any:
    return seconds_at(run_flops(6 * 70e9, 15e12), given["chips"], peak(chip("v5p"), "bf16"), 1.0) / 86400


@asks("training.q1_params")
def _(given: dict[str, Any]) -> Any:
    return parameters(architecture(given["model"])).total


@asks("training.q2_memory")
def _(given: dict[str, Any]) -> Any:
    arch = architecture("llama-2-13b")
    count = parameters(arch).total
    r = recipe("bf16")
    program = programs(arch, 4096).blocks[0].program
    outputs = [program.array(op.output).axes for op in program.ops if op.part == "mlp" and op.kind == "einsum"]
    width = sum(arch.feed_forward.d_ff if "F" in axes else arch.d_model for axes in outputs)
    return {
        "states": (2 + r.optimizer_bytes) * count,
        "activations": checkpoint_bytes(given["batch"], arch.layers, width, 1, 2),
    }


@asks("training.q3_hbm")
def _(given: dict[str, Any]) -> Any:
    where = slice_of(given["slice"])
    return where.chips * where.chip.hbm_bytes


@asks("training.q3_fsdp", instead={"bytes": 8e12, "bound": "communication", "needed_batch": 3480000.0})
def _(given: dict[str, Any]) -> Any:
    arch = architecture("llama-2-13b")
    one, bandwidth = v5p(3)
    needed = critical_batch("fsdp", one, {"X": bandwidth}) * 4096
    program = programs(arch, 4096).blocks[0].program
    outputs = [program.array(op.output).axes for op in program.ops if op.part == "mlp" and op.kind == "einsum"]
    width = sum(arch.feed_forward.d_ff if "F" in axes else arch.d_model for axes in outputs)
    states = (2 + recipe("bf16").optimizer_bytes) * parameters(arch).total
    return {
        "bytes": states + checkpoint_bytes(given["batch"], arch.layers, width, 1, 2),
        "bound": "communication" if given["batch"] < needed else "compute",
        "needed_batch": needed,
    }


# -- training Llama 3


@asks("applied-training.params")
def _(given: dict[str, Any]) -> Any:
    arch = architecture(given["model"])
    count = parameters(arch)
    return {
        "mlp": count.parts["mlp"], "attention": count.parts["attention"],
        "vocab": count.parts["embedding"] + count.parts["head"], "total": count.total,
    }  # fmt: skip


@asks("applied-training.flops_per_token")
def _(given: dict[str, Any]) -> Any:
    return 3 * flops_per_token(architecture(given["model"]), 4096).matmul


@asks("applied-training.days_pod")
def _(given: dict[str, Any]) -> Any:
    flops = run_flops(6 * 70e9, 15e12)
    return seconds_at(flops, given["chips"], peak(chip("v5p"), "bf16"), given["mfu"]) / 86400


def llama_memory(batch: float) -> dict[str, float]:
    arch = architecture("llama-3-70b")
    count = parameters(arch).total
    return {
        "parameters": 2 * count, "optimizer": recipe("bf16").optimizer_bytes * count,
        "checkpoints": checkpoint_bytes(batch, arch.layers, arch.d_model, 4, 2),
    }  # fmt: skip


@asks("applied-training.memory")
def _(given: dict[str, Any]) -> Any:
    return llama_memory(given["batch"])


@asks("applied-training.min_chips")
def _(given: dict[str, Any]) -> Any:
    return sum(llama_memory(4e6).values()) / chip("v5p").hbm_bytes


@asks("applied-training.per_chip_8960")
def _(given: dict[str, Any]) -> Any:
    return sum(llama_memory(4e6).values()) / slice_of(POD).chips


@asks("applied-training.fsdp_ok")
def _(given: dict[str, Any]) -> Any:
    one, bandwidth = v5p(3)
    tokens = given["batch"] / given["chips"]
    return {
        "tokens_per_chip": tokens,
        "bound": "communication" if tokens < critical_batch("fsdp", one, {"X": bandwidth}) else "compute",
    }


@asks("applied-training.tp_needed")
def _(given: dict[str, Any]) -> Any:
    one, bandwidth = v5p()
    arch = architecture("llama-3-70b")
    links = {"X": 2 * bandwidth, "Y": bandwidth}
    x = best_split(4 * 2**20, arch.d_model, arch.feed_forward.d_ff, 8960, links)
    nearest = 2 ** round(math.log2(x))
    return {
        "threshold": critical_batch("fsdp_tp", one, links, d_ff=arch.feed_forward.d_ff), "x_opt": x, "fsdp": nearest,
        "tensor": power_of_two(8960 / nearest),
    }  # fmt: skip


# -- GPUs


@asks("gpus.h100_units")
def _(given: dict[str, Any]) -> Any:
    one = chip(given["chip"])
    return {
        "sms": one.units["sms"], "tensor_cores": one.units["tensor_cores"], "bf16": peak(one, "bf16"),
        "f32_vector": one.vector_flops, "hbm": one.hbm_bytes, "hbm_bandwidth": one.hbm_bandwidth,
        "l2": one.units["l2_bytes"],
    }  # fmt: skip


@asks("gpus.b200")
def _(given: dict[str, Any]) -> Any:
    where = slice_of("b200:8")
    one = where.chip
    return {
        "bf16": peak(one, "bf16"), "hbm": one.hbm_bytes, "hbm_bandwidth": one.hbm_bandwidth,
        "nvlink": where.levels[0].bandwidth,
    }  # fmt: skip


@asks("gpus.ridge")
def _(given: dict[str, Any]) -> Any:
    return {n: ridge(peak(chip(n), "bf16"), chip(n).hbm_bandwidth) for n in ("h100", "b200")}


@asks("gpus.node")
def _(given: dict[str, Any]) -> Any:
    inner, outer = slice_of("h100:16").levels
    return {"gpus": inner.size, "nvlink": inner.bandwidth, "node_egress": inner.size * outer.bandwidth}


@asks("gpus.superpod")
def _(given: dict[str, Any]) -> Any:
    pod = slice_of("h100:1024")
    return {"nodes": pod.hosts, "gpus": pod.chips}


@asks("gpus.allgather_node")
def _(given: dict[str, Any]) -> Any:
    return collective_time("all_gather", given["bytes"], {"X": 8}, slice_of("h100:8")).seconds


@asks("gpus.allreduce_node")
def _(given: dict[str, Any]) -> Any:
    node = slice_of("h100:8")
    plain = replace(node, levels=(replace(node.levels[0], reduces=False),))
    return {
        "ring": collective_time("all_reduce", given["bytes"], {"X": 8}, plain).seconds,
        "sharp_ideal": collective_time("all_reduce", given["bytes"], {"X": 8}, node).seconds,
    }


@asks("gpus.alltoall_node")
def _(given: dict[str, Any]) -> Any:
    return collective_time("all_to_all", given["bytes"], {"X": 8}, slice_of("h100:8")).seconds


@asks("gpus.allgather_cluster")
def _(given: dict[str, Any]) -> Any:
    return collective_time("all_gather", given["bytes"], {"X": 1024}, slice_of("h100:1024")).seconds


@asks("gpus.dp_bcrit")
def _(given: dict[str, Any]) -> Any:
    inner, outer = slice_of("h100:1024").levels
    h100 = chip("h100")
    return {
        "node": critical_batch("fsdp", h100, {"X": inner.bandwidth}),
        # over nodes, what a node gathers enters it once, by the ports of its eight GPUs
        "cluster": critical_batch("fsdp", h100, {"X": inner.size * outer.bandwidth}),
    }


@asks("gpus.tp_limit")
def _(given: dict[str, Any]) -> Any:
    return tensor_limit(chip("h100"), slice_of("h100:8").levels[0].bandwidth, 28672)


def test_hops_follow_the_rings() -> None:
    assert hops_between(slice_of("v5e:16x16"), (0, 0), (15, 15)) == 2
    assert hops_between(slice_of("v5e:4x4"), (0, 0), (3, 3)) == 6
    assert overlapped_seconds(1.0, 2.0) == 2.0
