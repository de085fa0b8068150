"""The estimators against dense twins, on every kind of array, and interrupted."""

import itertools
import signal
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import zarr
from sklearn.datasets import load_diabetes, load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.preprocessing import StandardScaler

from pipeline.estimators import SLKLClassifier, SLKLRegressor

Table = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def diabetes() -> Table:
    """442 standardised rows of ten features, and standardised targets."""
    X, y = load_diabetes(return_X_y=True)
    return StandardScaler().fit_transform(X), (y - y.mean()) / y.std()


@pytest.fixture(scope="module")
def digits() -> Table:
    """1797 images of 8 x 8 pixels in [0, 1], float32, and their ten labels."""
    X, y = load_digits(return_X_y=True)
    return (X / 16).astype(np.float32), y


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_penalised_regressor_is_the_dense_lasso(diabetes: Table, intercept: bool, weighted: bool) -> None:
    X, y = diabetes[0], diabetes[1] + 0.5
    weights = np.random.default_rng(0).uniform(0.5, 3.0, len(y)) if weighted else np.ones(len(y))
    options: dict[str, Any] = {"fit_intercept": intercept, "standardise": False, "random_state": 1}
    machine = SLKLRegressor(60, sigma2=2.0, penalty=1.0, **options).fit(X, y, sample_weight=weights)
    candidates = np.random.default_rng([1, 1]).permutation(len(X))[:60]
    K = rbf_kernel(X, X[candidates], gamma=0.25)
    # Scikit-learn divides by the sum of the weights and scales them to n.
    lasso = Lasso(alpha=1.0 / weights.sum(), fit_intercept=intercept, tol=1e-13, max_iter=2_000_000)
    lasso.fit(K, y, sample_weight=weights)
    np.testing.assert_allclose(machine.predict(X), lasso.predict(K), atol=1e-7)
    assert machine.dual_gap_ < 1e-10
    np.testing.assert_array_equal(np.sort(machine.center_index_), np.sort(candidates[lasso.coef_ != 0]))
    np.testing.assert_array_equal(machine.centers_, X[machine.center_index_])
    np.testing.assert_allclose(machine.intercept_, lasso.intercept_, atol=1e-7)


def test_mu_is_the_kernel_of_the_paper(diabetes: Table) -> None:
    X, y = diabetes
    options: dict[str, Any] = {"sigma2": 4.0, "penalty": 0.25, "fit_intercept": False, "random_state": 0}
    machine = SLKLRegressor(50, **options).fit(X, y)
    C = rbf_kernel(X, machine.centers_, gamma=1 / 8)
    low_rank = (C * machine.mu_) @ C.T
    np.testing.assert_allclose(machine.mu_, np.abs(machine.coef_) / np.sqrt(0.25), rtol=1e-6)
    expected = low_rank @ np.linalg.solve(np.eye(len(y)) + low_rank, y)
    np.testing.assert_allclose(machine.predict(X), expected, atol=1e-7)
    np.testing.assert_allclose(SLKLRegressor(50, refit="ridge", **options).fit(X, y).mu_, machine.mu_, rtol=1e-6)


def kinds_of_array(X: np.ndarray, folder: Path) -> dict[str, Any]:
    mapped = np.memmap(folder / "X.bin", X.dtype, "w+", shape=X.shape)
    mapped[:] = X
    stored = zarr.create_array(folder / "X.zarr", shape=X.shape, dtype=X.dtype, chunks=(130, X.shape[1]))
    stored[:] = X
    lazy = dask.array.from_array(X, chunks=(150, 7))
    return {"memory map": mapped, "zarr": stored, "dask": lazy, "list": X.tolist() if X.dtype != np.float32 else X}


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.uint8])
def test_every_kind_of_array_gives_the_same(digits: Table, tmp_path: Path, dtype: type) -> None:
    X, y = (digits[0][:400] * 16).astype(dtype), digits[1][:400] % 2
    options: dict[str, Any] = {"penalty": "max:1e-3", "refit": "ridge", "random_state": 0}
    reference = SLKLClassifier(40, **options).fit(X, y)
    for kind, array in kinds_of_array(X, tmp_path).items():
        machine = SLKLClassifier(40, **options).fit(array, y)
        np.testing.assert_array_equal(machine.center_index_, reference.center_index_, err_msg=kind)
        np.testing.assert_array_equal(machine.predict(array), reference.predict(X), err_msg=kind)
        assert machine.n_features_in_ == 64
        assert machine.penalty_ == pytest.approx(reference.penalty_)
        assert machine.temperature_ == pytest.approx(reference.temperature_, rel=1e-5)


