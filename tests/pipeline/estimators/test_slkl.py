"""The estimators against dense twins, on every kind of array, at their limits, and by scikit-learn's own checks."""

import itertools
import signal
from collections.abc import Iterator
from inspect import signature
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.datasets import load_diabetes, load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_selection import RFE, SelectFromModel
from sklearn.linear_model import Lasso
from sklearn.metrics import log_loss
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.preprocessing import scale
from sklearn.utils.estimator_checks import estimator_checks_generator

from pipeline.estimators import SLKLClassifier, SLKLRegressor
from pipeline.fit import filled_settings
from pipeline.prediction.scores import probabilities
from runs import largest_bytes

# 442 rows of ten features, and their targets, standardised; 1797 images of 8 x 8 pixels in [0, 1] and their ten labels.
DIABETES = scale(load_diabetes().data), scale(load_diabetes().target)
DIGITS = (load_digits().data / 16).astype(np.float32), load_digits().target


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_penalised_regressor_is_the_dense_lasso(intercept, weighted, monkeypatch):
    monkeypatch.setattr(filled_settings, "MOST_AT_ONCE", 50)  # of more the command has a working set
    X, y = DIABETES[0], DIABETES[1] + 0.5
    weights = np.random.default_rng(0).uniform(0.5, 3.0, len(y)) if weighted else np.ones(len(y))
    options: dict[str, Any] = {"fit_intercept": intercept, "standardise": False, "random_state": 1, "tol": 0.0}
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


def test_mu_is_the_kernel_of_the_paper():
    X, y = DIABETES
    options: dict[str, Any] = {"sigma2": 4.0, "penalty": 0.25, "fit_intercept": False, "random_state": 0}
    machine = SLKLRegressor(50, **options).fit(X, y)
    C = rbf_kernel(X, machine.centers_, gamma=1 / 8)
    low_rank = (C * machine.mu_) @ C.T
    np.testing.assert_allclose(machine.mu_, np.abs(machine.dual_coef_) / np.sqrt(0.25), rtol=1e-6)
    expected = low_rank @ np.linalg.solve(np.eye(len(y)) + low_rank, y)
    np.testing.assert_allclose(machine.predict(X), expected, atol=1e-7)
    np.testing.assert_allclose(SLKLRegressor(50, refit="ridge", **options).fit(X, y).mu_, machine.mu_, rtol=1e-6)


def test_float32_stays_float32():
    X, y = DIABETES[0].astype(np.float32), DIABETES[1].astype(np.float32)
    machine = SLKLRegressor(30, penalty=1.0, random_state=0).fit(X, y)
    assert machine.centers_.dtype == machine.predict(X).dtype == np.float32
    assert machine.predict(X.astype(np.float64)).dtype == machine.dual_coef_.dtype == np.float64
    classifier = SLKLClassifier(30, penalty=1.0, random_state=0).fit(X, y > 0)
    assert classifier.decision_function(X).dtype == np.float32
    assert classifier.predict(X).dtype == bool


@pytest.mark.parametrize("penalty", ["none", 0.1])
def test_rows_of_float32_have_columns_of_float64(penalty):
    X, y = DIGITS[0][:300], DIGITS[1][:300] % 2
    options: dict[str, Any] = {"random_state": 0, "sigma2": 3.0, "penalty": penalty, "tol": 1e-6}
    exact = SLKLClassifier(60, **options).fit(X.astype(np.float64), y).decision_function(X.astype(np.float64))
    assert np.abs(SLKLClassifier(60, **options).fit(X, y).decision_function(X) - exact).max() < 1e-6


