"""The search for a penalty on made-up curves of held-out errors: where it stops, what it takes, when it warns."""

from collections.abc import Callable

import numpy as np
import pytest

from pipeline.solvers.regularization_path import LEAST_POINTS, MOST_POINTS, search

Curve = Callable[[int], float]


def valley(number: int) -> float:
    return 1 + (number - 14) ** 2 / 50


def falling(number: int) -> float:
    return 0.9**number


def small_gains(number: int) -> float:
    return 0.9**number if number < 15 else 0.9**14 - 1e-6 * number


def late_gain(number: int) -> float:
    """As of classes of unequal size, of which the first penalties misclassify the smaller ones whole."""
    return 0.05 if number < 10 else 0.01


LAST = "still falls at the last and smallest penalty whose solve converged"
# A curve, which solves do not converge: the best number, how many are tried, words of the warning.
CASES: dict[str, tuple[Curve, set[int], int, int, str | None]] = {
    "it ends soon behind a valley": (valley, set(), 14, 18, None),
    "gains below a hundredth end it, and the lowest is taken": (small_gains, set(), 17, 18, None),
    "the first decades are always looked at": (late_gain, set(), 10, 14, None),
    "nor is less than that tried": (lambda number: 0.0, set(), 0, LEAST_POINTS, "zero"),
    "it goes on while the error falls": (falling, set(), MOST_POINTS - 1, MOST_POINTS, "still falls"),
    "it ends where float64 does": (falling, set(range(8, 99)), 7, 9, LAST),
    "it ends where none converges": (falling, set(range(99)), 0, 1, "zero"),
    "or but the first, which needs no solve": (falling, set(range(1, 99)), 1, 2, "tried, 31.6"),
    "no gain at all is told": (lambda number: 1.0 + number, set(), 0, LEAST_POINTS, "zero"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_search_ends_and_takes_the_penalty(case: str) -> None:
    curve, not_converged, expected, n_tried, words = CASES[case]
    calls: list[tuple[int, float]] = []

    def attempt(number: int, penalty: float) -> tuple[float, bool]:
        calls.append((number, penalty))
        return curve(number), number not in not_converged

    best, warning = search(100.0, attempt)
    assert best == expected
    assert [number for number, _ in calls] == list(range(n_tried))
    assert np.allclose([penalty for _, penalty in calls], 100.0 * 10.0 ** (-0.5 * np.arange(n_tried)))
    assert warning is None if words is None else words in str(warning)
