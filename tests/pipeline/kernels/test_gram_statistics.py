"""Accumulated statistics against the dense products they stand for."""

import itertools
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Lasso

from pipeline.blas import add_gram
from pipeline.columns import ColumnGenerator
from pipeline.errors import InvalidDataError
from pipeline.solvers import Problem, SolverOptions, solve
from pipeline.statistics import GramStatistics, StatisticsAccumulator, add_block, hold_out_rows


def dense(K: np.ndarray, Y: np.ndarray) -> GramStatistics:
    return GramStatistics(K.T @ K, K.T @ Y, np.sum(Y**2, 0), K.sum(0), Y.sum(0), float(len(K)))


def assert_equal(a: GramStatistics, b: GramStatistics, rtol: float) -> None:
    for name, value in vars(b).items():
        assert np.allclose(getattr(a, name), value, rtol=rtol, atol=rtol), name


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(0, 60), columns=st.integers(1, 40), seed=st.integers(0, 2**31))
def test_add_gram_touches_the_lower_triangle_only(rows: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    K, start = rng.normal(size=(rows, columns)), rng.normal(size=(columns, columns))
    gram = start.copy()
    add_gram(K, gram)
    assert np.allclose(np.tril(gram), np.tril(start + K.T @ K), atol=1e-11)
    assert np.array_equal(np.triu(gram, 1), np.triu(start, 1))


@pytest.mark.parametrize("bad", [np.zeros((3, 4), np.float32), np.zeros((4, 3)).T, np.zeros((3, 5))])
def test_add_gram_refuses_what_blas_would_misread(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match="C-contiguous"):
        add_gram(bad, np.zeros((4, 4)))


def problem(n: int = 300, m: int = 23, t: int = 4, seed: int = 0) -> tuple[ColumnGenerator, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6)).astype(np.float32)
    return ColumnGenerator(X[:m], 3.0), X, rng.normal(size=(n, t))


@pytest.mark.parametrize("block_rows", [7, 64, 300])
def test_parts_equal_dense_statistics_of_their_rows(block_rows: int) -> None:
    generator, X, Y = problem()
    held = hold_out_rows(3, 0.3, 0, len(X))
    assert 50 < held.sum() < 130
    fit, hold_out = StatisticsAccumulator(23, 4), StatisticsAccumulator(23, 4)
    for start in range(0, len(X), block_rows):
        rows = slice(start, start + block_rows)
        add_block(generator, X[rows], Y[rows], held[rows], fit, hold_out)
    K = generator.block(X).astype(np.float64)
    fitted, kept = fit.statistics(), hold_out.statistics()
    assert_equal(fitted, dense(K[~held], Y[~held]), 1e-12)
    assert_equal(kept, dense(K[held], Y[held]), 1e-12)
    assert_equal(fitted + kept, dense(K, Y), 1e-12)
    assert np.array_equal(fitted.gram, fitted.gram.T)


def test_gram_is_positive_semi_definite_even_for_duplicates() -> None:
    _, X, Y = problem(n=500, m=23)
    twice = ColumnGenerator(np.vstack([X[:23], X[:23]]), 3.0)
    part, rest = StatisticsAccumulator(46, 4), StatisticsAccumulator(46, 4)
    add_block(twice, X, Y, np.zeros(len(X), bool), part, rest)
    gram = part.statistics().gram
    assert np.linalg.eigvalsh(gram)[0] > -1e-12 * np.trace(gram)


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 20_000), max_size=6), seed=st.integers(0, 10), fraction=st.floats(0, 0.9))
def test_hold_out_does_not_depend_on_the_blocks(cuts: list[int], seed: int, fraction: float) -> None:
    whole = hold_out_rows(seed, fraction, 0, 20_000)
    edges = [0, *sorted(cuts), 20_000]
    pieces = [hold_out_rows(seed, fraction, a, b) for a, b in itertools.pairwise(edges)]
    assert np.array_equal(whole, np.concatenate(pieces))
    assert abs(whole.mean() - fraction) < 0.02


