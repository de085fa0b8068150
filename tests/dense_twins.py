"""Sums over rows, and small problems of the solvers with the columns and targets behind them, by dense products."""

import itertools

import numpy as np

from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.solvers import forward_backward_selection as greedy
from pipeline.solvers.problem import Problem
from pipeline.solvers.solve import Solution


def statistics_of(K: np.ndarray, Y: np.ndarray) -> GramStatistics:
    """Return the sums over the rows of columns K (n, m) and targets Y (n, T)."""
    return GramStatistics(K.T @ K, K.T @ Y, (Y**2).sum(axis=0), K.sum(axis=0), Y.sum(axis=0), float(len(K)))


def problem_of(C: np.ndarray, y: np.ndarray, penalty: float) -> Problem:
    return Problem(C.T @ C, C.T @ y, float((y**2).sum()), penalty)


def make_columns(seed, n=60, m=12, penalty=0.5):
    """Return (C, y, Problem): columns with a shared part, so that they are alike as kernel columns are."""
    rng = np.random.default_rng(seed)
    C = rng.random((n, m)) * 0.3 + rng.standard_normal((n, m)) * 0.4 + 0.5
    y = np.sign(rng.standard_normal(n) + 0.3 * C[:, 0])
    return C, y, problem_of(C, y, penalty)


def kernel_data(seed, n=300, m=80, outputs=1, width=2.0):
    """Return (C, Y): Gaussian kernel columns, positive and nearly collinear, and targets (n, outputs)."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3))
    C = np.exp(-((X[:, None, :] - X[None, :m, :]) ** 2).sum(-1) / (2 * width))
    Y = np.stack([np.sign(np.sin(2 * X[:, 0] + k) + 0.3 * X[:, 1]) for k in range(outputs)], axis=1)
    return C, Y


def make_kernel(seed, penalty=0.05, **sizes):
    """Return (C, y, Problem) on Gaussian kernel columns of one output."""
    C, Y = kernel_data(seed, **sizes)
    return C, Y[:, 0], problem_of(C, Y[:, 0], penalty)


def selection_data(seed: int, n: int = 80, m: int = 12, outputs: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Return (K, Y): columns of which a few span most of the others, and targets of four of them."""
    rng = np.random.default_rng(seed)
    K = rng.standard_normal((n, 5)) @ rng.standard_normal((5, m)) + rng.standard_normal((n, m)) * 0.5 + 0.4
    truth = np.zeros((m, outputs))
    truth[rng.permutation(m)[:4]] = rng.standard_normal((4, outputs))
    return K, K @ truth + 0.3 * rng.standard_normal((n, outputs)) + 0.7


def unlike_columns():
    """Return a Problem of columns that are nearly orthogonal, of very different norms: here the safe test bites."""
    rng = np.random.default_rng(0)
    C = rng.standard_normal((400, 600)) * np.exp(rng.uniform(-3, 0, 600))
    return problem_of(C, C[:, :5].sum(axis=1) * 3 + rng.standard_normal(400), 1500.0)


def never_rises(solution: Solution) -> bool:
    values = [record.objective for record in solution.state.records]
    return all(b <= a * (1 + 1e-12) for a, b in itertools.pairwise(values))


def squared_error(K: np.ndarray, Y: np.ndarray, columns, *, intercept: bool = False) -> float:
    """Return the squared error of a least-squares fit on some of the columns."""
    C = K[:, list(columns)]
    if intercept:
        C = np.hstack([C, np.ones((len(C), 1))])
    weights = np.linalg.lstsq(C, Y, rcond=None)[0]
    return float(((Y - C @ weights) ** 2).sum())


def selection_order(K: np.ndarray, Y: np.ndarray, size: int, *, intercept: bool) -> list[int]:
    """Return the columns of a selection in its order, by a least-squares fit for every choice."""

    def error(columns: list[int]) -> float:
        return squared_error(K, Y, columns, intercept=intercept)

    def back(kept: list[int], columns: list[int]) -> list[int]:
        left, dropped = [*columns], list[int]()
        while len(left) > len(kept):
            raised = {m: error([c for c in left if c != m]) for m in left if m not in kept}
            dropped.append(min(raised, key=raised.__getitem__))
            left.remove(dropped[-1])
        return kept + dropped[::-1]

    ahead, n = list[int](), K.shape[1]
    while len(ahead) < n:
        ahead.append(min((m for m in range(n) if m not in ahead), key=lambda m: error([*ahead, m])))
    order, settled, first = back([], ahead), list[int](), list[int]()
    for level in (level for level in greedy.LEVELS if 2 * level <= n):
        pool = ahead[: 2 * level]
        forth = (settled + [m for m in pool if m not in settled])[:level]
        dropped = back(settled, pool)[:level]
        settled = forth if error(forth) < (1 - greedy.CLEARLY) * error(dropped) else dropped
        first = settled if error(settled) < (1 - greedy.CLEARLY) * error(order[:level]) else first
    ways = order[:size], back(first, ahead)[:size]
    return ways[error(ways[0]) >= (1 - 1e-6) * error(ways[1])]
