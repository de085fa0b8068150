"""Streaming z-scores against numpy on the whole array."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from features.errors import DataError
from features.rows import RunningMoments, Standardisation


def fit(rows, block):
    moments = RunningMoments.begin(rows[:block])
    for start in range(0, len(rows), block):
        moments = moments.update(rows[start : start + block])
    return moments.standardisation()


@example(60, 9, 0.0, 1e-150)
@example(60, 9, 0.0, 1e150)
@given(st.integers(2, 80), st.integers(1, 90), st.floats(-1e6, 1e6), st.floats(1e-3, 1e3))
def test_equals_numpy_for_any_block_size(n, block, shift, spread):
    rows = shift + spread * np.random.default_rng(n).standard_normal((n, 3))
    found, again = fit(rows, block), fit(rows.reshape(n, 3, 1), block)  # as those of images
    assert (found.mean.tobytes(), found.scale.tobytes()) == (again.mean.tobytes(), again.scale.tobytes())
    np.testing.assert_allclose(found.mean, rows.mean(axis=0), rtol=1e-12, atol=1e-12 * max(spread / 1e3, 1))
    np.testing.assert_allclose(found.scale, rows.std(axis=0), rtol=1e-6)
    scores = found.apply(rows.reshape(n, 3, 1))
    assert (scores.dtype, scores.shape) == (np.float32, (n, 3))
    if shift == 0:
        np.testing.assert_allclose(scores.std(axis=0), 1.0, rtol=1e-5)


@given(st.floats(1e-100, 1e140), st.integers(2, 60), st.integers(2, 70))
def test_values_that_differ_by_little_are_scaled_whatever_their_mean(mean, n, block):
    """Down to the last bits of float64, of which a mean of the values themselves would keep nothing."""
    steps = np.random.default_rng(n).permutation(n)
    column = mean + 4 * np.spacing(mean) * steps
    expected = (steps - steps.mean()) / steps.std()
    if len(np.unique(column)) == n:  # no bit was lost to the next power of 2
        np.testing.assert_allclose(fit(column[:, None], block).apply(column[:, None])[:, 0], expected, atol=0.3)


def test_what_is_constant_counts_for_nothing():
    tiny = 1e-300 * np.random.default_rng(5).standard_normal(50)  # its squares are zero
    rows = np.column_stack([np.full(50, 0.1), np.zeros(50), tiny, np.arange(50.0)])
    assert np.isinf(fit(rows, 7).scale).tolist() == [True, True, True, False]
    assert not fit(rows, 7).apply(rows + 5)[:, :3].any()


def test_refuses_no_rows_and_wrong_width_and_takes_values_far_beyond_the_fitted_ones_without_a_warning():
    scores = Standardisation(np.zeros(2), np.array([1.0, np.inf]))
    with pytest.raises(ValueError, match="at least one row"):
        RunningMoments.begin(np.zeros((1, 2))).standardisation()
    with pytest.raises(ValueError, match="3 columns"):
        scores.apply(np.zeros((4, 3)))
    assert scores.apply(np.array([[1e200, 1e200]])).tolist() == [[np.inf, 0.0]]


@pytest.mark.parametrize("block", [7, 50])
@pytest.mark.parametrize("scale", [1e160, 1e200, 1e308])
def test_a_column_whose_moments_overflow_is_named(scale, block):
    rows = np.random.default_rng(4).uniform(-1, 1, (50, 3))
    rows[:, 1] *= scale
    with pytest.raises(DataError, match=r"column 1.*rescale"):
        fit(rows, block)
