"""What tests of whole runs share: the checkout, training here, a Python of its own, and what a run leaves behind."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
from sklearn.datasets import load_digits

from pipeline import train as training
from pipeline.runtime import run_folder
from storage.arrays import from_json, load
from storage.folder_layouts import RunLayout

ROOT = Path(__file__).resolve().parents[1]
# Whether this is a nightly run: tests break at every change, kill more often, and run the longest.
NIGHTLY = "SLKL_NIGHTLY" in os.environ
# The paper's plain schedule far below the default tolerance: one solve to look at or to stop, of seconds on the tables
# too, until its sweeps are at an end.
ENDLESS_SOLVE = ("--centers", "500", "--schedule", "uniform", "--tol", "1e-15", "-q")
ENDLESS_SOLVE += ("--penalty", "0.001", "--sigma2", "8", "--scheduler", "serial")


def train(
    run: Path, features: Path, *arguments: str, dataset: str | Path = "digits", quiet: bool = True, code: int = 0
) -> dict[str, Any]:
    """Train in this process; return the report, or nothing where it ends with a code that leaves none."""
    folders = ["--run-dir", str(run), "--features-dir", str(features)]
    assert training.main([str(dataset), *folders, *(["-q"] if quiet else []), *arguments]) == code
    return report_of(run) if code in (0, 3) and (run / "report.json").exists() else {}


@contextmanager
def keeping_statistics() -> Iterator[None]:
    """Runs that are finished inside have their statistics, as a kill just after the report leaves them."""
    with patch.object(run_folder, "remove_folder"):
        yield


class TrainedRuns:
    """Finished runs by their arguments and data, each trained once for all processes of a test run.

    Runs are to be read only, which is checked when one is asked for again.
    """

    def __init__(self, folder: Path, features: Path) -> None:
        self._folder, self._features = folder, features

    def __call__(
        self, *arguments: str, dataset: str | Path = "digits", code: int = 0, statistics: bool = False
    ) -> Path:
        """Return the folder of the run; `dataset` is a name, or a file that stays where it is.

        statistics : it has them, see `keeping_statistics`
        """
        key = hashlib.sha256(json.dumps([str(dataset), *arguments, code, statistics]).encode()).hexdigest()[:16]
        run, files = self._folder / key, self._folder / f"{key}.json"
        self._folder.mkdir(exist_ok=True)
        with (self._folder / f"{key}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if files.exists():
                assert json.loads(files.read_text()) == sizes_and_times(run), "a test has changed a shared run"
            else:
                shutil.rmtree(run, ignore_errors=True)
                with keeping_statistics() if statistics else nullcontext():
                    train(run, self._features, *arguments, dataset=dataset, code=code)
                aside = files.with_suffix(".new")
                aside.write_text(json.dumps(sizes_and_times(run)))
                aside.replace(files)
        return run


def sizes_and_times(folder: Path) -> dict[str, list[int]]:
    """Return the size and the time of change of every file below a folder, by its path in it."""
    files = ((path, path.stat()) for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): [status.st_size, status.st_mtime_ns] for path, status in files}


def write_tables(folder: Path) -> None:
    """Write classes.npz and values.npz, 900 rows with 4 features in [0, 1) and weights, and images.npz; once."""
    rng = np.random.default_rng(0)
    X = rng.random((900, 4))
    values = np.sin(6 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=900)
    targets = {"values": values, "classes": np.digitize(values, np.quantile(values, [1 / 3, 2 / 3]))}
    weights = rng.exponential(size=900)
    folder.mkdir(exist_ok=True)
    for name, y in targets.items():
        save_once(folder / f"{name}.npz", X=X, y=y, w=weights)
    images, labels = load_digits(return_X_y=True)
    save_once(folder / "images.npz", X=images[:300].reshape(-1, 8, 8).astype(np.uint8) * 15, y=labels[:300])


def save_once(path: Path, **arrays: np.ndarray) -> None:
    """Write an .npz unless it is there; one of all processes of a test run does."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            aside = path.with_name(f"{path.stem}-new.npz")
            np.savez(aside, **arrays)
            aside.replace(path)


def train_beside(place: Path, name: str, dataset: str | Path, *arguments: str, quiet: bool = True) -> Path:
    """Train in a folder whose runs share their features; return the folder of the run."""
    train(place / name, place / "features", *arguments, dataset=dataset, quiet=quiet)
    return place / name


def report_of(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "report.json").read_text(encoding="utf-8")))


def choice_of(run: Path) -> dict[str, Any]:
    """Return what a run has chosen: its kernel and width, and what it tried."""
    return dict(from_json(load(RunLayout(run).candidates).arrays["choice"]))


def python(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run this Python on some words, from the checkout and with its output caught unless options say otherwise."""
    options = {"cwd": ROOT, "capture_output": True, "text": True, "check": False} | options
    return subprocess.run([sys.executable, *map(str, words)], **options)


@contextmanager
def held_python(code: str, *words: str | Path) -> Iterator["subprocess.Popen[str]"]:
    """Run code in a Python of its own, which is killed at the end; it prints a line once it is where it shall be."""
    command = [sys.executable, "-c", code, *map(str, words)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(found: Callable[[], bool], seconds: float, told: Callable[[], str] = str) -> None:
    """Wait until something is there; fail after so many seconds, with what is then told."""
    until = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < until, told()
        time.sleep(0.1)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder, by its path in it."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def workers_of(driver: subprocess.Popen[Any]) -> list[psutil.Process]:
    """Return the dask workers that a driver started: its children that are no resource tracker."""
    try:
        children = psutil.Process(driver.pid).children(recursive=True)
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    except psutil.Error:
        return []


@contextmanager
def loopback_cluster(
    place: Path, options: list[str], variables: dict[str, str], workers: int = 2, *, scheduler: bool = True
) -> Iterator[str]:
    """Yield the address of a dask cluster on loopback, behind TLS: a scheduler, and so many workers of one thread.

    options : of dask's commands, which name the key; variables : of the workers
    scheduler : whether one is started; else workers join that of the place
    """
    file, quiet = place / "scheduler.json", subprocess.DEVNULL
    common = [*options, "--scheduler-file", str(file), "--protocol", "tls", "--host", "127.0.0.1", "--no-dashboard"]
    of_worker = [*common, "--nthreads", "1", "--no-nanny", "--local-directory", str(place)]
    lines = [["dask_scheduler", *common, "--port", "0"]] * scheduler + [["dask_worker", *of_worker]] * workers
    commands = [[sys.executable, "-m", f"distributed.cli.{program}", *words] for program, *words in lines]
    # The place is what Python looks into first.
    shared = {"cwd": place, "env": {"PYTHONPATH": str(ROOT)} | os.environ | variables, "stdout": quiet, "stderr": quiet}
    started = [subprocess.Popen(command, **shared) for command in commands]
    try:
        wait_until(lambda: file.exists() and file.stat().st_size > 0, 60)
        yield str(json.loads(file.read_text())["address"])
    finally:
        for process in reversed(started):
            process.kill()
            process.wait(20)


@contextmanager
def largest_bytes() -> Iterator[list[int]]:
    """Yield a list that then holds the most that was allocated inside at once, in bytes."""
    largest: list[int] = []
    tracemalloc.start()
    try:
        yield largest
        largest.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def model_bytes(run: Path) -> dict[str, bytes]:
    """Return the files of a run's model."""
    files = files_of(run / "model")
    assert "model.npz" in files, f"no model in {run}"
    return files
