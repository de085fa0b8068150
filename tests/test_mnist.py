"""The main job on real MNIST: error, gaps, memory, and an independent float64 solve."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runs import ROOT
from storage.atomic_writes import read_arrays
from storage.folder_layouts import RunLayout
from storage.zarr_arrays import open_arrays

PAPER = ("--config", str(ROOT / "jobs/paper/mnist.toml"))
pytestmark = [pytest.mark.nightly, pytest.mark.alone]


def train(run: Path, data_dir: Path, *arguments: str, dataset: str = "mnist") -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "pipeline.train",
        dataset,
        "-q",
        "--run-dir",
        str(run),
        "--data-dir",
        str(data_dir),
    ]
    subprocess.run([*command, "--features-dir", str(run.parent / "features"), *arguments], cwd=ROOT, check=True)
    return json.loads(RunLayout(run).report.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mnist")


@pytest.fixture(scope="module")
def report(folder: Path, data_dir: Path) -> dict[str, Any]:
    return train(folder / "paper", data_dir, *PAPER)


def test_error_gaps_and_memory_at_the_papers_setting(report: dict[str, Any]) -> None:
    assert report["n_features"] == 2172
    assert report["error_rate"] <= 0.022
    assert max(solve["relative_gap"] for solve in report["solves"]) <= 1e-3
    assert report["kernel_entries"] == 60_000 * 1000
    assert report["peak_rss_bytes"] <= 1.5 * 2**30


def test_the_defaults_halve_the_errors_of_the_paper(folder: Path, data_dir: Path, report: dict[str, Any]) -> None:
    ours = train(folder / "ours" / "defaults", data_dir)
    assert ours["error_rate"] <= report["error_rate"] / 2
    assert max(solve["relative_gap"] for solve in ours["solves"]) <= 1e-3


def test_processes_give_the_same_model_bytes(folder: Path, data_dir: Path, report: dict[str, Any]) -> None:
    train(folder / "processes", data_dir, *PAPER, "--scheduler", "processes", "--workers", "2")
    for name in ("model.json", "arrays.npz"):
        assert (folder / "processes/model" / name).read_bytes() == (folder / "paper/model" / name).read_bytes()


def active_set_lasso(gram: np.ndarray, kty: np.ndarray, tau: float) -> np.ndarray:
    """min ½wᵀGw - ktyᵀw + τ‖w‖₁ by the plainest active-set method: one violator in, first sign change out."""
    w = np.zeros(len(kty))
    while True:
        scores = kty - gram @ w
        outside = np.where(w == 0, np.abs(scores), 0.0)
        m = int(np.argmax(outside))
        if outside[m] <= tau * (1 + 1e-7):
            return w
        sign = np.sign(w)
        sign[m] = np.sign(scores[m])
        support = np.flatnonzero(sign)
        while len(support):
            goal = np.linalg.solve(gram[np.ix_(support, support)], kty[support] - tau * sign[support])
            change = goal - w[support]
            wrong = goal * sign[support] < 0
            if not wrong.any():
                w[support] = goal
                break
            lengths = np.where(wrong, -w[support] / change, np.inf)
            first = int(np.argmin(lengths))
            w[support] += lengths[first] * change
            w[support[first]] = sign[support[first]] = 0.0
            support = np.delete(support, first)


def test_objectives_agree_with_an_independent_float64_solve(folder: Path, report: dict[str, Any]) -> None:
    """Float64 features, columns and Gram, and another solver, on the same centers."""
    (store,) = (folder / "features").glob("*/arrays.zarr")
    arrays = open_arrays(store)
    X = arrays["train/X"].read(0, 60_000)
    labels = arrays["train/y"].read(0, 60_000)
    Z = X[read_arrays(RunLayout(folder / "paper").centers)["index"]].astype(np.float64)
    gram, kty = np.zeros((1000, 1000)), np.zeros((1000, 10))
    for start in range(0, 60_000, 4096):
        rows = X[start : start + 4096].astype(np.float64)
        squared = (rows**2).sum(1)[:, None] + (Z**2).sum(1) - 2 * rows @ Z.T
        K = np.exp(-np.maximum(squared, 0) / (2 * 4.0))
        gram += K.T @ K
        kty += K.T @ np.where(labels[start : start + 4096, None] == np.arange(10), 1.0, -1.0)
    for digit in (0, 8):
        w = active_set_lasso(gram, kty[:, digit], np.sqrt(0.01))
        objective = 60_000 - 2 * w @ kty[:, digit] + w @ gram @ w + 2 * np.sqrt(0.01) * np.abs(w).sum()
        assert abs(report["solves"][digit]["objective"] / objective - 1) <= 1e-3


def test_memory_does_not_grow_with_the_rows(folder: Path, data_dir: Path) -> None:
    """`synthetic`: five times the rows, the same memory within 10 %."""
    peaks = []
    for n_train in (60_000, 300_000):
        size = ("--set", f"data.n_train={n_train}", "--set", "data.n_test=5000", "--centers", "500")
        peaks.append(train(folder / f"synthetic-{n_train}", data_dir, *size, dataset="synthetic")["peak_rss_bytes"])
    assert peaks[1] <= 1.1 * peaks[0]
