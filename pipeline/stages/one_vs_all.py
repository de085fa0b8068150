"""The solves: one for each output (class), or one for all outputs that share a kernel, each a task of its own.

All of them map the one Gram file read-only. A solve may go through several penalties, each started from the last.
What is done of a solve is in `solve_checkpoints`.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config.train_config import SolverConfig
from pipeline.errors import InvalidDataError
from pipeline.runtime import progress
from pipeline.solvers import InvalidProblemError, Problem, SolverOptions, check_gram
from pipeline.solvers.output_groups import Outputs, columns_of, output_groups, problem_of, visits_of
from pipeline.solvers.regularization_path import solve_path
from pipeline.stages.accumulate_statistics import load_statistics, statistics_to_arrays
from pipeline.stages.run_state import SOLVE, Run
from pipeline.stages.solve_checkpoints import SolveProgress, latest_note
from storage.arrays import read_arrays, write_arrays
from storage.errors import ANEW
from storage.files import make_folder
from storage.folder_layouts import RunLayout
from storage.folders import check_folder, remove_folder, verify
from storage.records import write_marker

LARGEST_CHECKED = 4000  # candidates; larger Grams are made by the same code, and the certificate judges the result


@dataclass(frozen=True)
class SolveTask:
    """What a worker needs to solve for any group of outputs: which statistics, which penalties, how.

    name: what the solves commit is named after it; it begins with that of the statistics. warm_start: the solves start
    from committed weights, see `start_weights_name`.
    """

    layout: RunLayout
    statistics: str
    name: str
    penalties: tuple[float, ...]
    options: SolverOptions
    seed: int
    checkpoint_every: float
    checkpoints_kept: int
    warm_start: bool

    @property
    def markers(self) -> Path:
        """The folder of the done-markers; solves on other rows have their own."""
        return self.layout.markers(f"{SOLVE}-{self.name}")

    def solution_name(self, group: Outputs) -> str:
        """Return what the solution, the records and the checkpoints of a solve are named."""
        return f"{self.name}-{group_name(group)}"


def groups_of(run: Run) -> list[Outputs]:
    """Return the outputs of each solve of a run."""
    return output_groups(run.shape.n_outputs, shared=run.config.solver.coupling == "shared")


def solver_options(solver: SolverConfig) -> SolverOptions:
    """Return the solver's options that the configuration asks for."""
    return SolverOptions(
        tolerance=solver.tolerance,
        max_sweeps=solver.max_sweeps,
        schedule=solver.schedule,
        step=solver.step,
        stop=solver.stop,
    )


def solve_groups(
    run: Run,
    part: str,
    penalties: Sequence[float],
    *,
    tolerance: float | None = None,
    warm_start: bool = False,
    number: int | None = None,
) -> list[dict[str, Any]]:
    """Solve on the statistics of a part (all, fit) at each penalty; return the committed summaries of the groups.

    `tolerance` replaces the configured one; `warm_start` starts from the weights committed under `start_weights_name`;
    `number` counts calls for the same part at one more penalty. Raises InvalidDataError for statistics that no solver
    may start from, CorruptDataError for damaged ones, and where the weights to start from are damaged or missing.
    """
    statistics_name = _prepare_statistics(run, part) if not number else _name(run, part)
    name = statistics_name + _suffix(number)
    asked = solver_options(run.config.solver)
    asked = asked if tolerance is None else replace(asked, tolerance=tolerance)
    resources = run.config.resources
    task = SolveTask(
        layout=run.layout,
        statistics=statistics_name,
        name=name,
        penalties=tuple(penalties),
        options=asked,
        seed=run.config.seed,
        checkpoint_every=resources.checkpoint_every,
        checkpoints_kept=resources.keep,
        warm_start=warm_start,
    )
    done = run.done(task.markers)
    waiting = [group for group in groups_of(run) if group_name(group) not in done]
    run.costs[SOLVE].items += len(groups_of(run)) - len(waiting)
    make_folder(run.layout.solutions)
    records = [run.layout.solution_records(task.solution_name(group)) for group in waiting]
    run.run_items(
        SOLVE,
        partial(solve_group, task),
        waiting,
        unit="solves" if len(penalties) == 1 else "penalties",
        size=lambda group: len(penalties),
        note=partial(latest_note, records, penalties=penalties, number=number),
        on_value=lambda group, warnings: _close_records(run, task.solution_name(group), warnings),
    )
    done = run.done(task.markers)
    return [done[group_name(group)] for group in groups_of(run)]


def load_weights(run: Run, part: str, n_candidates: int, number: int | None = None) -> NDArray[np.float64]:
    """Return the committed weights, (penalties, candidates, outputs) f8; zero where nothing is selected."""
    name = _name(run, part) + _suffix(number)
    solutions = {group: _read_solution(run.layout, name, group) for group in groups_of(run)}
    n_penalties = len(next(iter(solutions.values()))["weights"])
    table = np.zeros((n_penalties, n_candidates, run.shape.n_outputs))
    for group, solution in solutions.items():
        for column, output in enumerate(group):
            table[:, solution["active"], output] = solution["weights"][:, :, column]
    return table


