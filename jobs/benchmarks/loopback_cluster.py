"""A dask cluster on loopback behind TLS, with a key of its start that is removed at its end."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import dask
from distributed import LocalCluster

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.slurm.dask_cluster import key_of_start

ANY_PORT = "127.0.0.1:0"
SETTINGS = {
    "logging.distributed": "critical",
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.nanny.pre-spawn-environ.OMP_NUM_THREADS": 1,
    "distributed.nanny.pre-spawn-environ.OPENBLAS_NUM_THREADS": 1,
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
}


@contextmanager
def cluster(workers: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Start worker processes of one thread each, and a scheduler in this process.

    Gives its address, and the environment variables with which a training gets past the handshake.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        security, variables = stack.enter_context(key_of_start(folder))
        stack.enter_context(dask.config.set(SETTINGS))
        opened = stack.enter_context(
            LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                security=security,
                dashboard_address=ANY_PORT,
                worker_dashboard_address=ANY_PORT,
                scheduler_kwargs={"dashboard": False},
                memory_limit=0,
                local_directory=str(folder),
            )
        )
        yield opened.scheduler_address, variables
