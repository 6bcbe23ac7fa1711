"""Real profiles: facts that they state, sums that must be whole, and files that are none."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import sqlite3
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("msgspec", reason="reads JSON traces; comes with rooftop[profiles]")
pytest.importorskip("google.protobuf", reason="reads xplane.pb; comes with rooftop[profiles]")

from rooftop.cli import run
from rooftop.errors import InputError, NoAnswer
from rooftop.hardware import chip
from rooftop.profiles import (
    Op,
    Report,
    against,
    analyse,
    capture,
    compare,
    global_shape,
    read,
    read_hlo_line,
    recognise,
    replica_members,
)
from rooftop.profiles._against import part_of
from rooftop.profiles._chrome import pieces
from rooftop.profiles._intervals import overlap, union, winners
from rooftop.views._plain import plain
from rooftop.views._trace import trace_json

TRACES = Path(__file__).parent / "data/traces"
FILES = sorted(p.name for p in TRACES.iterdir() if p.suffix == ".gz")


def report(*names: str, on: str | None = None) -> Report:
    return analyse([trace for name in names for trace in read(TRACES / name)], on)


# What the profiles state


def test_v6e_states_its_peaks() -> None:
    (trace,) = read(TRACES / "tpu-v6e-host-offload.xplane.pb.gz")
    device = trace.devices[0]
    assert device.flops == 918e12 == chip("v6e").flops["bf16"]
    assert device.bandwidth == pytest.approx(1638e9, rel=1e-4)
    assert chip("v6e").hbm_bandwidth == pytest.approx(device.bandwidth, rel=1e-4)


def test_v6e_ops() -> None:
    r = report("tpu-v6e-host-offload.xplane.pb.gz")
    ops = {op.name: op for op in r.ops}
    reduce = ops["all-reduce"]
    assert (reduce.collective, reduce.group) == ("all_reduce", 2)
    assert reduce.seconds / reduce.count == pytest.approx(0.12169, rel=1e-4)
    assert reduce.bytes is not None
    assert reduce.bytes / reduce.count == 5 * 1024 * 1024 * 256 * 4
    assert reduce.bytes / reduce.seconds == pytest.approx(44.1e9, rel=1e-3)
    # both directions of the one link between two chips: V·(n-1)/n each way, twice
    assert reduce.network == pytest.approx(reduce.bytes / 90e9)
    fusion = ops["broadcast_add_fusion.2"]
    assert fusion.bytes is not None
    assert fusion.bytes / fusion.count == 2 * 5368709120
    assert fusion.seconds / fusion.count == pytest.approx(7.92e-3, rel=1e-3)
    assert fusion.bytes / fusion.seconds == pytest.approx(1.357e12, rel=2e-3)
    assert fusion.fraction == pytest.approx(0.83, abs=0.005)
    assert fusion.binds == "hbm"
    assert fusion.source.endswith("host_offload_stress_test.py:29")
    broadcast = ops["broadcast.2"]
    assert broadcast.seconds / broadcast.count == pytest.approx(4.444e-3, rel=1e-3)
    assert broadcast.bytes is not None
    assert broadcast.bytes / broadcast.count == 5368709120
    losses = {x.name: x.share for x in r.losses}
    assert losses["transfers between host and device that nothing hides"] > 0.8
    assert r.steps is not None
    assert len(r.steps.seconds) == 100


def test_v6e_times_are_those_of_the_chip() -> None:
    """What XProf 2.24.2's converter (hlo_stats) gives for this file, in microseconds a run over the four chips."""
    r = report("tpu-v6e-host-offload.xplane.pb.gz")
    ops = {op.name: op for op in r.ops}
    for name, runs, average in (
        ("copy-done.4", 400, 194433.039328125), ("copy-done.2", 400, 194106.93204687498), ("copy-done", 400, 189177.596284375),
        ("copy-done.5", 400, 182365.45665625), ("broadcast_add_fusion.1", 400, 8155.268534375),
        ("broadcast_add_fusion", 400, 7976.4559125), ("broadcast_add_fusion.2", 400, 7918.009646875),
        ("all-reduce", 12, 121695.43822916667), ("broadcast.2", 1, 4443.76625),
    ):  # fmt: skip
        assert ops[name].count * len(r.devices) == runs
        assert ops[name].seconds / ops[name].count == pytest.approx(average * 1e-6, rel=1e-9), name


def test_chrome_traces_of_tpus_have_the_times_of_the_chip(tmp_path: Path) -> None:
    def op(name: str, start: float, length: float, offset: int, took: int) -> dict[str, Any]:
        args = {"hlo_category": "convolution", "device_offset_ps": str(offset), "device_duration_ps": str(took)}
        return {"ph": "X", "pid": 1, "tid": 3, "name": name, "ts": start, "dur": length, "args": args}

    names = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/device:TPU:0"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 3, "args": {"name": "XLA Ops"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "XLA Modules"}},
    ]
    module = {"ph": "X", "pid": 1, "tid": 2, "name": "jit_f", "ts": 100, "dur": 25, "args": {}}
    # the second op was squeezed to 5 us when it was moved to the host's clock; the chip took 20
    events = [*names, module, op("a", 100, 10, 7_000_000, 10_000_000), op("b", 110, 5, 17_000_000, 20_000_000)]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    r = analyse(read(tmp_path / "t.json"), "v5e")
    assert {o.name: o.seconds for o in r.ops} == {"a": pytest.approx(10e-6), "b": pytest.approx(20e-6)}
    assert r.window == pytest.approx(30e-6)
    assert r.steps is not None
    assert r.steps.seconds == (pytest.approx(30e-6),)


