"""Every executor runs the same items to the same values, and says in words when it cannot."""

import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import dask
import numpy as np
import psutil
import pytest
from distributed import Client
from threadpoolctl import threadpool_info

from cases import SERIAL
from jobs.slurm.dask_cluster import new_key
from pipeline.errors import ConfigError, SchedulerError, StoppedError
from pipeline.runtime import dask_executor, stopping
from pipeline.runtime.dask_executor import DaskExecutor
from pipeline.train import main
from pipeline.work.runner import open_executor
from runs import ENDLESS_SOLVE, ROOT, loopback_cluster, model_bytes, sizes_and_times, wait_until
from storage.arrays import load

Key = tuple[list[str], dict[str, str]]
LOCAL = ("serial", "threads", pytest.param("processes", marks=pytest.mark.ci))


def key_settings(variables: dict[str, str]) -> dict[str, str]:
    """Return the variables that name a key as settings of dask."""
    return {name.removeprefix("DASK_").lower().replace("__", "."): value for name, value in variables.items()}


def look(number: int) -> tuple[int, int, int]:
    """Return the number, the threads of BLAS, and the process in which they are."""
    import scipy.linalg

    scipy.linalg.norm(np.ones(3))
    threads = max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
    return number, threads, os.getpid()


def beat(folder: Path, number: int) -> None:
    """Write a file now and again, until the run shall stop; the first item fails soon."""
    for _ in range(1000):
        (folder / str(number)).write_text(str(time.time()))
        time.sleep(0.01)
        stopping.check()
        if number == 0 and len(list(folder.iterdir())) == 2:
            raise ValueError("item 0 is bad")


