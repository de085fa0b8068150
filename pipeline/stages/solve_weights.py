"""Stage 4: the weights of the model, from the statistics alone: penalty path, solves, refit; or a greedy selection.

A path is solved on the fit rows and scored on the held-out ones. Then the solves run on all rows, and the centers they
select may be refitted by least squares; without a penalty all candidates are. Last, the temperature of the
probabilities: decision values of rows that were fitted are too sure, so weights are tried on rows they were not fitted
to: those of the fit rows on held-out rows; where these are few, the fit rows join with their leave-one-out values.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError

from pipeline.config.parsers import NO_PENALTY, is_searched, penalty_fraction
from pipeline.errors import InvalidDataError
from pipeline.kernels.exact_sums import Each
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.models.scores import LossSlopes, best_temperature, loss_slopes
from pipeline.runtime.row_pass import AddPiece, BlockValues
from pipeline.runtime.stored_arrays import Arrays, Stored
from pipeline.solvers.greedy_choice import Preselection
from pipeline.solvers.ridge import (
    FEW_ROWS,
    CalibrationWeights,
    LeftOut,
    Parts,
    RidgeFit,
    Weights,
    calibration_weights,
    finalise,
    intercept_of,
    refit,
    ridge_bytes,
    ridge_summary,
    with_ridge,
)
from pipeline.solvers.solve import solve_bytes
from pipeline.stages.accumulate_statistics import ALL, FIT, HELD_OUT, accumulate_held_out, name_of, statistics_of
from pipeline.stages.filled_settings import is_in_rounds, preselection_of
from pipeline.stages.greedy_selection import AT_ONCE, choice_bytes, select_centers
from pipeline.stages.grow_candidates import RIDGES
from pipeline.stages.out_of_core.column_generation import (
    count_columns,
    follow_path_on_subset,
    generate_columns,
    summaries_over_all,
)
from pipeline.stages.out_of_core.correlations import correlation_bytes
from pipeline.stages.penalised_solves import (
    follow_penalty_path,
    largest_penalty_of,
    load_weights,
    path_bytes,
    solve_outputs,
)
from pipeline.stages.polish_centers import NAME as POLISH
from pipeline.stages.polish_centers import moves_bytes, polish_centers
from pipeline.stages.run_workspace import Run
from pipeline.stages.training_rows import (
    PassBytes,
    RowBlock,
    RowTask,
    RunSize,
    block_pass,
    block_pass_bytes,
    count_held_out,
    row_grid,
    run_length,
    stream_blocks,
)
from pipeline.stages.workspace import FINAL, SOLVE, FinalWeights, Workspace

TEMPERATURE, WORDS = "temperature", "temperature of the probabilities"


def solve_weights(work: Workspace) -> FinalWeights:
    """Return the weights, committed with a summary of every solve. Raises InvalidDataError, CorruptDataError."""
    with work.stage(SOLVE) as cost:
        if work.final is not None:
            return work.final
        cost.items = 0
        final, tried = select_centers(work) if work.config.solver.selects else _solved(work)
        if work.config.solver.polish_centers and len(final.active):
            final, tried = polish_centers(work, final, tried)
        final = final.moved_up(work.facts.mean)
        final = replace(final, summary=final.summary | {"temperature": find_temperature(work, tried)})
        work.commit(FINAL, final.arrays())
        work.drop(f"checkpoints/{POLISH}")
        work.drop("passes")  # the one over the held-out rows
        return final


def _solved(work: Workspace) -> tuple[FinalWeights, CalibrationWeights]:
    """Return the penalised weights, refitted where that is asked for, and those for the held-out rows."""
    if work.config.solver.penalty == NO_PENALTY:
        return _unpenalised(work)
    solved = _solved_in_rounds(work) if work.in_rounds else _solved_at_once(work)
    active, weights, statistics = solved.active, solved.weights, solved.statistics
    parts = _parts(work, solved) if work.config.solver.refit != "none" and len(active) else None
    with _with_advice():
        refitted, best = finalise(active, weights, statistics, parts, intercept=work.intercept)
    before = intercept_of(statistics, weights, intercept=work.intercept)
    summary = {"selection": None, **solved.summary} | ridge_summary(best)
    final = FinalWeights(active, refitted.weights, refitted.intercept, weights, before, summary=summary)
    tried = calibration_weights(refitted, best, solved.of_fit)
    return final, replace(tried, weights=tried.weights.named(work.candidates))


def _unpenalised(work: Workspace) -> tuple[FinalWeights, CalibrationWeights]:
    """Fit all candidates by least squares, with the ridge that the held-out rows prefer."""
    with work.status(SOLVE, "least squares on all candidates"), _with_advice():
        fit, held_out, everything = (statistics_of(work, name_of(part)) for part in AT_ONCE)
        errors = [(fraction, error) for fraction, error in work.centers.get(RIDGES, np.empty((0, 2))).tolist()]
        if not errors:
            best = refit(fit, held_out, everything, intercept=work.intercept)
        else:
            best = with_ridge(fit, everything, errors, intercept=work.intercept)
    summary: dict[str, Any] = {
        **dict.fromkeys(("penalty", "path", "passes", "selection")),
        "solves": [],
    } | ridge_summary(best)
    tried = CalibrationWeights(best.of_fit.weights.named(work.candidates), fit=best.of_fit)
    return FinalWeights.of(np.arange(everything.n_centers), best.weights, summary), tried


@dataclass(frozen=True)
class Solved:
    """The penalised weights, before a refit: active candidates (a,), weights (a, T), statistics cut to them.

    of_fit: weights of the fit rows at this penalty, from a path. summary: for the report.
    """

    active: NDArray[np.int64]
    weights: NDArray[np.float64]
    statistics: GramStatistics
    of_fit: Weights | None
    summary: dict[str, Any]


def _solved_at_once(work: Workspace) -> Solved:
    """Solve with the Gram of all candidates, at the end of a penalty path where one is asked for."""
    path, of_fit, penalty = list[dict[str, Any]](), None, work.config.solver.penalty
    assert penalty is not None  # the plan has filled it in
    if is_searched(penalty):
        penalty, weights, path = follow_penalty_path(work, str(penalty))
        of_fit = Weights.of_support(weights, statistics_of(work, name_of(FIT)), intercept=work.intercept)
    elif isinstance(penalty, str):
        penalty = penalty_fraction(penalty) * largest_penalty_of(work, ALL)
    solves = solve_outputs(work, ALL, [penalty])
    weights = load_weights(work, ALL, work.n_candidates)[-1]
    active = np.flatnonzero(weights.any(axis=1))
    everything = statistics_of(work, name_of(ALL)).cut(active)
    summary = _summary(penalty, solves, path, path_candidates=work.n_candidates if path else None)
    return Solved(active, weights[active], everything, of_fit, summary)


def _solved_in_rounds(run: Workspace) -> Solved:
    """Solve on a working set that grows until no candidate is missing, at the end of a path where one is asked for."""
    assert isinstance(run, Run)
    setting = run.config.solver.penalty
    path = follow_path_on_subset(run, str(setting)) if is_searched(setting) else None
    last, passes = generate_columns(run, path.penalty if path else None)
    active = last.inside[last.weights.columns]
    ordered = np.argsort(active)
    summary = _summary(
        last.penalty,
        summaries_over_all(last),
        path.points if path else [],
        passes=passes or None,
        path_candidates=path.n_candidates if path else None,
        columns=count_columns(passes, run.n_candidates) if run.config.centers.on_demand else None,
    )
    statistics = last.working_set.statistics.cut(last.weights.columns[ordered])
    of_fit = path.of_fit if path else None
    return Solved(active[ordered], last.weights.weights[ordered], statistics, of_fit, summary)


def _summary(penalty: float, solves: list[dict[str, Any]], path: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return what the report says of solves at one penalty, and of the path before it."""
    flat = [
        {"output": solve["output"], **solve["points"][-1], "wall_seconds": solve["wall_seconds"]} for solve in solves
    ]
    return {"penalty": penalty, "solves": flat, "path": path or None, "passes": None, **more}


