"""Intervals and sets of labels: quantiles against naive twins, coverage of new rows, and what is refused."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn import datasets

from pipeline.errors import ConfigError
from pipeline.estimators import SLKLClassifier, SLKLRegressor
from pipeline.prediction.conformal import conformal_of, label_sets

Rows = tuple[np.ndarray, np.ndarray]


@pytest.mark.parametrize("n", [1, 9, 19, 20, 199, 1000])
def test_a_quantile_is_the_score_of_the_rank_that_one_row_more_asks_for(n):
    scores = np.random.default_rng(n).normal(size=n)
    found = conformal_of(scores, np.ones(n), np.arange(n))
    assert found is not None
    assert found.n_units == n
    for level in (0.005, 0.5, 0.7, 0.9, 0.95, 0.995):
        rank = math.ceil((n + 1) * round(200 * level) / 200 - 1e-9)
        assert found.allows(level) == (rank <= n)
        if rank <= n:
            assert found.quantile(level) == np.sort(scores)[rank - 1]
        else:
            needed = math.ceil(level / (1 - level) - 1e-9)
            told = f": {n} rows or groups .* up to {len(found.quantiles) / 200:g}, and {needed} are"
            with pytest.raises(ConfigError, match=told):
                found.quantile(level)
    if n > 19:
        assert found.quantile(0.901) == found.quantile(0.905), "the next that is kept"
    with pytest.raises(ConfigError, match=r"^no level of 0\.996: the highest level is 0\.995$"):
        found.quantile(0.996)
    for level in (1.0, math.nan, "0.9", None):
        with pytest.raises(ConfigError, match="a number between 0 and 1; found"):
            found.quantile(level)


@pytest.mark.parametrize("grouped", [False, True])
def test_weights_count_and_a_group_counts_as_one_row(grouped):
    rng = np.random.default_rng(0)
    scores, weights, units = rng.normal(size=400), rng.integers(0, 4, 400).astype(float), np.arange(400)
    units = rng.integers(0, 80, 400).astype(np.uint64) if grouped else units
    found = conformal_of(scores, weights, units)
    shares = np.array([weight / np.sum(units == unit) for weight, unit in zip(weights, units, strict=True)])
    of_units = np.array([shares[units == unit].sum() for unit in np.unique(units)])
    n = of_units.sum() ** 2 / np.sum(of_units**2)
    assert found is not None
    assert found.n_units == pytest.approx(n)
    for level in (0.1, 0.5, 0.9):
        reached = [score for score in scores if shares[scores <= score].sum() >= level * (1 + 1 / n) * shares.sum()]
        assert found.quantile(level) == min(reached)
    assert conformal_of(scores, 0 * weights, units) is None
    assert conformal_of(scores, 1e-9 * weights, units).quantiles == found.quantiles


def test_a_set_has_the_labels_that_are_likely_enough_and_always_the_likeliest():
    p = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.4, 0.4, 0.2]])
    assert label_sets(p, 0.7).tolist() == [[True, True, False], [False, False, True], [True, True, False]]
    assert label_sets(p, 0.1).tolist() == [[True, False, False], [False, False, True], [True, True, False]]


def sine(rng: np.random.Generator, n: int, *, spread: bool = False) -> Rows:
    x = rng.uniform(-3, 3, (n, 1))
    return x, np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=n) * ((0.2 + np.abs(x[:, 0])) if spread else 1.0)


def heavy(rng: np.random.Generator, n: int) -> Rows:
    x = rng.normal(size=(n, 2))
    return x, x[:, 0] + rng.standard_t(2, n)


def friedman(make: Callable[..., Rows], noise: float) -> Callable[..., Rows]:
    return lambda rng, n: make(n, noise=noise, random_state=int(rng.integers(2**31)))


def labels(**how: Any) -> Callable[..., Rows]:
    return lambda rng, n: datasets.make_classification(n, random_state=int(rng.integers(2**31)), **how)


def owned(load: Callable[..., Any]) -> Callable[..., Rows]:
    """Rows of a data set of scikit-learn, all of them, in an order that is drawn."""

    def rows(rng: np.random.Generator, _: int) -> Rows:
        X, y = load(return_X_y=True)
        order = rng.permutation(len(X))
        return X[order], y[order]

    return rows


FEW, SEVERAL, MANY = 300, 700, 2500
NUMBERS: dict[str, tuple[Callable[..., Rows], int]] = {
    "diabetes": (owned(datasets.load_diabetes), 250),
    "first of Friedman": (friedman(datasets.make_friedman1, 1.0), SEVERAL),
    "first of Friedman, many": (friedman(datasets.make_friedman1, 1.0), MANY),
    "second of Friedman": (friedman(datasets.make_friedman2, 50.0), SEVERAL),
    "third of Friedman": (friedman(datasets.make_friedman3, 0.1), FEW),
    "sine": (sine, FEW),
    "sine, many": (sine, MANY),
    "noise that spreads": (lambda rng, n: sine(rng, n, spread=True), SEVERAL),
    "heavy tails": (heavy, MANY),
    "noise": (lambda rng, n: (rng.normal(size=(n, 4)), rng.normal(size=n)), FEW),
}
CLASSES: dict[str, tuple[Callable[..., Rows], int]] = {
    "iris": (owned(datasets.load_iris), 100),
    "wine": (owned(datasets.load_wine), 120),
    "cancer": (owned(datasets.load_breast_cancer), 350),
    "digits": (owned(datasets.load_digits), 1200),
    "two": (labels(n_features=8, n_informative=4, flip_y=0.15), SEVERAL),
    "two, many": (labels(n_features=8, n_informative=4, flip_y=0.15), MANY),
    "five": (labels(n_informative=6, n_classes=5, n_clusters_per_class=1, flip_y=0.1), SEVERAL),
    "rare": (labels(n_features=6, n_informative=4, weights=[0.9], flip_y=0.05), MANY),
    "moons": (lambda rng, n: datasets.make_moons(n, noise=0.4, random_state=int(rng.integers(2**31))), SEVERAL),
    "noise": (lambda rng, n: (rng.normal(size=(n, 4)), rng.integers(0, 3, n)), FEW),
}


@pytest.mark.ci
@pytest.mark.parametrize("name", [*NUMBERS, *(f"{name}: classes" for name in CLASSES)])
def test_new_rows_are_covered_within_the_error_of_that(name):
    """That of the rows that calibrate and of those that are tried: four deviations; sets may cover more."""
    of_classes = name.endswith(": classes")
    make, n_fit = CLASSES[name.removesuffix(": classes")] if of_classes else NUMBERS[name]
    rng, level = np.random.default_rng(len(name)), 0.9
    X, y = make(rng, n_fit + 3000)
    fit, new = slice(None, n_fit), slice(n_fit, None)
    if of_classes:
        classifier = SLKLClassifier(60, random_state=0).fit(X[fit], y[fit])
        machine, n_new = classifier, len(X[new])
        held = classifier.predict_set(X[new], level)[np.arange(n_new), np.searchsorted(classifier.classes_, y[new])]
    else:
        machine = SLKLRegressor(60, random_state=0).fit(X[fit], y[fit])
        low, high = machine.predict_interval(X[new], level).T
        np.testing.assert_allclose((low + high) / 2, machine.predict(X[new]))
        held = (low <= y[new]) & (y[new] <= high)
    n = machine._model.conformal.n_units
    off = 4 * math.sqrt(level * (1 - level) * (1 / n + 1 / len(held)))
    assert held.mean() > level - off
    assert of_classes or held.mean() < level + off + 1 / n


@pytest.mark.ci
@pytest.mark.parametrize("n_groups", [150, 600])
def test_rows_of_new_groups_are_covered(n_groups):
    """Where rows of a group share an offset: by folds of the groups, and by those that are held out."""
    rng = np.random.default_rng(0)

    def rows(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        groups, offsets = np.repeat(np.arange(n), 5), rng.normal(size=n)
        X = rng.normal(size=(n, 2))[groups] + 0.1 * rng.normal(size=(5 * n, 2))
        return X, np.sin(2 * X[:, 0]) + offsets[groups] + 0.1 * rng.normal(size=5 * n), groups

    X, y, groups = rows(n_groups)
    machine = SLKLRegressor(60, random_state=0).fit(X, y, groups=groups)
    n = machine._model.conformal.n_units
    assert n < n_groups + 1, "each group counts as one row"
    X, y, _ = rows(2000)
    low, high = machine.predict_interval(X, 0.8).T
    held, off = np.mean((low <= y) & (y <= high)), 4 * math.sqrt(0.16 * (1 / n + 1 / 2000))
    assert 0.8 - off < held < 0.8 + off + 1 / n


@pytest.mark.filterwarnings("ignore:.*different rows:UserWarning")
@pytest.mark.parametrize(
    ("n", "penalty", "level", "words"),
    [
        (60, 1e-3, 0.9, "no intervals and sets: the fit held no rows out"),
        (4, None, 0.9, "of fewer than 5 it cannot"),
        (60, None, "high", "must be a number between 0 and 1; found 'high'"),
        (60, None, 0.99, r"no level of 0\.99: 60 rows .* 99 are needed"),
    ],
)
def test_what_is_not_supported_is_refused_with_the_reason(n, penalty, level, words):
    X = np.random.default_rng(0).normal(size=(n, 2))
    machine = SLKLRegressor(10, penalty=penalty, random_state=0).fit(X, np.arange(1.0 * n))
    with pytest.raises(ValueError, match=words):
        machine.predict_interval(X, level)
