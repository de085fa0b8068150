"""Estimators at their limits: senseless parameters, weights and data, fits that fail, models for the commands."""

import warnings
from typing import Any

import numpy as np
import pytest

from pipeline.estimator_data import Candidates
from pipeline.estimators import SLKLClassifier, SLKLRegressor
from pipeline.model import ModelFormatError

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(scope="module")
def data() -> tuple[Array, Array, Array]:
    """Rows (120, 3), values, and labels of three classes."""
    X = np.random.default_rng(0).normal(size=(120, 3))
    return X, 2 * X[:, 0] + 1, np.digitize(X[:, 0], [-0.5, 0.5])


@pytest.mark.parametrize("weights", [{0: -1.0}, {1: np.nan}, {2: np.inf}])
def test_class_weights_below_zero_or_not_finite_are_refused(
    weights: dict[int, float], data: tuple[Array, Array, Array]
) -> None:
    with pytest.raises(ValueError, match="class_weight must hold finite numbers of at least 0"):
        SLKLClassifier(20, class_weight=weights).fit(data[0], data[2])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("fit_intercept", "yes", "True or False"), ("warm_start", "no", "True or False"), ("callback", 3, "a function")],
)
def test_parameters_of_another_kind_are_named(
    name: str, value: Any, words: str, data: tuple[Array, Array, Array]
) -> None:
    with pytest.raises(ValueError, match=f"{name} must be {words}"):
        SLKLRegressor(20, **{name: value}).fit(*data[:2])


@pytest.mark.parametrize(("factor", "weight"), [(1e200, 1.0), (1.0, 1e300)])
def test_targets_beyond_float64_are_refused_without_a_warning(
    factor: float, weight: float, data: tuple[Array, Array, Array]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="y or sample_weight is too large"):
            SLKLRegressor(20).fit(data[0], data[1] * factor, np.full(120, weight))
        with pytest.raises(ValueError, match="squared norm is inf"):
            SLKLRegressor(20).fit(data[0] * 1e200, data[1])


def test_errors_of_an_estimator_name_no_flags(data: tuple[Array, Array, Array]) -> None:
    with pytest.raises(ValueError, match="or use a larger sigma2") as found:
        SLKLRegressor(20, sigma2=1e-300).fit(*data[:2])
    assert "--" not in str(found.value)


def test_a_fit_that_fails_leaves_the_last_model(data: tuple[Array, Array, Array]) -> None:
    X, _, labels = data
    machine = SLKLClassifier(20, random_state=0).fit(X, labels)
    expected = machine.predict(X)
    with pytest.raises(ValueError, match="sigma2"):
        machine.set_params(sigma2=1e-300).fit(X[:, :2], np.where(labels > 0, "a", "b"))
    np.testing.assert_array_equal(machine.predict(X), expected)
    assert (machine.n_features_in_, machine.sigma2) == (3, 1e-300)
    fresh = SLKLRegressor(20, sigma2=1e-300)
    with pytest.raises(ValueError, match="sigma2"):
        fresh.fit(*data[:2])
    assert not hasattr(fresh, "n_features_in_")


def test_equal_candidates_start_with_their_own_weights(data: tuple[Array, Array, Array]) -> None:
    X, y = np.repeat(data[0][:40], 2, axis=0), np.repeat(data[1][:40], 2)
    machine = SLKLRegressor("all", random_state=0, warm_start=True).fit(X, y)
    start = machine._start(Candidates(X, np.arange(len(X))), 1)
    assert start is not None
    assert start.sum() == pytest.approx(machine._penalised.sum())


def test_a_model_of_float32_centers_must_be_close_to_the_estimator(data: tuple[Array, Array, Array]) -> None:
    X, y, _ = data
    machine = SLKLRegressor(20, random_state=0).fit(X * 1e-3 + 1e6, y)
    with pytest.raises(ValueError, match=r"float32, which moves one of these by \d.* kernel widths; standardise X"):
        machine.to_model()
    with pytest.raises(ValueError, match="float32, which moves"):
        SLKLRegressor(20, random_state=0).fit(X * 1e100, y).to_model()
    assert SLKLRegressor(20, random_state=0).fit(X + 100, y).to_model().n_centers > 0


def test_a_model_has_no_labels_that_json_lacks(data: tuple[Array, Array, Array]) -> None:
    dates = np.where(data[2] > 0, np.datetime64("2020-01-01"), np.datetime64("2021-01-01"))
    machine = SLKLClassifier(20, random_state=0).fit(data[0], dates)
    with pytest.raises(ModelFormatError, match="expected a list of numbers or strings"):
        machine.to_model()
