"""Fit the weights of a model to training rows. The command, `pipeline.train` and the estimators all call `fit`.

1. `draw_candidates`: candidates, and where the data decide the kernel, its width and scales of the features
   (`choose_kernel`).
2. `accumulate_statistics`: the Gram matrix of the candidates' columns, and what goes with it; of a fit by a budget as
   many columns as lower the held-out error (`grow_candidates`).
3. `find_weights`: a greedy selection (`select_centers`), or solves at a penalty or along a path, or least squares
   (`solve_weights`); moved centers (`move_centers`); the temperature of the probabilities (`find_temperature`).
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from features.row_draws import units_of
from pipeline.config.parsers import NO_PENALTY
from pipeline.datasets.feature_rows import open_features
from pipeline.runtime.stored_arrays import Arrays, as_arrays
from pipeline.solvers.greedy_choice import Preselection
from pipeline.solvers.ridge import ridge_bytes
from pipeline.solvers.solve import solve_bytes
from pipeline.stages.accumulate_statistics import accumulate_statistics
from pipeline.stages.after.move_centers import NAME as MOVES
from pipeline.stages.after.move_centers import move_centers, moves_bytes
from pipeline.stages.after.temperature import find_temperature, temperature_bytes
from pipeline.stages.choose.choose_kernel import PASS, choose_kernel, trials_bytes
from pipeline.stages.choose.greedy_selection import choice_bytes, select_centers
from pipeline.stages.choose.grow_candidates import grow_candidates
from pipeline.stages.filled_settings import count_candidates, grows, is_in_rounds, kernels_of, preselection_of
from pipeline.stages.fit.correlations import correlation_bytes
from pipeline.stages.fit.penalised_solves import path_bytes
from pipeline.stages.fit.solve_weights import solve_weights
from pipeline.stages.row_blocks import PassBytes, RunSize
from pipeline.stages.targets import read_labels, summarise
from pipeline.stages.workspace import CANDIDATES, FINAL, SOLVE, FinalWeights, Workspace


def draw_rows(rows: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """Return some of the rows, without replacement: with one seed, a smaller draw is the beginning of a larger one."""
    return rows[np.random.default_rng([seed, 1]).permutation(len(rows))[:count]]


def draw_candidates(work: Workspace) -> None:
    """Draw the candidates, choose what the data decide: kernel, width, scales; and commit the result."""
    with work.stage(CANDIDATES) as cost:
        if work.committed(CANDIDATES, mapped=True) is not None:
            return
        cost.items = 1
        work.once(CANDIDATES, lambda: _candidates(work))
        work.drop(f"passes/{PASS}")


def _candidates(work: Workspace) -> Arrays:
    labels = read_labels(work)
    first, _ = units_of(labels.keys)
    index, facts = _rows_of_candidates(work, first), summarise(work, labels, len(first))
    arrays: Arrays = {"index": index} | choose_kernel(work, index, labels, facts) | as_arrays(facts)
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


def _rows_of_candidates(work: Workspace, first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the candidates' rows: all in order, or a draw, in which copies of a row, and deformed ones, come last.

    first : of equal rows, the first one
    """
    count, n = work.config.centers.count, work.shape.n_train
    assert count is not None  # filled in
    if len(first) < n:
        work.events.log(f"{n - len(first)} of {n} training rows equal an earlier one", equal_rows=n - len(first))
    if count == "all":
        return np.arange(n)
    first = first[first % work.config.data.copies == 0]  # as candidates, undeformed images leave less error
    drawn = draw_rows(first, int(count), work.config.seed)
    copies = np.setdiff1d(np.arange(n), first) if int(count) > len(first) else first[:0]
    return np.concatenate([drawn, draw_rows(copies, int(count) - len(drawn), work.config.seed)])


def fit(work: Workspace) -> FinalWeights:
    """Return the weights of a fit, committed. Steps whose results are committed already are skipped."""
    draw_candidates(work)
    if grows(work.config):
        grow_candidates(work)
    else:
        accumulate_statistics(work)
    return find_weights(work)


def find_weights(work: Workspace) -> FinalWeights:
    """Return the weights, committed with a summary of every solve. Raises InvalidDataError, CorruptDataError."""
    with work.stage(SOLVE) as cost:
        if work.final is not None:
            return work.final
        cost.items = 0
        final, tried = select_centers(work) if work.config.solver.selects else solve_weights(work)
        if work.config.solver.move_centers and len(final.active):
            final, tried = move_centers(work, final, tried)
        mean = work.facts.mean  # which was taken off the targets
        final = replace(
            final,
            intercept=final.intercept + mean,
            penalised_intercept=final.penalised_intercept + mean,
            summary=final.summary | {"temperature": find_temperature(work, tried)},
        )
        work.commit(FINAL, final.arrays())
        work.drop(f"checkpoints/{MOVES}")
        work.drop("passes")  # the one over the held-out rows
        return final


def solving_bytes(run: RunSize) -> PassBytes:
    """Return what the weights need: solves, then moves of the centers; out of core, the pass of correlations."""
    n_outputs, moves = run.shape.n_outputs, moves_bytes(run)
    preselection = preselection_of(run.config, run.shape.n_train)
    memory = max(_weights_bytes(run, preselection), moves.memory)
    if preselection is None and is_in_rounds(run.config, run.shape.n_train):
        pricing = correlation_bytes(run)
        return PassBytes(pricing.pieces, max(pricing.memory, memory), pricing.disk + moves.disk)
    n_columns = run.n_columns if preselection is None else preselection.n_finalists
    pieces = 1 if run.config.solver.selects else n_outputs
    return PassBytes(pieces, memory, 16 * n_outputs * n_columns + moves.disk)


def _weights_bytes(run: RunSize, preselection: Preselection | None) -> int:
    """Return the memory of the solves: the mapped Gram, a centred one, active sets; of passes that score a path."""
    solver, gram, scoring = run.config.solver, 8 * run.n_columns**2, max(path_bytes(run), temperature_bytes(run))
    if solver.selects:
        return max(choice_bytes(run, preselection), scoring)
    if solver.penalty == NO_PENALTY:
        return ridge_bytes(run.n_columns) + scoring
    beside_each_other = min(run.workers.threads, run.shape.n_outputs) * solve_bytes(run.n_columns)
    return gram + (gram if solver.intercept else 0) + max(beside_each_other, scoring)
