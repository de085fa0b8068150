"""Moved centers (`--polish-centers`): steps on their positions, with the weights solved out (variable projection).

A step takes two passes over the rows: statistics at the new positions, and the gradient. The first steps take a sample
of the rows, then a larger one, the last ones all. Each level goes on from the positions of the lowest held-out error of
the one before. The state between two steps is checkpointed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError

from pipeline.datasets.feature_rows import open_features
from pipeline.errors import InvalidDataError, StoppedError
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.runtime.stored_arrays import Arrays, as_arrays, as_dataclass
from pipeline.solvers.lbfgs import Curvature, next_point
from pipeline.solvers.ridge import Refit, least_squares, refit
from pipeline.solvers.weights import CalibrationWeights
from pipeline.stages.accumulate_statistics import FIT, HELD_OUT, MEMBERS, largest_values, statistics_pass
from pipeline.stages.block_pass import INPUT, gradient_of, gradient_pass
from pipeline.stages.final_weights import FinalWeights, ridge_summary
from pipeline.stages.training_rows import RowTask, gather_sample, row_task, rows_and_widths, task_on_sample
from pipeline.stages.workspace import SOLVE, Workspace

NAME, TRIALS = "polish", "passes/polish-trials"
SAMPLES = (1 / 6, 1 / 3)  # shares of the rows, before all of them
LEAST_ROWS, LEAST_HELD_OUT, ROWS_A_CENTER = 5000, 250, 8  # of a sample: with fewer it tells too little
SAMPLE_BYTES = 2**28  # of the features of a sample, at most
PATIENCE = 10  # steps without a lower held-out error, after which a larger ridge is tried, or the last step is made
SHORT_PATIENCE = 3  # such steps on a sample, after which more rows are taken
FIRST = 0.1  # of σ: how far the first step moves the center that moves farthest
Points = NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """The ridge solution at some points: weights (m, T), intercept (T,), objective; its held-out error."""

    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]
    objective: float
    held_out_error: float


@dataclass(frozen=True)
class Moving(Fit):
    """The state between two passes: the solution at points (m, d) f8, and the best points so far (m, d) f4.

    begun : the steps at which each level so far began, (levels,) i8
    gradient : at the points, before its pass (0,); last_step, last_gradient : the step that led here, until L-BFGS has
        learned from it, else (0,); steps, changes : its curvature
    ridge, fraction : ρ, and its part of the mean diagonal of the Gram when it was chosen, at step `chosen_at`
    best, best_step : the points of the lowest held-out error of the level, or those it began with
    errors : held-out errors before the first step and after each
    """

    begun: NDArray[np.int64]
    points: Points
    gradient: Points
    last_step: Points
    last_gradient: Points
    steps: NDArray[np.float32]
    changes: NDArray[np.float32]
    ridge: float
    fraction: float
    chosen_at: int
    best: NDArray[np.floating]
    best_step: int
    errors: NDArray[np.float64]

    @property
    def step(self) -> int:
        """Steps taken."""
        return len(self.errors) - 1

    @property
    def level(self) -> int:
        """Which share of the rows is used."""
        return len(self.begun) - 1

    @property
    def waited(self) -> int:
        """Steps since the held-out error was lowest, or the ridge was chosen."""
        return self.step - max(self.best_step, self.chosen_at)

    @property
    def curvature(self) -> Curvature:
        """What L-BFGS has learned."""
        return Curvature(self.steps, self.changes)

    def with_ridge(self, chosen: Refit, fit: Fit, rounded: NDArray[np.floating]) -> Moving:
        """Return the state with a ridge chosen at its points, which are the best so far if their error is the least."""
        fraction, error = min(chosen.held_out_errors, key=lambda pair: pair[1])
        state = replace(self, **vars(fit), ridge=chosen.ridge, fraction=fraction, chosen_at=self.step)
        return state.with_error(error, rounded, self.errors[:-1])

    def with_error(self, error: float, rounded: NDArray[np.floating], before: NDArray[np.float64]) -> Moving:
        """Return the state with the held-out error of its points, after those `before`."""
        state, lowest = replace(self, errors=np.append(before, error)), self.errors[self.begun[-1] :].min(initial=np.inf)
        return replace(state, best=rounded, best_step=state.step) if error < lowest else state


def polish_centers(
    work: Workspace, final: FinalWeights, tried: CalibrationWeights
) -> tuple[FinalWeights, CalibrationWeights]:
    """Move the centers where that lowers the held-out error; return their weights, and those for the held-out rows."""
    started = time.perf_counter()
    rows, _ = rows_and_widths(work.candidates[final.active], work.shape.n_named)
    polish = _Polish(work, work.config.solver.polish_centers, len(rows))
    state = polish.finished(open_features(work.features).take(rows).astype(np.float64))
    summary, kept = final.summary, 0
    before = after = min(error for _, error in summary["ridges"])
    if state.best_step:
        parts = polish.statistics(state.best, state.level, "weights at the new places")
        moved = _refit(parts[FIT], parts[HELD_OUT], parts[FIT] + parts[HELD_OUT], work.intercept)
        lowest = min(error for _, error in moved.held_out_errors)
        if lowest < before:
            after, kept = lowest, state.best_step
            weights, intercept = moved.weights.weights, moved.weights.intercept
            final = replace(final, weights=weights, intercept=intercept, points=state.best)
            tried = CalibrationWeights(moved.of_fit.weights.named(tried.weights.columns), points=state.best)
            summary = summary | ridge_summary(moved)
    polished = {
        "steps": state.step,
        "kept_step": kept,  # 0: none moved
        "levels": [
            {"share": share, "first_step": first} for share, first in zip(polish.shares, state.begun.tolist())
        ],
        "held_out_errors": state.errors.tolist(),  # before the first step and after each, of the rows of the time
        "held_out_before": before,  # of all rows, where the centers were
        "held_out_after": after,  # where they are now, with the ridge that is best there
        "wall_seconds": time.perf_counter() - started,
    }
    return replace(final, summary=summary | {"polish": polished}), tried


class _Polish:
    """The steps, as passes over the rows."""

    def __init__(self, work: Workspace, most: int, n_centers: int) -> None:
        self._work, self._most = work, most
        self._task: RowTask = row_task(work)
        self._largest = largest_values(work)
        self._dtype = open_features(work.features).dtype
        self._checkpoints = work.checkpoints(NAME)
        self.shares = _shares(work, n_centers)

    def _rows(self, level: int) -> RowTask:
        """Return the rows of a level: a sample, which is gathered once, or all."""
        share = self.shares[level]
        if share == 1.0:
            return self._task
        name = f"passes/polish-rows-{level}"
        with self._work.status(SOLVE, f"gathering {share:.0%} of the rows"):
            self._work.once(name, lambda: gather_sample(self._task, share), mapped=True)
        return task_on_sample(self._task, self._work.stored(name))

    def finished(self, points: Points) -> Moving:
        """Return the state after the last step, taken up from the last checkpoint. Raises StoppedError, after one."""
        state = self._loaded()
        state = self._started(points, None) if state is None else state
        try:
            while state.step < self._most:
                new = self._next(state)
                if new is None:
                    break
                state = new
                if self._checkpoints.is_due():
                    self._save(state)
        except StoppedError:
            self._save(state)
            raise
        self._save(state)  # the weights there take another pass
        return state

    def _started(self, points: Points, before: Moving | None) -> Moving:
        """Return the state before the first step of a level; `before`: the last state of the one before it."""
        begun, errors = (np.empty(0, np.int64), np.empty(0)) if before is None else (before.begun, before.errors[:-1])
        parts, none = self.statistics(points, len(begun), "moving centers: where they are"), np.empty(0)
        chosen = _refit(parts[FIT], parts[HELD_OUT], parts[FIT], self._work.intercept)
        fit, best = self.fitted(parts, chosen.ridge), self._rounded(points)
        import os
        curvature = Curvature.nothing(points.size)
        if before is not None and os.environ.get("PC_CARRY"):
            r = self.shares[len(begun)] / self.shares[len(begun)-1]
            curvature = Curvature(before.steps, (before.changes*np.float32(r)))
        state = Moving(
            **vars(fit),
            **vars(curvature),
            begun=np.append(begun, len(errors)),
            points=points,
            gradient=none,
            last_step=none,
            last_gradient=none,
            ridge=0.0,
            fraction=0.0,
            chosen_at=len(errors),
            best=best,
            best_step=0,
            errors=np.append(errors, np.inf),
        )
        state = state.with_ridge(chosen, fit, best)
        return state if before is None else replace(state, best_step=before.best_step)

    def _next(self, state: Moving) -> Moving | None:
        """Return the state after the next pass or passes; None where no step lowers the held-out error any more."""
        is_last = state.level == len(self.shares) - 1
        if not is_last and (state.waited >= SHORT_PATIENCE or state.step >= self._ends[state.level]):
            return self._on_more_rows(state)
        if not state.gradient.size:
            return self._with_gradient(state)
        moved = None if state.waited >= PATIENCE else self._moved(state)
        if moved is not None:
            return moved
        return self._with_larger_ridge(state) if is_last else self._on_more_rows(state)

    def _on_more_rows(self, state: Moving) -> Moving:
        """Return the state at the beginning of the next level."""
        new = self._started(state.best.astype(np.float64), state)
        self._work.drop(f"passes/polish-rows-{state.level}")
        return new

    @property
    def _ends(self):
        import os
        return [int(float(x) * self._most) for x in os.environ.get("PC_ENDS", ".5,.75").split(",")][-(len(self.shares)-1):] + [self._most]

    def _with_gradient(self, state: Moving) -> Moving:
        """Return the state with the gradient at its points, learned from: a pass over the fit rows."""
        name = f"polish-gradient-{_digest(state.points, state.weights, state.intercept)}"
        arrays = {"points": self._rounded(state.points), "weights": state.weights, "intercept": state.intercept}
        given = self._work.commit(f"passes/{name}/{INPUT}", arrays)
        rows = self._rows(state.level)
        task = gradient_pass(rows, given, arrays["points"], self._largest)
        sums = self._work.add_up(SOLVE, task, name, self._words(state.step + 1, state))
        self._work.drop(f"passes/{name}")
        gradient = gradient_of(rows, sums, arrays, self._largest)
        curvature, none = state.curvature, np.empty(0)
        if state.last_step.size:
            curvature = curvature.with_pair(state.last_step.ravel(), (gradient - state.last_gradient).ravel())
        return replace(state, gradient=gradient, last_step=none, last_gradient=none, **vars(curvature))

    def _moved(self, state: Moving) -> Moving | None:
        """Return the state after a step; None where none lowers the objective."""
        shape, number = state.points.shape, state.step + 1
        last: list[Fit] = []

        def objective_at(x: NDArray[np.float64]) -> float:
            last[:] = [self._tried(x.reshape(shape), state, self._words(number, state))]
            return last[0].objective

        farthest = float(np.sqrt(np.einsum("md,md->m", state.gradient, state.gradient).max()))
        first = FIRST * np.sqrt(self._task.sigma2[0]) * float(np.abs(state.gradient).max()) / max(farthest, 1e-300)
        x, gradient = state.points.ravel(), state.gradient.ravel()
        found = next_point(x, state.objective, gradient, state.curvature, first, objective_at)
        if found is None:
            return None
        points, fit = found.reshape(shape), last[0]
        self._work.record("polish", step=number, objective=fit.objective, held_out_error=fit.held_out_error)
        self._work.drop(TRIALS)
        steps: dict[str, Any] = {"last_step": points - state.points, "last_gradient": state.gradient}
        moved = replace(state, **vars(fit), **steps, points=points, gradient=np.empty(0))
        return moved.with_error(fit.held_out_error, self._rounded(points), state.errors)

    def _with_larger_ridge(self, state: Moving) -> Moving | None:
        """Return the state with the ridge that held-out rows now want, to go on from; None if it is no larger one."""
        parts = self.statistics(state.points, state.level, "moving centers: a larger ridge")
        chosen = _refit(parts[FIT], parts[HELD_OUT], parts[FIT], self._work.intercept)
        larger = state.with_ridge(chosen, self.fitted(parts, chosen.ridge), self._rounded(state.points))
        if larger.fraction <= state.fraction:
            return None
        return replace(larger, gradient=np.empty(0), **vars(Curvature.nothing(state.points.size)))

    def _words(self, number: int, state: Moving) -> str:
        share, error = self.shares[state.level], state.errors[state.begun[-1] :].min()
        rows = "all rows" if share == 1.0 else f"{share:.0%} of the rows"
        return f"moving centers, step {number} of at most {self._most}, on {rows}, held-out error {error:.4g}"

    def _tried(self, points: Points, state: Moving, words: str) -> Fit:
        """Return the solution at some points; what earlier trials of a step gave is kept until the step is made."""

        def make() -> Arrays:
            return as_arrays(self.fitted(self.statistics(points, state.level, words), state.ridge))

        return as_dataclass(self._work.once(f"{TRIALS}/{_digest(points)}.npz", make), Fit)

    def statistics(self, points: NDArray[np.floating], level: int, words: str) -> dict[str, GramStatistics]:
        """Return the statistics of fit and held-out rows at some points: a pass over the rows of a level."""
        name = f"polish-statistics-{_digest(points)}"
        members = self._work.commit(f"passes/{name}/{MEMBERS}", {"points": self._rounded(points)})
        task = statistics_pass(self._rows(level), (FIT, HELD_OUT), len(points), self._largest, members=members)
        parts = self._work.add_up(SOLVE, task, name, words).statistics()
        self._work.drop(f"passes/{name}")
        return parts

    def fitted(self, parts: dict[str, GramStatistics], ridge: float) -> Fit:
        """Return the ridge solution of the fit rows (mathematics.md, eq. 84)."""
        fit, held_out = parts[FIT], parts[HELD_OUT]
        try:
            solved = least_squares(fit, ridge, intercept=self._work.intercept)
        except LinAlgError:  # not at points like these: the step was too long
            nothing = np.zeros_like(fit.kty)
            return Fit(nothing, nothing[0], np.inf, np.inf)
        kty, yty = fit.centred_targets() if self._work.intercept else (fit.kty, fit.yty)
        objective = 0.5 * float(yty.sum() - (solved.weights * kty).sum())
        error = float(held_out.squared_error(solved.weights, solved.intercept).sum() / held_out.weight_sum)
        return Fit(solved.weights, solved.intercept, objective, error)

    def _rounded(self, points: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the points as the model has them."""
        return np.ascontiguousarray(points, dtype=self._dtype)

    def _save(self, state: Moving) -> None:
        self._checkpoints.save(2 * state.step + bool(state.gradient.size) + 2 * state.level, as_arrays(state), {})

    def _loaded(self) -> Moving | None:
        checkpoint = self._checkpoints.load()
        if checkpoint is None:
            return None
        for warning in checkpoint.warnings:
            self._work.warn(warning)
        return as_dataclass(checkpoint.arrays, Moving)


def _shares(work: Workspace, n_centers: int) -> list[float]:
    """Return the shares of the rows that are used, one after the other: samples, as far as they tell enough, then all."""
    import os
    if os.environ.get("PC_LEVELS"):
        return [float(x) for x in os.environ["PC_LEVELS"].split(",")]
    n, most = work.shape.n_train, SAMPLE_BYTES / (4 * work.shape.n_features)
    n_rows = sorted({min(share * n, most) for share in SAMPLES})
    least = max(LEAST_ROWS, ROWS_A_CENTER * n_centers, LEAST_HELD_OUT / work.config.statistics.hold_out)
    return [rows / n for rows in n_rows if rows >= least] + [1.0]


def _digest(*arrays: NDArray[np.floating]) -> str:
    return blake2b(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays), digest_size=8).hexdigest()


def _refit(fit: GramStatistics, held_out: GramStatistics, final: GramStatistics, intercept: bool) -> Refit:
    try:
        return refit(fit, held_out, final, intercept=intercept)
    except LinAlgError as error:
        raise InvalidDataError(f"--polish-centers: {error}; leave it out, or ask for fewer centers") from None
