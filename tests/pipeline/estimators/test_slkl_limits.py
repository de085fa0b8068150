"""Estimators at their limits: senseless parameters, weights and data, fits that fail, models for the commands."""

from typing import Any

import numpy as np
import pytest

from pipeline.estimators.parameters import in_parameters
from pipeline.estimators.slkl import SLKLClassifier, SLKLRegressor
from pipeline.prediction.trained_model import ModelFormatError
from runs import largest_bytes

Array = np.ndarray[Any, np.dtype[Any]]
Data = tuple[Array, Array, Array]


@pytest.fixture(scope="module")
def data() -> Data:
    """Rows (120, 3), values, and labels of three classes."""
    X = np.random.default_rng(0).normal(size=(120, 3))
    return X, 2 * X[:, 0] + 1, np.digitize(X[:, 0], [-0.5, 0.5])


REFUSED: list[tuple[dict[str, Any], str]] = [
    *(({"sigma2": value}, "sigma2 must be") for value in (0, -1.0, np.nan, "mean", True, (), (1.0, 2.0), "1,2")),
    *(({"penalty": value}, "penalty must") for value in (0, np.inf, "path:1:2:3", "max:2", "some")),
    *(({"feature_scale": value}, "feature_scale must be") for value in ("full", True)),
    *(({"n_centers": value}, "n_centers must be") for value in (0, 2.5, "some")),
    *(({"budget": value}, "budget must be") for value in (0, -1, "soon", True)),
    *(({"refit": value}, "refit must be one of none, ridge; found") for value in ("lasso", 3, True)),
    *(({"select": value}, "select must be") for value in ("greedy", "greedy:0", 5)),
    *(({name: None}, f"{name} must not be None") for name in ("schedule", "max_sweeps")),
    ({"kernel": "linear"}, "kernel must be"),
    ({"verbose": "yes"}, "verbose must be"),
    ({"standardise": 1}, "standardise must be"),
    ({"tol": -1e-3}, "tol must be"),
    ({"max_sweeps": 0}, "max_sweeps must be"),
    ({"schedule": "cyclic"}, "schedule must be"),
    ({"memory_limit": "much"}, "memory_limit must be"),
    ({"fit_intercept": "yes"}, "fit_intercept must be True or False"),
    ({"callback": 3}, "callback must be a function"),
    ({"n_centers": 20, "sigma2": 1e-300}, "or use a larger sigma2"),
]


@pytest.mark.parametrize(("parameters", "words"), REFUSED, ids=str)
def test_parameters_that_make_no_sense_are_named(data: Data, parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as found:
        SLKLRegressor(**parameters).fit(*data[:2])
    assert "--" not in str(found.value), "an estimator has no flags"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("`kernel.name=auto` needs rows, or `statistics.hold_out=0`; give some", "kernel='auto' needs rows; give some"),
        ("`solver.refit=none` goes with `data.standardise=true`", "refit=None goes with standardise=True"),
        (
            "no word; mend it (`data.drop=a (b)`), or lower `centers.count`",
            "no word; mend it, or lower n_centers",
        ),
    ],
)
def test_messages_name_parameters_and_leave_out_settings_that_are_none(message: str, words: str) -> None:
    assert in_parameters(message) == words


@pytest.mark.parametrize("weights", [{0: -1.0}, {1: np.nan}, {2: np.inf}])
def test_class_weights_below_zero_or_not_finite_are_refused(weights: dict[int, float], data: Data) -> None:
    with pytest.raises(ValueError, match=r"class_weight: row \d+ is .*; a weight must be finite and at least 0"):
        SLKLClassifier(20, class_weight=weights).fit(data[0], data[2])


@pytest.mark.parametrize(
    ("of_x", "of_y", "weight", "message"),
    [
        (1.0, 1e200, 1.0, "the targets are too large: .*; rescale them"),
        (1.0, 1e-170, 1.0, "the targets are too small"),
        (1.0, 1.0, 1e300, "sample_weight: the largest is 1e.300; rescale them"),
        (1e200, 1.0, 1.0, "too large to be standardised"),
    ],
)
def test_numbers_beyond_float64_are_refused_in_words(
    of_x: float, of_y: float, weight: float, message: str, data: Data
) -> None:
    with pytest.raises(ValueError, match=message):
        SLKLRegressor(20).fit(data[0] * of_x, data[1] * of_y, np.full(120, weight))


