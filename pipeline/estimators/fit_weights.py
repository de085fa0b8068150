"""From statistics in memory to the weights of an estimator: the choices of `solvers`, whose results stay in memory.

An interruption (Ctrl-C, KeyboardInterrupt) ends the solves and keeps the weights so far.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.config.parsers import is_searched, penalty_fraction, penalty_path, selection_size
from pipeline.estimators.penalised_solves import Penalised, Solves, Weights
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.solvers.delivered_weights import (
    UnseenWeights,
    deliver,
    deliver_path,
    intercept_of,
    unseen_of,
    unseen_of_refit,
    unseen_on_path,
)
from pipeline.solvers.forward_backward_selection import drop, select
from pipeline.solvers.forward_selection import Selection
from pipeline.solvers.greedy_choice import ROWS, Enough, Part, choose_greedily, forward_most, told
from pipeline.solvers.regularization_path import ChosenPenalty, TriedPenalties, choose_penalty, largest_penalty
from pipeline.solvers.ridge import refit

TOLD_EVERY = 100  # centers of a greedy choice, with verbose
HeldOutErrors = Callable[[NDArray[np.int64], Weights, Weights], Weights]


@dataclass(frozen=True)
class Task:
    """What is asked for; no penalty: least squares on all candidates."""

    task: str
    solves: Solves
    penalty: float | str | None
    patience: int
    refit: bool
    select: str | None
    intercept: bool

    def tell_choice(self, part: str, rows: str, n_chosen: int, most: int) -> None:
        """Tell how far a greedy choice on some rows is."""
        if n_chosen % TOLD_EVERY == 0:
            self.solves.say(told(rows, n_chosen, most))
        self.solves.on_record({"phase": "select", "rows": part, "iteration": n_chosen, "n_active": n_chosen})


@dataclass(frozen=True)
class Parts:
    """Statistics of the rows to fit, of those held out (no columns where nothing is chosen by them), and of all.

    n_back: where the columns are finalists, in the order chosen: so many are dropped again.
    errors(active, weights (P, a, T), intercepts (P, T)): weight of the held-out rows that each of P models gets wrong.
    """

    fit: GramStatistics
    held_out: GramStatistics
    everything: GramStatistics
    errors: HeldOutErrors
    n_back: int | None = None


@dataclass(frozen=True)
class FittedWeights:
    """The model: active candidates (a,), weights (a, T) and intercept (T,), and where they are from.

    penalised (a, T): the weights before a refit; mu (a, T) or (a,); penalty, mu and penalised are None and the gap is
    NaN after a greedy choice or least squares alone.
    """

    active: NDArray[np.int64]
    weights: Weights
    intercept: Weights
    unseen: UnseenWeights
    n_iter: int
    interrupted: bool = False
    penalised: Weights | None = None
    mu: Weights | None = None
    penalty: float | None = None
    relative_gap: float = float("nan")


def find_weights(task: Task, parts: Parts, start: Weights | None) -> FittedWeights:
    """Return the model that `task` asks for; a penalised solve of all rows starts from weights (M, T)."""
    if task.select is not None:
        return _greedy(task, parts)
    if task.penalty is None:
        task.solves.say("least squares on all candidates")
        everyone = np.arange(parts.everything.n_centers)
        return _refitted(task, parts, everyone, everyone, n_iter=1)
    return _penalised(task, parts, task.penalty, start)


def _refitted(
    task: Task,
    parts: Parts,
    chosen: NDArray[np.int64],
    tried: NDArray[np.int64],
    *,
    n_iter: int,
    interrupted: bool = False,
) -> FittedWeights:
    """Fit the chosen candidates by least squares, with the ridge that those tried on the fit rows want.

    `parts` are of these, in order.
    """
    best = refit(parts.fit, parts.held_out, parts.everything, intercept=task.intercept)
    return FittedWeights(chosen, best.weights, best.intercept, unseen_of_refit(tried, best), n_iter, interrupted)


def _penalised(task: Task, parts: Parts, penalty: float | str, start: Weights | None) -> FittedWeights:
    """Solve for the penalised weights of all rows, and refit them where that is asked for."""
    solved, of_fit = None, None
    if is_searched(penalty):
        chosen, solved = _chosen_penalty(task, parts, str(penalty))
        penalty, of_fit = chosen.penalty, unseen_on_path(chosen.weights, parts.fit, intercept=task.intercept)
    elif isinstance(penalty, str):
        penalty = penalty_fraction(penalty) * _largest_penalty(task, parts.everything)
    assert isinstance(penalty, float)
    if solved is None:  # else the path was interrupted
        solved = task.solves.solved(_centred(task, parts.everything), (penalty,), start)
    active = np.flatnonzero(solved.weights[-1].any(axis=1))
    penalised, cut, interrupted = solved.weights[-1][active], parts.everything.cut(active), solved.interrupted
    delivered = deliver(penalised, cut, None, intercept=task.intercept)
    if task.refit:
        try:
            tried = parts.fit.cut(active), parts.held_out.cut(active)
            delivered = deliver(penalised, cut, tried, intercept=task.intercept)
        except KeyboardInterrupt:
            interrupted = True
    return FittedWeights(
        active=active,
        weights=delivered.weights,
        intercept=delivered.intercept,
        unseen=unseen_of(active, delivered, of_fit),
        n_iter=solved.n_iter,
        interrupted=interrupted,
        penalised=penalised,
        mu=solved.mu[active],
        penalty=penalty,
        relative_gap=solved.relative_gap,
    )


def _chosen_penalty(task: Task, parts: Parts, setting: str) -> tuple[ChosenPenalty, Penalised | None]:
    """Return the penalty to train with, and its solution on the fit rows where the path was interrupted.

    Of a path that was interrupted, the penalties that are finished are compared.
    """
    used, done = _centred(task, parts.fit), list[tuple[float, float, Penalised]]()

    def solve_at(number: int | None, penalties: tuple[float, ...]) -> TriedPenalties:
        before = done[-1][2].weights[-1] if number else None
        solves = replace(task.solves, exact=False)
        solved = solves.solved(used, penalties, before, number)
        if solved.interrupted:
            if not done:
                done.append((penalties[-1], np.inf, solved))
            raise KeyboardInterrupt
        errors = _held_out_errors(task, parts, solved.weights)
        done.append((penalties[-1], float(errors[-1]), solved))
        return TriedPenalties(solved.weights, errors, solved.converged)

    try:
        chosen = choose_penalty(penalty_path(setting), _largest_penalty(task, parts.fit), task.patience, solve_at)
    except KeyboardInterrupt:
        if not done:
            raise
        penalty, _, solved = min(done, key=lambda one: one[1])
        return ChosenPenalty(penalty, solved.weights[-1]), replace(solved, interrupted=True)
    if chosen.warning is not None:
        warnings.warn(f"penalty='auto': {chosen.warning}", UserWarning, stacklevel=6)
    return chosen, None


def _held_out_errors(task: Task, parts: Parts, table: Weights) -> Weights:
    """Return the held-out errors of what penalised weights (penalties, M, T) would deliver: squared, or rows wrong."""
    path = deliver_path(table, parts.fit, parts.held_out, refitted=task.refit, intercept=task.intercept)
    if task.task == "regression":
        return path.squared_errors(parts.held_out)
    return parts.errors(path.active, path.weights, path.intercepts) / parts.held_out.weight_sum


def _largest_penalty(task: Task, statistics: GramStatistics) -> float:
    return largest_penalty(statistics, shared=task.solves.shared, intercept=task.intercept)


def _centred(task: Task, statistics: GramStatistics) -> GramStatistics:
    return statistics.centred() if task.intercept else statistics


def _greedy(task: Task, parts: Parts) -> FittedWeights:
    """Choose centers by how much each lowers the squared error, and fit their weights by least squares.

    Those tried on the fit rows are the model's where a choice is interrupted.
    """
    assert task.select is not None
    asked, so_far = selection_size(task.select), np.empty(0, np.int64)
    if asked is not None and asked > parts.fit.n_centers and parts.n_back is None:
        raise ValueError(f"select={task.select!r} asks for more centers than the {parts.fit.n_centers} candidates")

    most = forward_most(asked, parts.fit.n_centers)

    def select_on(part: Part, statistics: GramStatistics, size: int, enough: Enough) -> Selection:
        nonlocal so_far
        so_far = so_far[:size]

        def note(chosen: list[int]) -> bool:
            nonlocal so_far
            if part == "fit":
                so_far = np.array(chosen[:size], np.int64)
            task.tell_choice(part, ROWS[part], len(chosen), most)
            return enough(chosen)

        if parts.n_back is not None:
            selection = drop(statistics, size, parts.n_back, intercept=task.intercept)
        else:
            selection = select(statistics, size, intercept=task.intercept, enough=note)
        so_far = selection.chosen if part == "fit" else so_far
        return selection

    interrupted = False
    try:
        choice = choose_greedily(
            parts.fit, parts.held_out, parts.everything, asked, select_on, intercept=task.intercept
        )
        chosen, tried = choice.chosen, choice.tried[: len(choice.chosen)]
    except KeyboardInterrupt:
        chosen, tried, interrupted = so_far, so_far, True
    if len(chosen):
        cut = replace(
            parts, fit=parts.fit.cut(tried), held_out=parts.held_out.cut(tried), everything=parts.everything.cut(chosen)
        )
        return _refitted(task, cut, chosen, tried, n_iter=len(chosen), interrupted=interrupted)
    nothing = np.zeros((0, parts.everything.kty.shape[1]))
    intercept = intercept_of(parts.everything.cut(chosen), nothing, intercept=task.intercept)
    unseen = UnseenWeights(chosen, nothing, intercept, seen=True)
    return FittedWeights(chosen, nothing, intercept, unseen, 0, interrupted)
