"""The solves: one for each output (class). All read the one Gram.

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
from pipeline.solvers.problem import InvalidProblemError, check_gram, problem_of
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
    """What a worker needs to solve for any output.

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


def solver_options(solver: SolverConfig) -> SolverOptions:
    """Return the solver's options that the configuration asks for."""
    return SolverOptions(
        tolerance=solver.tolerance or TO_ROUNDING,
        max_sweeps=solver.max_sweeps,
        schedule=solver.schedule,
        step=solver.step,
        stop=solver.stop,
    )


def solve_outputs(
    work: Workspace,
    part: str,
    penalties: Sequence[float],
    *,
    tolerance: float | None = None,
    start: str | None = None,
    number: int | None = None,
) -> list[dict[str, Any]]:
    """Solve on the statistics of a part (all, fit) at each penalty; return the committed summaries of the outputs.

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
        partial(solve_output, task),
        {solution_name(name + _suffix(number), output): output for output in range(work.shape.n_outputs)},
        unit="solves" if len(penalties) == 1 else "penalties",
        size=lambda output: len(penalties),
        penalties=penalties,
        number=number,
    )
    return [json.loads(arrays[SUMMARY].tobytes()) for arrays in found]


def load_weights(work: Workspace, part: str, n_candidates: int, number: int | None = None) -> NDArray[np.float64]:
    """Return the committed weights, (penalties, candidates, outputs) f8; zero where nothing is selected."""
    name = _name(work, part) + _suffix(number)
    solutions = [work.stored(solution_name(name, output)).read() for output in range(work.shape.n_outputs)]
    table = np.zeros((len(solutions[0]["weights"]), n_candidates, len(solutions)))
    for output, solution in enumerate(solutions):
        table[:, solution["active"], output] = solution["weights"]
    return table


def start_name(part: str, number: int | None = None) -> str:
    """Return the name under which the weights are committed from which the solves on a part start."""
    return f"solutions/{part}{_suffix(number)}-start.npz"


def _suffix(number: int | None) -> str:
    return "" if number is None else f"-penalty-{number:02d}"


def solution_name(name: str, output: int) -> str:
    """Return the name under which the solution of an output is committed."""
    return f"solutions/{name}-output-{output:04d}.npz"


def solve_output(task: SolveTask, output: int, checkpoints: TaskCheckpoints) -> Arrays:
    """Return weights and summaries of an output at every penalty, from the last checkpoint on.

    Raises StoppedError after a checkpoint; InvalidDataError where the objective leaves the range of float64.
    """
    started = time.perf_counter()
    try:
        problem = problem_of(statistics_from_arrays(task.statistics.read(mapped=True)), output, task.penalties[-1])
        start = None if task.start is None else np.ascontiguousarray(task.start.read()["weights"][:, output])
        done = SolveProgress(checkpoints, task.penalties, {"output": output, "statistics": task.name})
        first = len(done.summaries)
        progress.advance(first)
        for solution in solve_path(
            problem,
            task.penalties[first:],
            task.options,
            np.random.default_rng([task.seed, 3, output]),
            start_weights=done.weights[-1] if first else start,
            start=done.state,
            on_record=done.on_record,
            should_stop=done.is_exhausted if task.to_rounding else None,
        ):
            done.on_solution(solution)
            progress.advance()
    except InvalidProblemError as error:
        raise InvalidDataError(f"output {output}: {error}") from None
    if task.to_rounding:
        for point in done.summaries:
            point["converged"] |= point["relative_gap"] <= REACHED
    table = np.stack(done.weights)
    active = np.flatnonzero(table.any(axis=0))
    seconds = time.perf_counter() - started
    summary = json.dumps({"output": output, "points": done.summaries, "wall_seconds": seconds})
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
