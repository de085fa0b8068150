"""Worker processes of this machine or of a dask cluster: the only file that imports dask, once a run asks for it.

A lost worker costs no finished item. Before an error ends a run, its tasks have a while to end everywhere.
"""

import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError as PoolCancelledError
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

import dask
from distributed import CancelledError, Client, Future, KilledWorker, LocalCluster, Security, get_worker
from distributed.client import ClosedClientError

from pipeline import __version__
from pipeline.errors import ConfigError, PipelineError, PlanError, SchedulerError
from pipeline.runtime import stopping
from pipeline.runtime.console import causes_of
from pipeline.runtime.executors import Executor, Item, ItemResult, Value, WorkerProcess, run_item
from pipeline.runtime.progress import duration
from pipeline.runtime.run_folder import own_code
from storage.errors import CannotWriteError

CONNECT_SECONDS = 30  # An address that does not answer within this is given up.
ALLOWED_WORKER_DEATHS = 10  # The run stops when more workers have died running one item.
_PARTING_SECONDS = 2  # An answer may take this while a run ends.
_LOOK_SECONDS = 2  # Workers are looked up at this interval.
_WAIT_SECONDS = 0.25  # Without a result, a request to stop is looked for at this interval.
TOLD_SECONDS = 30  # A longer time without a worker, or without a sign of life of one, is told.
# How dask's client fails that has closed itself: parts of it are gone.
_CLOSED = (RuntimeError, AttributeError, AssertionError)
# Loaded by our own scheduler and workers. Dask gives each of them an HTTP server, without a key: it closes again.
# Signals to the whole group, as of Ctrl-C, are the driver's to answer: workers go on until it lets them save and end.
_PRELOAD = """\
import signal, threading

def dask_setup(server):
    server.http_server.stop()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
"""
OWN_SETTINGS = {
    "distributed.admin.tick.interval": "1s",  # By default each server wakes fifty times a second.
    # Else a process that happens to be starting so long after a death is never started again.
    "distributed.deploy.lost-worker-timeout": "1000 days",
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,  # Else each block takes fresh pages.
    "distributed.scheduler.allowed-failures": ALLOWED_WORKER_DEATHS,
    "distributed.scheduler.http.routes": [],
    "distributed.scheduler.preload": [_PRELOAD],
    "distributed.worker.http.routes": [],
    "distributed.worker.preload": [_PRELOAD],
    "distributed.worker.profile.enabled": False,
    # A worker holds next to nothing that could be written to the disk, and one that pauses would never go on.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
}
_KEY_VARIABLES = [f"DASK_DISTRIBUTED__COMM__TLS__{name}" for name in ("CA_FILE", "CLIENT__CERT", "CLIENT__KEY")]
_LOOPBACK = "127.0.0.1:0"


