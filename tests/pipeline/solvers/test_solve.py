"""The whole solve: bad statistics refused, optimum, certificate, resume to the same bytes, degenerate problems."""

import contextlib
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dense_twins import make_columns, make_kernel, never_rises, problem_of
from pipeline.kernels.jit import factorise_definite
from pipeline.solvers import active_set_newton
from pipeline.solvers.problem import InvalidProblemError, Problem, certify
from pipeline.solvers.solve import SolverOptions, SolverState, Status, solve

WAYS = {
    "newton": SolverOptions(tolerance=1e-9),
    "shrinking": SolverOptions(tolerance=1e-6, schedule="shrinking", max_sweeps=5000),
    "uniform": SolverOptions(tolerance=1e-6, schedule="uniform", max_sweeps=5000),
}


@given(seed=st.integers(0, 10**6), exponent=st.floats(-3, 1), width=st.floats(0.3, 4.0))
def test_it_ends_certified_and_the_objective_never_rises(seed, exponent, width):
    _, _, problem = make_kernel(seed, penalty=10**exponent, width=width)
    solution = solve(problem.validate(), SolverOptions(tolerance=1e-4), np.random.default_rng(seed))
    assert solution.converged
    assert solution.certificate.relative_gap <= 1e-4
    assert never_rises(solution)


RESUMED = {**WAYS, "stalling": SolverOptions(tolerance=1e-18, max_sweeps=30)}
RESUMED |= {way: SolverOptions(schedule=way) for way in ("uniform", "paper")}


