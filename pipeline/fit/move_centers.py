"""Moved centers (`--move-centers`): steps on their positions, with the weights solved out (variable projection).

A step takes two passes over the rows: statistics at the new positions, and the gradient. The state between two steps is
checkpointed.
"""

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError

from pipeline.datasets.feature_rows import open_features
from pipeline.errors import InvalidDataError, StoppedError
from pipeline.fit.row_blocks import (
    Needs,
    RowBlock,
    RowGrid,
    RowTask,
    RunSize,
    block_pass,
    memory_of,
    row_grid,
)
from pipeline.fit.statistics import FIT, HELD_OUT, statistics_at, statistics_blocks
from pipeline.fit.workspace import FinalWeights, Workspace
from pipeline.kernels.exact_sums import TILE_COLUMNS, ExactSum, ExactSums, ForEach
from pipeline.kernels.gram_statistics import GramStatistics, RowBounds
from pipeline.runtime.row_pass import AddPiece, RowPass
from pipeline.solvers.lbfgs import NUMBER_BYTES, Curvature, next_point
from pipeline.solvers.ridge import RIDGES, CalibrationWeights, Refit, Weights, least_squares, refit, ridge_summary
from storage.arrays import Arrays, Stored, as_arrays, as_dataclass

NAME, TRIALS = "moves", "passes/moves-trials"
PATIENCE = 10  # As many steps in a row that do not lower the held-out error end the moves.
FIRST = 0.1  # The first step moves the center that moves farthest by this share of σ.
Points = NDArray[np.float64]


@dataclass(frozen=True)
class Solution:
    """The ridge solution at some points: weights (m, T), intercept (T,), objective; its held-out error."""

    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]
    objective: float
    held_out_error: float
    ridge: float  # ρ
    fraction: float  # ρ over the mean diagonal of the Gram where it was chosen


@dataclass(frozen=True)
class Moving(Solution):
    """The state between two passes: the solution at some points, and the best points so far."""

    points: Points  # (m, d) f8
    gradient: Points  # (m, d) at the points; (0,) before its pass
    last_step: Points  # (m, d) until L-BFGS has learned from it, else (0,)
    last_gradient: Points  # (m, d) where the last step began, until then
    steps: NDArray[np.float32]  # what L-BFGS has learned, with `changes`
    changes: NDArray[np.float32]
    best: NDArray[np.floating]  # (m, d) f4: the points with the lowest held-out error
    best_step: int
    errors: NDArray[np.float64]  # held-out errors at first and after each step

    @property
    def step(self) -> int:
        return len(self.errors) - 1

    @property
    def curvature(self) -> Curvature:
        return Curvature(self.steps, self.changes)


def move_centers(
    work: Workspace, final: FinalWeights, tried: CalibrationWeights
) -> tuple[FinalWeights, CalibrationWeights]:
    """Move the centers where that lowers the held-out error; return their weights, and those for the held-out rows."""
    started = time.perf_counter()
    rows = work.candidates[final.active]
    mover = _Mover(work, work.config.solver.move_centers)
    points = open_features(work.features).X[rows].astype(np.float64)
    state = mover.finished(points)
    summary, kept = final.summary, 0
    before = after = float(state.errors[0])
    if state.best_step:
        parts = mover.statistics(state.best, "weights at the new places")
        moved = mover.refit(parts, parts[FIT] + parts[HELD_OUT])
        lowest = min(error for _, error in moved.held_out_errors)
        if lowest < before:
            after, kept = lowest, state.best_step
            weights, intercept = moved.weights.weights, moved.weights.intercept
            final = replace(final, weights=weights, intercept=intercept, points=state.best)
            tried = CalibrationWeights(moved.of_fit.weights.named(tried.weights.columns), points=state.best)
            summary = summary | ridge_summary(moved)
    moves = {
        "steps": state.step,
        "kept_step": kept,  # 0: no center has moved
        "held_out_errors": state.errors.tolist(),  # before the first step and after each
        "held_out_before": before,
        "held_out_after": after,  # with the ridge that is best there
        "wall_seconds": time.perf_counter() - started,
    }
    return replace(final, summary=summary | {"moves": moves}), tried


