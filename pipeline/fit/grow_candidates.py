"""The number of candidates of a fit by a budget, and the width with so many: both by the losses of held-out rows.

The candidates grow in steps, each about twice the one before, whose first they are. The best width is smaller with more
candidates: while steps are cheap it is tried again, and what it is with the largest follows from these.
"""

from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InvalidDataError
from pipeline.fit.held_out import held_out_decisions
from pipeline.fit.statistics import ALL, FIT, HELD_OUT, commit_parts, name_of, statistics_pass
from pipeline.fit.workspace import Workspace
from pipeline.kernels.gram_statistics import joined, statistics_by_part
from pipeline.solvers.candidate_budget import is_joined, steps_to, tries_widths
from pipeline.solvers.held_out_losses import clipped, is_better, log_losses, lowest_point
from pipeline.solvers.ridge import CalibrationWeights, SplitStatistics, Weights, search_exponents, try_ridges
from pipeline.work.events import CANDIDATES, STATISTICS
from storage.arrays import Arrays, as_json

RIDGE_ERRORS = "ridges"  # the array (ridges, 2) of fractions of the diagonal and held-out losses
WIDTHS = range(-3, 4)  # powers of 2 by which the width that is expected may be wrong
TRUSTED, STEEPEST = 0.5, 0.3  # of a trend of the width; and its halvings, at most, where candidates double
PATIENCE = 2  # steps in a row without gain, after which candidates grow no more


@dataclass(frozen=True, eq=False)
class Judged:
    """A fit of so many candidates at a width, and how it does on held-out rows."""

    size: int
    sigma2: float
    ridges: NDArray[np.float64]  # (r, 2): fractions of the diagonal, and mean losses
    losses: NDArray[np.float64]  # (rows,), at the best of them
    weights: NDArray[np.float64]  # (rows,)

    @property
    def loss(self) -> float:
        """The mean loss at the best ridge: squared, or of classes the log loss at the best temperature."""
        return float(self.ridges[:, 1].min(initial=np.inf))


def grow_candidates(work: Workspace) -> None:
    """Commit the statistics of as many candidates as lower the held-out loss by more than chance; cut the others."""
    with work.events.stage(STATISTICS):
        if work.final is not None:
            return  # nothing reads the statistics any more
        growth, kept = _Growth(work), None
        size, sigma2 = work.n_candidates, work.sigma2
        if RIDGE_ERRORS not in work.choices:
            kept = growth.best()
            size, sigma2 = kept.size, kept.sigma2
        if work.store.get(name_of(ALL), mapped=True) is None:
            commit_parts(work, *growth.statistics_of_kept(size, sigma2), (FIT, HELD_OUT, ALL))
        if kept is not None:  # last: the steps, and so how statistics are joined, follow from all candidates
            X = np.array(work.store.stored(CANDIDATES).read(mapped=True)["X"][:size])
            cut = {"index": work.candidates[:size], "X": X}
            chosen: Arrays = {"choice": as_json(work.choice | {"sigma2": sigma2}), RIDGE_ERRORS: kept.ridges}
            work.choose(work.choices | cut | chosen)
        work.store.drop(f"passes/{STATISTICS}")


