"""The arithmetic of the benchmarks: the floor's triangle of a Gram, and speed-ups computed from measured seconds."""

import numpy as np
import pytest

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
