"""Learned scales and tried widths of the estimators: what the command finds, what they gain, what models carry."""

from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
from sklearn.datasets import load_digits

from pipeline.estimators import SLKLClassifier, SLKLRegressor
from pipeline.prediction.model_folder import load_model, save_model
from runs import report_of, train


@pytest.fixture(scope="module")
def noisy() -> tuple[np.ndarray, np.ndarray]:
    """Ten inputs of which two matter."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 10))
    return X, np.sin(2 * X[:, 4]) * X[:, 7] + 0.05 * rng.normal(size=1500)


def test_inputs_that_are_noise_lose_their_say(noisy: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = noisy[0][:1200], noisy[1][:1200]
    errors = {}
    for scale in (None, "learned"):
        machine = SLKLRegressor(150, select="greedy:60", feature_scale=scale, random_state=0).fit(X, y)
        errors[scale] = np.sqrt(np.mean((machine.predict(noisy[0][1200:]) - noisy[1][1200:]) ** 2))
    assert errors["learned"] < errors[None] / 3
    assert set(np.argsort(-machine.feature_importances_)[:2]) == {4, 7}
    assert machine.feature_importances_.sum() == pytest.approx(1.0)
    assert {tuple(row) for row in machine.centers_} <= {tuple(row) for row in X}, "in the units of X"
    machine.set_params(feature_scale=None).fit(X, y)
    assert machine.feature_scales_ is None
    assert not hasattr(machine, "feature_importances_")


CASES: dict[str, dict[str, Any]] = {
    "scales": {"feature_scale": "learned", "sigma2": 8.0},
    "width": {"sigma2": "auto"},
    "both": {"feature_scale": "learned", "sigma2": "auto"},
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case == "both" else pytest.mark.nightly) for case in CASES]
)
@pytest.mark.parametrize("classes", [False, True])
def test_the_command_finds_the_same(
    noisy: tuple[np.ndarray, np.ndarray], tmp_path: Path, case: str, classes: bool
) -> None:
    X, y = noisy[0].astype(np.float32), noisy[1]
    X, y = X[:900], (np.digitize(y, [-0.3, 0.3])[:900] if classes else y[:900])
    np.savez(tmp_path / "table.npz", X_train=X, y_train=y, X_test=X[:9], y_test=y[:9])
    asked = CASES[case]
    line = ["--sigma2", str(asked["sigma2"]), "--scale", asked.get("feature_scale", "none"), "--centers", "80"]
    line += ["--set", "kernel.precision=float64", "--set", "data.standardise=false", "--refit", "ridge", "--seed", "3"]
    train(tmp_path / "run", tmp_path / "features", *line, dataset=tmp_path / "table.npz")
    model, report = load_model(tmp_path / "run" / "model"), report_of(tmp_path / "run")
    kind = SLKLClassifier if classes else SLKLRegressor
    machine = kind(80, **asked, refit="ridge", standardise=False, random_state=3).fit(X, y)
    assert machine.sigma2_ == pytest.approx(report["sigma2"][0], rel=1e-3)
    if "feature_scale" in asked:
        np.testing.assert_allclose(machine.feature_scales_, model.feature_scales, rtol=1e-3, atol=1e-4)
    decision = model.decision_function(model.features_of(X))
    own = machine.decision_function(X) if classes else machine.predict(X)[:, None]
    assert np.sqrt(np.mean((own - decision) ** 2)) < 5e-3 * decision.std()


def test_a_model_of_scaled_features_predicts_the_same(noisy: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    X, y = noisy
    machine = SLKLRegressor(100, feature_scale="learned", refit="ridge", random_state=0).fit(X, y)
    save_model(tmp_path / "model", machine.to_model())
    model = load_model(tmp_path / "model")
    np.testing.assert_allclose(model.decision_function(model.features_of(X))[:, 0], machine.predict(X), atol=1e-3)
    np.testing.assert_array_equal(model.feature_scales, machine.feature_scales_)


def test_weights_count_and_arrays_are_read_by_slices(noisy: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = noisy[0].copy(), noisy[1].copy()
    weights = np.ones(len(X))
    weights[::5] = 0.0
    options: dict[str, Any] = {"feature_scale": "learned", "sigma2": "auto", "refit": "ridge", "random_state": 0}
    machine = SLKLRegressor(80, **options).fit(X, y, sample_weight=weights)
    sliced = SLKLRegressor(80, **options).fit(dask.array.from_array(X, chunks=(400, 10)), y, sample_weight=weights)
    np.testing.assert_allclose(sliced.feature_scales_, machine.feature_scales_, rtol=1e-5)
    assert sliced.sigma2_ == machine.sigma2_
    X[::5], y[::5] = 1e3 * X[::5], -1e3  # rows that do not count
    np.testing.assert_allclose(SLKLRegressor(80, **options).fit(X, y, weights).feature_scales_, machine.feature_scales_)


def test_classes_share_the_scales() -> None:
    X, y = load_digits(return_X_y=True)
    machine = SLKLClassifier(150, feature_scale="learned", sigma2="auto", refit="ridge", random_state=0)
    machine.fit(X[:1200] / 16.0, y[:1200])
    assert machine.feature_scales_.shape in ((64,), (64, 64))
    assert machine.feature_importances_.shape == (64,)
    assert machine.score(X[1200:] / 16.0, y[1200:]) > 0.93


@pytest.mark.parametrize("wrong", [{"sigma2": "mean"}, {"feature_scale": "full"}, {"feature_scale": True}])
def test_what_makes_no_sense_is_refused(noisy: tuple[np.ndarray, np.ndarray], wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SLKLRegressor(**wrong).fit(*noisy)
