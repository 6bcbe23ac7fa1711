"""rooftop simulate."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from rooftop.cli._common import BYTES, INTEGER, SECONDS, SIZES, USD_PER_HOUR, emit, json_option, model_named
from rooftop.errors import InputError

if TYPE_CHECKING:
    from rooftop.simulation import Fleet, Replica, Scheduling, Slo, Workload


@click.command(
    "simulate",
    epilog="""\b
Examples:
  rooftop simulate llama-3-70b --on h100:4 --weights fp8 --workload poisson:rate=8,requests=20000,input=1000,output=200
  rooftop simulate llama-3-8b --on v5e:2x2 --workload trace.jsonl --prefix-cache --replicas 4 --route prefix-aware
  rooftop simulate llama-3-8b --on h100:1 --workload trace.csv --ttft 500ms --tpot 30ms --find-rate
  rooftop simulate --step-model steps.toml --workload gamma:rate=8,cv=2,input=1000~0.5,output=200~exp --seeds 5 --json

A workload is a CSV file or JSON lines of arrivals and token counts (Azure's and Mooncake's traces as they are), or drawn:
poisson, gamma, constant, bursty arrivals, closed for users who wait; lengths 1000, 500..1500, 1000~0.5, 1000~exp.
""",
)
@click.argument("model", required=False)
@click.option("--on", "where", metavar="SLICE", help="One replica: v5e:4x4, h100:8, a hardware file.")
@click.option("--weights", help="Dtype of weights, as for serve.  [default: the checkpoint's]")
@click.option("--activations", help="Dtype in which matmuls take activations.  [default: bf16]")
@click.option("--kv", help="Dtype of the cache.  [default: bf16]")
@click.option("--mesh", type=SIZES, help="Fix ways of some mesh axes: tensor=8.  [default: the fastest, data=1]")
@click.option("--headroom", type=click.FloatRange(0, 0.99), help="Part of HBM to leave free.  [default: 0.1]")
@click.option(
    "--transfer-bandwidth", type=BYTES, help="Bytes/s of a chip to another replica.  [default: the outermost network]"
)
@click.option("--bound", is_flag=True, help="Steps take their lower bound, not the time to expect.")
@click.option(
    "--step-model", metavar="FILE", help="Instead of MODEL: coefficients of step times, and memory (TOML or JSON)."
)
@click.option(
    "--workload",
    "workload_text",
    required=True,
    metavar="FILE",
    help="A trace, or poisson:rate=8,input=1000,output=200.",
)
@click.option("--ttft", type=SECONDS, help="SLO: time to the first token, such as 500ms.")
@click.option("--tpot", type=SECONDS, help="SLO: time per output token after the first.")
@click.option("--e2e", type=SECONDS, help="SLO: time to the last token.")
@click.option("--find-rate", is_flag=True, help="Find the highest load that meets the SLO.")
@click.option(
    "--attain",
    type=click.FloatRange(0, 1, min_open=True),
    help="Part of the requests that must meet it.  [default: 0.99]",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Of everything that is drawn."
)
@click.option("--seeds", type=click.IntRange(2, 1000), help="Simulate so many times; gives confidence intervals.")
@click.option("--max-batch", type=INTEGER, default=256, show_default=True, help="Requests that run together.")
@click.option("--max-tokens", type=INTEGER, default=8192, show_default=True, help="Tokens that one step computes.")
@click.option(
    "--first", default="decode", show_default=True, help="decode (mixed steps) or prefill (prompts stop decoding)."
)
@click.option("--whole-prompts", is_flag=True, help="Do not cut prompts into chunks.")
@click.option("--queue", default="fcfs", show_default=True, help="fcfs, priority, shortest or fair (over clients).")
@click.option("--block", type=INTEGER, default=16, show_default=True, help="Tokens of a KV block.")
@click.option(
    "--admit", default="prompt", show_default=True, help="Admit with blocks for the prompt, or the whole output."
)
@click.option(
    "--watermark", type=float, default=0.01, show_default=True, help="Part of the blocks that admission leaves."
)
@click.option("--preempt", default="recompute", show_default=True, help="recompute or swap, when blocks run out.")
@click.option("--prefix-cache", is_flag=True, help="Share the blocks of prompts that begin alike.")
@click.option("--speculate", type=click.IntRange(1, 64), metavar="TOKENS", help="Draft so many tokens in each step.")
@click.option("--acceptance", type=click.FloatRange(0, 1), help="Probability that a drafted token is accepted.")
@click.option("--draft-time", type=SECONDS, help="Time of drafting one token for the batch.  [default: 0s]")
@click.option("--replicas", type=INTEGER, default=1, show_default=True, help="Engines that serve (decode).")
@click.option("--prefill-on", metavar="SLICE", help="Slice of a prefill replica.  [default: as --on]")
@click.option(
    "--prefill-replicas", type=INTEGER, default=0, show_default=True, help="Engines that only compute prompts."
)
@click.option(
    "--route", default="round-robin", show_default=True, help="round-robin, least-loaded, two-choices, prefix-aware."
)
@click.option("--autoscale", type=INTEGER, metavar="MOST", help="Add replicas up to so many, and drain them again.")
@click.option(
    "--autoscale-target", type=float, help="Requests that a replica should have.  [default: half of --max-batch]"
)
@click.option("--startup", type=SECONDS, help="Time until a new replica serves.  [default: 60s]")
@click.option("--price", type=USD_PER_HOUR, help="USD per chip-hour.")
@click.option("--requests", "requests_file", metavar="FILE", help="Write a row for each request: .csv or .parquet.")
@click.option("--timeline", "timeline_file", metavar="FILE", help="Write a figure of load and memory over time: .svg.")
@json_option
def command(
    model: str | None,
    where: str | None,
    step_model: str | None,
    workload_text: str,
    ttft: float | None,
    tpot: float | None,
    e2e: float | None,
    find_rate: bool,
    attain: float | None,
    seed: int,
    seeds: int | None,
    price: float | None,
    prefill_on: str | None,
    requests_file: str | None,
    timeline_file: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Serve a workload on simulated engines: TTFT, TPOT and end-to-end percentiles, goodput, utilisation, cost.

    MODEL is a name of the catalogue, the path of a config.json or of its folder, or numbers.
    """
    from rooftop import simulation
    from rooftop.figures import simulation_figures
    from rooftop.views._simulate import outcome_json, outcome_text, timeline_svg

    work = simulation.workload(workload_text)
    scheduling = _scheduling(options)
    if timeline_file is not None and not timeline_file.endswith(".svg"):
        raise InputError(f"--timeline: {timeline_file} does not end in .svg; the figure is SVG", field="timeline")
    slo = simulation.Slo(ttft, tpot, e2e)
    within = slo if find_rate else None
    replica = _replica(model, where, step_model, scheduling, work, seed, {"price": price, **options}, within)
    prefill = None
    if prefill_on is not None:
        if not options["prefill_replicas"]:
            raise InputError("--prefill-on is for --prefill-replicas; give it too", field="prefill_on")
        prefill = _replica(model, prefill_on, step_model, scheduling, work, seed, {"price": price, **options}, within)
    setup = simulation.Setup(replica, scheduling, _fleet(options), slo, prefill)
    if find_rate and seeds:
        raise InputError("--find-rate uses one seed; leave --seeds out, or simulate the rate found", field="seeds")
    if attain is not None and not find_rate:
        raise InputError("--attain is for --find-rate; give both or none", field="attain")
    with simulation.table_file(requests_file) if requests_file else nullcontext() as sink:
        rate = simulation.find_rate(setup, work, attain=attain or 0.99, seed=seed, sink=sink) if find_rate else None
        if rate is not None:
            outcomes = [rate.outcome]
        else:
            outcomes = simulation.seeds(setup, work, seeds or 1, seed=seed, sink=sink)
    if timeline_file is not None:
        _write(timeline_file, timeline_svg(outcomes[0]))
    emit(
        outcome_json(outcomes, rate),
        lambda: outcome_text(outcomes, rate),
        as_json,
        lambda: simulation_figures(outcomes[0]),
    )


