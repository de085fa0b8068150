"""Sweeps against the paper's algorithm with dense formulas in the samples, and what they leave out."""

from dataclasses import replace

import numpy as np
import pytest

from dense_twins import make_columns, make_kernel, unlike_columns
from pipeline.solvers import coordinate_descent
from pipeline.solvers.coordinate_descent import _visit, factorise, run_sweep
from pipeline.solvers.problem import Problem
from pipeline.solvers.solve import SolverOptions, Status, solve, warm_state

SHRINKING = SolverOptions(tolerance=1e-10, schedule="shrinking", max_sweeps=20_000)
NEWTON = SolverOptions(tolerance=1e-10)


def dense_inverse(C, mu):
    """K~^-1 = (I + C D C^T)^-1, written out."""
    return np.linalg.inv(np.eye(C.shape[0]) + (C * mu) @ C.T)


def naive_step(q2, s, mu, nu, is_exact):
    exact = max(0.0, mu + (np.sqrt(q2 / nu) - 1) / s)
    if is_exact or exact < mu:  # the safeguard: Theorem 1(a) is for increases only
        return exact
    return max(0.0, mu + (q2 - nu) / (2 * q2 * s))


@pytest.mark.parametrize("exact", [True, False])
def test_a_sweep_equals_the_naive_algorithm(exact, monkeypatch):
    """Dense Algorithm 2, one coordinate at a time, against the compiled sweep and its updates of the inverse."""
    C, y, problem = make_columns(3, m=9, penalty=2.0)
    nu = problem.penalty
    order = np.random.default_rng(1).integers(0, 9, 60)
    mu, updates = np.zeros(9), set()
    for m in order:
        K_inverse = dense_inverse(C, mu)
        q, s = y @ K_inverse @ C[:, m], C[:, m] @ K_inverse @ C[:, m]
        if mu[m] > 0 or q**2 > nu:
            before, mu[m] = mu[m], naive_step(q**2, s, mu[m], nu, exact)
            updates.add("enter" if before == 0 else "leave" if mu[m] == 0 else "fall" if mu[m] < before else "rise")
    assert updates == {"enter", "leave", "fall", "rise"}  # a fall meets the safeguard, a leave is not of the last place
    inverse = factorise(problem, np.zeros(9), np.zeros(0, np.int64))
    visits, _, _ = _visit(problem, inverse, order, exact)
    assert visits == 60
    start = factorise(problem, np.zeros(9), np.zeros(0, np.int64))
    monkeypatch.setattr(coordinate_descent, "REFACTOR_EVERY", 7)
    swept, _ = run_sweep(problem, start, order, exact=exact)
    np.testing.assert_allclose(swept.mu, mu, atol=1e-9)
    np.testing.assert_allclose(inverse.mu, mu, atol=1e-9)
    support, n = inverse.support, inverse.n_active
    assert set(support) == set(np.flatnonzero(mu))
    assert all(inverse.position[m] == i for i, m in enumerate(support))
    assert (inverse.position >= 0).sum() == n
    G = np.linalg.inv(np.diag(1 / mu[support]) + C[:, support].T @ C[:, support])
    np.testing.assert_allclose(inverse.G[:n, :n], G, atol=1e-9, rtol=1e-9)
    np.testing.assert_allclose(inverse.u[:n], G @ problem.kty[support], atol=1e-9, rtol=1e-9)


def many_columns(m: int = 600) -> Problem:
    """A kernel machine whose optimum keeps few of its columns."""
    return make_kernel(0, n=700, m=m, penalty=0.5)[2]


@pytest.mark.parametrize("options", [SHRINKING, NEWTON])
def test_what_a_record_counts_adds_up_to_all_candidates(options):
    problem = unlike_columns() if options is NEWTON else many_columns()
    records = solve(problem, options, np.random.default_rng(0)).state.records
    for record in records:
        others = record.skipped_as_shrunk + record.skipped_as_screened + record.not_drawn
        assert record.n_active <= record.visits == problem.n_candidates - others
    assert [record.phase for record in records].count("sweep") == (1 if options is NEWTON else len(records))
    if options is SHRINKING:
        assert sum(record.relative_gap is not None for record in records) < len(records) / 2, "not after each sweep"


@pytest.mark.parametrize("wrongly", ["left out", "shrunk away"])
def test_coordinates_left_out_by_mistake_come_back(wrongly):
    """All but five coordinates are left out; the optimum needs some of them."""
    _, _, problem = make_kernel(3, penalty=0.2)
    begun = solve(problem, replace(SHRINKING, max_sweeps=1), np.random.default_rng(0)).state
    few = np.arange(problem.n_candidates) < 5
    inverse = factorise(problem, np.where(few, 1.0, 0.0), np.flatnonzero(few))
    wrong = replace(begun, mu=inverse.mu, support=inverse.support.copy(), weights=inverse.weights(), certified=False)
    wrong = replace(wrong, left_out=~few, screened=np.zeros_like(few))
    if wrongly == "shrunk away":  # and they are not due to be looked at
        wrong = replace(wrong, largest_violation=0.0)
    solution = solve(problem, SHRINKING, np.random.default_rng(0), start=wrong)
    reference = solve(problem, NEWTON, np.random.default_rng(1))
    assert reference.weights[~few].any()
    assert solution.converged
    assert solution.objective == pytest.approx(reference.objective, rel=1e-8)


@pytest.mark.parametrize("penalty", [1e-3, 1e-1, 10.0])
def test_shrinking_changes_no_optimum_from_warm_weights(penalty):
    problem = replace(many_columns(200), penalty=penalty)
    warm = warm_state(solve(problem, replace(SHRINKING, tolerance=0.05), np.random.default_rng(0)).weights)
    options = replace(SHRINKING, tolerance=1e-7)
    solution = solve(problem, options, np.random.default_rng(0), start=warm)
    assert solution.converged
    assert solution.state.records[0].not_drawn == 0, "no opening"
    assert solution.state.records[0].skipped_as_shrunk > 0, "by the scores of the weights it starts from"
    assert solution.objective == pytest.approx(solve(problem, NEWTON, np.random.default_rng(0)).objective, rel=1e-6)


@pytest.mark.parametrize("most", range(2, 40, 4))
def test_the_last_sweep_is_certified_before_a_solve_gives_up(most):
    problem = many_columns(200)
    whole = solve(problem, replace(SHRINKING, tolerance=1e-12, max_sweeps=most), np.random.default_rng(0))
    assert whole.status is Status.SWEEP_LIMIT
    limited = replace(SHRINKING, tolerance=whole.certificate.relative_gap * (1 + 1e-9), max_sweeps=most)
    assert solve(problem, limited, np.random.default_rng(0)).converged
