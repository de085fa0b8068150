"""The solves: one for each output (class), or one for all outputs that share a kernel, each a task of its own.

All of them map the one Gram file read-only. A solve may go through several penalties, each started from the last.
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

from pipeline.errors import InvalidDataError
from pipeline.solvers import InvalidProblemError, Problem, SolverOptions, check_gram
from pipeline.solvers.path import solve_path
from pipeline.stages import statistics
from pipeline.stages.run import Run
from pipeline.stages.solve_progress import SolveProgress, latest_note
from pipeline.statistics import GramStatistics
from storage import checkpoints
from storage.commit import check_folder, make_folder, read_arrays, remove_folder, write_arrays
from storage.layout import RunLayout
from storage.manifest import verify
from storage.markers import write_marker
from storage.remedies import ANEW

STAGE = "solve"
LARGEST_CHECKED = 4000  # candidates; larger Grams are made by the same code, and the certificate judges the result
Outputs = tuple[int, ...]


@dataclass(frozen=True)
class SolveTask:
    """What a worker needs to solve for any group of outputs: which statistics, which penalties, how.

    warm_start: the solves start from committed weights, see `start_name`.
    """

    layout: RunLayout
    statistics: str
    penalties: tuple[float, ...]
    options: SolverOptions
    seed: int
    checkpoint_every: float
    checkpoints_kept: int
    warm_start: bool

    @property
    def markers(self) -> Path:
        """The folder of the done-markers; solves on other rows have their own."""
        return self.layout.markers(f"{STAGE}-{self.statistics}")


def groups(run: Run) -> list[Outputs]:
    """Return the outputs of each solve: one each, or all together with one kernel for all classes."""
    outputs = range(run.shape.n_outputs)
    return [tuple(outputs)] if run.config.solver.coupling == "shared" else [(output,) for output in outputs]


def options(run: Run) -> SolverOptions:
    """Return the solver's options that the configuration asks for."""
    solver = run.config.solver
    return SolverOptions(
        tolerance=solver.tolerance,
        max_sweeps=solver.max_sweeps,
        schedule=solver.schedule,
        step=solver.step,
        stop=solver.stop,
    )


def solve_all(
    run: Run, part: str, penalties: Sequence[float], *, tolerance: float | None = None, warm_start: bool = False
) -> list[dict[str, Any]]:
    """Solve on the statistics of a part (all, fit) at each penalty; return the committed summaries of the groups.

    `tolerance` replaces the configured one; `warm_start` starts from the weights committed under `start_name`. Raises
    InvalidDataError for statistics that no solver may start from, CorruptDataError for damaged ones, and where the
    weights to start from are damaged or missing.
    """
    name = _prepared(run, part)
    asked = options(run) if tolerance is None else replace(options(run), tolerance=tolerance)
    resources = run.config.resources
    every, keep = resources.checkpoint_every, resources.keep
    task = SolveTask(run.layout, name, tuple(penalties), asked, run.config.seed, every, keep, warm_start)
    done = run.done(task.markers)
    waiting = [group for group in groups(run) if item_name(group) not in done]
    run.costs[STAGE].items += len(groups(run)) - len(waiting)
    make_folder(run.layout.solutions)
    records = [run.layout.solution_records(f"{name}-{item_name(group)}") for group in waiting]
    run.run_items(
        STAGE,
        partial(solve_group, task),
        waiting,
        note=partial(latest_note, records),
        on_value=lambda group, warnings: _solved(run, f"{name}-{item_name(group)}", warnings),
    )
    done = run.done(task.markers)
    return [done[item_name(group)] for group in groups(run)]


def weights(run: Run, part: str, n_candidates: int) -> NDArray[np.float64]:
    """Return the committed weights, (penalties, candidates, outputs) f8; zero where nothing is selected."""
    name = _name(run, part)
    found = {group: _read_solution(run.layout, name, group) for group in groups(run)}
    n_penalties = len(next(iter(found.values()))["weights"])
    table = np.zeros((n_penalties, n_candidates, run.shape.n_outputs))
    for group, solution in found.items():
        for column, output in enumerate(group):
            table[:, solution["active"], output] = solution["weights"][:, :, column]
    return table


