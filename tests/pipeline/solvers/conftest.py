"""Small problems with known columns, and their dense twins."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.solvers import Problem


def dense_statistics(K, Y):
    """Return the sums over the rows of columns K (n, m) and targets Y (n, T), from dense products."""
    return GramStatistics(K.T @ K, K.T @ Y, (Y**2).sum(axis=0), K.sum(axis=0), Y.sum(axis=0), float(len(K)))


def columns_problem(seed, n=60, m=12, outputs=1, penalty=0.5, collinear=0.3):
    """Return (C, Y, Problem): columns with a shared part, so that they are alike as kernel columns are."""
    rng = np.random.default_rng(seed)
    C = rng.random((n, m)) * collinear + rng.standard_normal((n, m)) * 0.4 + 0.5
    Y = np.sign(rng.standard_normal((n, outputs)) + 0.3 * C[:, :1])
    return C, Y, Problem(C.T @ C, C.T @ Y, float((Y**2).sum()), penalty)


def kernel_problem(seed, n=300, m=80, outputs=1, penalty=0.05, width=2.0):
    """Return (C, Y, Problem) on Gaussian kernel columns: positive, nearly collinear."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3))
    C = np.exp(-((X[:, None, :] - X[None, :m, :]) ** 2).sum(-1) / (2 * width))
    Y = np.stack([np.sign(np.sin(2 * X[:, 0] + k) + 0.3 * X[:, 1]) for k in range(outputs)], axis=1)
    return C, Y, Problem(C.T @ C, C.T @ Y, float((Y**2).sum()), penalty)


@pytest.fixture
def make_columns():
    return columns_problem


@pytest.fixture
def make_kernel():
    return kernel_problem


@pytest.fixture(scope="session")
def statistics_of():
    return dense_statistics
