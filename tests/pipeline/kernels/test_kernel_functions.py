"""Kernels: columns, widths and derivatives against plain formulas and scikit-learn, whichever rows are beside them."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from pipeline.config.settings import SETTINGS
from pipeline.config.train_config import AUTO_KERNEL
from pipeline.errors import InvalidDataError
from pipeline.kernels.kernel_functions import DIAGONAL, KERNELS, METRIC, Kernel, lengths, scaled
from pipeline.kernels.kernel_loops import gaussian_float32

GAUSSIAN, PRODUCT_LAPLACE = KERNELS
EVERY_KERNEL = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)


def histograms(seed: int, rows: int = 40, features: int = 70) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.random((rows, features)) * (rng.random((rows, features)) < 0.6)).astype(np.float32)


def test_the_settings_which_import_no_numpy_list_the_kernels():
    assert SETTINGS["kernel.name"].parse.parse.choices == (*(kernel.name for kernel in KERNELS), AUTO_KERNEL)


def dense_columns(kernel: type[Kernel], sigma2: float, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """k(x, z) in float64, by scipy's distances."""
    if kernel is GAUSSIAN:
        return np.asarray(np.exp(-cdist(X, Z, "sqeuclidean") / (2 * sigma2)))
    return np.asarray(np.exp(-cdist(X, Z, "cityblock") / np.sqrt(sigma2)))


@EVERY_KERNEL
@pytest.mark.parametrize("centers", [1, 64, 130])
def test_columns_are_the_kernel_of_rows_and_centers(kernel, centers):
    X, Z = histograms(0), histograms(1, centers)
    truth = dense_columns(kernel, 5.0, X, Z)
    assert np.allclose(kernel(Z, 5.0, np.float64).block(X), truth, rtol=1e-12)
    single = kernel(Z, 5.0)
    assert single.block(X).dtype == np.float32
    assert np.allclose(single.block(X), truth, rtol=2e-5)
    assert np.array_equal(single.block(X), single.block(X, out_dtype=np.float64))
    for dtype in (np.float32, np.float64):
        assert kernel(Z[:0], 5.0, dtype).block(X).shape == (len(X), 0)
    order = np.random.default_rng(2).permutation(len(X))
    assert np.array_equal(single.block(X, order), single.block(X)[order])


@pytest.mark.parametrize("features", [1, 3, 63, 64, 67, 130])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_value_of_differences_depends_on_its_row_and_center_alone(features, dtype):
    """To the last bit, with any number of either, in any order; far from the origin nothing is lost."""
    rng, kernel = np.random.default_rng(features), PRODUCT_LAPLACE
    X = (1e5 + rng.normal(size=(41, features))).astype(np.float32)
    Z = np.vstack([X[::2], X[1::3] + np.float32(1)])
    block = kernel(Z, 9.0, dtype).block(X)
    np.testing.assert_allclose(block, dense_columns(kernel, 9.0, X, Z), rtol=3e-5 if dtype is np.float32 else 1e-12)
    assert (block[::2, :21].diagonal() == 1.0).all(), "of a center and itself"
    assert np.array_equal(block[::2, :21], block[::2, :21].T)
    tiled = kernel(np.tile(Z, (16, 1)), 9.0, dtype)  # more than a tile of points
    assert np.array_equal(tiled.block(X[7:30]), np.tile(block[7:30], 16))
    for row, center in ((0, 0), (40, 33), (17, 20)):
        assert kernel(Z[center:][:1], 9.0, dtype).block(X[row:][:1]) == block[row, center]
    place = rng.permutation(np.tile(np.arange(len(Z)), 2))
    repeated = kernel(Z[place], 9.0, dtype)
    assert np.array_equal(repeated.block(X[::-1], np.arange(41)[::-1]), block[:, place])


@EVERY_KERNEL
def test_distances_that_overflow_are_refused_in_words(kernel):
    for value in (1e200, np.nan, np.inf):
        X = np.ones((20, 3))
        X[13, 1] = value
        with pytest.raises(InvalidDataError, match=r"center 13.*too large.*standardise"):
            kernel(X, 1.0)
        with pytest.raises(InvalidDataError, match=r"row 13.*too large.*standardise"):
            kernel(X[:3], 1.0).block(X)
    with pytest.raises(InvalidDataError, match=r"`kernel.sigma2=.*1/"):
        kernel(X[:3], 1e-300)


def test_the_typical_width_is_the_median_squared_distance():
    X = np.random.default_rng(10).normal(1000, 1, (60, 5)).astype(np.float32)
    distances = ((X[:, None].astype("f8") - X[None]) ** 2).sum(2)[np.triu_indices(60, 1)]
    assert GAUSSIAN.typical_sigma2(X) == pytest.approx(np.median(distances), rel=1e-3)
    sums = np.abs(X[:, None].astype("f8") - X[None]).sum(2)[np.triu_indices(60, 1)]
    assert PRODUCT_LAPLACE.typical_sigma2(X) == pytest.approx(np.median(sums) ** 2, rel=1e-3)
    copies = np.repeat(X, 10, axis=0)
    assert GAUSSIAN.typical_sigma2(copies) == GAUSSIAN.typical_sigma2(X), "copies do not count"
    assert GAUSSIAN.typical_sigma2(np.ones((5, 3))) == 1.0
    by_class = np.repeat([0.05, 3.0], 1800)[:, None] * np.random.default_rng(12).normal(size=(3600, 5))  # first: tight
    distances = cdist(by_class[::9], by_class[::9], "sqeuclidean")[np.triu_indices(400, 1)]
    assert GAUSSIAN.typical_sigma2(by_class) == pytest.approx(np.median(distances), rel=0.2)