def test_repeated_rows_are_one_candidate():
    X, y = np.repeat(DIABETES[0][:30], 20, axis=0), np.repeat(DIABETES[1][:30], 20)
    machine = SLKLRegressor(30, sigma2=2.0, penalty=1e-8, random_state=0).fit(X, y)
    assert len(np.unique(machine.center_index_ // 20)) == len(machine.center_index_) > 20
    assert machine.score(X, y) > 0.999


def test_more_centers_than_rows_are_clipped():
    X, y = DIABETES[0][:30], DIABETES[1][:30]
    weights = np.repeat([1.0, 0.0], [20, 10])
    with pytest.warns(UserWarning, match="n_centers=50 is above the 20 different rows"):
        clipped = SLKLRegressor(50, penalty=0.1).fit(X, y, weights)
    np.testing.assert_allclose(clipped.predict(X), SLKLRegressor("all", penalty=0.1).fit(X, y, weights).predict(X))


def test_a_tolerance_not_reached_is_told():
    X, y = DIABETES
    with pytest.warns(ConvergenceWarning, match=r"gap \d\.\d+e-\d+, tol=1e-05, 2 iterations"):
        machine = SLKLRegressor(100, tol=1e-5, max_sweeps=2, schedule="uniform", random_state=0).fit(X, y)
    assert machine.n_iter_ == 2
    assert machine.dual_gap_ > 1e-5
    assert machine.score(X, y) > 0.3


def test_the_callback_gets_every_record():
    records: list[dict[str, Any]] = []
    machine = SLKLRegressor(60, schedule="uniform", penalty=1.0, random_state=0, callback=records.append)
    machine.fit(*DIABETES)
    assert [record["iteration"] for record in records] == list(range(1, machine.n_iter_ + 1))
    assert records[-1]["relative_gap"] == machine.dual_gap_ <= 1e-3
    assert records[-1]["n_active"] == len(machine.centers_)
    assert {record["penalty"] for record in records} == {1.0}
    records.clear()
    assert SLKLRegressor(40, sigma2=4.0, random_state=0, callback=records.append).fit(*DIABETES).penalty_ is None
    assert not records, "least squares alone has no iterations"


@pytest.mark.parametrize("kind", [SLKLRegressor, pytest.param(SLKLClassifier, marks=pytest.mark.ci)])
def test_scikit_learn_selects_the_features_that_matter(kind):
    X = np.random.default_rng(0).normal(size=(200, 8))
    y = X[:, 5] + X[:, 6] if kind is SLKLRegressor else X[:, 5] + X[:, 6] > 0
    machine = kind(30, kernel="gaussian", random_state=0)
    by_model, by_steps = SelectFromModel(machine, max_features=2, threshold=-np.inf), RFE(machine, step=0.5)
    for selector in (by_model.fit(X, y), by_steps.set_params(n_features_to_select=2).fit(X, y)):
        assert selector.get_support(indices=True).tolist() == [5, 6]
    assert machine.fit(X, y).feature_importances_.sum() == pytest.approx(1.0)
    assert machine.set_params(feature_scale=None).fit(X, y).feature_scales_ is None
    assert not hasattr(machine, "feature_importances_")


@pytest.mark.usefixtures("default_interrupt")
@pytest.mark.parametrize("options", [{"penalty": "auto", "refit": "ridge"}, {"select": "greedy:30"}], ids=str)
def test_an_interruption_leaves_the_last_model(options):
    X, y = DIGITS[0][:400], DIGITS[1][:400]
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


def test_a_selection_has_no_certificate():
    X, y = DIGITS[0][:300], DIGITS[1][:300]
    few = SLKLClassifier(120, select="greedy:15", random_state=0).fit(X, y)
    assert (len(few.centers_), few.n_iter_, few.mu_, few.penalty_) == (15, 15, None, None)
    assert np.isnan(few.dual_gap_)


@pytest.mark.ci
def test_rows_that_tell_nothing_get_probabilities_that_promise_nothing():
    losses = []
    for seed in range(8):  # 25 held-out rows that have chosen width and ridge would make it .73
        rng = np.random.default_rng(1000 + seed)
        machine = SLKLClassifier(random_state=seed).fit(rng.normal(size=(250, 10)), rng.integers(0, 2, 250))
        losses.append(log_loss(rng.integers(0, 2, 4000), machine.predict_proba(rng.normal(size=(4000, 10)))))
    assert np.mean(losses) < 0.705, losses  # ln 2 is .693


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("weighting", [None, "balanced", "factors"])
def test_probabilities_are_of_the_population_however_classes_are_weighted(n_classes, weighting):
    """Log loss against that of the true probabilities; labels are those of the decision values, by weighted rows."""
    rng, n = np.random.default_rng(0), 1500
    X = rng.normal(size=(n + 5000, 2))
    odds = np.stack([0 * X[:, 0], 2 * X[:, 0] - 3, X[:, 1] * X[:, 0] - 3.5], axis=1)[:, :n_classes]
    true = softmax(odds, axis=1)
    y = (rng.random((len(X), 1)) > true.cumsum(axis=1)).sum(axis=1)
    factors = {0: 1.0, 1: 9.0, 2: 30.0}
    class_weight: Any = factors if weighting == "factors" else weighting
    options: dict[str, Any] = {"kernel": "gaussian", "sigma2": 2.0, "feature_scale": None, "random_state": 0}
    machine = SLKLClassifier(60, class_weight=class_weight, **options).fit(X[:n], y[:n])
    p, test = machine.predict_proba(X[n:]), true[n:]
    assert -(test * np.log(p)).sum(axis=1).mean() < -(test * np.log(test)).sum(axis=1).mean() + 0.03
    np.testing.assert_allclose(p.mean(axis=0), test.mean(axis=0), atol=0.03)
    decision = machine.decision_function(X[n:])
    expected = decision.argmax(axis=1) if n_classes > 2 else (decision >= 0).astype(int)
    assert machine.predict(X[n:]).tolist() == expected.tolist()
    assert (np.mean(p.argmax(axis=1) != expected) > 0.1) == (weighting is not None)
    if weighting == "factors":
        by_row = SLKLClassifier(60, **options).fit(X[:n], y[:n], sample_weight=[factors[k] for k in y[:n]])
        np.testing.assert_array_equal(machine.dual_coef_, by_row.dual_coef_)


def test_there_are_no_probabilities_where_no_rows_can_be_held_out():
    X, y = DIGITS[0][:300].astype(np.float64), DIGITS[1][:300]
    machine = SLKLClassifier(30, penalty=1.0, random_state=0)
    assert hasattr(machine, "predict_proba")
    p = machine.fit(X, y).predict_proba(X.astype(np.float32))
    np.testing.assert_allclose(p, probabilities(machine.decision_function(X), machine.calibration_), atol=1e-5)
    np.testing.assert_allclose(machine.predict_log_proba(X), np.log(p), rtol=1e-4)
    machine.set_params(n_centers=1).fit(np.ones((20, 5)), y[:20])
    assert machine.temperature_ is None
    assert not hasattr(machine, "predict_proba")
    assert not hasattr(SLKLRegressor(refit="ridge"), "predict_proba")
    assert not hasattr(SLKLRegressor(30, refit="ridge").fit(X, X[:, 0]), "temperature_")


@pytest.mark.parametrize(
    ("of_x", "of_y", "mean", "close"),
    [(1.0, 1e-6, 0.0, 1e-9), (1.0, 1e6, 0.0, 1e-9), (2.0**20, 1.0, 0.0, 1e-6), (1.0, 1.0, 1e9, 1e-3)],
)
@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({}, marks=pytest.mark.ci),
        {"sigma2": "median"},
        {"penalty": "max:1e-3"},
        {"refit": "ridge"},
        {"select": "greedy:40"},
        {"penalty": "auto"},
    ],
    ids=str,
)
def test_units_change_nothing(of_x, of_y, mean, close, asked):
    """Columns of unlike spread, far from the origin."""
    draw = np.random.default_rng(0)
    X = draw.normal(size=(220, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * draw.normal(size=220) + 50
    X = X * (1e-3, 1.0, 1e4) + (0.0, 5.0, -1e4)
    groups = np.arange(len(X))  # the same rows are held out, which equal numbers decide otherwise
    once = SLKLRegressor(random_state=0, **asked).fit(X, y, groups=groups)
    again = SLKLRegressor(random_state=0, **asked).fit(of_x * X, mean + of_y * y, groups=groups)
    assert len(again.centers_) == len(once.centers_) > 0
    np.testing.assert_allclose((again.predict(of_x * X) - mean) / of_y, once.predict(X), rtol=close)


@pytest.mark.ci
@pytest.mark.parametrize(
    "draw", [lambda rng: rng.standard_t(1.2, (400, 5)), lambda rng: np.exp(20 * rng.normal(size=(250, 3)))]
)
def test_no_default_fit_fails_for_its_width(draw):
    for seed in (4, 5):
        X = draw(np.random.default_rng(seed))
        far = np.abs(X[:, 0]) > np.median(np.abs(X[:, 0]))
        for machine in (SLKLClassifier(80, random_state=0), SLKLRegressor(80, random_state=0)):
            assert np.isfinite(machine.fit(X, far).predict(X)).all()


@pytest.mark.parametrize(("sigma2", "heavy"), [(1e6, 1.0), (1e6, 1e4), (None, 1e12)])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_columns_of_which_centring_leaves_little_are_fitted(sigma2, heavy):
    """Nearly constant ones, or of one row that outweighs the others: rounding makes eigenvalues negative."""
    draw = np.random.default_rng(0)
    X, weights = draw.normal(size=(190, 4)), np.ones(190)
    y, weights[3] = np.sin(X[:, 0]) + 0.1 * draw.normal(size=190), heavy
    machine = SLKLRegressor("all", sigma2=sigma2, random_state=0).fit(X, y, weights)
    assert machine.score(X, y, weights) > 0.85
    assert 0 < machine.dual_gap_ < 1


def test_nothing_but_the_mean_is_left_of_a_huge_penalty_and_numbers_may_be_text():
    X, y = DIABETES
    machine = SLKLRegressor(30, penalty="1e12", sigma2="8").fit(X, y + 3.0)
    assert (machine.penalty_, machine.sigma2_, machine.centers_.shape) == (1e12, 8.0, (0, 10))
    np.testing.assert_allclose(machine.predict(X), np.full(len(X), np.mean(y + 3.0)))


ROWS = np.random.default_rng(0).normal(size=(120, 3))
VALUES, LABELS = 2 * ROWS[:, 0] + 1, np.digitize(ROWS[:, 0], [-0.5, 0.5])
WEIGHT = r"class_weight: row \d+ is .*; a weight must be finite and at least 0"
REFUSED = [
    *((SLKLRegressor(sigma2=value), "sigma2 must be") for value in (-1.0, np.nan, "mean", True, (1.0, 2.0))),
    *((SLKLRegressor(**{name: 2.5}), f"{name} must be") for name in ("n_centers", "refit", "select", "standardise")),
    (SLKLRegressor(schedule=None), "schedule must be one of"),
    (SLKLRegressor(callback=3), "callback must be a function"),
    (SLKLRegressor(20, sigma2=1e-310), "sigma2=1e-310 is too small"),
    (SLKLRegressor(penalty=1e-14, sigma2=1e8), "all kernel columns are constant to rounding"),
    *((SLKLClassifier(20, class_weight={k: bad}), WEIGHT) for k, bad in enumerate((-1.0, np.nan, np.inf))),
    (SLKLClassifier(20, select="greedy:25"), "select='greedy:25': there are 20 candidates"),
    (SLKLClassifier(20, class_weight={5: 1}), "class_weight: give each label a weight; y has 0, 1, 2"),
]


@pytest.mark.parametrize(("machine", "words"), REFUSED, ids=str)
def test_parameters_that_make_no_sense_are_named(machine, words):
    with pytest.raises(ValueError, match=words) as found:
        machine.fit(ROWS, LABELS if isinstance(machine, SLKLClassifier) else VALUES)
    assert "--" not in str(found.value), "an estimator has no flags"


DAYS = np.arange(120).astype("datetime64[D]")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"X": np.tile(DAYS, (3, 1)).T}, r"X holds times \(datetime64\[D\]\); give numbers of days"),
        ({"X": np.zeros((120, 3), [("a", float)])}, "X holds records; give .*unstructured"),
        ({"X": np.zeros((120, 2, 2, 2))}, r"X has shape .*; give .*: X\.reshape\(len\(X\), -1\) gives columns"),
        ({"y": DAYS}, r"y holds times"),
        ({"y": DAYS.astype(str)}, "y holds words, such as '1970-01-01'"),
        ({"y": np.resize([1.0, None], 120)}, "y: row 1 is nan; every target must be finite"),
        ({"sample_weight": DAYS}, r"sample_weight holds times"),
        ({"X": np.ma.masked_array(ROWS, ROWS > 1)}, "has values that a mask hides"),
        ({"y": np.ma.masked_array(VALUES, np.arange(120) == 7)}, "has values that a mask hides"),
    ],
)
def test_what_numpy_would_make_numbers_of_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        SLKLRegressor(20).fit(**{"X": ROWS, "y": VALUES} | change)
    if "X" in change:
        with pytest.raises(ValueError, match=words):
            SLKLRegressor(20, sigma2=1.0, random_state=0).fit(ROWS, VALUES).predict(change["X"])