def start_weights_name(part: str, number: int | None = None) -> str:
    """Return the name of the file of weights (candidates, outputs) from which the solves on a part start."""
    return f"{part}{_suffix(number)}-start.npz"


def _suffix(number: int | None) -> str:
    return "" if number is None else f"-penalty-{number:02d}"


def group_name(group: Outputs) -> str:
    """Return the name of the solution and of the marker of a group of outputs."""
    return f"output-{group[0]:04d}" if len(group) == 1 else "all-outputs"


def solve_group(task: SolveTask, group: Outputs) -> tuple[str, ...]:
    """Solve for a group of outputs at every penalty of the task, and commit weights and summaries; return warnings.

    Every iteration record is appended to the item's records file as it comes, for whoever watches. From time to time,
    and before it stops on request (StoppedError), the solve is checkpointed; a later call goes on from there, to the
    same bytes. Raises InvalidDataError naming output and penalty where the objective leaves the range of float64.
    """
    name = task.solution_name(group)
    problem = _problem(task, group)
    started = time.perf_counter()
    with _open_progress(task, group) as done:
        first = len(done.summaries)
        progress.advance(first)
        try:
            for solution in solve_path(
                problem,
                task.penalties[first:],
                task.options,
                visits_of(task.seed, group),
                start_weights=done.weights[-1] if first else _start_weights(task, group),
                start=done.state,
                on_record=done.on_record,
            ):
                done.on_solution(solution)
                progress.advance()
        except InvalidProblemError as error:
            raise InvalidDataError(f"output {group[0]}: {error}") from None
    table = np.stack(done.weights)
    active = np.flatnonzero(table.any(axis=(0, 2)))
    arrays = {"active": active, "weights": table[:, active], "penalties": np.array(task.penalties)}
    write_arrays(task.layout.solution(f"{name}.npz"), arrays)
    seconds = time.perf_counter() - started
    payload = {"outputs": list(group), "points": done.summaries, "wall_seconds": seconds}
    write_marker(task.markers, group_name(group), payload)
    remove_folder(task.layout.checkpoints(name))
    return done.warnings


def _open_progress(task: SolveTask, group: Outputs) -> SolveProgress:
    name = task.solution_name(group)
    return SolveProgress(
        task.layout.solution_records(name),
        task.layout.checkpoints(name),
        task.penalties,
        every=task.checkpoint_every,
        keep=task.checkpoints_kept,
        facts={"outputs": list(group), "statistics": task.statistics},
    )


def _name(run: Run, part: str) -> str:
    return f"{part}-centred" if run.config.solver.intercept else part


def _prepare_statistics(run: Run, part: str) -> str:
    """Check the statistics of a part, centre them where an intercept is fitted, and return their name."""
    with run.doing(SOLVE, "checking the statistics"):
        check_folder(run.layout.statistics_file(part), remedy=ANEW)
        name = _name(run, part)
        if name != part:
            _centre(run, part, name)
        gram = load_statistics(run.layout, name).gram
        if len(gram) > LARGEST_CHECKED:  # a factorisation as large as the Gram would take its memory again
            return name
        try:
            check_gram(gram)
        except InvalidProblemError as error:
            raise InvalidDataError(str(error)) from None
        return name


def _centre(run: Run, part: str, name: str) -> None:
    """Commit the centred statistics of a part, unless they are there and whole: the solvers map them unchecked."""
    folder = run.layout.statistics_file(name)
    if folder.exists():
        problems = verify(folder, contents=True)
        if not problems:
            return
        run.events.warn(f"{folder}: damaged ({problems[0].partition(';')[0]}); it is made again")
        remove_folder(folder)
    write_arrays(folder, statistics_to_arrays(load_statistics(run.layout, part).centred()))


def _problem(task: SolveTask, group: Outputs) -> Problem:
    try:
        return problem_of(load_statistics(task.layout, task.statistics), group, task.penalties[-1])
    except InvalidProblemError as error:
        raise InvalidDataError(f"output {group[0]}: {error}") from None


def _start_weights(task: SolveTask, group: Outputs) -> NDArray[np.float64] | None:
    """Return the weights to start from, (candidates, outputs); from others the solve would end with other bytes."""
    if not task.warm_start:
        return None
    path = task.layout.solution(start_weights_name(task.name.replace("-centred", "")))
    return columns_of(read_arrays(path, remedy=ANEW)["weights"], group)


def _read_solution(layout: RunLayout, name: str, group: Outputs) -> dict[str, NDArray[Any]]:
    return read_arrays(layout.solution(f"{name}-{group_name(group)}.npz"), remedy=ANEW)


def _close_records(run: Run, name: str, warnings: tuple[str, ...]) -> None:
    """Move the iteration records of a finished solve into metrics.jsonl, and tell what it warned of."""
    for warning in warnings:
        run.events.warn(warning)
    path = run.layout.solution_records(name)
    for line in path.read_text(encoding="utf-8").splitlines():
        run.events.metric(stage=SOLVE, **json.loads(line))
    path.unlink()
