"""The problem of a solve, (gram, kty, yty, penalty) whatever the number of rows, and the proof of an answer.

With tau = sqrt(lambda nu) and r = y - C w the problem of the paper is the Lasso

    P(w) = 1/2 |r|^2 + tau sum_m |w_m|,        D(theta) = <theta, y> - 1/2 |theta|^2,

theta = a r with a = min(1, tau / max_m |c_m^T r|) over *all* candidates (mathematics.md, eqs. 36, 41 and 42).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipeline.kernels.gram_statistics import GramStatistics, Rounding
from pipeline.kernels.jit import read_only
from pipeline.solvers.solver_loops import residual_scores

_ROUNDING = 1e-9  # By rounding, |r|^2 may be below 0, and the primal too large, by this share of yty.


class InvalidProblemError(ValueError):
    """Raised for statistics or a penalty that no solver may start from."""


@dataclass(frozen=True)
class Problem:
    """The sufficient statistics of one solve."""

    gram: np.ndarray  # CᵀC (M, M) f8 of the candidates' columns, C-contiguous; may be a read-only memory map
    kty: np.ndarray  # Cᵀy (M,) f8, C-contiguous
    yty: float  # squared norm of y
    penalty: float  # λν, above 0
    rounding_of_sums: Rounding | None = None  # what it may change a score by; None: as of columns not centred

    @property
    def tau(self) -> float:
        """Return sqrt(penalty), the penalty of the equivalent Lasso (mathematics.md, eq. 36)."""
        return float(np.sqrt(self.penalty))

    @cached_property
    def rounding(self) -> Rounding:
        return self.rounding_of_sums or Rounding.of_squares(float(np.diagonal(self.gram).max()))

    @property
    def n_candidates(self) -> int:
        return int(self.kty.shape[0])

    def validate(self) -> "Problem":
        """Return self, or raise InvalidProblemError; the Gram is taken to be sound."""
        if not (np.isfinite(self.penalty) and self.penalty > 0):
            raise InvalidProblemError(f"the penalty must be above 0, found {self.penalty}; choose e.g. 0.01")
        if self.rounding.lost > self.tau and not np.diagonal(self.gram).any():
            raise InvalidProblemError(
                "all kernel columns are constant to rounding; use a smaller `kernel.sigma2`, or weights of one size"
            )
        return self


def problem_of(statistics: GramStatistics, output: int, penalty: float) -> Problem:
    """Return the problem of an output. Raises InvalidProblemError."""
    kty, yty = statistics.kty[:, output].copy(), float(statistics.yty[output])  # writable: of the type of all problems
    problem = Problem(statistics.gram, kty, yty, penalty, statistics.rounding())
    return problem.validate()


@dataclass(frozen=True)
class Certificate:
    """How far weights are from the optimum."""

    primal: float  # P
    dual: float  # D; -inf, with infinite gaps, for weights that are worse than none, or whose values are rounding
    gap: float  # P - D >= P - P*
    relative_gap: float  # gap / P, 0 where P is 0
    theta_scale: float  # a
    rounding: float  # what rounding may have changed a score by (mathematics.md, eq. 46)
    primal_rounding: float  # and the primal

    @property
    def objective(self) -> float:
        """Return 2P, the paper's F at its optimum, which reports show (mathematics.md, eq. 37)."""
        return 2.0 * self.primal


def certify(
    problem: Problem, weights: np.ndarray, scores: np.ndarray | None = None, max_score: float | None = None
) -> Certificate:
    """Certify weights (M,) from their scores c_m^T r (M,) of every candidate (mathematics.md, eqs. 42, 43, 44 and 45).

    The gap is 1/2 (1-a)^2 |r|^2 + sum_m (tau |w_m| - a w_m c_m^T r), where no term is negative: those of P - D are
    1e4 times larger. |r|^2 = yty - <w, kty + scores> cancels: it is summed in extended precision, and may come out
    below 0. Without scores, these are computed from the Gram, which costs O(M m0); else O(M).
    max_score : the largest |score| of all candidates, where problem, weights and scores are those of some
    """
    scores = scores_of_support(problem, weights) if scores is None else scores
    max_score = float(np.abs(scores).max(initial=0.0)) if max_score is None else max_score
    kty, yty, tau, rounding = problem.kty, problem.yty, problem.tau, problem.rounding
    support = np.flatnonzero(weights)
    extended = weights[support].astype(np.longdouble)
    residual = np.longdouble(yty) - (extended * kty[support]).sum() - (extended * scores[support]).sum()
    residual_squared = float(residual)
    total = float(np.abs(weights).sum())
    penalty_term, of_units = tau * total, rounding.units * total + rounding.always
    error = rounding.each * total + of_units
    off, max_score = of_units * total, max(max_score, rounding.lost + rounding.lost_each * total) + error
    aligned = float(np.einsum("m,m->", weights, scores))
    scale = min(1.0, tau / max_score) if max_score > 0 else 1.0
    primal = 0.5 * max(0.0, residual_squared) + penalty_term
    # Zero weights have the primal 1/2 |y|^2: what is above it has diverged. Where |r|^2 is below 0 by more than
    # rounding, its terms are so large that the gap could come out as 0. NaN fails every comparison here.
    meaningful = residual_squared >= -_ROUNDING * yty and primal <= 0.5 * yty * (1.0 + _ROUNDING)
    if not (meaningful and max_score < np.inf):
        return Certificate(primal, -np.inf, np.inf, np.inf, scale, error, off)
    residual_squared = max(0.0, residual_squared)
    gap = 0.5 * (1.0 - scale) ** 2 * residual_squared + max(0.0, penalty_term - scale * aligned) + off
    relative_gap = 0.0 if primal == 0 else gap / max(primal - off, penalty_term)
    return Certificate(primal, primal - gap, gap, relative_gap, scale, error, off)


def scores_of_support(problem: Problem, weights: np.ndarray, support: np.ndarray | None = None) -> np.ndarray:
    """Return c_m^T r = kty - gram w (M,), summed over the support (m0,) in its order (mathematics.md, eq. 25)."""
    if support is None:
        support = np.flatnonzero(weights)
    scores = np.empty(problem.n_candidates)
    residual_scores(read_only(problem.gram), problem.kty, weights, support, scores)
    return scores


def gap_safe_screen(scores: np.ndarray, column_norms: np.ndarray, certificate: Certificate, tau: float) -> np.ndarray:
    """Return which candidates are zero in every solution, (M,) bool (mathematics.md, eq. 47).

    a |c_m^T r| + |c_m| sqrt(2 gap) < tau (Gap Safe sphere, Ndiaye et al. 2017), strictly, with the rounding of the
    scores and a margin of 1e-9 tau.
    """
    largest = np.abs(scores) + certificate.rounding
    bound = certificate.theta_scale * largest + column_norms * np.sqrt(2.0 * max(certificate.gap, 0.0))
    return bound < tau * (1.0 - 1e-9)
