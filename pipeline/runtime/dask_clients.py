"""Clients of a dask cluster: one started here for a run, of threads or processes, or one that runs already."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from concurrent.futures import CancelledError as PoolCancelledError
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pipeline import __version__
from pipeline.errors import ConfigError, PipelineError, PlanError, SchedulerError

if TYPE_CHECKING:
    from distributed import Client, Security

CONNECT_SECONDS = 30  # an address that does not answer within this is given up
_IGNORE_SIGNALS = """\
import signal, threading
if threading.current_thread() is threading.main_thread():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
"""
_KEY_VARIABLES = [f"DASK_DISTRIBUTED__COMM__TLS__{name}" for name in ("CA_FILE", "CLIENT__CERT", "CLIENT__KEY")]
_LOOPBACK = "127.0.0.1:0"
ALLOWED_WORKER_DEATHS = 10  # of one item, before the run stops


@contextmanager
def open_local_client(processes: int, workers: int, worker_memory_bytes: int) -> Iterator[Client]:
    """Start threads or processes of this machine, and give a client of them; they end with the block.

    processes: how many; 0: threads of this process. worker_memory_bytes bounds each. Raises PlanError, SchedulerError.
    """
    # Slow to import, and not needed by a serial run.
    import dask
    from distributed import Client, LocalCluster, Security

    _silence_dask()
    settings = {
        "logging.distributed": "critical",
        # Of clusters elsewhere, in the environment: threads of this process speak to nobody, processes have a key here.
        "distributed.comm.require-encryption": False,
        "distributed.comm.tls.ca-file": None,
        "distributed.scheduler.allowed-failures": ALLOWED_WORKER_DEATHS,
        # Else a process that happens to be starting so long after a death is never started again.
        "distributed.deploy.lost-worker-timeout": "1000 days",
        "distributed.worker.profile.enabled": False,
        "distributed.scheduler.http.routes": [],
        "distributed.worker.http.routes": [],
        # Signals to the whole group are the driver's to answer; a worker that dies of one first prints pages.
        "distributed.nanny.preload": [_IGNORE_SIGNALS],
        "distributed.worker.preload": [_IGNORE_SIGNALS],
        "distributed.nanny.pre-spawn-environ.OMP_NUM_THREADS": 1,
        "distributed.nanny.pre-spawn-environ.OPENBLAS_NUM_THREADS": 1,
    }
    with ExitStack() as stack:
        # What a worker has no memory for becomes pickles in its folder, which nobody else may exchange.
        folder = stack.enter_context(TemporaryDirectory(prefix="slkl-workers-", ignore_cleanup_errors=True))  # 0700
        stack.enter_context(dask.config.set(settings))
        deaths = stack.enter_context(_told_by_nannies())
        try:
            cluster = LocalCluster(
                n_workers=max(processes, 1),
                threads_per_worker=workers // max(processes, 1),
                processes=processes > 0,
                host="127.0.0.1" if processes else None,
                # Scheduler, nannies and workers run what they are sent. Every user of this machine reaches their ports,
                # but gets past the handshake only with a key that never leaves the memory of these processes.
                security=Security.temporary() if processes else None,
                local_directory=folder,
                # Given no address, dask serves HTTP on every interface. This one is loopback, and serves nothing.
                dashboard_address=_LOOPBACK,
                worker_dashboard_address=_LOOPBACK,
                scheduler_kwargs={"dashboard": False},
                memory_limit=worker_memory_bytes if processes else 0,
                silence_logs=logging.CRITICAL,
            )
        except (RuntimeError, OSError) as error:
            raise _not_started(error, deaths) from error
        stack.enter_context(cluster)
        yield stack.enter_context(Client(cluster, set_as_default=False))


class _Deaths(logging.Handler):
    """Keeps what nannies say of processes that died: dask's errors do not repeat it."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.latest = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one message."""
        if (message := record.getMessage()).startswith("Worker process"):
            self.latest = message


