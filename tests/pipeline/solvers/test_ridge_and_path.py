"""Least squares and its ridge against scikit-learn's, a path and its search, final weights, rows left out."""

from collections.abc import Callable

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from dense_twins import problem_of, statistics_of
from pipeline.kernels.gram_statistics import GramStatistics, RowBounds, StatisticsSums, largest_terms
from pipeline.solvers import ridge
from pipeline.solvers.ridge import RIDGES, LabelledColumns, least_squares, refit
from pipeline.solvers.solve import LEAST_POINTS, MOST_POINTS, SolverOptions, penalty_max, search_penalties, solve

Curve = Callable[[int], float]
RIDGE = 0.3


def columns(n: int = 400, m: int = 25, t: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(n, 2)), rng.normal(size=(m, 2))
    K = np.exp(-((X[:, None] - Z[None]) ** 2).sum(-1) / 2)
    return K, np.column_stack([np.sin(2 * X[:, 0]), X[:, 1] > 0, X[:, 0] * X[:, 1]][:t]) + 0.1 * rng.normal(size=(n, t))


@pytest.mark.parametrize("intercept", [False, True])
def test_refit_is_scikit_learns_ridge_with_what_held_out_rows_prefer(intercept):
    K, Y = columns(n=120, m=60)
    fit, held = statistics_of(K[:60], Y[:60]), statistics_of(K[60:], Y[60:])
    found = refit(fit, held, statistics_of(K, Y), intercept=intercept)
    best = min(found.held_out_errors, key=lambda pair: pair[1])
    assert best[1] < found.held_out_errors[0][1]  # the choice is a real one here: the smallest ridge overfits
    assert np.isclose(found.ridge, best[0] * np.trace(K.T @ K) / 60)
    twin = Ridge(alpha=best[0] * np.trace(K[:60].T @ K[:60]) / 60, fit_intercept=intercept, solver="svd")
    error = ((twin.fit(K[:60], Y[:60]).predict(K[60:]) - Y[60:]) ** 2).sum() / 60
    assert np.isclose(best[1], error, rtol=1e-5)
    assert np.allclose(found.of_fit.weights.weights, twin.coef_.T, rtol=1e-6, atol=1e-7)
    whole = Ridge(alpha=found.ridge, fit_intercept=intercept, solver="svd").fit(K, Y)
    assert np.allclose(found.weights.weights, whole.coef_.T, rtol=1e-6, atol=1e-7)
    assert np.allclose(found.weights.intercept, whole.intercept_, rtol=1e-6, atol=1e-7)


def noisy(size: float) -> tuple[np.ndarray, tuple[GramStatistics, GramStatistics, GramStatistics]]:
    """Return columns, and the sums over rows to fit, over those held out and over all, of targets in noise."""
    K, Y = columns(n=120, m=60)
    Y = size * Y + np.random.default_rng(3).normal(size=Y.shape)
    return K, (statistics_of(K[:60], Y[:60]), statistics_of(K[60:], Y[60:]), statistics_of(K, Y))


def test_ridges_go_on_until_a_larger_one_is_worse():
    """Targets that are mostly noise want more than a tenth of the mean diagonal; targets of zero want nothing."""
    K, parts = noisy(0.05)
    tried = refit(*parts, intercept=True, fractions=RIDGES).held_out_errors
    best = min(tried, key=lambda pair: pair[1])
    assert RIDGES[-1] < best[0] < tried[-1][0] <= ridge.LARGEST_RIDGE
    nothing = statistics_of(K, np.zeros((120, 3)))
    assert len(refit(nothing, nothing, nothing, intercept=True, fractions=RIDGES).held_out_errors) == len(RIDGES)