def test_matmuls_of_known_flops_on_this_cpu() -> None:
    r = report("cpu-jax-matmuls.xplane.pb.gz", on="cpu")
    by_part: dict[str, float] = defaultdict(float)
    for op in r.ops:
        by_part[op.part] += op.flops or 0.0
    assert by_part["mlp"] == by_part["head"] == 5 * 2 * 512 * 1024 * 2048
    assert r.steps is not None
    assert len(r.steps.seconds) == 5
    assert {op.dtype for op in r.ops if op.category == "matmul"} == {"fp32"}


def test_both_formats_of_jax_agree() -> None:
    one, other = (report(f"cpu-jax-matmuls.{kind}.gz") for kind in ("xplane.pb", "trace.json"))
    assert one.window == pytest.approx(other.window, rel=1e-6)
    assert {op.name: op.count for op in one.ops} == {op.name: op.count for op in other.ops}
    for a, b in zip(one.ops, other.ops, strict=True):
        assert a.seconds == pytest.approx(b.seconds, rel=1e-3)


def test_gemms_of_h100_have_their_shapes_and_layers() -> None:
    r = report("torch-h100-qwen1.5-0.5b.json.gz")
    assert r.roof is not None
    assert r.roof.name == "h100"
    # Qwen1.5-0.5B: 24 layers, d 1024, d_ff 2816; 16 x 559 tokens
    assert len(r.layers) == 24
    shapes = {op.shape: op for op in r.ops if op.category == "matmul"}
    up_and_gate = shapes["8944x1024x2816"]
    assert up_and_gate.count == 48
    assert up_and_gate.flops == 48 * 2 * 8944 * 1024 * 2816
    assert shapes["8944x1024x1024"].count == 96
    assert shapes["8944x2816x1024"].count == 24
    assert up_and_gate.part == "Qwen2DecoderLayer/Qwen2MLP/Linear"
    assert up_and_gate.library == "cuBLAS"
    assert 0.5 < (up_and_gate.fraction or 0) < 0.8
    attention = next(op for op in r.ops if op.category == "attention" and op.flops)
    assert attention.flops == 24 * 4 * 16 * 16 * 559 * 559 * 64
    assert attention.library == "FlashAttention"
    memory = r.memory["device 0"]
    assert memory.peak == max(used for _, used in memory.series)
    assert 1e9 < memory.peak < 85e9
    assert len(memory.series) <= 200
    assert 0 < r.unknown_matmuls < r.window


def test_sums_of_kineto_kernels_are_those_of_the_file() -> None:
    name = "torch-h100-qwen1.5-0.5b.json.gz"
    events = json.loads(gzip.decompress((TRACES / name).read_bytes()))["traceEvents"]
    kernels = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    r = report(name)
    assert sum(op.count for op in r.ops) == len(kernels)
    assert sum(op.seconds for op in r.ops) == pytest.approx(sum(e["dur"] for e in kernels) * 1e-6, rel=1e-9)
    allocated = [
        e["args"]["Total Allocated"] for e in events if e["name"] == "[memory]" and e["args"]["Device Type"] == 1
    ]
    assert r.memory["device 0"].peak == max(allocated)


def test_triton_and_tensile_kernels() -> None:
    r = report("torch-compile-triton.json.gz")
    libraries = {op.library for op in r.ops}
    assert {"Triton", "hipBLASLt"} <= libraries
    matmul = next(op for op in r.ops if op.shape == "32768x2048x8192")
    assert matmul.flops == 2 * 2 * 32768 * 2048 * 8192
    assert r.mfu == pytest.approx(sum(op.math or 0 for op in r.ops) / r.window)


def test_ranks_wait_for_each_other() -> None:
    r = report("torch-ddp-rank0.json.gz", "torch-ddp-rank1.json.gz", on="a100-40g")
    assert [d.rank for d in r.devices] == [0, 1]
    assert r.straggling is not None
    assert r.straggling.collectives == 10  # of those that both ranks ran equally often
    # rank 1 has the larger tables: it computes more and waits less
    assert r.straggling.compute["rank 1"] > r.straggling.compute["rank 0"]
    assert r.straggling.slowest == "rank 1"
    assert r.exposed <= r.communication + 1e-12


def test_a_run_without_accelerator() -> None:
    r = report("torch-cpu-only.json.gz")
    assert r.roof is None
    assert r.mfu is None
    assert sum(op.count for op in r.ops) == 4


def test_ops_of_pytorch_on_a_cpu_are_those_of_its_own_table() -> None:
    """Runs, self CPU time in microseconds and FLOPs as torch.profiler's key_averages() gave them for this run."""
    ops: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for op in report("torch-cpu-mlp.json.gz").ops:
        for i, value in enumerate((op.count, op.seconds * 1e6, op.flops or 0.0)):
            ops[op.name][i] += value
    for name, *expected in (
        ("aten::mm", 9, 2029.21, 100663296), ("aten::addmm", 6, 1312.44, 75497472), ("aten::gelu", 3, 252.66, 0),
        ("aten::gelu_backward", 3, 2293.6, 0), ("aten::t", 27, 109.08, 0), ("aten::linear", 6, 58.57, 0),
    ):  # fmt: skip
        assert ops[name] == pytest.approx(expected, rel=1e-4), name
    assert sum(row[1] for row in ops.values()) == pytest.approx(7026.565, rel=1e-6)


