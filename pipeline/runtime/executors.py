"""Items in this process, one after the other or in threads; those in other processes are in `dask_executor`.

Every executor runs the same functions on the same items, to the same bits: BLAS has one thread wherever an item runs.
Each result is handed on as it arrives. Before an error ends a run, its tasks have a while to save what they have.
"""

import os
import socket
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import islice
from multiprocessing.pool import ThreadPool
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from threadpoolctl import threadpool_limits

from pipeline.runtime import stopping
from pipeline.runtime.memory_limits import processor_limit

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True)
class ItemResult(Generic[Item, Value]):
    """What one item gave: a small value, the CPU seconds of the thread that ran it, and the process where it ran."""

    item: Item
    value: Value
    cpu_seconds: float
    process: tuple[str, int]


@dataclass(frozen=True)
class WorkerProcess:
    """A process that items run in: its address (None: this one), and its threads."""

    address: str | None
    threads: int


class Executor:
    """Runs items in threads of this process; of one worker one after the other: the reference for all others."""

    warn: Callable[[str], object]  # told where no worker is left

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers

    def run(
        self, function: Callable[[Item], Value], items: Iterable[Item], lease_file: Path | None = None
    ) -> Generator[ItemResult[Item, Value], None, None]:
        """Yield the result of every item as it completes; the first error of an item is raised.

        Raises StoppedError between two where the run is asked to stop; tasks in other processes learn it by the lease.
        """
        if self.workers == 1:
            yield from (run_item(function, item) for item in items)
            return
        stop = stopping.Stop(above=stopping.current())
        pool, results, waiting, under_way = ThreadPool(self.workers), SimpleQueue[Any](), iter(items), 0
        try:
            while True:
                stopping.check()
                for item in islice(waiting, 2 * self.workers - under_way):
                    pool.apply_async(run_item, (function, item, stop), {}, results.put, results.put)
                    under_way += 1
                if not under_way:
                    return
                try:
                    result, under_way = results.get(timeout=stopping.POLL_SECONDS), under_way - 1
                except Empty:
                    continue
                if isinstance(result, BaseException):
                    raise result
                yield result
        finally:
            stop.reason = "its driver"
            deadline = time.monotonic() + stopping.SAVE_SECONDS
            while results.qsize() < under_way and time.monotonic() < deadline:
                time.sleep(stopping.POLL_SECONDS)
            pool.terminate()  # A call that has not come back is in a daemon thread.

    def processes(self) -> list[WorkerProcess]:
        return [WorkerProcess(None, self.workers)]

    def check_paths(self, paths: Iterable[Path]) -> None:
        """Raise SchedulerError naming a path that the items use and some worker does not see."""


def available_processors() -> int:
    """Return how many processors this process may run on, or its control groups' quotas are worth if that is fewer."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = processor_limit()
    return allowed if quota is None else min(allowed, quota)


def run_item(
    function: Callable[[Item], Value], item: Item, stop: stopping.Stop | None = None
) -> ItemResult[Item, Value]:
    """Return what an item gives in this thread, and what it cost; it stops as `stop` says, or as all of this thread."""
    _pin_blas()
    cpu = time.thread_time()
    with stopping.obeying(stop or stopping.current()) as stop:
        stop.check()
        value = function(item)
    return ItemResult(item, value, time.thread_time() - cpu, this_process())


def this_process() -> tuple[str, int]:
    """Return host name and process number, which together name a process of a cluster."""
    return socket.gethostname(), os.getpid()


@cache
def _pin_blas() -> None:
    """Hold the BLAS of this process to one thread; of a driver, `open_executor` restores it."""
    import scipy.linalg  # noqa: F401  (as in `open_executor`; not with this file, at which a scheduler would wait)

    threadpool_limits(1)