@pytest.mark.parametrize("start", [-13, -6, -2, 6])
def test_a_ridge_followed_downhill_is_the_best_of_all(start):
    fit, held, everything = noisy(1.0)[1]
    best = refit(fit, held, everything, intercept=True, fractions=RIDGES)
    errors = [error for _, error in best.held_out_errors]
    falls = np.diff(errors) < 0
    assert np.array_equal(falls, np.sort(falls)[::-1]), "one valley"
    downhill, _ = ridge.try_ridges(fit, held, start=start, intercept=True)
    found = ridge.with_ridge(fit, everything, downhill, intercept=True)
    assert found.ridge == pytest.approx(best.ridge)
    np.testing.assert_allclose(found.weights.weights, best.weights.weights)
    assert start in (-13, 6) or set(found.held_out_errors) < set(best.held_out_errors)


@pytest.mark.parametrize("width", [0.03, 1, 10, 300])
@pytest.mark.parametrize("m", [100, 300])
def test_a_refit_finds_the_lowest_valley(width, m):
    """Held-out errors of steps have several: with a wide kernel the smallest ridge is the best one again."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(800, 2))
    K = np.exp(-((X[:, None] - X[None, :m]) ** 2).sum(-1) / (2 * width))
    Y = np.sign(np.sin(3 * X[:, :1]))
    fit, held = statistics_of(K[:500], Y[:500]), statistics_of(K[500:], Y[500:])
    every, some = (ridge.try_ridges(fit, held, fractions, intercept=True)[0] for fractions in (RIDGES, ()))
    assert min(error for _, error in some) <= 1.02 * min(error for _, error in every)
    assert len(some) < len(every)


def test_refit_survives_duplicate_columns():
    K, Y = columns()
    double = np.hstack([K, K])
    both = statistics_of(double, Y)
    assert np.isfinite(refit(both, both, both, intercept=False).weights.weights).all()
    found = refit(both, both, both, intercept=False, fractions=(1e-6,))
    twin = Ridge(alpha=found.ridge / 2, fit_intercept=False, solver="svd").fit(K, Y)  # a pair shares its penalty
    assert np.allclose(double @ found.weights.weights, twin.predict(K), atol=1e-6)


def test_all_weights_are_zero_at_the_largest_penalty_and_not_below():
    K, Y = columns()
    largest = penalty_max(K.T @ Y)
    for factor, empty in ((1.0001, True), (0.98, False)):
        problems = [problem_of(K, Y[:, output], factor * largest) for output in range(3)]
        found = [solve(one, SolverOptions(tolerance=1e-8), np.random.default_rng(0)) for one in problems]
        assert all(solution.n_active == 0 for solution in found) == empty


def falling(number: int) -> float:
    return 0.9**number


def small_gains(number: int) -> float:
    return 0.9**number if number < 15 else 0.9**14 - 1e-6 * number


def late_gain(number: int) -> float:
    """As of classes of unequal size, of which the first penalties misclassify the smaller ones whole."""
    return 0.05 if number < 10 else 0.01


LAST = "still falls at the last and smallest penalty whose solve converged"
# A curve, which solves do not converge: the best number, how many are tried, words of the warning.
CASES: dict[str, tuple[Curve, set[int], int, int, str | None]] = {
    "it ends soon behind a valley": (lambda number: 1 + (number - 14) ** 2 / 50, set(), 14, 18, None),
    "gains below a hundredth end it, and the lowest is taken": (small_gains, set(), 17, 18, None),
    "the first decades are always looked at": (late_gain, set(), 10, 14, None),
    "it goes on while the error falls": (falling, set(), MOST_POINTS - 1, MOST_POINTS, "still falls"),
    "it ends where float64 does": (falling, set(range(8, 99)), 7, 9, LAST),
    "it ends where none converges": (falling, set(range(99)), 0, 1, "zero"),
    "or but the first, which needs no solve": (falling, set(range(1, 99)), 1, 2, "tried, 31.6"),
    "no gain at all is told": (lambda number: 1.0 + number, set(), 0, LEAST_POINTS, "zero"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_search_ends_and_takes_the_penalty(case):
    curve, not_converged, expected, n_tried, words = CASES[case]
    calls: list[tuple[int, float]] = []

    def attempt(number: int, penalty: float) -> tuple[float, bool]:
        calls.append((number, penalty))
        return curve(number), number not in not_converged

    best, warning = search_penalties(100.0, attempt)
    assert best == expected
    assert [number for number, _ in calls] == list(range(n_tried))
    assert np.allclose([penalty for _, penalty in calls], 100.0 * 10.0 ** (-0.5 * np.arange(n_tried)))
    assert warning is None if words is None else words in str(warning)


def rows(n_classes: int, seed: int = 0) -> LabelledColumns:
    """Return columns and what is known of their rows: a unit has two equal rows, one three that differ."""
    rng = np.random.default_rng(seed)
    X, truth, weights = rng.normal(size=(40, 3)), rng.integers(0, n_classes, 40), rng.exponential(size=40)
    X[13] = X[12]
    columns = np.exp(-(np.linalg.norm(X[:, None] - X[None, 10:22], axis=2) ** 2))
    columns[:, 3] = 1.0  # constant: it cannot be told from the intercept
    units = np.repeat(np.arange(37), [2 if unit == 12 else 3 if unit == 30 else 1 for unit in range(37)])
    held_out = np.isin(units, np.flatnonzero(rng.random(37) < 0.2))
    return LabelledColumns(units, columns, signs_of(truth, n_classes), truth, weights, held_out)


def signs_of(truth: np.ndarray, n_classes: int) -> np.ndarray:
    return np.where(truth[:, None] == (np.arange(n_classes) if n_classes > 2 else [1]), 1.0, -1.0)


def weighted_statistics(columns: np.ndarray, signs: np.ndarray, weights: np.ndarray) -> GramStatistics:
    bounds = RowBounds.of(largest_terms(signs, weights))
    sums = StatisticsSums(columns.shape[1], bounds, len(columns), 1)
    sums.add(columns.copy(), signs, weights)
    return sums.statistics()


def part_of(given: LabelledColumns, of: np.ndarray) -> LabelledColumns:
    return LabelledColumns(*(values[of] for values in given))


def without_own(given: LabelledColumns, *, intercept: bool) -> tuple[ridge.LabelledValues, int]:
    fitted = part_of(given, ~given.held_out)
    fit = weighted_statistics(fitted.columns, fitted.targets, fitted.weights)
    of_rows = ridge.RidgeFit(least_squares(fit, RIDGE, intercept=intercept), fit, RIDGE, intercept)
    half = given.units < 20
    values, units, held_out = ridge.left_out(of_rows, (part_of(given, rows) for rows in (half, ~half)))
    assert held_out.tolist() == given.held_out[np.isin(given.units, units)].tolist()
    return values, len(np.unique(units))


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_values_are_those_of_fits_without_the_unit(n_classes, intercept):
    given = rows(n_classes)
    expected = np.empty_like(given.targets)
    for unit in np.unique(given.units):
        used = part_of(given, ~given.held_out & (given.units != unit))
        fit = weighted_statistics(used.columns, used.targets, used.weights)
        without, own = least_squares(fit, RIDGE, intercept=intercept), given.units == unit
        expected[own] = given.columns[own] @ without.weights + without.intercept
    (decision, truth, weights), n_units = without_own(given, intercept=intercept)
    np.testing.assert_allclose(decision, expected, rtol=1e-8)
    assert (truth.tolist(), weights.tolist()) == (given.truth.tolist(), given.weights.tolist())
    assert n_units == 37 < len(decision)


def test_units_that_determine_their_own_values_do_not_count():
    given = rows(2)
    given.columns[0] = 0.0
    given.columns[:, 4] = given.units == 0
    given.held_out[0], given.weights[0] = False, 1e8
    (found, *_), n_units = without_own(given, intercept=False)
    assert (len(found), n_units) == (len(given.units) - 1, 36)
    copied = LabelledColumns(*(np.concatenate([one[:1], one]) for one in given))
    copied.units[0], copied.held_out[0] = -1, True  # a held-out row that is seen tells of itself what the fit does
    (decision, *_), n_units = without_own(copied, intercept=False)
    assert (len(decision), n_units) == (len(found) + 1, 37)
    assert abs(decision[0, 0]) == pytest.approx(1.0, abs=1e-6)
