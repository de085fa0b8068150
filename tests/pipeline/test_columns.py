"""Kernel blocks against float64 formulas and scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics.pairwise import rbf_kernel

from pipeline.columns import ColumnGenerator, GaussianKernel
from pipeline.columns_numba import gaussian_float32


def test_exponential_is_exact_to_two_units_in_the_last_place() -> None:
    exponents = np.linspace(0, 86.9, 400_000, dtype=np.float32).reshape(-1, 1000)
    rows, columns = exponents.shape
    out = np.empty_like(exponents)
    zeros, ones = np.zeros(rows, np.float32), np.ones(columns, np.float32)
    gaussian_float32(-exponents / 2, zeros, np.zeros(columns, np.float32), ones, np.arange(rows), out)
    truth = np.exp(-exponents.astype(np.float64))
    assert np.abs(out / truth - 1).max() <= 2 * np.finfo(np.float32).eps


def test_far_points_give_a_tiny_positive_value_and_equal_points_give_one() -> None:
    generator = ColumnGenerator(np.array([[0.0], [1000.0]]), 1.0)
    block = generator.block(np.array([[0.0]], np.float32))
    assert block[0, 0] == 1.0
    assert 0.0 <= block[0, 1] < 1e-36


def test_negative_rounded_distances_are_clamped() -> None:
    """‖x‖² + ‖z‖² - 2xᵀz of a point with itself is often below zero in float32."""
    X = np.random.default_rng(0).normal(100, 1, (200, 30)).astype(np.float32)
    assert ColumnGenerator(X, 1e-3).block(X).max() <= 1.0


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 40),
    centers=st.integers(1, 30),
    features=st.integers(1, 50),
    sigma2=st.floats(0.5, 100),
    seed=st.integers(0, 2**31),
)
def test_block_equals_scikit_learn(rows: int, centers: int, features: int, sigma2: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(rows, features)), rng.normal(size=(centers, features))
    truth = rbf_kernel(X, Z, gamma=1 / (2 * sigma2))
    assert np.allclose(ColumnGenerator(Z, sigma2, np.float64).block(X), truth, rtol=1e-9, atol=1e-12)
    single = ColumnGenerator(Z, sigma2).block(X)
    assert single.dtype == np.float32
    assert np.abs(single - rbf_kernel(X.astype("f4"), Z.astype("f4"), gamma=1 / (2 * sigma2))).max() < 2e-4


def test_float64_output_holds_the_same_float32_numbers() -> None:
    rng = np.random.default_rng(1)
    generator = ColumnGenerator(rng.normal(size=(17, 5)), 2.0)
    X = rng.normal(size=(33, 5)).astype(np.float32)
    assert np.array_equal(generator.block(X), generator.block(X, out_dtype=np.float64))


def test_row_order_permutes_the_rows() -> None:
    rng = np.random.default_rng(2)
    generator = ColumnGenerator(rng.normal(size=(9, 4)), 2.0)
    X = rng.normal(size=(21, 4)).astype(np.float32)
    order = rng.permutation(21)
    assert np.array_equal(generator.block(X, order), generator.block(X)[order])


def test_every_center_may_have_its_own_width() -> None:
    rng = np.random.default_rng(3)
    X, Z = rng.normal(size=(8, 3)), rng.normal(size=(2, 3))
    both = ColumnGenerator(Z, [1.0, 5.0], np.float64).block(X)
    for column, width in enumerate((1.0, 5.0)):
        assert np.array_equal(both[:, column], ColumnGenerator(Z, width, np.float64).block(X)[:, column])


@pytest.mark.parametrize("sigma2", [0.0, -1.0, np.nan, np.inf])
def test_bad_widths_are_refused(sigma2: float) -> None:
    with pytest.raises(ValueError, match="sigma2"):
        GaussianKernel(sigma2)
    with pytest.raises(ValueError, match="sigma2"):
        ColumnGenerator(np.zeros((2, 2)), sigma2)


def test_rows_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="features"):
        ColumnGenerator(np.zeros((2, 3)), 1.0).block(np.zeros((4, 2), np.float32))