@contextmanager
def _told_by_nannies() -> Iterator[_Deaths]:
    logger, deaths = logging.getLogger("distributed.nanny"), _Deaths()
    level, others, propagate = logger.level, logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [deaths], False
    logger.setLevel(logging.INFO)
    try:
        yield deaths
    finally:
        logger.handlers, logger.propagate = others, propagate
        logger.setLevel(level)


def _not_started(error: BaseException, deaths: _Deaths) -> PipelineError:
    """Return the message where the worker processes did not start: dask's own error says only that."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    system = next((cause for cause in causes if isinstance(cause, (MemoryError, OSError))), None)
    reason = deaths.latest or str(system or causes[-1]) or type(error).__name__
    if isinstance(system, MemoryError) or getattr(system, "errno", 0) == errno.ENOMEM or "signal 9" in reason:
        return PlanError(
            f"a worker process did not start ({reason}), most often for lack of memory: lower --workers, or use "
            "--scheduler threads"
        )
    return SchedulerError(f"a worker process did not start ({reason}); lower --workers, or use --scheduler threads")


def _silence_dask() -> None:
    """Keep dask's own logging off the terminal: what matters of it reaches the user as one line of ours."""
    for name in list(logging.root.manager.loggerDict):  # dask gives some of them levels and handlers of their own
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def open_remote_client(address: str) -> Iterator[Client]:
    """Give a client of the cluster at an address; one at tls:// proves itself by the authority named.

    Raises ConfigError where no readable key is named, SchedulerError where nobody answers.
    """
    # Slow to import, and not needed by a serial run.
    from distributed import Client

    _silence_dask()
    security = _key() if address.startswith("tls://") else None
    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False, security=security)
    except (OSError, TimeoutError, ValueError) as error:
        raise SchedulerError(
            f"dask scheduler {address} does not answer ({error}); start it, or use --scheduler threads"
        ) from None
    with client:
        yield client


def _key() -> Security:
    """Return the key that the environment names, for peers of its authority. Raises ConfigError without one."""
    # As above.
    from distributed import Security

    variables = ", ".join(_KEY_VARIABLES)
    files: list[str] = []
    try:
        security = Security(require_encryption=True)
        named = security.get_tls_config_for_role("client")
        files = [
            str(named[name]) for name in ("ca_file", "cert", "key") if "\n" not in str(named[name])
        ]  # no PEM itself
        if named["ca_file"] and named["cert"]:
            security.get_connection_args("client")
            return security
    except (OSError, ValueError, TypeError, RuntimeError) as error:  # OSError: those of TLS too
        found = f" ({', '.join(files)})" if files else ""
        raise ConfigError(f"the key of a tls:// scheduler, in {variables}{found}: {error}") from None
    raise ConfigError(f"a tls:// scheduler needs a key: name its files in {variables}")


@contextmanager
def asking() -> Iterator[None]:
    """Ask the scheduler something: raise SchedulerError where it is lost meanwhile."""
    # Slow to import, and there by now.
    from distributed import CancelledError

    try:
        yield
    except (CancelledError, PoolCancelledError, OSError) as error:
        raise lost(error) from None


def lost(error: BaseException) -> SchedulerError:
    """Return the message for a scheduler that is lost."""
    return SchedulerError(
        f"the dask scheduler was lost ({type(error).__name__}); run again with --resume auto; to use a cluster "
        "again, give its address too"
    )


def count_threads(client: Client) -> int:
    """Return the number of worker threads; every worker must have our version."""
    with asking():
        try:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError:
            raise SchedulerError(f"no worker joined the dask scheduler within {CONNECT_SECONDS} s; start one") from None
        try:
            versions = client.run(_version)
        except OSError:
            raise
        except Exception as error:
            raise SchedulerError(
                f"the workers cannot import slkl ({error}); install version {__version__} where they run"
            ) from None
        threads = client.nthreads().values()
    for worker, version in versions.items():
        if version != __version__:
            raise SchedulerError(f"worker {worker} has slkl {version}, this is {__version__}; install the same on both")
    return sum(map(int, threads))


def _version() -> str:
    import pipeline  # on the worker that answers

    return pipeline.__version__