@pytest.mark.parametrize("way", RESUMED)
def test_resuming_from_any_record_and_stopping_on_request_give_the_same_bytes(way):
    _, _, problem = make_kernel(5, n=100, m=30, penalty=0.1)
    states = []

    def keep(record, state):
        arrays, scalars = state.to_arrays()
        states.append((arrays, json.loads(json.dumps(scalars))))

    options = RESUMED[way]
    problem.gram.setflags(write=False)
    whole = solve(problem.validate(), options, np.random.default_rng(2), on_record=keep)
    assert len(states) == whole.state.iterations
    for arrays, scalars in states[:: max(1, len(states) // 8)]:
        state = SolverState.from_arrays(arrays, scalars)
        again = solve(problem, options, np.random.default_rng(99), start=state)
        assert again.weights.tobytes() == whole.weights.tobytes()
        assert again.mu.tobytes() == whole.mu.tobytes()
        assert again.status is whole.status
        assert without_seconds(again) == without_seconds(whole)
    stopped = solve(problem, options, np.random.default_rng(2), should_stop=lambda: True)
    assert (stopped.status, stopped.converged, stopped.state.iterations) == (Status.STOPPED, False, 1)
    rest = solve(problem, options, np.random.default_rng(0), start=stopped.state)
    assert rest.weights.tobytes() == whole.weights.tobytes()


def without_seconds(solution):
    return [{**vars(record), "seconds": 0} for record in solution.state.records]


def test_the_papers_stopping_rule():
    _, _, problem = make_kernel(9)
    options = SolverOptions(schedule="paper", tolerance=1e-12)
    solution = solve(problem, options, np.random.default_rng(0))
    assert solution.status is Status.PAPER_RULE
    assert solution.converged
    before, last = solution.state.records[-2].objective, solution.state.records[-1].objective
    assert before - last < 1e-4 * before
    assert all(
        a.objective - b.objective >= 1e-4 * a.objective
        for a, b in zip(solution.state.records[:-2], solution.state.records[1:-1], strict=True)
    )


@pytest.mark.parametrize("way", ["newton", "shrinking"])
def test_duplicates_and_zero_columns_are_legal(way):
    C, y, plain = make_columns(0, m=10)
    doubled = np.hstack([C, C, np.zeros((C.shape[0], 2)), C[:, :3]])
    problem = problem_of(doubled, y, plain.penalty).validate()
    solution = solve(problem, WAYS[way], np.random.default_rng(0))
    reference = solve(plain, WAYS["newton"], np.random.default_rng(0))
    assert solution.converged
    assert solution.objective == pytest.approx(reference.objective, rel=2e-6)
    assert not np.any(solution.weights[20:22])


def test_zero_targets_are_solved_by_zero():
    _, _, problem = make_kernel(12)
    zero = Problem(problem.gram, np.zeros_like(problem.kty), 0.0, 0.1).validate()
    solution = solve(zero, SolverOptions(), np.random.default_rng(0))
    assert solution.converged
    assert solution.n_active == 0


@pytest.mark.parametrize("way", ["newton", "uniform"])
@pytest.mark.parametrize("penalty", [1e-160, 1e-200, 1e-250, 1e-300, 1e-320])
def test_a_penalty_beyond_float64_is_refused_in_words_or_not_converged(penalty, way):
    _, _, problem = make_kernel(0, n=60, m=20, penalty=penalty)
    with contextlib.suppress(InvalidProblemError):
        solution = solve(problem.validate(), replace(WAYS[way], max_sweeps=10), np.random.default_rng(0))
        assert not solution.converged
        assert np.isfinite(solution.objective)


@pytest.mark.parametrize("most", [4, 9, 1000])
def test_what_does_not_converge_ends_soon_with_the_best_weights_on_the_way(most):
    """A wide kernel on a line, targets in dollars, and no penalty to speak of: float64 does not get to the optimum."""
    rng = np.random.default_rng(0)
    x = np.exp(rng.normal(7, 0.75, 400))
    C = np.exp(-((x[:, None] - x[None, :150]) ** 2) / (2 * np.median((x[:, None] - x) ** 2)))
    y = 2e5 + 1e5 * np.tanh(x / 1000) + rng.normal(0, 3e4, 400)
    problem = problem_of(C - C.mean(axis=0), y - y.mean(), 1e-4)
    solution = solve(problem, SolverOptions(max_sweeps=most), np.random.default_rng(0))
    assert solution.status is (Status.STALLED if most == 1000 else Status.SWEEP_LIMIT)
    assert ("larger penalty" in solution.status.value) == (most == 1000)
    assert len(solution.state.records) < 200
    primals = [record.primal for record in solution.state.records if record.primal is not None]
    gaps = [record.relative_gap for record in solution.state.records if record.relative_gap is not None]
    assert solution.certificate.primal == pytest.approx(min(primals), rel=1e-6)
    assert solution.certificate.relative_gap <= min(gaps) * (1 + 1e-6)
    # The weights are those of the certificate.
    assert certify(problem, solution.weights).primal == pytest.approx(solution.certificate.primal, rel=1e-6)


def test_newton_rounds_that_gain_nothing_go_on_after_a_sweep():
    """The opening sweep ends at 33 active columns that are alike; from there Newton rounds gain nothing more."""
    _, _, problem = make_kernel(1, penalty=1.0, width=3.0)
    solution = solve(problem.validate(), WAYS["newton"], np.random.default_rng(0))
    assert solution.converged
    phases = [record.phase for record in solution.state.records]
    assert phases.count("sweep") > 1
    assert phases[-1] == "newton"
    reference = solve(problem, WAYS["shrinking"], np.random.default_rng(0))
    assert solution.objective == pytest.approx(reference.objective, rel=1e-5)


def test_a_factor_from_which_columns_are_dropped_is_that_of_the_others():
    rng = np.random.default_rng(0)
    A = np.cov(rng.normal(size=(40, 90)))
    left, R, n_kept = np.arange(40), np.zeros((40, 40)), 0
    R[:] = np.triu(A)
    factorise_definite(R, 40)
    R[:] = np.triu(R)
    for places in ([39], [30, 35], [20], [33, 34], [0, 1]):
        kept = np.ones(len(left), bool)
        kept[[place for place in places if place < len(left)]] = False
        is_factor = active_set_newton._drop(R, kept)
        assert is_factor == (places != [0, 1]), "of so many rows a new factor is less work"
        left = left[kept] if is_factor else left
        n_kept += is_factor
        np.testing.assert_allclose(R[: len(left), : len(left)], np.linalg.cholesky(A[np.ix_(left, left)]).T, atol=1e-12)
    assert n_kept == 4


def test_a_gram_of_zeros_stalls():
    problem = Problem(np.zeros((3, 3)), np.array([0.1, 0.0, 0.2]), 1.0, 1e-4).validate()
    found = solve(problem, SolverOptions(), np.random.default_rng(0))
    assert found.status is Status.STALLED
    assert not found.weights.any()
