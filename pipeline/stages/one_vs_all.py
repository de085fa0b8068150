"""The solves: one for each output (class), or one for all outputs that share a kernel. All read the one Gram.

A solve may go through several penalties, each started from the last.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config.train_config import SolverConfig
from pipeline.errors import InvalidDataError
from pipeline.runtime import progress
from pipeline.runtime.stored_arrays import Arrays, Stored
from pipeline.solvers.problem import InvalidProblemError, Outputs, check_gram, problem_of
from pipeline.solvers.regularization_path import solve_path
from pipeline.solvers.state import SolverOptions
from pipeline.stages.accumulate_statistics import (
    name_of,
    statistics_from_arrays,
    statistics_of,
    statistics_to_arrays,
)
from pipeline.stages.task_checkpoints import REACHED, SolveProgress
from pipeline.stages.workspace import SOLVE, TaskCheckpoints, Workspace

LARGEST_CHECKED = 4000  # candidates; larger Grams are made by the same code, and the certificate judges the result
TO_ROUNDING = 1e-15  # relative gap asked for where the tolerance is 0; rounding ends the solve, not the gap
SUMMARY = "summary"  # the array with the summary of a solve, as JSON


@dataclass(frozen=True)
class SolveTask:
    """What a worker needs to solve for any group of outputs.

    start: has the "weights" (candidates, outputs) that the solves start from. to_rounding: solve as far as float64
    goes.
    """

    statistics: Stored
    name: str
    penalties: tuple[float, ...]
    options: SolverOptions
    seed: int
    start: Stored | None
    to_rounding: bool


def groups_of(work: Workspace) -> list[Outputs]:
    """Return the outputs of each solve of a fit."""
    outputs = tuple(range(work.shape.n_outputs))
    return [outputs] if work.config.solver.coupling == "shared" else [(output,) for output in outputs]


def solver_options(solver: SolverConfig) -> SolverOptions:
    """Return the solver's options that the configuration asks for."""
    return SolverOptions(
        tolerance=solver.tolerance or TO_ROUNDING,
        max_sweeps=solver.max_sweeps,
        schedule=solver.schedule,
        step=solver.step,
        stop=solver.stop,
    )


def solve_groups(
    work: Workspace,
    part: str,
    penalties: Sequence[float],
    *,
    tolerance: float | None = None,
    start: str | None = None,
    number: int | None = None,
) -> list[dict[str, Any]]:
    """Solve on the statistics of a part (all, fit) at each penalty; return the committed summaries of the groups.

    `tolerance` replaces the configured one; `start` names the "weights" (candidates, outputs) to start from; `number`
    counts calls for one part. Raises InvalidDataError for statistics that are not positive semi-definite,
    CorruptDataError.
    """
    name = _prepare_statistics(work, part) if not number else _name(work, part)
    asked = work.config.solver.tolerance if tolerance is None else tolerance
    asked = asked or REACHED if number is not None else asked  # penalties that are compared need no more
    options = solver_options(replace(work.config.solver, tolerance=asked))
    task = SolveTask(
        statistics=work.stored(name_of(name)),
        name=name,
        penalties=tuple(penalties),
        options=options,
        seed=work.config.seed,
        start=None if start is None else work.stored(start),
        to_rounding=not asked,
    )
    found = work.compute(
        SOLVE,
        partial(solve_group, task),
        {solution_name(name + _suffix(number), group): group for group in groups_of(work)},
        unit="solves" if len(penalties) == 1 else "penalties",
        size=lambda group: len(penalties),
        penalties=penalties,
        number=number,
    )
    return [json.loads(arrays[SUMMARY].tobytes()) for arrays in found]


def load_weights(work: Workspace, part: str, n_candidates: int, number: int | None = None) -> NDArray[np.float64]:
    """Return the committed weights, (penalties, candidates, outputs) f8; zero where nothing is selected."""
    name = _name(work, part) + _suffix(number)
    solutions = {group: work.stored(solution_name(name, group)).read() for group in groups_of(work)}
    n_penalties = len(next(iter(solutions.values()))["weights"])
    table = np.zeros((n_penalties, n_candidates, work.shape.n_outputs))
    for group, solution in solutions.items():
        for column, output in enumerate(group):
            table[:, solution["active"], output] = solution["weights"][:, :, column]
    return table


def start_name(part: str, number: int | None = None) -> str:
    """Return the name under which the weights are committed from which the solves on a part start."""
    return f"solutions/{part}{_suffix(number)}-start.npz"


def _suffix(number: int | None) -> str:
    return "" if number is None else f"-penalty-{number:02d}"


def solution_name(name: str, group: Outputs) -> str:
    """Return the name under which the solution of a group of outputs is committed."""
    of_group = f"output-{group[0]:04d}" if len(group) == 1 else "all-outputs"
    return f"solutions/{name}-{of_group}.npz"


def solve_group(task: SolveTask, group: Outputs, checkpoints: TaskCheckpoints) -> Arrays:
    """Return weights and summaries of a group of outputs at every penalty, from the last checkpoint on.

    Raises StoppedError after a checkpoint; InvalidDataError where the objective leaves the range of float64.
    """
    started = time.perf_counter()
    try:
        problem = problem_of(statistics_from_arrays(task.statistics.read(mapped=True)), group, task.penalties[-1])
        start = None if task.start is None else np.ascontiguousarray(task.start.read()["weights"][:, list(group)])
        done = SolveProgress(checkpoints, task.penalties, {"outputs": list(group), "statistics": task.name})
        first = len(done.summaries)
        progress.advance(first)
        for solution in solve_path(
            problem,
            task.penalties[first:],
            task.options,
            np.random.default_rng([task.seed, 3, *group]),
            start_weights=done.weights[-1] if first else start,
            start=done.state,
            on_record=done.on_record,
            should_stop=done.is_exhausted if task.to_rounding else None,
        ):
            done.on_solution(solution)
            progress.advance()
    except InvalidProblemError as error:
        raise InvalidDataError(f"output {group[0]}: {error}") from None
    if task.to_rounding:
        for point in done.summaries:
            point["converged"] |= point["relative_gap"] <= REACHED
    table = np.stack(done.weights)
    active = np.flatnonzero(table.any(axis=(0, 2)))
    seconds = time.perf_counter() - started
    summary = json.dumps({"outputs": list(group), "points": done.summaries, "wall_seconds": seconds})
    return {
        "active": active,
        "weights": table[:, active],
        "penalties": np.array(task.penalties),
        SUMMARY: np.frombuffer(summary.encode(), np.uint8),
    }


def _name(work: Workspace, part: str) -> str:
    return f"{part}-centred" if work.intercept else part


def _prepare_statistics(work: Workspace, part: str) -> str:
    """Check the statistics of a part, centre them where an intercept is fitted, and return their name."""
    with work.status(SOLVE, "checking the statistics"):
        statistics, name = statistics_of(work, name_of(part)), _name(work, part)
        if name != part:
            found = work.once(name_of(name), lambda: statistics_to_arrays(statistics.centred()), mapped=True)
            statistics = statistics_from_arrays(found)
        if statistics.n_centers > LARGEST_CHECKED:  # a factorisation as large as the Gram would take its memory again
            return name
        try:
            check_gram(statistics.gram)
        except InvalidProblemError as error:
            raise InvalidDataError(str(error)) from None
        return name
