"""Every executor runs the same items to the same values, and says in words when it cannot."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from threadpoolctl import threadpool_info

from pipeline.errors import ConfigError, SchedulerError
from pipeline.executors import open_executor

LOCAL = ("serial", "threads", "processes")


def square(number: int) -> int:
    return number * number


def blas_threads(_: int) -> int:
    import scipy.linalg

    scipy.linalg.norm(np.ones(3))
    return max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")


def fail(number: int) -> int:
    if number == 3:
        raise ValueError(f"item {number} is bad")
    return number


def process_id(_: int) -> int:
    return os.getpid()


@pytest.fixture(scope="module", params=LOCAL)
def executor(request: pytest.FixtureRequest) -> Iterator[tuple]:
    with open_executor(request.param, 2, 2**30) as opened:
        yield request.param, opened


def test_every_item_is_run_once(executor: tuple) -> None:
    results = list(executor[1].run(square, range(37)))
    assert sorted(result.item for result in results) == list(range(37))
    assert all(result.value == result.item**2 for result in results)
    assert list(executor[1].run(square, [])) == []


def test_blas_has_one_thread_inside_items(executor: tuple) -> None:
    assert {result.value for result in executor[1].run(blas_threads, range(4))} == {1}


def test_the_error_of_an_item_reaches_the_caller_and_the_executor_lives_on(executor: tuple) -> None:
    with pytest.raises(ValueError, match="item 3 is bad"):
        list(executor[1].run(fail, range(10)))
    assert [result.value for result in executor[1].run(square, [5])] == [25]


def test_only_processes_leave_this_process(executor: tuple) -> None:
    name, opened = executor
    away = {result.value for result in opened.run(process_id, range(8))} - {os.getpid()}
    assert bool(away) == (name == "processes")


def test_no_socket_is_open_to_other_machines(executor: tuple) -> None:
    ours = [psutil.Process(), *psutil.Process().children(recursive=True)]
    open_sockets = [socket for process in ours for socket in process.net_connections() if socket.status == "LISTEN"]
    assert {socket.laddr.ip for socket in open_sockets} <= {"127.0.0.1", "::1"}


def test_blas_threads_are_restored() -> None:
    before = [pool["num_threads"] for pool in threadpool_info()]
    with open_executor("serial", 1, 2**30):
        pass
    assert [pool["num_threads"] for pool in threadpool_info()][: len(before)] == before


def test_an_unknown_scheduler_is_refused() -> None:
    with (
        pytest.raises(ConfigError, match="must be serial, threads, processes"),
        open_executor("mpi", 1, 2**30),
    ):
        pass


def test_a_dead_address_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.executors.CONNECT_SECONDS", 1)
    with (
        pytest.raises(SchedulerError, match=r"127\.0\.0\.1:9.*does not answer"),
        open_executor("tcp://127.0.0.1:9", 1, 2**30),
    ):
        pass


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A scheduler and one worker of their own, on loopback."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    file = tmp_path / "scheduler.json"
    common = ["--scheduler-file", str(file), "--host", "127.0.0.1", "--no-dashboard"]
    scheduler = _start("distributed.cli.dask_scheduler", [*common, "--port", "0"], environment)
    worker = _start(
        "distributed.cli.dask_worker", [*common, "--nthreads", "2", "--local-directory", str(tmp_path)], environment
    )
    try:
        yield _address(file)
    finally:
        for process in (worker, scheduler):
            process.terminate()
            process.wait(20)


def _start(module: str, arguments: list[str], environment: dict[str, str]) -> subprocess.Popen:
    quiet = subprocess.DEVNULL
    return subprocess.Popen([sys.executable, "-m", module, *arguments], env=environment, stdout=quiet, stderr=quiet)


def _address(file: Path) -> str:
    import json
    import time

    for _ in range(300):
        if file.exists() and file.stat().st_size:
            return str(json.loads(file.read_text())["address"])
        time.sleep(0.1)
    raise AssertionError("the scheduler did not start")


def test_a_cluster_runs_items_and_must_see_the_paths(cluster: str, tmp_path: Path) -> None:
    with open_executor(cluster, 1, 2**30) as executor:
        assert executor.workers == 2
        assert sorted(result.value for result in executor.run(abs, range(20))) == list(range(20))
        executor.check_paths([tmp_path])
        with pytest.raises(SchedulerError, match="does not see"):
            executor.check_paths([tmp_path / "absent"])


def test_a_cluster_gives_the_same_model_bytes(cluster: str, tmp_path: Path) -> None:
    from pipeline.train import main

    common = ["digits", "-q", "--centers", "40", "--features-dir", str(tmp_path / "features")]
    for name, scheduler in (("serial", "serial"), ("cluster", cluster)):
        assert main([*common, "--run-dir", str(tmp_path / name), "--scheduler", scheduler]) == 0
    for name in ("model.json", "arrays.npz"):
        assert (tmp_path / "serial/model" / name).read_bytes() == (tmp_path / "cluster/model" / name).read_bytes()
