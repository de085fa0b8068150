"""Losses of held-out rows, and what they tell of two fits."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from pipeline.solvers.held_out_losses import is_better, log_losses

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


@pytest.mark.parametrize("n_outputs", [1, 4])
def test_the_log_loss_is_that_of_the_best_temperature(n_outputs):
    f = draw.standard_normal((300, n_outputs))
    truth = np.argmax(np.column_stack([np.zeros(300), f] if n_outputs == 1 else [f]) + draw.gumbel(size=(300, 1)), 1)
    truth = np.where(draw.random(300) < 0.2, draw.integers(0, max(n_outputs, 2), 300), truth)
    weights = draw.uniform(0.5, 2.0, 300)
    g = np.column_stack([np.zeros(300), f]) if n_outputs == 1 else f

    def mean(temperature: float) -> float:
        losses = logsumexp(g / temperature, axis=1) - g[np.arange(300), truth] / temperature
        return float(np.average(losses, weights=weights))

    found = float(np.average(log_losses(f, truth, weights, 1e12), weights=weights))
    best = minimize_scalar(mean, bounds=(0.01, 100), method="bounded").fun
    assert best - 1e-9 <= found < 1.02 * best
    assert np.average(log_losses(f, truth, weights, 10.0), weights=weights) > found, "half of ten rows is wrong"
