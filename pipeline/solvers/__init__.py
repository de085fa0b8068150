"""Solvers on sufficient statistics: no sample, no feature, no path in here."""

from pipeline.solvers.duality_gap import Certificate, certify, certify_problem, certify_support, gap_safe_screen
from pipeline.solvers.problem import InvalidProblemError, Problem, check_gram
from pipeline.solvers.solve import Solution, Status, solve
from pipeline.solvers.state import InvalidOptionsError, Record, SolverOptions, SolverState, warm_state

__all__ = [
    "Certificate",
    "InvalidOptionsError",
    "InvalidProblemError",
    "Problem",
    "Record",
    "Solution",
    "SolverOptions",
    "SolverState",
    "Status",
    "certify",
    "certify_problem",
    "certify_support",
    "check_gram",
    "gap_safe_screen",
    "solve",
    "warm_state",
]
