"""Where items run: one after the other, in threads, in processes, or on a dask cluster. The only user of dask.

Every executor runs the same functions on the same items; the serial one is the reference that the others must
match bit for bit. BLAS is held to one thread wherever an item runs, since float32 bits depend on it.
Results are small; each is handed on and released as it arrives, so that a lost worker never costs a finished
item. Whatever ends a run early ends its tasks, wherever they are, before the caller learns of it: then nobody writes
into the run's folder any more.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from threadpoolctl import threadpool_limits

from pipeline import __version__, stopping
from pipeline.errors import ConfigError, PlanError, SchedulerError
from storage.errors import CannotWriteError

CONNECT_SECONDS = 30  # an address that does not answer within this is given up
_IGNORE_SIGNALS = """\
import signal, threading
if threading.current_thread() is threading.main_thread():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
"""
_LOOPBACK = "127.0.0.1:0"
_POLL_SECONDS = 0.01
_STOP_SECONDS = 20  # for tasks to save what they have and end; the command has 25 in all
_ALLOWED_WORKER_DEATHS = 10  # of one item, before the run stops


@dataclass(frozen=True)
class ItemResult:
    """What one item gave: a small value, the wall and CPU seconds of the thread that ran it, and where it ran."""

    item: Any
    value: Any
    wall_seconds: float
    cpu_seconds: float
    process: tuple[str, int]


class Executor(Protocol):
    """Runs a function over items, until the run is asked to stop: then StoppedError is raised between two of them."""

    workers: int

    def run(
        self, function: Callable[[Any], Any], items: Iterable[Any], turn_file: Path | None = None
    ) -> Iterator[ItemResult]:
        """Yield the result of every item as it completes; the first error of an item is raised.

        Tasks outside this thread look at the turn file, which all of them see, for whether they shall end.
        """

    def check_paths(self, paths: Iterable[Path]) -> None:
        """Raise SchedulerError where a worker does not see one of the paths that the items use."""


class SerialExecutor:
    """The reference: one item after the other, in this process."""

    workers = 1

    def run(
        self, function: Callable[[Any], Any], items: Iterable[Any], turn_file: Path | None = None
    ) -> Iterator[ItemResult]:
        """Yield the result of every item in order."""
        for item in items:
            yield _run_item(function, item)

    def check_paths(self, paths: Iterable[Path]) -> None:
        """Do nothing: this process sees what it sees."""


class DaskExecutor:
    """Items as dask tasks, at most two for each worker thread on their way at once."""

    def __init__(self, client: Any, workers: int) -> None:
        self.workers = workers
        self._client = client
        self._submitted = 0

    def run(
        self, function: Callable[[Any], Any], items: Iterable[Any], turn_file: Path | None = None
    ) -> Iterator[ItemResult]:
        """Yield the result of every item as it completes."""
        from distributed import as_completed

        turn = None if turn_file is None else stopping.Turn.next(turn_file)
        waiting = iter(items)
        under_way = {self._submit(function, item, turn) for item in islice(waiting, 2 * self.workers)}
        running = as_completed(under_way, loop=self._client.loop)
        try:
            while not running.is_empty():
                stopping.check()
                if not running.has_ready():
                    time.sleep(_POLL_SECONDS)
                    continue
                future = next(running)
                result = _result_of(future)
                under_way.remove(future)
                future.release()
                for item in islice(waiting, 1):
                    under_way.add(following := self._submit(function, item, turn))
                    running.add(following)
                yield result
        finally:
            self._end([future for future in under_way if not future.done()], turn_file)

    def check_paths(self, paths: Iterable[Path]) -> None:
        """Raise SchedulerError naming a path that some worker does not see."""
        for path in paths:
            for worker, seen in self._client.run(_sees, str(path)).items():
                if not seen:
                    raise SchedulerError(f"worker {worker} does not see {path}; put it on a file system they share")

    def _end(self, futures: list[Any], turn_file: Path | None) -> None:
        """End tasks: those that run may save what they have; those that have not begun see that they need not."""
        if futures and turn_file is not None:
            with suppress(CannotWriteError):  # a full disk ends them as well
                stopping.Turn.next(turn_file)
        deadline = time.monotonic() + _STOP_SECONDS
        while (futures := [future for future in futures if not future.done()]) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self._client.cancel(futures)  # of one that runs this stops nothing, it only gives up the result

    def _submit(self, function: Callable[[Any], Any], item: Any, turn: stopping.Turn | None) -> Any:
        self._submitted += 1
        key = f"{getattr(function, '__name__', None) or 'item'}-{os.getpid()}-{id(self)}-{self._submitted}"
        return self._client.submit(_run_item, function, item, turn, key=key, pure=False)


@contextmanager
def open_executor(scheduler: str, workers: int, worker_memory_bytes: int) -> Iterator[Executor]:
    """Open the executor that `--scheduler` names, and close it afterwards.

    scheduler: serial, threads, processes, or tcp://host:port, tls://host:port; workers: tasks at once here (a cluster
    brings its own); worker_memory_bytes bounds each worker process. Raises ConfigError for another word,
    SchedulerError where a cluster does not answer or has another version of this software.
    """
    with ExitStack() as stack:
        if scheduler == "serial":
            stack.enter_context(_pinned_blas())
            yield SerialExecutor()
        elif scheduler in ("threads", "processes"):
            stack.enter_context(_pinned_blas())
            client = stack.enter_context(_local_client(scheduler == "processes", workers, worker_memory_bytes))
            yield DaskExecutor(client, workers)
        elif scheduler.startswith(("tcp://", "tls://")):
            client = stack.enter_context(_remote_client(scheduler))
            yield DaskExecutor(client, _check_cluster(client))
        else:
            raise ConfigError(
                f"resources.scheduler = {scheduler!r}: must be serial, threads, processes, tcp://HOST:PORT or tls://HOST:PORT"
            )


def available_processors() -> int:
    """Return how many processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_item(function: Callable[[Any], Any], item: Any, turn: stopping.Turn | None = None) -> ItemResult:
    _pin_worker_blas()
    wall, cpu = time.perf_counter(), time.thread_time()
    with stopping.obeying(turn):
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
    import scipy.linalg  # noqa: F401

    with threadpool_limits(1):
        before, _pinned_process = _pinned_process, os.getpid()
        try:
            yield
        finally:
            _pinned_process = before


