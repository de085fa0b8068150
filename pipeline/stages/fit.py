"""Fit the weights of a model to training rows. The command, `pipeline.train` and the estimators all call `fit`.

1. `draw_candidates`: candidates, and where the data decide the kernel, its width and scales of the features
   (`choose_kernel`).
2. `accumulate_statistics`: the Gram matrix of the candidates' columns, and what goes with it; of a fit by a budget as
   many columns as lower the held-out error (`grow_candidates`).
3. `solve_weights`: solves at a penalty or along a path, a greedy selection, or least squares; refit; moved centers; the
   temperature of the probabilities.
"""

import numpy as np
from numpy.typing import NDArray

from features.row_draws import first_of_equals
from pipeline.datasets.feature_rows import open_features
from pipeline.runtime.stored_arrays import Arrays
from pipeline.stages.accumulate_statistics import accumulate_statistics
from pipeline.stages.choose_kernel import PASS, choose_kernel, trials_bytes
from pipeline.stages.filled_settings import count_candidates, grows, kernels_of
from pipeline.stages.grow_candidates import grow_candidates
from pipeline.stages.solve_weights import solve_weights
from pipeline.stages.training_rows import PassBytes, RunSize, all_keys, find_target_facts
from pipeline.stages.workspace import CENTERS, FinalWeights, Workspace


def draw_rows(rows: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """Return some of the rows, without replacement: with one seed, a smaller draw is the beginning of a larger one."""
    return rows[np.random.default_rng([seed, 1]).permutation(len(rows))[:count]]


def draw_candidates(work: Workspace) -> None:
    """Draw the candidates, choose what the data decide: kernel, width, scales; and commit the result."""
    with work.stage(CENTERS) as cost:
        if work.committed(CENTERS, mapped=True) is not None:
            return
        cost.items = 1
        work.once(CENTERS, lambda: _candidates(work))
        work.drop(f"passes/{PASS}")


def _candidates(work: Workspace) -> Arrays:
    """Return what is committed with the candidates: see `Workspace.centers`."""
    index, facts = _rows_of_candidates(work), find_target_facts(work)
    arrays: Arrays = {"index": index} | choose_kernel(work, index, facts) | facts.arrays()
    # Else candidates may be all rows, and tasks read the features that they need.
    if (work.config.centers.working_set or 0) >= work.n_candidates and work.preselection is None:
        arrays["X"] = open_features(work.features).take(index)
    return arrays


def candidates_bytes(run: RunSize) -> PassBytes:
    """Return what drawing candidates needs: their features, while these are stored, or the trials of kernels."""
    config, shape = run.config, run.shape
    drawn = 4 * run.n_columns * shape.n_features
    storing = 2 * drawn if run.n_columns >= count_candidates(config, shape.n_train) else 0
    return PassBytes(len(kernels_of(config.kernel)), 8 * 2**20 + max(storing, trials_bytes(run)), drawn)


def _rows_of_candidates(work: Workspace) -> NDArray[np.int64]:
    """Return the candidates' rows: all in order, or a draw, in which copies of a row come last."""
    count, n = work.config.centers.count, work.shape.n_train
    assert count is not None  # filled in
    first = first_of_equals(all_keys(work))
    if len(first) < n:
        work.log(f"{n - len(first)} of {n} training rows equal an earlier one", equal_rows=n - len(first))
    if count == "all":
        return np.arange(n)
    drawn = draw_rows(first, int(count), work.config.seed)
    copies = np.setdiff1d(np.arange(n), first) if int(count) > len(first) else first[:0]
    return np.concatenate([drawn, draw_rows(copies, int(count) - len(drawn), work.config.seed)])


def fit(work: Workspace) -> FinalWeights:
    """Return the weights of a fit, committed. Steps whose results are committed already are skipped.

    Raises InvalidDataError for data that cannot be fitted, StoppedError on request.
    """
    draw_candidates(work)
    if grows(work.config):
        grow_candidates(work)
    else:
        accumulate_statistics(work)
    return solve_weights(work)
