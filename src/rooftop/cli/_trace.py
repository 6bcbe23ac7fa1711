"""rooftop trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rooftop.cli._common import emit, json_option
from rooftop.errors import InputError


@click.command(
    "trace",
    epilog="""\b
Examples:
  rooftop trace ./logdir
  rooftop trace rank0.json.gz rank1.json.gz --on a100-80g
  rooftop trace before.json.gz --versus after.json.gz
  rooftop trace host.xplane.pb --top 30 --json --perfetto beside.json.gz --parquet ops.parquet --html report.html
""",
)
@click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="PATH...")
@click.option("--on", "where", metavar="CHIP", help="The chip or slice.  [default: what the profile names]")
@click.option("--top", default=15, show_default=True, type=click.IntRange(1, 10000), help="Rows of each table.")
@click.option(
    "--versus",
    multiple=True,
    type=click.Path(),
    metavar="PATH",
    help="Another profile, taken after a change: what changed.",
)
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(),
    metavar="FILE",
    help="A plan (of rooftop plan --save or --json): predicted beside measured.",
)
@click.option(
    "--parquet", type=click.Path(dir_okay=False), metavar="FILE", help="Also write the ops as a Parquet table."
)
@click.option(
    "--perfetto",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Also write a trace for Perfetto, with the roofline beside what was measured (.json, .json.gz).",
)
@json_option
def command(
    paths: tuple[str, ...],
    where: str | None,
    top: int,
    versus: tuple[str, ...],
    plan_file: str | None,
    parquet: str | None,
    perfetto: str | None,
    as_json: bool,
) -> None:
    """A real profile against its roofline: what each part took, what it should take, why, and what to do first.

    PATH is an xplane.pb of XLA, a Chrome trace of PyTorch or JAX (.json, .json.gz), an Nsight Systems export (.sqlite), or a
    folder of them; several files are the ranks of one run.
    """
    from rooftop.figures import trace_figures
    from rooftop.profiles import against, analyse, compare, read, write_parquet, write_perfetto
    from rooftop.views import group
    from rooftop.views._trace import op_json, plan_json, plan_text, trace_json, trace_text, versus_json, versus_text

    _keep_inputs((*paths, *versus, *((plan_file,) if plan_file else ())), {"parquet": parquet, "perfetto": perfetto})
    traces = [trace for path in paths for trace in read(path)]
    report = analyse(traces, where)
    if parquet is not None:
        write_parquet([op_json(op) for op in report.ops], parquet)
    if perfetto is not None:
        write_perfetto(traces, report, perfetto)
    if versus and plan_file is not None:
        raise InputError("--versus and --plan are two questions; ask them one at a time", field="plan")
    if versus:
        change = compare(report, analyse([trace for path in versus for trace in read(path)], where))
        emit(versus_json(change), lambda: versus_text(change, top), as_json)
        return
    if plan_file is not None:
        planned = against(report, plan_file, _predicted(Path(plan_file)))
        data = {**trace_json(report), "against_plan": plan_json(planned)}
        emit(data, lambda: group(plan_text(planned), trace_text(report, top)), as_json)
        return
    emit(trace_json(report), lambda: trace_text(report, top), as_json, lambda: trace_figures(report, traces))


def _predicted(path: Path) -> dict[str, Any] | None:
    """The numbers of a plan of --save, which holds none; None for other files."""
    import json

    from rooftop.cli._training import question_of_file
    from rooftop.training import load, read_plan, step_of
    from rooftop.views._plan import estimate_json

    try:
        held = load(path)
    except InputError:
        return None
    if "step_seconds" in held:
        return None
    question = question_of_file(path)
    found: dict[str, Any] = json.loads(json.dumps(estimate_json(step_of(question, read_plan(path, question)).best)))
    return found


def _keep_inputs(inputs: tuple[str, ...], outputs: dict[str, str | None]) -> None:
    """Refuse to write over what is to be read."""
    import os

    known = {os.path.realpath(path) for path in inputs}
    for option, path in outputs.items():
        if path is not None and os.path.realpath(path) in known:
            raise InputError(f"--{option}: {path} is to be read; give another file", field=option)