def test_a_model_of_float32_centers_must_be_close_to_the_estimator():
    X, y = ROWS, VALUES
    options: dict[str, Any] = {"sigma2": "median", "random_state": 0}
    machine = SLKLRegressor(20, standardise=False, **options).fit(X * 1e-3 + 1e3, y)
    with pytest.raises(ValueError, match=r"float32, which moves one of these by \d.* kernel widths; standardise X"):
        machine.to_model()
    with pytest.raises(ValueError, match="too large for float32"):
        SLKLRegressor(20, standardise=False, **options).fit(X * 1e100, y).to_model()
    assert all(SLKLRegressor(20, **options).fit(to, y).to_model().n_centers > 0 for to in (X * 1e-3 + 1e6, X + 100))


@pytest.mark.parametrize(
    "chosen", [{}, {"penalty": "max:1e-2"}, {"penalty": "auto"}, {"refit": "ridge"}, {"select": "greedy:300"}]
)
def test_a_memory_limit_is_kept_by_the_fit_and_never_makes_a_small_model(chosen):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(1200, 4))
    y = X.sum(axis=1) + generator.normal(size=1200)
    plain: dict[str, Any] = {"feature_scale": None, "sigma2": 8.0, "random_state": 0, **chosen}
    SLKLRegressor(600, memory_limit="400MiB", **plain).fit(X, y)  # which compiles the loops
    with pytest.raises(MemoryError, match=r"600 candidates need .* lower n_centers to") as refusal:
        SLKLRegressor(600, memory_limit="12MiB", **plain).fit(X, y)
    most = int(str(refusal.value).split("centers to ")[1].split()[0])
    assert 300 < most < 600
    with largest_bytes() as largest:
        SLKLRegressor(most, memory_limit="12MiB", **plain).fit(X, y)
    assert largest[0] < 1.1 * 12 * 2**20


