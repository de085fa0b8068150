"""Penalty path, refit and least squares through the main command, against dense twins."""

import itertools

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from cases import SERIAL
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
