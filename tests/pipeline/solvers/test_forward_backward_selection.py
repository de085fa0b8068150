"""Greedy selection against brute force, its prefixes and its size, and columns that say nothing new."""

from dataclasses import replace

import numpy as np
import pytest

from dense_twins import selection_data, selection_order, statistics_of
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.kernels.kernel_functions import KERNELS
from pipeline.solvers import forward_backward_selection as greedy
from pipeline.solvers.forward_backward_selection import forward, held_out_curve, select
from pipeline.solvers.ridge import least_squares, refit

SMALL_SLABS = {"SLAB_ROWS": 3, "STRIPE": 5, "BACK_BLOCK": 5}  # columns are worked on a few at a time


@pytest.mark.parametrize("size", [5, 6, 14])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_classes_and_kernels_are_chosen_as_by_a_fit_for_every_choice(monkeypatch, kernel, intercept, size):
    """Four classes, each against all others; of 14 columns, some are settled before the others are dropped."""
    monkeypatch.setattr(greedy, "CLEARLY", 1e-6)
    if size == 6:
        for name, value in SMALL_SLABS.items():
            monkeypatch.setattr(greedy, name, value)
    draw = np.random.default_rng(3)
    X = draw.uniform(0, 2, (160, 6))
    K = np.asarray(kernel(X[:14], 0.6, np.float64).block(X))
    Y = np.where(np.digitize(X[:, 0] + X[:, 1] * X[:, 2], [1.3, 2.0, 2.7])[:, None] == np.arange(4), 1.0, -1.0)
    found = select(statistics_of(K, Y), size, intercept=intercept)
    assert found.tolist() == selection_order(K, Y, size, intercept=intercept)


def test_the_last_bit_does_not_decide_among_dependent_columns(monkeypatch):
    """The damping is never so small that it would: of a polynomial kernel of rank 10, and targets that are noise."""
    monkeypatch.setattr(greedy, "DAMPING", 0.0)
    for seed in range(20):
        draw = np.random.default_rng(seed)
        X = draw.normal(size=(600, 3))
        K = (1 + X @ X[:150].T) ** 2 / (1 + (X[:150] ** 2).sum(axis=1))
        statistics = statistics_of(K, draw.normal(size=(600, 1)))
        bits = np.triu(draw.integers(-1, 2, (150, 150)))
        other = statistics.gram * (1 + np.finfo(float).eps * (bits + np.triu(bits, 1).T))
        ways = (forward(s, 150, intercept=False) for s in (statistics, replace(statistics, gram=other)))
        assert len(set(map(tuple, ways))) == 1


def test_copies_are_refused():
    rng = np.random.default_rng(1)
    points = rng.uniform(-3, 3, (40, 2)).astype(np.float32)
    rows = rng.uniform(-3, 3, (500, 2)).astype(np.float32)
    K = np.exp(-((rows[:, None] - points) ** 2).sum(-1) / 2).astype(np.float32).astype(np.float64)
    K = np.hstack([K, K, K * np.float32(1 + 1e-7)])
    found = select(statistics_of(K, np.sin(rows).astype(np.float64)), 120, intercept=False)
    assert len(found) == len(set(found % 40)) <= 40


@pytest.mark.parametrize(
    ("dimensions", "width"),
    [(1, 2.0), *(pytest.param(*case, marks=pytest.mark.ci) for case in ((2, 18.0), (2, 72.0), (8, 18.0)))],
)
def test_wide_kernels_in_few_dimensions_are_used_to_the_full(dimensions, width):
    """Columns that few others span to eight digits still lower the error: what is chosen serves as well as all do."""
    rng = np.random.default_rng(2)
    points = rng.uniform(-1, 1, (160, dimensions))

    def sample(n: int) -> GramStatistics:
        X = rng.uniform(-1, 1, (n, dimensions))
        K = np.exp(-((X[:, None] - points) ** 2).sum(-1) / width).astype(np.float32).astype(np.float64)
        return statistics_of(K, np.sin(4 * X).sum(axis=1, keepdims=True) + 0.1 * rng.standard_normal((n, 1)))

    fit, hold_out, test = sample(800), sample(300), sample(1000)
    found = select(fit, 160, intercept=False)

    def error(columns: np.ndarray) -> float:
        model = refit(fit.cut(columns), hold_out.cut(columns), fit.cut(columns), intercept=False).weights
        return float(test.cut(columns).squared_error(model.weights, model.intercept).sum() / 1000)

    assert error(found) <= 1.02 * error(np.arange(160)) + 1e-4


def test_what_cannot_be_chosen():
    K, Y = selection_data(11)
    assert len(select(statistics_of(K, np.zeros_like(Y)), 5, intercept=False)) == 0
    assert len(select(statistics_of(K, np.ones_like(Y)), 5, intercept=True)) == 0
    assert select(statistics_of(K[:, :1], Y), 1, intercept=False).tolist() == [0]
    nothing = statistics_of(K, Y).cut(np.empty(0, np.int64))
    assert len(select(nothing, 5, intercept=True)) == 0
    K[:, 4] = 0.0
    assert 4 not in select(statistics_of(K, Y), 12, intercept=False)


@pytest.mark.parametrize("intercept", [False, True])
def test_hold_out_curve_is_that_of_a_fit_to_each_prefix(intercept):
    fit, hold_out = statistics_of(*selection_data(13, n=60, m=25)), statistics_of(*selection_data(13, n=90, m=25))
    sizes = np.array([3, 25])
    curve = held_out_curve(fit, hold_out, sizes, 0.1, intercept=intercept)
    for size, error in zip(sizes, curve, strict=True):
        one = least_squares(fit.prefix(size), 0.1, intercept=intercept)
        expected = hold_out.prefix(size).squared_error(one.weights, one.intercept).sum() / 90
        assert error == pytest.approx(expected, rel=1e-9)


def test_few_that_are_followed_choose_nearly_as_well(monkeypatch):
    """A gain that rises meanwhile waits for the next block; else the choice is the same, whatever the threads."""
    statistics = statistics_of(*selection_data(11, n=500, m=240))
    usual = forward(statistics, 90, intercept=True)  # all are followed
    monkeypatch.setattr(greedy, "FOLLOWED", 30)
    monkeypatch.setattr(greedy, "BLOCK", 16)
    monkeypatch.setattr(greedy, "STRIPE", 64)
    few = forward(statistics, 90, intercept=True)
    assert len(set(few.tolist())) == 90
    assert len(np.intersect1d(few, usual)) > 72
    again = forward(statistics, 90, intercept=True, n_threads=3)
    assert np.array_equal(again, few)