def _parts(work: Workspace, solved: Solved) -> Parts:
    """Return the statistics of the active columns on the fit rows and on the held-out rows."""
    if work.in_rounds:
        held_out = accumulate_held_out(work, work.candidates[solved.active], "final")
        return solved.statistics - held_out, held_out
    fit, held_out = (statistics_of(work, name_of(part)).cut(solved.active) for part in (FIT, HELD_OUT))
    return fit, held_out


def solving_bytes(run: RunSize) -> PassBytes:
    """Return what the weights need: solves, then moves of the centers; out of core, the pass of correlations."""
    n_outputs, asked, moves = run.shape.n_outputs, preselection_of(run.config, run.shape.n_train), moves_bytes(run)
    memory = max(_weights_bytes(run, asked), moves.memory)
    if asked is None and is_in_rounds(run.config, run.shape.n_train):
        pricing = correlation_bytes(run)
        return PassBytes(pricing.pieces, max(pricing.memory, memory), pricing.disk + moves.disk)
    n_columns = run.n_columns if asked is None else asked.n_finalists
    pieces = 1 if run.config.solver.selects else n_outputs
    return PassBytes(pieces, memory, 16 * n_outputs * n_columns + moves.disk)


def _weights_bytes(run: RunSize, asked: Preselection | None) -> int:
    """Return the memory of the solves: the mapped Gram, a centred one, active sets; of passes that score a path."""
    solver, gram, scoring = run.config.solver, 8 * run.n_columns**2, max(path_bytes(run), temperature_bytes(run))
    if solver.selects:
        return max(choice_bytes(run, asked), scoring)
    if solver.penalty == NO_PENALTY:
        return max(ridge_bytes(run.n_columns), scoring)
    beside_each_other = min(run.workers.threads, run.shape.n_outputs) * solve_bytes(run.n_columns)
    return gram + (gram if solver.intercept else 0) + max(beside_each_other, scoring)