class _Growth:
    """Fits of more and more candidates. What is found of each is committed; its statistics are kept for the last.

    Bits of statistics depend on what they were joined from: on the fits before, and never on where sessions have ended.
    """

    def __init__(self, work: Workspace) -> None:
        self._work, self._rows, self._names = work, work.row_task, count()
        self._n_different = float(max(work.facts.n_held_out, 1))
        self._chooses_width = work.config.kernel.sigma2 == "auto"
        self._fits = list[tuple[int, float]]()  # sizes and widths, in the order of the fits
        self._last: tuple[tuple[int, float], SplitStatistics] | None = None
        self._ridge: int | None = None

    def best(self) -> Judged:
        """Return the fit that no larger one is better than. Raises InvalidDataError where none can be computed."""
        sizes, centres, without, kept = steps_to(self._work.n_candidates), list[tuple[float, float]](), 0, None
        for size in sizes:
            expected = self._rows.sigma2 * 2.0 ** _expected(centres, sizes[-1] if is_joined(size, sizes[-1]) else size)
            if self._chooses_width and tries_widths(size, sizes[-1]):
                found, centre = self._at_widths(size, expected)
                centres.append((np.log2(size), np.log2(centre / self._rows.sigma2)))
            else:
                found = self._judged(size, expected)
            if kept is None or self._is_better(kept, found):
                kept, without = found, 0
            else:
                without += 1
            if without == PATIENCE:
                break
        assert kept is not None
        if not np.isfinite(kept.loss):
            raise InvalidDataError("least squares: no ridge makes the Gram definite; use a larger `kernel.sigma2`")
        if kept.size < size:
            self._work.events.log(
                f"{kept.size} of {sizes[-1]} candidates are kept: more lower the loss by no more than chance explains"
            )
        return kept

    def statistics_of_kept(self, size: int, sigma2: float) -> SplitStatistics:
        """Return the statistics of fit rows and held-out rows: a part of those of the last fit, if at its width."""
        last = self._fits[-1] if self._fits else (size, sigma2)
        if last[0] == size or last[1] != sigma2:
            return self._statistics(size, sigma2)
        fit, held_out = (part.prefix(size) for part in self._statistics(*last))
        return replace(fit, gram=fit.gram.copy()), replace(held_out, gram=held_out.gram.copy())

    def _statistics(self, size: int, sigma2: float) -> SplitStatistics:
        """Return the statistics of the first candidates: joined to those of the fit before, if at its width."""
        if self._last is None or self._last[0] != (size, sigma2):
            place = self._fits.index((size, sigma2)) if self._fits else 0
            before = self._fits[place - 1] if place else (size, 0.0)
            old = self._statistics(*before) if before[0] < size and before[1] == sigma2 else None
            self._last, n_kept = None, before[0] if old else 0
            name = f"{STATISTICS}/{size}"
            task = statistics_pass(replace(self._rows, sigma2=sigma2), (FIT, HELD_OUT), size, n_kept=n_kept)
            parts = statistics_by_part(self._work.runner.add_up(STATISTICS, task, name, f"{size} candidates"))
            self._work.store.drop(f"passes/{name}")
            fit, held_out = (
                joined(old[number] if old else None, np.arange(n_kept), parts.pop(part))
                for number, part in enumerate((FIT, HELD_OUT))
            )
            self._last = (size, sigma2), (fit, held_out)
        return self._last[1]

    def _at_widths(self, size: int, sigma2: float) -> tuple[Judged, float]:
        """Return the fit at the best of some widths, in powers of 2 of the expected one, and where they are best."""
        found = dict[int, Judged]()

        def loss_at(step: int) -> float:
            found[step] = self._judged(size, sigma2 * 2.0**step)
            return found[step].loss

        losses = search_exponents(loss_at, 0, WIDTHS)
        best = min(losses, key=lambda step: losses[step])
        return found[best], sigma2 * 2.0 ** lowest_point(losses)

    def _judged(self, size: int, sigma2: float) -> Judged:
        self._fits.append((size, sigma2))
        name = f"passes/{STATISTICS}/judged-{next(self._names)}.npz"
        arrays = self._work.store.once(name, lambda: self._judge(size, sigma2))
        found = Judged(size, sigma2, *(np.array(arrays[name]) for name in ("ridges", "losses", "weights")))
        if found.ridges.size:
            self._ridge = round(np.log10(found.ridges[found.ridges[:, 1].argmin(), 0]))
        loss = f"{'mean squared error' if self._is_regression else 'log loss'} {found.loss:.6g}"
        words = f"{size} candidates, sigma2 {sigma2:.4g}: held-out {loss}"
        self._work.events.log(words, candidates=size, sigma2=sigma2, hold_out_error=found.loss)
        return found

    @property
    def _is_regression(self) -> bool:
        return self._work.shape.task == "regression"

    def _judge(self, size: int, sigma2: float) -> Arrays:
        fit, held_out = self._statistics(size, sigma2)
        errors, of_fractions = try_ridges([(fit, held_out)], start=self._ridge, intercept=self._work.intercept)
        if not errors:
            return {name: np.empty(shape) for name, shape in (("ridges", (0, 2)), ("losses", 0), ("weights", 0))}
        best = int(np.argmin([error for _, error in errors]))
        fractions = [fraction for fraction, _ in errors[max(best - 1, 0) : best + 2]]  # clipping may prefer another
        weights = [of_fractions[fraction][0] for fraction in fractions]
        every = Weights(
            self._work.candidates[:size],
            np.hstack([one.weights for one in weights]),
            np.concatenate([one.intercept for one in weights]),
        )
        task = replace(self._rows, sigma2=sigma2)
        name = f"{STATISTICS}/held-out"
        decision, truth, counts = held_out_decisions(
            self._work, task, CalibrationWeights(every), STATISTICS, name, "held-out rows"
        )
        self._work.store.drop(f"passes/{name}")
        of_ridges = np.split(decision, len(fractions), axis=1)
        losses = [self._losses(of_ridge, truth, counts) for of_ridge in of_ridges]
        means = [float(np.average(of_ridge, weights=counts)) for of_ridge in losses]
        return {
            "ridges": np.column_stack([fractions, means]),
            "losses": losses[int(np.argmin(means))],
            "weights": counts,
        }

    def _losses(
        self, decision: NDArray[np.float64], truth: NDArray[np.int64], counts: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        facts, shape = self._work.facts, self._work.shape
        if not self._is_regression:
            return log_losses(decision, truth, counts, self._n_different)
        predicted = clipped(decision, facts.limits)
        return np.asarray(np.square(predicted - facts.encoded(truth, shape)).sum(axis=1))

    def _is_better(self, before: Judged, after: Judged) -> bool:
        if not (len(before.losses) and len(after.losses)):
            return after.loss < before.loss
        return is_better(before.losses, after.losses, after.weights, self._n_different)


def _expected(centres: list[tuple[float, float]], size: int) -> float:
    """Return the logarithm of the best width with so many candidates, from those of smaller sizes.

    It is taken to go on falling half as fast as it has, by no more than STEEPEST (mathematics.md, eq. 97): the place of
    a flat minimum is known badly. centres: logarithms to base 2 of sizes, and of the best widths.
    """
    if not centres:
        return 0.0
    (first, width), (last, best) = centres[0], centres[-1]
    slope = min(max(TRUSTED * (best - width) / (last - first), -STEEPEST), 0.0) if len(centres) > 1 else 0.0
    return best + slope * (np.log2(size) - last)