@pytest.mark.ci
@pytest.mark.parametrize("chosen", [{"columns": "on-demand"}, {"columns": "at-once"}])
def test_candidates_whose_gram_does_not_fit_have_columns_on_demand_or_a_working_set(chosen):
    """Here the Gram of all would take 125 MiB."""
    X = np.random.default_rng(0).random((4000, 4)).astype(np.float32)
    y = np.sin(6 * X[:, 0]) + X[:, 1] * X[:, 2]
    asked: dict[str, Any] = {"penalty": 1.0, "sigma2": 1.0, "random_state": 0, **chosen}
    SLKLRegressor("all", memory_limit="400MiB", **asked).fit(X[:500], y[:500])  # which compiles the loops
    with largest_bytes() as largest:
        machine = SLKLRegressor("all", memory_limit="48MiB", **asked).fit(X, y)
    assert largest[0] < 1.1 * 48 * 2**20
    assert machine.dual_gap_ <= 1e-3, "over all candidates"
    assert machine.columns_["active"] == len(machine.dual_coef_) < machine.columns_["materialised"] < 2000


@pytest.mark.ci
def test_widths_are_tried_with_no_more_than_a_second_copy_of_their_rows():
    X = np.random.default_rng(0).normal(size=(10_000, 1000))
    with largest_bytes() as largest:
        SLKLRegressor(100, penalty="max:1e-2", sigma2="auto", random_state=0).fit(X, X[:, 0])
    assert largest[0] < 2 * 8 * X.size + 32 * 2**20