def test_exponential_is_exact_to_two_units_in_the_last_place():
    exponents = np.linspace(0, 86.9, 400_000, dtype=np.float32).reshape(-1, 1000)
    rows, columns = exponents.shape
    out = np.empty_like(exponents)
    zeros, one = np.zeros(rows, np.float32), np.float32(1)
    gaussian_float32(-exponents / 2, zeros, np.zeros(columns, np.float32), one, np.arange(rows), out, 0)
    truth = np.exp(-exponents.astype(np.float64))
    assert np.abs(out / truth - 1).max() <= 2 * np.finfo(np.float32).eps


@given(
    kernel=st.sampled_from(KERNELS),
    offset=st.sampled_from([0.0, 1e2, 1e5]),
    scale=st.floats(-3, 8),
    features=st.integers(1, 300),
    seed=st.integers(0, 2**32 - 1),
)
def test_values_are_right_and_within_0_and_1_however_far_points_are(kernel, offset, scale, features, seed):
    """Pairs about a width from each other, among others at any scale."""
    rng, sigma2 = np.random.default_rng(seed), float(features)
    Z = rng.normal(offset, 10**scale, (20, features)).astype(np.float32)
    X = np.vstack([Z, Z + rng.normal(size=Z.shape).astype(np.float32)])
    for dtype, tolerance in ((np.float32, 1e-3), (np.float64, 1e-11)):
        columns = kernel(Z, sigma2, dtype).block(X)
        assert ((columns >= 0.0) & (columns <= 1.0)).all()
        assert np.abs(columns - dense_columns(kernel, sigma2, X, Z)).max() < tolerance


@EVERY_KERNEL
@pytest.mark.parametrize(("shift", "tolerance"), [(0.0, 1e-6), (1e4, 1e-5)])
@pytest.mark.parametrize("n_centers", [3, 38])
def test_the_derivatives_are_those_of_differences(kernel, shift, tolerance, n_centers):
    """Of more rows than are computed on together, none of them as near to an edge as a step."""
    rng = np.random.default_rng(0)
    centers, X = rng.normal(size=(n_centers, 5)) + shift, rng.normal(size=(70, 5)) + shift
    weights, row_weights, step = rng.normal(size=(n_centers, 3)), rng.uniform(0.5, 2.0, 70), 1e-4
    X, centers = (np.round(both * 1024) / 1024 + added for both, added in ((X, 0.25 / 1024), (centers, 0.0)))
    steps = [(X + move, X - move) for move in step * np.eye(5)]
    ends = [[dense_columns(kernel, 3.0, rows, centers) @ weights for rows in pair] for pair in steps]
    slopes = np.stack([(ahead - behind) / (2 * step) for ahead, behind in ends])  # (d, rows, T)
    sums = partial(kernel(centers, 3.0, np.float64).slope_sums, X, weights)
    expected = np.einsum("i,jit->j", row_weights, slopes**2)
    np.testing.assert_allclose(sums(DIAGONAL, row_weights), expected, rtol=tolerance)
    np.testing.assert_allclose(sums(DIAGONAL), sums(DIAGONAL, np.ones(70)), rtol=1e-12)
    if not kernel.has_metric:
        with pytest.raises(ValueError, match="no metric"):
            sums(METRIC)
        return
    expected = np.einsum("i,jit,kit->jk", row_weights, slopes, slopes)
    np.testing.assert_allclose(sums(METRIC, row_weights), expected, rtol=tolerance, atol=1e-4)
    np.testing.assert_allclose(np.diagonal(sums(METRIC)), sums(DIAGONAL), rtol=1e-12)


@EVERY_KERNEL
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-4), (np.float64, 1e-10)])
def test_a_center_does_not_pull_a_row_that_equals_it(kernel, dtype, tolerance):
    rng = np.random.default_rng(1)
    centers, weights = rng.normal(size=(40, 3)).astype(dtype), rng.normal(size=(40, 2))
    centers[1::2, 0] = centers[::2, 0]  # equal in a feature
    away = centers[None].astype("f8") - centers[:, None]
    pulls = away / 3.0 if kernel is GAUSSIAN else np.sign(away) / np.sqrt(3.0)
    slopes = np.einsum("im,mt,imj->itj", dense_columns(kernel, 3.0, centers, centers), weights, pulls)
    found = kernel(centers, 3.0, dtype).slope_sums(centers, weights, DIAGONAL)
    np.testing.assert_allclose(found, np.square(slopes).sum(axis=(0, 1)), rtol=tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [1, 3, 17, 200])
def test_a_row_has_the_same_product_with_a_metric_whichever_rows_are_beside_it(dtype, d):
    rng = np.random.default_rng(d)
    X, root = rng.normal(size=(173, d)).astype(dtype), rng.normal(size=(d, d)).astype(np.float32)
    whole = scaled(X, root)
    assert whole.dtype == dtype
    np.testing.assert_allclose(whole, X.astype(float) @ root.astype(float), atol=1e-4 if dtype == np.float32 else 1e-10)
    for start, stop in [(0, 1), (0, 32), (0, 33), (32, 96), (64, 173), (160, 173)]:
        np.testing.assert_array_equal(scaled(X[start:stop], root), whole[start:stop])
    np.testing.assert_array_equal(scaled(np.asfortranarray(X), root), whole)
    assert scaled(X[:0], root).shape == (0, d)
    np.testing.assert_allclose(lengths(np.diag(root[0])), np.abs(root[0]), rtol=1e-6)
