"""The solves: one for each output (class), or one for all outputs that share a kernel, each a task of its own.

All of them map the one Gram file read-only. A solve may go through several penalties, each started from the last.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InvalidDataError
from pipeline.solvers import InvalidProblemError, Problem, Record, SolverOptions, SolverState, check_gram
from pipeline.solvers.path import solve_path
from pipeline.stages import statistics
from pipeline.stages.run import Run
from pipeline.statistics import GramStatistics
from storage.commit import make_folder, read_arrays, write_arrays
from storage.errors import CorruptDataError
from storage.layout import RunLayout
from storage.manifest import MANIFEST_NAME, verify
from storage.markers import read_markers, write_marker

STAGE = "solve"
LARGEST_CHECKED = 4000  # candidates; larger Grams are made by the same code, and the certificate judges the result
Outputs = tuple[int, ...]


@dataclass(frozen=True)
class SolveTask:
    """What a worker needs to solve for any group of outputs: which statistics, which penalties, how."""

    layout: RunLayout
    statistics: str
    penalties: tuple[float, ...]
    options: SolverOptions
    seed: int

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
    run: Run, part: str, penalties: Sequence[float], *, tolerance: float | None = None
) -> list[dict[str, Any]]:
    """Solve on the statistics of a part (all, fit) at each penalty; return the committed summaries of the groups.

    `tolerance` replaces the configured one. Raises InvalidDataError for statistics that no solver may start from,
    CorruptDataError for damaged ones.
    """
    name = _prepared(run, part)
    asked = options(run) if tolerance is None else replace(options(run), tolerance=tolerance)
    task = SolveTask(run.layout, name, tuple(penalties), asked, run.config.seed)
    done = read_markers(task.markers)
    waiting = [group for group in groups(run) if item_name(group) not in done]
    run.costs[STAGE].items += len(groups(run)) - len(waiting)
    make_folder(run.layout.solutions)
    records = [run.layout.solution_records(f"{name}-{item_name(group)}") for group in waiting]
    run.run_items(
        STAGE,
        partial(solve_group, task),
        waiting,
        note=partial(_progress_note, records),
        on_value=lambda group, _: _keep_records(run, f"{name}-{item_name(group)}"),
    )
    done = read_markers(task.markers)
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


def solve_group(task: SolveTask, group: Outputs) -> None:
    """Solve for a group of outputs at every penalty of the task, and commit weights and summaries.

    Every iteration record is appended to the item's records file as it comes, for whoever watches. Raises
    InvalidDataError naming output and penalty where the objective leaves the range of float64.
    """
    name = f"{task.statistics}-{item_name(group)}"
    problem = _problem(task, group)
    generator = np.random.default_rng([task.seed, 3, *group])
    started = time.perf_counter()
    with task.layout.solution_records(name).open("w", encoding="utf-8") as records:

        def on_record(penalty: float, record: Record, _: SolverState) -> None:
            facts = {"outputs": list(group), "statistics": task.statistics, "penalty": penalty}
            records.write(json.dumps(facts | asdict(record)) + "\n")
            records.flush()

        try:
            solutions = solve_path(
                problem,
                task.penalties,
                task.options,
                generator,
                start_weights=_start_weights(task, group),
                on_record=on_record,
            )
        except InvalidProblemError as error:
            raise InvalidDataError(f"output {group[0]}: {error}") from None
    table = np.stack([solution.weights for solution in solutions])
    active = np.flatnonzero(table.any(axis=(0, 2)))
    arrays = {"active": active, "weights": table[:, active], "penalties": np.array(task.penalties)}
    write_arrays(task.layout.solution(f"{name}.npz"), arrays)
    summaries = [
        {
            "penalty": penalty,
            "objective": solution.objective,
            "relative_gap": solution.certificate.relative_gap,
            "converged": solution.converged,
            "status": solution.status.value,
            "n_active": solution.n_active,
            "sweeps": solution.sweeps,
            "visits": solution.visits,
            "moves": solution.moves,
            "evaluations": solution.evaluations,
            "wall_seconds": solution.records[-1].seconds if solution.records else 0.0,
        }
        for penalty, solution in zip(task.penalties, solutions, strict=True)
    ]
    payload = {"outputs": list(group), "points": summaries, "wall_seconds": time.perf_counter() - started}
    write_marker(task.markers, item_name(group), payload)


def _name(run: Run, part: str) -> str:
    return f"{part}-centred" if run.config.solver.intercept else part


def _prepared(run: Run, part: str) -> str:
    """Check the statistics of a part, centre them where an intercept is fitted, and return their name."""
    folder = run.layout.statistics_file(part)
    problems = verify(folder, contents=True)
    if problems:
        raise CorruptDataError(f"statistics {folder}: {problems[0]}; start a new run", file=str(folder))
    name = _name(run, part)
    if name != part and not (run.layout.statistics_file(name) / MANIFEST_NAME).exists():
        centred = statistics.load(run.layout, part).centred()
        write_arrays(run.layout.statistics_file(name), statistics.to_arrays(centred))
    gram = statistics.load(run.layout, name).gram
    if len(gram) > LARGEST_CHECKED:  # a factorisation as large as the Gram would take its memory again
        return name
    try:
        check_gram(gram)
    except InvalidProblemError as error:
        raise InvalidDataError(str(error)) from None
    return name


def _problem(task: SolveTask, group: Outputs) -> Problem:
    found: GramStatistics = statistics.load(task.layout, task.statistics)
    kty = np.ascontiguousarray(found.kty[:, list(group)])
    problem = Problem(found.gram, kty, float(found.yty[list(group)].sum()), task.penalties[-1])
    try:
        return problem.validate(gram_checked=True)
    except InvalidProblemError as error:
        raise InvalidDataError(f"output {group[0]}: {error}") from None


def _start_weights(task: SolveTask, group: Outputs) -> NDArray[np.float64] | None:
    path = task.layout.solution(start_name(task.statistics.removesuffix("-centred")))
    return np.ascontiguousarray(read_arrays(path)["weights"][:, list(group)]) if path.exists() else None


def _read_solution(layout: RunLayout, name: str, group: Outputs) -> dict[str, NDArray[Any]]:
    return read_arrays(layout.solution(f"{name}-{item_name(group)}.npz"))


def _keep_records(run: Run, name: str) -> None:
    """Move the iteration records of a finished solve into metrics.jsonl."""
    path = run.layout.solution_records(name)
    for line in path.read_text(encoding="utf-8").splitlines():
        run.events.metric(stage=STAGE, **json.loads(line))
    path.unlink()


def _progress_note(paths: list[Path]) -> str:
    """Return objective and gap of the solve whose records grew last.

    The driver removes the records of a finished solve while another thread may ask: a file may be gone at any step.
    """
    found = [(written, path) for path in paths if (written := _last_written(path)) is not None]
    for _, path in sorted(found, reverse=True):
        record = _last_record(path)
        if record is not None:
            gap = "unknown" if record["relative_gap"] is None else f"{record['relative_gap']:.1e}"
            outputs = ",".join(map(str, record["outputs"]))
            return f"output {outputs}: objective {record['objective']:.6g} gap {gap}"
    return ""


def _last_written(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _last_record(path: Path) -> dict[str, Any] | None:
    """Return the last record of a file, or None where it is gone, empty or only half written."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return dict(json.loads(lines[-1])) if lines else None
    except (OSError, ValueError):
        return None
