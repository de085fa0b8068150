"""The scikit-learn estimators: its own checks, dense twins, the command line, every kind of array, interruptions."""

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import zarr
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits, make_blobs
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from pipeline.estimators.slkl import SLKLClassifier, SLKLRegressor
from pipeline.prediction.model_folder import load_model, save_model
from pipeline.train import main


def held_out_rows_decide(estimator: Any) -> dict[str, str]:
    """Where rows are held out, repeated ones are others than rows of twice the weight.

    A temperature counts rows, whatever they weigh, lest the scale of all weights matters; decision values do not.
    """
    same = "check_sample_weight_equivalence_on_dense_data"
    if estimator.feature_scale == "learned" or estimator.sigma2 == "auto":
        return {same: "other rows are held out"}
    return {same: "temperatures count rows"} if isinstance(estimator, SLKLClassifier) else {}


@parametrize_with_checks(
    [
        SLKLRegressor(),
        SLKLClassifier(),
        SLKLClassifier(coupling="shared", fit_intercept=False),
        SLKLRegressor(feature_scale="learned", sigma2="auto"),
        SLKLClassifier(feature_scale="learned"),
        SLKLClassifier(kernel="polynomial", sigma2=(1.0, 4.0)),
    ],
    expected_failed_checks=held_out_rows_decide,
)
def test_scikit_learn_conventions(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("asked", [{}, {"coupling": "shared", "fit_intercept": False}], ids=str)
def test_weights_of_a_classifier_are_repeated_rows(asked: dict[str, Any]) -> None:
    X, y = make_blobs(60, 4, centers=3, cluster_std=4.0, random_state=0)
    times = np.random.default_rng(0).integers(0, 4, 60)
    weighted = SLKLClassifier(random_state=0, **asked).fit(X, y, times)
    repeated = SLKLClassifier(random_state=0, **asked).fit(np.repeat(X, times, axis=0), np.repeat(y, times))
    np.testing.assert_allclose(weighted.decision_function(X), repeated.decision_function(X), atol=1e-6)


@pytest.fixture(scope="module")
def diabetes() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_diabetes(return_X_y=True)
    return StandardScaler().fit_transform(X), (y - y.mean()) / y.std()


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return (X / 16).astype(np.float32), y


def dense_lasso(K: np.ndarray, y: np.ndarray, penalty: float, weights: np.ndarray, *, intercept: bool) -> Lasso:
    """The same problem for scikit-learn, which divides by the sum of the weights and scales them to n."""
    alpha = np.sqrt(penalty) / weights.sum()
    lasso = Lasso(alpha=alpha, fit_intercept=intercept, tol=1e-13, max_iter=2_000_000)
    return lasso.fit(K, y, sample_weight=weights)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_the_dense_lasso(diabetes: tuple[np.ndarray, np.ndarray], intercept: bool, weighted: bool) -> None:
    X, y = diabetes[0], diabetes[1] + 0.5
    weights = np.random.default_rng(0).uniform(0.5, 3.0, len(y)) if weighted else np.ones(len(y))
    options: dict[str, Any] = {"fit_intercept": intercept, "standardise": False, "random_state": 1}
    machine = SLKLRegressor(60, sigma2=2.0, penalty=1.0, **options)
    machine.fit(X, y, sample_weight=weights)
    candidates = np.random.default_rng([1, 1]).permutation(len(X))[:60]
    K = rbf_kernel(X, X[candidates], gamma=0.25)
    lasso = dense_lasso(K, y, 1.0, weights, intercept=intercept)
    np.testing.assert_allclose(machine.predict(X), lasso.predict(K), atol=1e-7)
    assert machine.dual_gap_ < 1e-10
    np.testing.assert_array_equal(np.sort(machine.center_index_), np.sort(candidates[lasso.coef_ != 0]))
    np.testing.assert_array_equal(machine.centers_, X[machine.center_index_])
    np.testing.assert_allclose(machine.intercept_, lasso.intercept_, atol=1e-7)


def test_mu_is_the_kernel_of_the_paper(diabetes: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = diabetes
    machine = SLKLRegressor(50, sigma2=4.0, penalty=0.25, fit_intercept=False, random_state=0).fit(X, y)
    C = rbf_kernel(X, machine.centers_, gamma=1 / 8)
    low_rank = (C * machine.mu_) @ C.T
    np.testing.assert_allclose(machine.mu_, np.abs(machine.coef_) / np.sqrt(0.25), rtol=1e-6)
    expected = low_rank @ np.linalg.solve(np.eye(len(y)) + low_rank, y)
    np.testing.assert_allclose(machine.predict(X), expected, atol=1e-7)


@pytest.mark.parametrize(
    "options",
    [
        {"penalty": 0.5},
        {"penalty": 0.5, "fit_intercept": True, "refit": "ridge"},
        {"penalty": "auto", "coupling": "shared"},
        {"penalty": "auto", "refit": "ridge"},
        {"select": "greedy:12"},
        {"select": "greedy:auto", "fit_intercept": True},
    ],
    ids=str,
)
def test_the_command_finds_the_same(
    digits: tuple[np.ndarray, np.ndarray], tmp_path: Path, options: dict[str, Any]
) -> None:
    X, y = digits[0][:600], digits[1][:600]
    data, run = tmp_path / "digits.npz", tmp_path / "run"
    np.savez(data, X_train=X, y_train=y, X_test=X[:5], y_test=y[:5])
    command = [str(data), "--run-dir", str(run), "--features-dir", str(tmp_path / "features"), "--centers", "40"]
    command += ["--features", "raw", "--set", "data.standardise=false", "--set", "kernel.precision=float64", "-q"]
    command += ["--sigma2", "3", "--seed", "5", "--scheduler", "serial"]
    command += [] if "select" in options else ["--tol", "1e-9"]
    command += [] if "fit_intercept" in options else ["--set", "solver.intercept=false"]
    names = {"penalty": "--penalty", "coupling": "--coupling", "select": "--select", "refit": "--refit"}
    for name, value in options.items():
        command += [names[name], str(value)] if name in names else ["--intercept"]
    assert main(command) == 0
    model = load_model(run / "model")
    machine = SLKLClassifier(40, sigma2=3.0, random_state=5, tol=1e-9, **({"fit_intercept": False} | options))
    machine.set_params(standardise=False)
    machine.fit(X, y)
    assert machine.penalty_ == pytest.approx(json.loads((run / "report.json").read_text())["penalty"])
    assert set(machine.center_index_) == set(model.center_index)
    np.testing.assert_allclose(machine.decision_function(X), model.decision_function(X), atol=2e-4)


def kinds_of_array(X: np.ndarray, folder: Path) -> dict[str, Any]:
    mapped = np.memmap(folder / "X.bin", X.dtype, "w+", shape=X.shape)
    mapped[:] = X
    stored = zarr.create_array(folder / "X.zarr", shape=X.shape, dtype=X.dtype, chunks=(130, X.shape[1]))
    stored[:] = X
    lazy = dask.array.from_array(X, chunks=(150, 7))
    return {"memory map": mapped, "zarr": stored, "dask": lazy, "list": X.tolist() if X.dtype != np.float32 else X}


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.uint8])
def test_every_kind_of_array_gives_the_same(digits: tuple[np.ndarray, np.ndarray], tmp_path: Path, dtype: type) -> None:
    X, y = (digits[0][:500] * 16).astype(dtype), digits[1][:500] % 2
    reference = SLKLClassifier(60, penalty="auto", random_state=0).fit(X, y)
    for kind, array in kinds_of_array(X, tmp_path).items():
        machine = SLKLClassifier(60, penalty="auto", random_state=0).fit(array, y)
        np.testing.assert_array_equal(machine.center_index_, reference.center_index_, err_msg=kind)
        np.testing.assert_array_equal(machine.predict(array), reference.predict(X), err_msg=kind)
        assert machine.n_features_in_ == 64
        assert machine.penalty_ == pytest.approx(reference.penalty_)


