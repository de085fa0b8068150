"""Kernel blocks against float64 formulas and scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import rbf_kernel

from pipeline.errors import ExitCode, InvalidDataError
from pipeline.kernels.kernel_forms import ColumnGenerator
from pipeline.kernels.kernel_loops import gaussian_float32


def test_exponential_is_exact_to_two_units_in_the_last_place() -> None:
    exponents = np.linspace(0, 86.9, 400_000, dtype=np.float32).reshape(-1, 1000)
    rows, columns = exponents.shape
    out = np.empty_like(exponents)
    zeros, one = np.zeros(rows, np.float32), np.float32(1)
    gaussian_float32(-exponents / 2, zeros, np.zeros(columns, np.float32), one, np.arange(rows), out, 0)
    truth = np.exp(-exponents.astype(np.float64))
    assert np.abs(out / truth - 1).max() <= 2 * np.finfo(np.float32).eps


def test_negative_rounded_distances_are_clamped() -> None:
    """‖x‖² + ‖z‖² - 2xᵀz of a point with itself is often below zero in float32."""
    X = np.random.default_rng(0).normal(100, 1, (200, 30)).astype(np.float32)
    assert ColumnGenerator(X, 1e-3).block(X).max() <= 1.0


@pytest.mark.parametrize("sigma2", [0.0, -1.0, np.nan, np.inf])
def test_bad_widths_are_refused(sigma2: float) -> None:
    with pytest.raises(ValueError, match="sigma2"):
        ColumnGenerator(np.zeros((2, 2)), sigma2)


def test_rows_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="features"):
        ColumnGenerator(np.zeros((2, 3)), 1.0).block(np.zeros((4, 2), np.float32))


@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4, 1e5])
def test_points_far_from_the_origin_lose_nothing(offset: float) -> None:
    """Against float64 on the same float32 points: at 1e4 the plain formula would give errors of order one."""
    rng = np.random.default_rng(4)
    X = (offset + rng.normal(size=(300, 20))).astype(np.float32)
    truth = rbf_kernel(X.astype("f8"), X[:50].astype("f8"), gamma=1 / 10)
    assert np.abs(ColumnGenerator(X[:50], 5.0).block(X) - truth).max() < 1e-5
    assert np.abs(ColumnGenerator(X[:50], 5.0, np.float64).block(X) - truth).max() < 1e-9
    near = ColumnGenerator(X[:50], 5.0)._form._origin is None
    assert near == (offset == 0.0), "no pass over the rows is spent where it brings nothing"


def test_a_far_row_that_is_no_center_is_harmless() -> None:
    X = np.random.default_rng(6).normal(size=(30, 4)).astype(np.float32)
    X[17] = 1e6
    block = ColumnGenerator(X[:10], 1.0).block(X)
    assert block.min() >= 0.0
    assert block[17].max() < 1e-36
    assert np.array_equal(np.delete(block, 17, 0), ColumnGenerator(X[:10], 1.0).block(np.delete(X, 17, 0)))


@pytest.mark.parametrize(
    ("scale", "sigma2", "words"),
    [
        (1e30, 1.0, "standardise"),
        (1e200, 1.0, "standardise"),
        (1e4, 1.0, "standardise"),
        (1.0, 1e-300, "--sigma2"),
        (1.0, 1e-6, "--sigma2"),
        (np.nan, 1.0, "standardise"),
    ],
)
def test_kernel_values_that_would_be_rounding_are_refused_in_words(scale: float, sigma2: float, words: str) -> None:
    centers = scale * np.random.default_rng(7).normal(size=(20, 5))
    with pytest.raises(InvalidDataError, match=words) as found:
        ColumnGenerator(centers, sigma2)
    assert found.value.exit_code == ExitCode.INVALID_DATA


@pytest.mark.parametrize("value", [1e25, 1e200, np.nan, np.inf])
def test_a_row_too_long_for_distances_is_named(value: float) -> None:
    X = np.random.default_rng(8).normal(size=(20, 5))
    generator = ColumnGenerator(X[:3], 1.0)
    X[13, 2] = value
    with pytest.raises(InvalidDataError, match="row 13"):
        generator.block(X)


@given(offset=st.floats(-1e3, 1e3), scale=st.floats(1e-2, 1e2), sigma2=st.floats(1e-3, 1e3), seed=st.integers(0, 99))
def test_what_is_not_refused_is_right(offset: float, scale: float, sigma2: float, seed: int) -> None:
    X = np.random.default_rng(seed).normal(offset, scale, (60, 5)).astype(np.float32)
    try:
        block = ColumnGenerator(X[:20], sigma2).block(X)
    except InvalidDataError:
        return
    assert np.abs(block - rbf_kernel(X.astype("f8"), X[:20].astype("f8"), gamma=1 / (2 * sigma2))).max() < 2e-2
