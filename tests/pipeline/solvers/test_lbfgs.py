"""L-BFGS against a dense inverse of BFGS, against scipy on a curved valley, and where there is nothing to gain."""

import numpy as np
from scipy.optimize import rosen, rosen_der

from pipeline.solvers.lbfgs import PAIRS, Curvature, direction, next_point


def test_direction_is_that_of_the_dense_inverse() -> None:
    """The recursion on the last pairs, written out with matrices."""
    rng = np.random.default_rng(0)
    hessian = np.diag(rng.uniform(0.5, 20, 12))
    curvature = Curvature.nothing(12)
    for _ in range(PAIRS + 3):
        step = rng.normal(size=12)
        curvature = curvature.with_pair(step, hessian @ step)
    assert len(curvature.steps) == PAIRS
    pairs = [(s.astype(float), y.astype(float)) for s, y in zip(curvature.steps, curvature.changes, strict=True)]
    s, y = pairs[-1]
    inverse = np.eye(12) * (s @ y) / (y @ y)
    for s, y in pairs:
        left = np.eye(12) - np.outer(s, y) / (s @ y)
        inverse = left @ inverse @ left.T + np.outer(s, s) / (s @ y)
    gradient = rng.normal(size=12)
    np.testing.assert_allclose(direction(gradient, curvature), -inverse @ gradient, rtol=1e-5, atol=1e-8)


def test_it_finds_the_end_of_a_curved_valley() -> None:
    x, curvature = np.full(10, -1.2), Curvature.nothing(10)
    for _ in range(400):
        gradient = rosen_der(x)
        new = next_point(x, float(rosen(x)), gradient, curvature, 0.1, lambda at: float(rosen(at)))
        if new is None:
            break
        assert rosen(new) < rosen(x)
        x, curvature = new, curvature.with_pair(new - x, rosen_der(new) - gradient)
    np.testing.assert_allclose(x, 1.0, atol=1e-4)


def test_at_a_minimum_there_is_no_next_point() -> None:
    x = np.ones(4)
    assert next_point(x, 0.0, rosen_der(x), Curvature.nothing(4), 0.1, lambda at: float(rosen(at))) is None
    uphill = next_point(x, 0.0, np.ones(4), Curvature.nothing(4), 0.1, lambda at: float(rosen(at)))
    assert uphill is None


def test_a_pair_that_tells_nothing_is_forgotten() -> None:
    nothing = Curvature.nothing(3)
    assert nothing.with_pair(np.ones(3), -np.ones(3)) is nothing
    assert nothing.with_pair(np.ones(3), np.zeros(3)) is nothing
