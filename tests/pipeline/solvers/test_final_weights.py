"""Final weights: penalised ones as they are, or least squares on the columns that they leave."""

import numpy as np
import pytest

from dense_twins import statistics_of
from pipeline.solvers.ridge import Weights, calibration_weights, finalise, finalise_path, refit

Table = tuple[np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture
def table() -> Table:
    """Columns (80, 6), targets (80, 2), and weights (3, 6, 2) of three penalties, the first all zero."""
    draw = np.random.default_rng(0)
    weights = np.zeros((3, 6, 2))
    weights[1, 4], weights[2, [1, 4]] = draw.normal(size=2), draw.normal(size=(2, 2))
    return draw.normal(size=(80, 6)), draw.normal(size=(80, 2)) + 3, weights


@pytest.mark.parametrize("refitted", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_errors_of_a_path_are_those_of_its_final_weights(table: Table, refitted: bool, intercept: bool) -> None:
    K, y, weights = table
    fit, held_out = statistics_of(K[:60], y[:60]), statistics_of(K[60:], y[60:])
    path = finalise_path(weights, fit, held_out, refitted=refitted, intercept=intercept)
    assert path.columns.tolist() == [1, 4]
    decisions = K[60:, [1, 4]] @ path.weights + path.intercepts[:, None]
    np.testing.assert_allclose(path.squared_errors(held_out), ((decisions - y[60:]) ** 2).sum(axis=(1, 2)) / 20)
    assert not path.weights[:2, 0].any(), "not on the support of these penalties"
    if intercept:
        mean = (y[:60] - K[:60, [1, 4]] @ path.weights[0]).mean(axis=0)
        np.testing.assert_allclose(path.intercepts[0], mean)
    else:
        assert not path.intercepts.any()
    assert np.allclose(path.weights[1, 1], weights[1, 4]) != refitted


def test_held_out_rows_are_predicted_by_weights_that_were_not_fitted_to_them_where_there_are_some(table: Table) -> None:
    K, y, weights = table
    fit, held_out = statistics_of(K[:60], y[:60]), statistics_of(K[60:], y[60:])
    active = np.array([1, 4])
    everything, parts = (fit + held_out).cut(active), (fit.cut(active), held_out.cut(active))
    penalised, _ = finalise(active, weights[2, active], everything, None, intercept=True)
    refitted, done = finalise(active, weights[2, active], everything, parts, intercept=True)
    assert penalised.columns.tolist() == refitted.columns.tolist() == [1, 4]
    np.testing.assert_array_equal(penalised.weights, weights[2, active])
    best = refit(*parts, everything, intercept=True)
    np.testing.assert_array_equal(refitted.weights, best.weights.weights)
    before = Weights.of_support(weights[1], fit, intercept=True)
    assert before.columns.tolist() == [4]
    np.testing.assert_allclose(before.intercept, (y[:60] - K[:60, [4]] @ weights[1, [4]]).mean(axis=0))
    found = [
        calibration_weights(refitted, done, before),
        calibration_weights(penalised, None, before),
        calibration_weights(penalised, None),
    ]
    assert [one.seen for one in found] == [False, False, True]
    np.testing.assert_array_equal(found[0].weights.weights, best.of_fit.weights.weights)
    assert found[0].weights.columns.tolist() == [1, 4]
    assert found[0].fit is not None
    assert found[0].fit.ridge == best.of_fit.ridge
    assert found[1].weights is before
    np.testing.assert_array_equal(found[2].weights.intercept, penalised.intercept)
