"""Least squares on all candidates, the default of tables: the same bytes from every executor; cut; against numpy."""

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.prediction.model_folder import load_model
from pipeline.resize import resize_run
from runs import model_bytes, train


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("least-squares")
    draw = np.random.default_rng(0)
    X = draw.normal(size=(700, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * draw.normal(size=700)
    np.savez(folder / "table.npz", X_train=X[:500], y_train=y[:500], X_test=X[500:], y_test=y[500:])
    return folder


def run(place: Path, name: str, *arguments: str) -> Path:
    train(place / name, place / "features", *arguments, dataset=place / "table.npz")
    return place / name


@pytest.mark.nightly
def test_the_bytes_are_the_same_and_the_run_can_be_cut(place: Path) -> None:
    serial = run(place, "serial", "--scheduler", "serial")
    threads = run(place, "threads", "--scheduler", "threads", "--workers", "2")
    assert model_bytes(serial) == model_bytes(threads)
    report = json.loads((serial / "report.json").read_text())
    assert (report["penalty"], report["solves"], report["penalised"], report["refit"]) == (None, [], None, "ridge")
    assert report["model_n_centers"] == report["n_centers"] == 500
    assert report["r2"] > 0.95
    resized = resize_run(serial, 60, place / "small")
    assert (resized.n_centers, resized.n_before) == (60, 500)
    assert load_model(place / "small").n_centers == 60


def test_it_is_ridge_regression_on_the_columns(place: Path) -> None:
    ours = run(
        place, "dense", "--centers", "80", "--sigma2", "2", "--penalty", "none", "--set", "kernel.precision=float64"
    )
    model, data = load_model(ours / "model"), np.load(place / "table.npz")
    ridge = json.loads((ours / "report.json").read_text())["hold_out"]["ridge"]
    K = model.expansion.columns(model.features_of(data["X_train"])).astype(np.float64)
    K_centred, y = K - K.mean(axis=0), data["y_train"] - data["y_train"].mean()
    expected = np.linalg.solve(K_centred.T @ K_centred + ridge * np.eye(80), K_centred.T @ y)
    predicted = K @ model.weights[:, 0] + model.intercept[0]
    np.testing.assert_allclose(predicted, K_centred @ expected + data["y_train"].mean(), atol=1e-3)