class _Mover:
    def __init__(self, work: Workspace, most: int) -> None:
        self._work, self._most = work, most
        self._task: RowTask = work.row_task
        self._dtype = open_features(work.features).X.dtype.type
        self._checkpoints = work.store.checkpoints(NAME)
        # Powers of two, with which L-BFGS computes on numbers near 1 in any units of rows and targets: its float32 and
        # the squares of its numbers would leave their range.
        squares = sum(self._task.facts.bounds().yty) * work.shape.n_train
        self._of_points = 0.5 ** math.frexp(math.sqrt(self._task.sigma2))[1]
        self._of_gradients = 0.5 ** math.frexp(squares)[1] / self._of_points

    def finished(self, points: Points) -> Moving:
        """Return the state after the last step, taken up from the last checkpoint. Raises StoppedError, after one."""
        checkpoint = self._checkpoints.load()
        state = as_dataclass(checkpoint.arrays, Moving) if checkpoint else self._started(points)
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
        self._save(state)  # The weights at the new places take another pass.
        return state

    def _started(self, points: Points) -> Moving:
        parts, none = self.statistics(points, "moving centers: where they are"), np.empty(0)
        fit = self.chosen(parts, RIDGES)
        return Moving(
            **vars(fit),
            **vars(Curvature.nothing(points.size)),
            points=points,
            gradient=none,
            last_step=none,
            last_gradient=none,
            best=self._rounded(points),
            best_step=0,
            errors=np.array([fit.held_out_error]),
        )

    def _next(self, state: Moving) -> Moving | None:
        """Return the state after the next pass or passes; None where no step lowers the held-out error any more."""
        if not state.gradient.size:
            return self._with_gradient(state)
        return self._moved(state) if state.step - state.best_step < PATIENCE else None

    def _with_gradient(self, state: Moving) -> Moving:
        name = f"moves-gradient-{_digest(state.points, state.weights, state.intercept)}"
        arrays = {"points": self._rounded(state.points), "weights": state.weights, "intercept": state.intercept}
        given = self._work.store.put(f"passes/{name}/input.npz", arrays)
        task = gradient_pass(self._task, given, arrays["points"])
        sums = self._work.runner.add_up(task, name, self._words(state.step + 1, state))
        self._work.store.drop(f"passes/{name}")
        gradient = gradient_of(self._task, sums, arrays)
        curvature, none = state.curvature, np.empty(0)
        if state.last_step.size:
            step, change = self._of_points * state.last_step, self._of_gradients * (gradient - state.last_gradient)
            curvature = curvature.with_pair(step.ravel(), change.ravel())
        return replace(state, gradient=gradient, last_step=none, last_gradient=none, **vars(curvature))

    def _moved(self, state: Moving) -> Moving | None:
        shape, number = state.points.shape, state.step + 1
        unit = self._of_gradients * self._of_points
        last: list[Solution] = []

        def objective_at(x: NDArray[np.float64]) -> float:
            points = x.reshape(shape) / self._of_points
            fit, objective = self._tried(points, state, self._words(number, state))
            last[:] = [fit]
            return unit * objective

        gradient = self._of_gradients * state.gradient
        farthest = float(np.sqrt(np.einsum("md,md->m", gradient, gradient).max()))
        width = self._of_points * np.sqrt(self._task.sigma2)
        first = FIRST * width * float(np.abs(gradient).max()) / max(farthest, 1e-300)
        x = (self._of_points * state.points).ravel()
        found = next_point(x, unit * state.objective, gradient.ravel(), state.curvature, first, objective_at)
        if found is None:
            return None
        points, fit, none = found.reshape(shape) / self._of_points, last[0], np.empty(0)
        error, learns = fit.held_out_error, fit.ridge == state.ridge  # L-BFGS compares two gradients of one objective.
        self._work.events.record("moves", step=number, objective=fit.objective, held_out_error=error)
        self._work.store.drop(TRIALS)
        moved = replace(
            state,
            **vars(fit),
            points=points,
            gradient=none,
            last_step=points - state.points if learns else none,
            last_gradient=state.gradient if learns else none,
            errors=np.append(state.errors, error),
        )
        return replace(moved, best=self._rounded(points), best_step=number) if error < state.errors.min() else moved

    def _words(self, number: int, state: Moving) -> str:
        return f"moving centers, step {number} of at most {self._most}, held-out error {state.errors.min():.4g}"

    def _tried(self, points: Points, state: Moving, words: str) -> tuple[Solution, float]:
        """Return the solution at some points, and the objective there with the present ridge.

        The solution has a larger ridge where that lowers the held-out error. The objective is infinite where the step
        was too long for kernel values or a factor. Trials are kept until their step is made.
        """

        def make() -> Arrays:
            try:
                self._task.kernel_at(self._rounded(points))
            except InvalidDataError:
                return as_arrays(_too_long(state)) | {"so_far": np.asarray(np.inf)}
            parts = self.statistics(points, words)
            fit = better = self.fitted(parts, state)
            if np.isfinite(fit.objective):
                with suppress(InvalidDataError):  # Without a factor the ridge stays.
                    better = min(fit, self.chosen(parts, (10.0 * fit.fraction,)), key=lambda one: one.held_out_error)
            return as_arrays(better) | {"so_far": np.asarray(fit.objective)}

        arrays = self._work.store.once(f"{TRIALS}/{_digest(points)}.npz", make)
        return as_dataclass(arrays, Solution), float(arrays["so_far"])

    def statistics(self, points: NDArray[np.floating], words: str) -> dict[str, GramStatistics]:
        name = f"moves-statistics-{_digest(points)}"
        parts = statistics_at(self._work, name, (FIT, HELD_OUT), words, points=self._rounded(points))
        self._work.store.drop(f"passes/{name}")
        return parts

    def fitted(self, parts: dict[str, GramStatistics], before: Solution) -> Solution:
        try:
            solved = least_squares(parts[FIT], before.ridge, intercept=self._work.intercept)
        except LinAlgError:
            return _too_long(before)
        return self._fit(parts, solved, before.ridge, before.fraction)

    def chosen(self, parts: dict[str, GramStatistics], fractions: Sequence[float]) -> Solution:
        """Return the solution with the ridge of the lowest held-out error, among these and larger ones."""
        found = self.refit(parts, parts[FIT], fractions)
        fraction, _ = min(found.held_out_errors, key=lambda pair: pair[1])
        return self._fit(parts, found.weights, found.ridge, fraction)

    def _fit(self, parts: dict[str, GramStatistics], solved: Weights, ridge: float, fraction: float) -> Solution:
        """Return a ridge solution of the fit rows with its objective (mathematics.md, eq. 87)."""
        fit, held_out = parts[FIT], parts[HELD_OUT]
        kty, yty = fit.centred_targets() if self._work.intercept else (fit.kty, fit.yty)
        objective = 0.5 * float(yty.sum() - (solved.weights * kty).sum())
        error = float(held_out.squared_error(solved.weights, solved.intercept).sum() / held_out.weight_sum)
        return Solution(solved.weights, solved.intercept, objective, error, ridge, fraction)

    def refit(
        self, parts: dict[str, GramStatistics], final: GramStatistics, fractions: Sequence[float] = RIDGES
    ) -> Refit:
        try:
            return refit(parts[FIT], parts[HELD_OUT], final, intercept=self._work.intercept, fractions=fractions)
        except LinAlgError as error:
            raise InvalidDataError(f"`solver.move_centers`: {error}; leave it out, or choose fewer centers") from None

    def _rounded(self, points: NDArray[np.floating]) -> NDArray[np.floating]:
        return np.ascontiguousarray(points, dtype=self._dtype)

    def _save(self, state: Moving) -> None:
        self._checkpoints.save(as_arrays(state), {})


