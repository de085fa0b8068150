"""Features times scales, or the root of a metric: what it is, whichever rows are beside it."""

import numpy as np
import pytest

from pipeline.kernels.scaled_rows import lengths, scaled


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [1, 3, 17, 200])
def test_a_row_has_the_same_product_whichever_rows_are_beside_it(dtype: type, d: int) -> None:
    rng = np.random.default_rng(d)
    X, root = rng.normal(size=(173, d)).astype(dtype), rng.normal(size=(d, d)).astype(np.float32)
    whole = scaled(X, root)
    assert whole.dtype == dtype
    np.testing.assert_allclose(whole, X.astype(float) @ root.astype(float), atol=1e-4 if dtype == np.float32 else 1e-10)
    for start, stop in [(0, 1), (0, 32), (0, 33), (32, 96), (64, 173), (160, 173)]:
        np.testing.assert_array_equal(scaled(X[start:stop], root), whole[start:stop])
    np.testing.assert_array_equal(scaled(np.asfortranarray(X), root), whole)
    assert scaled(X[:0], root).shape == (0, d)


def test_without_scales_rows_stay_and_a_diagonal_is_no_matrix() -> None:
    X, scales = np.random.default_rng(0).normal(size=(40, 5)), np.linspace(0, 2, 5, dtype=np.float32)
    assert scaled(X, None) is X
    np.testing.assert_allclose(scaled(X, np.diag(scales)), scaled(X, scales), rtol=1e-12)
    np.testing.assert_allclose(lengths(np.diag(scales)), lengths(scales), rtol=1e-6)