def _replica(
    model: str | None, where: str | None, step_model: str | None, scheduling: Scheduling, work: Workload, seed: int,
    options: dict[str, Any], within: Slo | None,
) -> Replica:  # fmt: skip
    """What serves: a model on a slice, or what a file of coefficients says."""
    from rooftop import simulation

    names = ("weights", "activations", "kv", "mesh", "headroom", "transfer_bandwidth", "bound")
    given = {name: options[name] for name in names if options[name] not in (None, False)}
    if step_model is not None:
        if model is not None or where is not None or given:
            flags = [f"--{n.replace('_', '-')}" for n in given]
            raise InputError(
                f"--step-model says how long steps take, so leave out {', '.join(['MODEL and --on', *flags])}",
                field="step_model",
            )
        replica = simulation.read_replica(step_model)
        return replica if options["price"] is None else replace(replica, usd_per_chip_hour=options["price"])
    if model is None or where is None:
        raise InputError("nothing to simulate; give MODEL --on SLICE, or --step-model FILE", field="model")
    from rooftop.hardware import slice_of

    return simulation.modelled(
        model_named(model), slice_of(where), scheduling, simulation.typical(work, seed), replicas=options["replicas"],
        within=within, price=options["price"], **given,
    )  # fmt: skip


def _scheduling(options: dict[str, Any]) -> Scheduling:
    from rooftop.simulation import Scheduling, Speculation

    speculation = None
    if options["speculate"] is not None:
        if options["acceptance"] is None:
            raise InputError("--speculate needs --acceptance; give the probability, such as 0.7", field="acceptance")
        speculation = Speculation(options["speculate"], options["acceptance"], options["draft_time"] or 0.0)
    elif options["acceptance"] is not None or options["draft_time"] is not None:
        raise InputError("--acceptance and --draft-time are for --speculate; give it too", field="speculate")
    names = ("max_batch", "max_tokens", "first", "queue", "block", "admit", "watermark", "preempt", "prefix_cache")
    return Scheduling(
        chunked=not options["whole_prompts"], speculation=speculation, **{name: options[name] for name in names}
    )


def _fleet(options: dict[str, Any]) -> Fleet:
    from rooftop.simulation import Autoscale, Fleet

    scale = None
    if options["autoscale"] is not None:
        startup = 60.0 if options["startup"] is None else options["startup"]
        scale = Autoscale(
            options["autoscale"], options["autoscale_target"] or options["max_batch"] / 2, startup=startup
        )
    elif options["autoscale_target"] is not None or options["startup"] is not None:
        raise InputError("--autoscale-target and --startup are for --autoscale; give it too", field="autoscale")
    return Fleet(options["replicas"], options["prefill_replicas"], options["route"], scale)


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"--timeline: cannot write {path}: {error.strerror or error}", field="timeline") from None
