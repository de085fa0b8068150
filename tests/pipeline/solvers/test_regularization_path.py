"""The search for a penalty on made-up curves of held-out errors: where it stops, what it takes, when it warns."""

from collections.abc import Callable

import numpy as np
import pytest

from pipeline.solvers.regularization_path import ALL_POINTS, LEAST_POINTS, MOST_POINTS, search

Curve = Callable[[int], float]


def searched(
    curve: Curve, patience: int = 3, converged: Callable[[int], bool] = lambda number: True
) -> tuple[int, int, str | None]:
    """Return (best, penalties tried, warning) on a curve of errors by number."""
    calls = []

    def attempt(number: int, penalty: float) -> tuple[float, bool]:
        calls.append((number, penalty))
        return curve(number), converged(number)

    best, trials, warning = search(100.0, patience, attempt)
    assert [number for number, _ in calls] == list(range(len(trials)))
    assert np.allclose([trial.penalty for trial in trials], 100.0 * 10.0 ** (-0.5 * np.arange(len(trials))))
    return best, len(trials), warning


def test_a_curve_with_a_valley_ends_soon_behind_it() -> None:
    assert searched(lambda number: 1 + (number - 14) ** 2 / 50) == (14, 18, None)


def test_gains_below_a_hundredth_end_it_too_and_the_lowest_is_taken() -> None:
    assert searched(lambda number: 0.9**number if number < 15 else 0.9**14 - 1e-6 * number) == (17, 18, None)


def test_the_first_decades_are_always_looked_at() -> None:
    """Of classes of unequal size the first penalties misclassify the smaller ones whole."""
    assert searched(lambda number: 0.05 if number < 10 else 0.01)[:2] == (10, 14)
    assert searched(lambda number: 0.0)[1] == LEAST_POINTS


def test_it_goes_on_while_the_error_falls_and_says_where_it_had_to_end() -> None:
    best, tried, warning = searched(lambda number: 0.9**number)
    assert (best, tried) == (MOST_POINTS - 1, MOST_POINTS)
    assert tried > ALL_POINTS
    assert warning is not None
    assert "still falls" in warning


def test_it_ends_where_float64_does() -> None:
    best, tried, warning = searched(lambda number: 0.9**number, converged=lambda number: number < 8)
    assert (best, tried) == (7, 9)
    assert warning is not None
    assert "still falls at the last and smallest penalty whose solve converged" in warning


def test_a_penalty_whose_solve_did_not_converge_is_taken_only_where_none_did() -> None:
    assert searched(lambda number: 1 + (number - 14) ** 2 / 50, patience=0, converged=lambda n: n != 14)[0] == 13
    assert searched(lambda number: 1 + (number - 14) ** 2 / 50, patience=0, converged=lambda n: False)[0] == 14
    assert searched(lambda number: 0.9**number, converged=lambda number: number == 0)[:2] == (1, 2)  # 0: no solve


def test_no_gain_at_all_is_told() -> None:
    best, _, warning = searched(lambda number: 1.0 + number)
    assert best == 0
    assert warning is not None
    assert "zero" in warning


@pytest.mark.parametrize("curve", [lambda number: 1.0, lambda number: 0.9**number])
def test_without_patience_all_are_tried(curve: Curve) -> None:
    assert searched(curve, patience=0, converged=lambda number: number != 5)[1] == ALL_POINTS
