"""The penalised solves of an estimator: for every output, or for all that share a kernel, along some penalties.

An interruption (Ctrl-C, KeyboardInterrupt) ends them and keeps the weights so far.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.solvers import Record, SolverOptions, SolverState, certify_problem
from pipeline.solvers.duality_gap import row_norms
from pipeline.solvers.output_groups import Outputs, columns_of, output_groups, problem_of, visits_of
from pipeline.solvers.regularization_path import solve_path
from pipeline.solvers.ridge import least_squares
from pipeline.stages.unfinished import note_of

EXACT = 1e-15  # relative gap that small problems are solved to; rounding ends the solve, not the gap
EXHAUSTED = 20  # iterations without half the gap, after which it is rounding
LEAST_RIDGE = 1e-9  # of the Gram's mean diagonal, for outputs that an interruption left without a solve
Weights = NDArray[np.float64]


@dataclass(frozen=True)
class Penalised:
    """Weights (penalties, M, T); of the last penalty mu (M, T), or (M,) with one kernel for all, and the largest gap.

    converged: every solve at the last penalty ended by its stopping rule; n_iter: iterations of the longest.
    """

    weights: Weights
    mu: Weights
    relative_gap: float
    converged: bool
    n_iter: int
    interrupted: bool


@dataclass(frozen=True)
class Solves:
    """How solves are done: `on_record` gets a dictionary for each iteration, `say` a line.

    exact: to the last digit, if the tolerance is met.
    """

    options: SolverOptions
    shared: bool
    seed: int
    exact: bool
    on_record: Callable[[dict[str, Any]], Any]
    say: Callable[[str], Any]

    def solved(
        self, statistics: GramStatistics, penalties: tuple[float, ...], start: Weights | None, number: int | None = None
    ) -> Penalised:
        """Solve on (centred) statistics at each penalty in turn, the first from the weights `start` (M, T).

        number: of the one penalty, among those that are searched.
        """
        table = np.zeros((len(penalties), *statistics.kty.shape))
        mus, solves, interrupted = [], list[Penalised](), False
        for group in output_groups(statistics.kty.shape[1], shared=self.shared):
            before = None if start is None else columns_of(start, group)
            progress = _Progress(self, group, penalties, number)
            solves.append(self._group(statistics, group, before, progress, table[-1], interrupted=interrupted))
            table[:, :, list(group)], interrupted = solves[-1].weights, solves[-1].interrupted
            mus.append(solves[-1].mu)
        return Penalised(
            weights=table,
            mu=mus[0] if self.shared else np.stack(mus, axis=1),
            relative_gap=max(solve.relative_gap for solve in solves),
            converged=all(solve.converged for solve in solves),
            n_iter=max(solve.n_iter for solve in solves),
            interrupted=interrupted,
        )

    def _group(
        self,
        statistics: GramStatistics,
        group: Outputs,
        start: Weights | None,
        progress: "_Progress",
        others: Weights,
        *,
        interrupted: bool,
    ) -> Penalised:
        """Solve for a group, mu (M,); where that is or was interrupted, take the weights so far."""
        penalties, problem = progress.penalties, problem_of(statistics, group, progress.penalties[-1])
        table, n_done = np.zeros((len(penalties), *problem.kty.shape)), 0
        table[:] = 0.0 if start is None else start
        options = replace(self.options, tolerance=min(EXACT, self.options.tolerance)) if self.exact else self.options
        try:
            if interrupted:
                raise KeyboardInterrupt
            for solution in solve_path(
                problem,
                penalties,
                options,
                visits_of(self.seed, group),
                start_weights=start,
                on_record=progress.on_record,
                should_stop=progress.is_exhausted if self.exact else None,
            ):
                table[n_done:] = solution.weights
                n_done += 1
            gap = solution.certificate.relative_gap
            return Penalised(table, solution.mu, gap, solution.converged, progress.n_iter, interrupted=False)
        except KeyboardInterrupt:
            if progress.state is not None:
                table[n_done:] = progress.weights_so_far
            elif not table[-1].any():
                table[n_done:] = _least_squares(statistics, others, group)
            gap = certify_problem(problem, table[-1]).relative_gap
            mu = row_norms(table[-1]) / np.sqrt(penalties[-1])
            return Penalised(table, mu, gap, False, progress.n_iter, interrupted=True)


def _least_squares(statistics: GramStatistics, others: Weights, group: Outputs) -> Weights:
    """Return weights (M, len(group)) on the support of the `others` (M, T), for outputs without a solution."""
    support, weights = np.flatnonzero(others.any(axis=1)), np.zeros((len(others), len(group)))
    if len(support):
        cut = statistics.cut(support)
        ridge = LEAST_RIDGE * float(np.mean(np.diagonal(cut.gram)))
        weights[support] = least_squares(cut, ridge, intercept=False)[0][:, list(group)]
    return weights


class _Progress:
    """The latest state of a group's solves, and the records of their iterations handed on."""

    def __init__(self, solves: Solves, group: Outputs, penalties: tuple[float, ...], number: int | None) -> None:
        self._solves, self._group, self.penalties, self._number = solves, group, penalties, number
        self._least_gap, self._least_at = np.inf, 0
        self.state: SolverState | None = None
        self.n_iter = 0

    def on_record(self, penalty: float, record: Record, state: SolverState) -> None:
        """Keep the state, then hand on the record, where KeyboardInterrupt may be raised."""
        self.state, self.n_iter = state, state.iterations
        facts = {"outputs": self._group, "penalty": penalty, **asdict(record)}
        self._solves.say(note_of(facts, self.penalties, self._number))
        self._solves.on_record(facts)

    @property
    def weights_so_far(self) -> Weights:
        """The best weights of the solve under way, the last ones before any is proven."""
        assert self.state is not None
        return self.state.best_weights if np.isfinite(self.state.best_primal) else self.state.weights

    def is_exhausted(self) -> bool:
        """Tell whether the tolerance is met and rounding keeps the gap from falling further."""
        assert self.state is not None
        if self.state.certified and self.state.relative_gap < 0.5 * self._least_gap:
            self._least_gap, self._least_at = self.state.relative_gap, self.n_iter
        return self._least_gap <= self._solves.options.tolerance and self.n_iter - self._least_at >= EXHAUSTED