class DaskExecutor(Executor):
    """Items as dask tasks, at most two for each worker thread on their way at once; see `open_executor`."""

    def __init__(self, client: Client, workers: int, patience: float) -> None:
        self.workers, self._patience = workers, patience
        self._client = client
        self._submitted = 0
        self.warn = lambda message: print(f"warning: {message}", file=sys.stderr, flush=True)
        self._code = own_code()
        self._paths: list[str] = []  # paths that every worker must see
        self._known: set[str] = set()  # addresses of the workers that were checked
        self._looked = -math.inf  # when
        self._alone_since: float | None = None
        self._signs = dict[str, tuple[float, float]]()  # when the scheduler last heard of each, and when we saw that
        self._told = set[str]()

    def run(
        self, function: Callable[[Item], Value], items: Iterable[Item], lease_file: Path | None = None
    ) -> Generator[ItemResult[Item, Value], None, None]:
        lease = None if lease_file is None else stopping.Lease.next(lease_file)
        waiting, under_way, done = iter(items), set[Future](), SimpleQueue[Future]()
        try:
            while True:
                for item in islice(waiting, 2 * self.workers - len(under_way)):
                    under_way.add(future := self._submit(function, item, lease))
                    # In a thread of dask's, for which Python waits at its end: it must not ask anything itself.
                    future.add_done_callback(done.put)
                if not under_way:
                    return
                self._look()
                with suppress(Empty):
                    future = done.get(timeout=_WAIT_SECONDS)
                    under_way.remove(future)
                    answer = self._ask(partial(_answer_of, future))
                    future.release()
                    self._raise_from(answer)
                    yield answer
        finally:
            self._end([future for future in under_way if not future.done()], lease_file)

    def processes(self) -> list[WorkerProcess]:
        while not (there := self._check_workers()):  # where all died, for the first to come back
            stopping.check()
            time.sleep(_WAIT_SECONDS)
        return [WorkerProcess(address, threads) for address, threads in sorted(there.items())]

    def check_paths(self, paths: Iterable[Path]) -> None:
        self._paths = list(map(str, paths))
        self._known.clear()
        self._check_workers()

    def _look(self) -> None:
        stopping.check()
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            self._check_workers()
            self._looked = time.monotonic()

    def _check_workers(self) -> dict[str, int]:
        """Return the threads of each worker that there is; check those that came meanwhile."""
        there = self._ask_who_is_there()
        new = sorted(there.keys() - self._known)
        if new:
            self._check(new)
            self._known |= set(new)
        now = time.monotonic()
        self._alone_since = None if there else self._alone_since or now
        self._told -= {"alone"} if there else set()
        alone = now - (self._alone_since or now)
        if alone > self._patience:
            remedy = "start one and run again with `resume=auto`, or use `resources.scheduler=threads`"
            raise SchedulerError(f"no worker for {alone:.0f} s, longer than `resources.worker_timeout`; {remedy}")
        if alone > TOLD_SECONDS:
            fault = f"no worker for {TOLD_SECONDS} s"
            self._tell_once("alone", f"{fault}; the run waits for one, {duration(self._patience)} at most")
        return there

    def _ask(self, question: Callable[[], Value]) -> Value:
        """Return what the scheduler answers, see `ask`; tell where that takes long."""
        fault = f"no answer of the scheduler for {TOLD_SECONDS} s"
        waits = f"{fault}; the run waits for one, {duration(self._patience)} at most"
        answer = ask(question, self._patience, lambda: self._tell_once("silent", waits))
        self._told.discard("silent")
        return answer

    def _tell_once(self, what: str, message: str) -> None:
        """Warn of a state, or of a worker by its address, unless that was told already and has not changed since."""
        if what not in self._told:
            self._told.add(what)
            self.warn(message)

    def _check(self, workers: list[str] | None) -> None:
        """Raise SchedulerError where some workers (None: any) have other code than this process, or lack its paths."""
        asked = partial(self._client.run, _code_and_unseen, self._paths, workers=workers, on_error="return")
        for worker, found in self._ask(asked).items():
            if isinstance(found, OSError):  # it died meanwhile
                continue
            if isinstance(found, Exception):
                fault = f"worker {worker} cannot import slkl ({found})"
                raise SchedulerError(f"{fault}; install version {__version__} there")
            code, unseen = found
            if code != self._code:
                raise _other_code(worker, code, self._code)
            if unseen:
                raise SchedulerError(f"worker {worker} does not see {unseen[0]}; put it on a file system they share")

    def _ask_who_is_there(self) -> dict[str, int]:
        """Return the threads of each worker; tell which of them the scheduler has not heard of for long."""
        there = self._ask(lambda: self._client.sync(self._client.scheduler.identity))["workers"]
        now = time.monotonic()
        for address, worker in there.items():
            if self._signs.get(address, ("",))[0] != worker["last_seen"]:
                self._signs[address] = worker["last_seen"], now
                self._told.discard(address)
            elif now - self._signs[address][1] > TOLD_SECONDS:
                fault = f"no sign of life of worker {address} for {TOLD_SECONDS} s"
                self._tell_once(address, f"{fault}; end it, and others take its items")
        return {address: worker["nthreads"] for address, worker in there.items()}

    def _raise_from(self, error: object) -> None:
        """Raise what an item has raised, if that is its answer."""
        if not isinstance(error, BaseException):
            return
        if isinstance(error, KilledWorker):
            fault = f"a worker died {ALLOWED_WORKER_DEATHS + 1} times on the same item ({error})"
            remedy = "lower `resources.workers` or `centers.count`, or raise `resources.memory_limit`"
            raise PlanError(f"{fault}; most often it ran out of memory: {remedy}")
        if isinstance(error, (ImportError, AttributeError, TypeError)):
            self._check(None)  # it may be what other code says
        if isinstance(error, Exception) and not isinstance(error, PipelineError):
            self._check_workers()  # one that has just come may not see the paths
        raise error

    def _end(self, futures: list[Future], lease_file: Path | None) -> None:
        """End tasks: those that run may save what they have; those that have not begun see that they need not."""
        if futures and lease_file is not None:
            with suppress(CannotWriteError):  # a full disk ends them as well
                stopping.Lease.next(lease_file)
        deadline = time.monotonic() + stopping.SAVE_SECONDS
        # Of a scheduler that is lost nobody hears any more.
        with stopping.obeying(stopping.Stop()), suppress(SchedulerError):
            while (futures := [future for future in futures if not future.done()]) and time.monotonic() < deadline:
                if not ask(self._client.nthreads, _PARTING_SECONDS):
                    break  # nobody runs them
                time.sleep(20 * stopping.POLL_SECONDS)
            # Of one that runs this stops nothing, it only gives up the result.
            ask(partial(self._client.cancel, futures), _PARTING_SECONDS)

    def _submit(self, function: Callable[[Item], Value], item: Item, lease: stopping.Lease | None) -> Future:
        self._submitted += 1
        key = f"{getattr(function, '__name__', None) or 'item'}-{os.getpid()}-{id(self)}-{self._submitted}"
        with asking():
            return self._client.submit(_run_there, function, item, lease, self._code, key=key, pure=False)


