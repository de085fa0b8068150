"""Where items run: one after the other, in threads, in processes, or on a dask cluster.

Every executor runs the same functions on the same items, to the same bits: BLAS has one thread wherever an item runs.
Each result is handed on as it arrives, so that a lost worker costs no finished item. Before an error ends a run, its
tasks have ended everywhere, and nobody writes into its folder any more.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError as PoolCancelledError
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from threadpoolctl import threadpool_limits

from pipeline.config.parsers import is_address
from pipeline.errors import ConfigError, PlanError, SchedulerError
from pipeline.runtime import stopping
from pipeline.runtime.dask_clients import (
    ALLOWED_WORKER_DEATHS,
    asking,
    count_threads,
    lost,
    open_local_client,
    open_remote_client,
)
from pipeline.runtime.memory_limits import processor_limit
from storage.errors import CannotWriteError

if TYPE_CHECKING:
    from distributed import Client, Future

Item = TypeVar("Item")
Value = TypeVar("Value")
_POLL_SECONDS = 0.01
_STOP_SECONDS = 20  # for tasks to save what they have and end; the command has 25 in all
_RESTART_SECONDS = 60  # for a worker process to come back after all of them died


@dataclass(frozen=True)
class ItemResult(Generic[Item, Value]):
    """What one item gave: a small value, the wall and CPU seconds of the thread that ran it, and where it ran."""

    item: Item
    value: Value
    wall_seconds: float
    cpu_seconds: float
    process: tuple[str, int]


@dataclass(frozen=True)
class WorkerProcess:
    """A process that items run in: its address (None: this one), and its threads."""

    address: str | None
    threads: int


def _anywhere(item: object) -> None:
    """Return that it does not matter where an item runs."""


class Executor(Protocol):
    """Runs a function over items, until the run is asked to stop: then StoppedError is raised between two of them."""

    workers: int

    def run(
        self,
        function: Callable[[Item], Value],
        items: Iterable[Item],
        lease_file: Path | None = None,
        address_of: Callable[[Item], str | None] = _anywhere,
    ) -> Generator[ItemResult[Item, Value], None, None]:
        """Yield the result of every item as it completes; the first error of an item is raised.

        Tasks in other processes read the lease file for whether to stop. `address_of`: the process where an item had
        best run.
        """

    def processes(self) -> list[WorkerProcess]:
        """Return the processes that there are, with their threads."""

    def check_paths(self, paths: Iterable[Path]) -> None:
        """Raise SchedulerError where a worker does not see one of the paths that the items use."""

    def prepare(self, function: Callable[[], object]) -> None:
        """Call a function in every other process that works for this one, without waiting for it."""


class SerialExecutor:
    """The reference: one item after the other, in this process."""

    workers = 1

    def run(
        self,
        function: Callable[[Item], Value],
        items: Iterable[Item],
        lease_file: Path | None = None,
        address_of: Callable[[Item], str | None] = _anywhere,
    ) -> Generator[ItemResult[Item, Value], None, None]:
        """Yield the result of every item in order."""
        for item in items:
            yield _run_item(function, item)

    def processes(self) -> list[WorkerProcess]:
        """Return this process, with one thread."""
        return [WorkerProcess(None, 1)]

    def check_paths(self, paths: Iterable[Path]) -> None:
        """Do nothing: this process sees what it sees."""

    def prepare(self, function: Callable[[], object]) -> None:
        """Do nothing: there is no other process."""


class DaskExecutor:
    """Items as dask tasks, at most two for each worker thread on their way at once."""

    def __init__(self, client: Client, workers: int, *, in_threads: bool = False) -> None:
        self.workers, self._in_threads = workers, in_threads
        self._client = client
        self._submitted = 0
        self._bound: set[str] = set()  # keys of tasks that were sent to one process, and may run nowhere else yet
        self._preparing: list[Future] = []  # a task ends when nobody keeps its future
        self._alone_since: float | None = None

    def run(
        self,
        function: Callable[[Item], Value],
        items: Iterable[Item],
        lease_file: Path | None = None,
        address_of: Callable[[Item], str | None] = _anywhere,
    ) -> Generator[ItemResult[Item, Value], None, None]:
        """Yield the result of every item as it completes."""
        from distributed import as_completed  # slow to import, and there by now

        lease = None if lease_file is None else stopping.Lease.next(lease_file)
        waiting = iter(items)
        first = islice(waiting, 2 * self.workers)
        under_way = {self._submit(function, item, lease, address_of(item)) for item in first}
        running = as_completed(under_way, loop=self._client.loop)
        try:
            while not running.is_empty():
                stopping.check()
                with asking():
                    self._let_move()
                if not running.has_ready():
                    self._check_own_workers()
                    time.sleep(_POLL_SECONDS)
                    continue
                future = next(running)
                self._bound.discard(future.key)
                result: ItemResult[Item, Value] = _result_of(future)
                under_way.remove(future)
                future.release()
                for item in islice(waiting, 1):
                    under_way.add(following := self._submit(function, item, lease, address_of(item)))
                    running.add(following)
                yield result
        finally:
            self._end([future for future in under_way if not future.done()], lease_file)

    def processes(self) -> list[WorkerProcess]:
        """Return the worker processes of this moment; this process where its own threads are the workers."""
        if self._in_threads:
            return [WorkerProcess(None, self.workers)]
        with asking():
            with suppress(TimeoutError):
                self._client.wait_for_workers(1, timeout=_RESTART_SECONDS)  # where all died, for the first to come back
            there = self._client.nthreads()
        if not there:
            raise _none_left()
        return [WorkerProcess(address, int(threads)) for address, threads in sorted(there.items())]

    def check_paths(self, paths: Iterable[Path]) -> None:
        """Raise SchedulerError naming a path that some worker does not see."""
        for path in paths:
            with asking():
                answers = self._client.run(_sees, str(path))
            for worker, seen in answers.items():
                if not seen:
                    raise SchedulerError(f"worker {worker} does not see {path}; put it on a file system they share")

    def prepare(self, function: Callable[[], object]) -> None:
        """Call a function in every worker process, without waiting for it."""
        if self._in_threads:
            return
        with asking():
            for address in self._client.nthreads():
                place = {"workers": [address], "allow_other_workers": True}  # else dask waits for one that died
                key = f"prepare-{os.getpid()}-{id(self)}-{address}"
                self._preparing.append(self._client.submit(function, key=key, pure=False, **place))

    def _check_own_workers(self) -> None:
        """Raise SchedulerError where the processes of this machine died and none has come back for long."""
        if self._client.cluster is None or self._client.cluster.scheduler.workers:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = time.monotonic()
        elif time.monotonic() - self._alone_since > _RESTART_SECONDS:
            raise _none_left()

    def _let_move(self) -> None:
        """Let tasks that are bound to a process run elsewhere if it dies, in which case dask might forget them."""
        placed = self._bound and self._bound.intersection(chain.from_iterable(self._client.processing().values()))
        for key in placed:
            with suppress(KeyError):  # it has ended meanwhile
                self._client.sync(self._client.scheduler.set_restrictions, worker={key: None})
        self._bound -= placed

    def _end(self, futures: list[Future], lease_file: Path | None) -> None:
        """End tasks: those that run may save what they have; those that have not begun see that they need not."""
        if futures and lease_file is not None:
            with suppress(CannotWriteError):  # a full disk ends them as well
                stopping.Lease.next(lease_file)
        deadline = time.monotonic() + _STOP_SECONDS
        while (futures := [future for future in futures if not future.done()]) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        with suppress(OSError):  # of a scheduler that is lost nothing runs any more
            self._client.cancel(futures)  # of one that runs this stops nothing, it only gives up the result
        self._bound.clear()

    def _submit(
        self, function: Callable[[Item], Value], item: Item, lease: stopping.Lease | None, address: str | None
    ) -> Future:
        self._submitted += 1
        key = f"{getattr(function, '__name__', None) or 'item'}-{os.getpid()}-{id(self)}-{self._submitted}"
        if address is not None:
            self._bound.add(key)
        workers = {} if address is None else {"workers": [address], "allow_other_workers": True}
        return self._client.submit(_run_item, function, item, lease, key=key, pure=False, **workers)


@contextmanager
def open_executor(scheduler: str, workers: int, processes: int, worker_memory_bytes: int) -> Iterator[Executor]:
    """Open the executor that `--scheduler` names, and close it afterwards.

    scheduler: serial, threads, processes, or tcp://host:port, tls://host:port; workers: tasks at once here, each
    process bounded by worker_memory_bytes. Raises ConfigError for another word, SchedulerError where a cluster does not
    answer or has another version of this package.
    """
    with ExitStack() as stack:
        if scheduler == "serial":
            stack.enter_context(_pinned_blas())
            yield SerialExecutor()
        elif scheduler in ("threads", "processes"):
            stack.enter_context(_pinned_blas())
            of_its_own = processes if scheduler == "processes" else 0
            client = stack.enter_context(open_local_client(of_its_own, workers, worker_memory_bytes))
            yield DaskExecutor(client, workers, in_threads=scheduler == "threads")
        elif is_address(scheduler):
            stack.enter_context(_pinned_blas())  # the bits of what this process computes itself depend on it
            client = stack.enter_context(open_remote_client(scheduler))
            yield DaskExecutor(client, count_threads(client))
        else:
            raise ConfigError(
                f"resources.scheduler = {scheduler!r}: must be serial, threads, processes, tcp://HOST:PORT or tls://HOST:PORT"
            )


def available_processors() -> int:
    """Return how many processors this process may run on, or its control groups' quotas are worth if that is fewer."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = processor_limit()
    return allowed if quota is None else min(allowed, quota)


