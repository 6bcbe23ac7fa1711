"""Operator times that others measured and publish, as sizes that the operator models take.

Reads the tables of an installed `aiconfigurator-core` (Apache-2.0): seconds of matmuls, of fused attention and of collectives by
chip. Only what is fitted to them goes into a calibration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rooftop.errors import InputError

Array = NDArray[np.float64]
#: Chip -> the tables' name of it.
SYSTEMS: Mapping[str, str] = {
    "a100-80g": "a100_sxm", "h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm", "gb200": "gb200", "b300": "b300_sxm",
    "gb300": "gb300",
}  # fmt: skip
_GEMM: Mapping[str, tuple[str, float]] = {
    "bfloat16": ("bf16", 2.0), "fp8": ("fp8", 1.0), "fp8_block": ("fp8", 1.0), "nvfp4": ("fp4", 0.5625),
}  # fmt: skip
_COLLECTIVES: Mapping[str, str] = {
    "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all", "all_reduce": "all_reduce",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operators:
    """Measurements of one kind of operator: columns of equal length.

    kind: "matmul", "attention" (fused, over a prompt), "decode" (fused, one query a sequence) or a collective. flops and bytes of
    the operator; of a matmul rows, columns and contraction; of a collective bytes of the whole array and chips.
    """

    kind: str
    dtype: str
    columns: Mapping[str, Array]
    seconds: Array

    def some(self, which: NDArray[np.bool_]) -> Operators:
        """Some of the measurements."""
        return Operators(self.kind, self.dtype, {n: c[which] for n, c in self.columns.items()}, self.seconds[which])


def read_operators(root: Path, chip: str) -> list[Operators]:
    """All operators of a chip that the tables under `root` (.../systems/data) have. Raises InputError where there are none."""
    if chip not in SYSTEMS:
        raise InputError(f"no operator tables are known for {chip[:40]}; use one of {', '.join(SYSTEMS)}", field="chip")
    folder = root / SYSTEMS[chip]
    found = [*_matmuls(folder), *_attention(folder), *_decode(folder), *_collectives(folder)]
    if not found:
        raise InputError(f"{folder} has no operator tables; give the folder systems/data of the package", field="path")
    return found


def _tables(folder: Path, pattern: str) -> Iterator[dict[str, list[object]]]:
    """Tables of the newest version of each backend."""
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError("operator tables are Parquet files; install rooftop[calibration]", field="path") from None
    newest: dict[Path, Path] = {}
    for file in sorted(folder.glob(pattern)):
        newest[file.parent.parent] = file
    for file in newest.values():
        table = parquet.read_table(file).to_pydict()
        table.setdefault("window_size", [0] * len(table["latency"]))
        yield table


def _best(
    keys: list[tuple[object, ...]], seconds: list[float]
) -> tuple[list[tuple[object, ...]], NDArray[np.float64]]:  # fmt: skip
    """Each shape once, with the time of the fastest kernel."""
    best: dict[tuple[object, ...], float] = {}
    for key, value in zip(keys, seconds, strict=True):
        if value > 0 and value < best.get(key, np.inf):
            best[key] = value
    return list(best), np.array(list(best.values()))


def _matmuls(folder: Path) -> Iterator[Operators]:
    keys: list[tuple[object, ...]] = []
    seconds: list[float] = []
    for t in _tables(folder, "gemm/*/*/gemm_perf.parquet"):
        for dtype, m, n, k, ms in zip(t["gemm_dtype"], t["m"], t["n"], t["k"], t["latency"], strict=True):
            if dtype in _GEMM:
                keys.append((_GEMM[dtype], m, n, k))  # type: ignore[index]
                seconds.append(float(ms) / 1e3)  # type: ignore[arg-type]
    shapes, best = _best(keys, seconds)
    for dtype, width in dict.fromkeys(_GEMM.values()):
        which = np.array([s[0] == (dtype, width) for s in shapes], dtype=np.bool_)
        if which.any():
            m, n, k = np.array([s[1:] for s in shapes], dtype=np.float64)[which].T
            columns = {"flops": 2 * m * n * k, "bytes": width * (m * k + k * n) + 2 * m * n, "rows": m, "columns": n,
                       "contraction": k}  # fmt: skip
            yield Operators("matmul", dtype, columns, best[which])


def _attention(folder: Path) -> Iterator[Operators]:
    keys: list[tuple[object, ...]] = []
    seconds: list[float] = []
    names = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
    for t in _tables(folder, "attention/*/*/context_attention_perf.parquet"):
        plain = zip(t["attn_dtype"], t["kv_cache_dtype"], t["window_size"], t["step"], strict=True)
        for i, what in enumerate(plain):
            if what == ("bfloat16", "bfloat16", 0, 0):
                keys.append(tuple(t[n][i] for n in names))
                seconds.append(float(t["latency"][i]) / 1e3)  # type: ignore[arg-type]
    shapes, best = _best(keys, seconds)
    if shapes:
        b, s, h, kv, d = np.array(shapes, dtype=np.float64).T
        kv = np.where(kv == 0, h, kv)
        columns = {"flops": 4 * b * h * d * s * (s + 1) / 2, "bytes": 2 * b * s * d * (2 * h + 2 * kv)}
        yield Operators("attention", "bf16", columns, best)


def _decode(folder: Path) -> Iterator[Operators]:
    keys: list[tuple[object, ...]] = []
    seconds: list[float] = []
    names = ("batch_size", "step", "num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype")
    for t in _tables(folder, "attention/*/*/generation_attention_perf.parquet"):
        for i, window in enumerate(t["window_size"]):
            if window == 0 and t["kv_cache_dtype"][i] in ("bfloat16", "fp8"):
                keys.append(tuple(t[n][i] for n in names))
                seconds.append(float(t["latency"][i]) / 1e3)  # type: ignore[arg-type]
    shapes, best = _best(keys, seconds)
    if shapes:
        width = np.array([2.0 if s[5] == "bfloat16" else 1.0 for s in shapes])
        b, step, h, kv, d = np.array([s[:5] for s in shapes], dtype=np.float64).T
        kv, positions = np.where(kv == 0, h, kv), step + 1
        columns = {"flops": 4 * b * h * d * positions, "bytes": 2 * b * kv * d * positions * width + 4 * b * h * d}
        yield Operators("decode", "bf16", columns, best)


def _collectives(folder: Path) -> Iterator[Operators]:
    keys: list[tuple[object, ...]] = []
    seconds: list[float] = []
    for pattern, dtype in (("comm/nccl/*/nccl_perf.parquet", "nccl_dtype"), ("comm/trtllm/*/custom_allreduce_perf.parquet", "allreduce_dtype")):  # fmt: skip
        for t in _tables(folder, pattern):
            for kind, n, elements, of, ms in zip(t["op_name"], t["num_gpus"], t["message_size"], t[dtype], t["latency"], strict=True):  # fmt: skip
                if kind in _COLLECTIVES:
                    width = 1 if of == "int8" else 2
                    keys.append((_COLLECTIVES[kind], n, width * elements))  # type: ignore[index,operator]
                    seconds.append(float(ms) / 1e3)  # type: ignore[arg-type]
    shapes, best = _best(keys, seconds)
    for kind in _COLLECTIVES.values():
        which = np.array([s[0] == kind for s in shapes], dtype=np.bool_)
        if which.any():
            chips, size = np.array([s[1:] for s in shapes], dtype=np.float64)[which].T
            yield Operators(kind, "", {"chips": chips, "bytes": size}, best[which])