def _answer_of(future: Future) -> Any:
    """Return the result of a task, or its error; what a worker held that died is computed again by the next one."""
    try:
        with asking():
            return future.exception() or future.result()
    except BaseException as error:
        return error


def _run_there(
    function: Callable[[Item], Value], item: Item, lease: stopping.Lease | None, code: str
) -> ItemResult[Item, Value]:
    if code != own_code():
        raise _other_code(get_worker().address, own_code(), code)
    return run_item(function, item, stopping.Stop(lease))


def _code_and_unseen(paths: list[str]) -> tuple[str, list[str]]:
    # Path.exists raises where a folder is closed to us.
    return own_code(), [path for path in paths if not os.path.exists(path)]  # noqa: PTH110


def _other_code(worker: str, theirs: str, ours: str) -> SchedulerError:
    return SchedulerError(f"worker {worker} has {theirs}; this run has {ours}; start it from the same installation")


@contextmanager
def open_local_client(processes: int, workers: int, memory_bytes: int) -> Iterator[Client]:
    """Start worker processes on this machine, and give a client of them; they end with the block.

    workers : threads of all processes together
    memory_bytes : a process that takes more is ended, and started again
    """
    _silence_dask()
    # What a worker writes, nobody else of this machine may exchange: a temporary folder is its owner's alone.
    folders = TemporaryDirectory(prefix="slkl-workers-", ignore_cleanup_errors=True)
    # Dask's defaults and what we change of them, whatever files, variables and callers have set: what users set is for
    # their clusters, and a deadline or a port of theirs would end workers of ours.
    settings: dict[str, Any] = {}
    dask.config.refresh(settings, paths=[], env={})
    with folders as folder, dask.config.set(settings | OWN_SETTINGS):
        try:
            cluster = LocalCluster(
                n_workers=processes,
                threads_per_worker=workers // processes,
                host="127.0.0.1",
                # Scheduler, nannies and workers run what they are sent. Every user of this machine reaches their ports,
                # but gets past the handshake only with a key that never leaves the memory of these processes.
                security=Security.temporary(),
                local_directory=folder,
                dashboard_address=_LOOPBACK,
                worker_dashboard_address=_LOOPBACK,
                scheduler_kwargs={"dashboard": False},
                memory_limit=memory_bytes,
                silence_logs=logging.CRITICAL,
            )
        except (RuntimeError, OSError) as error:
            fault = f"the worker processes did not start ({list(causes_of(error))[-1]})"
            remedy = "lower `resources.workers`, or use `resources.scheduler=threads`"
            raise SchedulerError(f"{fault}; {remedy}") from error
        with cluster, Client(cluster, set_as_default=False) as client:
            yield client