def test_points_far_from_the_origin_are_refused_in_words(data: Data) -> None:
    X = np.vstack([data[0][:20] + 1e12, data[0][20:]])
    with pytest.raises(ValueError, match="rescale"):
        SLKLRegressor("all", sigma2=1e-3, standardise=False).fit(X, data[1])
    with pytest.raises(ValueError, match="squared norm is inf"):
        SLKLRegressor(20, standardise=False).fit(data[0] * 1e200, data[1])


def test_a_fit_that_fails_leaves_the_last_model(data: Data) -> None:
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


def test_a_model_of_float32_centers_must_be_close_to_the_estimator(data: Data) -> None:
    X, y, _ = data
    machine = SLKLRegressor(20, standardise=False, random_state=0).fit(X * 1e-3 + 1e6, y)
    with pytest.raises(ValueError, match=r"float32, which moves one of these by \d.* kernel widths; standardise X"):
        machine.to_model()
    with pytest.raises(ValueError, match="float32, which moves"):
        SLKLRegressor(20, standardise=False, random_state=0).fit(X * 1e100, y).to_model()
    assert SLKLRegressor(20, random_state=0).fit(X * 1e-3 + 1e6, y).to_model().n_centers > 0
    assert SLKLRegressor(20, random_state=0).fit(X + 100, y).to_model().n_centers > 0


def test_a_model_has_no_labels_that_json_lacks(data: Data) -> None:
    dates = np.where(data[2] > 0, np.datetime64("2020-01-01"), np.datetime64("2021-01-01"))
    machine = SLKLClassifier(20, random_state=0).fit(data[0], dates)
    with pytest.raises(ModelFormatError, match="expected a list of numbers or strings"):
        machine.to_model()


def test_a_memory_limit_is_for_the_fit_alone_and_never_makes_a_small_model() -> None:
    X = np.random.default_rng(0).normal(size=(600, 4))
    y = X.sum(axis=1)
    plain: dict[str, Any] = {"feature_scale": None, "sigma2": 8.0, "random_state": 0}
    assert len(SLKLRegressor(memory_limit="400MiB", **plain).fit(X, y).centers_) == 600
    with pytest.raises(MemoryError, match="lower n_centers to 27"):
        SLKLRegressor(300, memory_limit="4MiB").fit(X, y)  # of seven Grams, five fit
    assert SLKLRegressor(270, memory_limit="4MiB", random_state=0, feature_scale=None).fit(X, y).n_iter_ == 1
    with pytest.raises(MemoryError, match="lower n_centers to 240"):
        SLKLRegressor(300, select="greedy:5", memory_limit="4MiB").fit(X, y)  # of nine
    with pytest.raises(MemoryError, match="500 candidates need"):
        SLKLRegressor(memory_limit="4MiB").fit(X, y)
    penalised: dict[str, Any] = {"penalty": "max:1e-2", "memory_limit": "1MiB"}
    with pytest.raises(MemoryError, match="lower n_centers to") as refusal:
        SLKLRegressor(400, **penalised).fit(X, y)
    most = int(str(refusal.value).split("centers to ")[1].split()[0])
    assert 100 < most < 400
    assert SLKLRegressor(most, **penalised).fit(X, y).dual_gap_ <= 1e-3


@pytest.mark.ci
def test_widths_are_tried_with_no_more_than_a_second_copy_of_their_rows() -> None:
    X = np.random.default_rng(0).normal(size=(10_000, 1000))
    with largest_bytes() as largest:
        SLKLRegressor(100, penalty="max:1e-2", sigma2="auto", random_state=0).fit(X, X[:, 0])
    assert largest[0] < 2 * 8 * X.size + 32 * 2**20