def test_targets_and_weights_may_be_lazy_too(diabetes: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = diabetes
    weights = np.linspace(0.0, 2.0, len(y))
    lazy = [dask.array.from_array(array, chunks=100) for array in (X, y, weights)]
    machine = SLKLRegressor(30, random_state=0).fit(*lazy)
    expected = SLKLRegressor(30, random_state=0).fit(X, y, weights).predict(X)
    np.testing.assert_allclose(machine.predict(lazy[0]), expected, atol=1e-9)


def test_float32_stays_float32(diabetes: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = diabetes[0].astype(np.float32), diabetes[1].astype(np.float32)
    machine = SLKLRegressor(30, random_state=0).fit(X, y)
    assert machine.centers_.dtype == machine.predict(X).dtype == np.float32
    assert machine.predict(X.astype(np.float64)).dtype == machine.coef_.dtype == np.float64
    labels = y > 0
    classifier = SLKLClassifier(30, random_state=0).fit(X, labels)
    assert classifier.decision_function(X).dtype == np.float32
    assert classifier.predict(X).dtype == bool


def test_large_float32_problems_have_float32_columns(digits: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = np.tile(digits[0], (2, 1)), np.tile(digits[1] % 2, 2)
    X = X + np.random.default_rng(0).normal(0, 0.05, X.shape).astype(np.float32)
    single = SLKLClassifier(600, random_state=0, sigma2=3.0, penalty=1.0).fit(X, y)
    double = clone(single).fit(X.astype(np.float64), y)
    difference = np.abs(single.decision_function(X) - double.decision_function(X)).max()
    assert 0 < difference < 0.05
    assert single.dual_gap_ <= 1e-3


def test_repeated_rows_equal_weights(diabetes: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = diabetes[0][:60], diabetes[1][:60]
    counts = np.random.default_rng(3).integers(0, 4, 60)
    weighted = SLKLRegressor("all", random_state=0, sigma2=2.0).fit(X, y, sample_weight=counts)
    repeated = SLKLRegressor("all", random_state=0, sigma2=2.0).fit(X.repeat(counts, axis=0), y.repeat(counts))
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-7, atol=1e-9)
    assert not set(weighted.center_index_) & set(np.flatnonzero(counts == 0))


def test_repeated_rows_are_one_candidate(diabetes: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = np.repeat(diabetes[0][:30], 20, axis=0), np.repeat(diabetes[1][:30], 20)
    machine = SLKLRegressor(30, sigma2=2.0, penalty=1e-8, random_state=0).fit(X, y)
    assert len(np.unique(machine.center_index_ // 20)) == len(machine.center_index_) > 20
    assert machine.score(X, y) > 0.999


def test_class_weight_is_a_factor_of_the_row_weights(digits: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = digits[0][:300], digits[1][:300]
    factors = {label: 1.0 + label for label in range(10)}
    by_class = SLKLClassifier(40, random_state=0, class_weight=factors).fit(X, y, sample_weight=np.full(300, 2.0))
    by_row = SLKLClassifier(40, random_state=0).fit(X, y, sample_weight=2.0 * (1 + y))
    np.testing.assert_array_equal(by_class.coef_, by_row.coef_)


def test_labels_of_any_kind_and_shapes(digits: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = digits[0][:300], digits[1][:300]
    names = np.array([f"digit {label}" for label in y], object)
    many = SLKLClassifier(40, penalty="max:1e-7", random_state=0).fit(X, names)
    assert many.classes_.tolist() == [f"digit {label}" for label in range(10)]
    assert many.score(X, names) > 0.9
    n_active = len(many.centers_)
    assert many.coef_.shape == many.mu_.shape == (10, n_active)
    assert many.intercept_.shape == (10,)
    two = SLKLClassifier(40, random_state=0).fit(X, np.where(y < 5, "low", "high"))
    assert two.coef_.shape == (1, len(two.centers_))
    np.testing.assert_array_equal(two.predict(X) == "low", two.decision_function(X) >= 0)
    shared = SLKLClassifier(40, random_state=0, coupling="shared").fit(X, y)
    assert shared.mu_.shape == (len(shared.centers_),)


def test_centers_of_ones_own(diabetes: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = diabetes
    rows = np.array([7, 3, 100, 41])
    by_row = SLKLRegressor(centers=rows, sigma2=5.0, random_state=0).fit(X, y)
    by_point = SLKLRegressor(centers=X[rows], sigma2=5.0, random_state=0).fit(X, y)
    np.testing.assert_array_equal(by_row.center_index_, rows)
    np.testing.assert_array_equal(by_point.center_index_, [-1] * 4)
    np.testing.assert_allclose(by_row.coef_, by_point.coef_, rtol=1e-9)


@pytest.mark.parametrize(
    ("centers", "message"),
    [
        ([], "empty"),
        ([0, 0], "twice"),
        ([0, 10**6], "entry 1 is row 1000000"),
        (np.zeros((3, 2)), r"points \(m, 10\)"),
        (np.full((3, 10), np.nan), "NaN"),
    ],
)
def test_bad_centers(diabetes: tuple[np.ndarray, np.ndarray], centers: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SLKLRegressor(centers=centers).fit(*diabetes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("sigma2", value) for value in (0, -1.0, np.nan, "mean", True)),
        *(("penalty", value) for value in (0, np.inf, "path:1:2:3", "max:2", "some")),
        *(("sigma2", value) for value in ((), (1.0, 1.0), (1.0, -1.0), "1,x")),
        *(("kernel", "linear"), ("degree", 0), ("degree", 21), ("patience", -1), ("verbose", "yes")),
        *(("n_centers", value) for value in (0, 2.5, "some")),
        *(("budget", value) for value in (0, -1, "soon", True)),
        ("standardise", 1),
        *(("refit", value) for value in ("lasso", True)),
        *(("select", value) for value in ("greedy", "greedy:0", "none", 5)),
        *(("tol", 0), ("max_sweeps", 0), ("schedule", "cyclic"), ("coupling", "one"), ("memory_limit", "much")),
    ],
)
def test_bad_parameters(diabetes: tuple[np.ndarray, np.ndarray], name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        SLKLRegressor(**{name: value}).fit(*diabetes)


def test_numbers_may_be_text(diabetes: tuple[np.ndarray, np.ndarray]) -> None:
    fits = [SLKLRegressor(40, penalty=p, sigma2=s, random_state=0).fit(*diabetes) for p, s in ((2.5, 8), ("2.5", "8"))]
    np.testing.assert_array_equal(fits[0].coef_, fits[1].coef_)
    assert fits[1].penalty_ == 2.5


def test_bad_sliced_arrays(diabetes: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    X, y = diabetes
    spoilt = kinds_of_array(X, tmp_path)
    machine = SLKLRegressor(10, random_state=0)
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


def test_more_centers_than_rows_are_clipped(diabetes: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = diabetes[0][:30], diabetes[1][:30]
    weights = np.repeat([1.0, 0.0], [20, 10])
    with pytest.warns(UserWarning, match="n_centers=50 is above the 20 rows"):
        clipped = SLKLRegressor(50).fit(X, y, weights)
    np.testing.assert_allclose(clipped.predict(X), SLKLRegressor("all").fit(X, y, weights).predict(X), atol=1e-9)


def test_a_gram_beyond_the_memory_limit_is_refused(diabetes: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(MemoryError, match="lower n_centers to") as refusal:
        SLKLRegressor(400, penalty="max:1e-7", memory_limit="1MiB").fit(*diabetes)
    most = int(str(refusal.value).split("centers to ")[1].split()[0])
    assert 100 < most < 400
    assert SLKLRegressor(most, penalty="max:1e-7", memory_limit="1MiB").fit(*diabetes).dual_gap_ <= 1e-3


def test_points_far_from_the_origin_are_refused_in_words(diabetes: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = diabetes
    X = np.vstack([X[:20] + 1e12, X[20:]])
    with pytest.raises(ValueError, match="rescale"):
        SLKLRegressor("all", sigma2=1e-3, standardise=False).fit(X, y)


def test_a_tolerance_not_reached_is_told(diabetes: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = diabetes
    with pytest.warns(ConvergenceWarning, match=r"gap \d\.\d+e-\d+, tol=1e-05, 2 iterations"):
        machine = SLKLRegressor(100, tol=1e-5, max_sweeps=2, schedule="uniform", random_state=0).fit(X, y)
    assert machine.n_iter_ == 2
    assert machine.dual_gap_ > 1e-5
    assert machine.score(X, y) > 0.3


def test_the_callback_gets_every_record(diabetes: tuple[np.ndarray, np.ndarray]) -> None:
    records: list[dict[str, Any]] = []
    machine = SLKLRegressor(100, schedule="uniform", penalty=1.0, random_state=0, callback=records.append)
    machine.fit(*diabetes)
    assert [record["iteration"] for record in records] == list(range(1, machine.n_iter_ + 1))
    assert records[-1]["relative_gap"] == machine.dual_gap_ <= 1e-3
    assert records[-1]["n_active"] == len(machine.centers_)
    assert {record["penalty"] for record in records} == {1.0}


def test_least_squares_alone_has_no_iterations(diabetes: tuple[np.ndarray, np.ndarray]) -> None:
    records: list[dict[str, Any]] = []
    assert SLKLRegressor(60, random_state=0, callback=records.append).fit(*diabetes).penalty_ is None
    assert not records


class Interrupting:
    """Sends this process SIGINT, as Ctrl-C does, in the record `at`."""

    def __init__(self, at: int) -> None:
        self.at, self.seen = at, 0

    def __call__(self, record: dict[str, Any]) -> None:
        self.seen += 1
        if self.seen == self.at:
            signal.raise_signal(signal.SIGINT)


@pytest.fixture
def default_interrupt() -> Any:
    assert threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("default_interrupt")
@pytest.mark.parametrize(
    "options",
    [
        {"coupling": "shared"},
        {"penalty": "max:1e-7"},
        {"refit": "ridge"},
        {"penalty": "auto", "refit": "ridge"},
        {"select": "greedy:60"},
        {"select": "greedy:auto"},
    ],
    ids=str,
)
def test_an_interruption_leaves_a_usable_model(digits: tuple[np.ndarray, np.ndarray], options: dict[str, Any]) -> None:
    X, y = digits[0][:800], digits[1][:800]
    at = 200 if options.get("penalty") == "auto" else 40 if "select" in options else 4
    interrupting = Interrupting(at)
    machine = SLKLClassifier(150, random_state=0, callback=interrupting, **options)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        machine.fit(X, y)
    assert interrupting.seen == at
    assert len(machine.centers_) <= 150
    assert machine.score(X, y) > 0.7


@pytest.mark.usefixtures("default_interrupt")
def test_a_real_interruption_at_any_moment_of_the_solve(digits: tuple[np.ndarray, np.ndarray]) -> None:
    """A timer instead of the callback: the signal comes wherever the solve is."""
    started = threading.Event()

    def start_timer(record: dict[str, Any]) -> None:
        if not started.is_set():
            started.set()
            before = signal.signal(signal.SIGALRM, signal.default_int_handler)
            handlers.append(before)
            signal.setitimer(signal.ITIMER_REAL, 0.02)

    handlers: list[Any] = []
    machine = SLKLClassifier(600, random_state=0, penalty="auto", tol=1e-9, callback=start_timer)
    try:
        with pytest.warns(ConvergenceWarning, match="interrupted"):
            machine.fit(*digits)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handlers[0])
    assert machine.predict(digits[0]).shape == digits[1].shape


def test_a_warm_start_begins_where_the_last_fit_ended(diabetes: tuple[np.ndarray, np.ndarray]) -> None:
    options: dict[str, Any] = {"schedule": "uniform", "random_state": 0, "tol": 1e-6, "max_sweeps": 5000}
    cold = SLKLRegressor(200, penalty=0.5, **options).fit(*diabetes)
    warm = SLKLRegressor(200, penalty=0.6, warm_start=True, **options).fit(*diabetes)
    warm.set_params(penalty=0.5).fit(*diabetes)
    assert warm.n_iter_ < cold.n_iter_
    np.testing.assert_allclose(warm.predict(diabetes[0]), cold.predict(diabetes[0]), atol=0.02)
    again = warm.fit(*diabetes)
    assert again.n_iter_ <= 1


def test_a_warm_start_forgets_what_does_not_fit(diabetes: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = diabetes
    machine = SLKLRegressor(50, warm_start=True, random_state=0).fit(X, y)
    machine.fit(X[:, :4], y)
    np.testing.assert_allclose(
        machine.predict(X[:, :4]),
        SLKLRegressor(50, penalty="max:1e-7", random_state=0).fit(X[:, :4], y).predict(X[:, :4]),
        atol=1e-6,
    )


def test_selection_keeps_as_many_as_asked_for(digits: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = digits
    few = SLKLClassifier(300, select="greedy:25", random_state=0).fit(X, y)
    more = SLKLClassifier(300, select="greedy:100", random_state=0).fit(X, y)
    assert (len(few.centers_), len(more.centers_), few.n_iter_) == (25, 100, 25)
    assert 0.8 < few.score(X, y) < more.score(X, y)
    np.testing.assert_array_equal(few.center_index_, more.center_index_[:25])
    assert (few.mu_, few.penalty_) == (None, None)
    assert np.isnan(few.dual_gap_)
    with pytest.raises(ValueError, match="more centers than the 20 candidates"):
        SLKLClassifier(20, select="greedy:25").fit(X, y)


def test_a_refit_removes_the_shrinkage(diabetes: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = diabetes
    shrunk = SLKLRegressor(100, penalty=30.0, random_state=0).fit(X, y)
    refitted = SLKLRegressor(100, penalty=30.0, refit="ridge", random_state=0).fit(X, y)
    np.testing.assert_array_equal(shrunk.center_index_, refitted.center_index_)
    np.testing.assert_allclose(shrunk.mu_, refitted.mu_, rtol=1e-6)
    assert np.mean((refitted.predict(X) - y) ** 2) < np.mean((shrunk.predict(X) - y) ** 2)


def test_grid_search_pipeline_and_clone(diabetes: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = diabetes
    steps = make_pipeline(StandardScaler(), SLKLRegressor(80, random_state=0))
    grid = {"slklregressor__penalty": [1.0, 100.0], "slklregressor__sigma2": ["median", 1.0]}
    search = GridSearchCV(steps, grid, cv=3).fit(X, y)
    assert search.best_score_ > 0.35
    assert search.best_params_["slklregressor__sigma2"] == "median"
    copy = clone(search.best_estimator_).fit(X, y)
    np.testing.assert_allclose(copy.predict(X), search.predict(X), atol=1e-9)


def test_the_default_width_follows_the_scale_of_the_data() -> None:
    X, y = make_blobs(n_samples=300, centers=5, random_state=0)
    small, large = (
        SLKLClassifier(sigma2="median", standardise=False, random_state=0).fit(scale * X, y) for scale in (1, 1000)
    )
    squares = ((X[:, None] - X[None]) ** 2).sum(axis=2)[np.triu_indices(300, 1)]
    assert small.sigma2_ == pytest.approx(np.median(squares), rel=5e-4)  # four digits
    assert large.sigma2_ == pytest.approx(1e6 * small.sigma2_)
    np.testing.assert_array_equal(small.predict(X), large.predict(1000 * X))


def test_the_model_can_be_saved_for_the_commands(digits: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    X, y = digits[0][:300], digits[1][:300]
    machine = SLKLClassifier(60, random_state=0).fit(X, y)
    save_model(tmp_path / "model", machine.to_model())
    loaded = load_model(tmp_path / "model")
    np.testing.assert_allclose(loaded.decision_function(loaded.features_of(X)), machine.decision_function(X), atol=1e-3)
    np.testing.assert_array_equal(
        np.array(loaded.labels)[loaded.predict_targets(loaded.features_of(X))], machine.predict(X)
    )


def test_nothing_but_the_mean_is_left_of_a_huge_penalty(diabetes: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = diabetes
    machine = SLKLRegressor(30, penalty=1e12).fit(X, y + 3.0)
    assert machine.centers_.shape == (0, 10)
    np.testing.assert_allclose(machine.predict(X), np.full(len(X), np.mean(y + 3.0)))
