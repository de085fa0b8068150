"""Exact sums and the statistics made of them: the same bits in any order, twins in whole numbers and dense products."""

import copy
import functools
import itertools
import operator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from dense_twins import kernel_data, statistics_of
from pipeline.errors import InvalidDataError
from pipeline.kernels import exact_sums
from pipeline.kernels.exact_sums import ExactGram, ExactSum, unit_of
from pipeline.kernels.gram_statistics import GramStatistics, RowBounds, StatisticsSums, largest_terms
from pipeline.kernels.kernel_functions import KERNELS
from runs import largest_bytes

SEEDS = st.integers(0, 2**32 - 1)


@given(
    terms=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20),
    largest=st.floats(1e3, 1e9),
    n_terms=st.integers(20, 10**7),
)
def test_a_sum_is_that_of_whole_numbers(terms, largest, n_terms):
    total, unit = ExactSum((), largest, n_terms), Fraction(float(unit_of(largest, n_terms)))
    for term in terms:
        total.add(term)
    whole = sum(round(Fraction(term) / unit) for term in terms)
    assert total.units == whole
    assert float(total.values()) == float(whole * unit)
    assert abs(whole * unit - sum(map(Fraction, terms))) <= Fraction(float(total.error))


@given(columns=st.integers(1, 6), n_blocks=st.integers(1, 6), looseness=st.integers(0, 40), seed=SEEDS)
def test_a_gram_is_that_of_whole_numbers(columns, n_blocks, looseness, seed):
    """Columns of 20 bits, whose products are exact in float64; a loose bound makes the unit coarser than they are."""
    rng, largest = np.random.default_rng(seed), 16.0 * 2**looseness
    blocks = [rng.integers(-(2**20), 2**20, size=(16, columns)) for _ in range(n_blocks)]
    gram, unit = ExactGram(columns, 0, largest, n_blocks), Fraction(float(unit_of(largest, n_blocks)))
    for block in blocks:
        gram.add_products(block / 2.0**20)
    for i in range(columns):
        for j in range(i + 1):
            products = [Fraction(sum(int(a) * int(b) for a, b in block[:, [i, j]]), 2**40) for block in blocks]
            assert int(gram.units[i, j]) == sum(round(product / unit) for product in products)
            assert abs(int(gram.units[i, j]) * unit - sum(products)) <= Fraction(gram.error)


@given(
    factor=st.floats(1.002, 1e307) | st.sampled_from([np.nan, np.inf]),
    sign=st.sampled_from([-1.0, 1.0]),
    n_terms=st.integers(1, 10**6),
    place=st.integers(0, 2),
)
@example(np.nan, 1.0, 3, 0)
@example(np.inf, -1.0, 3, 2)
@example(1e307, 1.0, 3, 2)
def test_a_term_beyond_its_bound_or_that_is_no_number_is_an_error(factor, sign, n_terms, place):
    terms = np.where(np.arange(3) == place, sign * factor * 5.0, 1.0)
    for shape in ((3,), (3, 1)):
        with pytest.raises(InvalidDataError, match="beyond the bound"):
            ExactSum(shape, 5.0, n_terms).add(terms.reshape(shape))
    with pytest.raises(InvalidDataError, match="beyond the bound"):
        ExactSum((3,), np.where(np.arange(3) == place, 1e-100, 1.0), n_terms).add(terms)
    gram = ExactGram(3, 2, 5.0, n_terms)
    gram.add_products(np.ones((1, 3)))
    with pytest.raises(InvalidDataError, match="beyond the bound"):
        gram.add_products(np.stack([np.zeros(3), terms]))


@pytest.mark.parametrize("n_terms", [1, 4095, 4096, 5000, 10**7])
@pytest.mark.parametrize("largest", [1.0, 3.0, 1e300, 1e-290])
def test_the_sum_of_all_terms_stays_inside_64_bits(n_terms, largest):
    total, most = ExactSum((), largest, n_terms), 1.0009 * largest
    total.add(most)
    assert n_terms * int(total.units) < 2**63
    assert n_terms * int(total.units) >= 2**61 or largest < 1e-280  # no bit is given away
    for _ in range(min(n_terms, 5000) - 1):
        total.add(most)
    assert float(total.values()) == pytest.approx(most * min(n_terms, 5000), rel=1e-12, abs=0)


def bounds_of(Y: np.ndarray, block_rows: int, n_blocks: int, weights: ArrayLike = 1.0) -> tuple[RowBounds, int, int]:
    return RowBounds.of(largest_terms(Y, weights)), block_rows, n_blocks