@pytest.mark.parametrize("name", FILES)
def test_every_window_adds_up(name: str) -> None:
    r = report(name, on="h100")
    assert sum(x.seconds for x in r.losses) == pytest.approx(r.window, rel=1e-12)
    assert sum(x.share for x in r.losses) == pytest.approx(1.0, rel=1e-12)
    assert all(x.seconds >= 0 for x in r.losses)
    for groups in (r.parts, r.categories):
        assert sum(g.wall for g in groups) == pytest.approx(sum(op.wall for op in r.ops))
        assert sum(g.seconds for g in groups) == pytest.approx(sum(op.seconds for op in r.ops))
    for d in r.devices:
        assert d.compute + d.communication + d.transfers + d.idle == pytest.approx(d.window, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "category", "library"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "matmul", "cuBLAS"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", "matmul", "cuBLAS"),
        ("ampere_sgemm_128x64_nn", "matmul", "cuBLAS"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align1>(Params)", "matmul", "CUTLASS"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 128, true, 1, true>()", "normalisation", "cuDNN"),
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>()", "attention", "FlashAttention"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "collective", "NCCL"),
        ("triton_poi_fused__unsafe_view_mul_silu_2", "elementwise", "Triton"),
        ("Memcpy HtoD (Pinned -> Device)", "host transfer", ""),
        ("something_nobody_knows", "unknown", ""),
    ],
)  # fmt: skip
def test_kernels_are_recognised(name: str, category: str, library: str) -> None:
    known = recognise(Op(name, "kernel"))
    assert (known.category, known.library) == (category, library)


# No time is counted twice or lost

EVENTS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(0, 3)), max_size=25)


@given(EVENTS)
@settings(max_examples=300, deadline=None)
def test_winners_are_the_union(rows: list[tuple[int, int, int]]) -> None:
    events = [(start, start + length, i, rank) for i, (start, length, rank) in enumerate(rows)]
    found = winners(events)
    for (_, end, _), (start, _, _) in itertools.pairwise(found):
        assert end <= start
    covered = {t for a, b, _, _ in events for t in range(a, b)}
    assert {t for a, b, _ in found for t in range(a, b)} == covered
    for a, b, i in found:
        for t in range(a, b):
            running = [(rank, -start) for start, end, _, rank in events if start <= t < end]
            assert (events[i][3], -events[i][0]) == min(running)


@given(EVENTS, EVENTS)
@settings(max_examples=100, deadline=None)
def test_overlap_is_that_of_sets(first: list[tuple[int, int, int]], second: list[tuple[int, int, int]]) -> None:
    a, b = (union((s, s + n) for s, n, _ in rows) for rows in (first, second))
    sets = [{t for x, y in rows for t in range(x, y)} for rows in (a, b)]
    assert overlap(a, b) == len(sets[0] & sets[1])


@given(EVENTS, st.integers(0, 30))
@settings(max_examples=50, deadline=None)
def test_synthetic_traces_conserve_time(tmp_path_factory: Any, rows: list[tuple[int, int, int]], late: int) -> None:
    events = [
        {"ph": "X", "cat": "kernel", "name": f"k{i % 5}", "pid": 0, "tid": stream, "ts": start, "dur": length,
         "args": {"correlation": i, "device": 0}}
        for i, (start, length, stream) in enumerate(rows)
    ]  # fmt: skip
    events += [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": e["ts"] - late, "dur": 1,
         "args": {"correlation": e["args"]["correlation"]}}  # type: ignore[index]
        for e in events
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("trace") / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    busy = {t for start, length, _ in rows for t in range(start, start + length)}
    if not busy and len({start for start, _, _ in rows}) < 2:  # no time passes
        with pytest.raises((NoAnswer, InputError)):
            analyse(read(path))
        return
    r = analyse(read(path), "h100")
    assert sum(op.wall for op in r.ops) == pytest.approx(len(busy) * 1e-6)
    assert sum(x.seconds for x in r.losses) == pytest.approx(r.window)


@given(st.integers(1, 4000), st.integers(0, 2**32), st.booleans())
@settings(max_examples=25, deadline=None)
def test_pieces_are_the_whole(tmp_path_factory: Any, size: int, seed: int, bare: bool) -> None:
    """Cut anywhere, also within strings and lists that look like the border between two events."""
    chooser = random.Random(seed)
    odd = ['"},{"', "},\n {", "\\", "é", '[{"a": 1}, {"b": 2}]']
    events = [
        {
            "ph": "i",
            "name": chooser.choice(odd) * chooser.randrange(3),
            "ts": i,
            "args": {"x": [{"a": 1}, {"b": chooser.choice(odd)}]},
        }
        for i in range(40)
    ]
    path = tmp_path_factory.mktemp("pieces") / "t.json"
    path.write_text(json.dumps(events if bare else {"schemaVersion": 1, "traceEvents": events, "z": {"y": [{}, {}]}}))
    import rooftop.profiles._source as source

    before = source.BLOCK
    source.BLOCK = size
    try:
        found = [e.ts for piece in pieces(path, {}) for e in piece]
    finally:
        source.BLOCK = before
    assert found == list(range(40))


# Files that are none


def refused(path: Path, match: str) -> None:
    with pytest.raises(InputError, match=match) as error:
        read(path)
    assert "\n" not in error.value.message
    assert str(path) in error.value.message or str(path.parent) in error.value.message


