"""Learned scales in numbers: derivatives against differences, the rounds, when they end, which of them is taken."""

from functools import partial

import numpy as np
import pytest

from dense_twins import statistics_of
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.kernels.kernel_forms import GAUSSIAN, ColumnGenerator, typical_sigma2
from pipeline.kernels.scaled_rows import scaled
from pipeline.solvers.feature_scales import (
    DIAGONAL,
    METRIC,
    Round,
    best_of_all,
    best_round,
    derivatives_of,
    importances,
    kinds_of,
    largest_product,
    learn_scales,
    next_scales,
    widths_with_more,
)


def test_products_of_derivatives_are_within_their_bound() -> None:
    points, weights = np.zeros((2, 3)), np.array([[-3.0, 1.0], [2.0, 1.0]])
    steepest, huge = (Round(np.ones(3, np.float32), size * np.abs(weights), 1.0) for size in (1.0, 1e200))
    X = np.sqrt(2.0) * np.eye(3)  # where the slope of a kernel of that width is largest
    largest = derivatives_of(steepest, points, 2.0).sums(X[:1], METRIC).max()
    assert largest_product(steepest, 2.0) == pytest.approx(4 * largest), "of which a part is slack"
    assert largest_product(huge, 2.0) == pytest.approx(4 * largest), "weights of any size can be squared"
    for kind in (METRIC, DIAGONAL):
        of_huge, of_steepest = (derivatives_of(each, points, 2.0).sums(X, kind) for each in (huge, steepest))
        np.testing.assert_allclose(of_huge, of_steepest, rtol=1e-12)


def test_scales_keep_the_typical_distance_and_can_be_zero() -> None:
    points = np.random.default_rng(0).normal(size=(300, 5))
    scales = next_scales(np.array([1, 2, 1, 1, 1], np.float32), np.array([4.0, 1.0, 0.0, 1e-4, 1.0]), points)
    np.testing.assert_allclose(scales / scales[0], [1.0, 1.0, 0.0, 0.005, 0.5], rtol=1e-6)
    assert typical_sigma2(points * scales, GAUSSIAN) == pytest.approx(typical_sigma2(points, GAUSSIAN), rel=1e-5)
    np.testing.assert_array_equal(next_scales(scales, np.zeros(5), points), scales)
    assert importances(scales).sum() == pytest.approx(1.0)
    assert importances(np.array([2.0, 0.0, 1.0], np.float32)).tolist() == pytest.approx([0.8, 0.0, 0.2])


@pytest.mark.parametrize(
    ("errors", "n_held_out", "with_more", "expected"),
    [
        ("d1.0 d0.995", 10**6, {}, 0),
        ("d1.0 d0.985", 10**6, {}, 1),
        ("d1.0 d0.93", 35, {}, 0),  # chance
        ("d1.0 d0.5 d0.499", 35, {}, 2),
        ("dinf", 35, {}, 0),
        ("d1.0 d0.5 m0.49", 35, {}, 1),  # chance
        ("d1.0 d0.95 m0.92", 35, {}, 0),
        ("d1.0 d0.5 m0.4 m0.39", 35, {1: 0.3, 3: 0.2}, 3),
        ("d1.0 d1.1 m0.4", 35, {0: 0.3, 2: 0.27}, 2),
        ("d1.0 d1.1 m0.4", 35, {0: 0.3, 2: 0.28}, 0),  # chance, with more candidates
        ("d1.0 d0.5 m0.4", 35, {1: 0.2, 2: 0.4}, 1),  # fewer of them were helped by what hinders more
    ],
)
def test_what_may_be_chance_is_not_taken(
    errors: str, n_held_out: int, with_more: dict[int, float], expected: int
) -> None:
    shapes = {"d": (2,), "m": (2, 2)}
    rounds = [Round(np.ones(shapes[one[0]], np.float32), np.zeros((1, 1)), float(one[1:])) for one in errors.split()]
    found = best_round(rounds, n_held_out, lambda number: (with_more[number], 50.0))  # asked for no other
    assert found == (expected, list(with_more.values()))


