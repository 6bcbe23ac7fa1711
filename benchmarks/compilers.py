"""Thirty training plans through the compilers of their chips: how far the planner is from what they make.

    python benchmarks/compilers.py [--json benchmarks/results/compilers.json]

Needs pip install 'rooftop[tpu]' and 'rooftop[gpu]', and no accelerator. All models have their full size and depth.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rooftop.errors import RooftopError
from rooftop.hardware import slice_of
from rooftop.lower import TOLERANCE, check
from rooftop.training import Choices, Question, named_plan, problem_of
from rooftop.transformer import architecture

GRID = [
    ("llama-3-8b", "v5e:4x8", "fsdp=8,tensor=4", "full", 3),
    ("llama-3-8b", "v5e:8x8", "data=2,fsdp=8,tensor=4", "selective", 3),
    ("llama-3-8b", "v5e:16x16", "fsdp=64,tensor=4", "none", 3),
    ("llama-3-8b", "v5e:4x4", "fsdp=16", "full", 3),
    ("llama-3-8b", "v5p:2x2x4", "fsdp=8,tensor=2", "none", 3),
    ("llama-3-8b", "v5p:4x4x4", "fsdp=16,context=4", "full", 3),
    ("llama-3-8b", "v6e:4x4", "fsdp=8,tensor=2", "selective", 3),
    ("llama-3-8b", "v6e:8x8", "data=4,fsdp=16", "full", 2),
    ("llama-3-8b", "h100:16", "fsdp=8,tensor=2", "full", 3),
    ("llama-3-8b", "h100:32", "data=4,fsdp=8", "full", 3),
    ("llama-3-8b", "h100:16", "fsdp=4,tensor=4", "selective", 3),
    ("llama-3-70b", "v5p:4x4x8", "fsdp=32,tensor=4", "full", 3),
    ("llama-3-70b", "v5p:8x8x8", "data=2,fsdp=64,tensor=4", "full", 3),
    ("llama-3-70b", "v6e:16x16", "fsdp=64,tensor=4", "full", 3),
    ("llama-3-70b", "v5e:16x16", "fsdp=32,tensor=8", "full", 3),
    ("llama-3-70b", "h100:128", "fsdp=16,tensor=8", "full", 3),
    ("llama-3-70b", "h100:256", "data=4,fsdp=8,tensor=8", "full", 3),
    ("gemma-2-9b", "v6e:4x4", "fsdp=8,tensor=2", "full", 3),
    ("gemma-2-9b", "v5e:8x8", "fsdp=16,tensor=4", "full", 3),
    ("gemma-2-9b", "v5p:4x4x4", "data=4,fsdp=16", "full", 3),
    ("gemma-2-9b", "h100:32", "fsdp=16,tensor=2", "full", 3),
    ("mixtral-8x7b", "v5p:4x4x4", "fsdp=8,expert=8", "full", 3),
    ("mixtral-8x7b", "v5e:16x16", "fsdp=32,expert=8", "full", 3),
    ("mixtral-8x7b", "v6e:8x8", "fsdp=4,expert=8,tensor=2", "full", 3),
    ("mixtral-8x7b", "h100:64", "fsdp=8,expert=8", "full", 3),
    ("mixtral-8x7b", "h100:64", "fsdp=8,tensor=8", "full", 3),
    ("deepseek-v2-lite", "v5p:2x2x4", "fsdp=4,expert=4", "full", 3),
    ("deepseek-v2-lite", "v6e:4x8", "fsdp=8,expert=4", "full", 3),
    ("deepseek-v2-lite", "v5e:8x8", "fsdp=8,expert=8", "full", 3),
    ("deepseek-v2-lite", "h100:32", "fsdp=4,expert=8", "full", 3),
]


def run(model: str, on: str, mesh: str, remat: str, zero: int, seq: int = 4096) -> dict[str, object]:
    """One plan: differences of FLOPs, of bytes by axis and of peak memory, or why there are none."""
    where = slice_of(on)
    ways = {axis: int(n) for axis, n in (part.split("=") for part in mesh.split(","))}
    question = Question(architecture(model), where, batch=where.chips * seq, seq=seq)
    row: dict[str, object] = {"model": model, "slice": on, "mesh": mesh, "remat": remat, "zero": zero}
    try:
        plan = named_plan(question, ways, choices=Choices(remat=remat, zero=zero))
        found = check(problem_of(question), plan, "gpu" if where.chip.family == "gpu" else "tpu")
    except RooftopError as error:
        return {**row, "refused": error.message}
    if not found.compiled.accepted:
        return {**row, "refused": found.compiled.message}
    return {
        **row,
        "seconds": round(found.compiled.seconds, 1),
        "flops": round(found.total.difference, 4),
        "bytes": {r.name: round(min(r.difference, 9.99), 3) for r in found.bytes},
        "memory": round(found.memory.difference, 3),
        "why": [f"{r.name}: {text}" for r in found.bytes for text in r.why],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for case in GRID:
        row = run(*case)
        rows.append(row)
        print(*(f"{value}" for key, value in row.items() if key != "why"), sep="  ", flush=True)
    done = [r for r in rows if "refused" not in r]
    within = {
        "flops": sum(abs(r["flops"]) <= TOLERANCE["flops"] for r in done),
        "bytes": sum(all(abs(d) <= TOLERANCE["bytes"] for d in r["bytes"].values()) for r in done),
        "memory": sum(abs(r["memory"]) <= TOLERANCE["memory"] for r in done),
    }
    print(f"{len(done)} of {len(rows)} compiled; within tolerance: {within}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"within": within, "plans": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