@contextmanager
def largest_bytes() -> Iterator[list[int]]:
    """Yield a list that then holds the most that was allocated inside at once, in bytes."""
    found: list[int] = []
    tracemalloc.start()
    try:
        yield found
        found.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def kernel_columns(outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian columns of 300 points and targets of +-1; the fifth column is constant: the intercept itself."""
    rng = np.random.default_rng(13)
    X = rng.standard_normal((300, 3))
    K = np.exp(-((X[:, None, :] - X[None, :80, :]) ** 2).sum(-1) / 4)
    K[:, 4] = 0.7
    return K, np.stack([np.sign(np.sin(2 * X[:, 0] + k) + 0.3 * X[:, 1]) for k in range(outputs)], axis=1)


@pytest.mark.parametrize("outputs", [1, 3])
def test_centred_statistics_equal_those_of_centred_data(outputs: int) -> None:
    K, Y = kernel_columns(outputs)
    found, Kc, Yc = dense(K, Y).centred(), K - K.mean(0), Y - Y.mean(0)
    np.testing.assert_allclose(found.gram, Kc.T @ Kc, atol=1e-9)
    np.testing.assert_allclose(found.kty, Kc.T @ Yc, atol=1e-9)
    np.testing.assert_allclose(found.yty, (Yc**2).sum(0))
    assert np.array_equal(found.gram, found.gram.T)
    assert not found.gram[4].any()
    assert not found.gram[:, 4].any()
    assert not found.kty[4].any()


@pytest.mark.parametrize("columns", [1, 63, 64, 65, 80])
def test_centring_by_stripes_keeps_every_bit(columns: int) -> None:
    """Models depend on the bits of 0.5 (A + Aᵀ), A = gram - k kᵀ/n, as whole matrices give them."""
    K, Y = kernel_columns(2)
    statistics = dense(K[:, :columns], Y)
    k, n = statistics.column_sums, statistics.weight_sum
    one_sided = statistics.gram - np.outer(k, k / n)
    whole = 0.5 * (one_sided + one_sided.T)
    constant = np.diagonal(whole) <= 1e-13 * np.diagonal(statistics.gram)
    assert constant[4:5].all()
    whole[constant, :] = whole[:, constant] = 0.0
    found = statistics.centred()
    assert np.array_equal(found.gram, whole)
    kty, yty = statistics.centred_targets()
    expected = statistics.kty - np.outer(k, statistics.target_sums) / n
    expected[constant] = 0.0
    for centred in (found.kty, kty):
        assert np.array_equal(centred, expected)
    assert np.array_equal(found.yty, yty)


def test_centring_takes_one_gram_of_memory_and_its_targets_none() -> None:
    rng = np.random.default_rng(0)
    statistics = dense(rng.random((50, 1500)), rng.random((50, 2)))
    with largest_bytes() as largest:
        statistics.centred()
    assert statistics.gram.nbytes < largest[0] < 1.3 * statistics.gram.nbytes
    with largest_bytes() as largest:
        statistics.centred_targets()
    assert largest[0] < 0.02 * statistics.gram.nbytes


def test_an_intercept_of_some_columns_needs_no_gram_of_theirs() -> None:
    K, Y = kernel_columns(3)
    statistics, columns = dense(K, Y), np.array([3, 70, 11])
    weights = np.random.default_rng(1).normal(size=(3, 3))
    found = statistics.intercept(weights, columns)
    assert np.array_equal(found, statistics.cut(columns).intercept(weights))
    np.testing.assert_allclose(found, (Y - K[:, columns] @ weights).mean(0))


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_solve_on_centred_statistics_fits_an_unpenalised_intercept(outputs: int) -> None:
    """The residual has mean zero, a constant column is never used, and scikit-learn finds nothing better."""
    K, Y = kernel_columns(outputs)
    statistics = dense(K, Y)
    found = statistics.centred()
    free = Problem(found.gram, found.kty, float(found.yty.sum()), 0.5).validate()
    solution = solve(free, SolverOptions(tolerance=1e-10), np.random.default_rng(0))
    assert solution.converged
    assert not solution.weights[4].any()
    for intercept in (statistics.intercept(solution.weights), found.intercept(solution.weights)):
        np.testing.assert_allclose((Y - K @ solution.weights - intercept).sum(axis=0), 0, atol=1e-7)
    if outputs == 1:
        other = Lasso(alpha=free.tau / len(Y), tol=1e-12, max_iter=200_000).fit(K, Y[:, 0])
        value = ((Y[:, 0] - other.predict(K)) ** 2).sum() + 2 * free.tau * np.abs(other.coef_).sum()
        assert solution.objective <= value * (1 + 1e-9)
        assert solution.objective == pytest.approx(value, rel=1e-3)


def test_centring_needs_rows() -> None:
    with pytest.raises(InvalidDataError, match="hold_out"):
        dense(np.zeros((0, 4)), np.zeros((0, 2))).centred()