CHECKED = {
    "regressor": SLKLRegressor(),
    "regressor, scales and width": SLKLRegressor(feature_scale="learned", sigma2="auto"),
    "classifier": SLKLClassifier(),
    "classifier, no intercept": SLKLClassifier(fit_intercept=False),
    "classifier, scales": SLKLClassifier(feature_scale="learned"),
    "regressor, edges": SLKLRegressor(kernel="product-laplace", sigma2=4.0),
    "classifier, probabilities": SLKLClassifier(refit="ridge"),
}
QUICK = ("check_fit1", "check_fit2", "check_no_attributes", "check_parameters", "check_requires")
LONG = ("check_classifiers_train", "check_regressors_train", "check_regressor_data_not_an_array")


def checks() -> Iterator[Any]:
    for name, estimator in CHECKED.items():
        for copy, check in estimator_checks_generator(estimator):
            function = getattr(check, "func", check).__name__
            plain = name in ("regressor", "classifier", "classifier, probabilities")
            seldom = pytest.mark.ci if plain or not function.startswith(LONG) else pytest.mark.nightly
            quick = plain and function.startswith(QUICK)
            yield pytest.param(copy, check, marks=() if quick else seldom, id=f"{name}-{function}")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # weights of 1000 and 1e-4 leave a gap
