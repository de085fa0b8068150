"""The penalised solves: one for each output (class), at one penalty or along a path. All read the one Gram.

A path is solved on the fit rows, each penalty from the weights of the last, and scored on the held-out rows; the test
part is never looked at.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.targets import labels_from_decision
from pipeline.config.parsers import is_searched, penalty_path
from pipeline.config.train_config import SolverConfig
from pipeline.errors import InvalidDataError
from pipeline.kernels.exact_sums import ForEach
from pipeline.runtime import progress, stopping
from pipeline.runtime.row_pass import AddPiece, BlockValues
from pipeline.runtime.stored_arrays import Arrays, Stored
from pipeline.solvers.problem import InvalidProblemError, check_gram, problem_of
from pipeline.solvers.regularization_path import largest_penalty, search, spaced
from pipeline.solvers.ridge import finalise_path
from pipeline.solvers.solve import Solution, solve
from pipeline.solvers.state import Record, SolverOptions, SolverState, warm_state
from pipeline.stages.accumulate_statistics import (
    FIT,
    HELD_OUT,
    name_of,
    statistics_from_arrays,
    statistics_of,
    statistics_to_arrays,
)
from pipeline.stages.training_rows import RowBlock, RowTask, RunSize, block_pass, block_pass_bytes, row_grid
from pipeline.stages.workspace import SOLVE, WHICH, TaskCheckpoints, Workspace

LARGEST_CHECKED = 4000  # candidates; larger Grams are made by the same code, and the certificate judges the result
TO_ROUNDING = 1e-15  # relative gap asked for where the tolerance is 0; rounding ends the solve, not the gap
SUMMARY = "summary"  # the array with the summary of a solve, as JSON
REACHED = 1e-3  # relative gap that a solve to rounding has to reach
EXHAUSTED = 20  # iterations without half the gap, after which rounding holds it
# Share of a draw, which is half of the working set; beyond it, more of all candidates would have a weight than fit.
MOST_OF_DRAW = 0.75


@dataclass(frozen=True)
class SolveTask:
    """What a worker needs to solve for any output.

    start: has the "weights" (candidates, outputs) that the solves start from. to_rounding: solve as far as float64
    goes. number: of the penalty, where each is a call of its own.
    """

    statistics: Stored
    name: str
    penalties: tuple[float, ...]
    options: SolverOptions
    seed: int
    start: Stored | None
    to_rounding: bool
    number: int | None


def solver_options(solver: SolverConfig) -> SolverOptions:
    """Return the solver's options that the configuration asks for."""
    return SolverOptions(
        tolerance=solver.tolerance or TO_ROUNDING,
        max_sweeps=solver.max_sweeps,
        schedule=solver.schedule,
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
        number=number,
    )
    found = work.compute(
        SOLVE,
        partial(solve_output, task),
        {solution_name(name + _suffix(number), output): output for output in range(work.shape.n_outputs)},
        unit="solves" if len(penalties) == 1 else "penalties",
        size=lambda output: len(penalties),
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
        weights = None if task.start is None else np.ascontiguousarray(task.start.read()["weights"][:, output])
        done = SolveProgress(checkpoints, task.penalties, {"output": output, "statistics": task.name}, task.number)
        first = len(done.summaries)
        progress.advance(first)
        weights, generator = done.weights[-1] if first else weights, np.random.default_rng([task.seed, 3, output])
        for penalty in task.penalties[first:]:
            solution = solve(
                replace(problem, penalty=penalty),
                task.options,
                generator,
                start=done.state or (None if weights is None else warm_state(weights)),
                on_record=partial(done.on_record, penalty),
                should_stop=done.is_exhausted if task.to_rounding else None,
            )
            weights = solution.weights
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


class SolveProgress:
    """Takes a solve up from its last checkpoint, makes others, and hands on the records of its iterations.

    Attributes: `weights` (M,) and `summaries` of the penalties done; `state` of the one under way, None at its begin.

    Parameters
    ----------
    checkpoints : where checkpoints and records go
    penalties : what is solved at, one after the other; a checkpoint of others is left alone
    facts, number : written with every record; the number of the penalty, of a solve at one of several
    """

    def __init__(
        self,
        checkpoints: TaskCheckpoints,
        penalties: Sequence[float],
        facts: dict[str, Any],
        number: int | None = None,
    ) -> None:
        self._checkpoints, self._penalties, self._facts, self._number = checkpoints, list(penalties), facts, number
        self.weights: list[NDArray[np.float64]] = []
        self.summaries: list[dict[str, Any]] = []
        self.state: SolverState | None = None
        self._past: list[dict[str, Any]] = []  # the records of the penalties done
        checkpoint = checkpoints.load()
        if checkpoint is not None and checkpoint.metadata["penalties"] == self._penalties:
            arrays, stored = dict(checkpoint.arrays), checkpoint.metadata
            self.weights = list(arrays.pop("weights_done", np.empty(0)))
            self.summaries, self._past = list(stored["summaries"]), list(stored["records"])
            self.state = SolverState.from_arrays(arrays, stored["state"])
        for line in self._past:
            checkpoints.record(line)
        if self.state is not None:
            for record in self.state.records:
                checkpoints.record(self._line(self._penalty, record))

    def on_record(self, penalty: float, record: Record, state: SolverState) -> None:
        """Hand on a record; save the state where a checkpoint is due. Raises StoppedError, after saving, on request."""
        self.state = state
        self._checkpoints.record(self._line(penalty, record))
        if self._checkpoints.is_due():
            self._save()
            stopping.check()  # what is asked for after this look is seen at the next record: nothing ends unsaved

    def on_solution(self, solution: Solution) -> None:
        """Count a penalty as done."""
        penalty = self._penalty
        self._past += [self._line(penalty, record) for record in solution.state.records]
        self.weights.append(solution.weights)
        summary = {
            "penalty": penalty,
            "objective": solution.objective,
            "relative_gap": solution.certificate.relative_gap,
            "converged": solution.converged,
            "status": solution.status.value,
            "n_active": solution.n_active,
            "sweeps": solution.state.iterations,
            "visits": solution.state.visits,
            "moves": solution.state.moves,
            "evaluations": solution.state.evaluations,
            "wall_seconds": solution.state.records[-1].seconds if solution.state.records else 0.0,
        }
        self.summaries.append(summary)
        self.state = None

    def is_exhausted(self) -> bool:
        """Return whether the gap of the solve under way has stopped falling: rounding holds it (see `EXHAUSTED`)."""
        assert self.state is not None
        least, least_at, records = np.inf, 0, self.state.records
        for number, record in enumerate(records, 1):
            if record.relative_gap is not None and record.relative_gap < 0.5 * least:
                least, least_at = record.relative_gap, number
        return least <= REACHED and len(records) - least_at >= EXHAUSTED

    @property
    def _penalty(self) -> float:
        return self._penalties[len(self.summaries)]

    def _line(self, penalty: float, record: Record) -> dict[str, Any]:
        which = "" if self._number is None else str(self._number + 1)
        if len(self._penalties) > 1:
            which = f"{self._penalties.index(penalty) + 1} of {len(self._penalties)}"
        return {**self._facts, "penalty": penalty, WHICH: which, **asdict(record)}

    def _save(self) -> None:
        assert self.state is not None
        arrays, scalars = self.state.to_arrays()
        if self.weights:
            arrays["weights_done"] = np.stack(self.weights)
        facts = {"penalties": self._penalties, "summaries": self.summaries, "records": self._past, "state": scalars}
        self._checkpoints.save(len(self._past) + self.state.iterations, arrays, facts)


def follow_penalty_path(
    work: Workspace, setting: str, members: NDArray[np.int64] | None = None
) -> tuple[float, NDArray[np.float64], list[dict[str, Any]]]:
    """Return the penalty to train with, the weights (M, T) of the fit rows there, and the points of the path.

    A point has the penalty, its solves and its held-out error.

    members: a draw of the candidates, by row, whose statistics of fit rows and of held-out rows there are; None: all of
    the run. `auto` then ends where more than `MOST_OF_DRAW` of the draw have a weight.

    `auto` takes the penalty of the lowest held-out error (the largest of equals), a path its last. Errors are of
    refitted weights where a refit is asked for: the share of errors of classes, the mean squared error of a regression.
    """
    points = list[dict[str, Any]]()
    n_columns = work.n_candidates if members is None else len(members)
    most = n_columns if members is None else MOST_OF_DRAW * n_columns

    def solve_at(number: int | None, penalties: tuple[float, ...]) -> NDArray[np.float64]:
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
                {
                    "penalty": penalty,
                    "objective": sum(point["objective"] for point in of_outputs),
                    "n_active": [point["n_active"] for point in of_outputs],
                    "n_centers": int(np.count_nonzero(table[index].any(axis=1))),
                    # Over the candidates that penalties are tried on.
                    "relative_gap": max(point["relative_gap"] for point in of_outputs),
                    "hold_out_error": float(errors[index]),
                    "wall_seconds": sum(point["wall_seconds"] for point in of_outputs),
                    "converged": all(point["converged"] for point in of_outputs),
                }
            )
        return table

    path, largest = penalty_path(setting), largest_penalty_of(work, FIT)
    if path is not None:
        begin, end, count = path
        return end, solve_at(None, spaced(begin or max(largest, end), end, count))[-1], points
    tables: list[NDArray[np.float64]] = []

    def attempt(number: int, penalty: float) -> tuple[float, bool]:
        tables.append(solve_at(number, (penalty,))[0])
        point = points[-1]
        return point["hold_out_error"], point["converged"] and point["n_centers"] <= most

    best, warning = search(largest, attempt)
    if warning is not None:
        work.warn(f"`solver.penalty=auto`: {warning}")
    last = points[-1]
    if last["n_centers"] > most:
        work.warn(
            f"`solver.penalty=auto`: ended at {last['penalty']:.3g}, where {last['n_centers']} of the "
            f"{n_columns} candidates that it tries have a weight; of all candidates more would than the working set "
            "holds"
        )
    return points[best]["penalty"], tables[best], points


def path_bytes(run: RunSize) -> int:
    """Return the memory of the pass that scores a path on held-out rows; 0 where there is no path."""
    solver = run.config.solver
    has_path = is_searched(solver.penalty) and not solver.selects
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
    kernel = task.kernel_of(arrays["members"]) if "members" in arrays else task.kernel_of_stored(arrays["columns"])
    n_penalties, n_active, n_outputs = arrays["weights"].shape
    stacked = arrays["weights"].transpose(1, 0, 2).reshape(n_active, n_penalties * n_outputs)

    def count(values: BlockValues, block: RowBlock, each: ForEach) -> None:
        K = kernel.block(block.X[block.held_out], out_dtype=np.float64, each=each)
        decisions = (K @ stacked).reshape(-1, n_penalties, n_outputs) + arrays["intercepts"]
        truth = labels_from_decision(block.targets[block.held_out], kind)
        counts = np.ones(len(truth)) if block.weights is None else block.weights[block.held_out]
        wrong = [float(counts @ (labels_from_decision(decisions[:, i], kind) != truth)) for i in range(n_penalties)]
        values.put(block.number, {"wrong": np.array([wrong])})

    return count
