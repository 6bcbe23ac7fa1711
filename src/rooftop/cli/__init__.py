"""The command line: parse, call, render. Commands are imported when they are used."""

from __future__ import annotations

import codecs
import difflib
import importlib
import io
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from rooftop import __version__
from rooftop.errors import RooftopError

COMMANDS = {
    "plan": "The best way to train a model on a slice, and why.",
    "step": "Time, memory and cost of one training plan that you name.",
    "serve": "Latency, throughput, memory and cost of serving a model; the best within limits.",
    "simulate": "Serving a workload, request by request: latencies, goodput, use, cost.",
    "sweep": "How an answer moves with any parameter of model, hardware, plan or workload.",
    "whatif": "What limits an answer, in order, and how far each number of hardware and model moves it.",
    "solve": "What a number of hardware, model or plan must be to meet a goal.",
    "compare": "Ways to do the same side by side, and what each would need to win.",
    "shapes": "Shapes of a model at equal parameters, FLOPs or cache that run faster.",
    "design": "The chip and network that do a mix of work best under a budget.",
    "scaling": "Compute-optimal tokens for a model, model and tokens for a budget.",
    "validate": "Predictions beside published runs, and their errors.",
    "model": "Parameters, FLOPs, KV cache and activations of a model.",
    "chip": "What is known of a chip, with sources.",
    "slice": "Chips, hosts, networks and totals of a slice.",
    "roofline": "The roofline of one op: what binds it, and from which size.",
    "matmul": "A sharded matmul: the collectives that it forces, and how long.",
    "trace": "A real profile against its roofline, part by part and op by op.",
    "profile": "Profile a function through JAX, and report as trace does.",
    "collective": "One collective on a slice: time, regime, bandwidth.",
    "check": "A training plan beside its program as a real compiler makes it.",
    "export": "A training plan as another framework's configuration.",
    "import": "A run of another framework as a plan, by its configuration.",
    "jax": "The roofline of any JAX function, op by op.",
    "hlo": "What each op of a compiled program costs.",
    "web": "All of it as a page on this machine.",
    "completion": "The script that lets a shell complete commands, options and names.",
}

EPILOG = """\b
Examples:
  rooftop plan llama-3-70b --on v5p:16x20x28 --batch 4M --seq 4096 --tokens 15T
  rooftop step llama-3-8b --on h100:64 --mesh fsdp=8,tensor=8 --batch 1M
  rooftop serve llama-3-70b --on h100:8 --weights fp8 --tpot 20ms
  rooftop model llama-3-70b
  rooftop roofline "bf16[B=512, D=8192] * bf16[D, F=28672] -> bf16[B, F]" --on v5e
  rooftop matmul "A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]" --sizes I=8192,J=8192,K=32768 --mesh X=4,Y=8 --on v5e:4x8
  rooftop trace ./logdir
  rooftop collective all-gather --bytes 34MB --axes X=16 --on v5e:16x16

Every command takes --json; sizes are written 4M, 15T, 34MB, 16GiB, 90d.
"""


#: What a shell sets to ask for completions.
_COMPLETE = "_ROOFTOP_COMPLETE"


class Lazy(click.Group):
    """A group that imports a command only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import `rooftop.cli._<name>` and return its command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"rooftop.cli._{cmd_name}").command
        if _COMPLETE in os.environ:
            from rooftop.cli._completion import completed

            return completed(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Offer the nearest commands for a typo."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], COMMANDS, n=2, cutoff=0.5)
            hint = f" (did you mean {' or '.join(close)}?)" if close else ""
            raise click.UsageError(f"unknown command {args[0]!r}{hint}; commands are {', '.join(COMMANDS)}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=Lazy, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, prog_name="rooftop")
def group() -> None:
    """How long a Transformer should take on TPUs and GPUs, what bounds it, how to split it, and what it costs."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 answered, 1 no answer, 2 bad input."""
    _prepare_streams()
    if _COMPLETE in os.environ:  # a shell asks how the line goes on
        group.main(prog_name="rooftop")
    try:
        code = run(sys.argv[1:] if argv is None else list(argv))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def run(argv: list[str]) -> int:
    """Run the command line and return the exit status; errors are one line, and JSON where JSON was asked for."""
    as_json = "--json" in argv
    try:
        result = group.main(argv, prog_name="rooftop", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except RooftopError as error:
        return _fail(error.message, error.exit_code, as_json, error.field, type(error).__name__)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        return 2
    except click.ClickException as error:
        param = getattr(error, "param", None)
        return _fail(_one_line(error), 2, as_json, param.name if param is not None else None, "InputError")
    except (KeyboardInterrupt, click.exceptions.Abort):
        click.echo("rooftop: stopped", err=True)
        return 130
    except BrokenPipeError:
        raise
    except SystemExit:  # click and rich exit with 1 when the reader left; here 1 means that there is no answer
        raise BrokenPipeError from None
    except Exception as error:
        if os.environ.get("ROOFTOP_DEBUG"):
            raise
        if isinstance(error, OSError) and error.filename is None:  # a full disk, not a file that was asked for
            click.echo(f"rooftop: cannot write the answer: {error.strerror or error}", err=True)
            return 74
        text = f"internal error: {type(error).__name__}: {str(error)[:200]}; set ROOFTOP_DEBUG=1 for the traceback"
        return _fail(text, 70, as_json, None, "InternalError")


def _one_line(error: click.ClickException) -> str:
    text = " ".join(error.format_message().split())
    text = text[:1].lower() + text[1:].rstrip(".")
    context = getattr(error, "ctx", None)
    if context is None or context.parent is None:
        return text
    return f"{text}; see {context.command_path} --help"


#: What a terminal that lacks a character shows instead.
_ASCII = {"·": "*", "²": "^2", "µ": "u", "→": "->", "−": "-", "×": "x", "≤": "<=", "≥": ">="}


def _substitute(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII.get(c, "?") for c in error.object[error.start : error.end]), error.end


def _prepare_streams() -> None:
    """Let closed streams swallow what is written, and terminals without Unicode show the nearest ASCII."""
    codecs.register_error("rooftop", _substitute)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="rooftop")


def _fail(message: str, code: int, as_json: bool, field: str | None, kind: str) -> int:
    click.echo(f"rooftop: {' '.join(message.split())}", err=True)
    if as_json:
        error: dict[str, Any] = {"message": message, "field": field, "kind": kind}
        click.echo(json.dumps({"error": error}))
    return code
