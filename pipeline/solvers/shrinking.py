"""Which coordinates a sweep visits: the paper's uniform draws, or the shrinkage it asks for on its last page.

`shrinking` visits a random permutation of the coordinates that are neither shrunk (zero, with a gradient
above the largest violation of the previous sweep, as in LIBLINEAR, Hsieh et al. 2008: a heuristic, undone
before a run may stop; mathematics.md, eq. 50) nor screened (zero in every solution by the Gap Safe test: for good).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Shrinkage:
    """Hold what the shrinking schedule remembers between sweeps.

    Attributes
    ----------
    shrunk, screened : (M,) bool
    threshold : float
        Largest violation of the previous sweep; a zero coordinate with a gradient above it is shrunk.
    level : float
        Violation, relative to nu, at which the shrunken problem counts as converged.
    """

    shrunk: np.ndarray
    screened: np.ndarray
    threshold: float
    level: float


def start_shrinkage(n_candidates: int, level: float) -> Shrinkage:
    """Return the state before the first sweep: nothing shrunk, nothing screened."""
    return Shrinkage(np.zeros(n_candidates, bool), np.zeros(n_candidates, bool), np.inf, level)


def uniform_order(generator: np.random.Generator, n_candidates: int) -> np.ndarray:
    """Return M coordinates drawn uniformly with replacement, as Algorithm 2 does."""
    return generator.integers(0, n_candidates, size=n_candidates)


def shrinking_order(generator: np.random.Generator, shrinkage: Shrinkage) -> np.ndarray:
    """Return the coordinates neither shrunk nor screened, in random order."""
    return generator.permutation(np.flatnonzero(~(shrunk_or_screened(shrinkage))))


def shrunk_or_screened(shrinkage: Shrinkage) -> np.ndarray:
    """Return which coordinates a sweep leaves out, (M,) bool."""
    return shrinkage.shrunk | shrinkage.screened


def after_sweep(shrinkage: Shrinkage, shrunk: np.ndarray, worst: float) -> Shrinkage:
    """Return the state after a sweep whose largest violation was ``worst`` (mathematics.md, eq. 50)."""
    return replace(shrinkage, shrunk=shrunk, threshold=worst if worst > 0 else np.inf)


def restored(shrinkage: Shrinkage, level: float) -> Shrinkage:
    """Return the state with every unscreened coordinate back in the game."""
    return replace(shrinkage, shrunk=np.zeros_like(shrinkage.shrunk), threshold=np.inf, level=level)


def with_screened(shrinkage: Shrinkage, screened: np.ndarray) -> Shrinkage:
    """Return the state with more coordinates screened, for good at this penalty."""
    return replace(shrinkage, screened=shrinkage.screened | screened)