def test_bad_sliced_arrays(diabetes: Table, tmp_path: Path) -> None:
    X, y = diabetes
    spoilt = kinds_of_array(X, tmp_path)
    machine = SLKLRegressor(10, penalty=1.0, random_state=0)
    for array in (spoilt["zarr"], spoilt["memory map"]):
        array[400:401] = np.nan
        with pytest.raises(ValueError, match="NaN or infinity in row 400"):
            machine.fit(array, y)
    lazy = spoilt["dask"]
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        machine.fit(lazy[lazy[:, 0] > 0], y)
    with pytest.raises(ValueError, match="Complex data"):
        machine.fit(lazy.astype(complex), y)
    with pytest.raises(ValueError, match="Expected 2D"):
        machine.fit(lazy[0], y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        machine.fit(lazy, y[:-1])
    machine.fit(lazy, y)
    with pytest.raises(ValueError, match="expecting 10 features"):
        machine.predict(lazy[:, :4])


def test_float32_stays_float32(diabetes: Table) -> None:
    X, y = diabetes[0].astype(np.float32), diabetes[1].astype(np.float32)
    machine = SLKLRegressor(30, penalty=1.0, random_state=0).fit(X, y)
    assert machine.centers_.dtype == machine.predict(X).dtype == np.float32
    assert machine.predict(X.astype(np.float64)).dtype == machine.coef_.dtype == np.float64
    classifier = SLKLClassifier(30, penalty=1.0, random_state=0).fit(X, y > 0)
    assert classifier.decision_function(X).dtype == np.float32
    assert classifier.predict(X).dtype == bool


@pytest.mark.parametrize(("penalty", "least", "most_wrong"), [("none", 1e-6, 0.05), (0.1, 0.0, 1e-6)])
def test_float32_rows_have_float32_columns_but_where_there_is_a_certificate(
    digits: Table, penalty: str | float, least: float, most_wrong: float
) -> None:
    X, y = digits[0][:300], digits[1][:300] % 2
    options: dict[str, Any] = {"random_state": 0, "sigma2": 3.0, "penalty": penalty, "tol": 1e-6}
    exact = SLKLClassifier(60, **options).fit(X.astype(np.float64), y).decision_function(X.astype(np.float64))
    error = np.abs(SLKLClassifier(60, **options).fit(X, y).decision_function(X) - exact).max()
    assert least <= error < most_wrong


def test_repeated_rows_are_one_candidate(diabetes: Table) -> None:
    X, y = np.repeat(diabetes[0][:30], 20, axis=0), np.repeat(diabetes[1][:30], 20)
    machine = SLKLRegressor(30, sigma2=2.0, penalty=1e-8, random_state=0).fit(X, y)
    assert len(np.unique(machine.center_index_ // 20)) == len(machine.center_index_) > 20
    assert machine.score(X, y) > 0.999


def test_class_weight_is_a_factor_of_the_row_weights(digits: Table) -> None:
    X, y = digits[0][:200], digits[1][:200]
    options: dict[str, Any] = {"penalty": 1.0, "random_state": 0}
    factors = {label: 1.0 + label for label in range(10)}
    by_class = SLKLClassifier(40, class_weight=factors, **options).fit(X, y, sample_weight=np.full(200, 2.0))
    by_row = SLKLClassifier(40, **options).fit(X, y, sample_weight=2.0 * (1 + y))
    np.testing.assert_array_equal(by_class.coef_, by_row.coef_)


def test_labels_of_any_kind_and_shapes(digits: Table) -> None:
    X, y = digits[0][:300], digits[1][:300]
    names = np.array([f"digit {label}" for label in y], object)
    many = SLKLClassifier(40, penalty="max:1e-7", random_state=0).fit(X, names)
    assert many.classes_.tolist() == [f"digit {label}" for label in range(10)]
    assert many.score(X, names) > 0.9
    assert many.coef_.shape == many.mu_.shape == (10, len(many.centers_))
    assert many.intercept_.shape == (10,)
    two = SLKLClassifier(40, penalty=1.0, random_state=0).fit(X, np.where(y < 5, "low", "high"))
    assert two.coef_.shape == (1, len(two.centers_))
    np.testing.assert_array_equal(two.predict(X) == "low", two.decision_function(X) >= 0)


def test_more_centers_than_rows_are_clipped(diabetes: Table) -> None:
    X, y = diabetes[0][:30], diabetes[1][:30]
    weights = np.repeat([1.0, 0.0], [20, 10])
    with pytest.warns(UserWarning, match="n_centers=50 is above the 20 different rows"):
        clipped = SLKLRegressor(50).fit(X, y, weights)
    np.testing.assert_allclose(clipped.predict(X), SLKLRegressor("all").fit(X, y, weights).predict(X), atol=1e-9)


def test_a_tolerance_not_reached_is_told(diabetes: Table) -> None:
    X, y = diabetes
    with pytest.warns(ConvergenceWarning, match=r"gap \d\.\d+e-\d+, tol=1e-05, 2 iterations"):
        machine = SLKLRegressor(100, tol=1e-5, max_sweeps=2, schedule="uniform", random_state=0).fit(X, y)
    assert machine.n_iter_ == 2
    assert machine.dual_gap_ > 1e-5
    assert machine.score(X, y) > 0.3


def test_the_callback_gets_every_record(diabetes: Table) -> None:
    records: list[dict[str, Any]] = []
    machine = SLKLRegressor(60, schedule="uniform", penalty=1.0, random_state=0, callback=records.append)
    machine.fit(*diabetes)
    assert [record["iteration"] for record in records] == list(range(1, machine.n_iter_ + 1))
    assert records[-1]["relative_gap"] == machine.dual_gap_ <= 1e-3
    assert records[-1]["n_active"] == len(machine.centers_)
    assert {record["penalty"] for record in records} == {1.0}
    records.clear()
    assert SLKLRegressor(40, sigma2=4.0, random_state=0, callback=records.append).fit(*diabetes).penalty_ is None
    assert not records, "least squares alone has no iterations"


def test_scales_are_of_the_rows_that_count_however_they_are_read() -> None:
    """Ten inputs, of which two matter; a third of the rows has no weight."""
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(900, 10)), np.tile([0.0, 1.0, 1.0], 300)
    y = np.sin(2 * X[:, 4]) * X[:, 7] + 0.05 * rng.normal(size=900)
    options: dict[str, Any] = {"feature_scale": "learned", "sigma2": "auto", "refit": "ridge", "random_state": 2}
    machine = SLKLRegressor(100, **options).fit(X, y, sample_weight=weights)
    assert set(np.argsort(-machine.feature_importances_)[:2]) == {4, 7}
    assert machine.feature_importances_.sum() == pytest.approx(1.0)
    assert {tuple(row) for row in machine.centers_} <= {tuple(row) for row in X}, "in the units of X"
    sliced = SLKLRegressor(100, **options).fit(*(dask.array.from_array(array, chunks=400) for array in (X, y, weights)))
    np.testing.assert_allclose(sliced.feature_scales_, machine.feature_scales_, rtol=1e-5)
    assert sliced.sigma2_ == machine.sigma2_
    X[::3], y[::3] = 1e3 * X[::3], -1e3  # rows that do not count
    scales = machine.feature_scales_
    machine.fit(X, y, weights)
    np.testing.assert_allclose(machine.feature_scales_, scales)
    machine.set_params(feature_scale=None).fit(X, y, weights)
    assert machine.feature_scales_ is None
    assert not hasattr(machine, "feature_importances_")


@pytest.mark.usefixtures("default_interrupt")
@pytest.mark.parametrize("options", [{"penalty": "auto", "refit": "ridge"}, {"select": "greedy:30"}], ids=str)
def test_an_interruption_leaves_the_last_model(digits: Table, options: dict[str, Any]) -> None:
    X, y = digits[0][:400], digits[1][:400]
    count = itertools.count(1)

    def interrupt(record: dict[str, Any]) -> None:
        if next(count) == 20:
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C does

    machine = SLKLClassifier(80, sigma2=3.0, random_state=0).fit(X, y)
    expected = machine.predict(X)
    with pytest.raises(KeyboardInterrupt):
        machine.set_params(callback=interrupt, **options).fit(X[:, :40], y)
    assert next(count) == 21
    np.testing.assert_array_equal(machine.predict(X), expected)


def test_a_selection_has_no_certificate(digits: Table) -> None:
    X, y = digits[0][:300], digits[1][:300]
    few = SLKLClassifier(120, select="greedy:15", random_state=0).fit(X, y)
    assert (len(few.centers_), few.n_iter_, few.mu_, few.penalty_) == (15, 15, None, None)
    assert np.isnan(few.dual_gap_)
    with pytest.raises(ValueError, match="select='greedy:25': there are 20 candidates"):
        SLKLClassifier(20, select="greedy:25").fit(X, y)


def smooth(n: int) -> Table:
    """Columns of unlike spread, far from the origin."""
    draw = np.random.default_rng(0)
    X = draw.normal(size=(n, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * draw.normal(size=n) + 50
    return X * (1e-3, 1.0, 1e4) + (0.0, 5.0, -1e4), y


@pytest.mark.parametrize(
    ("of_x", "of_y", "mean", "close"),
    [(1.0, 1e-6, 0.0, 1e-9), (1.0, 1e6, 0.0, 1e-9), (2.0**20, 1.0, 0.0, 1e-6), (1.0, 1.0, 1e9, 1e-3)],
)
def test_units_change_nothing(of_x: float, of_y: float, mean: float, close: float) -> None:
    X, y = smooth(220)
    groups = np.arange(len(X))  # the same rows are held out, which equal numbers decide otherwise
    once = SLKLRegressor(random_state=0).fit(X, y, groups=groups)
    again = SLKLRegressor(random_state=0).fit(of_x * X, mean + of_y * y, groups=groups)
    np.testing.assert_allclose((again.predict(of_x * X) - mean) / of_y, once.predict(X), rtol=close)


def test_nothing_but_the_mean_is_left_of_a_huge_penalty_and_numbers_may_be_text(diabetes: Table) -> None:
    X, y = diabetes
    machine = SLKLRegressor(30, penalty="1e12", sigma2="8").fit(X, y + 3.0)
    assert (machine.penalty_, machine.sigma2_, machine.centers_.shape) == (1e12, 8.0, (0, 10))
    np.testing.assert_allclose(machine.predict(X), np.full(len(X), np.mean(y + 3.0)))
