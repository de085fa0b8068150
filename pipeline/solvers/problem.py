"""The problem of a solve, (gram, kty, yty, penalty) whatever the number of rows, and its checks."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import LinAlgError, cholesky

from pipeline.kernels.gram_statistics import GramStatistics, Rounding

# A Gram counts as positive semi-definite when no eigenvalue lies below -PSD_FLOOR * trace.
PSD_FLOOR = 1e-8


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
        """Return self, or raise InvalidProblemError; the Gram, which the classes share, is for `check_gram`."""
        if not (np.isfinite(self.penalty) and self.penalty > 0):
            raise InvalidProblemError(f"the penalty must be above 0, found {self.penalty}; choose e.g. 0.01")
        if self.rounding.lost > self.tau and not np.diagonal(self.gram).any():
            raise InvalidProblemError(
                "all kernel columns are constant to rounding; use a smaller `kernel.sigma2`, or weights of one size"
            )
        return self


def check_gram(gram: np.ndarray, rounding: float = 0.0) -> None:
    """Raise InvalidProblemError unless the Gram, which is symmetric, is positive semi-definite.

    That is one Cholesky factorisation of gram + 1e-8 trace I: M^3 / 3 operations and M^2 float64, once for all classes.
    rounding : what its entries may be wrong by, which the certificate counts: of columns nearly all of which centring
        took away it may be more than is left of the trace
    """
    trace = float(np.trace(gram))
    if trace == 0.0:
        return
    shifted = np.array(gram, order="F")
    shifted[np.diag_indices_from(shifted)] += PSD_FLOOR * trace + len(gram) * rounding
    try:
        cholesky(shifted, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        raise InvalidProblemError(
            f"the Gram is not positive semi-definite: an eigenvalue lies below -{PSD_FLOOR:g} of its trace"
            f" ({trace:.3g}); accumulate it in float64"
        ) from None


def problem_of(statistics: GramStatistics, output: int, penalty: float) -> Problem:
    """Return the problem of an output, whose Gram is taken to be sound. Raises InvalidProblemError."""
    kty, yty = statistics.kty[:, output].copy(), float(statistics.yty[output])  # writable: of the type of all problems
    problem = Problem(statistics.gram, kty, yty, penalty, statistics.rounding())
    return problem.validate()
