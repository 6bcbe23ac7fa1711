"""Where tasks run: in this process, in local worker processes, on a Ray cluster. Results are the same, whichever it is.

Each task is handed out until its result is here: a worker that dies loses nothing but time, and a result is taken once.
"""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, TypeVar

from rooftop.errors import InputError, MissingExtra, RooftopError, nearest

ENGINES = ("local", "ray")
_DEATHS = 10  # of workers, before a task that kills them is given up

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Engine:
    """kind: one of ENGINES. workers: processes (one: this process, for "local"). address: of a running Ray cluster."""

    kind: str = "local"
    workers: int = 1
    address: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in ENGINES:
            raise InputError(
                f"unknown engine {self.kind[:40]!r}{nearest(self.kind, ENGINES)}; use local or ray", field="engine"
            )
        if not 1 <= self.workers <= 10_000:
            raise InputError(f"workers = {self.workers} is out of range; give 1 to 10,000", field="workers")
        if self.address is not None and self.kind != "ray":
            raise InputError("--address is that of a Ray cluster; give --engine ray, too", field="address")

    def run(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[tuple[int, R]]:
        """(index of a task, its result) of every task, once each, as they come. The function must be importable."""
        if self.kind == "ray":
            yield from _ray(function, tasks, self)
        elif self.workers == 1 or len(tasks) < 2:
            yield from ((i, function(task)) for i, task in enumerate(tasks))
        else:
            yield from _processes(function, tasks, self.workers)


def _processes(function: Callable[[T], R], tasks: Sequence[T], workers: int) -> Iterator[tuple[int, R]]:
    left, deaths = dict(enumerate(tasks)), 0
    while left:
        # started afresh, not forked: a fork of a process with threads may hang
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(min(workers, len(left)), mp_context=context)
        try:
            waiting = iter(list(left.items()))
            futures: dict[Any, int] = {}
            while True:
                for i, task in waiting:
                    futures[pool.submit(function, task)] = i
                    if len(futures) >= 3 * workers:
                        break
                if not futures:
                    break
                for future in wait(futures, return_when=FIRST_COMPLETED).done:
                    i = futures.pop(future)
                    result = future.result()
                    del left[i]
                    yield i, result
        except BrokenProcessPool:
            deaths += 1
            if deaths > _DEATHS:
                raise RooftopError(
                    f"workers died {deaths} times, with {len(left)} tasks left; give fewer --workers if memory is short"
                ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _ray(function: Callable[[T], R], tasks: Sequence[T], engine: Engine) -> Iterator[tuple[int, R]]:
    try:
        import ray
    except ImportError:
        raise MissingExtra(
            "--engine ray needs Ray; install it with pip install 'rooftop[ray]'", field="engine"
        ) from None
    ours = not ray.is_initialized()
    if ours:
        where: dict[str, Any] = {"address": engine.address} if engine.address else {"num_cpus": engine.workers}
        try:
            ray.init(
                log_to_driver=False,
                include_dashboard=None if engine.address else False,
                logging_level=logging.ERROR,
                **where,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise InputError(
                f"no Ray cluster at {engine.address or 'this machine'}: {str(error)[:120]}; start one with ray start --head",
                field="address",
            ) from None
    try:
        # a task of a dead worker runs again on another
        remote = ray.remote(max_retries=_DEATHS)(function)
        waiting = iter(enumerate(tasks))
        futures: dict[Any, int] = {}
        while True:
            for i, task in waiting:
                futures[remote.remote(task)] = i
                if len(futures) >= 4 * engine.workers:
                    break
            if not futures:
                break
            done, _ = ray.wait(list(futures), num_returns=1)
            for reference in done:
                yield futures.pop(reference), ray.get(reference)
    finally:
        if ours:
            ray.shutdown()
