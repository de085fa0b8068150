"""Which candidates are in the working set: those with a Gram. Seeded at random, grown by violators, pruned of zeros.

A candidate m violates its optimality condition where |c_mᵀr| > τ. How the set is seeded decides the number of passes:
growing from the largest violators alone admits bundles of nearly equal columns, a large random subset spans the data at
once. Candidates that nearly violate are admitted too: on MNIST, seven in ten of those that became active later were no
violators yet.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MARGIN = 0.98  # of τ; candidates with a larger score are in the working set even if they do not violate


def seed_candidates(n_candidates: int, size: int, seed: int) -> NDArray[np.int64]:
    """Return `size` random candidates, sorted; the same for the same seed."""
    return np.sort(np.random.default_rng([seed, 4]).permutation(n_candidates)[:size])


def violations(scores: NDArray[np.float64], tau: float) -> NDArray[np.float64]:
    """Return |c_mᵀr| / τ of scores (M, T) of each candidate and solve: above 1 it violates (mathematics.md, eq. 70)."""
    return np.abs(scores) / tau


def nearest(violations: NDArray[np.float64], active: NDArray[np.bool_], per_solve: int, room: int) -> NDArray[np.int64]:
    """Return the candidates to have beside the active ones, sorted: the largest of each solve, at most `room` in all.

    violations (M, T), 0 for what shall not come in; active (M,). All violate or are within MARGIN of it: the
    residual moves as others come in, and most of what then becomes active was near before. A candidate wanted by
    several solves counts once; where room is short, the best rank decides.
    """
    ranks = np.full(len(violations), len(violations), np.int64)
    for column in range(violations.shape[1]):
        outside = np.where(active, 0.0, violations[:, column])
        largest = np.argsort(-outside, kind="stable")[:per_solve]
        largest = largest[outside[largest] > MARGIN]
        ranks[largest] = np.minimum(ranks[largest], np.arange(len(largest)))
    wanted = np.flatnonzero(ranks < len(violations))
    return np.sort(wanted[np.argsort(ranks[wanted], kind="stable")][:room])


def cannot_be_active(scores: NDArray[np.float64], errors: NDArray[np.float64], tau: float) -> NDArray[np.bool_]:
    """Return which candidates stay at zero without being evaluated again, (M,) bool.

    |c_mᵀr| ≤ |score| + error ≤ τ of every output (mathematics.md, eq. 48). scores (M, T): known ones; errors (M, T):
    how far c_mᵀr may be from them, 0 where they are evaluated.
    """
    return np.asarray((np.abs(scores) + errors).max(axis=1) <= tau)
