"""Transforms of targets: there and back, against their formulas, and what is no transform."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm, rankdata

from features.errors import DataError
from features.target_transform import KINDS, MOST_KNOTS, STEEPEST, TargetDistribution, TargetTransform

RNG = np.random.default_rng(0)
TARGETS = st.floats(-1e6, 1e6).map(lambda value: round(value, 3)) | st.sampled_from([0.0, 1.0, -1e12, 1e12])


def transform_of(targets: np.ndarray, kind: str, weights: np.ndarray | None = None) -> TargetTransform:
    made = TargetDistribution.of(targets, np.ones(len(targets)) if weights is None else weights).transform(kind)
    assert made is not None
    return made


@given(targets=arrays(np.float64, st.integers(1, 400), elements=TARGETS), kind=st.sampled_from(KINDS[1:]))
def test_what_is_transformed_comes_back_and_no_prediction_leaves_the_range(targets: np.ndarray, kind: str) -> None:
    made = TargetDistribution.of(targets, np.ones(len(targets))).transform(kind)
    if made is None:
        assert np.ptp(targets) <= 1e-8 * np.abs(targets).max()
        return
    least, most, rounding = made.values[0], made.values[-1], 1e-9 * np.abs(targets).max()
    assert targets.min() - rounding <= least < most <= targets.max() + rounding
    scores = made.apply(targets)
    order = np.argsort(targets)
    assert (np.diff(scores[order]) >= 0).all()
    np.testing.assert_allclose(made.invert(scores), np.clip(targets, least, most), atol=rounding)
    far = made.invert(np.array([-np.inf, -1e300, 1e300, np.inf]))
    assert far.tolist() == [least, least, most, most]
    again = TargetTransform.from_knots(kind, made.knots())
    assert again == made


@pytest.mark.parametrize("n", [60, 4000])
def test_scores_are_those_of_the_formulas(n: int) -> None:
    targets = np.exp(RNG.normal(size=n))
    center, log = np.sort(targets)[n // 2 - 1], transform_of(targets, "log")
    scale = np.sort(np.abs(targets[targets != center] - center))[(n - 1) // 2]
    expected = np.sign(targets - center) * np.log1p(np.abs(targets - center) / scale)
    np.testing.assert_allclose(log.apply(targets), expected, atol=1e-3)
    targets = RNG.permutation(np.exp(norm.ppf((np.arange(n) + 0.5) / n)))  # whose logarithms are their normal scores
    rank = transform_of(targets, "rank")
    assert len(rank.values) == min(n, MOST_KNOTS)
    np.testing.assert_allclose(rank.apply(targets), np.log(targets), atol=1e-12 if n <= MOST_KNOTS else 0.01)
    np.testing.assert_allclose(rank.apply(targets), norm.ppf((rankdata(targets) - 0.5) / n), atol=0.01)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_target_twice_is_one_of_twice_the_weight_and_units_change_nothing(kind: str) -> None:
    targets, times = RNG.standard_cauchy(300), RNG.integers(1, 4, 300)
    weighted = transform_of(targets, kind, times.astype(float))
    assert weighted == transform_of(np.repeat(targets, times), kind)
    dollars = transform_of(5 + 1000 * targets, kind, times.astype(float))
    np.testing.assert_allclose(dollars.apply(5 + 1000 * targets), weighted.apply(targets), atol=1e-9)


def test_a_score_above_those_of_most_targets_is_no_outlier() -> None:
    """Three targets of a thousand are a thousand times too large; scores just above the others mean just above."""
    targets = 3 + RNG.normal(size=4000)
    largest = targets.max()
    targets[:12] *= 1000
    made = transform_of(targets, "rank")
    above = made.apply(np.array([largest])) + 0.1
    assert largest < made.invert(above)[0] < largest + np.expm1(STEEPEST * 0.1) * 2 * (largest - 3)
    assert TargetDistribution.of(targets, np.ones(4000)).tail > 1000
    assert TargetDistribution.of(RNG.normal(size=4000), np.ones(4000)).tail < 8


GOOD = np.array([[0.0, 1.0, 5.0], [-1.0, 0.0, 1.0]])
BAD: dict[str, tuple[Any, Any]] = {
    "kind": ("square", GOOD),
    "no kind": (None, GOOD),
    "a list": (["log"], GOOD),
    "no knots": ("log", None),
    "one knot": ("log", GOOD[:, :1]),
    "three rows": ("rank", np.arange(9.0).reshape(3, 3)),
    "float32": ("rank", GOOD.astype(np.float32)),
    "equal": ("rank", GOOD * [[1.0], [0.0]]),
    "falling": ("rank", -GOOD),
    "not finite": ("rank", np.array([[0.0, np.inf], [0.0, 1.0]])),
    "too large": ("log", GOOD * 1e151),
    "too steep": ("log", GOOD * [[1e149], [1e-200]]),
    "too many": ("log", np.arange(2.0 * (MOST_KNOTS + 1)).reshape(2, -1)),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_transform_is_refused(case: str) -> None:
    kind, knots = BAD[case]
    with pytest.raises(DataError, match="target_"):
        TargetTransform.from_knots(kind, knots)
