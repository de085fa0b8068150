"""The penalty path: solved on the fit rows, scored on the held-out rows; the test part is never looked at."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.targets import labels_from_decision
from pipeline.config.parsers import penalty_path
from pipeline.kernels.column_generator import ColumnGenerator
from pipeline.kernels.each_tile import Each
from pipeline.solvers.delivered_weights import deliver_path
from pipeline.solvers.regularization_path import (
    ChosenPenalty,
    TriedPenalties,
    choose_penalty,
    largest_penalty,
)
from pipeline.stages.accumulate_statistics import load_statistics
from pipeline.stages.block_values import BlockPass, OfBlock
from pipeline.stages.one_vs_all import load_weights, solve_groups, start_weights_name
from pipeline.stages.run_state import SOLVE, Run, is_whole
from pipeline.stages.statistics_pass import FIT, HELD_OUT
from pipeline.stages.training_rows import RowBlock, RowTask, row_grid, row_task
from storage.arrays import read_arrays, write_arrays
from storage.files import make_folder
from storage.folders import remove_folder

WEIGHTS = "weights.npz"


@dataclass(frozen=True)
class PathColumns:
    """The columns that penalties are tried on.

    fit, held_out : the names of their statistics
    path : what the errors are committed under
    members : the candidates, by name; None: all of the run
    """

    fit: str = FIT
    held_out: str = HELD_OUT
    path: str = "path"
    members: NDArray[np.int64] | None = None

    def count(self, run: Run) -> int:
        """Return how many there are."""
        return run.n_candidates if self.members is None else len(self.members)


@dataclass(frozen=True)
class PathPoint:
    """One penalty of the path: what the solves say and what the held-out rows say.

    relative_gap: over all candidates if `certified`, else over a working set of them, or above the tolerance;
    converged: where a working set grows, it has room for the centers as well.
    """

    penalty: float
    objective: float
    n_active: tuple[int, ...]
    n_centers: int
    relative_gap: float
    hold_out_error: float
    wall_seconds: float
    converged: bool
    certified: bool = True


def follow_penalty_path(run: Run, setting: str) -> tuple[ChosenPenalty, list[PathPoint]]:
    """Return the penalty to train with, with the penalised weights of the fit rows there, and the points of the path.

    `auto` trains with the penalty of the lowest held-out error (the largest of equals), a path with its last one.
    The error is that of what will be delivered: of the refitted weights where a refit is asked for. Classes count
    errors, regression the mean squared error.
    """
    points: list[PathPoint] = []

    def solve_at(number: int | None, penalties: tuple[float, ...]) -> TriedPenalties:
        before = load_weights(run, FIT, run.n_candidates, number - 1)[0] if number else None
        tried, new = try_penalties(run, PathColumns(), penalties, number, before)
        points.extend(new)
        return tried

    chosen = choose_penalty(penalty_path(setting), largest_penalty_of(run, "fit"), run.config.solver.patience, solve_at)
    if chosen.warning is not None:
        run.events.warn(f"--penalty auto: {chosen.warning}")
    return chosen, points


def try_penalties(
    run: Run,
    columns: PathColumns,
    penalties: tuple[float, ...],
    number: int | None,
    before: NDArray[np.float64] | None,
) -> tuple[TriedPenalties, list[PathPoint]]:
    """Solve on the fit rows at some penalties, from weights (columns, outputs) or zero, and look at the held-out rows.

    number: of the call for these columns; None: the only one.
    """
    if before is not None:
        write_arrays(run.layout.solution(start_weights_name(columns.fit, number)), {"weights": before})
    summaries = solve_groups(run, columns.fit, penalties, warm_start=before is not None, number=number)
    table = load_weights(run, columns.fit, columns.count(run), number)
    errors = _held_out_errors(run, columns, table, number or 0)
    points = _points(penalties, summaries, table, errors)
    return TriedPenalties(table, errors, points[-1].converged), points


def largest_penalty_of(run: Run, part: str) -> float:
    """Return the penalty at which all weights on the statistics of a part are zero; 1 where they are at any."""
    solver, statistics = run.config.solver, load_statistics(run.layout, part)
    return largest_penalty(statistics, shared=solver.coupling == "shared", intercept=bool(solver.intercept))


def _points(
    penalties: Sequence[float],
    summaries: list[dict[str, Any]],
    table: NDArray[np.float64],
    errors: NDArray[np.float64],
) -> list[PathPoint]:
    """Return the points of some penalties from the summaries of the solves, the weights and the held-out errors."""
    points = []
    for index, penalty in enumerate(penalties):
        of_group = [summary["points"][index] for summary in summaries]
        points.append(
            PathPoint(
                penalty=penalty,
                objective=sum(point["objective"] for point in of_group),
                n_active=tuple(point["n_active"] for point in of_group),
                n_centers=int(np.count_nonzero(table[index].any(axis=1))),
                relative_gap=max(point["relative_gap"] for point in of_group),
                hold_out_error=float(errors[index]),
                wall_seconds=sum(point["wall_seconds"] for point in of_group),
                converged=all(point["converged"] for point in of_group),
            )
        )
    return points


def _held_out_errors(run: Run, columns: PathColumns, table: NDArray[np.float64], number: int) -> NDArray[np.float64]:
    """Return the held-out error of each penalty's weights (penalties, columns, outputs), (penalties,) f8.

    number: of the solves that the weights come from, which names the pass.
    """
    solver = run.config.solver
    fit, held_out = (load_statistics(run.layout, part) for part in (columns.fit, columns.held_out))
    path = deliver_path(table, fit, held_out, refitted=solver.refit == "ridge", intercept=bool(solver.intercept))
    if run.shape.task == "regression":
        return path.squared_errors(held_out)
    done = run.layout.solution(f"{columns.path}-{number}-errors.npz")
    if is_whole(done):
        return read_arrays(done)["errors"]
    folder = run.layout.row_pass(f"{columns.path}-{number}")
    make_folder(folder)
    members = {} if columns.members is None else {"names": columns.members[path.active]}
    write_arrays(folder / WEIGHTS, vars(path) | members)
    blocks = row_grid("train", run.shape.n_train, len(path.active))
    task = BlockPass(row_task(run), blocks, partial(_error_counter, folder / WEIGHTS))
    wrong = run.row_pass(SOLVE, task, folder, words="errors of each penalty")
    errors = np.asarray(wrong.in_order("wrong").sum(axis=0) / held_out.weight_sum)
    write_arrays(done, {"errors": errors})
    remove_folder(folder, durable=False)
    return errors


def _error_counter(path: Path, task: RowTask) -> OfBlock:
    """Return what counts the held-out rows of a block that each penalty's weights misclassify, by their weights."""
    arrays = read_arrays(path)
    generator = task.generator(arrays["names"]) if "names" in arrays else task.generator_at_once(arrays["active"])
    return partial(_count_errors, task.shape.task, generator, arrays["weights"], arrays["intercepts"])


def _count_errors(
    task: str,
    generator: ColumnGenerator,
    weights: NDArray[np.float64],
    intercepts: NDArray[np.float64],
    block: RowBlock,
    each: Each,
) -> dict[str, NDArray[np.float64]]:
    """Return "wrong" (1, penalties) f8. weights (penalties, active, outputs), intercepts (penalties, outputs)."""
    n_penalties, n_active, n_outputs = weights.shape
    K = generator.block(block.X[block.held_out], out_dtype=np.float64, each=each)
    stacked = weights.transpose(1, 0, 2).reshape(n_active, n_penalties * n_outputs)
    decisions = (K @ stacked).reshape(-1, n_penalties, n_outputs) + intercepts
    truth = labels_from_decision(block.targets[block.held_out], task)
    counts = np.ones(len(truth)) if block.weights is None else block.weights[block.held_out]
    wrong = [float(counts @ (labels_from_decision(decisions[:, i], task) != truth)) for i in range(n_penalties)]
    return {"wrong": np.array([wrong])}
