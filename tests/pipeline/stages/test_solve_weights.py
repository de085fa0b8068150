"""Penalty path, hold-out choice, refit, shared kernel and intercept through the main command, against dense twins."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge

import runs
from pipeline.kernels.column_generator import ColumnGenerator
from pipeline.kernels.gram_statistics import draw_held_out
from pipeline.prediction.model_folder import load_model
from storage.atomic_writes import read_arrays
from storage.folder_layouts import RunLayout
from storage.zarr_arrays import open_arrays

CENTERS = 80


def train(run: Path, features: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    return runs.train(run, features, "--centers", str(CENTERS), *arguments, code=code)


class Dense:
    """Columns and targets of a run, computed at once."""

    def __init__(self, run: Path, features: Path) -> None:
        (store,) = features.glob("*/arrays.zarr")
        arrays = open_arrays(store)
        centers = read_arrays(RunLayout(run).centers)["X"]
        generator = ColumnGenerator(centers, 2.0)
        self.n_train = arrays["train/y"].n_rows
        self.labels = arrays["train/y"].read(0, self.n_train)
        self.test_labels = arrays["test/y"].read(0, arrays["test/y"].n_rows)
        self.K = generator.block(arrays["train/X"].read(0, self.n_train), out_dtype=np.float64)
        self.K_test = generator.block(arrays["test/X"].read(0, len(self.test_labels)), out_dtype=np.float64)
        self.Y = np.where(self.labels[:, None] == np.arange(10), 1.0, -1.0)
        self.held = draw_held_out(0, 0.1, 0, self.n_train)


def test_the_path_reports_objective_size_held_out_error_and_time(features: Path, tmp_path: Path) -> None:
    report = train(tmp_path / "run", features, "--penalty", "path:max:0.1:6")
    path = report["path"]
    assert [point["penalty"] for point in path] == sorted((point["penalty"] for point in path), reverse=True)
    assert (path[0]["n_centers"], path[-1]["penalty"], report["penalty"]) == (0, 0.1, 0.1)
    assert all(a["objective"] > b["objective"] for a, b in itertools.pairwise(path))
    assert all(point["wall_seconds"] >= 0 and point["relative_gap"] <= 1e-3 for point in path)
    # The held-out error is that of the weights of the fit rows on the held-out rows.
    dense = Dense(tmp_path / "run", features)
    weights = np.zeros((6, CENTERS, 10))
    for digit in range(10):
        solution = read_arrays(RunLayout(tmp_path / "run").solution(f"fit-output-{digit:04d}.npz"))
        weights[:, solution["active"], digit] = solution["weights"][:, :, 0]
    for point, of_penalty in zip(path, weights, strict=True):
        wrong = np.argmax(dense.K[dense.held] @ of_penalty, 1) != dense.labels[dense.held]
        assert point["hold_out_error"] == pytest.approx(wrong.mean())
        fit, penalised = ~dense.held, 2 * np.sqrt(point["penalty"]) * np.abs(of_penalty).sum()
        objective = ((dense.Y[fit] - dense.K[fit] @ of_penalty) ** 2).sum() + penalised
        assert point["objective"] == pytest.approx(objective, rel=1e-6)


@pytest.mark.nightly
def test_auto_takes_the_penalty_of_the_lowest_held_out_error(features: Path, tmp_path: Path) -> None:
    report = train(tmp_path / "run", features, "--penalty", "auto")
    lowest = min(point["hold_out_error"] for point in report["path"])
    chosen = [point for point in report["path"] if point["penalty"] == report["penalty"]]
    assert [point["hold_out_error"] for point in chosen] == [lowest]
    assert report["hold_out"]["error"] == lowest
    assert report["hold_out"]["n_rows"] == int(draw_held_out(0, 0.1, 0, report["n_train"]).sum())


@pytest.mark.parametrize("intercept", [False, True])
def test_refit_is_ridge_regression_on_the_selected_centers(features: Path, tmp_path: Path, intercept: bool) -> None:
    arguments = ["--penalty", "10", "--refit", "ridge", *(["--intercept"] if intercept else [])]
    report = train(tmp_path / "run", features, *arguments)
    model, dense = load_model(tmp_path / "run" / "model"), Dense(tmp_path / "run", features)
    rows = {row: place for place, row in enumerate(read_arrays(RunLayout(tmp_path / "run").centers)["index"])}
    selected = [rows[row] for row in model.center_index]
    assert 0 < len(selected) < CENTERS
    ridge = report["hold_out"]["ridge"]
    twin = Ridge(alpha=ridge, fit_intercept=intercept, solver="svd").fit(dense.K[:, selected], dense.Y)
    truth = twin.predict(dense.K_test[:, selected])
    ours = dense.K_test[:, selected] @ model.weights + model.intercept
    assert np.allclose(ours, truth, atol=1e-5)
    assert report["n_errors"] == int((truth.argmax(1) != dense.test_labels).sum())
    assert report["n_errors"] < report["penalised"]["n_errors"]
    assert bool(model.intercept.any()) == intercept


def test_an_intercept_solves_the_problem_of_centred_columns(features: Path, tmp_path: Path) -> None:
    report = train(tmp_path / "run", features, "--penalty", "1", "--intercept", "--tol", "1e-8")
    dense, final = Dense(tmp_path / "run", features), read_arrays(RunLayout(tmp_path / "run").solution("final.npz"))
    K = dense.K[:, final["active"]]
    residual = dense.Y - K @ final["weights"] - final["intercept"]
    assert np.allclose(residual.sum(0), 0, atol=1e-4)  # the optimal intercept leaves no mean
    objective = (residual**2).sum(0) + 2 * np.abs(final["weights"]).sum(0)
    assert np.allclose(objective, [solve["objective"] for solve in report["solves"]], rtol=1e-7)
    scores = np.abs((dense.K - dense.K.mean(0)).T @ residual)
    assert scores.max() <= 1 + 1e-4  # optimality over all candidates: |c_mᵀr| ≤ τ = 1


def test_one_kernel_for_all_classes_is_the_group_lasso(features: Path, tmp_path: Path) -> None:
    report = train(tmp_path / "run", features, "--penalty", "30", "--coupling", "shared", "--tol", "1e-7")
    (solve,) = report["solves"]
    assert solve["outputs"] == list(range(10))
    assert report["model_n_centers"] == solve["n_active"] < CENTERS
    dense, final = Dense(tmp_path / "run", features), read_arrays(RunLayout(tmp_path / "run").solution("final.npz"))
    residual = dense.Y - dense.K[:, final["active"]] @ final["weights"]
    tau = np.sqrt(30.0)
    objective = (residual**2).sum() + 2 * tau * np.linalg.norm(final["weights"], axis=1).sum()
    assert solve["objective"] == pytest.approx(objective, rel=1e-7)
    norms = np.linalg.norm(dense.K.T @ residual, axis=1)
    assert norms.max() <= tau * (1 + 1e-3)
    assert np.allclose(norms[final["active"]], tau, rtol=1e-2)


def test_the_papers_rule_stops_before_the_gap_and_says_so(features: Path, tmp_path: Path) -> None:
    arguments = ("--schedule", "uniform", "--step", "newton", "--set", "solver.stop=paper", "--tol", "1e-9")
    report = train(tmp_path / "run", features, *arguments)
    assert max(solve["relative_gap"] for solve in report["solves"]) > 1e-9
    assert all("epsilon" in solve["status"] for solve in report["solves"])