def _run_item(
    function: Callable[[Item], Value], item: Item, lease: stopping.Lease | None = None
) -> ItemResult[Item, Value]:
    _pin_worker_blas()
    wall, cpu = time.perf_counter(), time.thread_time()
    with stopping.obeying(lease):
        stopping.check()
        value = function(item)
    return ItemResult(item, value, time.perf_counter() - wall, time.thread_time() - cpu, this_process())


def this_process() -> tuple[str, int]:
    """Return host name and process number, which together name a process of a cluster."""
    return socket.gethostname(), os.getpid()


_pinned_process: int | None = None


def _pin_worker_blas() -> None:
    """Hold the BLAS of this process to one thread, once; a driver has done so already and restores it."""
    global _pinned_process
    if _pinned_process != os.getpid():
        import scipy.linalg  # noqa: F401  (scipy carries a BLAS of its own, which must be loaded to be pinned)

        threadpool_limits(1)
        _pinned_process = os.getpid()


@contextmanager
def _pinned_blas() -> Iterator[None]:
    global _pinned_process
    import scipy.linalg  # noqa: F401  (as above)

    with threadpool_limits(1):
        before, _pinned_process = _pinned_process, os.getpid()
        try:
            yield
        finally:
            _pinned_process = before


def _none_left() -> SchedulerError:
    return SchedulerError(
        f"all worker processes died, and none started again within {_RESTART_SECONDS} s; run again with --resume auto, "
        "or --scheduler threads"
    )


def _sees(path: str) -> bool:
    return os.path.exists(path)  # noqa: PTH110  (which Path.exists raises where a folder is closed to us)


def _result_of(future: Future) -> ItemResult[Item, Value]:
    """Return a future's result, or raise its error in words a user can act on."""
    # Slow to import, and there by now.
    from distributed import CancelledError, KilledWorker
    from distributed.comm import CommClosedError

    try:
        result: ItemResult[Item, Value] = future.result()
        return result
    except KilledWorker as error:
        raise PlanError(
            f"a worker died {ALLOWED_WORKER_DEATHS + 1} times on the same item ({error}); most often it ran out of "
            "memory: lower --workers or --centers, or raise --memory-limit"
        ) from None
    except (CancelledError, PoolCancelledError, CommClosedError, TimeoutError) as error:
        raise lost(error) from None
