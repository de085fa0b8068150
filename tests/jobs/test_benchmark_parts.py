"""Parts of the benchmarks: the floor's triangle of a Gram, speed-ups computed from seconds, generated tables."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "jobs" / "benchmarks"))

from generated_tables import GENERATED

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
    turns = [
        Turn(repeat, 100, workers, 1.0, 1.0, {"statistics": took}, took) for (repeat, workers), took in seconds.items()
    ]
    assert speed_up(turns, "statistics", 1, 2) == pytest.approx(9 / 5)


@pytest.mark.parametrize(
    ("items", "seconds", "parts", "computed"),
    [
        (64, {1: 10.0, 2: 6.0}, (2.0, 8.0), {16: 2.5, 64: 2.125, 1000: 2.125}),
        (5, {1: 10.0, 2: 6.0}, (0.0, 10.0), {4: 4.0, 64: 2.0}),  # two workers take three of the items and two
        (64, {1: 10.0, 2: 12.0}, (11.0, 0.0), {64: 11.0}),  # a slower second worker means no speed-up
        # What cannot be told apart is serial.
        (1, {1: 4.0, 2: 6.0}, (5.0, 0.0), {64: 5.0}),
        (8, {2: 5.0}, (5.0, 0.0), {64: 5.0}),
        (0, {1: 0.0, 2: 0.0}, (0.0, 0.0), {64: 0.0}),
    ],
)
def test_serial_and_parallel_seconds_are_told_apart_by_the_busiest_worker(
    items: int, seconds: dict[int, float], parts: tuple[float, float], computed: dict[int, float]
) -> None:
    found = fit(items, seconds)
    assert (found.serial, found.parallel) == pytest.approx(parts, abs=1e-9)
    assert {workers: found.seconds(workers) for workers in computed} == pytest.approx(computed)


@pytest.mark.parametrize("name", GENERATED)
def test_generated_tables_are_the_same_at_every_call(name: str) -> None:
    tables = [GENERATED[name](n_train=60, n_test=30) for _ in range(2)]
    for first, second in zip(*tables, strict=True):
        np.testing.assert_array_equal(first, second)
        assert first.dtype.kind == "U" or np.isfinite(first).all()
    X, y, X_test, y_test = tables[0]
    assert (X.dtype, len(X), len(y), len(X_test), len(y_test)) == (float, 60, 60, 30, 30)
