"""Which candidates are in the working set: those with a Gram. Seeded at random, grown by violators, pruned of zeros.

A candidate m violates its optimality condition where |c_mᵀr| > τ (the row norm over the outputs, where they share a
kernel). How the set is seeded decides the number of passes: growing from the largest violators alone admits bundles
of nearly equal columns, a large random subset spans the data at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def seed_candidates(n_candidates: int, size: int, seed: int) -> NDArray[np.int64]:
    """Return `size` random candidates, sorted; the same for the same seed."""
    return np.sort(np.random.default_rng([seed, 4]).permutation(n_candidates)[:size])


def violations(scores: NDArray[np.float64], tau: float, *, shared: bool) -> NDArray[np.float64]:
    """Return how far each candidate is beyond τ for each solve, (M, solves) f8, 0 where it is not.

    scores (M, T) are c_mᵀr of every candidate and output; solves is T one-vs-all, 1 with a shared kernel.
    """
    sizes = np.linalg.norm(scores, axis=1, keepdims=True) if shared else np.abs(scores)
    return np.maximum(sizes - tau, 0.0)


def admitted(violation: NDArray[np.float64], inside: NDArray[np.bool_], per_solve: int, room: int) -> NDArray[np.int64]:
    """Return the candidates to admit, sorted: the worst of each solve, best ranks first, at most `room` in all.

    violation (M, solves); inside (M,) marks the working set. A candidate wanted by several solves counts once.
    """
    ranks = np.full(len(violation), len(violation), np.int64)
    for column in range(violation.shape[1]):
        outside = np.where(inside, 0.0, violation[:, column])
        worst = np.argsort(-outside, kind="stable")[:per_solve]
        worst = worst[outside[worst] > 0.0]
        ranks[worst] = np.minimum(ranks[worst], np.arange(len(worst)))
    wanted = np.flatnonzero(ranks < len(violation))
    return np.sort(wanted[np.argsort(ranks[wanted], kind="stable")][:room])


def cannot_be_active(
    scores: NDArray[np.float64],
    moved: NDArray[np.float64],
    norm_bounds: NDArray[np.float64],
    tau: float,
    *,
    shared: bool,
) -> NDArray[np.bool_]:
    """Return which candidates stay at zero without being evaluated again, (M,) bool.

    |c_mᵀr_new| ≤ |c_mᵀr_old| + ‖c_m‖ ‖r_new - r_old‖ ≤ τ. scores (M, T): the last evaluated ones; moved (T,):
    ‖r_new - r_old‖ since that evaluation; norm_bounds (M,): upper bounds of ‖c_m‖.
    """
    bound = np.abs(scores) + norm_bounds[:, None] * moved
    sizes = np.linalg.norm(bound, axis=1) if shared else bound.max(axis=1)
    return sizes <= tau
