"""The certificate against the samples, a second library, and screening that must be safe."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Lasso

from dense_twins import make_kernel, never_rises, problem_of, statistics_of, unlike_columns
from pipeline.kernels.exact_sums import unit_of
from pipeline.kernels.gram_statistics import RowBounds, StatisticsSums, largest_terms
from pipeline.kernels.kernel_functions import GaussianKernel
from pipeline.solvers.problem import certify
from pipeline.solvers.problem import problem_of as problem_of_statistics
from pipeline.solvers.solve import SolverOptions, Status, solve


def dense_certificate(C, y, w, tau):
    """P, D and gap from the residual itself."""
    r = y - C @ w
    theta = r * min(1.0, tau / np.abs(C.T @ r).max())
    primal = 0.5 * (r**2).sum() + tau * np.abs(w).sum()
    return primal, (theta * y).sum() - 0.5 * (theta**2).sum()


def gaps(statistics, penalty, C, y, tolerance=1e-6):
    """The relative gap that a solve states, and that of its weights on columns and targets in 80 bits."""
    solution = solve(problem_of_statistics(statistics, 0, penalty), SolverOptions(tolerance), np.random.default_rng(0))
    C, y, weights = (values.astype(np.longdouble) for values in (C, y, solution.weights))
    primal, dual = dense_certificate(C, y, weights, np.sqrt(np.longdouble(penalty)))
    return solution.certificate.relative_gap, (primal - dual) / primal


@given(seed=st.integers(0, 10**6), size=st.floats(1e-3, 3.0))
def test_certificate_equals_the_dense_one_and_bounds_the_optimum(seed, size):
    rng = np.random.default_rng(seed)
    C, y = rng.standard_normal((20, 7)), rng.standard_normal(20)
    problem = problem_of(C, y, 0.7)
    w = rng.standard_normal(7) * size * (rng.random(7) < 0.6)
    certificate = certify(problem, w)
    primal, dual = dense_certificate(C, y, w, problem.tau)
    assert certificate.primal == pytest.approx(primal, rel=1e-10)
    if primal > 0.5 * problem.yty * (1 + 1e-9):  # worse than no weights at all
        assert (certificate.dual, certificate.gap, certificate.relative_gap) == (-np.inf, np.inf, np.inf)
    else:
        assert certificate.dual == pytest.approx(dual, rel=1e-9, abs=1e-9)
        assert certificate.gap >= 0
    best = solve(problem, SolverOptions(tolerance=1e-7), np.random.default_rng(0))
    assert best.certificate.primal <= certificate.primal * (1 + 1e-7)
    assert certificate.dual <= best.certificate.primal * (1 + 1e-12)


@pytest.mark.parametrize("penalty", [1e-12, 1e-9])
@pytest.mark.parametrize("width", [10.0, 100.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_gap_counts_the_rounding_of_a_gram_that_cancels(seed, width, penalty):
    """Rows four times, wide kernels, an intercept: the gap of the same weights in 80 bits is up to 6e4 times larger."""
    draw = np.random.default_rng(seed)
    X = np.repeat(draw.normal(size=(60, 3)), 4, axis=0)
    Y = np.sin(2 * X[:, :1]) + X[:, 1:2] ** 2 + 0.1 * draw.normal(size=(240, 1))
    K = GaussianKernel(X[::4], width, np.float64).block(X)
    C, targets = (values - values.mean(axis=0) for values in (K.astype(np.longdouble), Y.astype(np.longdouble)))
    stated, gap = gaps(statistics_of(K, Y).centred(), penalty, C, targets[:, 0])
    assert gap <= 1.5 * stated


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_gap_counts_what_constant_columns_lose(sign):
    """One is constant to rounding, the score that it would have is above τ: by y alone, or only at the other weight."""
    u, v = np.random.default_rng(0).normal(size=(2, 240))
    K, y = np.stack([1.0 + 1e-8 * (v + sign * u), u], axis=1), u + v
    C, targets = (values - values.mean(axis=0) for values in (K.astype(np.longdouble), y.astype(np.longdouble)))
    stated, gap = gaps(statistics_of(K, y[:, None]).centred(), 1e-12, C, targets)
    assert 0.1 < gap <= stated < 1.0


@pytest.mark.parametrize("penalty", [1e-5, 1e-1])
@pytest.mark.parametrize("scale", [1.0, 8.0, 30.0, 1e3, 1e6])
def test_the_gap_counts_the_rounding_of_kernel_values(scale, penalty):
    """Inputs of any size, as they come, and a width of 1: over exact values the gap was up to 1e8 times larger."""
    draw = np.random.default_rng(0)
    X = (scale * draw.normal(size=(60, 3)))[draw.integers(0, 60, 240)] + draw.normal(size=(240, 3))
    Y = np.sin(X[:, :1]) + 0.1 * draw.normal(size=(240, 1))
    statistics = statistics_of(GaussianKernel(X, 1.0, np.float64).block(X), Y)
    differences = X.astype(np.longdouble)[:, None] - X
    K = np.exp(-0.5 * np.einsum("ijk,ijk->ij", differences, differences))
    stated, gap = gaps(statistics, penalty, K, Y[:, 0], tolerance=1e-9)
    assert gap <= 1.5 * stated


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("heavy", [1e4, 1e8])
@pytest.mark.parametrize("penalty", [1e-7, 1e-5])
def test_the_gap_counts_the_units_of_the_sums(penalty, heavy, *, intercept):
    """A row far from all candidates that weighs as much as all others leaves the sums of those few digits."""
    draw = np.random.default_rng(0)
    X, s = draw.normal(size=(240, 2)), np.ones(240)
    y = np.sin(2 * X[:, :1]) + 0.1 * draw.normal(size=(240, 1))
    X[-1], s[-1], y[-1] = 200.0, heavy, y[:-1].mean()
    K = GaussianKernel(X[:60], 10.0, np.float64).block(X)
    sums = StatisticsSums(60, RowBounds.of(largest_terms(y, s)), 32, 8)
    for start in range(0, 240, 32):
        rows = slice(start, start + 32)
        sums.add(K[rows].copy(), y[rows], s[rows])
    statistics = sums.statistics()
    exact, targets, weights = (values.astype(np.longdouble) for values in (K, y, s[:, None]))
    if intercept:
        statistics = statistics.centred()
        exact, targets = (values - (weights * values).sum(axis=0) / weights.sum() for values in (exact, targets))
    stated, gap = gaps(statistics, penalty, np.sqrt(weights) * exact, (np.sqrt(weights) * targets)[:, 0])
    assert gap <= 1.01 * stated


@pytest.mark.parametrize("penalty", [1e-9, 1e-7, 1e-5])
def test_the_gap_counts_products_that_every_block_rounds_to_zero(penalty):
    """Errors of one sign do not make up for each other: all rows but 24 are so far that a block adds 0.4 of a unit."""
    draw = np.random.default_rng(0)
    near, n_blocks, rows = draw.normal(size=(24, 2)), 295, 4096
    y, kernel = np.sin(2 * near[:, :1]), GaussianKernel(near[:12], 10.0, np.float64)
    unit = float(unit_of(rows, n_blocks))
    far = kernel.block(np.array([[np.sqrt(10.0 * np.log(rows / (0.4 * unit))), 0.0]]))
    sums = StatisticsSums(12, RowBounds.of(largest_terms(y)), rows, n_blocks)
    sums.add(kernel.block(near), y)
    block, nothing = np.repeat(far, rows, axis=0), np.zeros((rows, 1))
    for _ in range(n_blocks // 2):
        sums.add(block, nothing)
    exact = np.vstack([kernel.block(near), np.sqrt(np.longdouble(n_blocks // 2 * rows)) * far])
    stated, gap = gaps(sums.statistics(), penalty, exact, np.append(y, 0.0), tolerance=1e-3)
    assert gap <= stated


@pytest.mark.parametrize("schedule", ["newton", "shrinking", "uniform"])
@pytest.mark.parametrize("penalty", [20.0, 500.0])
def test_lasso_identity_with_a_second_library(schedule, penalty):
    """min F = min |y - C w|^2 + 2 sqrt(lambda nu) sum_m |w_m|, same predictor, mu_m = |w_m| / tau."""
    rng = np.random.default_rng(5)
    C = rng.standard_normal((200, 40))
    y = C[:, :6] @ rng.standard_normal(6) + rng.standard_normal(200)
    problem = problem_of(C, y, penalty)
    options = SolverOptions(tolerance=1e-11, schedule=schedule, max_sweeps=3000)
    solution = solve(problem, options, np.random.default_rng(0))
    other = Lasso(alpha=problem.tau / 200, fit_intercept=False, tol=1e-14, max_iter=100_000).fit(C, y)
    sizes = np.abs(other.coef_)
    assert solution.status is Status.CONVERGED
    assert solution.certificate.relative_gap <= 1e-11
    assert never_rises(solution)
    assert solution.n_active > 0
    assert solution.n_active < 40 or penalty < 500, "a sparse optimum"
    np.testing.assert_allclose(solution.weights, other.coef_, atol=1e-8)
    np.testing.assert_allclose(solution.mu, sizes / problem.tau, atol=1e-6)
    value = ((y - C @ other.coef_) ** 2).sum() + 2 * problem.tau * sizes.sum()
    assert solution.objective == pytest.approx(value, rel=1e-10)
    K = (C * solution.mu) @ C.T
    F = y @ np.linalg.solve(np.eye(200) + K, y) + problem.penalty * solution.mu.sum()
    last = solution.state.records[-1]
    assert last.objective == pytest.approx(F, rel=1e-9)
    assert last.evaluations == solution.state.evaluations
    assert last.n_active == solution.n_active == np.count_nonzero(solution.mu)
    assert last.relative_gap == solution.certificate.relative_gap
    assert pytest.approx(value, rel=1e-8) == F


@pytest.mark.parametrize("schedule", ["newton", "shrinking"])
def test_screened_coordinates_are_zero_at_the_unscreened_optimum(schedule):
    problem, unscreened = unlike_columns(), SolverOptions(tolerance=1e-13, schedule="uniform", max_sweeps=500)
    reference = solve(problem, unscreened, np.random.default_rng(1))
    solution = solve(problem, SolverOptions(tolerance=1e-12, schedule=schedule), np.random.default_rng(0))
    assert reference.certificate.relative_gap < 1e-12
    screened = solution.state.screened
    assert screened.sum() >= 300
    assert not np.any(reference.weights[screened])
    assert not np.any(solution.weights[screened])
    np.testing.assert_allclose(solution.weights, reference.weights, atol=1e-5)


@pytest.mark.parametrize("size", [1e30, 1e150, 1e207])
def test_a_diverged_iterate_is_certified_of_nothing(size):
    """Rounding of huge terms once left a gap of 0."""
    _, _, problem = make_kernel(0, penalty=0.01)
    w = np.random.default_rng(0).standard_normal(80) * size
    with np.errstate(over="ignore"):
        found = certify(problem, w, np.sign(w) * 0.1)
    assert (found.dual, found.gap, found.relative_gap) == (-np.inf, np.inf, np.inf)
    nothing = certify(problem, np.zeros(80))
    assert nothing.primal == pytest.approx(problem.yty / 2)
    assert nothing.relative_gap <= 1
    rough = certify(problem, np.zeros(80), np.full(80, np.nan))
    assert rough.relative_gap == np.inf
    w[3] = np.nan
    assert certify(problem, w).relative_gap == np.inf
