"""Stage 4: one solve for each output (class), all on the one Gram file that the tasks map read-only."""

import json
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InvalidDataError
from pipeline.solvers import (
    InvalidProblemError,
    Problem,
    Record,
    SolverOptions,
    SolverState,
    check_gram,
    solve,
)
from pipeline.stages import statistics
from pipeline.stages.run import Run
from storage.commit import make_folder, read_arrays, write_arrays
from storage.errors import CorruptDataError
from storage.layout import RunLayout
from storage.manifest import verify
from storage.markers import read_markers, write_marker

STAGE = "solve"


@dataclass(frozen=True)
class SolveTask:
    """What a worker needs to solve for any output."""

    layout: RunLayout
    penalty: float
    options: SolverOptions
    seed: int


def run(run: Run) -> None:
    """Solve for every output and commit the solutions.

    Raises InvalidDataError for statistics that no solver may start from, CorruptDataError for damaged ones.
    """
    with run.stage(STAGE) as cost:
        done = read_markers(run.layout.markers(STAGE))
        outputs = range(run.shape.n_outputs)
        waiting = [output for output in outputs if item_name(output) not in done]
        cost.items += len(outputs) - len(waiting)
        if not waiting:
            return
        _check(run.layout)
        solver = run.config.solver
        options = SolverOptions(
            tolerance=solver.tolerance, max_sweeps=solver.max_sweeps, schedule=solver.schedule, step=solver.step
        )
        task = SolveTask(run.layout, solver.penalty, options, run.config.seed)
        make_folder(run.layout.solutions)
        for output in waiting:
            run.layout.solution_records(item_name(output)).unlink(missing_ok=True)
        run.run_items(
            STAGE,
            partial(solve_output, task),
            waiting,
            note=partial(_progress_note, [run.layout.solution_records(item_name(output)) for output in waiting]),
            on_value=lambda output, value: _keep_records(run, output),
        )


def item_name(output: int) -> str:
    """Return the name of the solution and of the marker of an output."""
    return f"output-{output:04d}"


def solve_output(task: SolveTask, output: int) -> bool:
    """Solve for one output, commit weights and summary, and return whether the tolerance was reached.

    Every iteration record is appended to the item's records file as it comes, for whoever watches.
    """
    started = time.perf_counter()
    problem = _problem(task, output)
    generator = np.random.default_rng([task.seed, 3, output])
    with task.layout.solution_records(item_name(output)).open("w", encoding="utf-8") as records:

        def on_record(record: Record, _: SolverState) -> None:
            records.write(json.dumps({"output": output, **asdict(record)}) + "\n")
            records.flush()

        solution = solve(problem, task.options, generator, on_record=on_record)
    active = np.flatnonzero(solution.weights.any(axis=1))
    arrays = {"active": active, "weights": solution.weights[active]}
    write_arrays(task.layout.solution(item_name(output) + ".npz"), arrays)
    summary = {
        "objective": solution.objective,
        "relative_gap": solution.certificate.relative_gap,
        "converged": solution.converged,
        "status": solution.status.value,
        "n_active": len(active),
        "sweeps": solution.sweeps,
        "visits": solution.visits,
        "moves": solution.moves,
        "evaluations": solution.evaluations,
        "wall_seconds": time.perf_counter() - started,
    }
    write_marker(task.layout.markers(STAGE), item_name(output), summary)
    return solution.converged


def summaries(layout: RunLayout, n_outputs: int) -> list[dict[str, Any]]:
    """Return the committed summary of every output, in order."""
    done = read_markers(layout.markers(STAGE))
    return [done[item_name(output)] for output in range(n_outputs)]


def weights(layout: RunLayout, n_candidates: int, n_outputs: int) -> np.ndarray:
    """Return the weights of all outputs over all candidates, (n_candidates, n_outputs) f8."""
    table = np.zeros((n_candidates, n_outputs))
    for output in range(n_outputs):
        solution = read_arrays(layout.solution(item_name(output) + ".npz"))
        table[solution["active"], output] = solution["weights"][:, 0]
    return table


def _check(layout: RunLayout) -> None:
    problems = verify(layout.statistics_file("all"), contents=True)
    if problems:
        raise CorruptDataError(f"statistics {layout.statistics_file('all')}: {problems[0]}; start a new run")
    try:
        check_gram(statistics.load(layout, "all").gram)
    except InvalidProblemError as error:
        raise InvalidDataError(str(error)) from None


def _problem(task: SolveTask, output: int) -> Problem:
    found = statistics.load(task.layout, "all")
    problem = Problem(found.gram, found.kty[:, [output]], float(found.yty[output]), task.penalty)
    try:
        return problem.validate(gram_checked=True)
    except InvalidProblemError as error:
        raise InvalidDataError(f"output {output}: {error}") from None


def _keep_records(run: Run, output: int) -> None:
    """Move an output's iteration records into metrics.jsonl."""
    path = run.layout.solution_records(item_name(output))
    for line in path.read_text(encoding="utf-8").splitlines():
        run.events.metric(stage=STAGE, **json.loads(line))
    path.unlink()


def _progress_note(paths: list[Path]) -> str:
    """Return objective and gap of the output whose records grew last."""
    alive = [path for path in paths if path.exists()]
    for path in sorted(alive, key=lambda p: p.stat().st_mtime, reverse=True):
        lines = path.read_text(encoding="utf-8").splitlines()
        if lines and lines[-1].endswith("}"):
            record = json.loads(lines[-1])
            gap = "unknown" if record["relative_gap"] is None else f"{record['relative_gap']:.1e}"
            return f"output {record['output']}: objective {record['objective']:.6g} gap {gap}"
    return ""
