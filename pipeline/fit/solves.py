"""The penalised solves: one for each output (class), at each penalty that is tried. All read the one Gram.

Penalties that are tried are solved on the fit rows, each from the weights of the last, and scored on the held-out rows;
the test part is never looked at.
"""

import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.targets import labels_from_decision
from pipeline.errors import InvalidDataError
from pipeline.fit.held_out import held_out_decisions
from pipeline.fit.statistics import FIT, HELD_OUT, name_of, statistics_of
from pipeline.fit.workspace import Workspace
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.runtime import progress, stopping
from pipeline.solvers.problem import InvalidProblemError, problem_of
from pipeline.solvers.ridge import CalibrationWeights, Weights, refit
from pipeline.solvers.solve import Record, SolverOptions, SolverState, penalty_max, search_penalties, solve, warm_state
from pipeline.work.runner import RECORDS, WHICH, note_of
from pipeline.work.store import TaskCheckpoints
from storage.arrays import Arrays, Stored, as_arrays, as_dataclass, as_json, from_json

TO_ROUNDING = 1e-15  # A tolerance of 0 asks for this relative gap; rounding ends the solve, not the gap.
SUMMARY = "summary"  # The array of this name has the summary of a solve, as JSON.
REACHED = 1e-3  # A solve to rounding has to reach this relative gap.
EXHAUSTED = 20  # Rounding holds the gap if these certified iterations have not halved it.


@dataclass(frozen=True)
class SolveTask:
    """What a worker needs to solve for any output."""

    statistics: Stored
    name: str
    penalty: float
    options: SolverOptions
    seed: int
    start: Stored | None  # has the "weights" (candidates, outputs) that the solves start from
    to_rounding: bool  # solve as far as float64 goes
    number: int | None  # number of the penalty, where several are tried


def solve_outputs(
    work: Workspace,
    part: str,
    penalty: float,
    *,
    tolerance: float | None = None,
    start: str | None = None,
    number: int | None = None,
) -> list[dict[str, Any]]:
    """Solve on the statistics of a part (all, fit) at a penalty; return the committed summaries of the outputs.

    `tolerance` replaces the configured one; `start` names the "weights" (candidates, outputs) to start from; `number`
    counts the penalties that are tried.
    """
    name = _prepare_statistics(work, part) if not number else _name(work, part)
    solver = work.config.solver
    asked = solver.tolerance if tolerance is None else tolerance
    asked = asked or REACHED if number is not None else asked  # penalties that are compared need no more
    task = SolveTask(
        statistics=work.store.stored(name_of(name)),
        name=name,
        penalty=penalty,
        options=SolverOptions(asked or TO_ROUNDING, solver.max_sweeps, solver.schedule),
        seed=work.config.seed,
        start=None if start is None else work.store.stored(start),
        to_rounding=not asked,
        number=number,
    )
    found = work.runner.compute(
        partial(solve_output, task),
        {solution_name(name + _suffix(number), output): output for output in range(work.shape.n_outputs)},
        unit="solves",
    )
    return [from_json(arrays[SUMMARY]) for arrays in found]


def load_weights(work: Workspace, part: str, n_candidates: int, number: int | None = None) -> NDArray[np.float64]:
    """Return the committed weights, (candidates, outputs) f8; zero where nothing is selected."""
    name = _name(work, part) + _suffix(number)
    solutions = [work.store.stored(solution_name(name, output)).read() for output in range(work.shape.n_outputs)]
    weights = np.zeros((n_candidates, len(solutions)))
    for output, solution in enumerate(solutions):
        weights[solution["active"], output] = solution["weights"]
    return weights


def start_name(part: str, number: int | None = None) -> str:
    """Return the name under which the weights are committed from which the solves on a part start."""
    return f"solutions/{part}{_suffix(number)}-start.npz"


def _suffix(number: int | None) -> str:
    return "" if number is None else f"-penalty-{number:02d}"


def solution_name(name: str, output: int) -> str:
    """Return the name under which the solution of an output is committed."""
    return f"solutions/{name}-output-{output:04d}.npz"


def solve_output(task: SolveTask, output: int, checkpoints: TaskCheckpoints) -> Arrays:
    """Return weights, summary and records of an output, from the last checkpoint on."""
    started = time.perf_counter()
    try:
        problem = problem_of(as_dataclass(task.statistics.read(mapped=True), GramStatistics), output, task.penalty)
        done = SolveProgress(checkpoints, task.penalty, {"output": output, "statistics": task.name}, task.number)
        start = done.state
        if start is None and task.start is not None:
            start = warm_state(np.ascontiguousarray(task.start.read()["weights"][:, output]))
        solution = solve(
            problem,
            task.options,
            np.random.default_rng([task.seed, 3, output]),
            start=start,
            on_record=done.on_record,
            should_stop=done.is_exhausted if task.to_rounding else None,
        )
        progress.advance()
    except InvalidProblemError as error:
        raise InvalidDataError(f"output {output}: {error}") from None
    gap, active = solution.certificate.relative_gap, np.flatnonzero(solution.weights)
    summary = {
        "output": output,
        "penalty": task.penalty,
        "objective": solution.objective,
        "relative_gap": gap,
        "converged": solution.converged or (task.to_rounding and gap <= REACHED),
        "status": solution.status.value,
        "n_active": solution.n_active,
        "sweeps": solution.state.iterations,
        **solution.state.totals,
        "evaluations": solution.state.evaluations,
        "wall_seconds": time.perf_counter() - started,
    }
    return {
        "active": active,
        "weights": solution.weights[active],
        "penalty": np.array(task.penalty),
        SUMMARY: as_json(summary),
        RECORDS: as_json([done.facts | asdict(record) for record in solution.state.records]),
    }


