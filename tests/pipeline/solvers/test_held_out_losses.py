"""Losses of held-out rows, and what they tell of two fits."""

import numpy as np

from pipeline.solvers.held_out_losses import is_better

draw = np.random.default_rng(0)
BEFORE = draw.exponential(1.0, 400)
ONES = np.ones(400)


def test_a_small_gain_of_most_rows_is_one():
    """The means alone could not tell: their own standard error is 5 %."""
    after = 0.99 * BEFORE + 0.02 * draw.standard_normal(400)
    assert is_better(BEFORE, after, ONES, 400)
    assert not is_better(after, BEFORE, ONES, 400)
    assert not is_better(BEFORE, 0.999 * BEFORE, ONES, 400), "certain, and too little"


def test_one_row_decides_nothing():
    after = BEFORE + 0.01 * draw.standard_normal(400)
    after[7] -= 200.0
    assert after.mean() < 0.6 * BEFORE.mean()
    assert not is_better(BEFORE, after, ONES, 400)


def test_a_heavy_row_decides_nothing_and_weights_no_more_than_rows_do():
    after, weights = BEFORE + 0.01, ONES.copy()
    after[0], weights[0] = BEFORE[0] - 0.05, 400.0
    assert np.average(after, weights=weights) < np.average(BEFORE, weights=weights)
    assert not is_better(BEFORE, after, weights, 400)
    found = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        found += is_better(ONES, ONES + 0.1 * rng.standard_normal(400), rng.lognormal(0.0, 2.0, 400), 400)
    assert found < 0.25 * 400, "by chance one in six"


def test_equal_rows_count_once():
    after = BEFORE - 0.1 * draw.standard_normal(400) - 0.008
    few = (BEFORE - after).std() / (BEFORE - after).mean()
    assert is_better(BEFORE, after, ONES, 2 * few**2)
    assert not is_better(BEFORE, after, ONES, 0.5 * few**2)
