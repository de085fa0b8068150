"""Refit against scikit-learn's ridge, the path against separate solves, the intercept against a free column."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from dense_twins import problem_of, statistics_of
from pipeline.solvers.regularization_path import penalty_max, spaced
from pipeline.solvers.ridge import LARGEST_RIDGE, RIDGES, climb, refit, with_ridge
from pipeline.solvers.solve import solve
from pipeline.solvers.state import SolverOptions, warm_state


def columns(n: int = 400, m: int = 25, t: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(n, 2)), rng.normal(size=(m, 2))
    K = np.exp(-((X[:, None] - Z[None]) ** 2).sum(-1) / 2)
    return K, np.column_stack([np.sin(2 * X[:, 0]), X[:, 1] > 0, X[:, 0] * X[:, 1]][:t]) + 0.1 * rng.normal(size=(n, t))


@pytest.mark.parametrize("intercept", [False, True])
def test_refit_is_scikit_learns_ridge_with_what_held_out_rows_prefer(intercept: bool) -> None:
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


def test_ridges_go_on_until_a_larger_one_is_worse() -> None:
    """Targets that are mostly noise want more than a tenth of the mean diagonal; targets of zero want nothing."""
    K, Y = columns(n=120, m=60)
    Y = 0.05 * Y + np.random.default_rng(3).normal(size=Y.shape)
    fit, held, everything = statistics_of(K[:60], Y[:60]), statistics_of(K[60:], Y[60:]), statistics_of(K, Y)
    tried = refit(fit, held, everything, intercept=True).held_out_errors
    best = min(tried, key=lambda pair: pair[1])
    assert RIDGES[-1] < best[0] < tried[-1][0] <= LARGEST_RIDGE
    nothing = statistics_of(K, 0 * Y)
    assert len(refit(nothing, nothing, nothing, intercept=True).held_out_errors) == len(RIDGES)


@pytest.mark.parametrize(
    ("errors", "begin", "asked"),
    [
        ("5 4 3 2 3 4", 5, [5, 4, 3, 2]),  # down while they fall
        ("5 4 3 2 3 4", 2, [2, 1, 3, 4]),
        ("5 4 3 2 3 4", 3, [3, 2, 4]),
        ("1 2 3 4", 2, [2, 1, 0]),  # to the end
        ("4 3 2 1", 1, [1, 0, 2, 3]),
        ("2 inf inf 4", 2, [2, 1, 0]),  # past what has no error
        ("inf inf inf 4 3 5", 1, [1, 0, 2, 3, 4, 5]),
        ("inf inf inf", 1, [1, 0, 2]),
        ("2 2 2", 1, [1, 0, 2]),
    ],
)
def test_an_error_is_followed_downhill(errors: str, begin: int, asked: list[int]) -> None:
    """From anywhere in one valley to its floor."""
    values = [float(word) for word in errors.split()]
    seen = list[int]()

    def error_at(step: int) -> float:
        seen.append(step)
        return values[step]

    found = climb(error_at, begin, range(len(values)))
    assert seen == asked, "none of them twice"
    assert found == {step: values[step] for step in asked}
    assert min(found.values()) == min(values)


@pytest.mark.parametrize("start", [-13, -6, -2, 6])
def test_a_ridge_followed_downhill_is_the_best_of_all(start: int) -> None:
    K, Y = columns(n=120, m=60)
    Y = Y + np.random.default_rng(3).normal(size=Y.shape)
    fit, held, everything = statistics_of(K[:60], Y[:60]), statistics_of(K[60:], Y[60:]), statistics_of(K, Y)
    best = refit(fit, held, everything, intercept=True)
    errors = [error for _, error in best.held_out_errors]
    falls = np.diff(errors) < 0
    assert np.array_equal(falls, np.sort(falls)[::-1]), "one valley"
    found = refit(fit, held, everything, intercept=True, start=start)
    assert found.ridge == pytest.approx(best.ridge)
    np.testing.assert_allclose(found.weights.weights, best.weights.weights)
    assert start in (-13, 6) or set(found.held_out_errors) < set(best.held_out_errors)
    again = with_ridge(fit, everything, found.held_out_errors, intercept=True)
    np.testing.assert_array_equal(again.weights.weights, found.weights.weights)
    np.testing.assert_array_equal(again.of_fit.weights.weights, found.of_fit.weights.weights)


def test_refit_survives_duplicate_columns() -> None:
    K, Y = columns()
    double = np.hstack([K, K])
    both = statistics_of(double, Y)
    assert np.isfinite(refit(both, both, both, intercept=False).weights.weights).all()
    found = refit(both, both, both, intercept=False, fractions=(1e-6,))
    twin = Ridge(alpha=found.ridge / 2, fit_intercept=False, solver="svd").fit(K, Y)  # a pair shares its penalty
    assert np.allclose(double @ found.weights.weights, twin.predict(K), atol=1e-6)


def test_all_weights_are_zero_at_the_largest_penalty_and_not_below() -> None:
    K, Y = columns()
    largest = penalty_max(K.T @ Y)
    for factor, empty in ((1.0001, True), (0.98, False)):
        problems = [problem_of(K, Y[:, output], factor * largest) for output in range(3)]
        found = [solve(one, SolverOptions(tolerance=1e-8), np.random.default_rng(0)) for one in problems]
        assert all(solution.n_active == 0 for solution in found) == empty


def test_a_path_meets_the_separate_solves() -> None:
    K, Y = columns()
    problem = problem_of(K, Y[:, 0], 1.0)
    largest = penalty_max(problem.kty)
    penalties = spaced(largest, 1e-4, 8)
    assert (penalties[0], penalties[-1], spaced(5.0, 2.0, 1)) == (largest, 1e-4, (2.0,))
    assert np.allclose(np.diff(np.log(penalties)), np.log(1e-4 / largest) / 7)
    options, weights, evaluations = SolverOptions(tolerance=1e-9), np.zeros(len(problem.kty)), []
    for penalty in penalties:
        here = replace(problem, penalty=penalty)
        warm = solve(here, options, np.random.default_rng(0), start=warm_state(weights))
        alone = solve(here, options, np.random.default_rng(0))
        assert warm.converged
        assert np.isclose(warm.objective, alone.objective, rtol=1e-8)
        evaluations.append((warm.state.evaluations, alone.state.evaluations))
        weights = warm.weights
    assert all(warm < cold for warm, cold in evaluations[-4:]), "each begins where the last one ended"
