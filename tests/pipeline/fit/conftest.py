"""Runs of a test file on one table, and the rows that a run was trained and tested on, for dense twins."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from features.row_draws import draw_held_out, held_out_limit
from pipeline.prediction.trained_model import load_model
from runs import TrainedRuns, choice_of, report_of, train
from storage.arrays import load
from storage.files import read_record
from storage.folder_layouts import FeatureLayout, RunLayout
from storage.zarr_arrays import open_arrays


class Rows(NamedTuple):
    """Of both parts features, targets, weights (or None), kernel columns of a Gaussian; who is held out by seed 0."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    w: Any
    w_test: Any
    K: np.ndarray
    K_test: np.ndarray
    held_out: np.ndarray


@pytest.fixture
def rows_of(features: Path) -> Callable[[Path], Rows]:
    """Return what a run in the shared folder of features was trained and tested on."""

    def read(run: Path) -> Rows:
        digest = read_record(RunLayout(run).environment)["features"]
        arrays = open_arrays(FeatureLayout(features, digest).arrays)
        names = ("train/X", "train/y", "test/X", "test/y")
        X, y, X_test, y_test = (arrays[name][:] for name in names)
        weights = (arrays[name][:] if name in arrays else None for name in ("train/weights", "test/weights"))
        centers = load(RunLayout(run).candidates).arrays
        kernel = load_model(run / "model").kernel(centers["X"], choice_of(run)["sigma2"])
        K, K_test = (kernel.block(part, out_dtype=np.float64) for part in (X, X_test))
        keys = arrays["train/keys"][:]
        return Rows(X, y, X_test, y_test, *weights, K, K_test, draw_held_out(0, held_out_limit(0, 0.1, [keys]), keys))

    return read


@pytest.fixture
def finished(
    request: pytest.FixtureRequest, finished_run: TrainedRuns, tables: Path, rows_of: Callable[[Path], Rows]
) -> Callable[..., tuple[Path, dict[str, Any], Any, Rows]]:
    """Return a run on a table, as `COMMON` of the test file asks, with its report, its model and its rows."""

    def trained(*arguments: str, table: str = "classes") -> tuple[Path, dict[str, Any], Any, Rows]:
        run = finished_run(*request.module.COMMON, *arguments, dataset=tables / f"{table}.npz")
        return run, report_of(run), load_model(run / "model"), rows_of(run)

    return trained


@pytest.fixture
def train_classes(
    request: pytest.FixtureRequest, tables: Path, features: Path, tmp_path: Path
) -> Callable[..., dict[str, Any]]:
    """Train on the table of classes at `tmp_path / name`, as `COMMON` of the test file asks; return the report."""

    def train_at(name: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        asked = (*request.module.COMMON, *arguments)
        return train(tmp_path / name, features, *asked, dataset=tables / "classes.npz", code=code)

    return train_at
