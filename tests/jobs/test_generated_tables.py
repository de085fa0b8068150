"""The tables that benchmarks generate: the same at every call, and what they are named for."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "jobs" / "benchmarks"))

from generated_tables import LETTERS, arm, friedman, irrelevant, letters, smooth, sums


@pytest.mark.parametrize("make", [arm, irrelevant, sums, smooth, letters, lambda n, m: friedman(1, n, m)])
def test_they_are_the_same_at_every_call(make) -> None:  # type: ignore[no-untyped-def]
    for first, second in zip(make(60, 30), make(60, 30), strict=True):
        np.testing.assert_array_equal(first, second)
        assert len(first) in (60, 30)


def test_inputs_that_are_irrelevant_tell_nothing_of_the_target() -> None:
    X, y, _, _ = irrelevant(4000, 2)
    features = np.concatenate([X, X**2, np.sin(np.pi * X)], axis=1)
    correlations = np.abs([np.corrcoef(column, y)[0, 1] for column in features.T]).reshape(3, 32).max(axis=0)
    assert correlations[np.setdiff1d(np.arange(32), [3, 11, 17, 24, 30])].max() < 0.07
    assert correlations[3] > 0.3


def test_sums_of_inputs_tell_what_no_input_does() -> None:
    X, y, _, _ = sums(4000, 2)
    features = np.concatenate([X, X**2, np.sin(np.pi * X)], axis=1)
    slopes, *_ = np.linalg.lstsq(features, y - y.mean())
    assert 1 - np.var(y - y.mean() - features @ slopes) / y.var() < 0.4
    u = np.random.default_rng(20)
    u.standard_normal((4002, 20))
    direction = u.standard_normal((3, 20))[0] / np.sqrt(20)
    assert np.corrcoef(np.sin(2 * X @ direction), y)[0, 1] > 0.4


def test_letters_are_whole_numbers_that_tell_them_apart() -> None:
    X, y, X_test, y_test = letters(1000, 200)
    assert X.shape == (1000, 16)
    assert set(np.unique(X)) == set(range(16))
    assert set(y) == set(LETTERS)
    nearest = np.argmin(((X_test[:, None] - X[None]) ** 2).sum(axis=2), axis=1)
    assert 0.5 < np.mean(y[nearest] == y_test) < 0.95