@contextmanager
def _local_client(processes: bool, workers: int, worker_memory_bytes: int) -> Iterator[Any]:
    import dask
    from distributed import Client, LocalCluster

    _silence_dask()
    settings = {
        "logging.distributed": "critical",
        "distributed.scheduler.allowed-failures": _ALLOWED_WORKER_DEATHS,
        "distributed.worker.profile.enabled": False,
        "distributed.scheduler.http.routes": [],
        "distributed.worker.http.routes": [],
        # Signals to the whole group are the driver's to answer; a worker that dies of one first prints pages.
        "distributed.nanny.preload": [_IGNORE_SIGNALS],
        "distributed.worker.preload": [_IGNORE_SIGNALS],
        "distributed.nanny.pre-spawn-environ.OMP_NUM_THREADS": 1,
        "distributed.nanny.pre-spawn-environ.OPENBLAS_NUM_THREADS": 1,
    }
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=workers if processes else 1,
            threads_per_worker=1 if processes else workers,
            processes=processes,
            host="127.0.0.1" if processes else None,
            # Given no address, dask serves HTTP on every interface. This one is loopback, and serves nothing.
            dashboard_address=_LOOPBACK,
            worker_dashboard_address=_LOOPBACK,
            scheduler_kwargs={"dashboard": False},
            memory_limit=worker_memory_bytes if processes else 0,
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def _silence_dask() -> None:
    """Keep dask's own logging off the terminal: what matters of it reaches the user as one line of ours."""
    for name in ("distributed", "distributed.worker", "distributed.scheduler", "distributed.nanny", "distributed.core"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def _remote_client(address: str) -> Iterator[Any]:
    from distributed import Client

    _silence_dask()
    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise SchedulerError(
            f"dask scheduler {address} does not answer ({error}); start it, or use --scheduler threads"
        ) from None
    with client:
        yield client


def _check_cluster(client: Any) -> int:
    """Return the number of worker threads; every worker must have our version."""
    try:
        client.wait_for_workers(1, timeout=CONNECT_SECONDS)
    except TimeoutError:
        raise SchedulerError(f"no worker joined the dask scheduler within {CONNECT_SECONDS} s; start one") from None
    try:
        found = client.run(_version)
    except Exception as error:
        raise SchedulerError(
            f"the workers cannot import slkl ({error}); install version {__version__} where they run"
        ) from None
    for worker, version in found.items():
        if version != __version__:
            raise SchedulerError(f"worker {worker} has slkl {version}, this is {__version__}; install the same on both")
    return sum(int(threads) for threads in client.nthreads().values())


def _version() -> str:
    import pipeline

    return pipeline.__version__


def _sees(path: str) -> bool:
    return Path(path).exists()


def _result_of(future: Any) -> ItemResult:
    """Return a future's result, or raise its error in words a user can act on."""
    from concurrent.futures import CancelledError as PoolCancelledError

    from distributed import CancelledError, KilledWorker
    from distributed.comm import CommClosedError

    try:
        result: ItemResult = future.result()
        return result
    except KilledWorker as error:
        raise PlanError(
            f"a worker died {_ALLOWED_WORKER_DEATHS + 1} times on the same item ({error}); most often it ran out of "
            "memory: lower --block-size or --workers, or raise --memory-limit"
        ) from None
    except (CancelledError, PoolCancelledError, CommClosedError, TimeoutError) as error:
        raise SchedulerError(
            f"the dask scheduler was lost ({type(error).__name__}); run again with --resume auto"
        ) from None
