"""Opening the executor that `--scheduler` names; dask is imported where processes or a cluster are asked for."""

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

from pipeline.config.train_config import is_address
from pipeline.runtime.executors import Executor


@contextmanager
def open_executor(
    scheduler: str, workers: int, processes: int, memory_bytes: int, patience: float = 300.0
) -> Iterator[Executor]:
    """Open the executor that `--scheduler` names, and close it afterwards.

    scheduler : serial, threads, processes, or tls://host:port
    workers, processes : tasks at once on this machine, and the processes that share them
    memory_bytes : what each of these processes may take
    patience : seconds to wait for a worker, or for an answer of the scheduler
    """
    import scipy.linalg  # noqa: F401  (scipy carries a BLAS of its own, which must be loaded to be pinned)

    with threadpool_limits(1):  # also for a cluster: the bits of what this process computes itself depend on it
        if scheduler in ("serial", "threads"):
            yield Executor(1 if scheduler == "serial" else workers)
            return
        from pipeline.runtime.dask_executor import DaskExecutor, open_local_client, open_remote_client

        is_remote, local = is_address(scheduler), (processes, workers, memory_bytes)
        with open_remote_client(scheduler) if is_remote else open_local_client(*local) as client:
            executor = DaskExecutor(client, workers, patience)
            if is_remote:
                executor.workers = sum(process.threads for process in executor.processes())
            yield executor