def _name(work: Workspace, part: str) -> str:
    return f"{part}-centred" if work.intercept else part


def _prepare_statistics(work: Workspace, part: str) -> str:
    with work.events.status("checking the statistics"):
        statistics, name = statistics_of(work, name_of(part)), _name(work, part)
        if name != part:
            work.store.once(name_of(name), lambda: as_arrays(statistics.centred()), mapped=True)
    return name


class SolveProgress:
    """Takes a solve up from its last checkpoint, makes others, and hands on the records of its iterations.

    state : of the solve, None at its begin; a checkpoint at another penalty is left alone
    facts, number : written with every record; the number of the penalty, of a solve at one of several
    """

    def __init__(
        self, checkpoints: TaskCheckpoints, penalty: float, facts: dict[str, Any], number: int | None = None
    ) -> None:
        self._checkpoints, self._penalty = checkpoints, penalty
        self.facts = {**facts, "penalty": penalty, WHICH: "" if number is None else str(number + 1)}
        self.state: SolverState | None = None
        checkpoint = checkpoints.load()
        if checkpoint is not None and checkpoint.facts["penalty"] == penalty:
            self.state = SolverState.from_arrays(checkpoint.arrays, checkpoint.facts["state"])

    def on_record(self, record: Record, state: SolverState) -> None:
        """Hand on a record; save the state where a checkpoint is due. Raises StoppedError, after saving, on request."""
        self.state, facts = state, self.facts | asdict(record)
        self._checkpoints.add_record(facts)
        progress.advance(0.0, note_of(facts))
        if self._checkpoints.is_due():
            arrays, scalars = state.to_arrays()
            self._checkpoints.save(arrays, {"penalty": self._penalty, "state": scalars})
            stopping.check()  # what is asked for after this look is seen at the next record: nothing ends unsaved

    def is_exhausted(self) -> bool:
        """Return whether the gap of the solve under way has stopped falling: rounding holds it (see `EXHAUSTED`)."""
        assert self.state is not None
        gaps = [one.relative_gap for one in self.state.records if one.relative_gap is not None]
        least, least_at = np.inf, 0
        for number, gap in enumerate(gaps, 1):
            if gap < 0.5 * least:
                least, least_at = gap, number
        return least <= REACHED and len(gaps) - least_at >= EXHAUSTED


def search_penalty(work: Workspace) -> tuple[float, NDArray[np.float64], list[dict[str, Any]]]:
    """Return the penalty of the lowest held-out error, the weights (M, T) of the fit rows there, and the path's points.

    Errors are of refitted weights where a refit is asked for: the share of errors of classes, the mean squared error of
    a regression.
    """
    points, tables = list[dict[str, Any]](), list[NDArray[np.float64]]()

    def attempt(number: int, penalty: float) -> tuple[float, bool]:
        start = start_name(FIT, number) if number else None
        if start is not None:
            work.store.put(start, {"weights": tables[-1]})
        solves = solve_outputs(work, FIT, penalty, start=start, number=number)
        tables.append(load_weights(work, FIT, work.n_candidates, number))
        point = {
            "penalty": penalty,
            "objective": sum(solved["objective"] for solved in solves),
            "n_active": [solved["n_active"] for solved in solves],
            "n_centers": int(np.count_nonzero(tables[-1].any(axis=1))),
            "relative_gap": max(solved["relative_gap"] for solved in solves),
            "hold_out_error": _held_out_error(work, tables[-1], number),
            "wall_seconds": sum(solved["wall_seconds"] for solved in solves),
            "converged": all(solved["converged"] for solved in solves),
        }
        points.append(point)
        return point["hold_out_error"], point["converged"]

    best, warning = search_penalties(largest_penalty_of(work, FIT), attempt)
    if warning is not None:
        work.events.warn(f"`solver.penalty=auto`: {warning}")
    return points[best]["penalty"], tables[best], points


def largest_penalty_of(work: Workspace, part: str) -> float:
    """Return the penalty at which all weights on the statistics of a part are zero; 1 where they are at any."""
    statistics = statistics_of(work, name_of(part))
    return penalty_max(statistics.centred_targets()[0] if work.intercept else statistics.kty) or 1.0


def _held_out_error(work: Workspace, table: NDArray[np.float64], number: int) -> float:
    """Return the held-out error of penalised weights (columns, outputs); `number` names the pass."""
    fit, held_out = (statistics_of(work, name_of(part)) for part in (FIT, HELD_OUT))
    final = Weights.of_support(table, fit, intercept=work.intercept)
    support = final.columns
    of_fit, of_held_out = fit.cut(support), held_out.cut(support)
    if work.config.solver.refit == "ridge" and len(support):
        final = refit(of_fit, of_held_out, of_fit, intercept=work.intercept).weights.named(support)
    if work.shape.task == "regression":
        return float(of_held_out.squared_error(final.weights, final.intercept).sum() / held_out.weight_sum)
    name = f"path-{number}"

    def make() -> Arrays:
        tried, words = CalibrationWeights(final.named(work.candidates)), "errors of the penalty"
        decision, truth, counts, _ = held_out_decisions(work, work.row_task, tried, name, words)
        return {"error": np.average(labels_from_decision(decision, work.shape.task) != truth, weights=counts)}

    error = float(work.store.once(f"solutions/{name}-error.npz", make)["error"])
    work.store.drop(f"passes/{name}")
    return error
