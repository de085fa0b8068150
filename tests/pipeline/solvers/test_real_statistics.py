"""Stability on statistics of real images: every kernel width and penalty of the matrix, at a smaller size.

Raw pixels stand in for the features, so that nothing but the solver is under test.
"""

from __future__ import annotations

import gzip
import itertools

import numpy as np
import pytest

from pipeline.solvers import Problem, SolverOptions, check_gram, solve

ROWS, CENTERS = 8000, 400


@pytest.fixture(scope="module")
def images(data_dir):
    with gzip.open(data_dir / "mnist" / "train-images-idx3-ubyte.gz") as stream:
        pixels = np.frombuffer(stream.read(16 + ROWS * 784), np.uint8, offset=16).reshape(ROWS, 784)
    with gzip.open(data_dir / "mnist" / "train-labels-idx1-ubyte.gz") as stream:
        labels = np.frombuffer(stream.read(8 + ROWS), np.uint8, offset=8)
    X = pixels / np.linalg.norm(pixels.astype(np.float64), axis=1, keepdims=True) * 1.3
    return X, np.where(labels[:, None] == np.arange(10), 1.0, -1.0)


def statistics(images, sigma2):
    X, Y = images
    centers = X[np.random.default_rng(0).permutation(ROWS)[:CENTERS]]
    squared = (X**2).sum(1)[:, None] + (centers**2).sum(1) - 2 * X @ centers.T
    K = np.exp(-np.maximum(squared, 0) / (2 * sigma2)).astype(np.float32).astype(np.float64)
    gram = K.T @ K
    return np.ascontiguousarray(0.5 * (gram + gram.T)), K.T @ Y


@pytest.mark.nightly
@pytest.mark.parametrize("sigma2", [1.0, 2.0, 4.0])
def test_all_classes_end_certified_and_the_objective_never_rises(images, sigma2):
    gram, kty = statistics(images, sigma2)
    check_gram(gram)
    for penalty, label in itertools.product((10.0, 1.0, 0.1, 0.01, 0.001), range(10)):
        problem = Problem(gram, np.ascontiguousarray(kty[:, [label]]), float(ROWS), penalty)
        solution = solve(
            problem.validate(gram_checked=True), SolverOptions(tolerance=1e-4), np.random.default_rng(label)
        )
        assert solution.converged
        assert solution.certificate.relative_gap <= 1e-4
        values = [record.objective for record in solution.records]
        assert all(b <= a * (1 + 1e-12) for a, b in itertools.pairwise(values))


@pytest.mark.nightly
@pytest.mark.parametrize("penalty", [10.0, 0.1])
def test_the_shared_kernel_on_real_statistics(images, penalty):
    gram, kty = statistics(images, 4.0)
    problem = Problem(gram, kty, 10.0 * ROWS, penalty)
    solution = solve(problem, SolverOptions(tolerance=1e-4), np.random.default_rng(0))
    assert solution.converged
    values = [record.objective for record in solution.records]
    assert all(b <= a * (1 + 1e-12) for a, b in itertools.pairwise(values))


@pytest.mark.nightly
@pytest.mark.parametrize("penalty", [1.0, 0.01])
def test_uniform_needs_three_times_the_evaluations(images, penalty):
    gram, kty = statistics(images, 4.0)
    problem = Problem(gram, np.ascontiguousarray(kty[:, [0]]), float(ROWS), penalty)
    uniform = solve(
        problem, SolverOptions(tolerance=1e-4, schedule="uniform", max_sweeps=500), np.random.default_rng(0)
    )
    shrinking = solve(problem, SolverOptions(tolerance=1e-4), np.random.default_rng(0))
    assert shrinking.converged
    assert 3 * shrinking.evaluations < uniform.visits
    values = [record.objective for record in uniform.records]
    assert all(b <= a * (1 + 1e-12) for a, b in itertools.pairwise(values))