@given(
    seed=st.integers(0, 2**32 - 1),
    kernel=st.sampled_from(KERNELS),
    kept=st.integers(0, 12),
    weighted=st.booleans(),
    groups=st.integers(1, 4),
    tile=st.integers(1, 14),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_any_order_and_grouping_of_blocks_gives_the_same_bits_of_dense_products(
    seed, kernel, kept, weighted, groups, tile, dtype
):
    """Blocks of any number of rows; with and without weights."""
    rng = np.random.default_rng(seed)
    X, Y = rng.random((200, 4)).astype(np.float32), rng.normal(size=(200, 2))
    columns = kernel(X[:12], 0.5, dtype)
    weights = rng.random(200) + 0.1 if weighted else np.ones(200)
    edges = np.unique(np.concatenate([[0, 200], rng.integers(0, 200, 8)]))
    blocks = [slice(a, b) for a, b in itertools.pairwise(edges)]
    bounds = bounds_of(Y, 200, len(blocks), weights)
    sums = [StatisticsSums(12, *bounds, kept) for _ in range(groups + 1)]

    def add(block: slice, to: StatisticsSums) -> None:
        to.add(columns.block(X[block], out_dtype=np.float64), Y[block], weights[block] if weighted else None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_sums, "TILE_COLUMNS", tile)
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
    K, roots = columns.block(X, out_dtype=np.float64), np.sqrt(weights)[:, None]
    products = statistics_of(roots * K, roots * Y)
    kept_away = {"gram": products.gram[kept:], "kty": products.kty[kept:], "column_sums": (weights @ K)[kept:]}
    truth = replace(products, **kept_away, target_sums=weights @ Y, weight_sum=weights.sum())
    rtol = 1e-11 if dtype == np.float64 else 1e-5  # float32 columns are rounded as their block has them
    for found in (together, functools.reduce(operator.add, parts), functools.reduce(GramStatistics.absorbing, parts)):
        for name, value in vars(replace(truth, unit_errors=found.unit_errors)).items():
            atol = 0.0 if name == "gram" else rtol * np.abs(value).max(initial=0.0)
            np.testing.assert_allclose(getattr(found, name), value, rtol=rtol, atol=atol, err_msg=name)


UNLIKE = (np.where(np.arange(300) == 7, 1e9, 1.0), np.logspace(0, 8, 300))


@pytest.mark.parametrize(
    ("sizes", "of_all"), [*((of, 1.0) for of in UNLIKE), (np.ones(300), 1e150), (np.ones(300), 1e-140)]
)
def test_huge_and_tiny_targets_and_weights_cost_no_digit(sizes, of_all):
    """Bounds are of products: y of 1e9 with a weight of 1e-18, and weights of 1/y² over eight decades."""
    K, Y = kernel_data(0, outputs=2)
    Y[:, 1] *= 1e-3
    targets, weights, roots = Y * sizes[:, None], sizes**-2.0, 1 / sizes[:, None]
    sums = StatisticsSums(80, *bounds_of(of_all * targets, 100, 3, weights))
    for rows in (slice(start, start + 100) for start in range(0, 300, 100)):
        sums.add(K[rows].copy(), of_all * targets[rows], weights[rows])
    found, truth = sums.statistics(), statistics_of(roots * K, roots * targets)
    for name, unit in {"gram": 1.0, "kty": of_all, "yty": of_all}.items():
        value = getattr(found, name) / unit / (unit if name == "yty" else 1.0)
        np.testing.assert_allclose(value, getattr(truth, name), rtol=1e-10, atol=1e-13, err_msg=name)
    np.testing.assert_allclose(found.target_sums / of_all, weights @ targets, rtol=1e-10)


def kernel_columns(outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian columns of 300 points and targets of +-1; the fifth column is constant: the intercept itself."""
    K, Y = kernel_data(13, outputs=outputs)
    K[:, 4] = 0.7
    return K, Y


@pytest.mark.parametrize("columns", [1, 63, 64, 65, 80])
def test_centred_statistics_are_those_of_centred_columns_and_targets(columns):
    K, Y = kernel_columns(2)
    statistics = statistics_of(K[:, :columns], Y)
    found, (kty, yty) = statistics.centred(), statistics.centred_targets()
    assert np.array_equal(found.gram, found.gram.T)
    assert not found.gram[4:5].any()
    assert (np.array_equal(found.kty, kty), np.array_equal(found.yty, yty)) == (True, True)
    C, R = K[:, :columns] - K[:, :columns].mean(0), Y - Y.mean(0)
    truth = replace(statistics, gram=C.T @ C, kty=C.T @ R, yty=(R**2).sum(0))
    for name, value in vars(truth).items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-9, atol=1e-9, err_msg=name)


def test_centring_takes_one_gram_of_memory_and_its_targets_none():
    rng = np.random.default_rng(0)
    statistics = statistics_of(rng.random((50, 1500)), rng.random((50, 2)))
    with largest_bytes() as largest:
        statistics.centred()
    assert statistics.gram.nbytes < largest[0] < 1.3 * statistics.gram.nbytes
    with largest_bytes() as largest:
        statistics.centred_targets()
    assert largest[0] < 0.02 * statistics.gram.nbytes


def test_statistics_whose_squares_overflow_are_refused():
    sums = StatisticsSums(2, *bounds_of(np.full((1, 1), 1e153), 40, 1))
    sums.add(np.ones((40, 2)), np.full((40, 1), 1e153))
    with pytest.raises(InvalidDataError, match="the targets are too large"):
        sums.statistics().check_range()
