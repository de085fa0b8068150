"""What a user gets who says nothing: the estimators and the command make the same of a table."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from pipeline.estimators.slkl import SLKLClassifier, SLKLRegressor
from pipeline.prediction.model_folder import load_model
from runs import train

Table = tuple[np.ndarray, np.ndarray]


def smooth(n: int) -> Table:
    """Columns of unlike spread, far from the origin."""
    draw = np.random.default_rng(0)
    X = draw.normal(size=(n, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * draw.normal(size=n) + 50
    return X * (1e-3, 1.0, 1e4) + (0.0, 5.0, -1e4), y


def blobs(n: int) -> Table:
    X, y = make_blobs(n, 5, centers=4, cluster_std=3.0, random_state=1)
    return X * 10.0 ** np.arange(5), y


@pytest.mark.nightly
@pytest.mark.parametrize(("make", "machine"), [(smooth, SLKLRegressor), (blobs, SLKLClassifier)])
def test_the_command_and_the_estimators_have_the_same_defaults(make, machine, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    X, y = make(900)
    np.savez(tmp_path / "table.npz", X_train=X[:600], y_train=y[:600], X_test=X[600:], y_test=y[600:])
    report = train(tmp_path / "run", tmp_path / "features", dataset=tmp_path / "table.npz")
    model = load_model(tmp_path / "run" / "model")
    fitted = machine(random_state=0).fit(X[:600], y[:600])
    ours = fitted.predict(X) if machine is SLKLRegressor else fitted.decision_function(X)
    theirs = np.squeeze(model.decision_function(model.features_of(X)))
    np.testing.assert_allclose(ours, theirs, atol=2e-3 * np.std(theirs))
    assert (report["n_centers"], report["model_n_centers"], report["penalty"]) == (600, 600, None)
    assert (len(fitted.centers_), fitted.penalty_) == (600, None)
    assert fitted.sigma2_ == pytest.approx(report["sigma2"][0], rel=1e-3)
    error = (
        np.mean((ours[600:] - y[600:]) ** 2)
        if machine is SLKLRegressor
        else np.mean(fitted.predict(X[600:]) != y[600:])
    )
    assert error == pytest.approx(report["mse"] if machine is SLKLRegressor else report["error_rate"], rel=0.01)
    assert error < (0.5 if machine is SLKLRegressor else 0.2) * (np.var(y) if machine is SLKLRegressor else 1)


@pytest.mark.parametrize("asked", ["median", pytest.param("auto", marks=pytest.mark.nightly)])
def test_widths_of_many_candidates_are_the_same(asked: str, tmp_path: Path) -> None:
    """Above 1000 candidates, the typical width is that of a draw: of the same."""
    X, y = smooth(1500)
    np.savez(tmp_path / "table.npz", X_train=X, y_train=y, X_test=X[:9], y_test=y[:9])
    line = ["--penalty", "max:0.01", "--sigma2", asked, "--centers", "1500"]
    report = train(tmp_path / "run", tmp_path / "features", *line, dataset=tmp_path / "table.npz")
    fitted = SLKLRegressor(1500, penalty="max:0.01", sigma2=asked, random_state=0).fit(X, y)
    assert fitted.sigma2_ == report["sigma2"][0]


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_units_of_the_target_change_nothing(scale: float) -> None:
    X, y = smooth(400)
    once, again = (SLKLRegressor(random_state=0).fit(X, factor * y) for factor in (1.0, scale))
    np.testing.assert_allclose(again.predict(X) / scale, once.predict(X), rtol=1e-9)


def test_units_of_the_inputs_change_nothing() -> None:
    X, y = smooth(400)
    once, again = (SLKLRegressor(random_state=0).fit(factor * X, y) for factor in (1.0, 2.0**20))
    np.testing.assert_allclose(again.predict(2.0**20 * X), once.predict(X), rtol=1e-6)


def test_a_fit_of_few_rows_or_of_what_only_a_penalty_has_is_penalised() -> None:
    X, y = smooth(199)
    assert SLKLRegressor(random_state=0).fit(X, y).dual_gap_ <= 1e-3
    X, y = smooth(300)
    for asked in ({"refit": "ridge"}, {"tol": 1e-4}, {"n_centers": "all"}, {"penalty": "max:1e-7"}):
        assert SLKLRegressor(random_state=0, **asked).fit(X, y).dual_gap_ <= 1e-3
    assert np.isnan(SLKLRegressor(random_state=0).fit(X, y).dual_gap_)
