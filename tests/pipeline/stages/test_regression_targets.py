"""Regression on tables as they come: targets in any unit, defaults from the data, the certificate in their unit."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.estimators.slkl import SLKLRegressor
from pipeline.kernels.column_generator import ColumnGenerator
from pipeline.kernels.gram_statistics import draw_held_out
from pipeline.prediction.model_folder import load_model
from pipeline.solvers.regularization_path import ALL_POINTS, STEP
from pipeline.train import main
from storage.atomic_writes import read_arrays, remove_folder
from storage.folder_layouts import RunLayout
from storage.records import read_record, write_record

N_TRAIN = 700


def table(n: int = 900) -> tuple[np.ndarray, np.ndarray]:
    """Return skewed inputs, one of them with a far outlier, and a target of unit size."""
    rng = np.random.default_rng(0)
    X = np.exp(rng.normal(0, [0.5, 1.0, 0.3, 2.0], (n, 4)))
    X[7, 3] = 1e4
    y = np.tanh(X[:, 0] - 1) + 0.3 * np.sin(3 * X[:, 2]) + 0.1 * rng.normal(size=n)
    return X, (y - y.mean()) / y.std()


def command(root: Path, X: np.ndarray, y: np.ndarray, name: str, *arguments: str) -> list[str]:
    parts = {"X_train": X[:N_TRAIN], "y_train": y[:N_TRAIN], "X_test": X[N_TRAIN:], "y_test": y[N_TRAIN:]}
    np.savez(root / f"{name}.npz", **parts)
    line = [str(root / f"{name}.npz"), "--run-dir", str(root / name), "--features-dir", str(root / "features"), "-q"]
    return [*line, "--centers", "100", "--scheduler", "serial", *arguments]


def train(root: Path, X: np.ndarray, y: np.ndarray, *arguments: str, name: str = "run") -> Any:
    assert main(command(root, X, y, name, *arguments)) == 0
    return json.loads((root / name / "report.json").read_text())


def columns(layout: RunLayout, X: np.ndarray, which: Any = slice(None)) -> np.ndarray:
    """Return the kernel columns of the candidates of a run on rows of a table."""
    found = read_arrays(layout.centers)
    generator = ColumnGenerator(found["X"][which], found["sigma2"][0])
    return np.asarray(generator.block(load_model(layout.model).features_of(X), out_dtype=np.float64))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--penalty", "max:1e-3"],
        pytest.param(["--refit", "ridge"], marks=pytest.mark.ci),
        pytest.param(["--select", "greedy:40"], marks=pytest.mark.ci),
        pytest.param(["--penalty", "auto"], marks=pytest.mark.ci),
    ],
)
@pytest.mark.parametrize(("scale", "mean"), [(1.15e5, 2e5), pytest.param(1e-9, 0.0, marks=pytest.mark.nightly)])
def test_the_unit_of_the_target_changes_nothing_else(
    tmp_path: Path, scale: float, mean: float, arguments: list[str]
) -> None:
    X, y = table()
    plain, other = train(tmp_path, X, y, *arguments), train(tmp_path, X, mean + scale * y, *arguments, name="other")
    assert other["model_n_centers"] == plain["model_n_centers"] > 0
    assert other["mse"] == pytest.approx(scale**2 * plain["mse"], rel=1e-3)
    models = [load_model(tmp_path / name / "model") for name in ("run", "other")]
    predicted = [model.predict_targets(model.features_of(X[N_TRAIN:])) for model in models]
    np.testing.assert_allclose((predicted[1] - mean) / scale, predicted[0], atol=1e-3)
    for one, two in zip(plain["solves"], other["solves"], strict=True):
        assert two["objective"] == pytest.approx(scale**2 * one["objective"], rel=1e-4)
        assert two["relative_gap"] <= 1e-3
    for one, two in zip(plain["path"] or [], other["path"] or [], strict=True):
        assert two["hold_out_error"] == pytest.approx(scale**2 * one["hold_out_error"], rel=1e-2)


@pytest.mark.ci
def test_a_large_mean_costs_no_digits(tmp_path: Path) -> None:
    X, y = table()
    plain, other = train(tmp_path, X, y), train(tmp_path, X, 1e9 + y, name="other")
    assert other["mse"] == pytest.approx(plain["mse"], rel=1e-3)
    machine = SLKLRegressor(100, random_state=0).fit(X[:N_TRAIN], 1e9 + y[:N_TRAIN])
    again = SLKLRegressor(100, random_state=0).fit(X[:N_TRAIN], y[:N_TRAIN])
    np.testing.assert_allclose(machine.predict(X) - 1e9, again.predict(X), atol=1e-3)


def test_the_certificate_is_in_the_unit_of_the_target(tmp_path: Path) -> None:
    """Objective and optimality, recomputed from the saved model and the rows alone."""
    X, y = table()
    y = 2e5 + 1.15e5 * y
    report = train(tmp_path, X, y, "--tol", "1e-6")
    model, X, y = load_model(tmp_path / "run" / "model"), X[:N_TRAIN], y[:N_TRAIN]
    residual = y - model.expansion.columns(model.features_of(X)) @ model.weights[:, 0] - model.intercept[0]
    tau = np.sqrt(report["penalty"])
    objective = (residual**2).sum() + 2 * tau * np.abs(model.weights).sum()
    assert report["solves"][0]["objective"] == pytest.approx(objective, rel=1e-4)
    assert abs(residual.mean()) < 1e-3 * residual.std()
    K = columns(RunLayout(tmp_path / "run"), X)
    K -= K.mean(0)
    assert np.abs(K.T @ residual).max() <= tau * 1.01
    assert report["penalty"] == pytest.approx(1e-7 * np.abs(K.T @ (y - y.mean())).max() ** 2, rel=1e-4)


def test_command_and_estimator_have_the_same_defaults(tmp_path: Path) -> None:
    X, y = table()
    y = 2e5 + 1.15e5 * y
    report = train(tmp_path, X, y)
    machine = SLKLRegressor(100, random_state=0).fit(X[:N_TRAIN].astype(np.float32), y[:N_TRAIN])
    model = load_model(tmp_path / "run" / "model")
    assert machine.sigma2_ == pytest.approx(report["sigma2"][0], rel=1e-3)
    assert machine.penalty_ is report["penalty"] is None
    assert report["intercept"]
    predicted = model.predict_targets(model.features_of(X[N_TRAIN:]))
    np.testing.assert_allclose(machine.predict(X[N_TRAIN:].astype(np.float32)), predicted, rtol=0.02)


def test_a_run_from_before_targets_were_centred_goes_on_uncentred(tmp_path: Path) -> None:
    """Resumed with a frozen configuration that lacks the settings of today, it ends where it would have ended."""
    X, y = table()
    y = 2e5 + 1.15e5 * y
    line = command(tmp_path, X, y, "run", "--intercept", "--penalty", "1e8", "--sigma2", "2")
    assert main([*line, "--set", "data.centre_targets=false"]) == 0
    run, layout = tmp_path / "run", RunLayout(tmp_path / "run")
    model, config = (run / "model" / "arrays.npz").read_bytes(), layout.config.read_text()
    old = "\n".join(row for row in config.splitlines() if "centre_targets" not in row and "patience" not in row)
    assert len(old) < len(config) - 30
    layout.config.write_text(old)
    digest = {"config": hashlib.sha256(old.encode()).hexdigest()}
    write_record(layout.environment, read_record(layout.environment) | digest)
    for folder in (layout.model, layout.centers, layout.statistics, layout.solutions, run / "markers"):
        remove_folder(folder, durable=False)
    layout.report.unlink()
    assert main([*line[:6], "--resume", "auto"]) == 0
    assert (run / "model" / "arrays.npz").read_bytes() == model
    assert "target_mean" not in read_arrays(layout.centers)


def test_a_fraction_of_the_largest_penalty_on_a_working_set(tmp_path: Path) -> None:
    X, y = table()
    whole = train(tmp_path, X, y, "--penalty", "max:1e-3", name="whole")
    part = train(tmp_path, X, y, "--penalty", "max:1e-3", "--set", "centers.working_set=60", name="part")
    assert len(part["passes"]) > 1
    assert part["solves"][0]["relative_gap"] <= 1e-3
    assert 0.3 * whole["penalty"] < part["penalty"] <= whole["penalty"]  # of those in the first working set


@pytest.mark.parametrize("task", ["regression", pytest.param("binary", marks=pytest.mark.ci)])
def test_auto_ends_when_nothing_is_gained(tmp_path: Path, task: str) -> None:
    X, y = table()
    y = y if task == "regression" else (y > 0.3).astype(int)
    report = train(tmp_path, X, y, "--penalty", "auto")
    path = report["path"]
    assert 13 <= len(path) < ALL_POINTS
    assert np.allclose(np.diff(np.log([point["penalty"] for point in path])), np.log(STEP))
    errors = [point["hold_out_error"] for point in path]
    assert report["penalty"] == path[int(np.argmin(errors))]["penalty"]
    assert min(errors[-3:]) >= 0.99 * min(errors[:-3])
    # The errors are those of the weights of the fit rows on the held-out rows.
    layout, number = RunLayout(tmp_path / "run"), 6
    found = read_arrays(layout.solution(f"fit-centred-penalty-{number:02d}-output-0000.npz"))
    fitted = columns(layout, X[:N_TRAIN], found["active"]) @ found["weights"][0, :, 0]
    held, targets = draw_held_out(0, 0.1, 0, N_TRAIN), (y if task == "regression" else 2.0 * y - 1)[:N_TRAIN]
    decision = fitted + (targets - fitted)[~held].mean()
    if task == "regression":
        assert errors[number] == pytest.approx(np.mean((decision - targets)[held] ** 2), rel=1e-4)
    else:
        assert errors[number] == pytest.approx(np.mean((decision >= 0)[held] != (targets > 0)[held]))


def test_an_edge_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, noise, rng = table()[0], np.random.default_rng(5).normal(size=900), np.random.default_rng(2)
    train(tmp_path, X, noise, "--penalty", "auto", "--sigma2", "0.01", "--centers", "200")
    assert "weights that are all zero" in capsys.readouterr().err
    with pytest.warns(UserWarning, match="weights that are all zero"):
        SLKLRegressor(100, penalty="auto", sigma2=0.5, random_state=0).fit(
            rng.normal(size=(300, 4)), rng.normal(size=300)
        )
