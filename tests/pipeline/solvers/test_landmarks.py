"""Landmarks without targets: random functions of the kernel's space stand for the trace, against dense twins."""

import numpy as np
import pytest
from scipy.linalg import pinvh
from sklearn.datasets import load_digits
from sklearn.metrics.pairwise import rbf_kernel

from pipeline.solvers.forward_backward_selection import FUNCTIONS, inverse_root, select, statistics_of_functions

Array = np.ndarray


@pytest.fixture(scope="module")
def K() -> Array:
    """The kernel matrix of 200 digits."""
    return rbf_kernel(load_digits().data[:200] / 16, gamma=0.05)


def left_over(K: Array, chosen: Array) -> Array:
    """What of K its columns `chosen` do not span."""
    return K - K[:, chosen] @ pinvh(K[np.ix_(chosen, chosen)]) @ K[chosen]


def largest_residuals(K: Array, size: int) -> Array:
    """Pivoted Cholesky as it is written down: the largest diagonal entry of what is left, again and again."""
    chosen: list[int] = []
    while len(chosen) < size:
        diagonal = np.diagonal(left_over(K, np.array(chosen, int))).copy()
        diagonal[chosen] = -1.0
        chosen.append(int(np.argmax(diagonal)))
    return np.array(chosen)


def test_the_error_of_the_functions_is_what_the_landmarks_leave_of_the_kernel(K: Array) -> None:
    statistics = statistics_of_functions(K, np.random.default_rng(0))
    found = select(statistics, 40, intercept=False)
    omega = np.random.default_rng(0).standard_normal((200, FUNCTIONS))
    errors = np.trace(omega.T @ left_over(K, found.chosen) @ omega)
    assert statistics.yty.sum() - found.reductions.sum() == pytest.approx(errors, rel=1e-6)
    assert errors / FUNCTIONS == pytest.approx(np.trace(left_over(K, found.chosen)), rel=0.2)


def test_less_is_left_than_by_a_draw_and_by_the_largest_residual(K: Array) -> None:
    size = 20
    chosen = select(statistics_of_functions(K, np.random.default_rng(0)), size, intercept=False).chosen
    left = np.trace(left_over(K, chosen))
    draws = [np.random.default_rng(seed).permutation(200)[:size] for seed in range(10)]
    assert left < min(np.trace(left_over(K, draw)) for draw in draws)
    assert left < 0.95 * np.trace(left_over(K, largest_residuals(K, size)))


def test_the_inverse_root_of_a_matrix_without_full_rank_stays_on_its_range(K: Array) -> None:
    factor = K[:30, :8]
    root = inverse_root(factor @ factor.T)
    np.testing.assert_allclose(root @ root, pinvh(factor @ factor.T, rtol=1e-12), rtol=1e-5, atol=1e-8)
    assert np.linalg.matrix_rank(root, rtol=1e-6) == 8
    assert not inverse_root(np.zeros((3, 3))).any()
