"""The penalty path: solved on the fit rows, scored on the held-out rows; the test part is never looked at."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.targets import labels_from_decision
from pipeline.setting_types import PenaltyPath, penalty_path
from pipeline.solvers.path import penalty_max, spaced
from pipeline.solvers.refit import refit
from pipeline.stages import group_solve, rows, statistics
from pipeline.stages.rows import RowTask
from pipeline.stages.run import Run
from storage.blocks import Block
from storage.commit import read_arrays, write_arrays
from storage.layout import RunLayout

# `auto` looks from the penalty at which all weights are zero down to this fraction of it, two points a decade.
AUTO_FRACTION, AUTO_COUNT = 1e-12, 25
WEIGHTS = "path-weights.npz"


@dataclass(frozen=True)
class PathPoint:
    """One penalty of the path: what the solves say and what the held-out rows say."""

    penalty: float
    objective: float
    n_active: tuple[int, ...]
    n_centers: int
    relative_gap: float
    hold_out_error: float
    wall_seconds: float


def run(run: Run, setting: str) -> tuple[float, list[PathPoint]]:
    """Return the penalty to train with and the points of the path.

    `auto` trains with the penalty of the lowest held-out error (the largest of equals), a path with its last one.
    The error is that of what will be delivered: of the refitted weights where a refit is asked for. Classes count
    errors, regression the mean squared error.
    """
    path = penalty_path(setting)
    penalties = _penalties(run, path)
    summaries = group_solve.solve_all(run, "fit", penalties)
    table = group_solve.weights(run, "fit", statistics.n_centers(run))
    errors = _hold_out_errors(run, table)
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
            )
        )
    best = min(points, key=lambda point: (point.hold_out_error, -point.penalty)) if path is None else points[-1]
    return best.penalty, points


def _penalties(run: Run, path: PenaltyPath | None) -> tuple[float, ...]:
    found = statistics.load(run.layout, "fit")
    kty = (found.centred() if run.config.solver.intercept else found).kty
    largest = penalty_max(kty, shared=run.config.solver.coupling == "shared")
    if path is None:
        return spaced(largest, largest * AUTO_FRACTION, AUTO_COUNT)
    return spaced(path.first or max(largest, path.last), path.last, path.count)


def _hold_out_errors(run: Run, table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the held-out error of each penalty's weights (penalties, candidates, outputs)."""
    fit = statistics.load(run.layout, "fit")
    hold_out = statistics.load(run.layout, "hold_out")
    active = np.flatnonzero(table.any(axis=(0, 2)))
    delivered = np.zeros((len(table), len(active), table.shape[2]))
    intercepts = np.zeros((len(table), table.shape[2]))
    for index, of_penalty in enumerate(table):
        support = np.flatnonzero(of_penalty.any(axis=1))
        weights = of_penalty[support]
        if run.config.solver.refit == "ridge" and len(support):
            found = refit(
                fit.cut(support), hold_out.cut(support), fit.cut(support), intercept=run.config.solver.intercept
            )
            weights, intercepts[index] = found.weights, found.intercept
        elif run.config.solver.intercept:
            intercepts[index] = fit.cut(support).intercept(weights)
        delivered[index, np.searchsorted(active, support)] = weights
    if run.shape.task == "regression":
        cut = hold_out.cut(active)
        pairs = zip(delivered, intercepts, strict=True)
        return np.array([cut.squared_error(w, b).sum() for w, b in pairs]) / hold_out.weight_sum
    arrays = {"active": active, "weights": delivered, "intercepts": intercepts}
    write_arrays(run.layout.solution(WEIGHTS), arrays)
    task = rows.task_of(run)
    counts: dict[int, NDArray[np.int64]] = {}
    spans = rows.grid(task, max(len(active), 1))
    run.run_items(
        group_solve.STAGE,
        partial(count_errors, task),
        spans,
        on_value=lambda span, found: counts.update({span.index: found}),
    )
    return np.sum([counts[span.index] for span in spans], axis=0) / hold_out.weight_sum


def count_errors(task: RowTask, span: Block) -> NDArray[np.int64]:
    """Return how many held-out rows of a span each penalty's weights misclassify, (penalties,) i8."""
    active, weights, intercepts = _path_weights(task.layout)
    n_penalties, _, n_outputs = weights.shape
    generator = task.generator_at_once(active)
    stacked = weights.transpose(1, 0, 2).reshape(len(active), n_penalties * n_outputs)
    wrong = np.zeros(n_penalties, np.int64)
    for block in rows.blocks(task, span):
        K = generator.block(block.X[block.held_out], out_dtype=np.float64)
        decisions = (K @ stacked).reshape(-1, n_penalties, n_outputs) + intercepts
        truth = labels_from_decision(block.targets[block.held_out], task.shape.task)
        for index in range(n_penalties):
            wrong[index] += np.count_nonzero(labels_from_decision(decisions[:, index], task.shape.task) != truth)
    return wrong


def _path_weights(layout: RunLayout) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    arrays = read_arrays(layout.solution(WEIGHTS))
    return arrays["active"], arrays["weights"], arrays["intercepts"]
