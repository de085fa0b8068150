"""Derivatives of sums of kernel columns against central differences."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from pipeline.kernels.derivatives import DIAGONAL, METRIC, Derivatives
from pipeline.kernels.kernel_forms import Kernel

VALUES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "gaussian": lambda X, Z: np.exp(-(cdist(X, Z) ** 2) / (2 * 3.0)),
    "laplace": lambda X, Z: np.exp(-cdist(X, Z) / np.sqrt(3.0)),
    "product-laplace": lambda X, Z: np.exp(-cdist(X, Z, "cityblock") / np.sqrt(3.0)),
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize(("shift", "tolerance"), [(0.0, 1e-6), (1e4, 1e-5)])
@pytest.mark.parametrize("n_centers", [3, 38])
def test_the_derivatives_are_those_of_differences(name: str, shift: float, tolerance: float, n_centers: int) -> None:
    """Of more rows than are computed on together, none of them as near to an edge as a step."""
    rng = np.random.default_rng(0)
    centers, X = rng.normal(size=(n_centers, 5)) + shift, rng.normal(size=(70, 5)) + shift
    weights, row_weights, step = rng.normal(size=(n_centers, 3)), rng.uniform(0.5, 2.0, 70), 1e-4
    X, centers = (np.round(both * 1024) / 1024 + added for both, added in ((X, 0.25 / 1024), (centers, 0.0)))
    moves = step * np.eye(5)
    slopes = np.stack(
        [(VALUES[name](X + move, centers) - VALUES[name](X - move, centers)) @ weights / (2 * step) for move in moves]
    )  # (d, rows, T)
    found = Derivatives(centers, 3.0, weights, Kernel(name))
    expected = np.einsum("i,jit->j", row_weights, slopes**2)
    np.testing.assert_allclose(found.sums(X, DIAGONAL, row_weights), expected, rtol=tolerance)
    np.testing.assert_allclose(found.sums(X, DIAGONAL), found.sums(X, DIAGONAL, np.ones(70)), rtol=1e-12)
    if name == "product-laplace":
        with pytest.raises(ValueError, match="no metric"):
            found.sums(X, METRIC)
        return
    expected = np.einsum("i,jit,kit->jk", row_weights, slopes, slopes)
    np.testing.assert_allclose(found.sums(X, METRIC, row_weights), expected, rtol=tolerance, atol=1e-4)
    np.testing.assert_allclose(np.diagonal(found.sums(X, METRIC)), found.sums(X, DIAGONAL), rtol=1e-12)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-4), (np.float64, 1e-10)])
def test_a_center_does_not_pull_a_row_that_equals_it(name: str, dtype: type, tolerance: float) -> None:
    rng = np.random.default_rng(1)
    centers, weights = rng.normal(size=(40, 3)).astype(dtype), rng.normal(size=(40, 2))
    centers[1::2, 0] = centers[::2, 0]  # equal in a feature
    away = centers[None].astype("f8") - centers[:, None]
    lengths = np.linalg.norm(away, axis=2, keepdims=True)
    np.fill_diagonal(lengths[..., 0], 1.0)
    pulls = {"gaussian": away / 3.0, "laplace": away / lengths / np.sqrt(3.0)}.get(name, np.sign(away) / np.sqrt(3.0))
    slopes = np.einsum("im,mt,imj->itj", VALUES[name](centers, centers), weights, pulls)
    found = Derivatives(centers, 3.0, weights, Kernel(name)).sums(centers, DIAGONAL)
    np.testing.assert_allclose(found, np.square(slopes).sum(axis=(0, 1)), rtol=tolerance)