@pytest.fixture(scope="module")
def cluster_address(tmp_path_factory: pytest.TempPathFactory, cluster_key: Key) -> Iterator[str]:
    """The address of two workers on loopback, behind TLS."""
    options, variables = cluster_key
    with loopback_cluster(tmp_path_factory.mktemp("cluster"), options, variables) as address:
        with dask.config.set(key_settings(variables)), Client(address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
        yield address


@pytest.fixture
def cluster(cluster_address: str, cluster_key: Key) -> Iterator[str]:
    """The same, while this process has the key."""
    with dask.config.set(key_settings(cluster_key[1])):
        yield cluster_address


@pytest.fixture(scope="module", params=LOCAL)
def executor(request: pytest.FixtureRequest) -> Iterator[tuple]:
    with open_executor(request.param, 2, 2, 2**30) as opened:
        yield request.param, opened


def test_every_item_is_run_once_with_one_blas_thread_and_only_processes_leave_this_one(executor):
    name, opened = executor
    results = list(opened.run(look, range(37)))
    assert sorted(result.item for result in results) == list(range(37))
    assert all(result.value[:2] == (result.item, 1) for result in results)
    assert bool({result.value[2] for result in results} - {os.getpid()}) == (name == "processes")
    assert list(opened.run(look, [])) == []


@pytest.mark.parametrize("first", [0, 1])
def test_tasks_end_before_the_caller_learns_that_they_shall(executor, tmp_path, first):
    """They end for the error of another task, or on request; those that have not begun never do."""
    folder = tmp_path / "items"
    folder.mkdir()
    if executor[0] == "serial" and first == 0:
        pytest.skip("one after the other: there is no other task")
    error = ValueError if first == 0 else StoppedError
    started = time.monotonic()
    with stopping.listening() as stop, stop.working():
        stop.deadline = math.inf if first == 0 else started + 1
        with pytest.raises(error, match=r"bad|limit"):
            list(executor[1].run(partial(beat, folder), range(first, first + 8), tmp_path / "lease"))
    before = sizes_and_times(folder)
    assert time.monotonic() - started < 30  # undisturbed, they take 40 s
    time.sleep(0.3)
    assert sizes_and_times(folder) == before
    assert len(before) <= 2 + (first == 0)  # the error makes room for one
    assert [result.value for result in executor[1].run(abs, [-5], tmp_path / "lease")] == [5]


def test_blas_threads_are_restored():
    before = [pool["num_threads"] for pool in threadpool_info()]
    with open_executor("serial", 1, 1, 2**30) as executor:
        assert [result.value[1] for result in executor.run(look, range(2))] == [1, 1]
    assert [pool["num_threads"] for pool in threadpool_info()][: len(before)] == before


def test_a_key_that_cannot_be_read_is_told_with_its_variables(cluster_key, tmp_path):
    key = key_settings(cluster_key[1])
    for file in (5, str(tmp_path / "gone.pem")):
        files = "cannot read the key .*CA_FILE.*CLIENT__CERT.*CLIENT__KEY: "
        with dask.config.set(key | dict.fromkeys(list(key)[1:], file)), pytest.raises(ConfigError, match=files):
            open_executor("tls://127.0.0.1:9", 1, 1, 2**30).__enter__()


@pytest.mark.ci
def test_a_scheduler_that_freezes_or_dies_amid_a_question_or_has_another_key_is_told(
    cluster_key, cluster, tmp_path, monkeypatch
):
    options, variables = cluster_key
    (tmp_path / "other").mkdir()
    _, others = new_key(tmp_path / "other")
    monkeypatch.setattr("pipeline.runtime.dask_executor.CONNECT_SECONDS", 2)
    with dask.config.set(key_settings(others)), pytest.raises(SchedulerError, match="does not answer"):
        open_executor(cluster, 1, 1, 2**30).__enter__()
    questions: dict[str, Callable[[DaskExecutor], object]] = {
        "who": lambda executor: executor.processes(),
        "paths": lambda executor: executor.check_paths([tmp_path]),
        "items": lambda executor: list(executor.run(abs, range(9))),
    }
    for name, question in questions.items():
        place = tmp_path / name
        place.mkdir()
        with (
            loopback_cluster(place, options, variables, workers=1) as address,
            dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
            open_executor(address, 1, 1, 2**30) as executor,
        ):
            wanted = {str(place / "scheduler.json"), "distributed.cli.dask_scheduler"}
            (scheduler,) = (one for one in psutil.Process().children() if wanted <= set(one.cmdline()))
            scheduler.suspend()
            with stopping.listening() as stop, stop.working():
                threading.Timer(0.5, setattr, [stop, "reason", "a test"]).start()
                with pytest.raises(StoppedError):
                    question(executor)
            threading.Timer(0.5, scheduler.kill).start()
            for _ in range(2):  # the second time of a client that has given up
                with pytest.raises(SchedulerError, match=r"scheduler was lost.*`resume=auto`"):
                    question(executor)
                executor._client.close()


@pytest.mark.ci
def test_a_cluster_runs_items_and_must_see_the_paths(cluster, tmp_path):
    with open_executor(cluster, 1, 1, 2**30) as executor:
        assert executor.workers == 2
        assert sorted(result.value for result in executor.run(abs, range(20))) == list(range(20))
        executor.check_paths([tmp_path])
        with pytest.raises(SchedulerError, match="does not see"):
            executor.check_paths([tmp_path / "absent"])


@pytest.mark.ci
def test_a_worker_that_stands_still_is_named_and_one_that_comes_late_is_waited_for(cluster_key, tmp_path, monkeypatch):
    options, variables = cluster_key
    for name, value in (("TOLD_SECONDS", 2), ("_LOOK_SECONDS", 0.2)):
        monkeypatch.setattr(dask_executor, name, value)
    with (
        loopback_cluster(tmp_path, options, variables, workers=0) as address,
        dask.config.set(key_settings(variables)),
    ):
        with pytest.raises(SchedulerError, match=r"no worker for [34] s"):
            open_executor(address, 1, 1, 2**30, 3.0).__enter__()
        join = partial(loopback_cluster, tmp_path, options, variables, workers=1, scheduler=False)
        with ExitStack() as late:
            threading.Timer(1, lambda: late.enter_context(join())).start()
            with open_executor(address, 1, 1, 2**30, 60.0) as executor:
                (worker,) = executor.processes()
                told: list[str] = []
                executor.warn = told.append
                mine = {str(tmp_path / "scheduler.json"), "distributed.cli.dask_worker"}
                (process,) = (one for one in psutil.Process().children() if mine <= set(one.cmdline()))
                process.suspend()
                threading.Timer(5, process.resume).start()
                assert [result.value for result in executor.run(abs, [-1])] == [1]
            assert told == [f"no sign of life of worker {worker.address} for 2 s; end it, and others take its items"]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("file", "words", "told"),
    [
        ("pipeline/__init__.py", ('"1.0.0"', '"0.9.0"'), "slkl 0.9.0 with sources"),
        ("features/descriptors.py", ("", "\n"), "slkl 1.0.0 with sources"),
        ("pipeline/runtime/run_folder.py", ("version(name)", "its_version(name)"), "cannot import slkl"),
    ],
)
def test_a_worker_with_other_code_is_told(cluster_key, tmp_path, file, words, told):
    """One that is there from the start, and one that comes later, to be asked or to be sent items at once."""
    options, variables = cluster_key
    for package in ("pipeline", "features", "storage"):
        shutil.copytree(ROOT / package, tmp_path / "other" / package)
    changed = tmp_path / "other" / file
    changed.write_text(changed.read_text().replace(*words, 1))
    theirs = variables | {"PYTHONPATH": str(tmp_path / "other")}
    with (
        dask.config.set(key_settings(variables)),
        loopback_cluster(tmp_path, options, variables, workers=1) as address,
        open_executor(address, 1, 1, 2**30) as executor,
        loopback_cluster(tmp_path, options, theirs, workers=1, scheduler=False),
    ):
        wait_until(lambda: len(executor._client.nthreads()) == 2, 60)
        for question in (
            lambda: list(executor.run(time.sleep, 20 * [0.1])),
            lambda: executor.processes(),
            lambda: open_executor(address, 1, 1, 2**30).__enter__(),
        ):
            with pytest.raises(SchedulerError, match=told):
                question()


