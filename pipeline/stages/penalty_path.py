"""The penalty path: solved on the fit rows, scored on the held-out rows; the test part is never looked at."""

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from features.targets import labels_from_decision
from pipeline.config.parsers import is_searched, penalty_path
from pipeline.kernels.exact_sums import Each
from pipeline.runtime.row_pass import AddPiece, BlockValues
from pipeline.runtime.stored_arrays import Arrays, Stored
from pipeline.solvers.regularization_path import (
    ChosenPenalty,
    TriedPenalties,
    choose_penalty,
    largest_penalty,
)
from pipeline.solvers.ridge import finalise_path
from pipeline.stages.accumulate_statistics import FIT, HELD_OUT, name_of, statistics_of
from pipeline.stages.one_vs_all import load_weights, solve_outputs, start_name
from pipeline.stages.training_rows import RowBlock, RowTask, RunSize, block_pass, block_pass_bytes, row_grid
from pipeline.stages.workspace import SOLVE, Workspace

# Share of a draw, which is half of the working set; beyond it, more of all candidates would have a weight than fit.
MOST_OF_DRAW = 0.75


@dataclass(frozen=True)
class PathPoint:
    """One penalty of the path: its solves and its held-out error.

    relative_gap: over the candidates that penalties are tried on; converged: within the tolerance.
    """

    penalty: float
    objective: float
    n_active: tuple[int, ...]
    n_centers: int
    relative_gap: float
    hold_out_error: float
    wall_seconds: float
    converged: bool


def follow_penalty_path(
    work: Workspace, setting: str, members: NDArray[np.int64] | None = None
) -> tuple[ChosenPenalty, list[PathPoint]]:
    """Return the penalty to train with, the penalised weights of the fit rows there, and the points of the path.

    members: a draw of the candidates, by row, whose statistics of fit rows and of held-out rows there are; None: all of
    the run. `auto` then ends where more than `MOST_OF_DRAW` of the draw have a weight.

    `auto` takes the penalty of the lowest held-out error (the largest of equals), a path its last. Errors are of
    refitted weights where a refit is asked for: the share of errors of classes, the mean squared error of a regression.
    """
    points: list[PathPoint] = []
    n_columns = work.n_candidates if members is None else len(members)
    most = n_columns if members is None else MOST_OF_DRAW * n_columns

    def solve_at(number: int | None, penalties: tuple[float, ...]) -> TriedPenalties:
        start = None
        if number:
            start = start_name(FIT, number)
            work.commit(start, {"weights": load_weights(work, FIT, n_columns, number - 1)[0]})
        summaries = solve_outputs(work, FIT, penalties, start=start, number=number)
        table = load_weights(work, FIT, n_columns, number)
        errors = _held_out_errors(work, members, table, number or 0)
        for index, penalty in enumerate(penalties):
            of_outputs = [summary["points"][index] for summary in summaries]
            points.append(
                PathPoint(
                    penalty=penalty,
                    objective=sum(point["objective"] for point in of_outputs),
                    n_active=tuple(point["n_active"] for point in of_outputs),
                    n_centers=int(np.count_nonzero(table[index].any(axis=1))),
                    relative_gap=max(point["relative_gap"] for point in of_outputs),
                    hold_out_error=float(errors[index]),
                    wall_seconds=sum(point["wall_seconds"] for point in of_outputs),
                    converged=all(point["converged"] for point in of_outputs),
                )
            )
        return TriedPenalties(table, errors, points[-1].converged and points[-1].n_centers <= most)

    chosen = choose_penalty(penalty_path(setting), largest_penalty_of(work, FIT), solve_at)
    if chosen.warning is not None:
        work.warn(f"`solver.penalty=auto`: {chosen.warning}")
    if setting == "auto" and points[-1].n_centers > most:
        work.warn(
            f"`solver.penalty=auto`: ended at {points[-1].penalty:.3g}, where {points[-1].n_centers} of the "
            f"{n_columns} candidates that it tries have a weight; of all candidates more would than the working set "
            "holds"
        )
    return chosen, points


def path_bytes(run: RunSize) -> int:
    """Return the memory of the pass that scores a path on held-out rows; 0 where there is no path."""
    solver = run.config.solver
    has_path = is_searched(solver.penalty) and solver.select == "none"
    return block_pass_bytes(run, run.n_columns) if has_path else 0


def largest_penalty_of(work: Workspace, part: str) -> float:
    """Return the penalty at which all weights on the statistics of a part are zero; 1 where they are at any."""
    return largest_penalty(statistics_of(work, name_of(part)), intercept=work.intercept)


def _held_out_errors(
    work: Workspace, members: NDArray[np.int64] | None, table: NDArray[np.float64], number: int
) -> NDArray[np.float64]:
    """Return the held-out errors (penalties,) f8 of weights (penalties, columns, outputs); `number` names the pass."""
    fit, held_out = (statistics_of(work, name_of(part)) for part in (FIT, HELD_OUT))
    path = finalise_path(table, fit, held_out, refitted=work.config.solver.refit == "ridge", intercept=work.intercept)
    if work.shape.task == "regression":
        return path.squared_errors(held_out)
    name = f"path-{number}"

    def make() -> Arrays:
        rows = {} if members is None else {"members": members[path.columns]}
        weights = work.commit(f"passes/{name}/weights.npz", vars(path) | rows)
        blocks, task = row_grid("train", work.shape.n_train, len(path.columns)), work.row_task
        counter = partial(_block_of_errors, task, weights)
        counted = block_pass(task, blocks, counter, BlockValues, ("errors",), features="held-out")
        wrong = work.add_up(SOLVE, counted, name, "errors of each penalty")
        return {"errors": np.asarray(wrong.in_order("wrong").sum(axis=0) / held_out.weight_sum)}

    errors = work.once(f"solutions/{name}-errors.npz", make)["errors"]
    work.drop(f"passes/{name}")
    return errors


def _block_of_errors(task: RowTask, weights: Stored) -> AddPiece[BlockValues]:
    """Return what counts the held-out rows that each penalty misclassifies, by weight: "wrong" (1, penalties)."""
    arrays, kind = weights.read(), task.shape.task
    generator = task.generator(arrays["members"]) if "members" in arrays else task.generator_at_once(arrays["columns"])
    n_penalties, n_active, n_outputs = arrays["weights"].shape
    stacked = arrays["weights"].transpose(1, 0, 2).reshape(n_active, n_penalties * n_outputs)

    def count(values: BlockValues, block: RowBlock, each: Each) -> None:
        K = generator.block(block.X[block.held_out], out_dtype=np.float64, each=each)
        decisions = (K @ stacked).reshape(-1, n_penalties, n_outputs) + arrays["intercepts"]
        truth = labels_from_decision(block.targets[block.held_out], kind)
        counts = np.ones(len(truth)) if block.weights is None else block.weights[block.held_out]
        wrong = [float(counts @ (labels_from_decision(decisions[:, i], kind) != truth)) for i in range(n_penalties)]
        values.put(block.number, {"wrong": np.array([wrong])})

    return count
