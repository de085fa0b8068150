"""Accumulated statistics against the dense products they stand for."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.blas import add_gram
from pipeline.columns import ColumnGenerator
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
