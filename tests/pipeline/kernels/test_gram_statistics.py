"""Accumulated statistics against the dense products they stand for."""

import copy
import functools
import itertools
import operator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from dense_twins import kernel_data, statistics_of
from pipeline.errors import InvalidDataError
from pipeline.kernels import exact_sums
from pipeline.kernels.gram_statistics import (
    GramStatistics,
    RowBounds,
    StatisticsSums,
    largest_terms,
)
from pipeline.kernels.kernel_functions import KERNELS, Kernel
from runs import largest_bytes


def bounds_of(Y: np.ndarray, block_rows: int, n_blocks: int, weights: ArrayLike = 1.0) -> tuple[RowBounds, int, int]:
    return RowBounds.of(largest_terms(Y, weights)), block_rows, n_blocks


@given(
    seed=st.integers(0, 2**32 - 1),
    kernel=st.sampled_from(KERNELS),
    kept=st.integers(0, 12),
    weighted=st.booleans(),
    groups=st.integers(1, 4),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_any_order_and_grouping_of_blocks_gives_the_same_bits_of_dense_products(
    seed: int, kernel: type[Kernel], kept: int, weighted: bool, groups: int, dtype: type
) -> None:
    """Blocks of any number of rows; with and without weights."""
    rng = np.random.default_rng(seed)
    X, Y = rng.random((200, 4)).astype(np.float32), rng.normal(size=(200, 2))
    generator = kernel(X[:12], 0.5, dtype)
    weights = rng.random(200) + 0.1 if weighted else np.ones(200)
    edges = np.unique(np.concatenate([[0, 200], rng.integers(0, 200, 8)]))
    blocks = [slice(a, b) for a, b in itertools.pairwise(edges)]
    bounds = bounds_of(Y, 200, len(blocks), weights)
    sums = [StatisticsSums(12, *bounds, kept) for _ in range(groups + 1)]

    def add(block: slice, to: StatisticsSums) -> None:
        to.add(generator.block(X[block], out_dtype=np.float64), Y[block], weights[block] if weighted else None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_sums, "TILE_COLUMNS", 5)
        for block in blocks:
            add(block, sums[0])
        for number in rng.permutation(len(blocks)):
            add(blocks[number], sums[rng.integers(1, groups + 1)])
    parts = [copy.deepcopy(part).statistics() for part in sums[1:]]
    for number in rng.permutation(np.arange(2, groups + 1)):
        sums[1].absorb(sums[number].arrays().items())
    alone, together = sums[0].statistics(), sums[1].statistics()
    for name, value in vars(alone).items():
        assert np.array_equal(getattr(together, name), value), name
    K, roots = generator.block(X, out_dtype=np.float64), np.sqrt(weights)[:, None]
    products = statistics_of(roots * K, roots * Y)
    kept_away = {"gram": products.gram[kept:], "kty": products.kty[kept:], "column_sums": (weights @ K)[kept:]}
    truth = replace(products, **kept_away, target_sums=weights @ Y, weight_sum=weights.sum())
    rtol = 1e-11 if dtype == np.float64 else 1e-5  # float32 columns are rounded as their block has them
    for found in (together, functools.reduce(operator.add, parts), functools.reduce(GramStatistics.absorbing, parts)):
        for name, value in vars(replace(truth, unit_errors=found.unit_errors)).items():
            atol = 0.0 if name == "gram" else rtol * np.abs(value).max(initial=0.0)
            np.testing.assert_allclose(getattr(found, name), value, rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("size", [1e150, 1e-140])
def test_huge_and_tiny_targets_keep_their_digits(size: float) -> None:
    K, Y = kernel_data(0, outputs=4)
    Y[:, 1] *= 1e-3
    sums = StatisticsSums(80, *bounds_of(Y * size, 100, 3))
    for start in range(0, 300, 100):
        rows = slice(start, start + 100)
        sums.add(K[rows], Y[rows] * size)
    found, truth = sums.statistics(), statistics_of(K, Y)
    np.testing.assert_allclose(found.kty / size, truth.kty, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(found.yty / size / size, truth.yty, rtol=1e-12)
    np.testing.assert_allclose(found.target_sums / size, truth.target_sums, rtol=1e-11)


def test_rows_of_large_targets_and_small_weights_cost_the_others_no_digit() -> None:
    """Bounds are of products: y of 1e9 with a weight of 1e-18, and weights of 1/y² over eight decades."""
    K, Y = kernel_data(0, outputs=2)
    decades = np.logspace(0, 8, len(K))
    for sizes in (np.where(np.arange(len(K)) == 7, 1e9, 1.0), decades):
        targets, roots = Y * sizes[:, None], 1 / sizes[:, None]
        sums = StatisticsSums(K.shape[1], *bounds_of(targets, len(K), 1, sizes**-2.0))
        sums.add(np.array(K, order="C"), targets, sizes**-2.0)
        found, truth = sums.statistics(), statistics_of(roots * K, roots * targets)
        for name in ("gram", "kty", "yty"):
            np.testing.assert_allclose(getattr(found, name), getattr(truth, name), rtol=1e-10, err_msg=name)


def test_targets_whose_sums_leave_float64_are_refused_before_the_first_block() -> None:
    for largest in (1e155, 1e308):
        with pytest.raises(InvalidDataError, match="too large"):
            StatisticsSums(2, *bounds_of(np.full((1, 1), largest), 100, 3))


def test_rows_that_the_bounds_do_not_hold_are_an_error() -> None:
    for columns, target in ((1.0, 30.0), (20.0, 1.0), (np.nan, 1.0), (1.0, np.nan)):
        sums = StatisticsSums(2, *bounds_of(np.ones((1, 1)), 8, 3))
        with pytest.raises(InvalidDataError, match="beyond the bound"):
            sums.add(np.full((8, 2), columns), np.full((8, 1), target))


def kernel_columns(outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian columns of 300 points and targets of +-1; the fifth column is constant: the intercept itself."""
    K, Y = kernel_data(13, outputs=outputs)
    K[:, 4] = 0.7
    return K, Y


@pytest.mark.parametrize("columns", [1, 63, 64, 65, 80])
def test_centring_by_stripes_keeps_every_bit(columns: int) -> None:
    """Models depend on the bits of 0.5 (A + Aᵀ), A = gram - k kᵀ/n, as whole matrices give them."""
    K, Y = kernel_columns(2)
    statistics = statistics_of(K[:, :columns], Y)
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
    C, R = K[:, :columns] - K[:, :columns].mean(0), Y - Y.mean(0)
    for name, value in vars(GramStatistics(C.T @ C, C.T @ R, (R**2).sum(0), k, statistics.target_sums, n)).items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-9, atol=1e-9, err_msg=name)


def test_centring_takes_one_gram_of_memory_and_its_targets_none() -> None:
    rng = np.random.default_rng(0)
    statistics = statistics_of(rng.random((50, 1500)), rng.random((50, 2)))
    with largest_bytes() as largest:
        statistics.centred()
    assert statistics.gram.nbytes < largest[0] < 1.3 * statistics.gram.nbytes
    with largest_bytes() as largest:
        statistics.centred_targets()
    assert largest[0] < 0.02 * statistics.gram.nbytes


def test_an_intercept_of_some_columns_needs_no_gram_of_theirs() -> None:
    K, Y = kernel_columns(3)
    statistics, columns = statistics_of(K, Y), np.array([3, 70, 11])
    weights = np.random.default_rng(1).normal(size=(3, 3))
    found = statistics.intercept(weights, columns)
    assert np.array_equal(found, statistics.cut(columns).intercept(weights))
    np.testing.assert_allclose(found, (Y - K[:, columns] @ weights).mean(0))


def test_centring_needs_rows() -> None:
    with pytest.raises(InvalidDataError, match="hold_out"):
        statistics_of(np.zeros((0, 4)), np.zeros((0, 2))).centred()


def test_statistics_whose_squares_overflow_are_refused() -> None:
    sums = StatisticsSums(2, *bounds_of(np.full((1, 1), 1e153), 40, 1))
    sums.add(np.ones((40, 2)), np.full((40, 1), 1e153))
    with pytest.raises(InvalidDataError, match="the targets are too large"):
        sums.statistics().check_range()
