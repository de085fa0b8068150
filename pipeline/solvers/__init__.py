"""Solvers on sufficient statistics: no sample, no feature, no path in here."""

from pipeline.solvers.duality_gap import (
    Certificate,
    certify,
    certify_problem,
    certify_support,
    gap_safe_screen,
    scores_from_gram,
)
from pipeline.solvers.iterations import warm_state
from pipeline.solvers.options import InvalidOptionsError, SolverOptions
from pipeline.solvers.problem import (
    InvalidProblemError,
    Problem,
    check_gram,
    check_penalty,
    check_targets,
)
from pipeline.solvers.solve import Solution, Status, solve
from pipeline.solvers.state import Record, SolverState

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
    "check_penalty",
    "check_targets",
    "gap_safe_screen",
    "scores_from_gram",
    "solve",
    "warm_state",
]
