"""A progress bar for searches that take longer than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(title: str, *, quiet: bool = False) -> Iterator[Callable[[float], None]]:
    """Yields a function to call with the part that is done; draws on stderr, on a terminal, after a second."""
    if quiet or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.progress import Progress

    from rooftop.views._terminal import console

    started = time.monotonic()
    bar = Progress(console=console(stderr=True), transient=True)
    task = bar.add_task(title, total=1.0)

    def advance(done: float) -> None:
        if time.monotonic() - started > 1.0:
            bar.start()
        bar.update(task, completed=done)

    try:
        yield advance
    finally:
        bar.stop()
