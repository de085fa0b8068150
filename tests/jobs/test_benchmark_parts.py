"""Parts of the benchmarks: the floor's triangle of a Gram, speed-ups computed from seconds, generated tables."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "jobs" / "benchmarks"))

from generated_tables import LETTERS, arm, friedman, irrelevant, letters, smooth, sums

from jobs.benchmarks.amdahl import fit
from jobs.benchmarks.floor import Turn, add_gram, speed_up


def test_the_floor_adds_one_triangle_of_the_gram() -> None:
    K = np.random.default_rng(0).random((70, 30))
    gram = np.zeros((30, 30))
    add_gram(K[:40], gram)
    add_gram(K[40:], gram)
    np.testing.assert_allclose(gram, np.tril(K.T @ K), rtol=1e-13)


def test_speed_ups_are_medians_of_ratios_within_a_repeat() -> None:
    seconds = {(0, 1): 10.0, (0, 2): 5.0, (1, 1): 40.0, (1, 2): 25.0, (2, 1): 9.0, (2, 2): 5.0}
    turns = [Turn(repeat, 100, workers, 1.0, took, 2.0, 1.0, took) for (repeat, workers), took in seconds.items()]
    assert speed_up(turns, "statistics", 1, 2) == pytest.approx(9 / 5)


def test_serial_and_parallel_seconds_are_told_apart() -> None:
    found = fit(64, {1: 10.0, 2: 6.0})
    assert (found.serial, found.parallel) == pytest.approx((2.0, 8.0))
    assert found.seconds(16) == pytest.approx(2.5)
    assert found.seconds(64) == found.seconds(1000) == pytest.approx(2.125)


def test_the_busiest_worker_decides() -> None:
    found = fit(5, {1: 10.0, 2: 6.0})  # five equal items: two workers take three of them and two
    assert (found.serial, found.parallel) == pytest.approx((0.0, 10.0), abs=1e-9)
    assert found.seconds(4) == pytest.approx(4.0)
    assert found.seconds(64) == pytest.approx(2.0)


@pytest.mark.parametrize(("items", "seconds"), [(1, {1: 4.0, 2: 6.0}), (8, {2: 5.0}), (0, {1: 0.0, 2: 0.0})])
def test_what_cannot_be_told_apart_is_serial(items: int, seconds: dict[int, float]) -> None:
    found = fit(items, seconds)
    assert found.parallel == 0
    assert found.seconds(64) == pytest.approx(sum(seconds.values()) / len(seconds))


def test_a_slower_second_worker_means_no_speed_up() -> None:
    assert fit(64, {1: 10.0, 2: 12.0}).parallel == 0


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
    X, y, X_test, y_test = letters(400, 100)
    assert X.shape == (400, 16)
    assert set(np.unique(X)) == set(range(16))
    assert set(y) == set(LETTERS)
    nearest = np.argmin(((X_test[:, None] - X[None]) ** 2).sum(axis=2), axis=1)
    assert 0.5 < np.mean(y[nearest] == y_test) < 0.95
