"""Train with dask workers that are SLURM jobs of their own: `python -m jobs.slurm.dask_cluster --help`.

The scheduler lives in this process, `python -m pipeline.train` is its child, and each worker is a job that
dask-jobqueue submits and cancels. A dask scheduler executes whatever reaches it, so all of them speak mutual TLS with a
key made for this cluster: without that key nobody gets past the handshake. The key's files are readable by their owner
only and gone with the cluster, or at the next start where it was killed. No dashboard and no HTTP route is served.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from storage.folders import hold_lock, holder

ONE_THREAD = "export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1"
STOPPED = 75  # A run ends with this exit code if it was stopped on request and can be resumed.
POLL_SECONDS = 0.5
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
ROLES = ("scheduler", "worker", "client")
KEY_LOCK = "lock"  # The folder of a key has this file, held while its cluster lives.
LONGEST_SECONDS = 30 * 24 * 3600  # After this a cluster on another machine, whose lock may not reach us, is gone.
WORKER_DEATH_SECONDS = 60  # A worker without its scheduler for this long ends its job.


class Requests:
    """Requests to stop, handed on to the training; one that comes before it keeps it from starting."""

    def __init__(self) -> None:
        self._training: subprocess.Popen[bytes] | None = None
        self._stopped: int | None = None
        for number in SIGNALS:
            signal.signal(number, self._take)

    def run(self, command: list[str], environment: dict[str, str]) -> int:
        """Run the command and return its exit code, that of a stopped run if a request came before."""
        if self._stopped:
            return STOPPED
        # The child inherits the mask: signals wait for its handlers (pipeline.stopping) instead of killing it before.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self._training = subprocess.Popen(command, env=environment)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        with self._training:
            if self._stopped:  # it came while there was nobody yet to hand it to
                self._training.send_signal(self._stopped)
            return self._training.wait()

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Return when something is ready, or when the run shall stop."""
        while not (ready() or self._stopped):
            time.sleep(POLL_SECONDS)

    def _take(self, number: int, _: object) -> None:
        self._stopped = number
        if self._training:
            self._training.send_signal(number)


def main(argv: Sequence[str] | None = None) -> int:
    """Start the cluster, train on it, end it; return the training's exit code."""
    arguments, training = _parser().parse_known_args(argv)
    requests = Requests()
    state = Path(arguments.state).absolute()
    state.mkdir(parents=True, exist_ok=True)
    with key_of_start(state) as (security, variables), _cluster(arguments, state, security) as cluster:
        cluster.scale(arguments.jobs)
        command = [sys.executable, "-m", "pipeline.train", *training, "--scheduler", cluster.scheduler_address]
        print(f"{arguments.jobs} worker jobs, scheduler {cluster.scheduler_address}", flush=True)
        requests.wait_until(lambda: bool(cluster.scheduler.workers))  # the queue decides when
        return requests.run(command, os.environ | variables)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jobs.slurm.dask_cluster", description=__doc__.split("\n", 1)[0], allow_abbrev=False
    )
    parser.add_argument("--jobs", type=int, default=2, help="worker jobs (default: 2)")
    parser.add_argument("--job-cores", type=int, default=4, help="processors of each, one task each (default: 4)")
    parser.add_argument("--job-memory", default="8GiB", help="memory of each (default: 8GiB)")
    parser.add_argument("--job-time", default="04:00:00", help="walltime of each (default: 04:00:00)")
    parser.add_argument(
        "--interface",
        help="network interface of scheduler and workers, such as ib0 (default: the workers listen on all)",
    )
    parser.add_argument("--directive", action="append", default=[], help="more for sbatch: --directive=--partition=big")
    parser.add_argument(
        "--state", default="runs/dask", help="shared folder of key and worker logs (default: runs/dask)"
    )
    parser.epilog = "Everything else goes to python -m pipeline.train."
    return parser


@contextmanager
def _cluster(arguments: argparse.Namespace, state: Path, security: Any) -> Iterator[Any]:
    import dask
    from dask_jobqueue import SLURMCluster
    from distributed.utils import get_ip

    where = {} if arguments.interface else {"host": get_ip()}
    settings = {
        "distributed.scheduler.http.routes": [],
        "distributed.worker.http.routes": [],
        "distributed.scheduler.allowed-failures": 10,
    }
    with (
        dask.config.set(settings),
        SLURMCluster(
            cores=arguments.job_cores,
            processes=1,
            memory=arguments.job_memory,
            walltime=arguments.job_time,
            interface=arguments.interface,
            security=security,
            log_directory=str(state),
            job_extra_directives=["--no-requeue", *map(_quoted, arguments.directive)],
            job_script_prologue=[ONE_THREAD],
            worker_extra_args=["--no-dashboard"],
            death_timeout=WORKER_DEATH_SECONDS,
            job_name="slkl-worker",
            python=sys.executable,
            scheduler_options={"dashboard": False, "dashboard_address": "127.0.0.1:0", **where},
        ) as cluster,
    ):
        yield cluster


def _quoted(directive: str) -> str:
    """Return a directive as sbatch reads it in a line of a script, which it splits at spaces."""
    name, _, value = directive.partition("=")
    return f'{name}="{value}"' if " " in value else directive


@contextmanager
def key_of_start(state: Path) -> Iterator[tuple[Any, dict[str, str]]]:
    """Make a key in a folder of its own, removed at the end; first remove those of clusters that were killed."""
    for left in state.glob(".tls-*"):
        if _is_surely_gone(left / KEY_LOCK):
            shutil.rmtree(left, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(prefix=".tls-", dir=state) as folder,  # 0700
        hold_lock(Path(folder) / KEY_LOCK, "key of a cluster"),
    ):
        yield new_key(Path(folder))


def _is_surely_gone(lock: Path) -> bool:
    """Return whether the process that made a key has ended; not sure of what was left before there was a lock."""
    try:
        if not lock.exists() or holder(lock) is not None:
            return False
        text = lock.read_text(encoding="utf-8")  # none: it was ending
        here = not text or json.loads(text)["host"] == socket.gethostname()
        return bool(here) or time.time() - lock.stat().st_mtime > LONGEST_SECONDS
    except (OSError, ValueError, KeyError, TypeError):
        return False


def new_key(folder: Path) -> tuple[Any, dict[str, str]]:
    """Make a key and certificate in the folder; return dask's view of them and the variables that name them."""
    from distributed import Security

    made = Security.temporary().get_tls_config_for_role("worker")
    files = {}
    for name in ("ca_file", "cert", "key"):
        files[name] = folder / f"{name}.pem"
        files[name].touch(mode=0o600)
        files[name].write_text(made[name], encoding="utf-8")
    roles = {f"tls_{role}_{name}": str(files[name]) for role in ROLES for name in ("cert", "key")}
    variables = {
        "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True",
        "DASK_DISTRIBUTED__COMM__TLS__CA_FILE": str(files["ca_file"]),
        "DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT": str(files["cert"]),
        "DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY": str(files["key"]),
    }
    return Security(tls_ca_file=str(files["ca_file"]), require_encryption=True, **roles), variables


if __name__ == "__main__":
    sys.exit(main())