def test_foreign_and_broken_files(tmp_path: Path) -> None:
    good = gzip.decompress((TRACES / "torch-mi250-tiny-train.json.gz").read_bytes())
    plane = gzip.decompress((TRACES / "cpu-jax-matmuls.xplane.pb.gz").read_bytes())
    cases: dict[str, tuple[bytes, str]] = {
        "missing": (b"", "does not exist"),
        "empty.json": (b"", "is empty"),
        "text.json": (b"hello", "is not an XSpace"),
        "other.json": (b'{"a": 1}', "without traceEvents"),
        "none.json": (b'{"traceEvents": []}', "no events"),
        "cut.json": (good[: len(good) // 2], "cut off or corrupt"),
        "bad.json": (good.replace(b'"ph"', b"ph", 50), "cut off or corrupt"),
        "nan.json": (b'{"traceEvents": [{"ph": "X", "ts": 1e300, "dur": 1, "cat": "kernel"}]}', "has the time"),
        "far.json": (
            b'{"traceEvents": [{"ph":"X","ts":0,"dur":1,"cat":"kernel"},{"ph":"X","ts":1e17,"dur":1,"cat":"kernel"}]}',
            "hundred days",
        ),
        "deep.json": (b'{"traceEvents": [' + b"[" * 100000, "cut off or corrupt"),
        "cut.json.gz": (gzip.compress(good)[:-2000], "gzip data"),
        "bad.json.gz": (b"\x1f\x8b" + bytes(50), "gzip data are corrupt"),
        "bomb.json.gz": (gzip.compress(b'{"traceEvents":[' + b" " * (150 << 20), 9), "times its size"),
        "cut.xplane.pb": (plane[: len(plane) // 2], "is not an XSpace"),
        "random.pb": (random.Random(0).randbytes(5000), "is not an XSpace"),
        "some.sqlite": (b"SQLite format 3\0" + bytes(200), "Nsight"),
        "t.zip": (b"PK\x03\x04" + bytes(100), "zip archive"),
    }
    for name, (data, match) in cases.items():
        if name != "missing":
            (tmp_path / name).write_bytes(data)
        refused(tmp_path / name, match)
    (tmp_path / "folder").mkdir()
    refused(tmp_path / "folder", "holds no profile")
    refused(Path("/dev/zero"), "not a file")


SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)
LISTS = st.lists(SCALAR, max_size=3)
ODD = SCALAR | LISTS | st.lists(LISTS, max_size=2) | st.dictionaries(st.text(max_size=3), SCALAR, max_size=2)
FIELDS = ("External id", "correlation", "device", "Input Dims", "Input type", "bytes", "Group size", "Collective name",
          "In msg nelems", "dtype", "hlo_op", "flops", "Total Allocated", "Device Id", "name")  # fmt: skip


@given(
    st.lists(
        st.fixed_dictionaries(
            {"ph": st.sampled_from(["X", "B", "E", "M", "i"]), "ts": st.integers(0, 99) | ODD},
            optional={
                "dur": st.integers(0, 9) | ODD, "pid": ODD, "tid": ODD, "name": st.sampled_from(["[memory]", "aten::mm", "gemm", "nccl"]) | ODD,
                "cat": st.sampled_from(["kernel", "cpu_op", "cuda_runtime", "gpu_memcpy"]) | ODD,
                "args": st.dictionaries(st.sampled_from(FIELDS), ODD, max_size=6) | ODD,
            },
        ),
        max_size=6,
    )
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_odd_values_give_a_report_or_one_line(tmp_path_factory: Any, events: list[Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "odd.json"
    path.write_text(
        json.dumps({"traceEvents": events, "deviceProperties": events, "distributedInfo": {"rank": events}})
    )
    try:
        r = analyse(read(path), "h100")
    except (InputError, NoAnswer) as error:
        assert "\n" not in error.message
        return
    assert sum(x.seconds for x in r.losses) == pytest.approx(r.window)
    plain(trace_json(r))


def test_every_cut_of_a_trace_is_one_line(tmp_path: Path) -> None:
    for name, step in (("torch-cpu-only.json.gz", 977), ("cpu-jax-matmuls.xplane.pb.gz", 499)):
        data = gzip.decompress((TRACES / name).read_bytes())
        path = tmp_path / name.removesuffix(".gz")
        for end in range(1, len(data), step):
            path.write_bytes(data[:end])
            try:
                analyse(read(path))
            except (InputError, NoAnswer) as error:
                assert "\n" not in error.message


def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["trace", str(TRACES / "torch-compile-triton.json.gz"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert sum(x["share"] for x in answer["losses"]) == pytest.approx(1)
    assert answer["roof"]["chip"] == "mi300x"
    assert run(["trace", str(TRACES / "torch-ddp-rank0.json.gz"), "--top", "3"]) == 0
    assert "What to do first" in capsys.readouterr().out
    assert run(["trace", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "run").mkdir()
    for rank in (0, 1):
        (tmp_path / f"run/{rank}.json.gz").write_bytes((TRACES / f"torch-ddp-rank{rank}.json.gz").read_bytes())
    assert run(["trace", str(tmp_path / "run"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["devices"]) == 2


# The book, section 9


def book(name: str) -> dict[str, Any]:
    text = (Path(__file__).parent / "data/book/profiling.jsonl").read_text()
    return next(row for row in map(json.loads, text.splitlines()) if row["id"] == f"profiling.{name}")


HLO = (
    "%fusion.1 = bf16[8,1024,4096]{2,1,0:T(8,128)(2,1)} fusion(bf16[8,1024,8192]{2,1,0:T(8,128)(2,1)} %fusion.31),"
    " kind=kCustom, calls=%all-reduce-scatter.1"
)


def test_book_hlo_line() -> None:
    expected = book("hlo_line")["expected"]
    line = read_hlo_line(HLO)
    output = line.outputs[0]
    assert {
        "kind": line.kind, "out_bytes": output.bytes, "in_bytes": line.inputs[0].bytes, "tile": list(output.tile),
        "packing": list(output.packing), "memory": output.memory, "layout": list(output.layout),
    } == expected  # fmt: skip
    assert read_hlo_line(HLO.replace("(2,1)}", "(2,1)S(1)}", 1)).outputs[0].memory == "VMEM"


def test_book_reduce_scatter() -> None:
    from rooftop.roofline import memory_seconds

    row = book("reduce_scatter")
    seconds = memory_seconds(read_hlo_line(HLO).inputs[0].bytes, row["inputs"]["bandwidth"])
    assert seconds == pytest.approx(row["expected"], rel=row["rel_tol"])


def test_book_local_view_and_the_matmul_behind_it() -> None:
    from rooftop.roofline import math_seconds

    row, mesh = book("local_view"), book("local_view")["expected"]["mesh"]
    line = read_hlo_line(
        "%f = bf16[8,1024,16384]{2,1,0} fusion(bf16[8,1024,8192]{2,1,0} %x, bf16[8192,16384]{1,0} %w), kind=kOutput"
    )
    x = global_shape(line.inputs[0].shape, (mesh["data"], 1, 1))
    w = global_shape(line.inputs[1].shape, (1, mesh["tensor"]))
    assert {"x": list(x), "w": list(w), "mesh": mesh} == row["expected"]
    ffw = book("ffw")
    flops = 2 * x[0] * x[1] * x[2] * w[1]
    assert math_seconds(flops, ffw["inputs"]["peak"] * ffw["inputs"]["cores"]) == pytest.approx(
        ffw["expected"], rel=ffw["rel_tol"]
    )


def test_book_question_1() -> None:
    expected = book("q1")["expected"]
    members = replica_members("replica_groups={{0,16,32,48,64,80,96,112},{1,17,33,49,65,81,97,113}}")
    line = read_hlo_line("%f = bf16[4096]{0} fusion(bf16[4096,8192]{1,0} %w, bf16[8192]{0} %x), kind=kLoop")
    assert {"tensor": len(members), "weight": list(global_shape(line.inputs[0].shape, (len(members), 1)))} == expected


def test_only_reading_imports_the_heavy_libraries() -> None:
    code = (
        "import rooftop.profiles, sys; assert not {'msgspec', 'google.protobuf', 'pyarrow', 'jax'} & set(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(Path(__file__).parent.parent / "src")}
    )


# Before and after, other formats, exports


def kineto(path: Path, kernels: list[tuple[str, float, float]], **header: Any) -> Path:
    """A trace of kernels (name, start, microseconds) on one stream, one step around them."""
    events: list[dict[str, Any]] = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": name,
            "pid": 0,
            "tid": 7,
            "ts": start,
            "dur": length,
            "args": {"device": 0},
        }
        for name, start, length in kernels
    ]
    end = max(start + length for _, start, length in kernels)
    events.append(
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0, "dur": end}
    )
    path.write_text(json.dumps({**header, "traceEvents": events}))
    return path


def test_book_layer_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = book("layer")
    before = kineto(tmp_path / "a.json", [("gemm", 0, 60e3), ("ncclDevKernel_AllReduce", 60e3, 124e3)])
    after = kineto(tmp_path / "b.json", [("gemm", 0, 60e3), ("ncclDevKernel_ReduceScatter", 60e3, 7e3)])
    v = compare(analyse(read(before)), analyse(read(after)))
    assert v.speedup == pytest.approx(row["expected"]["speedup"], rel=row["rel_tol"])
    assert (v.step_before, v.step_after) == (pytest.approx(0.184), pytest.approx(0.067))
    assert [c.name for c in v.ops][:2] == ["ncclDevKernel_AllReduce", "ncclDevKernel_ReduceScatter"]
    assert v.categories[0].name == "collective"
    assert v.categories[0].seconds == pytest.approx(-0.117)
    assert v.categories[0].share == pytest.approx(-117 / 184)
    assert run(["trace", str(before), "--versus", str(after)]) == 0
    assert "2.75 times faster" in capsys.readouterr().out
    assert run(["trace", str(before), "--versus", str(after), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["speedup"] == pytest.approx(184 / 67)


def test_changes_add_up() -> None:
    v = compare(report("torch-ddp-rank0.json.gz"), report("torch-ddp-rank1.json.gz"))
    for changes in (v.losses, v.parts, v.categories):
        assert sum(c.seconds for c in changes) == pytest.approx(v.step_after - v.step_before, abs=1e-12)
    same = compare(report("torch-h100-qwen1.5-0.5b.json.gz"), report("torch-h100-qwen1.5-0.5b.json.gz"))
    assert same.speedup == 1
    assert all(c.seconds == 0 for c in same.ops)


def nsight(path: Path) -> Path:
    """An export with two kernels, a copy, their launches and a range."""
    connection = sqlite3.connect(path)
    connection.executescript(
        """
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
        INSERT INTO StringIds VALUES (1, 'ampere_sgemm_128x64_nn'), (2, 'cudaLaunchKernel_v7000'), (3, 'step'),
          (4, 'ncclDevKernel_AllReduce_Sum_f32_RING_LL');
        CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, totalMemory INTEGER, memoryBandwidth INTEGER);
        INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H100 80GB HBM3', 85018279936, 3352320000000);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
          correlationId INTEGER, demangledName INTEGER, shortName INTEGER);
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 3000, 0, 7, 1, 1, 1), (2000, 5000, 0, 8, 2, 4, 4);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
          correlationId INTEGER, copyKind INTEGER, bytes INTEGER);
        INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (7000, 9000, 0, 7, 3, 1, 64000);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, correlationId INTEGER, nameId INTEGER, globalTid INTEGER);
        INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (500, 600, 1, 2, 1), (700, 800, 2, 2, 1), (6000, 6100, 3, 2, 1);
        CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER, globalTid INTEGER);
        INSERT INTO NVTX_EVENTS VALUES (0, 9500, NULL, 3, 1);
        """
    )
    connection.commit()
    connection.close()
    return path


def test_nsight_export(tmp_path: Path) -> None:
    r = analyse(read(nsight(tmp_path / "n.sqlite")))
    assert r.format == "Nsight Systems"
    assert r.roof is not None
    assert r.roof.name == "h100"
    assert r.window == pytest.approx(8e-6)
    (d,) = r.devices
    # the all-reduce runs from 2 to 5 us, of which the matmul hides the first
    assert (d.compute, d.communication, d.transfers, d.idle) == tuple(map(pytest.approx, (2e-6, 2e-6, 2e-6, 2e-6)))
    assert (r.communication, r.exposed) == (pytest.approx(3e-6), pytest.approx(2e-6))
    copy = next(op for op in r.ops if op.category == "host transfer")
    assert copy.bytes == 64000
    assert {op.part for op in r.ops} == {"step"}
    losses = {x.name: x.seconds for x in r.losses}
    # idle from 5 to 7 us; the copy was launched at 6
    assert losses["idle: the host launched too late"] == pytest.approx(1e-6)
    assert losses["idle: gaps between kernels"] == pytest.approx(1e-6)
    connection = sqlite3.connect(tmp_path / "other.sqlite")
    connection.execute("CREATE TABLE a (b)")
    connection.commit()
    connection.close()
    refused(tmp_path / "other.sqlite", "without kernels")


def test_why_a_device_was_idle(tmp_path: Path) -> None:
    def host(name: str, start: float, length: float, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": "cuda_runtime" if "cuda" in name else "cpu_op", "name": name, "pid": 1, "tid": 1,
                "ts": start, "dur": length, "args": args}  # fmt: skip

    def kernel(start: float, length: float, correlation: int) -> dict[str, Any]:
        return {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": start, "dur": length,
                "args": {"device": 0, "correlation": correlation}}  # fmt: skip

    events = [
        kernel(0, 10, 1), kernel(40, 10, 2), kernel(55, 10, 3), kernel(400, 10, 4),
        host("cudaLaunchKernel", 0, 1, correlation=1), host("enumerate(DataLoader)#next", 12, 10),
        host("aten::item", 24, 6), host("cudaLaunchKernel", 38, 1, correlation=2),
        host("cudaLaunchKernel", 39.5, 0.25, correlation=3), host("cudaLaunchKernel", 41, 1, correlation=4),
    ]  # fmt: skip
    path = tmp_path / "t.json"
    events += [kernel(1000, 10, 5), host("cudaLaunchKernel", 500, 1, correlation=5)]  # launched long before it began
    path.write_text(json.dumps({"traceEvents": events}))
    losses = {x.name: x.seconds * 1e6 for x in analyse(read(path)).losses if x.name.startswith("idle")}
    assert losses == {
        "idle: input": pytest.approx(10),
        "idle: the host waited for the device": pytest.approx(6),
        "idle: the host launched too late": pytest.approx(28 - 16 + 90),
        "idle: gaps between kernels": pytest.approx(2 + 5),
        "idle: pauses that the profile does not explain": pytest.approx(335 + 500),
    }


def test_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = str(TRACES / "tpu-v6e-host-offload.xplane.pb.gz")
    files = [str(tmp_path / n) for n in ("p.json.gz", "r.html")]
    assert run(["trace", name, "--perfetto", files[0], "--html", files[1], "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    shown = json.loads(gzip.decompress(Path(files[0]).read_bytes()))["traceEvents"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in shown if e["name"] == "thread_name"}
    assert "XLA Ops: roofline of v6e" in threads.values()
    measured = [e for e in shown if e["ph"] == "X" and threads[e["pid"], e["tid"]] == "XLA Ops"]
    predicted = [e for e in shown if e["ph"] == "X" and "roofline of" in threads[e["pid"], e["tid"]]]
    assert len(measured) == sum(op["count"] for op in answer["ops"]) * len(answer["devices"])
    fusion = next(e for e in predicted if e["name"] == "broadcast_add_fusion.2")
    assert fusion["dur"] == pytest.approx(2 * 5368709120 / 1.638e12 * 1e6)
    # what we write can be read: the same ops with the same times
    assert read(files[0])[0].duration.max() > 0
    page = Path(files[1]).read_text()
    for text in ("Where the time went", "Roofline", "Timeline", "rt-figure", "copy-done.2"):
        assert text in page


def test_a_profile_is_not_written_over(tmp_path: Path) -> None:
    path = kineto(tmp_path / "t.json", [("gemm", 0, 5)])
    before = path.read_bytes()
    for option in ("--perfetto", "--parquet"):
        assert run(["trace", str(path), option, str(tmp_path / "." / "t.json")]) == 2
    assert path.read_bytes() == before


def test_names_of_a_hostile_profile_stay_text(tmp_path: Path) -> None:
    path = kineto(tmp_path / "t.json", [("<script>alert(1)</script>", 0, 5), ("[bold]x[/nonsense]", 5, 5)])
    page = tmp_path / "t.html"
    assert run(["trace", str(path), "--on", "h100", "--html", str(page)]) == 0
    text = page.read_text()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text  # in tables
    assert "\\u003cscript>alert(1)" in text  # in the data of figures


def test_parquet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = str(tmp_path / "ops.parquet")
    assert run(["trace", str(TRACES / "torch-h100-qwen1.5-0.5b.json.gz"), "--parquet", path, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert parquet.read_table(path).to_pylist() == answer["ops"]
    assert run(["trace", str(TRACES / "torch-compile-triton.json.gz"), "--parquet", str(tmp_path / "no/ops")]) == 2


def test_hosts_that_do_not_say_which_they_are(tmp_path: Path) -> None:
    for host in ("a", "b"):
        (tmp_path / f"{host}.xplane.pb.gz").write_bytes((TRACES / "tpu-v6e-host-offload.xplane.pb.gz").read_bytes())
    r = analyse(read(tmp_path))
    assert len(r.devices) == 8
    assert {d.rank for d in r.devices} == {0, 1}
    assert r.straggling is not None
    assert len(r.straggling.compute) == 8


def test_flash_attention_backward_counts_its_flops_once() -> None:
    inputs = tuple(((2, 128, 4, 64), "c10::BFloat16") for _ in range(5))
    kernels = (
        "flash_bwd_dot_do_o_kernel",
        "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel",
        "flash_bwd_convert_dq_kernel",
    )
    flops = [
        recognise(Op(name, "kernel", caller="aten::_flash_attention_backward", inputs=inputs)).flops for name in kernels
    ]
    assert flops == [None, 2.5 * 4 * 2 * 4 * 128 * 128 * 64, None]


def test_convolutions_count_each_element_of_the_output_once_for_each_tap() -> None:
    def op(name: str, caller: str, shapes: list[tuple[int, ...]], values: list[str], category: str = "kernel") -> Op:
        return Op(
            name, category, caller=caller, inputs=tuple((s, "c10::BFloat16") for s in shapes), values=json.dumps(values)
        )

    image, kernel, out = (10, 3, 224, 224), (64, 3, 7, 7), (10, 64, 112, 112)
    flops = 2 * 10 * 64 * 112 * 112 * 3 * 49  # the first layer of ResNet: 118 million products an image
    assert flops / 2 / 10 == 118_013_952
    forward = op(
        "igemm_fwd_gtcx3", "aten::miopen_convolution", [image, kernel], ["", "", "", "[3, 3]", "[2, 2]", "[1, 1]", "1"]
    )
    known = recognise(forward)
    assert (known.category, known.flops) == ("convolution", flops)
    assert known.bytes == 2 * (10 * 3 * 224**2 + 64 * 3 * 49 + 10 * 64 * 112**2)
    cudnn = op(
        "cutlass__tensorop_s1688gemm",
        "aten::cudnn_convolution",
        [image, kernel],
        ["", "", "[3, 3]", "[2, 2]", "[1, 1]"],
    )
    assert (recognise(cudnn).category, recognise(cudnn).flops) == ("convolution", flops)
    assert recognise(op("batched_transpose_16x32_half", "aten::miopen_convolution", [image, kernel], [])).flops is None
    assert (
        recognise(op("igemm_fwd_gtcx3", "aten::miopen_convolution", [image, kernel], [])).flops is None
    )  # no stride told

    backward = ["", "", "", "[0]", "[2, 2]", "[3, 3]", "[1, 1]", "False", "[0, 0]", "1"]
    for name in ("sm80_xmma_dgrad_implicit_gemm", "sm80_xmma_wgrad_implicit_gemm"):
        assert recognise(op(name, "aten::convolution_backward", [out, image, kernel], backward)).flops == flops
    on_cpu = op("aten::convolution_backward", "aten::convolution_backward", [out, image, kernel], backward, "cpu_op")
    assert recognise(on_cpu).flops == 2 * flops
    # a transposed one is the backward pass of a plain one: each element of its input meets all taps
    other = op("dgrad", "aten::cudnn_convolution_transpose", [out, (64, 3, 7, 7)], [])
    assert recognise(other).flops == flops
    grouped = op("conv_depthwise2d_forward_kernel", "aten::_conv_depthwise2d", [(1, 8, 10, 10), (8, 1, 3, 3)],
                 ["", "", "[3, 3]", "", "[1, 1]", "[1, 1]", "[1, 1]"])  # fmt: skip
    assert recognise(grouped).flops == 2 * 8 * 100 * 9


def test_wrappers_on_a_cpu_do_not_count_the_flops_of_what_they_call(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[64, 32], [32, 16]], "Input type": ["float", "float"]}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length, "args": shapes}
        for name, start, length in (("aten::matmul", 0, 10), ("aten::mm", 1, 8))
    ]}))  # fmt: skip
    assert analyse(read(path), "cpu").flops == 2 * 64 * 32 * 16


def test_what_held_the_peak_of_memory_adds_up_to_it(tmp_path: Path) -> None:
    def host(name: str, category: str, start: float, length: float) -> dict[str, Any]:
        return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length}

    def memory(time: float, address: int, change: int, total: int) -> dict[str, Any]:
        args = {"Total Allocated": total, "Addr": address, "Bytes": change, "Device Id": 0, "Device Type": 1}
        return {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": time, "args": args}

    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1, "dur": 5, "args": {"device": 0}}
    events = [
        kernel, host("nn.Module: Layer_0", "python_function", 0, 20), host("nn.Module: MLP_0", "python_function", 2, 10),
        host("aten::mm", "cpu_op", 3, 2), host("aten::add", "cpu_op", 30, 5), memory(4, 1, 100, 1100),
        memory(8, 2, 50, 1150), memory(15, 2, -50, 1100), memory(16, 3, 70, 1170), memory(31, 4, 40, 1210), memory(33, 4, -40, 1170),
    ]  # fmt: skip
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    peak = analyse(read(path)).memory["device 0"]
    assert (peak.peak, peak.during) == (1210, "aten::add")
    assert [(h.name, h.bytes, h.buffers) for h in peak.held] == [
        ("allocated before the profile", 1000, 0), ("Layer/MLP", 100, 1), ("Layer", 70, 1), ("aten::add", 40, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_every_peak_of_memory_is_held_by_something(name: str) -> None:
    for peak in report(name).memory.values():
        assert sum(h.bytes for h in peak.held) == peak.peak


# Against a plan


def plan_file(path: Path, **changes: Any) -> Path:
    parts = [
        {"name": "mlp forward", "kind": "compute", "seconds": 0.010, "overlapped": 0.0},
        {"name": "mlp backward", "kind": "compute", "seconds": 0.020, "overlapped": 0.0},
        {"name": "fsdp: weights", "kind": "network", "seconds": 0.030, "overlapped": 0.025},
        {"name": "step overhead", "kind": "host", "seconds": 0.002, "overlapped": 0.0},
    ]
    best = {"step_seconds": {"bound": 0.03, "expected": 0.037}, "time_parts": parts, "chips": 1, **changes}
    path.write_text(json.dumps({"best": best}))
    return path


def test_against_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = kineto(
        tmp_path / "t.json", [("mlp_gemm", 0, 45e3), ("ncclDevKernel_AllGather", 45e3, 20e3), ("where", 66e3, 1e3)]
    )
    p = against(analyse(read(trace), "h100"), plan_file(tmp_path / "plan.json"))
    assert (p.planned, p.measured) == (0.037, pytest.approx(0.067))
    rows = {r.name: r for r in p.rows}
    assert sum(r.measured for r in p.rows) == pytest.approx(p.measured)
    assert [abs(r.difference) for r in p.rows] == sorted((abs(r.difference) for r in p.rows), reverse=True)
    network = rows["exposed communication"]
    assert (network.planned, network.measured) == (pytest.approx(0.005), pytest.approx(0.020))
    assert network.cause == "25 ms were to be hidden, 0 ms were"
    assert (rows["idle"].planned, rows["idle"].measured) == (0.002, pytest.approx(0.001))
    assert rows["mlp"].planned == pytest.approx(0.030)
    assert run(["trace", str(trace), "--plan", str(tmp_path / "plan.json"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["against_plan"]
    assert answer["step_seconds"] == {"bound": 0.03, "expected": 0.037, "measured": pytest.approx(0.067)}
    assert run(["trace", str(trace), "--plan", str(tmp_path / "plan.json")]) == 0
    assert "likely cause" in capsys.readouterr().out


def test_ops_find_their_part_of_the_plan() -> None:
    r = report("torch-h100-qwen1.5-0.5b.json.gz")
    found = {op.part.split("/")[-1]: part_of(op) for op in r.ops if op.part}
    assert found["Qwen2RMSNorm"] == "norm"
    assert found["Qwen2MLP"] == "mlp"
    assert found["Qwen2Attention"] == "attention"
    assert part_of(next(op for op in r.ops if op.part == "Qwen2DecoderLayer/Qwen2MLP/Linear")) == "mlp"


def test_a_real_plan_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            ["step", "llama-3-8b", "--on", "v5e:4x4", "--mesh", "fsdp=16", "--batch", "1M", "--remat", "full", "--json"]
        )
        == 0
    )
    (tmp_path / "plan.json").write_text(capsys.readouterr().out)
    p = against(report("torch-h100-qwen1.5-0.5b.json.gz"), tmp_path / "plan.json")
    saved = str(tmp_path / "saved.json")
    words = ["step", "llama-3-8b", "--on", "v5e:4x4", "--mesh", "fsdp=16", "--batch", "1M", "--remat", "full"]
    assert run([*words, "--save", saved]) == 0
    capsys.readouterr()
    name = str(TRACES / "torch-h100-qwen1.5-0.5b.json.gz")
    assert run(["trace", name, "--on", "h100", "--plan", saved, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["against_plan"]
    assert told["step_seconds"]["expected"] == pytest.approx(p.planned)
    assert told["memory_bytes"]["planned"] == pytest.approx(sum(told["memory_bytes"]["planned_parts"].values()))
    assert {"mlp", "attention", "norm", "exposed communication"} <= {r.name for r in p.rows}
    assert any("16 chips" in note for note in p.notes)


@pytest.mark.parametrize(
    ("text", "field"),
    [("nonsense", "plan"), ("{}", "step_seconds"), ('{"step_seconds": {"bound": 1, "expected": 2}}', "time_parts"),
     ('{"step_seconds": {"bound": 1, "expected": 2}, "time_parts": [{"name": 1}]}', "time_parts")],
)  # fmt: skip
def test_files_without_a_plan(tmp_path: Path, text: str, field: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(InputError) as error:
        against(report("torch-compile-triton.json.gz"), tmp_path / "plan.json")
    assert error.value.field == field


# Our own profiles


def test_what_cannot_be_profiled(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="profiles through JAX")
    with pytest.raises(InputError, match="ZeroDivisionError"):
        capture(lambda: 1 / 0, [], 1, tmp_path)


def test_a_matmul_of_known_flops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jax", reason="profiles through JAX")
    (tmp_path / "mine_to_profile.py").write_text("def step(x, w):\n    return x @ w\n")
    monkeypatch.chdir(tmp_path)
    command = [
        "profile",
        "mine_to_profile:step",
        "--shapes",
        "f32[256,512]; f32[512,128]",
        "--steps",
        "3",
        "--on",
        "cpu",
        "--json",
    ]
    assert run(command) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["flops"] == 3 * 2 * 256 * 512 * 128
    assert len(answer["steps"]["seconds"]) == 3
    assert run(["profile", "mine_to_profile:missing"]) == 2
