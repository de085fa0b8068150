"""Fit the weights of a model to training rows. The command, `pipeline.train` and the estimators all call `fit`.

1. `draw_candidates`: candidates, and where the data decide the kernel, its width and scales of the features
   (`choose_kernel`).
2. `accumulate_statistics`: the Gram matrix of the candidates' columns, and what goes with it; of a fit by a budget as
   many columns as lower the held-out error (`grow_candidates`).
3. `find_weights`: a greedy selection (`select_centers`), or solves at a penalty or along a path, or least squares
   (`solve_weights`); moved centers (`move_centers`); how sure the model is (`calibrate`).
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from features.row_draws import RowKeys
from pipeline.config.train_config import NO_PENALTY
from pipeline.datasets.feature_rows import open_features
from pipeline.fit.calibrate import CALIBRATION_BYTES, calibrate, n_calibrating
from pipeline.fit.choose_kernel import PASS, choose_kernel
from pipeline.fit.filled_settings import grows, is_in_rounds
from pipeline.fit.grow_candidates import grow_candidates
from pipeline.fit.move_centers import NAME as MOVES
from pipeline.fit.move_centers import move_centers, moves_needs
from pipeline.fit.pricing import pricing_needs
from pipeline.fit.row_blocks import Needs, RunSize, memory_of, row_grid
from pipeline.fit.select_centers import select_centers
from pipeline.fit.statistics import accumulate_statistics
from pipeline.fit.target_facts import read_labels, summarise
from pipeline.fit.weights import solve_weights
from pipeline.fit.workspace import FINAL, FinalWeights, Workspace
from pipeline.solvers.forward_backward_selection import CHOSEN_GRAMS, forward_most
from pipeline.solvers.ridge import RIDGE_GRAMS
from pipeline.solvers.solve import LARGEST_ACTIVE_SET, SOLVE_MATRICES
from pipeline.work.events import CANDIDATES, SOLVE
from storage.arrays import Arrays, as_arrays


def draw_rows(rows: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """Return some of the rows, without replacement: with one seed, a smaller draw is the beginning of a larger one."""
    return rows[np.random.default_rng([seed, 1]).permutation(len(rows))[:count]]


def draw_candidates(work: Workspace) -> None:
    """Draw the candidates, choose what the data decide: kernel, width, scales; and commit the result."""
    with work.events.stage(CANDIDATES) as cost:
        if work.store.get(CANDIDATES, mapped=True) is not None:
            return
        cost.items = 1
        work.store.once(CANDIDATES, lambda: _candidates(work))
        work.store.drop(f"passes/{PASS}")


def _candidates(work: Workspace) -> Arrays:
    labels = read_labels(work.features, work.shape.n_train)
    first = _first_rows(labels.keys)
    index, facts = _rows_of_candidates(work, first), summarise(work.config, work.shape, labels, len(first))
    if facts.by_folds:  # Folds repeat no row.
        index = index[np.isin(index, first)]
    arrays: Arrays = {"index": index} | choose_kernel(work, index, labels, facts) | as_arrays(facts)
    # Else candidates may be all rows, and tasks read the features that they need.
    if (work.config.centers.working_set or 0) >= work.n_candidates:
        arrays["X"] = open_features(work.features).X[index]
    return arrays


def _first_rows(keys: RowKeys) -> NDArray[np.int64]:
    """Return the first of all rows with the same key, ascending; at most 26 bytes a row beside keys (n,)."""
    order = np.argsort(keys, kind="stable")
    repeats = keys[order[1:]] == keys[order[:-1]]
    return np.sort(order[np.append(True, ~repeats)])


def _rows_of_candidates(work: Workspace, first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the candidates' rows: all in order, or a draw, in which copies of a row, and deformed ones, come last."""
    count, n = work.config.centers.count, work.shape.n_train
    assert count is not None  # filled in
    if len(first) < n:
        work.events.log(f"{n - len(first)} of {n} training rows equal an earlier one", equal_rows=n - len(first))
    if count == "all":
        return np.arange(n)
    if work.config.data.copies > 1:  # as candidates, undeformed images leave less error
        first = first[first % work.config.data.copies == 0]
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
    with work.events.stage(SOLVE) as cost:
        if work.final is not None:
            return work.final
        cost.items = 0
        final, tried = select_centers(work) if work.config.solver.selects else solve_weights(work)
        if work.config.solver.move_centers and len(final.active):
            final, tried = move_centers(work, final, tried)
        mean = work.facts.mean  # It was taken off the targets.
        final = replace(
            final,
            intercept=final.intercept + mean,
            penalised_intercept=final.penalised_intercept + mean,
            summary=final.summary | calibrate(work, tried),
        )
        work.store.put(FINAL, final.arrays())
        work.store.drop(f"checkpoints/{MOVES}")
        work.store.drop("passes")  # the one over the held-out rows
        return final


def solving_needs(run: RunSize) -> Needs:
    """Return what the weights need: solves, then moves of the centers; in rounds, candidates are priced as well.

    Beside the mapped Gram there are a centred one and active sets. A path and a calibration pass over held-out rows.
    """
    config, shape, m = run.config, run.shape, run.n_columns
    solver, gram, n, n_outputs = config.solver, 8 * m**2, shape.n_train, shape.n_outputs
    moves, scoring = moves_needs(run), 0
    calibrates = config.statistics.hold_out > 0
    if calibrates or (solver.penalty == "auto" and not solver.selects):
        scoring = memory_of(row_grid("train", n, m), run)
    if calibrates:
        scoring += CALIBRATION_BYTES * n_calibrating(n, n_outputs, config.statistics.hold_out) * (n_outputs + 2)
    if solver.selects:
        chosen = min(forward_most(solver.n_selected, m), m)
        memory = max(2 * gram + 8 * chosen * m + 8 * CHOSEN_GRAMS * chosen**2, scoring)
    elif solver.penalty == NO_PENALTY:
        memory = RIDGE_GRAMS * gram + scoring
    else:
        solves = min(run.workers.threads, n_outputs) * 8 * SOLVE_MATRICES * min(m, LARGEST_ACTIVE_SET) ** 2
        memory = gram + (gram if solver.intercept else 0) + max(solves, scoring)
    memory, disk = max(memory, moves.memory), 16 * n_outputs * m + moves.disk
    if is_in_rounds(config, n):
        pricing = pricing_needs(run)
        return Needs(max(pricing.memory, memory), pricing.disk + moves.disk)
    return Needs(memory, disk)
