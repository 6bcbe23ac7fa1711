"""One question answered in a process of its own, within bounds of memory: what runs in a worker."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from rooftop.errors import RooftopError
from rooftop.web._commands import failure

#: The bounds of a worker, in bytes of address space.
MEMORY = 6 * 2**30


def compute(words: Sequence[str], folder: str) -> tuple[int, str]:
    """(HTTP status, JSON) of a command; its files are in `folder`, where nothing else is."""
    _bound_memory()
    os.chdir(folder)
    try:
        return 200, _answer(words)
    except RooftopError as error:
        return 422, failure(error.message, _shown(error.field), type(error).__name__)
    except click.ClickException as error:
        param = getattr(error, "param", None)
        return 422, failure(error.format_message().split("\n")[0], param.name if param else None, "InputError")
    except MemoryError:
        return 503, failure(
            "the question takes more memory than a worker may have; ask for a smaller one", None, "TooLarge"
        )
    except Exception as error:  # what it was is for the log alone
        print(f"rooftop web: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
        return 500, failure("internal error; the log of rooftop web has its kind", None, "InternalError")
    finally:
        os.chdir("/")


def _answer(words: Sequence[str]) -> str:
    from rooftop.cli import group
    from rooftop.cli._common import SINK
    from rooftop.figures import Figure, figure_json
    from rooftop.views._plain import plain

    found: dict[str, Any] = {}

    def sink(data: Mapping[str, Any], figures: Callable[[], Sequence[Figure]]) -> None:
        drawn = [] if "explanation" in data else [figure_json(f) for f in figures()]
        found.update(answer=plain(data), figures=plain(drawn))

    with contextlib.redirect_stderr(io.StringIO()), group.make_context("rooftop", list(words)) as context:
        context.meta[SINK] = sink
        group.invoke(context)
    return json.dumps(found, allow_nan=False)


def _shown(field: str | None) -> str | None:
    return {"where": "on"}.get(field, field) if field else None


def _bound_memory() -> None:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    bound = MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most)
    resource.setrlimit(resource.RLIMIT_AS, (bound, most))