def stop_amid_a_solve(progress: Path) -> None:
    """Ask this process to stop as soon as a worker has told how far its solve is."""

    def told() -> bool:
        with suppress(FileNotFoundError):  # of a task that has just ended
            return any(" gap " in path.read_text() for path in progress.glob("*.json"))
        return False

    wait_until(told, 60)
    os.kill(os.getpid(), signal.SIGTERM)


LONG = (*ENDLESS_SOLVE, "--max-sweeps", "3000")


@pytest.mark.ci
def test_workers_save_on_request_and_leave_the_run_alone(cluster, features, tables, finished_run, tmp_path):
    """Sessions far shorter than --checkpoint-every get further, and what goes on from them ends in the same bytes."""
    run, data, steps = tmp_path / "run", tables / "classes.npz", []
    command = [str(data), "--run-dir", str(run), "--features-dir", str(features), *LONG, "--resume", "auto"]
    for _ in range(2):
        asking = threading.Thread(target=stop_amid_a_solve, args=(run / "progress",), daemon=True)
        asking.start()
        assert main([*command, "--scheduler", cluster, "--checkpoint-every", "1h"]) == 75
        asking.join()
        before = sizes_and_times(run)
        steps.append(max(len(load(path).facts["state"]["records"]) for path in run.glob("checkpoints/*.npz")))
        time.sleep(1)
        assert sizes_and_times(run) == before  # the workers live on
    assert steps[0] < steps[1]
    assert main([*command, *SERIAL]) == 3
    assert model_bytes(run) == model_bytes(finished_run(*LONG, dataset=data, code=3))
    assert not (run / "lease").exists()