def moves_needs(run: RunSize) -> Needs:
    """Return the needs of moving centers: statistics or a gradient, beside places, gradients and curvature.

    On disk are a checkpoint, another while it is written, and the sums of each process.
    """
    n, m, d = run.shape.n_train, n_moving(run), run.shape.n_features
    if not m:
        return Needs(0, 0)
    statistics, gradient = statistics_blocks(n, m, 2), gradient_blocks(n, m, d)
    passes = max(memory_of(statistics, run) + 2 * statistics.sums_bytes, memory_of(gradient, run))
    sums = run.workers.processes * 8 * m * (d + 2 * m)
    descent = NUMBER_BYTES * m * d
    return Needs(passes + descent, 2 * descent + sums)


def n_moving(run: RunSize) -> int:
    """Return the number of centers that may move: the most that are chosen; 0 where none are moved."""
    solver, n_columns = run.config.solver, run.n_columns
    if not solver.move_centers or not solver.selects:
        return n_columns if solver.move_centers else 0
    return min(solver.n_selected, n_columns)


def _too_long(before: Solution) -> Solution:
    """Return the outcome of a step after which there are no kernel values, or no factor of their Gram."""
    return replace(before, objective=np.inf, held_out_error=np.inf)


def _digest(*arrays: NDArray[np.floating]) -> str:
    return blake2b(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays), digest_size=8).hexdigest()