def _silence_dask() -> None:
    """Keep dask's own logging off the terminal: what matters of it reaches the user as one line of ours."""
    for name in list(logging.root.manager.loggerDict):  # dask gives some of them levels and handlers of their own
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def open_remote_client(address: str) -> Iterator[Client]:
    """Give a client of the cluster at an address, which proves itself by the authority named."""
    _silence_dask()
    security = _key()

    def connect() -> Client | Exception:
        try:
            return Client(address, timeout=CONNECT_SECONDS, set_as_default=False, security=security)
        except (OSError, ValueError) as error:
            return error

    client = ask(connect, 2 * CONNECT_SECONDS)
    if isinstance(client, Exception):
        fault = f"dask scheduler {address} does not answer ({client})"
        raise SchedulerError(f"{fault}; start it, or use `resources.scheduler=threads`")
    try:
        yield client
    finally:
        # Of one that is lost there is nothing to close.
        with stopping.obeying(stopping.Stop()), suppress(SchedulerError):
            ask(client.close, _PARTING_SECONDS)


def _key() -> Security:
    variables = ", ".join(_KEY_VARIABLES)
    try:
        security = Security(require_encryption=True)
        if security.get_connection_args("client")["ssl_context"] is not None:
            return security
    except (OSError, ValueError, TypeError, RuntimeError) as error:  # OSError: those of TLS too
        raise ConfigError(f"cannot read the key of a tls:// scheduler from {variables}: {error}") from None
    raise ConfigError(f"a tls:// scheduler needs a key: name its files in {variables}")


def ask(question: Callable[[], Value], seconds: float, on_silence: Callable[[], None] = lambda: None) -> Value:
    """Return what the scheduler answers to a question, which a thread asks: a request to stop is heard meanwhile.

    on_silence : is called many times a second once it has not answered for TOLD_SECONDS

    Raises SchedulerError where the scheduler is lost or takes too long.
    """
    answer: ThreadFuture[Value] = ThreadFuture()

    def wait_for_answer() -> None:
        try:
            with asking():
                answer.set_result(question())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=wait_for_answer, name="asking", daemon=True).start()
    asked = time.monotonic()
    while not wait([answer], 5 * stopping.POLL_SECONDS).done:
        stopping.check()
        if time.monotonic() - asked > TOLD_SECONDS:
            on_silence()
        if time.monotonic() - asked > seconds:
            fault = f"the dask scheduler has not answered for {seconds:.0f} s"
            raise SchedulerError(f"{fault}; see whether it runs, and run again with `resume=auto`")
    return answer.result()


@contextmanager
def asking() -> Iterator[None]:
    """Raise SchedulerError where the scheduler is lost meanwhile, however that shows."""
    try:
        yield
    except (CancelledError, PoolCancelledError, ClosedClientError, OSError, *_CLOSED) as error:
        remedy = "start it and its workers again, and run again with `resume=auto`"
        raise SchedulerError(f"the dask scheduler was lost ({type(error).__name__}); {remedy}") from None
