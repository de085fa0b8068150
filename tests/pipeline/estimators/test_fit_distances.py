"""Learned scales and tried widths of the estimators: what they gain, with weights, and by slices."""

from typing import Any

import dask.array
import numpy as np
import pytest

from pipeline.estimators import SLKLClassifier, SLKLRegressor

Table = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def noisy() -> Table:
    """Ten inputs of which two matter."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 10))
    return X, np.sin(2 * X[:, 4]) * X[:, 7] + 0.05 * rng.normal(size=1000)


def test_inputs_that_are_noise_lose_their_say(noisy: Table) -> None:
    X, y = noisy[0][:700], noisy[1][:700]
    plain, scaled = (
        SLKLRegressor(100, select="greedy:50", feature_scale=scale, random_state=0).fit(X, y)
        for scale in (None, "learned")
    )
    errors = [np.sqrt(np.mean((machine.predict(noisy[0][700:]) - noisy[1][700:]) ** 2)) for machine in (plain, scaled)]
    assert errors[1] < errors[0] / 3
    assert set(np.argsort(-scaled.feature_importances_)[:2]) == {4, 7}
    assert scaled.feature_importances_.sum() == pytest.approx(1.0)
    assert {tuple(row) for row in scaled.centers_} <= {tuple(row) for row in X}, "in the units of X"
    assert plain.feature_scales_ is None
    assert not hasattr(plain, "feature_importances_")


def test_weights_count_and_arrays_are_read_by_slices(noisy: Table) -> None:
    X, y = noisy[0][:500].copy(), noisy[1][:500].copy()
    weights = np.ones(len(X))
    weights[::5] = 0.0
    options: dict[str, Any] = {"feature_scale": "learned", "sigma2": "auto", "refit": "ridge", "random_state": 0}
    machine = SLKLRegressor(50, **options).fit(X, y, sample_weight=weights)
    sliced = SLKLRegressor(50, **options).fit(dask.array.from_array(X, chunks=(200, 10)), y, sample_weight=weights)
    np.testing.assert_allclose(sliced.feature_scales_, machine.feature_scales_, rtol=1e-5)
    assert sliced.sigma2_ == machine.sigma2_
    X[::5], y[::5] = 1e3 * X[::5], -1e3  # rows that do not count
    np.testing.assert_allclose(SLKLRegressor(50, **options).fit(X, y, weights).feature_scales_, machine.feature_scales_)


@pytest.mark.ci
def test_classes_share_the_scales(digits: Table) -> None:
    X, y = digits
    machine = SLKLClassifier(150, feature_scale="learned", sigma2="auto", refit="ridge", random_state=0)
    machine.fit(X[:1200], y[:1200])
    assert machine.feature_scales_.shape in ((64,), (64, 64))
    assert machine.feature_importances_.shape == (64,)
    assert machine.score(X[1200:], y[1200:]) > 0.93
