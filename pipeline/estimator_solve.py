"""From statistics in memory to the weights of an estimator: solves, penalty by held-out error, greedy choice, refit.

An interruption (Ctrl-C, KeyboardInterrupt) ends the solves and keeps the weights so far.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.setting_types import selection, selection_size
from pipeline.solvers import Problem, Record, SolverOptions, SolverState, certify_problem, solve, warm_state
from pipeline.solvers.certificate import row_norms
from pipeline.solvers.greedy import select
from pipeline.solvers.path import penalty_max, spaced
from pipeline.solvers.prefixes import hold_out_curve, prefix_sizes
from pipeline.solvers.refit import least_squares, refit
from pipeline.stages.path import AUTO_COUNT, AUTO_FRACTION
from pipeline.stages.selection import AUTO_GAIN, AUTO_MOST
from pipeline.statistics import GramStatistics

EXACT = 1e-15  # relative gap that small problems are solved to; rounding ends the solve, not the gap
EXHAUSTED = 20  # iterations without half the gap, after which it is rounding
LEAST_RIDGE = 1e-9  # of the Gram's mean diagonal, for outputs that an interruption left without a solve
Weights = NDArray[np.float64]
HeldOutErrors = Callable[[NDArray[np.int64], Weights, Weights], Weights]


@dataclass(frozen=True)
class Task:
    """What is asked for; `exact` solves to the last digit, `callback` gets a dictionary for each iteration."""

    task: str
    options: SolverOptions
    penalty: float | str
    refit: bool
    select: str | None
    shared: bool
    intercept: bool
    seed: int
    exact: bool
    callback: Callable[[dict[str, Any]], Any] | None


@dataclass(frozen=True)
class Penalised:
    """Weights (M, T) and mu (M, T), or (M,) with one kernel for all, at a penalty; the largest gap of the solves."""

    weights: Weights
    mu: Weights
    relative_gap: float
    n_iter: int
    interrupted: bool


@dataclass(frozen=True)
class Found:
    """The model: active candidates (a,), weights (a, T) and intercept (T,), and where they are from.

    penalised (a, T): the weights before a refit; mu (a, T) or (a,); penalty, mu and penalised are None and the gap is
    NaN after a greedy choice.
    """

    active: NDArray[np.int64]
    weights: Weights
    intercept: Weights
    penalised: Weights | None
    mu: Weights | None
    penalty: float | None
    relative_gap: float
    n_iter: int
    interrupted: bool


def find_weights(
    task: Task, fit: GramStatistics, hold_out: GramStatistics, errors: HeldOutErrors, start: Weights | None
) -> Found:
    """Return the model that `task` asks for.

    fit, hold_out: statistics of the two parts of the rows; hold_out may have no columns where nothing is chosen by it.
    errors(active, weights (P, a, T), intercepts (P, T)): held-out errors (P,) of P models. start (M, T): weights.
    """
    everything = fit + hold_out if hold_out.n_centers else fit
    if task.select is not None:
        return _greedy(task, fit, hold_out, everything)
    penalty, found = task.penalty, None
    if isinstance(penalty, str):
        penalty, found = _best_penalty(task, fit, hold_out, errors, start)
        start = found.weights
    if found is None or not found.interrupted:
        found = _penalised(task, _centred(task, everything), penalty, start, exact=task.exact)
    active = np.flatnonzero(found.weights.any(axis=1))
    weights, cut = found.weights[active], everything.cut(active)
    intercept = _intercept(task, cut, weights)
    penalised, interrupted = weights, found.interrupted
    if task.refit and len(active):
        try:
            best = refit(fit.cut(active), hold_out.cut(active), cut, intercept=task.intercept)
            weights, intercept = best.weights, best.intercept
        except KeyboardInterrupt:
            interrupted = True
    return Found(
        active, weights, intercept, penalised, found.mu[active], penalty, found.relative_gap, found.n_iter, interrupted
    )


def _centred(task: Task, statistics: GramStatistics) -> GramStatistics:
    return statistics.centred() if task.intercept else statistics


def _intercept(task: Task, statistics: GramStatistics, weights: Weights) -> Weights:
    return statistics.intercept(weights) if task.intercept else np.zeros(weights.shape[1])


def _penalised(
    task: Task, statistics: GramStatistics, penalty: float, start: Weights | None, *, exact: bool
) -> Penalised:
    """Solve for every output, or for all at once with one kernel, on (centred) statistics."""
    n_outputs = statistics.kty.shape[1]
    groups = [list(range(n_outputs))] if task.shared else [[output] for output in range(n_outputs)]
    weights = np.zeros(statistics.kty.shape) if start is None else np.array(start)
    mu, gaps, n_iter, interrupted = row_norms_of(weights, task.shared) / np.sqrt(penalty), [], 0, False
    options = replace(task.options, tolerance=min(EXACT, task.options.tolerance)) if exact else task.options
    for group in groups:
        progress = _Progress(task, group, penalty)
        try:
            if interrupted:
                raise KeyboardInterrupt
            solution = solve(
                problem_of(statistics, group, penalty),
                options,
                np.random.default_rng([task.seed, 3, *group]),
                start=warm_state(weights[:, group]) if weights[:, group].any() else None,
                on_record=progress.on_record,
                should_stop=progress.is_exhausted if exact else None,
            )
            weights[:, group], found_mu, gap = solution.weights, solution.mu, solution.certificate.relative_gap
        except KeyboardInterrupt:
            interrupted = True
            if progress.state is not None:
                weights[:, group] = progress.state.weights
            elif not weights[:, group].any():
                weights[:, group] = _least_squares(statistics, np.flatnonzero(weights.any(axis=1)), group)
            gap = certify_problem(problem_of(statistics, group, penalty), weights[:, group]).relative_gap
            found_mu = row_norms(weights[:, group]) / np.sqrt(penalty)
        if task.shared:
            mu = found_mu
        else:
            mu[:, group[0]] = found_mu
        gaps.append(gap)
        n_iter = max(n_iter, progress.n_iter)
    return Penalised(weights, mu, max(gaps), n_iter, interrupted)


def row_norms_of(weights: Weights, shared: bool) -> Weights:
    """Return |w| by entry (M, T), or by row (M,) where the outputs share a kernel."""
    return row_norms(weights) if shared else np.abs(weights)


def problem_of(statistics: GramStatistics, group: list[int], penalty: float) -> Problem:
    """Return the checked problem of some outputs. Raises InvalidProblemError, a ValueError."""
    kty = np.ascontiguousarray(statistics.kty[:, group])
    problem = Problem(statistics.gram, kty, float(statistics.yty[group].sum()), penalty)
    return problem.validate(gram_checked=True)  # the Gram is of our own making, and its check costs another


def _least_squares(statistics: GramStatistics, support: NDArray[np.int64], group: list[int]) -> Weights:
    """Return weights (M, len(group)) on a support, for outputs that nothing was found for."""
    weights = np.zeros((statistics.n_centers, len(group)))
    if len(support):
        cut = statistics.cut(support)
        ridge = LEAST_RIDGE * float(np.mean(np.diagonal(cut.gram)))
        weights[support] = least_squares(cut, ridge, intercept=False)[0][:, group]
    return weights


class _Progress:
    """The latest state of a solve, and the records of its iterations handed to the callback."""

    def __init__(self, task: Task, group: list[int], penalty: float) -> None:
        self._callback, self._facts = task.callback, {"outputs": tuple(group), "penalty": penalty}
        self._tolerance, self._least_gap, self._least_at = task.options.tolerance, np.inf, 0
        self.state: SolverState | None = None
        self.n_iter = 0

    def on_record(self, record: Record, state: SolverState) -> None:
        """Keep the state, then call back, which may raise KeyboardInterrupt."""
        self.state, self.n_iter = state, state.iterations
        if self._callback is not None:
            self._callback(self._facts | asdict(record))

    def is_exhausted(self) -> bool:
        """Tell whether the tolerance is met and rounding keeps the gap from falling further."""
        assert self.state is not None
        if self.state.certified and self.state.relative_gap < 0.5 * self._least_gap:
            self._least_gap, self._least_at = self.state.relative_gap, self.n_iter
        return self._least_gap <= self._tolerance and self.n_iter - self._least_at >= EXHAUSTED


def _best_penalty(
    task: Task, fit: GramStatistics, hold_out: GramStatistics, errors: HeldOutErrors, start: Weights | None
) -> tuple[float, Penalised]:
    """Return the penalty of the lowest held-out error (the largest of equals) and its solution on the fit rows.

    Penalties fall from the one at which all weights are zero, each solve started from the last. After an interruption
    those that are finished are compared.
    """
    used = _centred(task, fit)
    largest = penalty_max(used.kty, shared=task.shared) or 1.0  # where nothing correlates, any penalty gives zero
    penalties = spaced(largest, largest * AUTO_FRACTION, AUTO_COUNT)
    path: list[Penalised] = []
    interrupted = False
    try:
        for penalty in penalties:
            found = _penalised(task, used, penalty, path[-1].weights if path else start, exact=False)
            interrupted = found.interrupted
            if interrupted and path:
                break
            path.append(found)
            if interrupted:
                break
        scored = _held_out_errors(task, path, fit, hold_out, errors)
        best = int(np.argmin(scored))
    except KeyboardInterrupt:
        if not path:
            raise
        best, interrupted = len(path) - 1, True
    return penalties[best], replace(path[best], interrupted=interrupted)


def _held_out_errors(
    task: Task, path: list[Penalised], fit: GramStatistics, hold_out: GramStatistics, errors: HeldOutErrors
) -> Weights:
    """Return the held-out error of what each point of the path would deliver: squared, or rows misclassified."""
    table = [_delivered(task, found.weights, fit, hold_out) for found in path]
    active = np.flatnonzero(np.any([weights.any(axis=1) for weights, _ in table], axis=0))
    stacked, intercepts = np.stack([weights[active] for weights, _ in table]), np.stack([b for _, b in table])
    if task.task != "regression":
        return errors(active, stacked, intercepts)
    cut = hold_out.cut(active)
    return np.array([cut.squared_error(w, b).sum() for w, b in zip(stacked, intercepts, strict=True)])


def _delivered(task: Task, weights: Weights, fit: GramStatistics, hold_out: GramStatistics) -> tuple[Weights, Weights]:
    """Return the weights (M, T) and the intercept (T,) that a model with these penalised weights would deliver."""
    support = np.flatnonzero(weights.any(axis=1))
    cut = fit.cut(support)
    if not task.refit or not len(support):
        return weights, _intercept(task, cut, weights[support])
    found = refit(cut, hold_out.cut(support), cut, intercept=task.intercept)
    refitted = np.zeros(weights.shape)
    refitted[support] = found.weights
    return refitted, found.intercept


def _greedy(task: Task, fit: GramStatistics, hold_out: GramStatistics, everything: GramStatistics) -> Found:
    """Choose centers by how much each lowers the squared error, and fit their weights by least squares."""
    assert task.select is not None
    asked = selection_size(task.select)
    size = min(AUTO_MOST, fit.n_centers) if asked is None else asked
    if size > fit.n_centers:
        raise ValueError(f"select={task.select!r} asks for more centers than the {fit.n_centers} candidates")
    so_far: list[int] = []

    def note(chosen: list[int]) -> bool:
        nonlocal so_far
        so_far = chosen
        if task.callback is not None:
            task.callback({"phase": "select", "iteration": len(chosen), "n_active": len(chosen)})
        return False

    interrupted = False
    try:
        chosen = select(fit if asked is None else everything, size, intercept=task.intercept, enough=note).chosen
    except KeyboardInterrupt:
        chosen, interrupted = np.array(so_far[:size], np.int64), True
    if asked is None and len(chosen):
        sizes = prefix_sizes(len(chosen))
        errors = hold_out_curve(fit.cut(chosen), hold_out.cut(chosen), sizes, intercept=task.intercept)
        chosen = chosen[: sizes[np.flatnonzero(errors <= errors.min() * (1 + AUTO_GAIN))[0]]]
    cut = everything.cut(chosen)
    weights = np.zeros((len(chosen), everything.kty.shape[1]))
    intercept = _intercept(task, cut, weights)
    if len(chosen):
        best = refit(fit.cut(chosen), hold_out.cut(chosen), cut, intercept=task.intercept)
        weights, intercept = best.weights, best.intercept
    return Found(chosen, weights, intercept, None, None, None, float("nan"), len(chosen), interrupted)


def check_memory(n_candidates: int, n_features: int, limit: int, *, apart: bool, centred: bool, greedy: bool) -> None:
    """Raise MemoryError where the Grams and the points of a fit do not fit `limit` bytes.

    `apart`: rows are held out, whose statistics are kept beside those of the rest and of all; `centred`: an intercept
    is fitted on a copy; `greedy`: centers are chosen, which takes up to six more of the size (measured).
    """
    grams = (3 if apart else 1) + int(centred) + (6 if greedy else 0)
    squared, linear = 8 * grams, 16 * n_features
    needed = squared * n_candidates**2 + linear * n_candidates
    if needed > limit:
        most = int((np.sqrt(linear**2 + 4.0 * squared * limit) - linear) / (2 * squared))
        raise MemoryError(
            f"{n_candidates} candidates need {needed / 2**20:.1f} MiB ({grams} Gram matrices and the points), the "
            f"memory limit is {limit / 2**20:.1f} MiB; lower n_centers to {most} or raise memory_limit, or use "
            "pipeline.train, which needs no whole Gram"
        )


def checked_options(parameters: Mapping[str, Any]) -> SolverOptions:
    """Return the solver's options; raise ValueError naming the first parameter that makes no sense."""
    for name, (fits, expected) in _PARAMETERS.items():
        if not fits(parameters[name]):
            raise ValueError(f"{name} must be {expected}; found {parameters[name]!r}")
    return SolverOptions(
        tolerance=float(parameters["tol"]),
        max_sweeps=int(parameters["max_sweeps"]),
        schedule=parameters["schedule"],
    )


