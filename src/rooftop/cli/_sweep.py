"""rooftop sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rooftop.cli._common import emit, json_option
from rooftop.cli._scenario import engine_options, scenario_of, scenario_options


@click.command(
    "sweep",
    epilog="""\b
Examples:
  rooftop sweep llama-3-8b --on h100:64 --vary batch=1M..64M:x2
  rooftop sweep llama-3-8b --on v5e:4x4 --vary ici_bandwidth=0.5x..4x --vary model.d_ff=7168,14336,28672 --html sweep.html
  rooftop sweep llama-3-70b --on h100:64 --of step --mesh fsdp=8,tensor=8 --vary flops=1x..8x:n1000 --vary hbm_bandwidth=1x..8x:n1000 --out points.parquet
  rooftop sweep llama-3-70b --on h100:8 --of serve --vary prompt=1k..32k:x2 --vary weights=bf16,fp8
  rooftop sweep llama-3-8b --on h100:1 --of simulate --workload poisson:rate=4,requests=2000,input=1000,output=200 --vary load=0.5..4:x2

Values are lists and ranges: 1M,2M; 1M..64M doubles; :x4 is a factor, :+8 a step, :n9 so many in even ratios. 2x is twice what is
there. Names joined by + move together: flops+hbm_bandwidth=1x..4x.
""",
)
@scenario_options
@click.option(
    "--vary", "varied", multiple=True, required=True, metavar="NAME=VALUES", help="A parameter and its values."
)
@click.option("--out", type=click.Path(path_type=Path), help="Write all points: .csv, .json or .parquet; resumes.")
@engine_options
@json_option
def command(
    model: str, where: str, ask: str, mesh: dict[str, int] | None, settings: tuple[str, ...], workload: str | None,
    varied: tuple[str, ...], out: Path | None, as_json: bool, **engine: Any,
) -> int:  # fmt: skip
    """How an answer moves with any parameter of model, hardware, plan or workload: every combination of values, and what binds."""
    from rooftop import codesign
    from rooftop.views._codesign import swept_json, swept_text
    from rooftop.views._progress import progress_bar

    scenario = scenario_of(model, where, ask, mesh, settings, workload)
    varies = [codesign.vary_of(scenario, text) for text in varied]
    chosen = codesign.Engine(engine["engine"], engine["workers"], engine["address"])
    with progress_bar("sweeping", quiet=as_json) as advance:
        found = codesign.sweep(scenario, varies, out=out, engine=chosen, progress=advance)
    emit(swept_json(found), lambda: swept_text(found, str(out) if out else None), as_json, lambda: _figures(found))
    return 0 if "bottleneck" in found.columns else 1


def _figures(found: Any) -> list[Any]:
    from rooftop.figures import sweep_figures

    return sweep_figures(found)
