"""The finalists of a greedy choice of an estimator, as in the runs of the command line (`solvers.preselection`)."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.estimators.fit_weights import FittedWeights, Task
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.solvers.forward_selection import forward
from pipeline.solvers.preselection import Preselection


@dataclass(frozen=True)
class Finalists:
    """Candidates (f,) that centers are chosen from, in the order chosen; n_back: so many of them are dropped again."""

    columns: NDArray[np.int64]
    n_back: int
    interrupted: bool

    def named(self, fitted: FittedWeights) -> FittedWeights:
        """Return a model of these with the numbers of the candidates."""
        unseen = replace(fitted.unseen, active=self.columns[fitted.unseen.active])
        interrupted = self.interrupted or fitted.interrupted
        return replace(fitted, active=self.columns[fitted.active], unseen=unseen, interrupted=interrupted)


def find_finalists(
    task: Task, asked: Preselection | None, sample: Callable[[float], GramStatistics]
) -> Finalists | None:
    """Choose finalists; those so far where the choice is interrupted, None where all candidates are.

    sample: returns the statistics of a share of the fit rows.
    """
    if asked is None:
        return None
    statistics = sample(asked.share)
    so_far, rows = np.empty(0, np.int64), "a sample of the fit rows"

    def note(chosen: list[int]) -> bool:
        nonlocal so_far
        so_far = np.array(chosen, np.int64)
        task.tell_choice("sample", rows, len(chosen), asked.n_finalists)
        return False

    try:
        chosen = forward(statistics, asked.n_finalists, intercept=task.intercept, enough=note).chosen
    except KeyboardInterrupt:
        return Finalists(so_far, asked.n_back, interrupted=True)
    return Finalists(chosen, asked.n_back, interrupted=False)
