"""Penalty path, refit and least squares through the main command, against dense twins.

Regression on tables as they come: targets in any unit, penalties from the data, the certificate in their unit.
"""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.linear_model import Ridge

import runs
from cases import SERIAL
from pipeline.prediction.trained_model import load_model
from storage.arrays import load
from storage.folder_layouts import RunLayout

CENTERS = 60
COMMON = ("--centers", str(CENTERS), "--sigma2", "2", *SERIAL)
ORIGIN = ("--set", "solver.intercept=false")


def signs(y: np.ndarray) -> np.ndarray:
    return np.where(y[:, None] == np.arange(3), 1.0, -1.0)


def test_the_search_reports_objective_size_held_out_error_and_time(finished):
    run, report, _, rows = finished("--penalty", "auto", *ORIGIN)
    path = report["path"]
    best = min(path, key=lambda point: point["hold_out_error"])
    assert (path[0]["n_centers"], report["penalty"]) == (0, best["penalty"])
    assert all(a["objective"] > b["objective"] for a, b in itertools.pairwise(path))
    assert all(point["wall_seconds"] >= 0 and point["relative_gap"] <= 1e-3 for point in path)
    # The held-out error is that of the weights of the fit rows on the held-out rows.
    held = rows.held_out
    for number, point in enumerate(path):
        of_penalty = np.zeros((CENTERS, 3))
        for output in range(3):
            solution = load(RunLayout(run).solutions / f"fit-penalty-{number:02d}-output-{output:04d}.npz").arrays
            of_penalty[solution["active"], output] = solution["weights"]
        wrong = np.argmax(rows.K[held] @ of_penalty, 1) != rows.y[held]
        assert point["hold_out_error"] == pytest.approx(wrong.mean())
        penalised = 2 * np.sqrt(point["penalty"]) * np.abs(of_penalty).sum()
        objective = ((signs(rows.y[~held]) - rows.K[~held] @ of_penalty) ** 2).sum() + penalised
        assert point["objective"] == pytest.approx(objective, rel=1e-6)


@pytest.mark.parametrize("intercept", [False, True])
def test_refit_is_ridge_regression_on_the_selected_centers(finished, intercept):
    run, report, model, rows = finished("--penalty", "10", "--refit", "ridge", *(() if intercept else ORIGIN))
    places = {row: place for place, row in enumerate(load(RunLayout(run).candidates).arrays["index"])}
    selected = [places[row] for row in model.center_index]
    assert 0 < len(selected) < CENTERS
    ridge = report["hold_out"]["ridge"]
    twin = Ridge(alpha=ridge, fit_intercept=intercept, solver="svd").fit(rows.K[:, selected], signs(rows.y))
    truth = twin.predict(rows.K_test[:, selected])
    ours = rows.K_test[:, selected] @ model.weights + model.intercept
    assert np.allclose(ours, truth, atol=1e-5)
    assert report["n_errors"] == int((truth.argmax(1) != rows.y_test).sum())
    assert report["n_errors"] < report["penalised"]["n_errors"]
    assert bool(model.intercept.any()) == intercept


def test_least_squares_on_all_is_ridge_regression_on_the_columns(finished):
    _, report, model, rows = finished(table="values")
    assert (report["penalty"], report["solves"], report["penalised"], report["refit"]) == (None, [], None, "ridge")
    assert report["model_n_centers"] == report["n_centers"] == CENTERS
    assert report["r2"] > 0.95
    K, y = rows.K - rows.K.mean(axis=0), rows.y - rows.y.mean()
    expected = np.linalg.solve(K.T @ K + report["hold_out"]["ridge"] * np.eye(CENTERS), K.T @ y)
    predicted = rows.K_test @ model.weights[:, 0] + model.intercept[0]
    truth = (rows.K_test - rows.K.mean(axis=0)) @ expected + rows.y.mean()
    np.testing.assert_allclose(predicted, truth, atol=1e-3)


N_TRAIN = 700


def table(n: int = 900) -> tuple[np.ndarray, np.ndarray]:
    """Return skewed inputs, one of them with a far outlier, and a target of unit size."""
    rng = np.random.default_rng(0)
    X = np.exp(rng.normal(0, [0.5, 1.0, 0.3, 2.0], (n, 4)))
    X[7, 3] = 1e4
    y = np.tanh(X[:, 0] - 1) + 0.3 * np.sin(3 * X[:, 2]) + 0.1 * rng.normal(size=n)
    return X, (y - y.mean()) / y.std()


def train(root: Path, X: np.ndarray, y: np.ndarray, *arguments: str, name: str = "run") -> Any:
    parts = {"X_train": X[:N_TRAIN], "y_train": y[:N_TRAIN], "X_test": X[N_TRAIN:], "y_test": y[N_TRAIN:]}
    np.savez(root / f"{name}.npz", **parts)
    asked = ("--centers", "100", *SERIAL, *arguments)
    return runs.train(root / name, root / "features", *asked, dataset=root / f"{name}.npz")


@pytest.mark.parametrize("kernel", ["gaussian", "product-laplace"])
def test_the_certificate_is_in_the_unit_of_the_target_and_of_exact_columns(tmp_path, kernel):
    """Objective and gap, recomputed from the saved weights and columns that no float32 has rounded."""
    X, y = table()
    y = 2e5 + 1.15e5 * y
    report = train(tmp_path, X, y, "--tol", "1e-6", "--kernel", kernel)
    assert (report["precision"], report["kernel"]) == ("float64", kernel)
    model, X, y = load_model(tmp_path / "run" / "model"), X[:N_TRAIN], y[:N_TRAIN]
    found, rows = load(RunLayout(tmp_path / "run").candidates).arrays, model.features_of(X).astype(np.float64)
    sigma2 = runs.choice_of(tmp_path / "run")["sigma2"]
    assert sigma2 == pytest.approx(model.kernel.typical_sigma2(rows[found["index"]]), rel=1e-3)
    distance = {"gaussian": "sqeuclidean", "product-laplace": "cityblock"}[kernel]
    divisor = 2 * sigma2 if kernel == "gaussian" else np.sqrt(sigma2)
    K = np.exp(-cdist(rows, found["X"].astype(np.float64), distance) / divisor)
    active = cdist(model.centers, found["X"]).argmin(axis=1)
    weights, tau = model.weights[:, 0], np.sqrt(report["penalty"])
    residual = y - K[:, active] @ weights - model.intercept[0]
    assert abs(residual.mean()) < 1e-6 * residual.std()
    K -= K.mean(0)
    theta = residual * min(1.0, tau / np.abs(K.T @ residual).max())
    primal = 0.5 * (residual**2).sum() + tau * np.abs(weights).sum()
    gap = primal - theta @ (y - y.mean()) + 0.5 * theta @ theta
    assert report["solves"][0]["objective"] == pytest.approx(2 * primal, rel=1e-7)
    assert gap / primal <= max(report["solves"][0]["relative_gap"], 1e-10)
    assert report["penalty"] == pytest.approx(1e-7 * np.abs(K.T @ (y - y.mean())).max() ** 2, rel=1e-7)


def test_an_edge_is_warned_of(tmp_path, capsys):
    X, noise = table()[0], np.random.default_rng(6).normal(size=900)
    train(tmp_path, X, noise, "--penalty", "auto", "--sigma2", "0.01", "--centers", "200")
    assert "weights that are all zero" in capsys.readouterr().err
