"""Threads that work on one task together: they obey what it obeys, and report as it does."""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from pipeline.runtime import progress, stopping

Item = TypeVar("Item")
Value = TypeVar("Value")


class ThreadTeam:
    """Some threads beside the one that asks, which waits for them; of one thread, it is that one itself."""

    def __init__(self, pool: ThreadPoolExecutor | None) -> None:
        self._pool = pool
        self._turn, self._task = stopping.current_turn(), progress.current_task()
        self.cpu_seconds = 0.0  # of the threads beside the one that asks

    def map(self, function: Callable[[Item], Value], items: Iterable[Item]) -> list[Value]:
        """Return what a function gives for each item; when all have ended, the first error is raised."""
        if self._pool is None:
            return [function(item) for item in items]
        futures = [self._pool.submit(self._run, function, item) for item in items]
        outcomes = [(future.exception(), future) for future in futures]
        error = next((error for error, _ in outcomes if error is not None), None)
        if error is not None:
            raise error
        results = [future.result() for _, future in outcomes]
        self.cpu_seconds += sum(seconds for _, seconds in results)
        return [value for value, _ in results]

    def each(self, function: Callable[[Item], None], items: Iterable[Item], /) -> None:
        """Call a function on every item; as `pipeline.kernels.each_tile.Each`."""
        self.map(function, items)

    def _run(self, function: Callable[[Item], Value], item: Item) -> tuple[Value, float]:
        started = time.thread_time()
        with stopping.obeying(self._turn), progress.helping(self._task):
            value = function(item)
        return value, time.thread_time() - started


@contextmanager
def open_team(n_threads: int) -> Iterator[ThreadTeam]:
    """Open a team of so many threads, and end them afterwards. They serve the task that this thread runs."""
    if n_threads == 1:
        yield ThreadTeam(None)
        return
    with ThreadPoolExecutor(n_threads) as pool:
        yield ThreadTeam(pool)
