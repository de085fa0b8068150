"""The memory limit is a promise: kept by the whole process tree, and what breaks it ends with 71 and advice."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from features.open_source import open_source
from features.source import SourceSpec
from pipeline.train import main
from runs import ROOT, python, report_of
from sources import write_npy

HUNGRY = """\
import os
if os.environ.get("SLKL_HUNGRY"):
    from pipeline.runtime import row_pass
    real = row_pass.compute_assignment
    def hungry(task, assignment):
        bytearray(os.urandom(2**20)) * 4000
        return real(task, assignment)
    row_pass.compute_assignment = hungry
"""


def trained(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return python("-m", "pipeline.train", *words, "-q", **options)


def largest_tree_bytes(command: list[str], environment: dict[str, str]) -> int:
    """Run a training; return the largest proportional memory of its processes, looked at all the time."""
    largest = 0
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        while process.poll() is None:
            with suppress(psutil.Error):
                tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
                largest = max(largest, sum(one.memory_full_info().pss for one in tree))
            time.sleep(0.1)
    assert process.returncode in (0, 3)
    return largest


@pytest.mark.ci
@pytest.mark.alone
def test_a_worker_over_its_memory_ends_the_run_with_advice(tmp_path, tables, features):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(HUNGRY)
    line = [tables / "values.npz", "--centers", "40", "--scheduler", "processes", "--workers", "1", "--memory-limit"]
    line += ["1GiB", "--run-dir", tmp_path / "run", "--features-dir", features]
    path = f"{tmp_path / 'site'}{os.pathsep}{ROOT}"
    done = trained(*line, env={**os.environ, "SLKL_HUNGRY": "1", "PYTHONPATH": path}, timeout=300)
    assert done.returncode == 71, done.stderr
    assert "memory" in done.stderr
    assert "--memory-limit" in done.stderr
    assert main([*map(str, line[:3]), *map(str, line[7:]), "--scheduler", "serial", "--resume", "auto", "-q"]) == 0


def write_long(path: Path) -> None:
    """A table of 230 MiB."""
    X = np.random.default_rng(0).normal(size=(120_000, 250))
    write_npy(path, X=X, y=np.sin(X[:, 0]))


def write_images(path: Path, n_train: int, n_test: int) -> None:
    """Write deformed copies of scikit-learn's digits, which are then read by rows."""
    source, arrays = open_source(SourceSpec("digits", copies=7)), dict[str, np.ndarray]()
    for part, n in (("train", n_train), ("test", n_test)):
        arrays[f"X_{part}"], arrays[f"y_{part}"] = source.parts[part].X[:n], source.parts[part].y[:n]
    write_npy(path, **arrays)


def write_wide(path: Path) -> None:
    """A table of 3000 columns."""
    cells = np.random.default_rng(0).normal(size=(10_000, 3000))
    cells[:, -1] = cells[:, 0] + cells[:, 1] ** 2
    np.savetxt(path, cells, "%.6g", ",", header=",".join(f"a{k}" for k in range(3000)), comments="")


WRITTEN: dict[str, Callable[[Path], object]] = {
    "images": lambda path: write_images(path, 9000, 300),
    "fewer": lambda path: write_images(path, 3000, 100),
    "long": write_long,
    "wide.csv": write_wide,
}
# What is trained, the limit of its memory in MiB, and variables.
FORECASTS: dict[str, tuple[list[str], int | None, dict[str, str]]] = {
    "digits": (["digits", "--copies", "10", "--features-dir", "none"], None, {}),
    "abalone": (["abalone"], None, {}),
    "ordinary": (["images", "--centers", "1500", "--scheduler", "threads"], 900, {}),
    "greedy": (["images", "--centers", "3000", "--select", "greedy:500"], None, {}),
    "processes": (["images", "--centers", "600", "--scheduler", "processes"], 1600, {}),
    "in rounds": (["images", "--centers", "all", "--penalty", "30"], 390, {}),
    "few rows in rounds": (["fewer", "--features", "raw", "--centers", "all", "--penalty", "30"], 395, {}),
    "nothing is compiled yet": (["abalone"], None, {"NUMBA_CACHE_DIR": "fresh"}),
    "learned scales": (["images", "--centers", "300", "--scale", "learned"], None, {}),
    "tried widths": (["abalone", "--centers", "2000", "--sigma2", "auto"], None, {}),
    "least squares": (["abalone", "--centers", "3000", "--sigma2", "8", "--penalty", "none"], None, {}),
    "long": (["long", "--centers", "100"], None, {}),
    "wide": (["wide.csv"], 700, {}),
}
CI = ("digits", "few rows in rounds", "long")


@pytest.mark.alone
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.ci if case in CI else pytest.mark.nightly) for case in FORECASTS]
)
def test_the_forecast_is_true_within_a_third_and_the_limit_is_kept(tmp_path, case):
    """Peak of the process tree, as the run itself samples it, against the largest stage of `--dry-run`."""
    arguments, limit_mib, variables = FORECASTS[case]
    if arguments[0] == "abalone" and not os.environ.get("SLKL_DATA_DIR"):
        pytest.skip("needs abalone: set SLKL_DATA_DIR")
    if arguments[0] in WRITTEN:
        WRITTEN[arguments[0]](tmp_path / arguments[0])
        arguments = [str(tmp_path / arguments[0]), *arguments[1:]]
    line = [*arguments, "--workers", "2", "--features-dir", str(tmp_path / "f")]
    if case != "long" and not variables:  # compiled before
        assert trained(*line, "--run-dir", tmp_path / "first").returncode in (0, 3)
    line += [] if limit_mib is None else ["--memory-limit", f"{limit_mib}MiB"]
    environment = os.environ | {name: str(tmp_path / value) for name, value in variables.items()}
    lines = trained(*line, "--dry-run", env=environment, check=True).stdout.splitlines()
    first = next(number for number, text in enumerate(lines) if text.startswith("stage ")) + 1
    forecast, peak = max(stage_bytes(row) for row in lines[first:-2]), 0  # the limit and the time follow
    for attempt in range(3):  # samples miss a moment of some runs, and a machine may take pages of idle code away
        run = tmp_path / f"run-{attempt}"
        command = [sys.executable, "-m", "pipeline.train", *line, "-q", "--run-dir", str(run)]
        seen = largest_tree_bytes(command, environment)
        assert 100 * 2**20 < seen < (limit_mib or 2**20) * 2**20
        peak = max(peak, report_of(run)["peak_rss_bytes"])
        if forecast <= largest_forecast(peak):
            break
    print(f"{case}: {forecast / 2**20:.0f} MiB planned, {peak / 2**20:.0f} MiB at most")
    assert peak <= forecast <= largest_forecast(peak), (forecast / 2**20, peak / 2**20)
    assert (report_of(run)["rounds"] is not None) == ("rounds" in case)


def largest_forecast(peak: float) -> float:
    """A third more, and what interpreter and libraries differ by between machines and data (72 MiB were seen)."""
    return 1.37 * peak + 64 * 2**20


def stage_bytes(row: str) -> float:
    """The memory of one stage in the table of `--dry-run`."""
    found = re.match(r"\w+ +([\d.]+) ([MG]iB)", row)
    assert found, row
    return float(found[1]) * {"MiB": 2**20, "GiB": 2**30}[found[2]]
