"""Estimators at their limits: senseless parameters, weights and data, fits that fail, models for the commands."""

import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest

from pipeline.estimators.fit_data import Candidates
from pipeline.estimators.slkl import SLKLClassifier, SLKLRegressor
from pipeline.prediction.trained_model import ModelFormatError

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
        with pytest.raises(ValueError, match="y is too small"):
            SLKLRegressor(20).fit(data[0], data[1] * 1e-170)
        with pytest.raises(ValueError, match="squared norm is inf"):
            SLKLRegressor(20, standardise=False).fit(data[0] * 1e200, data[1])
        with pytest.raises(ValueError, match="too large to be standardised"):
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
    start = machine._start(Candidates(X, np.arange(len(X))), np.array([machine.sigma2_]), 1)
    assert start is not None
    assert start.sum() == pytest.approx(machine._penalised.sum())


def test_a_model_of_float32_centers_must_be_close_to_the_estimator(data: tuple[Array, Array, Array]) -> None:
    X, y, _ = data
    machine = SLKLRegressor(20, standardise=False, random_state=0).fit(X * 1e-3 + 1e6, y)
    with pytest.raises(ValueError, match=r"float32, which moves one of these by \d.* kernel widths; standardise X"):
        machine.to_model()
    with pytest.raises(ValueError, match="float32, which moves"):
        SLKLRegressor(20, standardise=False, random_state=0).fit(X * 1e100, y).to_model()
    assert SLKLRegressor(20, random_state=0).fit(X * 1e-3 + 1e6, y).to_model().n_centers > 0
    assert SLKLRegressor(20, random_state=0).fit(X + 100, y).to_model().n_centers > 0


def test_a_model_has_no_labels_that_json_lacks(data: tuple[Array, Array, Array]) -> None:
    dates = np.where(data[2] > 0, np.datetime64("2020-01-01"), np.datetime64("2021-01-01"))
    machine = SLKLClassifier(20, random_state=0).fit(data[0], dates)
    with pytest.raises(ModelFormatError, match="expected a list of numbers or strings"):
        machine.to_model()


def test_a_memory_limit_is_for_the_fit_alone_and_never_makes_a_small_model() -> None:
    X = np.random.default_rng(0).normal(size=(600, 4))
    assert len(SLKLRegressor(memory_limit="400MiB", random_state=0).fit(X, X.sum(axis=1)).centers_) == 600
    with pytest.raises(MemoryError, match="lower n_centers to 27"):
        SLKLRegressor(300, memory_limit="4MiB").fit(X, X.sum(axis=1))  # of seven Grams, five fit
    assert SLKLRegressor(270, memory_limit="4MiB", random_state=0).fit(X, X.sum(axis=1)).n_iter_ == 1
    with pytest.raises(MemoryError, match="500 candidates need"):
        SLKLRegressor(memory_limit="4MiB").fit(X, X.sum(axis=1))


def test_widths_are_tried_without_a_copy_of_their_rows() -> None:
    X = np.random.default_rng(0).normal(size=(10_000, 1000))
    tracemalloc.start()
    try:
        machine = SLKLRegressor(100, penalty="max:1e-2", sigma2="auto", random_state=0).fit(X, X[:, 0])
        largest = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert machine.n_features_in_ == 1000
    assert largest < 150 * 2**20 + 8 * (7 * 100**2 + 2 * 100 * 1000)