def test_more_candidates_are_tried_at_widths_around_the_typical_one() -> None:
    assert widths_with_more(3.0, 8.0) == [3.0]
    assert widths_with_more("median", 8.0) == [8.0]
    assert widths_with_more("auto", 8.0) == [16.0, 8.0, 4.0, 2.0]


def test_a_metric_finds_the_directions_that_matter() -> None:
    rng = np.random.default_rng(4)
    X = rng.normal(size=(1200, 8))
    direction = rng.normal(size=8) / np.sqrt(8)
    y, held_out = np.sin(2 * X @ direction) + 0.02 * rng.normal(size=1200), rng.random(1200) < 0.2
    points = X[:80]
    sigma2 = typical_sigma2(points, GAUSSIAN)

    def statistics(_: int, scales: np.ndarray) -> tuple[GramStatistics, ...]:
        C = ColumnGenerator(scaled(points, scales), sigma2, np.float64).block(scaled(X, scales))
        return tuple(statistics_of(C[rows], y[rows, None]) for rows in (~held_out, held_out))

    def slopes(_: int, done: Round, kind: str) -> np.ndarray:
        derivatives = derivatives_of(done, scaled(points, done.scales), sigma2)
        return derivatives.sums(scaled(X, done.scales), kind) / len(X)

    learning = partial(learn_scales, points, statistics, slopes, intercept=True)
    rounds = learning(kinds=(DIAGONAL, METRIC), most_rounds=12)
    errors, best = [one.held_out_error for one in rounds], best_of_all(rounds)
    kinds = [one.kind for one in rounds]
    assert kinds == sorted(kinds), "a scale for each feature first"
    assert rounds[best].kind == METRIC
    assert errors[best] < min(error for error, kind in zip(errors, kinds, strict=True) if kind == DIAGONAL) / 9
    values, vectors = np.linalg.eigh(rounds[best].scales.astype(float))
    assert values[-1] > 5 * values[-2] > 0
    assert abs(vectors[:, -1] @ direction) > 0.98 * np.linalg.norm(direction)
    np.testing.assert_allclose(importances(rounds[best].scales), direction**2 / (direction @ direction), atol=0.05)
    distances = [typical_sigma2(scaled(points, one.scales), GAUSSIAN) for one in rounds]
    np.testing.assert_allclose(distances, distances[0], rtol=1e-5)
    only = learning(kinds=(METRIC,), most_rounds=2)
    assert [one.kind for one in only] == [DIAGONAL, METRIC, METRIC], "the first has no scales"


def test_too_many_features_have_no_metric() -> None:
    assert kinds_of("learned", 200) == (DIAGONAL, METRIC)
    assert kinds_of("learned", 201) == (DIAGONAL,)
    assert kinds_of(METRIC, 3) == (METRIC,)
    assert kinds_of("none", 3) == kinds_of(None, 3) == ()


def test_a_metric_is_the_mean_product_of_the_gradients_before_any_scales() -> None:
    rng = np.random.default_rng(5)
    points, gradients = rng.normal(size=(200, 4)), rng.normal(size=(50, 4)) * [1.0, 2.0, 0.5, 0.0]
    expected = gradients.T @ gradients / 50
    for before in (np.diag([1.0, 2.0, 3.0, 0.5]), np.eye(4) + 0.3):
        of_scaled = gradients @ np.linalg.inv(before)  # u = before x
        scales = np.diagonal(before) if np.array_equal(before, np.diag(np.diagonal(before))) else before
        root = next_scales(scales.astype(np.float32), of_scaled.T @ of_scaled / 50, points).astype(float)
        np.testing.assert_array_equal(root, root.T)
        metric = root @ root
        np.testing.assert_allclose(metric / metric.trace(), expected / expected.trace(), atol=1e-5)