def start_name(part: str) -> str:
    """Return the name of the file of weights (candidates, outputs) from which the solves on a part start."""
    return f"{part}-start.npz"


def item_name(group: Outputs) -> str:
    """Return the name of the solution and of the marker of a group of outputs."""
    return f"output-{group[0]:04d}" if len(group) == 1 else "all-outputs"


def solve_group(task: SolveTask, group: Outputs) -> tuple[str, ...]:
    """Solve for a group of outputs at every penalty of the task, and commit weights and summaries; return warnings.

    Every iteration record is appended to the item's records file as it comes, for whoever watches. From time to time,
    and before it stops on request (StoppedError), the solve is checkpointed; a later call goes on from there, to the
    same bytes. Raises InvalidDataError naming output and penalty where the objective leaves the range of float64.
    """
    name = f"{task.statistics}-{item_name(group)}"
    problem = _problem(task, group)
    started = time.perf_counter()
    with _progress(task, group) as progress:
        first = len(progress.summaries)
        try:
            for solution in solve_path(
                problem,
                task.penalties[first:],
                task.options,
                np.random.default_rng([task.seed, 3, *group]),
                start_weights=progress.weights[-1] if first else _start_weights(task, group),
                start=progress.state,
                on_record=progress.on_record,
            ):
                progress.on_solution(solution)
        except InvalidProblemError as error:
            raise InvalidDataError(f"output {group[0]}: {error}") from None
    table = np.stack(progress.weights)
    active = np.flatnonzero(table.any(axis=(0, 2)))
    arrays = {"active": active, "weights": table[:, active], "penalties": np.array(task.penalties)}
    write_arrays(task.layout.solution(f"{name}.npz"), arrays)
    seconds = time.perf_counter() - started
    payload = {"outputs": list(group), "points": progress.summaries, "wall_seconds": seconds}
    write_marker(task.markers, item_name(group), payload)
    checkpoints.remove(task.layout.checkpoints(name))
    return progress.warnings


def _progress(task: SolveTask, group: Outputs) -> SolveProgress:
    name = f"{task.statistics}-{item_name(group)}"
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


def _prepared(run: Run, part: str) -> str:
    """Check the statistics of a part, centre them where an intercept is fitted, and return their name."""
    check_folder(run.layout.statistics_file(part), remedy=ANEW)
    name = _name(run, part)
    if name != part:
        _centre(run, part, name)
    gram = statistics.load(run.layout, name).gram
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
    write_arrays(folder, statistics.to_arrays(statistics.load(run.layout, part).centred()))


def _problem(task: SolveTask, group: Outputs) -> Problem:
    found: GramStatistics = statistics.load(task.layout, task.statistics)
    kty = np.ascontiguousarray(found.kty[:, list(group)])
    problem = Problem(found.gram, kty, float(found.yty[list(group)].sum()), task.penalties[-1])
    try:
        return problem.validate(gram_checked=True)
    except InvalidProblemError as error:
        raise InvalidDataError(f"output {group[0]}: {error}") from None


def _start_weights(task: SolveTask, group: Outputs) -> NDArray[np.float64] | None:
    """Return the weights to start from, (candidates, outputs); from others the solve would end with other bytes."""
    if not task.warm_start:
        return None
    path = task.layout.solution(start_name(task.statistics.removesuffix("-centred")))
    return np.ascontiguousarray(read_arrays(path, remedy=ANEW)["weights"][:, list(group)])


def _read_solution(layout: RunLayout, name: str, group: Outputs) -> dict[str, NDArray[Any]]:
    return read_arrays(layout.solution(f"{name}-{item_name(group)}.npz"), remedy=ANEW)


def _solved(run: Run, name: str, warnings: tuple[str, ...]) -> None:
    """Move the iteration records of a finished solve into metrics.jsonl, and tell what it warned of."""
    for warning in warnings:
        run.events.warn(warning)
    path = run.layout.solution_records(name)
    for line in path.read_text(encoding="utf-8").splitlines():
        run.events.metric(stage=STAGE, **json.loads(line))
    path.unlink()
