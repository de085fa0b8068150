"""Workers that die, a scheduler that is lost, and kills at random moments of a run on real MNIST."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from pipeline.runtime.executors import open_executor
from runs import ROOT, model_bytes, workers_of

pytestmark = pytest.mark.alone


def command(run: Path, features: Path, *arguments: str) -> list[str]:
    line = [sys.executable, "-m", "pipeline.train", "synthetic", "--set", "data.n_train=20000", "--set"]
    line += ["data.n_test=500", "--centers", "800", "--penalty", "10", "-q", "--resume", "auto"]
    line += ["--checkpoint-every", "0.2s"]
    return [*line, "--run-dir", str(run), "--features-dir", str(features), *arguments]


@pytest.fixture(scope="module")
def whole(features: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    run = tmp_path_factory.mktemp("runs") / "whole"
    subprocess.run(command(run, features), cwd=ROOT, check=True)
    return model_bytes(run)


def die_once(folder: Path, number: int) -> int:
    """Kill the process that is the first to run this item."""
    with suppress(FileExistsError):
        (folder / f"died-{number}").mkdir()
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


@pytest.mark.nightly
@pytest.mark.parametrize("processes", [1, 2])
def test_an_item_of_a_process_that_died_runs_in_the_one_that_takes_its_place(tmp_path: Path, processes: int) -> None:
    """Also where all of them died at once, and nobody was there to take it."""
    with open_executor("processes", processes, processes, 2**30) as executor:
        places = executor.places()
        items = range(processes)
        found = list(executor.run(partial(die_once, tmp_path), items, address_of=lambda item: places[item].address))
    assert sorted(result.item for result in found) == [*items]
    assert len(list(tmp_path.iterdir())) == processes


def committed(run: Path) -> int:
    """Return how many times a process has committed sums, as far as files that are there now tell."""
    return sum(path.stat().st_mtime_ns for path in run.glob("passes/*/sums-*.npz"))


@pytest.mark.nightly
def test_workers_killed_in_a_loop_cost_no_byte(features: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    """What each kill costs is in test_killed_passes.py."""
    run = tmp_path / "run"
    driver = subprocess.Popen(command(run, features, "--scheduler", "processes", "--workers", "2"), cwd=ROOT)
    kills, before = 0, 0
    try:
        while driver.poll() is None and kills < 4:
            # Not before each kill has let a process commit something, or nothing would ever end.
            with suppress(FileNotFoundError):
                if (now := committed(run)) not in (0, before) and (workers := workers_of(driver)):
                    random.Random(kills).choice(workers).kill()
                    kills, before = kills + 1, now
                    time.sleep(1)
            time.sleep(0.05)
        assert driver.wait(timeout=300) == 0
    finally:
        driver.kill()
        driver.wait()
    assert kills >= 2
    assert model_bytes(run) == whole


@pytest.mark.nightly
def test_a_scheduler_that_dies_ends_the_run_in_time_and_resumably(
    features: Path, whole: dict[str, bytes], tmp_path: Path, cluster_key: tuple[list[str], dict[str, str]]
) -> None:
    from distributed.utils import open_port

    port, run = open_port("127.0.0.1"), tmp_path / "run"
    address, (key, variables) = f"tls://127.0.0.1:{port}", cluster_key
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": ROOT}
    base = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--protocol", "tls", "--port", str(port)]
    common = [*key, "--host", "127.0.0.1", "--no-dashboard"]
    scheduler = subprocess.Popen([*base, *common], **quiet)  # type: ignore[call-overload]
    line = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny"]
    worker = subprocess.Popen([*line, *common], **quiet)  # type: ignore[call-overload]
    driver = None
    try:
        driver = subprocess.Popen(
            command(run, features, "--scheduler", address),
            cwd=ROOT,
            env=os.environ | variables,
            stderr=subprocess.PIPE,
            text=True,
        )
        while not list(run.glob("passes/statistics/sums-*.npz")):
            assert driver.poll() is None, driver.stderr and driver.stderr.read()
            time.sleep(0.05)
        scheduler.kill()
        started = time.monotonic()
        error = driver.communicate(timeout=60)[1]
        assert driver.returncode == 69, error
        assert time.monotonic() - started < 60
        (line_of_error,) = error.splitlines()
        assert line_of_error.startswith("error: the dask scheduler was lost")
        assert "--resume auto" in line_of_error
    finally:
        for process in (driver, worker, scheduler):
            if process is not None:
                process.kill()
                process.wait()
    subprocess.run(command(run, features, "--scheduler", "threads"), cwd=ROOT, check=True)
    assert model_bytes(run) == whole


@pytest.mark.nightly
def test_the_first_process_keeps_the_folder_until_it_dies(
    features: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    first = subprocess.Popen(command(run, features), cwd=ROOT)
    try:
        while not (run / "STATE.json").exists():
            assert first.poll() is None
            time.sleep(0.02)
        second = subprocess.run(command(run, features), cwd=ROOT, capture_output=True, text=True, check=False)
        assert second.returncode == 73
        assert f"process {first.pid} on {os.uname().nodename}" in second.stderr
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    subprocess.run(command(run, features), cwd=ROOT, check=True)
    assert model_bytes(run) == whole


@pytest.mark.nightly
def test_random_kills_on_mnist_end_with_the_same_bytes(data_dir: Path, tmp_path: Path) -> None:
    """SLKL_KILLS of them (default 6); a run that ends before its kill is started anew."""
    common = [sys.executable, "-m", "pipeline.train", "mnist", "--centers", "300", "--tol", "1e-6", "-q"]
    common += ["--data-dir", str(data_dir), "--features-dir", str(tmp_path / "features"), "--resume", "auto"]
    common += ["--checkpoint-every", "0.2s", "--run-dir"]
    subprocess.run([*common, str(tmp_path / "first")], cwd=ROOT, check=True)
    started = time.monotonic()
    subprocess.run([*common, str(tmp_path / "whole")], cwd=ROOT, check=True)
    seconds, expected = time.monotonic() - started, model_bytes(tmp_path / "whole")
    moments, kills, ended = random.Random(7), 0, 0
    while kills < int(os.environ.get("SLKL_KILLS", "6")) or not ended:
        run, started = tmp_path / f"run-{ended}", time.monotonic()
        process = subprocess.Popen([*common, str(run)], cwd=ROOT)
        timer = threading.Timer(moments.uniform(0.3, 1.2) * seconds, process.kill)
        timer.start()
        code = process.wait()
        timer.cancel()
        assert code in (0, -signal.SIGKILL)
        kills += code != 0
        if code == 0:
            assert model_bytes(run) == expected
            ended += 1
            seconds = min(seconds, time.monotonic() - started)  # the first one may have met a busy machine
    assert kills >= 6