@pytest.mark.parametrize(("estimator", "check"), [*checks()])
def test_estimators_keep_the_conventions_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize("kind", [SLKLRegressor, SLKLClassifier])
def test_every_parameter_is_described(kind):
    described = f"{SLKLRegressor.__doc__}{kind.__doc__}"
    assert not [name for name in signature(kind).parameters if f"\n    {name} : " not in described]


@pytest.mark.parametrize(("n_columns", "n"), [(2, 60), (2, 2000), (4, 150)])
def test_rows_of_a_few_categories_are_told_apart(n_columns, n):
    """New rows are equal to training rows there, whose targets differ: their means are what is learned."""
    Z = np.random.default_rng(n).integers(0, 2, (n, n_columns)).astype(float)
    y = 3.0 * Z[:, 1] + np.random.default_rng(1).normal(size=n)
    assert SLKLRegressor(random_state=0).fit(Z, y).score(Z, y) > 0.5
    labels = np.where(y > 1.5, "ill", "well")
    assert SLKLClassifier(random_state=0).fit(Z, labels).score(Z, labels) > 0.8


def test_where_nothing_is_told_the_model_has_no_centers():
    Z, y = np.random.default_rng(0).normal(size=(2, 30, 3))
    constant = SLKLRegressor(random_state=0).fit(Z, y[:, 0])
    assert len(constant.centers_) == 0
    np.testing.assert_allclose(constant.predict(Z), y[:, 0].mean())
