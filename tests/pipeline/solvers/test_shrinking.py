"""Which coordinates sweeps leave out: by the rule, counted as they happen, and nothing that the optimum needs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dense_twins import make_kernel, unlike_columns
from pipeline.solvers import coordinate_descent
from pipeline.solvers.coordinate_descent import factorise
from pipeline.solvers.problem import Problem
from pipeline.solvers.solve import Status, solve
from pipeline.solvers.state import SolverOptions, warm_state

SHRINKING = SolverOptions(tolerance=1e-10, schedule="shrinking", max_sweeps=20_000)
NEWTON = SolverOptions(tolerance=1e-10)


def many_columns(m: int = 600) -> Problem:
    """A kernel machine whose optimum keeps few of its columns."""
    return make_kernel(0, n=700, m=m, penalty=0.5)[2]


@pytest.mark.parametrize("options", [SHRINKING, NEWTON])
def test_what_a_record_counts_adds_up_to_all_candidates(options):
    problem = unlike_columns() if options is NEWTON else many_columns()
    records = solve(problem, options, np.random.default_rng(0)).state.records
    for record in records:
        left_out = record.skipped_as_shrunk + record.skipped_as_screened + record.not_drawn
        assert record.n_active <= record.visits == problem.n_candidates - left_out
    assert [record.phase for record in records].count("sweep") == (1 if options is NEWTON else len(records))
    if options is SHRINKING:
        assert sum(record.relative_gap is not None for record in records) < len(records) / 2, "not after each sweep"


@given(seed=st.integers(0, 10**6), active=st.floats(0, 1))
def test_the_rule_leaves_out_what_is_at_zero_and_violates_little(seed, active):
    rng = np.random.default_rng(seed)
    mu, scores = rng.random(30) * (rng.random(30) < active), rng.normal(0, 2, 30)
    problem = Problem(np.eye(30), scores, 1e3, 2.0)
    found = coordinate_descent.violations(problem, mu, scores)
    largest = 0.0
    for m in range(30):
        gradient = 2.0 - scores[m] ** 2  # of F at m; at zero only a negative one violates
        assert found[m] == pytest.approx(abs(gradient) if mu[m] > 0 else max(-gradient, 0.0))
        largest = max(largest, found[m])
    left_out = coordinate_descent.left_out(mu, found)
    assert [bool(one) for one in left_out] == [mu[m] == 0 and found[m] < 0.1 * largest for m in range(30)]


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
