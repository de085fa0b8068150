"""Workers that die, a scheduler that is lost, and kills at random moments of a run on real MNIST."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
# Loaded by every Python that starts: counts the items a worker begins, without a word of it in the product.
SPY = """\
import os, sys
if os.environ.get("SLKL_SPY"):
    from pipeline.stages import statistics
    real = statistics.accumulate_span
    def accumulate_span(task, span):
        with open(os.environ["SLKL_SPY"], "a") as stream:
            stream.write(f"{span.index}\\n")
        return real(task, span)
    accumulate_span.__module__ = real.__module__
    accumulate_span.__qualname__ = real.__qualname__
    statistics.accumulate_span = accumulate_span
"""


def digest(run: Path) -> str:
    return hashlib.sha256((run / "model" / "arrays.npz").read_bytes()).hexdigest()


def command(run: Path, features: Path, *arguments: str) -> list[str]:
    line = [sys.executable, "-m", "pipeline.train", "synthetic", "--set", "data.n_train=20000", "--set"]
    line += ["data.n_test=500", "--centers", "800", "--penalty", "10", "-q", "--resume", "auto"]
    return [*line, "--run-dir", str(run), "--features-dir", str(features), *arguments]


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("features")


@pytest.fixture(scope="module")
def whole(features: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    run = tmp_path_factory.mktemp("runs") / "whole"
    subprocess.run(command(run, features), cwd=ROOT, check=True)
    return digest(run)


def workers_of(driver: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the dask workers that a driver started: its children that are no resource tracker."""
    try:
        children = psutil.Process(driver.pid).children(recursive=True)
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    except psutil.Error:
        return []


@pytest.mark.slow
def test_workers_killed_in_a_loop_cost_no_finished_item(features: Path, whole: str, tmp_path: Path) -> None:
    run, spy = tmp_path / "run", tmp_path / "begun"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SPY)
    environment = {**os.environ, "SLKL_SPY": str(spy), "PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{ROOT}"}
    line = command(run, features, "--scheduler", "processes", "--workers", "2")
    driver = subprocess.Popen(line, cwd=ROOT, env=environment)
    kills = 0
    try:
        while driver.poll() is None and kills < 4:
            begun = spy.read_text().count("\n") if spy.exists() else 0
            # Not before each kill has let an item begin, or nothing would ever end.
            if begun > 2 * kills and (workers := workers_of(driver)):
                with_luck = random.Random(kills).choice(workers)
                with_luck.kill()
                kills += 1
                time.sleep(1)
            time.sleep(0.05)
        assert driver.wait(timeout=300) == 0
    finally:
        driver.kill()
    assert kills >= 2
    assert max(Counter(spy.read_text().split()).values()) <= 1 + kills
    assert spy.read_text().count("\n") <= len(set(spy.read_text().split())) + kills * 2
    assert digest(run) == whole


@pytest.mark.slow
def test_a_scheduler_that_dies_ends_the_run_in_time_and_resumably(features: Path, whole: str, tmp_path: Path) -> None:
    from distributed.utils import open_port

    port, run = open_port("127.0.0.1"), tmp_path / "run"
    address = f"tcp://127.0.0.1:{port}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": ROOT}
    base = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]
    scheduler = subprocess.Popen([*base, "--no-dashboard"], **quiet)  # type: ignore[call-overload]
    line = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard"]
    worker = subprocess.Popen([*line, "--host", "127.0.0.1", "--no-nanny"], **quiet)  # type: ignore[call-overload]
    driver = None
    try:
        driver = subprocess.Popen(
            command(run, features, "--scheduler", address), cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        markers = run / "markers" / "statistics"
        while not (markers.exists() and list(markers.iterdir())):
            assert driver.poll() is None, driver.stderr and driver.stderr.read()
            time.sleep(0.05)
        scheduler.kill()
        started = time.monotonic()
        error = driver.communicate(timeout=60)[1]
        assert driver.returncode == 69, error
        assert time.monotonic() - started < 60
        assert "--resume auto" in error
    finally:
        for process in (driver, worker, scheduler):
            if process is not None:
                process.kill()
                process.wait()
    subprocess.run(command(run, features, "--scheduler", "threads"), cwd=ROOT, check=True)
    assert digest(run) == whole


@pytest.mark.slow
def test_the_first_process_keeps_the_folder_until_it_dies(features: Path, whole: str, tmp_path: Path) -> None:
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
    assert digest(run) == whole


@pytest.mark.slow
def test_random_kills_on_mnist_end_with_the_same_bytes(data_dir: Path, tmp_path: Path) -> None:
    """SLKL_KILLS of them (default 6); a run that ends before its kill is started anew."""
    common = [sys.executable, "-m", "pipeline.train", "mnist", "--centers", "300", "--tol", "1e-6", "-q"]
    common += ["--data-dir", str(data_dir), "--features-dir", str(tmp_path / "features"), "--resume", "auto"]
    common += ["--checkpoint-every", "0.2s", "--run-dir"]
    subprocess.run([*common, str(tmp_path / "first")], cwd=ROOT, check=True)
    started = time.monotonic()
    subprocess.run([*common, str(tmp_path / "whole")], cwd=ROOT, check=True)
    seconds, expected = time.monotonic() - started, digest(tmp_path / "whole")
    moments, kills, ended = random.Random(7), 0, 0
    while kills < int(os.environ.get("SLKL_KILLS", "6")) or not ended:
        run = tmp_path / f"run-{ended}"
        process = subprocess.Popen([*common, str(run)], cwd=ROOT)
        timer = threading.Timer(moments.uniform(0.3, 1.2) * seconds, process.kill)
        timer.start()
        code = process.wait()
        timer.cancel()
        assert code in (0, -signal.SIGKILL)
        kills += code != 0
        if code == 0:
            assert digest(run) == expected
            ended += 1
    assert kills >= 6
