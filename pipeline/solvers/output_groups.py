"""The solves of a problem with several outputs: one for each, or one for all that share a kernel.

A group is a tuple of outputs that one solve is for.
"""

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.solvers.problem import Problem

Outputs = tuple[int, ...]


def output_groups(n_outputs: int, *, shared: bool) -> list[Outputs]:
    """Return the outputs of each solve: one each, or all together with one kernel."""
    outputs = range(n_outputs)
    return [tuple(outputs)] if shared else [(output,) for output in outputs]


def problem_of(statistics: GramStatistics, group: Outputs, penalty: float) -> Problem:
    """Return the problem of a group, whose Gram is taken to be sound. Raises InvalidProblemError."""
    kty = np.ascontiguousarray(statistics.kty[:, list(group)])
    yty = float(statistics.yty[list(group)].sum())
    problem = Problem(statistics.gram, kty, yty, penalty, statistics.rounding())
    return problem.validate(gram_checked=True)


def visits_of(seed: int, group: Outputs) -> np.random.Generator:
    """Return what draws the visits of a group's solve."""
    return np.random.default_rng([seed, 3, *group])


def columns_of(weights: NDArray[np.float64], group: Outputs) -> NDArray[np.float64]:
    """Return a group's part of weights (M, T), contiguous."""
    return np.ascontiguousarray(weights[:, list(group)])
