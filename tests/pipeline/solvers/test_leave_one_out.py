"""Decision values of rows that a least-squares fit has not seen, against a fit without each of them."""

import numpy as np
import pytest

from features.row_draws import row_keys
from pipeline.kernels.gram_statistics import GramStatistics, RowBounds, StatisticsSums, largest_terms
from pipeline.solvers.ridge import LeftOut, RidgeFit, least_squares

RIDGE = 0.3
Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def rows(n_classes: int, seed: int = 0) -> Rows:
    """Return features, columns, classes, weights and who is held out: two rows are there three times, one held out."""
    rng = np.random.default_rng(seed)
    X, truth, weights = rng.normal(size=(40, 3)), rng.integers(0, n_classes, 40), rng.exponential(size=40)
    X[[20, 35]], X[[21, 30]], truth[[20, 30]], truth[21] = X[5], X[7], truth[[5, 7]], 1 - truth[7] % 2
    columns = np.exp(-(np.linalg.norm(X[:, None] - X[None, 10:22], axis=2) ** 2))
    columns[:, 3] = 1.0  # constant: it cannot be told from the intercept
    held_out = rng.random(40) < 0.2
    held_out[[5, 20, 35, 7, 21, 30]] = [True, False, False, False, False, False]
    return X, columns, truth, weights, held_out


def signs_of(truth: np.ndarray, n_classes: int) -> np.ndarray:
    return np.where(truth[:, None] == (np.arange(n_classes) if n_classes > 2 else [1]), 1.0, -1.0)


def statistics_of(columns: np.ndarray, signs: np.ndarray, weights: np.ndarray) -> GramStatistics:
    bounds = RowBounds.of(largest_terms(signs, weights))
    sums = StatisticsSums(columns.shape[1], bounds, len(columns), 1)
    sums.add(columns.copy(), signs, weights)
    return sums.statistics()


def left_out(given: Rows, n_classes: int, *, intercept: bool, blocks: int = 2) -> tuple[np.ndarray, ...]:
    X, columns, truth, weights, held_out = given
    fit = statistics_of(columns[~held_out], signs_of(truth, n_classes)[~held_out], weights[~held_out])
    values = LeftOut(RidgeFit(least_squares(fit, RIDGE, intercept=intercept), fit, RIDGE, intercept))
    for part in np.array_split(np.arange(len(X)), blocks):
        values.add(row_keys(X[part]), *(one[part] for one in given[1:]))
    return values.values()


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_values_are_those_of_fits_without_the_row_and_its_copies(n_classes: int, intercept: bool) -> None:
    given = X, columns, truth, weights, held_out = rows(n_classes)
    signs, expected = signs_of(truth, n_classes), dict[tuple[float, int], tuple[float, ...]]()
    for x, label in zip(X, truth, strict=True):
        copies = (x == X).all(axis=1)
        used = ~held_out & ~copies
        fit = statistics_of(columns[used], signs[used], weights[used])
        without = least_squares(fit, RIDGE, intercept=intercept)
        row = np.flatnonzero(copies)[0]
        total = weights[copies & (truth == label)].sum()
        expected[x[0], label] = (*(columns[row] @ without.weights + without.intercept), total)
    decision, classes, totals = left_out(given, n_classes, intercept=intercept)
    assert len(decision) == len(expected) < len(X)
    found = sorted((*one, total, label) for one, total, label in zip(decision, totals, classes, strict=True))
    wanted = sorted((*one, label) for (_, label), one in expected.items())
    np.testing.assert_allclose(found, wanted, rtol=1e-8)


def test_a_row_of_weight_two_is_the_row_twice() -> None:
    X, columns, truth, _, held_out = rows(3)
    counts = np.random.default_rng(1).integers(1, 4, len(X))
    weighted = left_out((X, columns, truth, counts.astype(float), held_out), 3, intercept=True)
    X, columns, truth, held_out = (np.repeat(one, counts, axis=0) for one in (X, columns, truth, held_out))
    repeated = left_out((X, columns, truth, np.ones(len(X)), held_out), 3, intercept=True, blocks=3)
    for one, other in zip(weighted, repeated, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_rows_that_determine_their_own_values_do_not_count() -> None:
    X, columns, truth, weights, held_out = rows(2)
    columns[0] = 0.0
    columns[:, 4] = np.arange(len(X)) == 0
    held_out[0], weights[0] = False, 1e8
    given = X, columns, truth, weights, held_out
    found = left_out(given, 2, intercept=False)[0]
    assert len(found) == len(left_out(tuple(one[1:] for one in given), 2, intercept=False)[0])
    copied = tuple(np.concatenate([one, one[:1]]) for one in given)
    copied[4][-1] = True  # a held-out row that is seen tells of itself what the fit does
    decision = left_out(copied, 2, intercept=False)[0]
    assert len(decision) == len(found) + 1
    assert np.isclose(np.abs(decision), 1.0, atol=1e-6).any()
