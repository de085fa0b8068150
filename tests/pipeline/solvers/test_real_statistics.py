"""Stability on statistics of real images: every kernel width and penalty of the matrix, at a smaller size.

Raw pixels stand in for the features, so that nothing but the solver is under test.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dense_twins import never_rises
from pipeline.solvers.problem import Problem, check_gram
from pipeline.solvers.solve import solve
from pipeline.solvers.state import SolverOptions


@pytest.fixture(scope="module")
def images():
    """Pixels of unit length times 1.3, and one column of +-1 for each class."""
    pixels, labels = load_digits(return_X_y=True)
    X = pixels / np.linalg.norm(pixels, axis=1, keepdims=True) * 1.3
    return X, np.where(labels[:, None] == np.arange(10), 1.0, -1.0)


def problem_of(images, sigma2, penalty, label):
    X, Y = images
    centers = X[np.random.default_rng(0).permutation(len(X))[:120]]
    squared = (X**2).sum(1)[:, None] + (centers**2).sum(1) - 2 * X @ centers.T
    K = np.exp(-np.maximum(squared, 0) / (2 * sigma2)).astype(np.float32).astype(np.float64)
    gram, y = K.T @ K, Y[:, label]
    return Problem(np.ascontiguousarray(0.5 * (gram + gram.T)), K.T @ y, float((y**2).sum()), penalty)


@pytest.mark.ci
@pytest.mark.parametrize("sigma2", [1.0, 2.0, 4.0])
def test_each_class_ends_certified_and_the_objective_never_rises(images, sigma2):
    problems = [problem_of(images, sigma2, 1.0, label) for label in range(10)]
    check_gram(problems[0].gram)
    for penalty, (label, of_label) in itertools.product((10.0, 1.0, 0.1, 0.01, 0.001), enumerate(problems)):
        problem = replace(of_label, penalty=penalty).validate()
        solution = solve(problem, SolverOptions(tolerance=1e-4), np.random.default_rng(label))
        assert solution.converged
        assert solution.certificate.relative_gap <= 1e-4
        assert never_rises(solution)


@pytest.mark.parametrize("penalty", [1.0, pytest.param(0.01, marks=pytest.mark.ci)])
def test_uniform_needs_three_times_the_evaluations(images, penalty):
    problem = problem_of(images, 4.0, penalty, 0)
    options = SolverOptions(tolerance=1e-4, schedule="uniform", max_sweeps=500)
    uniform = solve(problem, options, np.random.default_rng(0))
    shrinking = solve(problem, SolverOptions(tolerance=1e-4), np.random.default_rng(0))
    assert shrinking.converged
    assert 3 * shrinking.state.evaluations < uniform.state.visits
    assert never_rises(uniform)