@contextmanager
def _with_advice() -> Iterator[None]:
    """Say what to do where no ridge makes the Gram of a refit definite."""
    try:
        yield
    except LinAlgError as error:
        raise InvalidDataError(f"refit: {error}; use a larger `solver.penalty`, or `solver.refit=none`") from None


def find_temperature(work: Workspace, tried: CalibrationWeights) -> dict[str, Any] | None:
    """Return temperature, number of rows, whether the weights were fitted to them; None for a regression."""
    if work.shape.task == "regression" or not work.config.statistics.hold_out:
        return None
    if tried.fit is not None and _has_few_rows(work):
        with work.status(SOLVE, WORDS):
            sums = _slopes_of_few(work.row_task, tried, tried.fit)
    else:
        sums = _slopes_of_held_out(work, tried)
    temperature = best_temperature(sums)
    return None if temperature is None else {"temperature": temperature, "n_rows": sums.rows, "seen": tried.seen}


def _slopes_of_held_out(work: Workspace, tried: CalibrationWeights) -> LossSlopes:
    """Return the slopes of the log loss of the held-out rows: a pass over the rows."""
    arrays: Arrays = vars(tried.weights) | ({} if tried.points is None else {"points": tried.points})
    given = work.commit(f"passes/{TEMPERATURE}/weights.npz", arrays)
    grid, rows = row_grid("train", work.shape.n_train, len(tried.weights.columns)), work.row_task
    slopes = partial(_block_of_slopes, rows, given)
    task = block_pass(rows, grid, slopes, BlockValues, (TEMPERATURE,), features="held-out")
    values = work.add_up(SOLVE, task, TEMPERATURE, WORDS)
    return replace(reduce(add, map(_slopes, values.by_block())), rows=count_held_out(work, work.facts))


def temperature_bytes(run: RunSize) -> int:
    """Return the memory of the pass over the held-out rows; 0 where there is none."""
    has_pass = run.shape.task != "regression" and run.config.statistics.hold_out > 0
    return block_pass_bytes(run, run.n_columns) if has_pass else 0


def _has_few_rows(work: Workspace) -> bool:
    """Return whether the fit rows join the held-out ones: not of groups, whose rows tell of each other."""
    return work.shape.n_train < FEW_ROWS and work.config.data.groups is None


def _slopes_of_few(task: RowTask, tried: CalibrationWeights, fit: RidgeFit) -> LossSlopes:
    """Return the slopes of the log loss of all rows, each without itself, of few: here and now."""
    left_out, generator = LeftOut(fit), task.generator(tried.weights.columns)
    grid = row_grid("train", task.shape.n_train, len(tried.weights.columns))
    step = run_length(task, grid)
    for first in range(0, grid.n_blocks, step):
        for _, block in stream_blocks(task, grid, range(first, min(first + step, grid.n_blocks))):
            counts = np.ones(len(block.X)) if block.weights is None else block.weights
            counted = np.flatnonzero(counts > 0)
            columns = generator.block(block.X[counted], out_dtype=np.float64)
            left_out.add(block.keys[counted], columns, block.y[counted], counts[counted], block.held_out[counted])
    return loss_slopes(*left_out.values())


def _block_of_slopes(rows: RowTask, given: Stored) -> AddPiece[BlockValues]:
    """Return what gives the slopes of the log loss of a block's held-out rows; other rows cost no columns."""
    arrays, generator = given.read(), None
    if "points" in arrays:
        generator = rows.generator_of(arrays["points"])
    elif len(arrays["columns"]):
        generator = rows.generator(arrays["columns"])
    weights = np.ascontiguousarray(arrays["weights"])  # as from a file: bits depend on the order in memory

    def slopes(values: BlockValues, block: RowBlock, each: Each) -> None:
        X = block.X[block.held_out]
        decision = np.tile(arrays["intercept"], (len(X), 1))
        if generator is not None and len(X):
            decision += generator.block(X, out_dtype=np.float64, each=each) @ weights
        counts = None if block.weights is None else block.weights[block.held_out]
        sums = loss_slopes(decision, block.y[block.held_out], counts)
        values.put(block.number, {name: np.asarray(value) for name, value in vars(sums).items()})

    return slopes


def _slopes(values: Arrays) -> LossSlopes:
    others, rows = (values[name].item() for name in ("others", "rows"))
    return LossSlopes(values["slopes"], values["curvatures"], others, rows)