def _positive(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < np.inf


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def _at_least_one(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _is_selection(value: Any) -> bool:
    try:
        return value is None or (isinstance(value, str) and selection(value) != "none")
    except ValueError:
        return False


def _one_of(*allowed: str | None) -> tuple[Callable[[Any], bool], str]:
    return lambda value: any(value is one or (isinstance(value, str) and value == one) for one in allowed), " or ".join(
        repr(one) for one in allowed
    )


_PARAMETERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "n_centers": (
        lambda value: value is None or (isinstance(value, str) and value == "all") or _at_least_one(value),
        "a whole number of at least 1, 'all' or None",
    ),
    "sigma2": (lambda value: _positive(value) or (isinstance(value, str) and value == "median"), "above 0 or 'median'"),
    "penalty": (lambda value: _positive(value) or (isinstance(value, str) and value == "auto"), "above 0 or 'auto'"),
    "refit": _one_of(None, "ridge"),
    "select": (_is_selection, "'greedy:K' with a number of centers K, 'greedy:auto' or None"),
    "coupling": _one_of("one-vs-all", "shared"),
    "fit_intercept": (_is_truth, "True or False"),
    "warm_start": (_is_truth, "True or False"),
    "callback": (lambda value: value is None or callable(value), "a function or None"),
    "tol": (_positive, "a number above 0"),
    "max_sweeps": (_at_least_one, "a whole number of at least 1"),
    "schedule": _one_of("shrinking", "uniform"),
}
