"""Scores of blocks add up to the score of all rows, as scikit-learn counts it."""

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, mean_squared_error, r2_score

from pipeline.models.scoring import r_squared, score_classes, score_values


def test_blocks_of_classes_add_up():
    rng = np.random.default_rng(0)
    truth, predicted = rng.integers(0, 4, 90), rng.integers(0, 3, 90)
    whole = score_classes(predicted[:40], truth[:40], 4) + score_classes(predicted[40:], truth[40:], 4)
    assert whole.confusion == tuple(map(tuple, confusion_matrix(truth, predicted, labels=range(4)).tolist()))
    assert whole.n_errors == np.count_nonzero(truth != predicted)
    assert whole.error_rate == whole.n_errors / 90
    assert whole.r2 is None


def test_blocks_of_values_add_up():
    rng = np.random.default_rng(1)
    truth = 1e3 + rng.normal(size=70)
    predicted = truth + 0.3 * rng.normal(size=70)
    whole = score_values(predicted[:9], truth[:9]) + score_values(predicted[9:], truth[9:])
    assert whole.mse == pytest.approx(mean_squared_error(truth, predicted), rel=1e-12)
    assert whole.rmse == pytest.approx(np.sqrt(whole.mse), rel=1e-12)
    assert whole.r2 == pytest.approx(r2_score(truth, predicted), rel=1e-9)


def test_where_all_targets_are_equal_nothing_can_be_explained():
    assert score_values(np.zeros(3), np.ones(3)).r2 is None
    assert r_squared(1.0, None) is None