_SLACK = 2.0  # It bounds a term of the gradient: k ‖x - z‖ is at most σ/√e, and float32 products are rounded.


def gradient_pass(rows: RowTask, given: Stored, points: NDArray[np.floating]) -> RowPass[ExactSums]:
    """Return the pass behind `gradient_of`: scaled sums over the fit rows, of rows (m, d) and of their pulls (m,).

    Residuals and weights are divided by their bounds, so that every pull is within ±1, and every term of a sum within a
    few kernel widths and the distance of its center from the middle: that fixes the units of the exact sums.

    given : points (m, d), weights (m, T) f8 and intercept (T,) f8
    """
    shape = points.shape
    blocks = gradient_blocks(rows.shape.n_train, *shape)
    farthest = float(np.linalg.norm(points - _middle(rows, points), axis=1).max())
    bound = _SLACK * (float(np.sqrt(rows.sigma2)) + farthest) * blocks.block_rows
    return block_pass(
        rows,
        blocks,
        partial(_block_of_gradient, rows, given),
        partial(_sums_of_pulls, shape, bound, _SLACK * blocks.block_rows, blocks.n_blocks),
        (shape, bound, rows.facts.bounds(), TILE_COLUMNS),
    )


def gradient_blocks(n_rows: int, n_centers: int, n_features: int) -> RowGrid:
    """Return the blocks of `gradient_pass`, whose sums have a number for each feature of each center."""
    return row_grid("train", n_rows, n_centers, 8 * n_centers * n_features)


def _sums_of_pulls(shape: tuple[int, int], of_rows: float, of_pulls: float, n_terms: int) -> ExactSums:
    return ExactSums({"rows": ExactSum(shape, of_rows, n_terms), "pulls": ExactSum(shape[:1], of_pulls, n_terms)})


def _middle(rows: RowTask, points: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the middle (d,) of points (m, d), the origin of the rows: far off, products would cancel."""
    return points.mean(axis=0, dtype=np.float64).astype(rows.precision)


def gradient_of(rows: RowTask, sums: ExactSums, given: Arrays) -> NDArray[np.float64]:
    """Return the derivative of half the squared error by every number of every center, (m, d) f8."""
    points, largest = given["points"], rows.facts.bounds()
    scale = scales(given["weights"], given["intercept"], largest)[1] * largest.weight
    pulled = sums["pulls"].values()[:, None] * (points - _middle(rows, points)).astype(np.float64)
    return np.asarray((sums["rows"].values() - pulled) * (-scale / rows.sigma2))


def scales(
    weights: NDArray[np.float64], intercept: NDArray[np.float64], largest: RowBounds
) -> tuple[NDArray[np.float64], float]:
    """Return a bound of the residuals of each output (T,), and one of |Σ_t r_it w_mt|; columns are within [0, 1].

    Rows count by their weights, divided by the largest weight.
    """
    residual = np.array(largest.targets) / largest.weight + np.abs(intercept) + np.abs(weights).sum(axis=0)
    return np.maximum(residual, 1e-300), max(float((np.abs(weights) @ residual).max()), 1e-300)


def _block_of_gradient(rows: RowTask, given: Stored) -> AddPiece[ExactSums]:
    arrays, largest = given.read(), rows.facts.bounds()
    points, weights, intercept = (arrays[name] for name in ("points", "weights", "intercept"))
    kernel, (residual_bound, scale) = rows.kernel_at(points), scales(weights, intercept, largest)
    middle = _middle(rows, points)

    def add(sums: ExactSums, block: RowBlock, each: ForEach) -> None:
        """Add a block, tile by tile of the centers (mathematics.md, eq. 88)."""
        fitted = ~block.held_out
        if not fitted.any():
            return
        X = block.X[fitted]
        columns = kernel.block(X, out_dtype=np.float64, each=each)
        residuals = (block.targets[fitted] - columns @ weights - intercept) / residual_bound
        if block.weights is not None:
            residuals *= (block.weights[fitted] / largest.weight)[:, None]
        away = np.subtract(X, middle, dtype=middle.dtype)

        def add_tile(tile: slice) -> None:
            pulls = residuals @ (weights[tile] * (residual_bound / scale)).T
            pulls *= columns[:, tile]
            sums["rows"].add(pulls.astype(away.dtype).T @ away, tile)
            sums["pulls"].add(pulls.sum(axis=0), tile)

        n = len(points)
        each(add_tile, [slice(first, min(first + TILE_COLUMNS, n)) for first in range(0, n, TILE_COLUMNS)])

    return add
