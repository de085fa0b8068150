"""The number of candidates of a fit by a budget: more and more, while they lower the losses of held-out rows.

Each step has twice the candidates of the one before, whose first they are. All have one width, so that each entry of
their Gram is computed once: between that of the trials and the one that is expected for the most candidates.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InvalidDataError
from pipeline.fit.filled_settings import fit_of
from pipeline.fit.held_out import held_out_decisions
from pipeline.fit.statistics import ALL, FIT, HELD_OUT, commit_parts, name_of, statistics_pass
from pipeline.fit.workspace import Workspace
from pipeline.kernels.gram_statistics import joined, statistics_by_part
from pipeline.solvers.candidate_budget import (
    LEAST_CENTERS,
    OPERATIONS_A_SECOND,
    SHARE_OF_TRIALS,
    candidates_within,
    steps_to,
)
from pipeline.solvers.held_out_losses import clipped, is_better, log_losses
from pipeline.solvers.ridge import CalibrationWeights, SplitStatistics, Weights, try_ridges
from pipeline.work.events import CANDIDATES, STATISTICS
from storage.arrays import Arrays, as_arrays, as_dataclass, as_json

RIDGE_ERRORS = "ridges"  # The array (ridges, 2) has fractions of the diagonal and held-out losses.
PATIENCE = 2  # Candidates grow no more after as many steps in a row without gain.
STEEPNESS = 0.15  # A width halves so many times where the candidates double (mathematics.md, eq. 97).


@dataclass(frozen=True, eq=False)
class Judged:
    """A fit of some candidates with its held-out losses; the arrays are empty where there is no fit."""

    size: int
    ridges: NDArray[np.float64]  # (r, 2): fractions of the diagonal, and mean losses
    losses: NDArray[np.float64]  # (rows,), at the best ridge
    weights: NDArray[np.float64]  # (rows,)

    @property
    def loss(self) -> float:
        """The mean loss at the best ridge: squared error, or for classes the log loss at the best temperature."""
        return float(self.ridges[:, 1].min(initial=np.inf))

    def is_worse_than(self, other: "Judged", n_different: float) -> bool:
        """Return whether another fit has a lower loss, by more than chance explains."""
        if len(self.losses) and len(other.losses):
            return is_better(self.losses, other.losses, other.weights, n_different)
        return other.loss < self.loss


def grow_candidates(work: Workspace) -> None:
    """Commit the statistics of as many candidates as lower the held-out loss by more than chance; cut the others."""
    with work.events.stage(STATISTICS):
        if work.final is not None:
            return  # Nothing reads the statistics any more.
        if RIDGE_ERRORS in work.choices:  # Folds have found them, or an earlier start of the run.
            size, sigma2, found = work.n_candidates, work.sigma2, None
        else:
            found = _Growth(work)
            kept = found.best()
            size, sigma2 = kept.size, found.sigma2
        if work.store.get(name_of(ALL), mapped=True) is None:
            growth = found or _Growth(work, [size])
            commit_parts(work, *growth.statistics_of_first(size), (FIT, HELD_OUT, ALL))
        if found is not None:  # This comes last: the steps follow from all candidates.
            X = np.array(work.store.stored(CANDIDATES).read(mapped=True)["X"][:size])
            cut = {"index": work.candidates[:size], "X": X}
            chosen: Arrays = {"choice": as_json(work.choice | {"sigma2": sigma2}), RIDGE_ERRORS: kept.ridges}
            work.choose(work.choices | cut | chosen)
        work.store.drop(f"passes/{STATISTICS}")


class _Growth:
    """Fits of more and more candidates, of one width (mathematics.md, eq. 97); the losses of each are committed."""

    def __init__(self, work: Workspace, sizes: list[int] | None = None) -> None:
        self._work = work
        self._n_different = float(max(work.facts.n_held_out, 1))
        self._sizes = sizes or self._steps()
        tried_on = min(self._sizes[-1], work.choice.get("n_centers", np.inf))
        is_narrower = sizes is None and work.config.kernel.sigma2 == "auto"
        self.sigma2 = work.sigma2 * (tried_on / self._sizes[-1]) ** (STEEPNESS if is_narrower else 0.0)
        self._step = 0  # the last step that was judged
        self._in_memory: tuple[int, SplitStatistics] | None = None  # a step and its statistics
        self._ridge: int | None = work.choice.get("ridge")

    def _steps(self) -> list[int]:
        """Return the sizes that the rest of the budget pays for, at least up to that on which the kernel was chosen."""
        work, choice = self._work, self._work.choice
        budget, least = work.config.centers.budget, choice.get("n_centers", LEAST_CENTERS)
        assert budget is not None
        left = max(budget - choice.get("operations", 0.0) / OPERATIONS_A_SECOND, SHARE_OF_TRIALS * budget)
        paid = candidates_within(fit_of(work.config, work.shape), left * OPERATIONS_A_SECOND, 2**62)
        return steps_to(min(work.n_candidates, max(paid, least)), LEAST_CENTERS)

    def best(self) -> Judged:
        """Return the fit that no larger one improves. Raises InvalidDataError where no fit can be computed."""
        kept, without = self._judged(0), 0
        for step in range(1, len(self._sizes)):
            found = self._judged(step)
            kept, without = (found, 0) if kept.is_worse_than(found, self._n_different) else (kept, without + 1)
            if without == PATIENCE:
                break
        if without:
            kept_words = f"{kept.size} of {self._sizes[-1]} candidates are kept"
            self._work.events.log(f"{kept_words}: more lower the loss by no more than chance explains")
        if not np.isfinite(kept.loss):
            raise InvalidDataError("least squares: no ridge makes the Gram definite; use a larger `kernel.sigma2`")
        return kept

    def _judged(self, step: int) -> Judged:
        self._step, size = step, self._sizes[step]
        name = f"passes/{STATISTICS}/judged-{size}.npz"
        found = as_dataclass(self._work.store.once(name, lambda: as_arrays(self._judge(step))), Judged)
        if found.ridges.size:
            self._ridge = round(np.log10(found.ridges[found.ridges[:, 1].argmin(), 0]))
        loss = f"{'log loss' if self._work.shape.classes else 'mean squared error'} {found.loss:.6g}"
        words = f"{size} candidates, sigma2 {self.sigma2:.4g}: held-out {loss}"
        self._work.events.log(words, candidates=size, sigma2=self.sigma2, hold_out_error=found.loss)
        return found

    def statistics_of_first(self, size: int) -> SplitStatistics:
        """Return the statistics of fit and held-out rows on the first candidates, cut from those of the last step.

        That step is the same in every start of a run: bits depend on the columns that were computed together.
        """
        fit, held_out = (part.prefix(size) for part in self._statistics(self._step))
        return replace(fit, gram=fit.gram.copy()), replace(held_out, gram=held_out.gram.copy())

    def _statistics(self, step: int) -> SplitStatistics:
        """Return the statistics of a step, joined to those of the step before."""
        if self._in_memory is not None and self._in_memory[0] == step:
            return self._in_memory[1]
        old = self._statistics(step - 1) if step else None
        size, n_kept = self._sizes[step], self._sizes[step - 1] if step else 0
        self._in_memory = None
        name = f"{STATISTICS}/{size}"
        rows = replace(self._work.row_task, sigma2=self.sigma2)
        task = statistics_pass(rows, (FIT, HELD_OUT), size, n_kept=n_kept)
        words = f"{size} candidates, step {step + 1} of {len(self._sizes)} at most"
        parts = statistics_by_part(self._work.runner.add_up(task, name, words))
        self._work.store.drop(f"passes/{name}")
        fit, held_out = (
            joined(old[number] if old else None, np.arange(n_kept), parts.pop(part))
            for number, part in enumerate((FIT, HELD_OUT))
        )
        self._in_memory = step, (fit, held_out)
        return fit, held_out

    def _judge(self, step: int) -> Judged:
        size, (fit, held_out) = self._sizes[step], self._statistics(step)
        errors, of_fractions = try_ridges(fit, held_out, start=self._ridge, intercept=self._work.intercept)
        if not errors:
            return Judged(size, np.empty((0, 2)), np.empty(0), np.empty(0))
        best = int(np.argmin([error for _, error in errors]))
        fractions = [
            fraction for fraction, _ in errors[max(best - 1, 0) : best + 2]
        ]  # Clipping may prefer a neighbour.
        weights = [of_fractions[fraction] for fraction in fractions]
        every = Weights(
            self._work.candidates[:size],
            np.hstack([one.weights for one in weights]),
            np.concatenate([one.intercept for one in weights]),
        )
        task, tried = replace(self._work.row_task, sigma2=self.sigma2), CalibrationWeights(every)
        name = f"{STATISTICS}/held-out"
        decision, truth, counts, _ = held_out_decisions(self._work, task, tried, name, "held-out rows")
        self._work.store.drop(f"passes/{name}")
        of_ridges = np.split(decision, len(fractions), axis=1)
        losses = [self._losses(of_ridge, truth, counts) for of_ridge in of_ridges]
        means = [float(np.average(of_ridge, weights=counts)) for of_ridge in losses]
        return Judged(size, np.column_stack([fractions, means]), losses[int(np.argmin(means))], counts)

    def _losses(
        self, decision: NDArray[np.float64], truth: NDArray[np.int64], counts: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        facts, shape = self._work.facts, self._work.shape
        if shape.classes:
            return log_losses(decision, truth, counts, self._n_different)
        predicted = clipped(decision, facts.limits)
        return np.asarray(np.square(predicted - facts.encoded(truth, shape)).sum(axis=1))
